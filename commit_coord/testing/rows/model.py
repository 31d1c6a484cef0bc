"""A table as its rows, and conditions on them. Pure: it reads no file and knows no library but Iceberg's types.

A row maps field ids to values, so that a renamed or swapped column is right by construction. A value that is NULL is
left out, so that a row is the same before and after a column was added. What is compared is always a *bag* of rows:
their order says nothing, and two equal rows are two rows.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

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

Value = Any
"""In Python's terms. A struct is a tuple of (field id, value) without its NULLs, a list a tuple, a map a sorted one."""

Row = tuple[tuple[int, Value], ...]
"""(field id, value) in the order of the ids, without NULLs."""

Named = Mapping[str, Any]
"""A row as a user writes it: by names, structs as dictionaries, maps as lists of pairs."""

MAIN = "main"


# Values.


def canonical(value: Any, kind: IcebergType) -> Value:
    """Return *value*, written by names, by field ids."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            found = {f.field_id: canonical(value.get(f.name), f.field_type) for f in fields}
            return tuple(sorted((key, item) for key, item in found.items() if item is not None))
        case ListType():
            return tuple(canonical(item, kind.element_type) for item in value)
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else value
            made = [(canonical(k, kind.key_type), canonical(v, kind.value_type)) for k, v in pairs]
            return tuple(sorted(made, key=repr))
        case FloatType():
            return _float(struct.unpack("<f", struct.pack("<f", value))[0])
        case DoubleType():
            return _float(value)
        case TimestampType() | TimestamptzType():  # as Arrow casts one to the other
            return value.replace(tzinfo=dt.UTC if isinstance(kind, TimestamptzType) else None)
    return value


def _float(value: float) -> float:
    return math.nan if math.isnan(value) else value  # one object: equal to itself in a tuple


def projected(value: Value, kind: IcebergType) -> Value:
    """Return what of *value* is visible with the type *kind*: what it has no field for is not."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            types = {f.field_id: f.field_type for f in fields}
            return tuple((key, projected(item, types[key])) for key, item in value if key in types)
        case ListType():
            return tuple(projected(item, kind.element_type) for item in value)
        case MapType():
            made = [(projected(k, kind.key_type), projected(v, kind.value_type)) for k, v in value]
            return tuple(sorted(made, key=repr))
        case FloatType() | DoubleType():
            return _float(float(value))
    return value


def complete(value: Value, kind: IcebergType) -> bool:
    """Return whether *value* has all that *kind* requires."""
    if value is None:
        return True
    match kind:
        case StructType(fields=fields):
            there = dict(value)
            return all(
                complete(there[f.field_id], f.field_type) if f.field_id in there else not f.required for f in fields
            )
        case ListType():
            return all(item is not None or not kind.element_required for item in value) and all(
                complete(item, kind.element_type) for item in value
            )
        case MapType():
            return all((v is not None or not kind.value_required) and complete(v, kind.value_type) for _, v in value)
    return True


# Conditions.


class Unbound(Exception):
    """A name stands for no column."""


@dataclass(frozen=True)
class Always:
    """Every row."""


@dataclass(frozen=True)
class Compare:
    """``column op value``; op is one of == != < <= > >=. NULL and NaN satisfy none."""

    column: str
    op: str
    value: Any


