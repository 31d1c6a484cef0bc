"""How many random programs the oracle of rows needs to find each mutant that changes rows or metadata.

``python -m tests.mutants.rows [MUTANT ...]`` first draws programs against the code as it is, and notes which of them
run the line of which mutant. Then, mutant by mutant, it draws these programs again against the code with the edit,
until one finds something that the code without it does not; a program that never runs the line is the same on both,
and is not run again. Programs of ``tests/rows/programs`` count apart.

With ``--keep``, a program that was found is made smaller and goes there. ``make test`` runs it from then on.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests.mutants import of_catalogs, of_files, of_sql, of_transactions
from tests.mutants.mutant import ROOT, Mutant

PROGRAMS = ROOT / "tests" / "rows" / "programs"

MUTANTS = {
    mutant.name: mutant
    for mutant in (*of_files.MUTANTS, *of_transactions.MUTANTS, *of_sql.MUTANTS, *of_catalogs.MUTANTS)
    if not mutant.name.endswith("-the-generator")
}

FAULTS: dict[str, tuple[Mutant, ...]] = {
    "a stale ADD COLUMN brings a dropped column back": (
        MUTANTS["column-ids-that-were-taken"],
        MUTANTS["a-schema-is-known-by-its-id"],
    ),
    "nulls land in a column that became required": (
        Mutant(
            "nulls land in a column that became required",
            "iceberg/written.py",
            "        if found.required and not (before is not None and before.required) and",
            "        if found.required and field_id < 0 and",
            "",
        ),
    ),
    "an update reads with the schema of the last snapshot": (
        Mutant(
            "an update reads with the schema of the last snapshot",
            "table/transaction.py",
            "        return DataScan(seen, self._table.io, row_filter, selected_fields, case_sensitive)\n",
            "        found = DataScan(self.table_metadata, self._table.io, row_filter, "
            "selected_fields, case_sensitive)\n"
            "        return found.use_ref(branch) if branch in self.table_metadata.refs else found\n",
            "",
        ),
    ),
}
"""Faults that more than one mend keeps away: with one of these alone taken back, the others still do."""

ALL = {**{name: (mutant,) for name, mutant in MUTANTS.items()}, **FAULTS}

_SERVE = """
import json, sys
from contextlib import ExitStack
from tests.proof.rows.many import Rig, kind_of, outcome
from tests.proof.rows.printed import loads
from tests.proof.rows.findings import ALONE
from tests.proof.rows.shrink import smallest
try:
    from commit_coord.reached import reached
except ImportError:
    reached = set()
with ExitStack() as stack:
    rig = Rig(stack)
    for line in sys.stdin:
        what, *about = json.loads(line)
        reached.clear()
        if what == "draw":
            one = outcome(rig, about[0])
            answer = ["" if one.kind.startswith(ALONE) else one.kind, one.program]
        elif what == "again":
            answer = [kind_of(rig, loads(about[0])), ""]
        else:
            kind, text, tries = about
            answer = ["", str(smallest(loads(text), lambda less: kind_of(rig, less) == kind, tries=tries))]
        print(json.dumps([*answer, sorted(reached)]), flush=True)
"""


# Which programs run the line of a mutant.


def line_of(mutant: Mutant) -> int:
    """Return the first line that *mutant* changes."""
    text = (ROOT / "commit_coord" / mutant.file).read_text()
    same = next((at for at, pair in enumerate(zip(mutant.old, mutant.new, strict=False)) if len(set(pair)) > 1), None)
    if same is None:
        same = min(len(mutant.old) - 1, len(mutant.new))  # something is left out at the end, or put there
    return text.count("\n", 0, text.index(mutant.old) + same) + 1


class _Probes(ast.NodeTransformer):
    """Puts a note before the statements at some lines, innermost ones."""

    def __init__(self, names: dict[int, list[str]]) -> None:
        self._names = names

    def noted(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return statements of a function with notes among them."""
        made: list[ast.stmt] = []
        for one in body:
            inside = {line for part in ast.iter_child_nodes(one) for line in _statements(part)}
            for line in range(one.lineno, (one.end_lineno or one.lineno) + 1):
                if line in self._names and line not in inside:
                    made += [_note(name) for name in self._names.pop(line)]
            made.append(one)
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit what is inside first: what is left then belongs to the statement around it."""
        super().generic_visit(node)
        if not isinstance(node, ast.Module | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                if isinstance(body := getattr(node, field, None), list):
                    setattr(node, field, self.noted(body))
        return node


def _statements(node: ast.AST) -> Iterator[int]:
    """Yield the lines of statements inside of *node*."""
    if isinstance(node, ast.stmt):
        yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return
    for part in ast.iter_child_nodes(node):
        yield from _statements(part)


def _note(name: str) -> ast.stmt:
    return ast.parse(f"__import__('commit_coord.reached', fromlist=['']).reached.add({name!r})").body[0]


def probe(place: Path, names: Iterable[str]) -> set[str]:
    """Have the code at *place* note which mutants' lines it runs; return those that it runs while it is imported."""
    by_file: dict[str, dict[int, list[str]]] = {}
    for name in names:
        for mutant in ALL[name]:
            by_file.setdefault(mutant.file, {}).setdefault(line_of(mutant), []).append(name)
    always: set[str] = set()
    (place / "commit_coord" / "reached.py").write_text("reached = set()\n")
    for file, lines in by_file.items():
        path = place / "commit_coord" / file
        tree = _Probes(lines).visit(ast.parse(path.read_text()))
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)))
        always |= {name for left in lines.values() for name in left}
    return always


# Code in processes of its own.


