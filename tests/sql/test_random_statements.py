"""Random statements on random tables, compared with a model in plain Python: what is stored is what was meant.

The model shares no code with the statements. It holds numbers as fractions, and evaluates WHERE row by row with three
truth values.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator
from ctypes import c_float
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from commit_coord import StatementError
from commit_coord.sql import Session
from tests.catalog.kit import Kit, kit

Row = dict[str, Any]
Truth = bool | None
BAD = object()
"""What the model has for a literal that its column can't hold."""


@dataclass(frozen=True)
class Written:
    """A literal: its text, and the value that it is in the column that it was drawn for, or ``BAD``.

    ``size`` is what it compares as; a column that can't hold a number compares with it nevertheless.
    """

    text: str
    value: Any
    size: Any = None
    compares: bool = True


NULL = Written("NULL", None)


# Literals of each type, around its limits.


def _exact(kind: IcebergType) -> st.SearchStrategy[Written]:
    """Return numbers for an exact type: inside, at and beyond its limits, and between two of its values."""
    places = kind.scale if isinstance(kind, DecimalType) else 0
    digits = kind.precision if isinstance(kind, DecimalType) else 10 if isinstance(kind, IntegerType) else 19
    limit = 10**digits if isinstance(kind, DecimalType) else 2**31 if isinstance(kind, IntegerType) else 2**63

    def written(number: tuple[int, int], quoted: int) -> Written:
        unscaled, further = number
        exact = Fraction(unscaled, 10**further)
        text = f"{abs(unscaled):0{further + 1}d}"
        text = ("-" if unscaled < 0 else "") + (f"{text[:-further]}.{text[-further:]}" if further else text)
        lowest = -limit + (1 if isinstance(kind, DecimalType) else 0)
        steps = exact * 10**places
        fits = steps.denominator == 1 and lowest <= steps < limit
        return Written(f"'{text}'" if quoted == 0 else text, exact if fits else BAD, exact)

    near = st.sampled_from([0, 1, -1, limit - 1, limit, -limit, -limit - 1, -limit + 1, limit // 2, 10 ** (digits - 1)])
    inside = st.tuples(near | st.integers(-limit, limit), st.just(places))
    finer = st.tuples(st.integers(-limit * 10, limit * 10), st.integers(places, places + 2))
    return st.builds(written, st.one_of(inside, inside, inside, finer), st.integers(0, 5))


def _floating(kind: IcebergType) -> st.SearchStrategy[Written]:
    """Return floats of the column's width; a column of 32 bits also meets doubles between two of its values."""
    single = isinstance(kind, FloatType)

    def written(number: float) -> Written:
        if math.isnan(number) or math.isinf(number):
            return Written(f"'{number}'", number, number)
        near = c_float(number).value if single else number
        return Written(repr(number), BAD if math.isinf(near) else near, number)

    common = st.sampled_from([0.0, -0.0, 1.0, -1.5, 5.0])
    own, doubles = st.floats(width=32 if single else 64), st.sampled_from([0.1, -0.1, 1e39, -1e39]) | st.floats()
    beyond = Written("1e309", BAD, Fraction(10**309))
    return st.builds(written, st.one_of(common, own, doubles)) | st.just(beyond)


def _text(pool: st.SearchStrategy[str]) -> st.SearchStrategy[Written]:
    def written(text: str) -> Written:
        escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
        return Written(f"'{escaped}'", text, text)

    return st.builds(written, pool)


TEXTS = st.text(st.sampled_from("ab%_\\'é;-\n "), max_size=4) | st.sampled_from(["5", "10", "NULL", "a" * 40])


def _moments(zone: bool) -> st.SearchStrategy[Written]:
    def written(moment: datetime, mark: str, hours: int) -> Written:
        if not zone:
            return Written(f"{mark} '{moment.isoformat(' ')}'", moment, moment)
        there = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=hours)))
        return Written(f"'{there.isoformat(' ')}'", there, there)

    common = st.sampled_from([datetime(2026, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999)])  # noqa: DTZ001
    moments = common | st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1))  # noqa: DTZ001
    finer = Written("'2026-01-01 00:00:00.0000001'", BAD, compares=False)
    return st.builds(written, moments, st.sampled_from(["", "TIMESTAMP"]), st.integers(-12, 12)) | st.just(finer)


