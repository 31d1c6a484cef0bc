"""Runs every code block of a document in a new environment, as a reader does who types it in the order given.

::

    python -m tests.packaging.walk                    # with the package index, as a stranger has it: `make package`
    python -m tests.packaging.walk docs/tutorial.md
    python -m tests.packaging.walk --container debian:bookworm-slim --page docs/first-hour.md

The last one walks in a fresh container, which gets no more than the README says that a user needs (see ``container``),
and writes down how long each block took.

What a block is, its first line says: ``sh`` is typed into a terminal, ``sh terminal-2`` into a second one, which is not
waited for (``sh terminal-2 WORD``: until it prints the word), and ``python`` into one interpreter that is started from
the first terminal. ``sql`` after *In its prompt* is typed into the program that the block before it starts. A block
that the text before it says to *save as* a file is saved. ``<!-- not run: why -->`` before a block leaves it out. All
else is output.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType

from tests.packaging import container

ROOT = Path(__file__).parents[2]

README = ("README.md", "docs/spark.md", "docs/maintenance.md")
"""These continue each other, in the same terminals."""

TUTORIAL = ("docs/tutorial.md",)

PYSPARK = ("docs/tutorials/pyspark.md",)

SPARK_SQL = ("docs/tutorials/spark-sql.md",)

MIGRATION = ("docs/tutorials/migration.md",)

DLT = ("docs/how-to/dlt.md",)

_PATIENCE_S = 900.0
_INTERPRETER = """
import json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    code, end = json.loads(line)
    try:
        exec(compile(code, "block", "exec"), names)
        failed = 0
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        failed = 1
    print(f"\\n{end}{failed}", flush=True)
