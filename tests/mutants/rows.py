"""How many random programs the oracle of rows needs to find each mutant that changes rows.

``python -m tests.mutants.rows [MUTANT ...]`` runs programs against the code with one edit, until one finds something
that the code without it does not. That program, made smaller, goes to ``tests/rows/programs``, and is from then on run by
``make test``; ``of_rows`` says that it kills the mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, ignore_patterns

from commit_coord.testing.rows.many import ALONE
from tests.mutants import of_files, of_sql, of_transactions
from tests.mutants.mutant import ROOT, Mutant

PROGRAMS = ROOT / "tests" / "rows" / "programs"

MUTANTS = {
    mutant.name: mutant
    for mutant in (*of_files.MUTANTS, *of_transactions.MUTANTS, *of_sql.MUTANTS)
    if not mutant.name.endswith(": the generator")
}

_LOOK = """
import json, sys
from contextlib import ExitStack
from commit_coord.testing.rows.many import Rig, kind_of, outcome
from commit_coord.testing.rows.program import loads
from commit_coord.testing.rows.shrink import smallest
with ExitStack() as stack:
    rig = Rig(stack)
    for line in sys.stdin:
        what, *about = json.loads(line)
        if what == "draw":
            one = outcome(rig, about[0])
            answer = [one.kind, one.program]
        elif what == "again":
            answer = kind_of(rig, loads(about[0]))
        else:
            kind, text, tries = about
            answer = str(smallest(loads(text), lambda less: kind_of(rig, less) == kind, tries=tries))
        print(json.dumps(answer), flush=True)
"""


class Code:
    """The code with one edit or none, in a process of its own, that draws and runs programs."""

    def __init__(self, place: Path, mutant: Mutant | None) -> None:
        copytree(ROOT / "commit_coord", place / "commit_coord", ignore=ignore_patterns("__pycache__"))
        if mutant is not None:
            (place / "commit_coord" / mutant.file).write_text(mutant.applied())
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LOOK],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, *question: object) -> object:
        """Return the answer to a question."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith(("[", '"')):
                return json.loads(line)
        raise RuntimeError("the code with the edit ended")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


def slug(mutant: str) -> str:
    """Return the name of the program that kills *mutant*."""
    return re.sub(r"[^a-z0-9]+", "-", mutant.lower()).strip("-")


def attempt(mutant: Mutant, seed: int, runs: int, *, keep: bool) -> str:
    """Return what the oracle finds of *mutant*, and within how many programs."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        wrong, right = Code(Path(folder, "wrong"), mutant), Code(Path(folder, "right"), None)
        try:
            for number in range(1, runs + 1):
                kind, program = wrong.ask("draw", seed + number - 1)  # type: ignore[misc]
                if not kind or kind.startswith(ALONE) or right.ask("again", program) == kind:
                    continue
                if keep:
                    program = wrong.ask("smaller", kind, program, 120)
                    if right.ask("again", program) == "":
                        (PROGRAMS / f"{slug(mutant.name)}.txt").write_text(f"{program}\n")
                    else:
                        kind += " (the smaller program finds something else too)"
                return f"{number:5} {time.monotonic() - began:5.0f} s  {mutant.name:60} {kind}"
        except Exception as error:  # noqa: BLE001 - the others go on
            return f"ERROR {time.monotonic() - began:5.0f} s  {mutant.name:60} {error!r}"
        finally:
            wrong.close()
            right.close()
    return f" NONE {time.monotonic() - began:5.0f} s  {mutant.name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="only these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500, help="at most so many programs each")
    parser.add_argument("--keep", action="store_true", help="write the programs that find them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    chosen = [MUTANTS[name] for name in options.names] if options.names else list(MUTANTS.values())
    with ThreadPoolExecutor(options.processes) as pool:
        for line in pool.map(lambda m: attempt(m, options.seed, options.runs, keep=options.keep), chosen):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