@dataclass(frozen=True)
class In:
    """The column has one of these values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class IsNull:
    """The column, or what it lies in, is NULL."""

    column: str


@dataclass(frozen=True)
class NotNull:
    """The column has a value."""

    column: str


@dataclass(frozen=True)
class Not:
    """Not so; NULL is neither."""

    inner: Where


@dataclass(frozen=True)
class And:
    """Both."""

    left: Where
    right: Where


@dataclass(frozen=True)
class Or:
    """One of both."""

    left: Where
    right: Where


@dataclass(frozen=True)
class Stated:
    """As SQL means it: NaN equals itself and is above all numbers, and no constant is rounded to a float."""

    inner: Where


Where = Always | Compare | In | IsNull | NotNull | Not | And | Or | Stated

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

Test = Callable[[Row], bool]
Truth = Callable[[Row], bool | None]
"""None: it compares NULL, and so is neither true nor false."""


def path_of(column: str, fields: StructType) -> tuple[NestedField, ...]:
    """Return the fields that lead to *column*, ``s.x`` in a struct.

    Raises:
        Unbound: There is none.
    """
    found: list[NestedField] = []
    kind: IcebergType = fields
    for name in column.split("."):
        inside = [f for f in kind.fields if f.name == name] if isinstance(kind, StructType) else []
        if not inside:
            raise Unbound(column)
        found.append(inside[0])
        kind = inside[0].field_type
    return tuple(found)


def bound(where: Where, fields: StructType) -> Test:
    """Return the test of rows that *where* is for a table whose columns are *fields*.

    Raises:
        Unbound: It names a column that is not there.
    """
    found = truth(where, fields)
    return lambda row: found(row) is True


def truth(where: Where, fields: StructType, *, stated: bool = False) -> Truth:
    """Return whether *where*, or what :class:`Stated` has of it, is true, false or neither of a row.

    Raises:
        Unbound: It names a column that is not there.
    """
    match where:
        case Always():
            return lambda row: True
        case Stated(inner=inner):
            return truth(inner, fields, stated=True)
        case Not(inner=inner):
            negated = truth(inner, fields, stated=stated)
            return lambda row: None if (found := negated(row)) is None else not found
        case And(left=left, right=right) | Or(left=left, right=right):
            one, other = (truth(part, fields, stated=stated) for part in (left, right))
            decides = isinstance(where, Or)

            def both(row: Row) -> bool | None:
                values = (one(row), other(row))
                if decides in values:
                    return decides
                return None if None in values else not decides

            return both
    path = path_of(where.column, fields)
    ids, kind = [f.field_id for f in path], path[-1].field_type

    def value(row: Row) -> Value:
        found: Any = row
        for key in ids:
            found = dict(found).get(key)
            if found is None:
                return None
        return found

    match where:
        case IsNull():
            return lambda row: value(row) is None
        case NotNull():
            return lambda row: value(row) is not None
        case In(values=values) if stated:
            sizes = [_size(_typed(item, kind, where.column)) for item in values]
            return lambda row: None if value(row) is None else _size(value(row)) in sizes
        case Compare(op=op, value=other) if stated:
            if isinstance(kind, BooleanType) and op not in {"==", "!="}:
                raise Unbound(f"{where.column} has no order")
            size, ordered = _size(_typed(other, kind, where.column)), _COMPARED[op]
            return lambda row: None if value(row) is None else ordered(_size(value(row)), size)
        case In(values=values):
            wanted = [_constant(item, kind, where.column) for item in values]
            return lambda row: None if value(row) is None else not _is_nan(value(row)) and value(row) in wanted
        case Compare(op=op, value=other):
            against, compared = _constant(other, kind, where.column), _COMPARED[op]
            return lambda row: (
                None
                if value(row) is None
                else not _is_nan(value(row)) and not _is_nan(against) and compared(value(row), against)
            )
    raise TypeError(where)


def _constant(value: Any, kind: IcebergType, column: str) -> Value:
    """Return the constant *value* as PyIceberg takes it for a column of type *kind*.

    Raises:
        Unbound: It does not compare the two.
    """
    match value, kind:
        case (bool(), BooleanType()) | (str(), StringType()) | (bytes(), BinaryType()) | (dt.time(), TimeType()):
            return value
        case bool(), _:
            pass
        case ((int() | float() | Decimal()), (FloatType() | DoubleType())):
            with suppress(OverflowError):  # a number that no float reaches stays as it is
                return canonical(float(value), kind)
            return float(value)
        case ((int() | Decimal()), (IntegerType() | LongType())):
            return int(value)
        case int(), DecimalType():
            return Decimal(value)
        case float(), DecimalType(scale=scale):
            with suppress(InvalidOperation):
                return Decimal(value).quantize(Decimal((0, (1,), -scale)), rounding=ROUND_HALF_UP)
        case Decimal(), DecimalType(scale=scale) if value.as_tuple().exponent == -scale:
            return value
        case int(), DateType() | TimeType() | TimestampType() | TimestamptzType():
            return _counted(value, kind)
        case dt.datetime(), DateType():
            return value.date()
        case dt.datetime(), TimestampType() | TimestamptzType():
            return canonical(value, kind)
        case dt.date(), DateType() if not isinstance(value, dt.datetime):
            return value
        case UUID(), UUIDType():
            return value
    raise Unbound(f"{column} has no value {value!r}")


@dataclass(frozen=True)
class _Beyond:
    """What lies after, or before, all values of a type."""

    after: bool

    def __gt__(self, value: Value) -> bool:
        return self.after

    def __lt__(self, value: Value) -> bool:
        return not self.after

    __ge__, __le__ = __gt__, __lt__


def _counted(number: int, kind: IcebergType) -> Value:
    """Return the date, time or timestamp that is so many days or microseconds after the beginning of 1970."""
    unit = dt.timedelta(days=1) if isinstance(kind, DateType) else dt.timedelta(microseconds=1)
    beginning = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - canonical() gives it a zone
    try:
        found = beginning + number * unit
    except OverflowError:
        return _Beyond(number > 0)
    match kind:
        case DateType():
            return found.date()
        case TimeType():
            return found.time() if found.date() == beginning.date() else _Beyond(number > 0)
    return canonical(found, kind)


def _typed(value: Any, kind: IcebergType, column: str) -> Value:
    """Return the constant *value* as SQL takes it for a column of type *kind*: it is not rounded.

    Raises:
        Unbound: It does not compare the two.
    """
    zoned = getattr(value, "tzinfo", None) is not None
    if isinstance(kind, StringType | BinaryType) and (zoned or isinstance(value, dt.time)):
        value = str(value)  # it is typed in quotes
    match value, kind:
        case (bool(), _) | (_, BooleanType()):
            pass
        case ((int() | float() | Decimal()), (FloatType() | DoubleType())):
            return float(value)
        case float(), (IntegerType() | LongType() | DecimalType()) if math.isfinite(value):
            return Decimal(repr(value))
        case ((int() | Decimal()), (IntegerType() | LongType() | DecimalType())):
            return value
        case (
            (float(), DecimalType())
            | (int(), DateType() | TimeType() | TimestampType() | TimestamptzType())
            | (dt.datetime(), DateType())
        ):
            raise Unbound(f"{column} has no value {value!r}")
        case dt.datetime(), TimestampType() if zoned:
            raise Unbound(f"{column} has no value {value!r}")
        case str(), BinaryType():
            return value.encode()
        case dt.date(), TimestampType() | TimestamptzType() if not isinstance(value, dt.datetime):
            return canonical(dt.datetime.combine(value, dt.time()), kind)
    return _constant(value, kind, column)


def _size(value: Value) -> tuple[bool, Value]:
    """Return what orders *value* as SQL does."""
    nan = _is_nan(value)
    return (nan, 0.0 if nan else value)


def _is_nan(value: Value) -> bool:
    return isinstance(value, float) and math.isnan(value)


def columns_of(where: Where) -> set[str]:
    """Return the columns that *where* names."""
    match where:
        case Always():
            return set()
        case Not(inner=inner) | Stated(inner=inner):
            return columns_of(inner)
        case And(left=left, right=right) | Or(left=left, right=right):
            return columns_of(left) | columns_of(right)
    return {where.column}


def parts(where: Where) -> Iterator[Where]:
    """Yield the conditions that *where* is made of."""
    match where:
        case Not(inner=inner) | Stated(inner=inner):
            yield from parts(inner)
        case And(left=left, right=right) | Or(left=left, right=right):
            yield from parts(left)
            yield from parts(right)
        case _:
            yield where


def denied(where: Where, *, negated: bool = False) -> set[str]:
    """Return the columns of which *where* says that they are not a value, or not one of several."""
    match where:
        case Not(inner=inner):
            return denied(inner, negated=not negated)
        case Stated(inner=inner):
            return denied(inner, negated=negated)
        case And(left=left, right=right) | Or(left=left, right=right):
            return denied(left, negated=negated) | denied(right, negated=negated)
        case In(column=column) if negated:
            return {column}
        case Compare(column=column, op=op) if op == ("==" if negated else "!="):
            return {column}
    return set()


def constants(where: Where) -> Iterator[Any]:
    """Yield the values that *where* compares with."""
    for one in parts(where):
        match one:
            case In(values=values):
                yield from values
            case Compare(value=value):
                yield value


# Tables.


@dataclass(frozen=True)
class Partition:
    """One field of a partition spec: ``transform(source)``, as Iceberg writes it."""

    source: int
    transform: str
    name: str


@dataclass(frozen=True)
class State:
    """A table as one commit left it.

    Args:
        uuid: Which table: one that was dropped and made again is another.
        fields: Its columns.
        rows: By branch and tag, each a sorted tuple.
        tags: Which of these are tags.
        spec: Its partition fields, those that are void left out.
        order: Its sort order: (source, transform, direction, nulls).
        properties: Without those that follow from something else.
        version: Of the format.
        last_id: The highest field id that was ever given out.
        void: The names of its void partition fields. Seen, not compared.
        spec_id: Of *spec*. Seen, not compared.
        files: Of the main branch: the spec and the rows of each. Seen, not compared.
        history: Of the main branch: the rows of its last snapshots, the newest first. Seen, not compared.
        mapping: Its name mapping, by which columns are found in files that name no field ids: their paths. Seen, not
            compared.
        written: By branch and tag, the snapshot that changed its rows last. Seen, not compared.
    """

    uuid: str
    fields: StructType
    rows: Mapping[str, tuple[Row, ...]]
    tags: frozenset[str] = frozenset()
    spec: tuple[Partition, ...] = ()
    order: tuple[tuple[Any, ...], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 2
    last_id: int = field(default=0, compare=False)
    void: frozenset[str] = field(default=frozenset(), compare=False)
    spec_id: int = field(default=0, compare=False)
    files: tuple[tuple[int, tuple[Row, ...]], ...] = field(default=(), compare=False)
    history: tuple[tuple[int, tuple[Row, ...]], ...] = field(default=(), compare=False)
    mapping: Mapping[str, int] = field(default_factory=dict, compare=False)
    written: Mapping[str, int | None] = field(default_factory=dict, compare=False)

    @property
    def mapped(self) -> bool:
        """Return whether it has a name mapping."""
        return bool(self.mapping)

    @property
    def isolation(self) -> str:
        """Return the isolation level of what overwrites rows."""
        return self.properties.get("write.update.isolation-level", "serializable")

    def of(self, ref: str = MAIN) -> Counter[Row]:
        """Return the rows of a branch or tag as the present columns show them."""
        return Counter(_visible(row, self.fields) for row in self.rows.get(ref, ()))

    def with_rows(self, rows: Iterable[Row], branch: str = MAIN) -> State:
        """Return the table with *rows* in *branch* instead of what is there."""
        return replace(self, rows={**self.rows, branch: tuple(rows)})

    def named(self, column: str) -> NestedField:
        """Return a column by its name."""
        return path_of(column, self.fields)[-1]

    def is_like(self, other: State) -> bool:
        """Return whether nothing differs that a change could rest on: neither structure nor rows, files or settings.

        Rows that were replaced by their like are others: a file shows what is in it, and not what was in another one.
        """
        return (
            self.same_structure(other)
            and (self.order, self.properties, self.tags) == (other.order, other.properties, other.tags)
            and self.rows.keys() == other.rows.keys()
            and all(Counter(rows) == Counter(other.rows[ref]) for ref, rows in self.rows.items())
            and Counter(self.files) == Counter(other.files)
            and self.written == other.written
        )

    def same_structure(self, other: State) -> bool:
        """Return whether only rows and refs differ."""
        return (self.uuid, self.fields, self.spec, self.version) == (
            other.uuid,
            other.fields,
            other.spec,
            other.version,
        )


def paths(kind: IcebergType, around: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path of each field in *kind*, as name mappings have it, and its id."""
    match kind:
        case StructType(fields=fields):
            inside = list(fields)
        case ListType():
            inside = [kind.element_field]
        case MapType():
            inside = [kind.key_field, kind.value_field]
        case _:
            inside = []
    for one in inside:
        yield around + one.name, one.field_id
        yield from paths(one.field_type, f"{around}{one.name}.")