"""


class Stopped(Exception):
    """A block did not do what the document says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code.

    Args:
        place: Document and line.
        heading: Above it.
        kind: The words of its first line.
        code: The text.
        saved_as: The file that it is to be saved as; empty: it is run.
        left_out: Why it is not run; empty: it is.
    """

    place: str
    heading: str
    kind: str
    code: str
    saved_as: str
    left_out: str


def blocks(document: Path) -> list[Block]:
    """Return the blocks of *document* that are code."""
    text, found = document.read_text(), list[Block]()
    for match in re.finditer(r"^```(.*)\n([\s\S]*?)^```$", text, re.MULTILINE):
        before = text[: match.start()].rstrip("\n")
        above = before.rpartition("\n")[2]
        saved = re.search(r"Save this \w+ as `([\w.]+)`:$", above)
        left_out = re.fullmatch(r"<!-- not run: (.*) -->", above)
        if match[1] == "sql" and above == "In its prompt:":
            found[-1] = replace(found[-1], code=f"{found[-1].code.rstrip()} <<'END OF SQL'\n{match[2]}END OF SQL\n")
        if match[1].split(" ")[0] in ("sh", "python") or saved:
            block = Block(
                place=f"{document.name}:{text.count(chr(10), 0, match.start()) + 1}",
                heading=re.findall(r"^#+ (.*)$", before, re.MULTILINE)[-1],
                kind=match[1],
                code=match[2],
                saved_as=saved[1] if saved else "",
                left_out=left_out[1] if left_out else "",
            )
            found.append(block)
    return found


class Program:
    """A program that reads blocks from its standard input, and says when each is done.

    Args:
        command: The program.
        folder: Where it starts.
        environment: Of the program.
    """

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._lines.append("")
            self._changed.notify_all()

    def send(self, text: str) -> None:
        """Hand a block over."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def ended(self, end: str) -> tuple[str, str]:
        """Return what was printed up to the line that begins with *end*, and what follows in that line."""

        def found() -> bool:
            return bool(self._lines) and (self._lines[-1] == "" or any(line.startswith(end) for line in self._lines))

        with self._changed:
            self._changed.wait_for(found, _PATIENCE_S)
            printed, self._lines = self._lines, []
        shown = "".join(line for line in printed if not line.startswith(end))
        said = [line for line in printed if line.startswith(end)]
        return shown, said[0].removeprefix(end).strip() if said else "no end"

    def says(self, word: str) -> None:
        """Wait until *word* was printed.

        Raises:
            Stopped: It was not.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(word in line for line in self._lines), _PATIENCE_S)
        if word not in self.printed():
            raise Stopped(f"{word} was not printed:\n{self.printed()}")

    def printed(self) -> str:
        """Return what was printed so far."""
        with self._changed:
            return "".join(self._lines)

    def interrupt(self) -> None:
        """Type Ctrl-C."""
        os.killpg(self._process.pid, signal.SIGINT)

    def close(self) -> None:
        """End it with all that it started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class Reader:
    """A reader with two terminals and an interpreter.

    Args:
        clone: The folder of the sources.
        environment: Of the terminals.
        places: What the documents call places → where these are here.
    """

    def __init__(self, clone: Path, environment: Mapping[str, str], places: Mapping[str, str]) -> None:
        self._clone = clone
        self._places = places
        self._first = self._terminal(environment)
        self._second = self._terminal(environment)
        self._python: Program | None = None
        self.shown: list[str] = []
        """What the blocks of the first terminal and of the interpreter printed."""
        self.took_s: list[tuple[Block, float]] = []
        """The blocks that ran, and how long each took."""

    def _terminal(self, environment: Mapping[str, str]) -> Program:
        shell = Program(["bash", "--noprofile", "--norc"], self._clone, environment)
        shell.send("trap : INT\n")  # of the shell; what it starts has Ctrl-C's own meaning
        return shell

    def walk(self, documents: Sequence[str], wanted: Callable[[Block], bool] = lambda _: True) -> int:
        """Run the blocks of *documents* that are *wanted*, and return how many there were.

        Raises:
            Stopped: One failed.
        """
        count = 0
        for document in documents:
            for block in blocks(self._clone / document):
                if block.left_out:
                    print(f"{block.place}: not run: {block.left_out}", flush=True)
                    continue
                if not wanted(block):
                    continue
                began = time.monotonic()
                shown = self._run(block).strip()
                self.shown.append(shown)
                count += 1
                self.took_s.append((block, time.monotonic() - began))
                print(f"{block.place}: {self.took_s[-1][1]:.1f} s", flush=True)
                if shown:
                    print("    " + shown.replace("\n", "\n    "), flush=True)
        return count

    def _run(self, block: Block) -> str:
        code = block.code
        for place, here in self._places.items():
            code = code.replace(place, here)
        if block.saved_as:
            return self._typed(block, f"cat > {block.saved_as} <<'END OF FILE'\n{code}END OF FILE\n")
        if block.kind.startswith("sh terminal-2"):
            self._second.interrupt()  # a watch that still runs
            self._second.send(code)
            if word := block.kind.removeprefix("sh terminal-2").strip():
                self._second.says(word)
            return ""
        return self._typed(block, code) if block.kind == "sh" else self._computed(block, code)

    def _typed(self, block: Block, code: str) -> str:
        end = f"end-{uuid.uuid4().hex} "
        # With -e the first command that fails ends the block; `wait` and background jobs are as in any shell.
        self._first.send(
            f"set -e; trap 'code=$?; echo; echo {end}$code' EXIT\n{code}\nset +e; trap - EXIT; echo; echo {end}0\n"
        )
        shown, code_of_end = self._first.ended(end)
        if code_of_end != "0":
            raise Stopped(f"{block.place}: exit code {code_of_end}:\n{code}\n{shown}\n{self._second.printed()}")
        return shown

    def _computed(self, block: Block, code: str) -> str:
        if self._python is None:
            asked = f"env-{uuid.uuid4().hex} "
            self._first.send(
                f"python3 -c 'import json, os; print(\"{asked}\" + json.dumps([os.getcwd(), dict(os.environ)]))'\n"
            )
            folder, environment = json.loads(self._first.ended(asked)[1])
            self._python = Program(["python3", "-u", "-c", _INTERPRETER], Path(folder), environment)
        end = f"end-{uuid.uuid4().hex} "
        self._python.send(json.dumps([code, end]) + "\n")
        shown, code_of_end = self._python.ended(end)
        if code_of_end != "0":
            raise Stopped(f"{block.place}: failed:\n{code}\n{shown}")
        return shown

    def close(self) -> None:
        """Close the terminals and the interpreter."""
        for program in (self._python, self._second, self._first):
            if program is not None:
                program.close()


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist and, of what is in it, the wheel; return both."""
    sdist, clone = _unpacked(folder)
    _hatch("wheel", clone, folder)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def _unpacked(folder: Path) -> tuple[Path, Path]:
    """Build the sdist in *folder*, and unpack it there; return it, and its contents."""
    _hatch("sdist", ROOT, folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return sdist, folder / sdist.name.removesuffix(".tar.gz")


def _hatch(target: str, sources: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target", target]
    subprocess.run(command, cwd=sources, check=True, capture_output=True)


def offline(environment: Path) -> dict[str, str]:
    """Have an environment that will be made at *environment* find the locked packages, and pip ask no index.

    It finds neither pip nor this package, which it has to install.

    Returns:
        What pip needs to know.
    """
    packages = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    locked = environment.with_name(f"{environment.name}-locked")
    packages.mkdir(parents=True)
    locked.mkdir()
    for found in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not re.match(r"_?(pip|commit_coord)([-.]|$)|.*\.pth$", found.name):
            (locked / found.name).symlink_to(found)
    (packages / "locked.pth").write_text(f"{locked}\n")
    return {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}


def _runs_programs() -> str:
    """Return a folder for temporary files in which programs may run: where not, a shell takes those of this machine."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
            return folder
    raise Stopped("no temporary folder lets programs run")


