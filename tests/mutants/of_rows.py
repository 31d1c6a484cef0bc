"""Mutants that change rows, killed by programs that the oracle of rows drew: the same edits, found by nobody's list.

``python -m tests.mutants.rows --keep NAME`` looks for such a program and writes it.
"""

from __future__ import annotations

from dataclasses import replace

from tests.mutants.mutant import Mutant
from tests.mutants.rows import ALL, PROGRAMS, slug

_TEST = "tests/rows/test_rows.py::test_a_program_that_once_found_something_finds_nothing"

MUTANTS: tuple[Mutant, ...] = tuple(
    replace(edits[0], name=f"rows-{slug(name)}", test=f"{_TEST}[{slug(name)}]")
    for name, edits in ALL.items()
    if len(edits) == 1 and (PROGRAMS / f"{slug(name)}.txt").exists()
)