def misled(fields: StructType, mapping: Mapping[str, int], before: StructType | None = None) -> bool:
    """Return whether *mapping* has a path of *fields* for another field; not where it was so *before*."""
    old = dict(paths(before)) if before is not None else {}
    return any(path in mapping and key not in (mapping[path], old.get(path)) for path, key in paths(fields))


def _visible(row: Row, fields: StructType) -> Row:
    found: Row = projected(row, fields)
    return found


def rows_of(named: Sequence[Named], fields: StructType) -> list[Row] | None:
    """Return rows that were written by name; None when one lacks what is required, or has what a column can't have.

    Without columns there are no rows: Arrow has none to write.
    """
    try:
        made: list[Row] = [canonical(row, fields) for row in named if fields.fields]
    except (TypeError, AttributeError, ValueError, struct.error):
        return None  # a race's steps are drawn before the first one is done, and may name other columns by then
    return made if all(complete(row, fields) for row in made) else None


def leaves(fields: StructType) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the columns of single values, those in structs with them: their paths, as names and as field ids."""
    for one in fields.fields:
        if isinstance(one.field_type, StructType):
            for path, field_ids in leaves(one.field_type):
                yield f"{one.name}.{path}", (one.field_id, *field_ids)
        elif one.field_type.is_primitive:
            yield one.name, (one.field_id,)


def value_at(row: Any, field_ids: tuple[int, ...]) -> Any:
    """Return the value of *row* at a path of field ids; None where there is none."""
    for key in field_ids:
        row = None if row is None else dict(row).get(key)
    return row
