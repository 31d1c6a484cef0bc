"""Programs: a table and what is done to it, as data that prints as Python, and how they are drawn.

A program is drawn step by step while it runs, because what is worth doing depends on what is there. ``Dice`` makes each
choice, and nothing else is random. What was drawn is written out with names and values, so that a step can be left out
and the others still mean something.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal, TypeVar
from uuid import UUID

from pyiceberg import types
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
)

from commit_coord.testing.rows import model, operations
from commit_coord.testing.rows.model import (
    MAIN,
    Always,
    And,
    Compare,
    In,
    IsNull,
    Named,
    Not,
    NotNull,
    Or,
    Partition,
    State,
    Stated,
    Where,
)
from commit_coord.testing.rows.operations import (
    OURS_ALONE,
    AddColumn,
    AddFiles,
    AddPartition,
    Append,
    CommitFiles,
    Compact,
    Concatenate,
    Delete,
    DropColumn,
    DropPartition,
    DropRef,
    DynamicOverwrite,
    Expire,
    ExpireOne,
    Insert,
    InsertSelect,
    MakeRef,
    MoveFirst,
    Operation,
    Orphans,
    Overwrite,
    Promote,
    Race,
    Recreate,
    Refresh,
    RenameColumn,
    Require,
    Rollback,
    SetProperty,
    Single,
    SortBy,
    SqlDelete,
    SqlUpdate,
    SwapColumns,
    Transact,
    Truncate,
    UpdateRows,
    Upgrade,
    Upsert,
    WriteFiles,
)
from commit_coord.testing.rows.transforms import fitting

T = TypeVar("T")
Mode = Literal["append", "overwrite", "dynamic"]


@dataclass(frozen=True)
class Look:
    """Every reader reads with this condition."""

    where: Where


Step = Operation | Look


@dataclass(frozen=True)
class Program:
    """A table and what is done to it.

    Args:
        locks: ``operation-locks`` of our catalogs.
        columns: Of the table.
        spec: Its partition fields; sources are field ids in *columns*.
        properties: Of the table.
        version: Of its format.
        steps: What is done.
    """

    locks: str
    columns: tuple[NestedField, ...]
    spec: tuple[Partition, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 2
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        """Return it as Python; :func:`loads` reads it back."""
        about = (
            f"    {name}={getattr(self, name)!r}," for name in ("locks", "columns", "spec", "properties", "version")
        )
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


def loads(text: str) -> Program:
    """Return the program that was printed as *text*."""
    found = python(text)
    assert isinstance(found, Program)
    return found


def python(text: str) -> Any:
    """Return the program, step or condition that was printed as *text*."""
    from commit_coord.testing.rows import spark  # which draws with what is here

    names: dict[str, Any] = {"nan": math.nan, "inf": math.inf, "Decimal": Decimal, "UUID": UUID, "datetime": dt}
    for module in (types, model, operations, spark):
        names |= vars(module)
    names |= {"Program": Program, "Look": Look}
    return eval(text, names)  # noqa: S307 - a program of one's own # nosec B307


# Chance.


class Dice:
    """Every choice of a program.

    Args:
        seed: Of the same seed come the same choices.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"rows {seed}")  # noqa: S311 - dice
        self._favourites: dict[str, list[Any]] = {}
        self._last = "a"

    def number(self, low: int, high: int) -> int:
        """Return a number between both, inclusive."""
        return self._random.randint(low, high)

    def chance(self, percent: int) -> bool:
        """Return True in so many of 100 cases."""
        return self.number(1, 100) <= percent

    def one(self, things: Sequence[T]) -> T:
        """Return one of *things*."""
        return things[self.number(0, len(things) - 1)]

    def some(self, things: Sequence[T], least: int, most: int) -> list[T]:
        """Return so many of *things*, in their order."""
        count = min(self.number(least, most), len(things))
        left = list(range(len(things)))
        while len(left) > count:
            left.pop(self.number(0, len(left) - 1))
        return [things[i] for i in left]

    def favourite(self, what: str, things: Sequence[T], count: int, percent: int = 70) -> T:
        """Return one of *things*, mostly one of the few that this program prefers: so that its steps meet."""
        if what not in self._favourites:
            self._favourites[what] = self.some(things, count, count)
        preferred: Sequence[T] = self._favourites[what]
        return self.one(preferred if self.chance(percent) else things)

    def value(self, pool: str) -> Any:
        """Return a value of a pool."""
        return self.favourite(pool, POOLS[pool], 3)

    def column(self, fields: Sequence[NestedField]) -> NestedField:
        """Return one of *fields*, mostly one whose name this program prefers."""
        name = self.favourite("names", _ALL_NAMES, 2)
        return next((f for f in fields if f.name == name), None) or self.one(fields)

    def client(self) -> str:
        """Return who does the next step: often who did the last one, while the others' tables grow old."""
        if not self.chance(40):
            self._last = self.weighed(((5, "a"), (4, "b"), (2, "s")))
        return self._last

    def weighed(self, things: Sequence[tuple[int, T]]) -> T:
        """Return one of *things*, by their weights."""
        at = self.number(1, sum(weight for weight, _ in things))
        for weight, thing in things:
            at -= weight
            if at <= 0:
                return thing
        raise AssertionError