@contextmanager
def reader(*, index: bool, instead: Mapping[str, str] = MappingProxyType({}), here: bool = False) -> Iterator[Reader]:
    """Yield a reader who has a clone, and nothing else of this package.

    Args:
        index: Whether pip asks the package index of this machine; else it takes the packages of this environment.
        instead: What the documents print → what is typed instead.
        here: Whether the clone is the folder of these sources, and not an sdist that is made of them.
    """
    with tempfile.TemporaryDirectory(prefix="walk-", dir=_runs_programs(), ignore_cleanup_errors=True) as name:
        folder = Path(name)  # a short one: the paths of sockets have no more than 107 characters
        clone = ROOT if here else _unpacked(folder)[1]
        places = {f"/tmp/{each}": str(folder / each) for each in ("demo", "tutorial")} | dict(instead)
        temporary, servers = folder / "tmp", f"commit-coord-local-{os.getuid()}"
        temporary.mkdir()
        places["/tmp/commit-coord-local-0"] = str(temporary / servers)
        own = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "PYICEBERG_HOME", "PYSPARK_PYTHON")
        environment = {key: value for key, value in os.environ.items() if key not in own}
        environment |= {"TMPDIR": str(temporary), "COLUMNS": "160", "RUNTIME__DLTHUB_TELEMETRY": "false"}
        if not index:
            for each in ("demo", "tutorial"):
                environment |= offline(folder / each)
        made = Reader(clone, environment, places)
        try:
            yield made
        finally:
            made.close()
            if (temporary / servers).exists():  # a block failed before the servers were to go down
                down = [sys.executable, "-m", "commit_coord.cli", "local", "down"]
                subprocess.run(down, cwd=ROOT, env=environment, check=False, capture_output=True)


_PAGE = """\
# The first hour

<!-- Written by `make package ARGS="--container IMAGE --page docs/first-hour.md"`. -->

This page is the record of an automated walk: no person was timed. `make package` copies the sources into
{where}.
It types every block of the README, of the tutorials and of the guide to dlt in the order given, and stops at the first
one that fails. Each tutorial begins with a new environment. The walk leaves out the blocks before which the source says
`not run` and why: the tests and the demo, a metastore to move from, and containers. Packages come from Debian, the
Python Package Index and Maven Central.

The times of the blocks were measured with {cores} cores, {date}. On average {load:.1f} programs were busy meanwhile,
those of the walk included: with more than there are cores, the times are longer than on an idle machine. The times of
reading are computed, at {pace} words a minute.

| Document | Words, about | Reading | Blocks | Machine |
| --- | ---: | ---: | ---: | ---: |
{documents}
| **all** | {words:,} | {reading_min:.0f} min | {count} | {machine_min:.0f} min |

## Each block

| Document | Under the heading | First line of the block | Seconds | Minutes so far |
| --- | --- | --- | ---: | ---: |
{blocks}
"""

