"""Mutants of Hive's statements: literals, and queries that are planned again."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
