"""All evaluators of a row filter agree with the rows: none leaves out a match, and none takes another row.

A filter is evaluated for a file's bounds, its partition, and its rows. What it means is written down once, here: NOT
means the opposite condition, and only ``IS NULL`` is ever true of NULL.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import operator
from collections.abc import Callable
from ctypes import c_float
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions as E
from pyiceberg import transforms as X
from pyiceberg import types as T
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    residual_evaluator_of,
)
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile, write_manifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from commit_coord.iceberg.written import mark
from commit_coord.table.data_files import data_files
from commit_coord.table.deletion import without_matches
from tests.catalog.kit import unchecked_decimals
from tests.catalog.test_rows_by_partition import fitting

INF, NAN = math.inf, math.nan
LEAST, GREATEST = -(2**31), 2**31 - 1
MAX_FLOAT = 3.4028234663852886e38
ONE, TWO = UUID(int=1), UUID(int=2**127 + 3)
DAYS = [dt.date.fromisoformat(day) for day in ("0001-01-01", "1969-12-31", "1970-01-01", "2020-02-29", "9999-12-31")]
TIMES = [dt.datetime.fromisoformat(at) for at in ("1969-12-31 23:59:59.999999", "1970-01-01", "2020-02-29 13:00")]

SCHEMA = Schema(
    T.NestedField(1, "k", T.LongType()),
    T.NestedField(2, "i", T.IntegerType()),
    T.NestedField(3, "f", T.FloatType()),
    T.NestedField(4, "d", T.DoubleType()),
    T.NestedField(5, "s", T.StringType()),
    T.NestedField(6, "day", T.DateType()),
    T.NestedField(7, "ts", T.TimestampType()),
    T.NestedField(8, "b", T.BooleanType()),
    T.NestedField(9, "dec", T.DecimalType(9, 2)),
    T.NestedField(10, "u", T.UUIDType()),
    T.NestedField(
        11,
        "st",
        T.StructType(
            T.NestedField(12, "x", T.IntegerType()),
            T.NestedField(13, "r", T.LongType(), required=True),
            T.NestedField(14, "f", T.DoubleType()),
        ),
    ),
    T.NestedField(15, "req", T.IntegerType(), required=True),
    T.NestedField(16, "from_int", T.LongType()),
    T.NestedField(17, "from_float", T.DoubleType()),
    T.NestedField(18, "from_9_digits", T.DecimalType(18, 2)),
    T.NestedField(19, "short", T.DecimalType(3, 2)),
)
NARROW: dict[str, T.IcebergType] = {
    "from_int": T.IntegerType(),
    "from_float": T.FloatType(),
    "from_9_digits": T.DecimalType(9, 2),
}
"""What columns were before they were promoted."""
VALUES: dict[str, list[Any]] = {
    "i": [0, 1, 5, LEAST, GREATEST],
    "f": [0.0, -0.0, 0.1, 1.5, INF, -INF, NAN, MAX_FLOAT],
    "d": [0.0, -0.0, 1.5, INF, -INF, NAN, 1e300],
    "s": ["", "a", "ab", "b", "\U0001f600", "a" * 20],
    "day": DAYS,
    "ts": TIMES,
    "b": [True, False],
    "dec": [Decimal("1.50"), Decimal("-0.01"), Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("-9999999.90")],
    "short": [Decimal("1.50"), Decimal("-0.01"), Decimal("9.99"), Decimal("-9.99"), Decimal("-9.90")],
    "u": [ONE, TWO],
    "st.x": [1, 5],
    "st.r": [1, 5],
    "st.f": [0.0, -0.0, 1.5, NAN],
    "req": [1, 5],
    "from_int": [0, 5, LEAST, GREATEST],
    "from_float": [0.0, -0.0, 1.5, INF, -INF, NAN, MAX_FLOAT, -(2.0**-149)],
    "from_9_digits": [Decimal("1.50"), Decimal("-0.01"), Decimal("9999999.99"), Decimal("-9999999.99")],
}
BEYOND: dict[str, list[Any]] = {
    "i": [2**31, 2**31 + 1, LEAST - 1],
    "f": [1e300, -1e300],
    "s": ["aa", "c"],
    "dec": [Decimal("0.00"), Decimal("10000000.00"), Decimal("-10000000.00"), Decimal("-9999999.95")],
    "short": [Decimal("0.00"), Decimal("10.00"), Decimal("-10.00"), Decimal("-9.95")],
    "u": [UUID(int=0)],
    "st.x": [2**31, 3],
    "req": [2**31, LEAST - 1, 3],
    "from_int": [2**31, LEAST - 1, 2**63, 3],
    "from_float": [0.1, 1e300, -1e300, 5e-324, -5e-324, math.nextafter(1.5, 0), math.nextafter(1.5, 2), -1.5000000001],
    "from_9_digits": [
        Decimal("10000000.00"),
        Decimal("-10000000.00"),
        Decimal("1" + 16 * "0" + ".00"),
        Decimal("0.00"),
    ],
}
"""Constants that no row has, some of them beyond what the column can have."""


# What a filter means.


@dataclass(frozen=True)
class Leaf:
    """A condition on one column."""

    op: str
    column: str
    value: Any = None

    def expression(self) -> E.BooleanExpression:
        """Return it as PyIceberg has it."""
        made: Any = _EXPRESSIONS[self.op]
        if self.value is None:
            return made(self.column)  # type: ignore[no-any-return]
        if isinstance(self.value, tuple):
            return made(self.column, set(map(_written, self.value)))  # type: ignore[no-any-return]
        return made(self.column, _written(self.value))  # type: ignore[no-any-return]

    def holds(self, row: dict[str, Any], negated: bool = False) -> bool:
        """Return whether it is true of *row*, or whether its opposite is."""
        op = _OPPOSITE[self.op] if negated else self.op
        value: Any = row
        for name in self.column.split("."):
            value = value[name] if value is not None else None
        if op in ("null", "not null"):
            return (value is None) == (op == "null")
        if self.column == "f":  # the nearest number that the column can have, on both sides
            return value is not None and bool(_HOLDS[op](_short(value), _short(self.value)))
        return value is not None and bool(_HOLDS[op](value, self.value))


def _short(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_short, value))
    return c_float(value).value if isinstance(value, float) and abs(value) <= MAX_FLOAT else value


def _written(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.date) else value


_EXPRESSIONS: dict[str, Any] = {
    "==": E.EqualTo,
    "!=": E.NotEqualTo,
    "<": E.LessThan,
    ">=": E.GreaterThanOrEqual,
    ">": E.GreaterThan,
    "<=": E.LessThanOrEqual,
    "in": E.In,
    "not in": E.NotIn,
    "null": E.IsNull,
    "not null": E.NotNull,
    "nan": E.IsNaN,
    "not nan": E.NotNaN,
    "starts": E.StartsWith,
    "not starts": E.NotStartsWith,
}
_OPS = list(_EXPRESSIONS)
_OPPOSITE = {op: _OPS[place ^ 1] for place, op in enumerate(_OPS)}
_HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "in": lambda value, among: any(value == one for one in among),
    "not in": lambda value, among: all(value != one for one in among),
    "nan": lambda value, _: value != value,  # noqa: PLR0124
    "not nan": lambda value, _: value == value,  # noqa: PLR0124
    "starts": str.startswith,
    "not starts": lambda value, start: not value.startswith(start),
}


@dataclass(frozen=True)
class Node:
    """NOT, AND or OR of conditions."""

    op: str
    parts: tuple[Any, ...]

    def expression(self) -> E.BooleanExpression:
        """Return it as PyIceberg has it."""
        kinds: dict[str, Any] = {"not": E.Not, "and": E.And, "or": E.Or}
        return kinds[self.op](*(part.expression() for part in self.parts))  # type: ignore[no-any-return]

    def holds(self, row: dict[str, Any], negated: bool = False) -> bool:
        """Return whether it is true of *row*, or whether its opposite is."""
        if self.op == "not":
            return bool(self.parts[0].holds(row, not negated))
        both = (self.op == "and") != negated
        return (all if both else any)(part.holds(row, negated) for part in self.parts)


# What is drawn.


@st.composite
def leaves(draw: Any, columns: list[str]) -> Leaf:
    column = draw(st.sampled_from(columns))
    pool = BEYOND[column] if column in BEYOND and draw(st.booleans()) else VALUES[column]
    values = [value for value in pool if value == value]  # noqa: PLR0124
    kind = SCHEMA.find_type(column)
    ops = [*_OPS[:10], *(_OPS[10:12] if isinstance(kind, T.FloatType | T.DoubleType) else [])]
    op = draw(st.sampled_from([*ops, *(_OPS[12:] if isinstance(kind, T.StringType) else [])]))
    if op in ("in", "not in"):
        among = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        return Leaf(op, column, tuple(among))
    one_of = op in _OPS[:6] or op in _OPS[12:]
    return Leaf(op, column, draw(st.sampled_from(values)) if one_of else None)


@st.composite
def filters(draw: Any) -> list[Any]:
    """Return filters on a few columns: so they say much about each."""
    columns = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True))
    tree = st.recursive(
        leaves(columns),
        lambda inner: st.one_of(
            st.builds(lambda one: Node("not", (one,)), inner),
            st.builds(lambda op, *parts: Node(op, parts), st.sampled_from(["and", "or"]), inner, inner),
        ),
        max_leaves=4,
    )
    return draw(st.lists(tree, min_size=4, max_size=12))  # type: ignore[no-any-return]


@st.composite
def records(draw: Any) -> dict[str, Any]:
    row = {name: draw(st.sampled_from([*values, None])) for name, values in VALUES.items() if name in ALONE}
    row["req"] = draw(st.sampled_from(VALUES["req"]))
    parts = {name: draw(st.sampled_from([*VALUES[f"st.{name}"], None])) for name in ("x", "f")}
    row["st"] = draw(st.sampled_from([None, {**parts, "r": draw(st.sampled_from(VALUES["st.r"]))}]))
    return row


ALONE = [name for name in VALUES if "." not in name and name != "req"]
LATE = st.sets(st.sampled_from([*ALONE, "st", "st.x", "st.f"]), max_size=3)
"""Columns that were added to the table after its files were written."""


def of_files(schema: Schema, late: set[str], narrow: bool) -> Schema:
    """Return *schema* from before the columns *late* were added and, if *narrow*, from before some were promoted."""
    fields = without(schema.as_struct(), late).fields
    kinds = NARROW if narrow else {}
    return Schema(*(f.model_copy(update={"field_type": kinds.get(f.name, f.field_type)}) for f in fields))


def without(struct: T.StructType, late: set[str], around: str = "") -> T.StructType:
    """Return *struct* without the columns *late*."""
    kept = [field for field in struct.fields if around + field.name not in late]
    inner = [
        without(field.field_type, late, f"{around}{field.name}.")
        if isinstance(field.field_type, T.StructType)
        else field.field_type
        for field in kept
    ]
    return T.StructType(
        *(field.model_copy(update={"field_type": kind}) for field, kind in zip(kept, inner, strict=True))
    )


def of_old(value: Any, late: set[str], around: str = "") -> Any:
    """Return a row with NULL in the columns *late*."""
    if not isinstance(value, dict):
        return value
    return {
        name: None if around + name in late else of_old(inner, late, f"{around}{name}.")
        for name, inner in value.items()
    }


@st.composite
def specs(draw: Any) -> PartitionSpec:
    fields: list[PartitionField] = []
    for column in draw(st.lists(st.sampled_from(list(VALUES)), max_size=2, unique=True)):
        kind = cast(T.PrimitiveType, SCHEMA.find_type(column))
        transform = draw(st.sampled_from([X.IdentityTransform(), *fitting(kind), X.TruncateTransform(100)]))
        if transform.can_transform(kind):
            number = 1000 + len(fields)
            fields.append(PartitionField(SCHEMA.find_field(column).field_id, number, transform, f"p{number}"))
    return PartitionSpec(*fields)


METRICS = st.sampled_from(["none", "counts", "truncate(2)", "full"])


@dataclass(frozen=True)
class Written:
    """A table: the files of its one manifest as they are read from it, each with its rows."""

    metadata: TableMetadata
    manifest: ManifestFile
    files: list[tuple[DataFile, list[dict[str, Any]]]]


def written(
    folder: Path, spec: PartitionSpec, metrics: str, rows: list[dict[str, Any]], late: set[str], narrow: bool
) -> Written:
    metadata = new_table_metadata(
        SCHEMA, spec, UNSORTED_SORT_ORDER, f"file://{folder}", {"write.metadata.metrics.default": metrics}
    )
    sources = {SCHEMA.find_column_name(field.source_id) or "" for field in spec.fields}
    late = {name for name in late if not any(source == name or source.startswith(f"{name}.") for source in sources)}
    numbered = [{"k": number, **of_old(row, late)} for number, row in enumerate(rows)]
    plain = [{**row, "u": row["u"] and row["u"].bytes} for row in numbered]
    before = metadata.model_copy(update={"schemas": [of_files(metadata.schema(), late, narrow)]})
    table = pa.Table.from_pylist(plain, schema_to_pyarrow(before.schema()))
    files = list(data_files(before, table, IO, carried=True))  # as other engines write the least numbers
    mark(metadata, files)
    with unchecked_decimals():
        manifest = listed(metadata, files)
    found = [entry.data_file for entry in manifest.fetch_manifest_entry(IO)]
    return Written(
        metadata, manifest, [(file, [numbered[key] for key in sorted(keys(metadata, [file]))]) for file in found]
    )


def listed(metadata: TableMetadata, files: list[DataFile]) -> ManifestFile:
    """Return a manifest of *files*."""
    output = IO.new_output(f"{metadata.location}/{uuid4()}.avro")
    with write_manifest(2, metadata.spec(), metadata.schema(), output, 1, "null") as writer:
        for file in files:
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=1, data_file=file))
    manifest = writer.to_manifest_file()
    manifest.sequence_number = 1
    return manifest


IO = PyArrowFileIO()


def keys(metadata: TableMetadata, files: list[DataFile], condition: E.BooleanExpression | None = None) -> list[int]:
    """Return the keys of the rows in *files* that a scan shows."""
    mark(metadata, files)
    scan = ArrowScan(metadata, IO, metadata.schema(), condition if condition is not None else E.AlwaysTrue())
    found = scan.to_table([FileScanTask(file) for file in files])
    return sorted(found.column("k").to_pylist())


def check(table: Written, drawn: Any) -> None:
    """Raise unless every evaluator agrees with the rows."""
    metadata, files = table.metadata, table.files
    schema, spec, condition = metadata.schema(), metadata.spec(), drawn.expression()
    matches = {file.file_path: [row["k"] for row in rows if drawn.holds(row)] for file, rows in files}
    assert sorted(itertools.chain.from_iterable(matches.values())) == keys(
        metadata, [file for file, _ in files], condition
    ), condition
    strict = _StrictMetricsEvaluator(schema, condition).eval
    inclusive = _InclusiveMetricsEvaluator(schema, condition).eval
    partition_type = Schema(*spec.partition_type(schema).fields)
    projected = inclusive_projection(schema, spec)(condition)
    in_manifest = manifest_evaluator(spec, schema, projected, True)
    assert not any(matches.values()) or in_manifest(table.manifest), (condition, table)
    in_partition = expression_evaluator(partition_type, projected, True)
    for file, rows in files:
        here, told = matches[file.file_path], (condition, file.partition, rows)
        every = len(here) == len(rows)
        assert every or not strict(file), told
        assert not here or inclusive(file), told
        assert not here or in_partition(file.partition), told
        residual = residual_evaluator_of(spec, condition, True, schema).residual_for(file.partition)
        assert every or not isinstance(residual, E.AlwaysTrue), told
        assert not here or not isinstance(residual, E.AlwaysFalse), told
    tasks = [FileScanTask(file) for file, _ in files]
    rest = {old.file_path: new for old, new in without_matches(metadata, IO, tasks, condition, case_sensitive=True)}
    for file, rows in files:
        left = keys(metadata, rest.get(file.file_path, [file]))
        assert sorted(row["k"] for row in rows if row["k"] not in matches[file.file_path]) == left, (condition, rows)


@given(
    spec=specs(),
    metrics=METRICS,
    rows=st.lists(records(), min_size=1, max_size=6),
    drawn=filters(),
    late=LATE,
    narrow=st.booleans(),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_bounds_partitions_and_rows_agree_on_every_filter(
    tmp_path: Path,
    spec: PartitionSpec,
    metrics: str,
    rows: list[dict[str, Any]],
    drawn: list[Any],
    late: set[str],
    narrow: bool,
) -> None:
    table = written(tmp_path, spec, metrics, rows, late, narrow)
    for one in drawn:
        check(table, one)