LITERALS: dict[type[IcebergType], Callable[[Any], st.SearchStrategy[Written]]] = {
    BooleanType: lambda _: st.booleans().map(lambda b: Written(str(b).upper(), b, b)),
    IntegerType: _exact,
    LongType: _exact,
    DecimalType: _exact,
    FloatType: _floating,
    DoubleType: _floating,
    StringType: lambda _: _text(TEXTS),
    DateType: lambda _: (
        (st.dates() | st.sampled_from([date(1970, 1, 1), date(1969, 12, 31)])).map(
            lambda d: Written(f"DATE '{d}'", d, d)
        )
        | st.just(Written("'2026-02-30'", BAD, compares=False))
    ),
    TimeType: lambda _: st.times().map(lambda t: Written(f"'{t.isoformat()}'", t, t)),
    TimestampType: lambda _: _moments(False),
    TimestamptzType: lambda _: _moments(True),
    BinaryType: lambda _: st.binary(max_size=3).map(lambda b: Written(f"X'{b.hex()}'", b, b)),
    FixedType: lambda _: (
        st.binary(min_size=2, max_size=2).map(lambda b: Written(f"X'{b.hex()}'", b, b))
        | st.just(Written("X'00'", BAD, compares=False))
    ),
    UUIDType: lambda _: st.uuids().map(lambda u: Written(f"'{u}'", u, u.bytes)),
}

KINDS = st.one_of(
    st.sampled_from([kind(2) if kind is FixedType else kind() for kind in LITERALS if kind is not DecimalType]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s))),
    st.just("list"),
    st.just("struct"),
)


def literals(kind: Any, *, required: bool) -> st.SearchStrategy[Written]:
    """Return literals for a column of *kind*."""
    if isinstance(kind, ListType):
        return st.lists(st.integers(0, 9), max_size=2).map(lambda v: Written(f"ARRAY({', '.join(map(str, v))})", v))
    if isinstance(kind, StructType):
        return st.integers(0, 9).map(lambda v: Written(f"NAMED_STRUCT('y', {v})", {"y": v}))
    found = LITERALS[type(kind)](kind)
    null = Written("NULL", BAD if required else None)
    return st.one_of(found, found, found, st.just(null))


# WHERE.


@dataclass(frozen=True)
class Where:
    """A condition, as text and as the model has it."""

    text: str
    of: Callable[[Row], Truth]
    valid: bool = True


