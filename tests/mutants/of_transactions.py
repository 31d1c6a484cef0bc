"""Mutants of transactions and tables: what a call has read, and what it may be planned again for."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