# Values that have broken something before, or might. Not the least ones: truncate[10] has no place for them.

POOLS: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "int": (0, 1, 2, -1, 7, 2**31 - 1, 8 - 2**31),
    "long": (0, 1, 2, 3, 4, 5, -1, 2**31, 2**63 - 1, 8 - 2**63),
    "float": (0.0, -0.0, 1.5, -2.25, math.nan, math.inf, -math.inf, 3.4028234663852886e38),
    "double": (0.0, -0.0, 1.5, 0.1, math.nan, math.inf, -math.inf, 1.7976931348623157e308, 5e-324),
    "decimal(9, 2)": tuple(map(Decimal, ("0.00", "1.25", "-1.25", "9999999.99", "-9999999.90", "12.30"))),
    "decimal(18, 2)": tuple(map(Decimal, ("0.00", "1234567890123456.78", "-9999999999999999.90", "456.78"))),
    "decimal(38, 10)": tuple(
        map(
            Decimal,
            (
                "0.0000000000",
                "4028093312416675137268760953.8991191790",
                "-9999999999999999999999999999.9999999990",
                "1.0000000001",
            ),
        )
    ),
    "string": (
        "",
        "a",
        "b",
        "c",
        "A",
        "%",
        "a/b",
        "k=v",
        "é",
        "日本",
        "\U0001f600",
        "a'b",
        "x" * 40,
        " ",
        "null",
        "\\",
    ),
    "binary": (b"", b"\0", b"a", b"\xff\xfe", b"a" * 20),
    "date": tuple(
        dt.date(*ymd)
        for ymd in (
            (1970, 1, 1),
            (1969, 12, 31),
            (2024, 2, 29),
            (1582, 10, 10),
            (1, 1, 1),
            (9999, 12, 31),
            (2024, 3, 1),
        )
    ),
    "time": (dt.time(0, 0), dt.time(23, 59, 59, 999999), dt.time(12, 30)),
    "timestamp": tuple(
        dt.datetime(*parts)  # noqa: DTZ001 - without a zone, as the column
        for parts in (
            (1970, 1, 1),
            (1969, 12, 31, 23, 59, 59, 999999),
            (2024, 2, 29, 12, 0, 0, 1),
            (1700, 1, 1, 1, 1, 1),
            (2200, 12, 31, 23, 59, 59, 999999),
        )
    ),
    "timestamptz": tuple(
        dt.datetime(*parts).replace(tzinfo=dt.UTC)  # noqa: DTZ001 - it gets one
        for parts in (
            (1970, 1, 1),
            (1969, 12, 31, 23, 59, 59, 999999),
            (2024, 2, 29, 12, 0, 0, 1),
            (2200, 12, 31, 23, 59, 59, 999999),
        )
    ),
}


def value(dice: Dice, kind: IcebergType) -> Any:
    """Return a value of type *kind*, as a user writes it."""
    match kind:
        case StructType(fields=fields):
            return {f.name: value_of(dice, f) for f in fields}
        case ListType():
            return [
                None if not kind.element_required and dice.chance(20) else value(dice, kind.element_type)
                for _ in range(dice.number(0, 2))
            ]
        case MapType():
            keys = dice.some(POOLS[str(kind.key_type)], 0, 2)
            return [
                (key, None if not kind.value_required and dice.chance(20) else value(dice, kind.value_type))
                for key in keys
            ]
    return dice.value(str(kind))


