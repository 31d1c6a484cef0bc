"""Tables that programs left behind, with the rows that the model expects, in files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from commit_coord.testing.table_files.observed import Files, Observed, local
from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import canonical
from tests.proof.rows.draw.conditions import where
from tests.proof.rows.draw.dice import Dice
from tests.proof.rows.model.conditions import Always, Where, bound
from tests.proof.rows.printed import python
from tests.proof.rows.read.readers import Bag

TABLES = "tables.jsonl"


@dataclass(frozen=True)
class Look:
    """A condition, and the rows that satisfy it."""

    where: Where
    rows: Bag


@dataclass(frozen=True)
class Kept:
    """A table that a program left behind.

    Args:
        seed: Of the program.
        location: Of its metadata file.
        looks: The first one is the full scan.
    """

    seed: int
    location: str
    looks: Sequence[Look]

    @cached_property
    def observed(self) -> Observed:
        """Return what its metadata says."""
        return Observed(self.location, Files())

    @property
    def schema(self) -> Schema:
        """Return its present columns."""
        return self.observed.schema

    @cached_property
    def files(self) -> list[str]:
        """Return the paths of its data files."""
        head = self.observed.raw.get("current-snapshot-id")
        return [local(file.path) for file in self.observed.live(head)] if head in self.observed.snapshots else []


def looks(state: State, seed: int) -> Iterator[Look]:
    """Yield a full scan of a table and a random condition on each of its columns, with the rows of the model."""
    dice = Dice(seed)
    columns = (replace(state, fields=StructType(column)) for column in state.fields.fields)
    drawn = [where(dice, column) for column in columns]
    for condition in (Always(), *(one for one in drawn if one != Always())):
        yield Look(condition, Counter(filter(bound(condition, state.fields), state.of().elements())))


def keep(folder: Path, seed: int, location: str, state: State) -> None:
    """Add a table, which the model says is in *state*, to those in *folder*."""
    fields = state.fields
    written = [
        {"where": repr(look.where), "rows": [_json(row, fields) for row in look.rows.elements()]}
        for look in looks(state, seed)
    ]
    line = json.dumps({"seed": seed, "metadata": location, "looks": written}, allow_nan=False)
    with (folder / TABLES).open("a") as file:
        file.write(line + "\n")


def kept(folder: Path) -> Iterator[Kept]:
    """Yield the tables in *folder*."""
    for line in (folder / TABLES).read_text().splitlines():
        record = json.loads(line)
        fields = Observed(record["metadata"], Files()).schema.as_struct()
        found = [
            Look(python(look["where"]), Counter(canonical(_value(row, fields), fields) for row in look["rows"]))
            for look in record["looks"]
        ]
        yield Kept(record["seed"], record["metadata"], found)


def _json(value: Any, kind: IcebergType) -> Any:
    """Return a value of the model as JSON: structs by names, maps as pairs, what JSON does not know as text."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            there = dict(value)
            return {f.name: _json(there.get(f.field_id), f.field_type) for f in fields}
        case ListType():
            return [_json(item, kind.element_type) for item in value]
        case MapType():
            return [[_json(k, kind.key_type), _json(v, kind.value_type)] for k, v in value]
    match value:
        case bool() | int() | str():
            return value
        case bytes():
            return value.hex()
        case date() | time_of_day():
            return value.isoformat()
    return str(value)


def _value(value: Any, kind: IcebergType) -> Any:
    """Return what :func:`_json` wrote, as a user writes it."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _value(value[f.name], f.field_type) for f in fields}
        case ListType():
            return [_value(item, kind.element_type) for item in value]
        case MapType():
            return [(_value(k, kind.key_type), _value(v, kind.value_type)) for k, v in value]
    read = _READ.get(str(kind).partition("(")[0])
    return value if read is None else read(value)


_READ: dict[str, Callable[[Any], Any]] = {
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "time": time_of_day.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "timestamptz": datetime.fromisoformat,
    "decimal": Decimal,
    "uuid": UUID,
    "float": float,
    "double": float,
}
