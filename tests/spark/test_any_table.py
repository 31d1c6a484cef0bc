"""Any table, read in any session: what ``read_table`` returns is what was written, by field id.

A program makes a table, writes rows, and changes columns, partitions and schemas in between; a plain model keeps for
each row what was written under which field id. The whole table is compared with the model, row filters with stock
PyIceberg's scan, which goes by ids, and filters of DataFrames with Spark itself on rows that are in no file.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import expressions as E
from pyiceberg import types as I
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemoveSchemasUpdate
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from commit_coord.spark import compact_table, read_table, write_table
from commit_coord.spark.schema import bare_schema
from tests.spark.test_rows import settings

SETTINGS: dict[str, Sequence[str]] = {
    "spark.sql.parquet.enableVectorizedReader": ("true", "false"),
    "spark.sql.parquet.enableNestedColumnVectorizedReader": ("true", "false"),
    "spark.sql.parquet.filterPushdown": ("true", "false"),
    "spark.sql.parquet.recordLevelFilter.enabled": ("true", "false"),
    "spark.sql.parquet.fieldId.read.enabled": ("true", "false"),
    "spark.sql.parquet.writeLegacyFormat": ("true", "false"),
    "spark.sql.parquet.outputTimestampType": ("INT96", "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS"),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("LEGACY", "CORRECTED", "EXCEPTION"),
    "spark.sql.parquet.datetimeRebaseModeInWrite": ("LEGACY", "CORRECTED", "EXCEPTION"),
    "spark.sql.parquet.int96RebaseModeInRead": ("LEGACY", "CORRECTED", "EXCEPTION"),
    "spark.sql.sources.useV1SourceList": ("", "parquet", "avro,orc"),
    "spark.sql.optimizer.nestedSchemaPruning.enabled": ("true", "false"),
    "spark.sql.caseSensitive": ("true", "false"),
    "spark.sql.ansi.enabled": ("true", "false"),
    "spark.sql.session.timeZone": ("UTC", "America/St_Johns", "Asia/Kathmandu", "Australia/Lord_Howe"),
    "spark.sql.datetime.java8API.enabled": ("true", "false"),
    "spark.sql.legacy.timeParserPolicy": ("LEGACY", "CORRECTED"),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", "TIMESTAMP_NTZ"),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("true", "false"),
    "spark.sql.codegen.wholeStage": ("true", "false"),
    "spark.sql.execution.arrow.useLargeVarTypes": ("true", "false"),
}
NAMES = ("a", "b", "c", "d", "f1", "f2", "f3", "_hidden1", "_hidden2", "é /%", "A", "element", "key", "value")


def _micros(year: int, month: int, day: int, hour: int = 0) -> list[dt.datetime]:
    at = dt.datetime(year, month, day, hour, tzinfo=dt.UTC)
    return [at, at - dt.timedelta(microseconds=1)]


_TIMES = [
    *_micros(1582, 10, 10),
    *_micros(1900, 1, 1),
    *_micros(1, 1, 2),
    *_micros(1970, 1, 1),
    *_micros(2024, 3, 10, 7),
]
_DAYS = [dt.date(1, 1, 1), dt.date(1582, 10, 4), dt.date(1582, 10, 10), dt.date(1582, 10, 15), dt.date(1899, 12, 31)]
_DAYS += [dt.date(1970, 1, 1), dt.date(9999, 12, 31), dt.date(2024, 2, 29)]
_DOUBLES = [math.nan, -0.0, 0.0, math.inf, -math.inf, 1.5, -1.5, 5e-324]
POOLS: dict[type[I.IcebergType], Sequence[Any]] = {
    I.BooleanType: [True, False],
    I.IntegerType: [0, 1, -1, 2**31 - 1, -(2**31), 7],
    I.LongType: [0, 1, -1, 2**31, 2**63 - 1, -(2**63), 7],
    I.FloatType: [value for value in _DOUBLES if value != 5e-324],
    I.DoubleType: _DOUBLES,
    I.StringType: ["", "a", "%", "%2F/=", "a\0b", "😀", "é", "null", "z" * 300, "\n"],
    I.BinaryType: [b"", b"\0", b"\xff\xfe", b"abc"],
    I.DateType: _DAYS,
    I.TimestamptzType: _TIMES,
    I.TimestampType: [value.replace(tzinfo=None) for value in _TIMES],
}


def primitive(rng: random.Random) -> I.IcebergType:
    """Choose a type."""
    return rng.choice([*(kind() for kind in POOLS), I.DecimalType(9, 2), I.DecimalType(38, 10)])


class Program:
    """One table, its model and what is done to both.

    Args:
        rng: Chooses.
        spark: A session.
        catalog: Has no table ``db.t``.
    """

    def __init__(self, rng: random.Random, spark: SparkSession, catalog: Any) -> None:
        self.rng, self.spark, self.catalog = rng, spark, catalog
        self.rows: dict[int, dict[int, Any]] = {}
        self.said: list[str] = []
        self.next_id = 0
        self.table = catalog.create_table("db.t", Schema(I.NestedField(1, "id", I.LongType())))
        for _ in range(rng.randint(2, 4)):
            self.add_column()

    # Types and values.

    def type(self, depth: int = 0) -> I.IcebergType:
        """Choose a type, nested or not; PyIceberg gives it its ids."""
        rng = self.rng
        kind = rng.choice(("leaf", "leaf", "struct", "list", "map")) if depth < 2 else "leaf"
        if kind == "struct":
            names = rng.sample(NAMES[:4], rng.randint(1, 3))
            return I.StructType(
                *[
                    I.NestedField(n, name, self.type(depth + 1), required=rng.random() < 0.3)
                    for n, name in enumerate(names, 1)
                ]
            )
        if kind == "list":
            return I.ListType(1, self.type(depth + 1), element_required=False)
        if kind == "map":
            return I.MapType(1, I.StringType(), 2, self.type(depth + 1), value_required=False)
        return primitive(rng)

    def value(self, kind: I.IcebergType, *, nulls: bool, required: bool = False) -> Any:
        """Choose a value, structs as dictionaries by field id."""
        rng = self.rng
        if rng.random() < 0.25 and not required and (nulls or not isinstance(kind, I.ListType | I.MapType)):
            return None
        match kind:
            case I.StructType():
                return {f.field_id: self.value(f.field_type, nulls=nulls, required=f.required) for f in kind.fields}
            case I.ListType():
                return [self.value(kind.element_type, nulls=nulls) for _ in range(rng.randint(0, 2))]
            case I.MapType():
                keys = rng.sample(["", "k", "%", "é"], rng.randint(0, 2))
                return [(key, self.value(kind.value_type, nulls=nulls)) for key in keys]
            case I.DecimalType():
                top = 10**kind.precision - 1
                return Decimal(f"{rng.choice([0, 1, -1, top, -top])}e-{kind.scale}")
        return rng.choice(POOLS[type(kind)])

    # Steps.

    def write(self) -> None:
        """Write rows, by PyIceberg or by Spark. PyIceberg 0.12 writes a null list of structs as an empty one."""
        schema = self.table.schema()
        stock = self.rng.random() < 0.4
        new = {
            self.next_id + n: {
                f.field_id: self.value(f.field_type, nulls=not stock) for f in schema.fields if f.field_id != 1
            }
            for n in range(self.rng.randint(1, 6))
        }
        self.next_id += len(new)
        columns = [{"id": number, **_with_field_names(schema.as_struct(), row, 1)} for number, row in new.items()]
        rows = pa.Table.from_pylist(columns, schema=schema_to_pyarrow(schema, include_field_ids=False))
        self.said.append(f"{'append' if stock else 'write_table'} {columns}")
        if stock:
            self.table.append(rows)
        else:
            write_table(self.spark.createDataFrame(rows, bare_schema(schema)).coalesce(1), self.table)
        self.rows |= new

    def add_column(self) -> None:
        """Add a column, or a field of a struct."""
        if (parent := self.struct()) and self.rng.random() < 0.5:
            path = (*parent, self.rng.choice(NAMES[:4]))
        else:
            path = (self.rng.choice(NAMES),)
        self.evolve("add", path, self.type(len(path)))

    def rename(self) -> None:
        """Give a column a name, or that of another one, whose it gets."""
        old, new = self.path(), self.rng.choice(NAMES)
        if old is None:
            return
        taken = [f.name for f in self.table.schema().fields]
        if len(old) == 1 and new in taken and new != old[0]:
            for one, other in ((new, "swapped"), (old[0], new), ("swapped", old[0])):
                self.evolve("rename", (one,), other)
        else:
            self.evolve("rename", old, new)

    def drop(self) -> None:
        """Drop a column or a field of a struct; not its last one, since Arrow can't write structs of no field."""
        paths = [path for path, _ in _paths(self.table.schema().as_struct())]
        if (path := self.path()) and (len(path) == 1 or sum(one[:-1] == path[:-1] for one in paths) > 1):
            self.evolve("drop", path, None)

    def promote(self) -> None:
        """Widen a type."""
        for f in self.table.schema().fields[1:]:
            match f.field_type:
                case I.IntegerType():
                    self.evolve("promote", (f.name,), I.LongType())
                case I.FloatType():
                    self.evolve("promote", (f.name,), I.DoubleType())
                case I.DecimalType(precision=9):
                    self.evolve("promote", (f.name,), I.DecimalType(20, 2))

    def forget(self) -> None:
        """Remove old schemas."""
        old = [s.schema_id for s in self.table.metadata.schemas if s.schema_id != self.table.schema().schema_id]
        if old:
            self.said.append("forget schemas")
            self.catalog.commit_table(self.table, (), (RemoveSchemasUpdate(schema_ids=old),))
            self.table.refresh()

    def evolve(self, how: str, path: tuple[str, ...], what: Any) -> None:
        """Change the schema; what PyIceberg refuses (a name that is taken) is not done."""
        try:
            with self.table.update_schema() as update:
                match how:
                    case "add":
                        update.add_column(path, what)
                    case "rename":
                        update.rename_column(path, what)
                    case "drop":
                        update.delete_column(path)
                    case _:
                        update.update_column(path, what)
            self.said.append(f"{how} {path} {what}")
        except ValueError:
            pass
        self.table.refresh()

    def path(self) -> tuple[str, ...] | None:
        """Choose a column or a field of a struct, never ``id``."""
        found = [path for path, _ in _paths(self.table.schema().as_struct()) if path != ("id",)]
        return self.rng.choice(found) if found else None

    def struct(self) -> tuple[str, ...] | None:
        """Choose a struct."""
        found = [path for path, f in _paths(self.table.schema().as_struct()) if isinstance(f.field_type, I.StructType)]
        return self.rng.choice(found) if found else None

    # Questions.

    def predicates(self) -> Iterator[tuple[E.BooleanExpression, Any]]:
        """Yield the same condition for PyIceberg and for Spark."""
        fields = [
            (path, f)
            for path, f in _paths(self.table.schema().as_struct())
            if isinstance(f.field_type, I.PrimitiveType)
        ]
        for _ in range(4):
            path, f = self.rng.choice(fields)
            name, column = ".".join(path), F.col(".".join(f"`{part}`" for part in path))
            pool = POOLS.get(type(f.field_type), [Decimal(0).scaleb(-getattr(f.field_type, "scale", 0))])
            value = self.rng.choice(pool)
            if self.rng.random() < 0.3 or isinstance(f.field_type, I.BooleanType) or repr(value) == "nan":
                yield E.IsNull(term=name), column.isNull()
                continue
            if isinstance(f.field_type, I.DateType):
                ours = F.date_from_unix_date(F.lit((value - dt.date(1970, 1, 1)).days))
            elif isinstance(f.field_type, I.TimestamptzType | I.TimestampType):
                yield E.NotNull(term=name), column.isNotNull()
                continue
            else:
                ours = F.lit(value)
            stock, own = self.rng.choice(
                [(E.EqualTo, column == ours), (E.LessThan, column < ours), (E.GreaterThanOrEqual, column >= ours)]
            )
            yield stock(term=name, value=value), own

    def check(self) -> None:
        """Compare the whole table with the model, row filters with PyIceberg's, filters with Spark's own.

        Raises:
            AssertionError: A row is not as it was written.
        """
        table, schema = self.table.refresh(), self.table.schema()
        df = read_table(self.spark, table)
        found = df.toArrow()
        expected = {
            number: [_plain(f.field_type, row.get(f.field_id)) for f in schema.fields[1:]]
            for number, row in self.rows.items()
        }
        columns = [_read(f.field_type, c) for f, c in zip(schema.fields, found.columns, strict=True)]
        for number, *values in zip(*columns, strict=True):
            assert expected.pop(number) == values, number
        assert {} == expected
        folded = [tuple(name.lower() for name in path) for path, _ in _paths(schema.as_struct())]
        sure = len(set(folded)) == len(folded)  # else Spark finds neither of the two by its name
        in_memory = self.spark.createDataFrame(found, df.schema) if found.num_rows else df
        conditions = list(self.predicates())
        flags = in_memory.select("id", *[own.alias(f"q{n}") for n, (_, own) in enumerate(conditions)]) if sure else None
        flagged = flags.collect() if flags is not None else []
        asked: list[DataFrame] = []
        answers: list[set[int]] = []
        for number, (condition, own) in enumerate(conditions):
            asked.append(read_table(self.spark, table, row_filter=condition).select("id"))
            answers.append(set(table.scan(condition, selected_fields=("id",)).to_arrow()["id"].to_pylist()))
            if sure:
                asked.append(df.filter(own).select("id"))
                answers.append({row[0] for row in flagged if row[1 + number]})
            self.said.append(f"{condition} gives {[sorted(each) for each in answers[-2:]]}")
        together = reduce(DataFrame.unionAll, [q.withColumn("q", F.lit(n)) for n, q in enumerate(asked)])
        rows = together.collect()
        for number, wanted in enumerate(answers):
            assert wanted == {row.id for row in rows if row.q == number}, number