def value_of(dice: Dice, column: NestedField, nulls: int = 20) -> Any:
    """Return a value for a column; NULL in so many of 100 cases, where it may be."""
    return None if not column.required and dice.chance(nulls) else value(dice, column.field_type)


def rows(dice: Dice, state: State, least: int = 0, most: int = 4) -> tuple[Named, ...]:
    """Return rows for a table: of many calls without a NULL, or a column could hardly ever become required."""
    nulls = dice.weighed(((4, 0), (4, 20), (2, 60)))
    count = dice.number(least, most)
    return tuple({f.name: value_of(dice, f, nulls) for f in state.fields.fields} for _ in range(count))


# Tables.

_PRIMITIVES: tuple[IcebergType, ...] = (
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
_NAMES = ("a", "b", "c", "d", "e", "f")
_ALL_NAMES = ("k", *_NAMES[:3])


def kind_of(dice: Dice, number: Callable[[], int], *, nested: int = 25) -> IcebergType:
    """Return a type; its fields are numbered by *number*."""
    if not dice.chance(nested):
        return dice.favourite("types", _PRIMITIVES, 2, 50)
    required = dice.chance(30)
    match dice.weighed(((8, 1), (8, 2), (8, 3), (3, 4), (3, 5))):
        case 1:
            return StructType(
                NestedField(number(), "x", LongType(), required=required),
                NestedField(number(), "y", dice.favourite("types", _PRIMITIVES, 2, 50), required=False),
            )
        case 2:
            return ListType(number(), dice.one(_PRIMITIVES), element_required=required)
        case 3:
            return MapType(number(), StringType(), number(), dice.one(_PRIMITIVES), value_required=required)
        case 4:
            inner = StructType(NestedField(number(), "x", LongType(), required=False))
            return ListType(number(), inner, element_required=required)
    inner = StructType(NestedField(number(), "x", DateType(), required=False))
    return MapType(number(), StringType(), number(), inner, value_required=required)


_PROPERTIES: tuple[Mapping[str, str], ...] = (
    {},
    {},
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
    for name in _NAMES[: dice.number(1, 3)]:
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


# Conditions.


def where(dice: Dice, state: State, depth: int = 1) -> Where:
    """Return a condition on the columns of *state*."""
    if depth and dice.chance(20):
        left, right = where(dice, state, depth - 1), where(dice, state, depth - 1)
        if isinstance(left, Always) or isinstance(right, Always):
            return left
        return And(left, right) if dice.chance(50) else Or(left, right)
    if dice.chance(5) or not state.fields.fields:
        return Always()
    column = dice.column(state.fields.fields)
    name, kind = column.name, column.field_type
    if isinstance(kind, StructType) and dice.chance(70):
        inner = dice.one(kind.fields)
        name, kind = f"{name}.{inner.name}", inner.field_type
    if isinstance(kind, ListType | MapType):
        return Always()  # PyIceberg has no conditions on these
    if not kind.is_primitive or dice.chance(15):
        return IsNull(name) if dice.chance(50) else NotNull(name)
    if dice.chance(15):
        pool = [v for v in POOLS[str(kind)] if not isinstance(v, float) or not math.isnan(v)]
        return In(name, tuple(dice.some(pool, 2, 3)))
    compared = dice.one(_BETWEEN[str(kind)]) if str(kind) in _BETWEEN and dice.chance(25) else dice.value(str(kind))
    if isinstance(compared, float) and math.isnan(compared):
        return NotNull(name)
    ops = ("==",) if isinstance(kind, BooleanType) else ("==", "==", "<", "<=", ">", ">=")
    if not isinstance(kind, FloatType | DoubleType) and dice.chance(10):
        return Compare(name, "!=", compared)
    return Compare(name, dice.one(ops), compared)


_BETWEEN: dict[str, tuple[Any, ...]] = {
    "int": (2**40, -(2**40)),
    "long": (2**40, -(2**40)),
    "double": (1e-300, -1e-300, 1.5000000001, -2.2500000001, 1e300, -1e300),
    "decimal(9, 2)": (Decimal("12345678.00"), Decimal("-12345678.00")),
    "decimal(18, 2)": (Decimal("12345678.00"), Decimal("-12345678.00")),
}
"""Constants that a column, or its files from before it was promoted, can't have."""


def simple_where(dice: Dice, state: State) -> Where:
    """Return a condition that our SQL takes."""
    columns = [f for f in state.fields.fields if str(f.field_type) in _TYPED]
    if not columns or dice.chance(10):
        return Always()
    found = where(dice, replace(state, fields=StructType(*columns)))
    if isinstance(found, Always):
        return found
    if isinstance(found, Compare) and dice.chance(15):
        found = replace(found, op="!=")
    if isinstance(found, Compare) and isinstance(found.value, float) and dice.chance(40):
        found = replace(found, value=dice.one(_BESIDE))
    return Stated(Not(found) if dice.chance(25) else found)


_TYPED = {str(kind) for kind in _PRIMITIVES}
"""Types that have a literal in SQL."""

_BESIDE = (math.nan, 0.1, -0.1, 16777217.0, 3.4028235e38, 1e39, -1e39)
"""Numbers that no float is."""


# Steps.


@dataclass
class View:
    """What a step is drawn from.

    Args:
        head: The table as it is.
        base: The table as each client sees it.
        slots: Files that were written.
    """

    head: State
    base: Callable[[str], State]
    slots: Mapping[str, Any]


@dataclass(frozen=True)
class Mix:
    """How often one program does what."""

    ours: tuple[tuple[int, Maker], ...]
    stock: tuple[tuple[int, Maker], ...]
    changes: tuple[tuple[int, Maker], ...]
    races: int


def mix(dice: Dice) -> Mix:
    """Return how often a program does what.

    What takes three rare operations in a row would hardly ever be drawn from all of them. So a program leaves many
    operations out. Every second one goes further: of the changes it takes one theme (columns, partitions, snapshots),
    and does with these few operations what it does on few columns, so that they meet.
    """
    narrow = dice.chance(60)
    choices = ((6, 0), (2, 1), (2, 4)) if narrow else ((3, 0), (4, 1), (3, 4))
    theme = dice.one(_THEMES)
    factors: dict[Maker, int] = {}
    for _, make in _MAKERS:
        if make not in _CHANGES or not narrow:
            factors[make] = dice.weighed(choices)
        else:
            factors[make] = dice.weighed(((2, 0), (2, 2), (2, 5))) if make in theme else 0
    factors[_append] = max(1, factors[_append])
    factors[_commit_files] = factors[_write_files]

    def weighed(makers: tuple[tuple[int, Maker], ...]) -> tuple[tuple[int, Maker], ...]:
        return tuple((weight * factors[make], make) for weight, make in makers if factors[make])

    return Mix(weighed(_MAKERS), weighed(_STOCK_MAKERS), weighed(_EVOLUTIONS), dice.one((10, 30, 50)))


def step(dice: Dice, view: View, mix: Mix) -> Step:
    """Return what is done next."""
    client = dice.client()
    if len(view.head.files) < 2 and dice.chance(40):
        return _append(dice, client, view.base(client), view)
    if dice.chance(8):
        return Look(where(dice, view.head))
    if dice.chance(mix.races) and client != "s":
        one = single(dice, view, client, mix, without=(Refresh, WriteFiles, Recreate, Expire, Orphans))
        others = tuple(meanwhile(dice, view, client, mix) for _ in range(dice.weighed(((4, 1), (2, 2), (1, 3)))))
        return Race(one, others, isinstance(one, Transact) and dice.chance(50), dice.chance(40))
    return single(dice, view, client, mix)


def meanwhile(dice: Dice, view: View, client: str, mix: Mix) -> Single:
    """Return what another client than *client* does."""
    other = dice.one([name for name in ("a", "b", "s") if name != client])
    base = view.base(other)
    change = mix.changes and base.fields.fields and dice.chance(50)
    if change and (made := dice.weighed(mix.changes)(dice, other, base, view)) is not None:
        return made
    return single(dice, view, other, mix, without=(Orphans,))  # the raced client's files would be some


def single(dice: Dice, view: View, client: str, mix: Mix, *, without: tuple[type, ...] = ()) -> Single:
    """Return one operation of *client*."""
    while True:
        make = dice.weighed(mix.ours if client != "s" else mix.stock)
        base = view.head if make in _FRESH else view.base(client)
        if not base.fields.fields:
            return _append(dice, client, base, view)  # two clients have dropped its last columns
        made = make(dice, client, base, view)
        if made is not None and not isinstance(made, without):
            return made


def _append(dice: Dice, client: str, base: State, view: View) -> Single:
    return Append(client, rows(dice, base, 0 if dice.chance(25) else 1), _branch(dice, base))


def _branch(dice: Dice, base: State) -> str:
    others = [name for name in base.rows if name != MAIN and name not in base.tags]
    return dice.one(others) if others and dice.chance(40) else MAIN


def _overwrite(dice: Dice, client: str, base: State, view: View) -> Single:
    condition = where(dice, base) if dice.chance(60) else Always()
    made = rows(dice, base, 0 if dice.chance(25) else 1)
    return Overwrite(client, made, condition, _branch(dice, base), client != "s" and dice.chance(20))


def _delete(dice: Dice, client: str, base: State, view: View) -> Single:
    return Delete(client, where(dice, base), _branch(dice, base))


def _upsert(dice: Dice, client: str, base: State, view: View) -> Single | None:
    there = [f for f in base.fields.fields if f.field_type.is_primitive and str(f.field_type) not in _NO_KEYS]
    if not there:
        return None
    keys = dice.some(there, 1, 2)
    made: dict[tuple[Any, ...], Named] = {}
    for row in rows(dice, base, 1):
        full = {**row, **{f.name: value(dice, f.field_type) for f in keys if row.get(f.name) is None}}
        made[tuple(full[f.name] for f in keys)] = full
    return Upsert(client, tuple(made.values()), tuple(f.name for f in keys))


_NO_KEYS = {"float", "double", "uuid"}
"""Types by which PyIceberg joins no rows: it says so, or Arrow does."""


def _dynamic(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if not base.spec or any(p.transform != "identity" for p in base.spec):
        return None
    return DynamicOverwrite(client, rows(dice, base))


def _add_files(dice: Dice, client: str, base: State, view: View) -> Single:
    return AddFiles(client, rows(dice, base, 1, 1 if base.spec else 3))


def _write_files(dice: Dice, client: str, base: State, view: View) -> Single:
    return WriteFiles(client, rows(dice, base, 1), f"w{len(view.slots)}")


def _commit_files(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if not view.slots:
        return None
    mode: Mode = dice.one(("append", "append", "overwrite", "dynamic"))
    condition = where(dice, base) if mode == "overwrite" and dice.chance(50) else Always()
    slot = dice.one(sorted(view.slots))
    written, _ = view.slots[slot]
    told = (written.uuid, written.fields) != (base.uuid, base.fields) or dice.chance(50)
    return CommitFiles(client, slot, mode, condition, dice.chance(50), told)


def _sets(dice: Dice, base: State, kinds: set[str] | None = None) -> tuple[tuple[str, Any], ...]:
    there = [f for f in base.fields.fields if kinds is None or str(f.field_type) in kinds]
    return tuple((f.name, value_of(dice, f)) for f in dice.some(there, 1, 2))


def _update_rows(dice: Dice, client: str, base: State, view: View) -> Single:
    return UpdateRows(client, where(dice, base), _sets(dice, base), _branch(dice, base))


def _compact(dice: Dice, client: str, base: State, view: View) -> Single:
    return Compact(client)


def _insert(dice: Dice, client: str, base: State, view: View) -> Single | None:
    columns = [f for f in base.fields.fields if str(f.field_type) in _TYPED]
    if not columns or any(f.required and f not in columns for f in base.fields.fields):
        return None
    chosen = [f for f in columns if f.required or dice.chance(80)] or columns
    lines = tuple(tuple(value_of(dice, f) for f in chosen) for _ in range(dice.number(1, 3)))
    return Insert(client, tuple(f.name for f in chosen), lines, overwrite=dice.chance(30))


def _insert_select(dice: Dice, client: str, base: State, view: View) -> Single:
    return InsertSelect(client, simple_where(dice, base), overwrite=dice.chance(60))


def _sql_update(dice: Dice, client: str, base: State, view: View) -> Single | None:
    sets = _sets(dice, base, _TYPED)
    return SqlUpdate(client, simple_where(dice, base), sets) if sets else None


def _sql_delete(dice: Dice, client: str, base: State, view: View) -> Single:
    return SqlDelete(client, simple_where(dice, base))


def _truncate(dice: Dice, client: str, base: State, view: View) -> Single:
    return Truncate(client)


def _concatenate(dice: Dice, client: str, base: State, view: View) -> Single:
    return Concatenate(client)


def _refresh(dice: Dice, client: str, base: State, view: View) -> Single:
    return Refresh(client)


def _unused(dice: Dice, state: State) -> str | None:
    """Return a name for a column; often the first one that is free, which a column may have had that was dropped."""
    if state.mapped:
        return None  # a mapping by names can't tell two columns apart that have had one name
    names = [name for name in _ALL_NAMES + _NAMES[3:] if name not in {f.name for f in state.fields.fields}]
    return (names[0] if dice.chance(60) else dice.one(names)) if names else None


def _add_column(dice: Dice, client: str, base: State, view: View) -> Single | None:
    structs = [f for f in base.fields.fields if isinstance(f.field_type, StructType)]
    if structs and dice.chance(40):
        struct = dice.one(structs)
        return AddColumn(client, f"{struct.name}.{dice.one(('z', 'w'))}", dice.one(_PRIMITIVES))
    name = _unused(dice, base)
    numbers = itertools.count(1000)
    if name is None:
        return None
    # Of the types that have columns already, too: what has lost its column fits another one only then.
    known = [f.field_type for f in view.head.fields.fields if f.field_type.is_primitive]
    kind = dice.one(known) if known and dice.chance(30) else kind_of(dice, lambda: next(numbers), nested=45)
    return AddColumn(client, name, kind)


def _drop_column(dice: Dice, client: str, base: State, view: View) -> Single | None:
    names = [f.name for f in base.fields.fields]
    if len(names) < 2:
        return None
    # The newest one often: then the columns are those of an old schema again.
    return DropColumn(client, names[-1] if dice.chance(50) else dice.one(names))


def _rename_column(dice: Dice, client: str, base: State, view: View) -> Single | None:
    name = _unused(dice, base)
    return RenameColumn(client, dice.column(base.fields.fields).name, name) if name is not None else None


def _swap(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if len(base.fields.fields) < 2 or view.head.mapped:
        return None  # a mapping by names can't tell two columns apart that have had one name
    one = dice.column(base.fields.fields)
    others = [f for f in base.fields.fields if f is not one]
    # Of one type often: then nothing but the values tells that the wrong one was taken.
    alike = [f for f in others if f.field_type == one.field_type]
    return SwapColumns(client, one.name, dice.one(alike if alike and dice.chance(70) else others).name)


_WIDER: dict[str, IcebergType] = {
    "int": LongType(),
    "float": DoubleType(),
    "decimal(9, 2)": DecimalType(18, 2),
}


def _promote(dice: Dice, client: str, base: State, view: View) -> Single | None:
    there = [f for f in base.fields.fields if str(f.field_type) in _WIDER]
    if not there:
        return None
    column = dice.one(there)
    return Promote(client, column.name, _WIDER[str(column.field_type)])


def _require(dice: Dice, client: str, base: State, view: View) -> Single:
    # A column that holds NULLs could be made required as well: then its readers are on their own.
    there = [row for rows in (*view.head.rows.values(), *(rows for _, rows in view.head.history)) for row in rows]
    full = [f for f in base.fields.fields if not f.required and all(f.field_id in dict(row) for row in there)]
    if full and dice.chance(75):
        return Require(client, dice.column(full).name, True)
    return Require(client, dice.column(base.fields.fields).name, False)


def _move_first(dice: Dice, client: str, base: State, view: View) -> Single:
    return MoveFirst(client, dice.one(base.fields.fields).name)


def _add_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    found = partition(dice, base)
    if found is None:
        return None
    column = next(f for f in base.fields.fields if f.field_id == found.source)
    return AddPartition(client, column.name, found.transform, found.name)


def _drop_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    return DropPartition(client, dice.one(base.spec).name) if base.spec else None


def _sort(dice: Dice, client: str, base: State, view: View) -> Single | None:
    there = [f for f in base.fields.fields if f.field_type.is_primitive]
    return SortBy(client, dice.one(there).name) if there else None


def _upgrade(dice: Dice, client: str, base: State, view: View) -> Single | None:
    return Upgrade(client) if base.version == 1 else None


def _set_property(dice: Dice, client: str, base: State, view: View) -> Single:
    key, values = dice.one(
        (
            ("commit.manifest-merge.enabled", ("true", "false")),
            ("commit.manifest.min-count-to-merge", ("2", "3")),
            ("commit.group.coalesce", ("true", "false")),
            ("write.update.isolation-level", ("snapshot", "serializable")),
            ("gc.enabled", ("false", "false", "true")),
            ("p", ("1", "2")),
        )
    )
    return SetProperty(client, key, dice.one(values))


def _make_ref(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if MAIN not in base.rows:
        return None
    kind: Literal["branch", "tag"] = dice.one(("branch", "branch", "tag"))
    return MakeRef(client, f"{kind}{len(base.rows)}", kind)


def _drop_ref(dice: Dice, client: str, base: State, view: View) -> Single | None:
    names = sorted(name for name in base.rows if name != MAIN)
    if not names:
        return None
    name = dice.one(names)
    return DropRef(client, name, "tag" if name in base.tags else "branch")


def _expire(dice: Dice, client: str, base: State, view: View) -> Single:
    return Expire(client)


def _expire_one(dice: Dice, client: str, base: State, view: View) -> Single | None:
    return ExpireOne(client, dice.number(1, len(base.history) - 1)) if len(base.history) > 1 else None


def _rollback(dice: Dice, client: str, base: State, view: View) -> Single | None:
    # Not to rows that lack what is required by now: their readers are on their own.
    required = [f.field_id for f in view.head.fields.fields if f.required]
    fine = [
        back
        for back, (_, rows) in enumerate(base.history)
        if back and all(key in dict(row) for row in rows for key in required)
    ]
    return Rollback(client, dice.one(fine)) if fine else None


def _recreate(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if view.head.version > 2:
        return None  # PyIceberg makes no such table
    return Recreate(client, purge=client != "s" and dice.chance(40))


def _orphans(dice: Dice, client: str, base: State, view: View) -> Single:
    return Orphans(client)


def _transact(dice: Dice, client: str, base: State, view: View) -> Single | None:
    rows = (_append, _append, _delete, _delete, _overwrite, _upsert, _update_rows)
    makers = (*rows, *rows, _set_property, _add_column, _rename_column, _drop_column)
    calls: list[Any] = []
    for _ in range(dice.number(2, 3)):
        made = dice.one(makers)(dice, client, base, view)
        if made is not None:
            calls.append(made)
    return Transact(client, tuple(calls)) if calls else None


Maker = Callable[[Dice, str, State, View], Single | None]

_EVOLUTIONS: tuple[tuple[int, Maker], ...] = (
    (4, _add_column),
    (2, _drop_column),
    (3, _rename_column),
    (2, _swap),
    (2, _promote),
    (2, _require),
    (1, _move_first),
    (5, _add_partition),
    (4, _drop_partition),
    (1, _sort),
    (4, _upgrade),
    (2, _set_property),
    (3, _make_ref),
    (1, _drop_ref),
    (1, _expire),
    (2, _expire_one),
    (2, _rollback),
    (1, _recreate),
)
_STOCK_MAKERS: tuple[tuple[int, Maker], ...] = (
    (12, _append),
    (4, _overwrite),
    (5, _delete),
    (2, _upsert),
    (3, _dynamic),
    (2, _add_files),
    (8, _refresh),
    *_EVOLUTIONS,
)
_MAKERS: tuple[tuple[int, Maker], ...] = (
    (12, _append),
    (6, _overwrite),
    (6, _delete),
    (3, _upsert),
    (3, _dynamic),
    (2, _add_files),
    (4, _write_files),
    (8, _commit_files),
    (4, _update_rows),
    (3, _compact),
    (4, _insert),
    (3, _insert_select),
    (3, _sql_update),
    (3, _sql_delete),
    (1, _truncate),
    (1, _concatenate),
    (4, _refresh),
    (4, _transact),
    (2, _orphans),
    *_EVOLUTIONS,
)
_FRESH = {_insert, _insert_select, _sql_update, _sql_delete, _truncate, _concatenate}
"""Statements see the table as it is."""

_CHANGES = {make for _, make in _EVOLUTIONS}
_THEMES = (
    {_add_column, _drop_column, _rename_column, _swap, _require},
    {_add_column, _drop_column, _rename_column, _swap, _promote, _move_first, _require, _set_property},
    {_add_partition, _drop_partition, _upgrade, _drop_column, _rename_column, _set_property, _sort},
    {_make_ref, _drop_ref, _expire, _expire_one, _rollback, _set_property, _recreate, _upgrade},
    {_set_property, _upgrade},
)
"""Changes that meet each other."""
