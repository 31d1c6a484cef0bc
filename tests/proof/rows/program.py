"""Programs: a table and what is done to it, as data that prints as Python.

A program is drawn step by step while it runs, because what is worth doing depends on what is there. ``Dice`` makes each
choice, and nothing else is random. What was drawn is written out with names and values, so that a step can be left out
and the others still mean something.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pyiceberg.types import NestedField

from commit_coord.testing.table_files.state import Partition
from tests.proof.rows.model.conditions import Where
from tests.proof.rows.model.operations import OURS_ALONE, Operation, Overwrite, Recreate, Single, Transact
from tests.proof.rows.model.spellings import Spelling


@dataclass(frozen=True)
class Look:
    """Every reader reads with this condition."""

    where: Where


Step = Operation | Look

Neighbourhood = Literal["", "same", "inside", "around", "data", "foreign", "foreign inside"]
"""Where another table lies: in the table's folder, in one inside of it, in the one around it, or its data there.

A foreign one is another catalog's.
"""

NEIGHBOURHOODS: tuple[Neighbourhood, ...] = ("same", "inside", "around", "data", "foreign", "foreign inside")


@dataclass(frozen=True)
class Program:
    """A table and what is done to it.

    Args:
        locks: ``operation-locks`` of our catalogs.
        columns: Of the table.
        spec: Its partition fields; sources are field ids in *columns*.
        properties: Of the table.
        version: Of its format.
        spelling: Of its location.
        neighbour: Where another table lies.
        steps: What is done.
    """

    locks: str
    columns: tuple[NestedField, ...]
    spec: tuple[Partition, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 2
    spelling: Spelling = ""
    neighbour: Neighbourhood = ""
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        """Return it as Python; :func:`~tests.proof.rows.printed.loads` reads it back."""
        names = ("locks", "columns", "spec", "properties", "version", "spelling", "neighbour")
        about = (f"    {name}={getattr(self, name)!r}," for name in names)
        return "\n".join(
            ["Program(", *about, "    steps=(", *(f"        {step!r}," for step in self.steps), "    ),", ")"]
        )


def stock_call(one: Single) -> Single | None:
    """Return *one* as PyIceberg's own tables take it; None when they can't do it."""
    if isinstance(one, Transact):
        calls = tuple(found for call in one.calls if (found := stock_call(call)) is not None)
        return replace(one, calls=calls) if calls else None  # type: ignore[arg-type]
    if isinstance(one, OURS_ALONE):
        return None
    if isinstance(one, Overwrite):
        return replace(one, given=False)
    return replace(one, purge=False) if isinstance(one, Recreate) else one
