"""Tables to begin with, drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from commit_coord.testing.table_files.state import Partition, State
from commit_coord.testing.table_files.transforms import fitting
from tests.proof.rows.draw.dice import NAMES, Dice
from tests.proof.rows.model.spellings import SPELLINGS, Spelling
from tests.proof.rows.program import NEIGHBOURHOODS, Neighbourhood, Program

PRIMITIVES: tuple[IcebergType, ...] = (
    LongType(),
    StringType(),
    IntegerType(),
    DoubleType(),
    FloatType(),
    DateType(),
    TimestampType(),
    TimestamptzType(),
    DecimalType(9, 2),
    DecimalType(18, 2),
    DecimalType(38, 10),
    BooleanType(),
    BinaryType(),
    TimeType(),
)


def kind_of(dice: Dice, number: Callable[[], int], *, nested: int = 25) -> IcebergType:
    """Return a type; its fields are numbered by *number*."""
    if not dice.chance(nested):
        return dice.favourite("types", PRIMITIVES, 2, 50)
    required = dice.chance(30)
    match dice.weighed(((8, 1), (8, 2), (8, 3), (3, 4), (3, 5))):
        case 1:
            return StructType(
                NestedField(number(), "x", LongType(), required=required),
                NestedField(number(), "y", dice.favourite("types", PRIMITIVES, 2, 50), required=False),
            )
        case 2:
            return ListType(number(), dice.one(PRIMITIVES), element_required=required)
        case 3:
            return MapType(number(), StringType(), number(), dice.one(PRIMITIVES), value_required=required)
        case 4:
            inner = StructType(NestedField(number(), "x", LongType(), required=False))
            return ListType(number(), inner, element_required=required)
    inner = StructType(NestedField(number(), "x", DateType(), required=False))
    return MapType(number(), StringType(), number(), inner, value_required=required)


_PROPERTIES: tuple[Mapping[str, str], ...] = (
    {},
    {"write.parquet.row-group-limit": "2"},
    {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"},
    {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"},
    {"commit.group.coalesce": "true"},
    {"write.metadata.previous-versions-max": "2"},
    {"write.update.isolation-level": "snapshot"},
    {"gc.enabled": "false"},
)


def table(dice: Dice) -> Program:
    """Return a program without steps."""
    numbers = itertools.count(1)

    def number() -> int:
        return next(numbers)

    columns = [NestedField(number(), "k", LongType(), required=dice.chance(20))]
    for name in NAMES[: dice.number(1, 3)]:
        kind = kind_of(dice, number)
        columns.append(NestedField(number(), name, kind, required=dice.chance(15)))
    fields = StructType(*columns)
    spec: tuple[Partition, ...] = ()
    for _ in range(dice.weighed(((4, 0), (4, 1), (1, 2)))):
        if found := partition(dice, State("", fields, {}, spec=spec)):
            spec = (*spec, found)
    return Program(
        locks=dice.weighed(((5, "off"), (4, "iceberg"), (1, "hive"))),
        columns=tuple(columns),
        spec=spec,
        properties=dice.one(_PROPERTIES),
        version=dice.weighed(((42, 2), (16, 1), (1, 3))),
    )


def placed(dice: Dice, program: Program, *, neighbours: bool = True, uuids: bool = True) -> Program:
    """Return *program* with another spelling of its location, with a table next to it, or with a column of UUIDs.

    Args:
        dice: Chance.
        program: What was drawn so far.
        neighbours: Tables may lie next to it.
        uuids: Its clients know UUIDs.
    """
    spelling: Spelling = dice.one(SPELLINGS) if dice.chance(25) else ""
    neighbour: Neighbourhood = dice.one(NEIGHBOURHOODS) if neighbours and dice.chance(15) else ""
    columns = program.columns
    if uuids and dice.chance(8):
        columns += (NestedField(Schema(*columns).highest_field_id + 1, "u", UUIDType(), required=dice.chance(20)),)
    return replace(program, spelling=spelling, neighbour=neighbour, columns=columns)


def partition(dice: Dice, state: State) -> Partition | None:
    """Return a partition field that *state* could have as well."""
    columns = [f for f in state.fields.fields if fitting(f.field_type)]
    if not columns:
        return None
    column = dice.column(columns)
    fits = fitting(column.field_type)
    transform = fits[0] if dice.chance(30) else dice.one(fits)  # mostly the identity
    kind = transform.partition("[")[0]
    name = column.name if kind == "identity" else f"{column.name}_{transform.replace('[', '_').rstrip(']')}"
    # PyIceberg writes no files where one column is the source of two fields.
    if column.field_id in {p.source for p in state.spec} or name in {p.name for p in state.spec}:
        return None
    return Partition(column.field_id, transform, name)