@dataclass(frozen=True)
class Answer:
    """What a program found, the program, and the mutants whose lines it ran."""

    kind: str
    program: str
    reached: frozenset[str]


class Code:
    """A copy of the code in a process of its own, that draws and runs programs."""

    def __init__(self, place: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-c", _SERVE],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _ask(self, *question: object) -> Answer:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("["):
                kind, program, reached = json.loads(line)
                return Answer(kind, program, frozenset(reached))
        raise RuntimeError("the code with the edit ended")

    def draw(self, seed: int) -> Answer:
        """Draw and run the program of a seed."""
        return self._ask("draw", seed)

    def again(self, program: str) -> Answer:
        """Run a program."""
        return self._ask("again", program)

    def smaller(self, kind: str, program: str) -> str:
        """Return a smaller program that finds the same."""
        return self._ask("smaller", kind, program, 60).program

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def code(mutants: Sequence[Mutant] = ()) -> Iterator[tuple[Path, list[Code]]]:
    """Yield a copy of the code with edits, each in a file of its own, and a list of processes that end with it."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    running: list[Code] = []
    with tempfile.TemporaryDirectory(prefix="mutant-", dir=memory) as folder:
        place = Path(folder)
        for part in ("commit_coord", "tests/proof/rows"):
            copytree(ROOT / part, place / part, ignore=ignore_patterns("__pycache__"))
        for mutant in mutants:
            (place / "commit_coord" / mutant.file).write_text(mutant.applied())
        try:
            yield place, running
        finally:
            for one in running:
                one.close()


# Mutants.


@dataclass(frozen=True)
class Programs:
    """Programs on the code as it is: what each finds, and which mutants' lines it runs."""

    drawn: dict[int, Answer]
    kept: dict[str, Answer]


def programs(mutants: Sequence[str], seeds: Sequence[int]) -> Programs:
    """Run the programs of *seeds* and the kept ones on the code as it is."""
    with code() as (place, running):
        always = probe(place, mutants)
        running.append(right := Code(place))

        def noted(one: Answer) -> Answer:
            return Answer(one.kind, one.program, one.reached | always)

        kept = {path.stem: path.read_text() for path in sorted(PROGRAMS.glob("*.txt"))}
        return Programs(
            {seed: noted(right.draw(seed)) for seed in seeds},
            {name: noted(right.again(program)) for name, program in kept.items()},
        )


@dataclass(frozen=True)
class Found:
    """What the oracle finds of a mutant.

    Args:
        mutant: Its name.
        reached: So many of the programs that were drawn run its line.
        after: So many programs were drawn until one found it; 0: none did.
        kind: What that one found.
        kept: The kept program that finds it; "" for none.
        seconds: How long it took.
    """

    mutant: str
    reached: int
    after: int
    kind: str
    kept: str
    seconds: float

    def __str__(self) -> str:
        """Return a row of the table."""
        after = str(self.after) if self.after else "not found"
        kind = self.kind.replace("|", "/")
        return f"| {self.mutant} | {self.reached} | {after} | {kind} | {self.kept} | {self.seconds:.0f} |"


def slug(mutant: str) -> str:
    """Return the name of the program that kills *mutant*."""
    return re.sub(r"[^a-z0-9]+", "-", mutant.lower()).strip("-")


def attempt(mutant: str, known: Programs, *, keep: bool) -> Found:
    """Return what the oracle finds of *mutant*, one of :data:`ALL`."""
    began = time.monotonic()
    reaching = [seed for seed, one in known.drawn.items() if mutant in one.reached]
    after, kind, kept = 0, "", ""
    with code(ALL[mutant]) as (place, running), code() as (pristine, right):
        running.append(wrong := Code(place))
        first = min(known.drawn, default=0)
        try:
            for name, one in known.kept.items():
                if mutant in one.reached and not kept:
                    found = wrong.again((PROGRAMS / f"{name}.txt").read_text())
                    kept = name if found.kind not in {"", one.kind} else ""
            for seed in reaching:
                found = wrong.draw(seed)
                if found.kind in {"", known.drawn[seed].kind}:
                    continue
                if not right:
                    right.append(Code(pristine))
                if right[0].again(found.program).kind == found.kind:
                    continue  # the edit led to another program, and that one finds a fault of the code as it is
                after, kind = seed - first + 1, found.kind
                if keep and not kept:
                    kept = _keep(mutant, wrong, right[0], found)
                break
        except Exception as error:  # noqa: BLE001 - the others go on
            kind = f"ERROR {error!r}"
    return Found(mutant, len(reaching), after, kind, kept, time.monotonic() - began)


def _keep(mutant: str, wrong: Code, right: Code, found: Answer) -> str:
    program = wrong.smaller(found.kind, found.program)
    if right.again(program).kind:
        return ""  # the smaller program finds something else, too
    (PROGRAMS / f"{slug(mutant)}.txt").write_text(f"{program}\n")
    return slug(mutant)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="only these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=300, help="so many programs at most each")
    parser.add_argument("--keep", action="store_true", help="write the programs that find them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - ALL.keys():
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = options.names or list(ALL)
    known = programs(chosen, range(options.seed, options.seed + options.runs))
    odd = [f"{seed}: {one.kind}" for seed, one in known.drawn.items() if one.kind]
    print(f"{len(known.drawn)} programs on the code as it is; {len(odd)} find something: {'; '.join(odd) or 'none'}\n")
    print("| mutant | programs that run its line | found by program | as | kept program | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    with ThreadPoolExecutor(options.processes) as pool:
        for found in pool.map(lambda mutant: attempt(mutant, known, keep=options.keep), chosen):
            print(found, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
