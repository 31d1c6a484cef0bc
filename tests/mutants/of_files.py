"""Mutants of what an attempt adds: manifests, manifest lists, re-basing, repair, compaction."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