def _paths(struct: I.StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], I.NestedField]]:
    for f in struct.fields:
        yield (*above, f.name), f
        if isinstance(f.field_type, I.StructType):
            yield from _paths(f.field_type, (*above, f.name))


def _with_field_names(struct: I.StructType, value: dict[int, Any], skip: int = 0) -> dict[str, Any]:
    """Return a struct's value under names, as Arrow takes it."""

    def plain(kind: I.IcebergType, item: Any) -> Any:
        match kind, item:
            case _, None:
                return None
            case I.StructType(), _:
                return _with_field_names(kind, item)
            case I.ListType(), _:
                return [plain(kind.element_type, each) for each in item]
            case I.MapType(), _:
                return [(key, plain(kind.value_type, each)) for key, each in item]
        return item

    return {f.name: plain(f.field_type, value[f.field_id]) for f in struct.fields if f.field_id != skip}


def _plain(kind: I.IcebergType, value: Any) -> Any:
    """Return what is to be read of a value of the model: fields by their ids, in a form that can be compared."""
    match kind, value:
        case _, None:
            return None
        case I.StructType(), _:
            return [_plain(f.field_type, value.get(f.field_id)) for f in kind.fields]
        case I.ListType(), _:
            return [_plain(kind.element_type, each) for each in value]
        case I.MapType(), _:
            return sorted((key, repr(_plain(kind.value_type, each))) for key, each in value)
        case I.FloatType() | I.DoubleType(), _:
            return repr(value)
        case I.DecimalType(), _:
            return f"{value:f}"
    return value