def _order(value: Any) -> Any:
    """Return what orders *value*: NaN is above all."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    if not isinstance(value, float | Fraction):
        return value
    nan = isinstance(value, float) and math.isnan(value)
    return (nan, 0 if nan else value)


def _compare(operator: str, left: Any, right: Any) -> Truth:
    if left is None or right is None:
        return None
    left, right = _order(left), _order(right)
    found: dict[str, Callable[[], bool]] = {
        "=": lambda: left == right,
        "<>": lambda: left != right,
        "<": lambda: left < right,
        "<=": lambda: left <= right,
        ">": lambda: left > right,
        ">=": lambda: left >= right,
    }
    return bool(found[operator]())


def _and(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _like(text: str | None, pattern: str) -> Truth:
    if text is None:
        return None
    parts, at = [], 0
    while at < len(pattern):
        mark = pattern[at]
        if mark == "\\":
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"%": ".*", "_": "."}.get(mark, re.escape(mark)))
        at += 1
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


@st.composite
def leaves(draw: Any, columns: dict[str, NestedField]) -> Where:
    """Draw a comparison of one column."""
    name = draw(st.sampled_from(sorted(columns)))
    kind = columns[name].field_type
    shape = draw(st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">=", "null", "in", "between", "<=>", "like"]))
    if shape == "null" or not kind.is_primitive:
        negated = draw(st.booleans())
        return Where(f"{name} IS {'NOT ' * negated}NULL", lambda row: (row[name] is None) != negated)
    if isinstance(kind, BooleanType) and shape in {"<", "<=", ">", ">=", "between", "like"}:
        shape = "="
    if shape == "like":
        if not isinstance(kind, StringType):
            shape = "="
        else:
            pattern = draw(st.text(st.sampled_from("ab%_é"), max_size=3))
            return Where(f"{name} LIKE '{pattern}'", lambda row: _like(row[name], pattern))
    value = literals(kind, required=False)

    def size(written: Written) -> Any:
        return None if written.text == "NULL" else written.size

    if shape == "in":
        values = draw(st.lists(value, min_size=1, max_size=3))

        def contained(row: Row) -> Truth:
            found = [_compare("=", row[name], size(one)) for one in values]
            return True if True in found else None if None in found else False

        negated = draw(st.booleans())
        return Where(
            f"{name} {'NOT ' * negated}IN ({', '.join(one.text for one in values)})",
            lambda row: _not(contained(row)) if negated else contained(row),
            all(one.compares for one in values),
        )
    first, second = draw(value), draw(value)
    if shape == "between":
        return Where(
            f"{name} BETWEEN {first.text} AND {second.text}",
            lambda row: _and(_compare(">=", row[name], size(first)), _compare("<=", row[name], size(second))),
            first.compares and second.compares,
        )
    if shape == "<=>":

        def same(row: Row) -> Truth:
            if row[name] is None or size(first) is None:
                return row[name] is None and size(first) is None
            return _compare("=", row[name], size(first))

        return Where(f"{name} <=> {first.text}", same, first.compares)
    return Where(f"{name} {shape} {first.text}", lambda row: _compare(shape, row[name], size(first)), first.compares)


def conditions(columns: dict[str, NestedField]) -> st.SearchStrategy[Where]:
    """Return trees of comparisons."""

    def joined(inner: st.SearchStrategy[Where]) -> st.SearchStrategy[Where]:
        return st.one_of(
            st.builds(
                lambda a, b: Where(f"({a.text} AND {b.text})", lambda r: _and(a.of(r), b.of(r)), a.valid and b.valid),
                inner,
                inner,
            ),
            st.builds(
                lambda a, b: Where(
                    f"({a.text} OR {b.text})",
                    lambda r: _not(_and(_not(a.of(r)), _not(b.of(r)))),
                    a.valid and b.valid,
                ),
                inner,
                inner,
            ),
            inner.map(lambda a: Where(f"NOT ({a.text})", lambda r: _not(a.of(r)), a.valid)),
        )

    return st.recursive(leaves(columns), joined, max_leaves=4)


# Tables.


class Modelled:
    """A table, and what must be in it."""

    def __init__(self, made: Kit, data: Any) -> None:
        self.made, self.data = made, data
        self.session = Session(made.catalog, database=made.namespace)
        self.name = made.identifier()
        ids = iter(range(100, 200))
        fields = [NestedField(1, "k", LongType(), required=True), NestedField(2, "p", StringType())]
        for number in range(data.draw(st.integers(1, 3))):
            kind = data.draw(KINDS)
            if kind == "list":
                kind = ListType(next(ids), IntegerType(), element_required=data.draw(st.booleans()))
            elif kind == "struct":
                kind = StructType(NestedField(next(ids), "y", IntegerType(), required=data.draw(st.booleans())))
            fields.append(NestedField(3 + number, f"c{number}", kind, required=data.draw(st.booleans())))
        self.by = data.draw(st.sampled_from(["", "p", "bucket"]))
        spec = {
            "": PartitionSpec(),
            "p": PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")),
            "bucket": PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "k_bucket")),
        }[self.by]
        self.table = made.catalog.create_table(self.name, Schema(*fields), partition_spec=spec)
        self.rows: list[Row] = []
        note(f"CREATE {self.table.schema()} partitioned by {spec}")

    @property
    def columns(self) -> dict[str, NestedField]:
        """Return the columns by name."""
        return {field.name: field for field in self.table.schema().fields}

    def step(self) -> None:
        """Do something to the table, and compare."""
        actions = [self.insert, self.insert, self.copy, self.update, self.delete, self.select, self.swap, self.add]
        self.data.draw(st.sampled_from(actions + ([self.replace] if self.by != "bucket" else [])))()
        scanned = self.made.stock.load_table(self.name).scan().to_arrow().to_pylist()
        assert _plain(scanned) == _plain(self.rows)

    def run(self, text: str, *, valid: bool) -> list[tuple[Any, ...]] | None:
        """Return the answer of a statement; None where it has to be refused, and is."""
        note(text)
        if valid:
            return list(self.session.run(text).rows)
        with pytest.raises(StatementError):
            self.session.run(text)
        return None

    def where(self) -> Where:
        """Draw a condition."""
        found: Where = self.data.draw(conditions(self.columns))
        return found

    def matching(self, where: Where) -> list[Row]:
        """Return the rows for which it is true."""
        return [row for row in self.rows if where.of(row) is True] if where.valid else []

    def insert(self) -> None:
        """INSERT VALUES."""
        rows = [
            {
                name: self.data.draw(literals(field.field_type, required=field.required))
                for name, field in self.columns.items()
            }
            for _ in range(self.data.draw(st.integers(1, 3)))
        ]
        text = ", ".join(f"({', '.join(one.text for one in row.values())})" for row in rows)
        valid = all(one.value is not BAD for row in rows for one in row.values())
        if self.run(f"INSERT INTO {self.name[1]} VALUES {text}", valid=valid) is not None:
            self.rows += [{name: one.value for name, one in row.items()} for row in rows]

    def copy(self) -> None:
        """INSERT INTO t SELECT ... FROM t."""
        where = self.where()
        text = f"INSERT INTO {self.name[1]} SELECT * FROM {self.name[1]} WHERE {where.text}"
        if self.run(text, valid=where.valid) is not None:
            self.rows += [dict(row) for row in self.matching(where)]

    def replace(self) -> None:
        """INSERT OVERWRITE t SELECT ... FROM t: the table, or the partitions that the rows lie in."""
        where = self.where()
        text = f"INSERT OVERWRITE {self.name[1]} SELECT * FROM {self.name[1]} WHERE {where.text}"
        if self.run(text, valid=where.valid) is None:
            return
        found = self.matching(where)
        touched = {row["p"] for row in found}
        self.rows = found + [row for row in self.rows if self.by == "p" and row["p"] not in touched]

    def update(self) -> None:
        """UPDATE."""
        where, name = self.where(), self.data.draw(st.sampled_from(sorted(self.columns)))
        field = self.columns[name]
        new = self.data.draw(literals(field.field_type, required=field.required))
        valid = where.valid and new.value is not BAD
        text = f"UPDATE {self.name[1]} SET {name} = {new.text} WHERE {where.text}"
        answer = self.run(text, valid=valid)
        if answer is not None:
            matching = self.matching(where)
            assert answer[0][0].startswith(f"{len(matching)} rows")
            for row in matching:
                row[name] = new.value

    def delete(self) -> None:
        """DELETE."""
        where = self.where()
        answer = self.run(f"DELETE FROM {self.name[1]} WHERE {where.text}", valid=where.valid)
        if answer is not None:
            doomed = self.matching(where)
            assert answer[0][0].startswith(f"{len(doomed)} rows")
            self.rows = [row for row in self.rows if not any(row is one for one in doomed)]

    def select(self) -> None:
        """SELECT."""
        where = self.where()
        found = self.run(f"SELECT * FROM {self.name[1]} WHERE {where.text}", valid=where.valid)
        if found is not None:
            assert _plain([dict(zip(self.columns, row, strict=True)) for row in found]) == _plain(self.matching(where))

    def swap(self) -> None:
        """Two columns swap their names, by another client; p and k keep theirs."""
        names = [name for name in self.columns if name.startswith("c")]
        if len(names) < 2:
            return
        first, second, *_ = self.data.draw(st.permutations(names))
        note(f"swap {first} and {second}")
        other = self.made.catalog.load_table(self.name)
        with other.transaction() as tx:
            for old, new in ((first, "tmp"), (second, first), ("tmp", second)):
                with tx.update_schema() as update:
                    update.rename_column(old, new)
        for row in self.rows:
            row[first], row[second] = row[second], row[first]
        self.table.refresh()

    def add(self) -> None:
        """A column is added, by another client."""
        name = f"c{len(self.columns)}"
        other = self.made.catalog.load_table(self.name)
        with other.update_schema() as update:
            update.add_column(name, self.data.draw(st.sampled_from([LongType(), StringType(), DecimalType(20, 3)])))
        note(f"add {name}")
        for row in self.rows:
            row[name] = None
        self.table.refresh()


def _plain(rows: list[Row]) -> list[str]:
    """Return rows so that they can be compared, in whatever order."""

    def plain(value: Any) -> Any:
        match value:
            case Decimal() | int() if not isinstance(value, bool):
                return Fraction(value)
            case datetime() if value.tzinfo is not None:
                return value.astimezone(UTC).isoformat()
            case datetime() | date() | time():
                return value.isoformat()
            case uuid.UUID():
                return str(value)
            case dict():
                return {key: plain(item) for key, item in value.items()}
            case list():
                return [plain(item) for item in value]
        return value

    return sorted(repr({name: plain(row[name]) for name in sorted(row)}) for row in rows)


@pytest.fixture(scope="module")
def shared() -> Iterator[Kit]:
    """One catalog for all examples."""
    with kit("memory") as made:
        yield made


@settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_statements_leave_the_rows_that_a_model_has(shared: Kit, data: st.DataObject) -> None:
    table = Modelled(shared, data)
    table.insert()
    for _ in range(data.draw(st.integers(1, 5))):
        table.step()
