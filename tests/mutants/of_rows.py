"""Mutants that change rows, killed by programs that the oracle of rows drew: the same edits, found by nobody's list.

``python -m tests.mutants.rows --keep NAME`` looks for such a program and writes it.
"""

from __future__ import annotations

from dataclasses import replace

from tests.mutants.mutant import Mutant
from tests.mutants.rows import MUTANTS as ALL
from tests.mutants.rows import PROGRAMS, slug

_TEST = "tests/rows/test_rows.py::test_a_program_that_once_found_something_finds_nothing"

MUTANTS: tuple[Mutant, ...] = tuple(
    replace(mutant, name=f"rows-{mutant.name}", test=f"{_TEST}[{slug(mutant.name)}]")
    for mutant in ALL.values()
    if (PROGRAMS / f"{slug(mutant.name)}.txt").exists()
)