_NEEDED = Block(
    place="the machine",
    heading="what the README says you need",
    kind="sh",
    code=container.NEEDED,
    saved_as="",
    left_out="",
)

_PACE = 200
"""How many words of a technical text are read in a minute."""


def page(took_s: Sequence[tuple[Block, float]], documents: Sequence[str], loads: Sequence[float], where: str) -> str:
    """Return the page that says how long each block took.

    Args:
        took_s: The blocks, and how long each took.
        documents: That they stand in.
        loads: Of the machine, after each walk.
        where: The machine.
    """
    rows, words_of_all = [f"| the machine | | | 1 | {s:.0f} s |" for block, s in took_s if block == _NEEDED], 0
    for document in documents:
        own = [seconds for block, seconds in took_s if block.place.startswith(f"{Path(document).name}:")]
        text = re.sub(r"^```[\s\S]*?^```$", "", (ROOT / document).read_text(), flags=re.MULTILINE)
        words = 100 * round(len(text.split()) / 100)
        words_of_all += words
        rows.append(f"| {document} | {words:,} | {words / _PACE:.0f} min | {len(own)} | {sum(own):.0f} s |")
    lines, so_far = [], 0.0
    for block, seconds in took_s:
        so_far += seconds
        first = block.code.strip().split("\n")[0].replace("|", "\\|")
        document = block.place.partition(":")[0]
        lines.append(f"| {document} | {block.heading} | `` {first} `` | {seconds:.1f} | {so_far / 60:.1f} |")
    return _PAGE.format(
        where=where,
        cores=os.cpu_count(),
        date=time.strftime("%Y-%m-%d"),
        load=sum(loads) / len(loads),
        pace=_PACE,
        documents="\n".join(rows),
        words=words_of_all,
        reading_min=words_of_all / _PACE,
        count=len(took_s),
        machine_min=so_far / 60,
        blocks="\n".join(lines),
    )


def main() -> None:
    """Walk through the documents that are named, else through all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("documents", nargs="*", help="that continue each other")
    parser.add_argument("--offline", action="store_true", help="with the packages of this environment")
    parser.add_argument("--container", metavar="IMAGE", help="in a fresh container of this image of a bare Debian")
    parser.add_argument("--page", type=Path, help="where to write down how long each block took")
    parser.add_argument("--here", type=Path, metavar="TIMES", help=argparse.SUPPRESS)  # what runs in a container
    given = parser.parse_args()
    walks = [given.documents] if given.documents else [README, TUTORIAL, PYSPARK, SPARK_SQL, MIGRATION, DLT]
    took_s: list[tuple[Block, float]] = []
    loads = []
    where = "new environments of this machine"
    if given.container:
        with tempfile.TemporaryDirectory() as folder, container.fresh(given.container) as fresh:
            where = fresh.described()
            took_s.append((_NEEDED, fresh.install()))
            times = fresh.walk(_unpacked(Path(folder))[0], given.documents)
        took_s += [(Block(**block), seconds) for block, seconds in times["took_s"]]
        loads = times["loads"]
    else:
        for documents in walks:
            with reader(index=not given.offline, here=bool(given.here)) as made:
                print(f"{made.walk(documents)} blocks ran: {', '.join(documents)}", flush=True)
            took_s += made.took_s
            loads.append(os.getloadavg()[1])
    if given.here:
        given.here.write_text(json.dumps({"took_s": [(asdict(block), s) for block, s in took_s], "loads": loads}))
    if given.page:
        given.page.write_text(page(took_s, [document for documents in walks for document in documents], loads, where))


if __name__ == "__main__":
    main()