def _read(kind: I.IcebergType, column: pa.ChunkedArray) -> list[Any]:
    return [_found(kind, value) for value in column.to_pylist()]


def _found(kind: I.IcebergType, value: Any) -> Any:
    """Return a value that was read in the form of :func:`_plain`."""
    match kind, value:
        case _, None:
            return None
        case I.StructType(), _:
            return [_found(f.field_type, value[f.name]) for f in kind.fields]
        case I.ListType(), _:
            return [_found(kind.element_type, each) for each in value]
        case I.MapType(), _:
            return sorted((key, repr(_found(kind.value_type, each))) for key, each in value)
        case I.TimestamptzType(), _:
            return value.astimezone(dt.UTC)
    return _plain(kind, value)


def run(seed: int, spark: SparkSession, catalog: Any) -> None:
    """Run the program of *seed*.

    Raises:
        AssertionError: It read something else than was written; with the program's steps.
    """
    rng = random.Random(seed)
    chosen = {"spark.sql.leafNodeDefaultParallelism": "1"}
    chosen |= {key: rng.choice(values) for key, values in SETTINGS.items() if rng.random() < 0.4}
    with settings(spark, **{key.replace(".", "__"): value for key, value in chosen.items()}):
        program = Program(rng, spark, catalog)
        try:
            program.write()
            for _ in range(rng.randint(2, 5)):
                rng.choice([program.rename, program.rename, program.drop, program.add_column, program.promote])()
            if rng.random() < 0.5:
                program.forget()
            program.write()
            program.check()
            if rng.random() < 0.3:
                program.said.append("compact")
                compact_table(spark, program.table)
                program.check()
        except Exception as error:
            error.add_note("\n".join([f"seed {seed}", str(chosen), *program.said, str(program.table.schema())]))
            raise
    catalog.drop_table("db.t")


@pytest.mark.parametrize("seed", range(6))
def test_any_table_is_read_as_it_was_written(spark: SparkSession, catalog: Any, seed: int) -> None:
    run(seed, spark, catalog)


@pytest.mark.parametrize("new", [I.LongType(), I.StringType()], ids=str)
@pytest.mark.parametrize("below", ["", "element", "value"])
def test_a_name_in_a_struct_may_go_to_a_field_of_another_type(
    spark: SparkSession, catalog: Any, below: str, new: I.IcebergType
) -> None:
    struct = I.StructType(I.NestedField(5, "b", I.FloatType()), I.NestedField(6, "c", I.IntegerType()))
    kinds: dict[str, tuple[I.IcebergType, Any]] = {
        "": (struct, lambda value: value),
        "element": (I.ListType(8, struct, False), lambda value: [value]),
        "value": (I.MapType(8, I.StringType(), 9, struct, False), lambda value: {"k": value}),
    }
    kind, around = kinds[below]
    table = catalog.create_table("db.t", Schema(I.NestedField(1, "A", kind)))
    arrow = schema_to_pyarrow(table.schema(), include_field_ids=False)
    table.append(pa.Table.from_pylist([{"A": around({"b": 1.0, "c": 7})}], schema=arrow))
    place = ("A", below) if below else ("A",)
    with table.update_schema() as update:
        update.rename_column((*place, "c"), "x")
    with table.update_schema() as update:
        update.add_column((*place, "c"), new)
    (row,) = read_table(spark, table).collect()
    assert row.asDict(recursive=True) == {"A": around({"b": 1.0, "x": 7, "c": None})}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_tables_are_read_as_they_were_written(spark: SparkSession, catalog: Any) -> None:
    for seed in range(100, 400):
        run(seed, spark, catalog)
