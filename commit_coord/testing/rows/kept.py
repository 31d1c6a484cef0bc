"""Tables that programs leave behind, kept with the rows that the model expects, and engines that read them again.

``make rows-readers`` runs programs and keeps their tables in a folder. ``tables.jsonl`` has one line per table: its
metadata file, and *looks*: a condition and the rows that satisfy it, by column names. Then every engine reads every
table, each in one session, by a full scan and with each condition.

An engine has limits: what it can't read, or reads wrongly, whatever wrote the table. They are found by reading, and
named in ``LIMITS``. Each engine is asked for every table all the same; a difference is explained where a limit of the
engine says so, and counted. The last line sums it up, and one difference that nothing explains is a failure.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from commit_coord.local.maven import maven_jar
from commit_coord.testing.rows import limits, readers
from commit_coord.testing.rows.clients import Clients, clients
from commit_coord.testing.rows.findings import ALONE, Finding, Spoilt
from commit_coord.testing.rows.metadata import Files, Observed, local
from commit_coord.testing.rows.model import (
    Always,
    And,
    Compare,
    In,
    IsNull,
    Not,
    NotNull,
    Or,
    Row,
    State,
    Stated,
    Where,
    bound,
    canonical,
    columns_of,
    complete,
    constants,
    denied,
)
from commit_coord.testing.rows.program import Dice, View, mix, python, step, table, where
from commit_coord.testing.rows.readers import Bag, with_room
from commit_coord.testing.rows.run import Run

STEPS = (4, 12)
"""Of a program: at least and at most."""

_TABLES = "tables.jsonl"
_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


# What is kept.


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


def run_and_keep(folder: Path, seeds: Sequence[int]) -> tuple[int, list[str]]:
    """Run a program for each of *seeds* and keep their tables in *folder*; return how many there are, and findings.

    A program with a finding leaves none.
    """
    made, findings = 0, list[str]()
    with ExitStack() as stack:
        places: dict[str, Clients] = {}
        for seed in seeds:
            dice = Dice(seed)
            program, often = table(dice), mix(dice)
            if program.locks not in places:
                places[program.locks] = stack.enter_context(clients(program.locks, folder / program.locks))
            run = Run(places[program.locks], program)
            try:
                for _ in range(dice.number(*STEPS)):
                    run.step(step(dice, View(run.state, run.base, run.slots), often))
            except Spoilt:
                run.close()
            except Finding as found:
                run.close()
                if not found.kind.startswith(ALONE):
                    findings.append(f"seed {seed}: {found}")
            else:
                keep(folder, seed, run.head.location, run.state)
                made += 1
    return made, findings


def keep(folder: Path, seed: int, location: str, state: State) -> None:
    """Add a table, which the model says is in *state*, to those in *folder*."""
    fields = state.fields
    written = [
        {"where": repr(look.where), "rows": [_json(row, fields) for row in look.rows.elements()]}
        for look in looks(state, seed)
    ]
    line = json.dumps({"seed": seed, "metadata": location, "looks": written}, allow_nan=False)
    with (folder / _TABLES).open("a") as file:
        file.write(line + "\n")


def kept(folder: Path) -> Iterator[Kept]:
    """Yield the tables in *folder*."""
    for line in (folder / _TABLES).read_text().splitlines():
        said = json.loads(line)
        fields = Observed(said["metadata"], Files()).schema.as_struct()
        found = [
            Look(python(look["where"]), Counter(canonical(_value(row, fields), fields) for row in look["rows"]))
            for look in said["looks"]
        ]
        yield Kept(said["seed"], said["metadata"], found)


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
    "float": float,
    "double": float,
}


# Engines.

Engine = Callable[[Kept], Sequence[Bag]]
"""Answers each look at a table."""


def _by_reader(read: readers.Reader, table: Kept) -> Sequence[Bag]:
    return [read(table.location, table.schema, look.where) for look in table.looks]


def pyiceberg(stack: ExitStack) -> Engine:
    """Return PyIceberg's own scan, in a process that loads nothing of ours."""
    return partial(_by_reader, readers.pyiceberg)


def duckdb(stack: ExitStack) -> Engine:
    """Return DuckDB's extension."""
    return partial(_by_reader, readers.duckdb)


def _session(stack: ExitStack) -> Any:
    from pyspark.sql import SparkSession

    made = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.jars", str(maven_jar(_RUNTIME)))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    stack.callback(made.stop)
    return made


class _Jvm:
    """Iceberg's own reader in the JVM, ``IcebergGenerics``, without a Spark job."""

    def __init__(self, stack: ExitStack) -> None:
        session = _session(stack)
        self._iceberg = session._jvm.org.apache.iceberg
        self._files = self._iceberg.hadoop.HadoopFileIO(session._jsc.hadoopConfiguration())
        self._expressions = self._iceberg.expressions.Expressions

    def __call__(self, table: Kept) -> Sequence[Bag]:
        iceberg = self._iceberg
        opened = iceberg.BaseTable(iceberg.StaticTableOperations(table.location, self._files), "kept")
        # Rows leave the JVM in Avro: one call per row, and no type is lost.
        shown = iceberg.SchemaParser.fromJson(_optional(iceberg.SchemaParser.toJson(opened.schema())))
        encoder = iceberg.data.avro.IcebergEncoder(shown)
        avro: Any = json.loads(iceberg.avro.AvroSchemaUtil.convert(shown, "row").toString())
        shape, fields = fastavro.parse_schema(avro), table.schema.as_struct()

        def read(where: Where) -> Bag:
            found: Bag = Counter()
            rows = iceberg.data.IcebergGenerics.read(opened).where(self._expression(where, table.schema)).build()
            try:
                each = rows.iterator()
                while each.hasNext():
                    coded = encoder.encode(each.next())
                    start = coded.arrayOffset() + coded.position() + _AVRO_HEADER
                    data = io.BytesIO(bytes(coded.array())[start : coded.arrayOffset() + coded.limit()])
                    named: Any = fastavro.schemaless_reader(data, shape, None)
                    found[canonical(_from_avro(named, fields), fields)] += 1
            finally:
                rows.close()
            return found

        return [read(look.where) for look in table.looks]

    def _expression(self, where: Where, schema: Schema) -> Any:
        make = self._expressions
        match where:
            case Always():
                return make.alwaysTrue()
            case And(left=left, right=right):
                return getattr(make, "and")(self._expression(left, schema), self._expression(right, schema))
            case Or(left=left, right=right):
                return getattr(make, "or")(self._expression(left, schema), self._expression(right, schema))
            case Not(inner=inner):
                return self._negated(inner, schema)
            case IsNull(column=column):
                return make.isNull(column)
            case NotNull(column=column):
                return make.notNull(column)
            case In(column=column, values=values):
                found = [self._expression(Compare(column, "==", value), schema) for value in values]
                made = found[0]
                for one in found[1:]:
                    made = getattr(make, "or")(made, one)
                return made
            case Compare(column=column, op=op, value=value):
                return self._comparison(column, op, value)
        raise TypeError(where)

    def _negated(self, where: Where, schema: Schema) -> Any:
        """Return what is true where *where* is false: to Java, NOT is also true of NULL."""
        make = self._expressions
        match where:
            case Not(inner=inner):
                return self._expression(inner, schema)
            case And(left=left, right=right):
                return getattr(make, "or")(self._negated(left, schema), self._negated(right, schema))
            case Or(left=left, right=right):
                return getattr(make, "and")(self._negated(left, schema), self._negated(right, schema))
            case Compare(column=column) | In(column=column):
                there = make.notNull(column)
                return getattr(make, "and")(there, getattr(make, "not")(self._expression(where, schema)))
        return getattr(make, "not")(self._expression(where, schema))

    def _comparison(self, column: str, op: str, value: Any) -> Any:
        make = self._expressions
        found = getattr(make, _JAVA[op])(column, _java_literal(_signed(op, value)))
        if isinstance(value, float) and value == 0 and op == "==":
            found = getattr(make, "or")(make.equal(column, -0.0), found)
        if isinstance(value, float) and value == 0 and op == "!=":
            found = getattr(make, "and")(make.notEqual(column, 0.0), found)
        # To Java, NULL is less than any value, and NaN the greatest number.
        found = getattr(make, "and")(make.notNull(column), found)
        return getattr(make, "and")(make.notNaN(column), found) if isinstance(value, float) else found


def _optional(schema: str) -> str:
    """Return a schema in which nothing is required: what was required too late may be NULL in old rows."""
    for key in ("required", "element-required", "value-required"):
        schema = schema.replace(f'"{key}":true', f'"{key}":false')
    return schema


_AVRO_HEADER = 10
"""Bytes before a single Avro object: a mark and the fingerprint of its schema."""

_JAVA = {
    "==": "equal",
    "!=": "notEqual",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
}


def _signed(op: str, value: Any) -> Any:
    """Return *value*, a zero with the sign that takes both zeros for equal: to Iceberg, -0.0 precedes 0.0."""
    return (0.0 if op in {"==", "<=", ">"} else -0.0) if isinstance(value, float) and value == 0 else value


def _java_literal(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> Any:
    """Return a constant as both Iceberg and Spark read it from text; binary stays binary."""
    match value:
        case bytes():
            return bytearray(value)
        case date() | time_of_day():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
    return str(value)


def _from_avro(value: Any, kind: IcebergType) -> Any:
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _from_avro(value[f.name], f.field_type) for f in fields}
        case ListType():
            return [_from_avro(item, kind.element_type) for item in value]
        case MapType():
            pairs = value.items() if isinstance(value, Mapping) else ((one["key"], one["value"]) for one in value)
            return [(k, _from_avro(v, kind.value_type)) for k, v in pairs]
    # Avro has one timestamp; Iceberg's property beside it says whether it has a zone.
    return value.replace(tzinfo=None) if str(kind) == "timestamp" else value


class _Spark:
    """Spark's reader, vectorized, with conditions pushed down; one job per table."""

    def __init__(self, stack: ExitStack) -> None:
        self._session = _session(stack)

    def __call__(self, table: Kept) -> Sequence[Bag]:
        from pyspark.sql import functions

        data = self._session.read.format("iceberg").load(table.location)
        every = None
        for number, look in enumerate(table.looks):
            one = data.where(column(look.where, table.schema)).withColumn(_LOOK, functions.lit(number))
            every = one if every is None else every.unionAll(one)
        assert every is not None
        # Not toArrow(): it can't show a struct that is NULL and has a required field.
        fields = table.schema.as_struct()
        bags: list[Bag] = [Counter() for _ in table.looks]
        for row in every.collect():
            bags[row[_LOOK]][canonical(_from_spark(row.asDict(recursive=True), fields), fields)] += 1
        return bags


def _from_spark(value: Any, kind: IcebergType) -> Any:
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            return {f.name: _from_spark(value[f.name], f.field_type) for f in fields}
        case ListType():
            return [_from_spark(item, kind.element_type) for item in value]
        case MapType():
            return [(k, _from_spark(v, kind.value_type)) for k, v in value.items()]
    match str(kind):
        case "timestamptz":
            return value.astimezone(UTC)  # PySpark gives local time
        case "binary":
            return bytes(value)
    return value


_LOOK = "__look"


def column(where: Where, schema: Schema) -> Any:
    """Return *where* as Spark writes it."""
    from pyspark.sql import functions

    match where:
        case Always():
            return functions.lit(True)
        case And(left=left, right=right):
            return column(left, schema) & column(right, schema)
        case Or(left=left, right=right):
            return column(left, schema) | column(right, schema)
        case Not(inner=inner):
            return ~column(inner, schema)
        case Stated():
            raise TypeError(where)  # statements alone have it
    found, kind = functions.col(where.column), str(schema.find_type(where.column))
    match where:
        case IsNull():
            return found.isNull()
        case NotNull():
            return found.isNotNull()

    def constant(value: Any) -> Any:
        cast = str(with_room(schema.find_type(where.column), value))
        cast = {"long": "bigint", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}.get(cast, cast)
        return functions.lit(value if isinstance(value, bool | int) else _text(value)).cast(cast)

    if isinstance(where, In):
        made = found.isin(*map(constant, where.values))
        op, zero = "==", any(isinstance(value, float) and value == 0 for value in where.values)
    else:
        op, zero = where.op, isinstance(where.value, float) and where.value == 0
        made = _SPARK[op](found, constant(_signed(op, where.value)))
    if zero and op == "==":
        made = made | (found == constant(-0.0)) | (found == constant(0.0))
    # To Spark, NaN is the greatest number, and equal to itself.
    return ~functions.isnan(found) & made if kind in {"float", "double"} else made


_SPARK: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}

ENGINES: dict[str, Callable[[ExitStack], Engine]] = {
    "pyiceberg": pyiceberg,
    "duckdb": duckdb,
    "jvm": _Jvm,
    "spark": _Spark,
}


# Limits.

Limit = Callable[[Kept, Look], Iterator[str]]
"""Yields why an engine can't answer a look, whatever wrote the table."""


def _any_limit(table: Kept, look: Look) -> Iterator[str]:
    fields = table.schema.as_struct()
    if not all(complete(row, fields) for row in table.looks[0].rows):
        # It wrote for columns that were optional when it looked. What is ours is refused there: the oracle judges that.
        yield "a late client of PyIceberg's left a required value out: readers show 0, or find no NULL"


def _java_limit(table: Kept, look: Look) -> Iterator[str]:
    schema = table.schema
    for spec in table.observed.specs.values():
        for p in spec:
            if any(f.name == p.name and f.field_id != p.source for f in schema.fields):
                yield "a late client of PyIceberg's gave a column the name of another one's partition: not opened"


def _jvm_limit(table: Kept, look: Look) -> Iterator[str]:
    yield from _java_limit(table, look)
    # IcebergGenerics counts columns instead, and finds no nested ones; Spark's reader does use the mapping.
    if any(not _has_ids(path) for path in table.files):
        yield "files without field ids: IcebergGenerics does not ask the name mapping"
    yield from _float_limit(table, look)


def _has_ids(path: str) -> bool:
    return all((f.metadata or {}).get(b"PARQUET:field_id") for f in pq.read_schema(path))


def _float_limit(table: Kept, look: Look) -> Iterator[str]:
    # A double constant beyond a float's range stands above or below all of its values, and so is infinity.
    floats = any(str(table.schema.find_type(column)) == "float" for column in columns_of(look.where))
    if floats and any(isinstance(value, float) and math.isinf(value) for value in constants(look.where)):
        yield "an infinite constant for a float: taken for out of range"


def _pyiceberg_limit(table: Kept, look: Look) -> Iterator[str]:
    schema = table.schema
    for column in schema.fields:
        kind = column.field_type
        inside = kind.element_type if isinstance(kind, ListType) else getattr(kind, "value_type", None)
        if isinstance(inside, StructType) and any(column.field_id not in dict(row) for row in look.rows):
            yield "a list or map of structs that is NULL: it is shown as empty"
    yield from limits.pyiceberg(table.observed, look.where)


def _spark_limit(table: Kept, look: Look) -> Iterator[str]:
    yield from _java_limit(table, look)
    if any(str(kind) == "time" for kind in _kinds(table.schema)):
        yield "a time of day: Spark has no such type"
    elif any(str(kind) == "time" for schema in table.observed.schemas.values() for kind in _kinds(schema)):
        yield "a time of day that was dropped: its reader stumbles over the column in old files"
    identities = {p.source for spec in table.observed.specs.values() for p in spec if p.transform == "identity"}
    partitions = {f.name for f in table.schema.fields if f.field_id in identities}
    if isinstance(look.where, Or) and columns_of(look.where) <= partitions and denied(look.where):
        yield "!= or another condition, all on columns that a spec partitions by: it is taken for true of NULL"


def _kinds(schema: Schema) -> Iterator[IcebergType]:
    return (schema.find_type(key) for key in schema.field_ids)


LIMITS: dict[str, Limit] = {
    "pyiceberg": _pyiceberg_limit,
    "duckdb": lambda table, look: limits.duckdb(table.observed, look.where),
    "jvm": _jvm_limit,
    "spark": _spark_limit,
}


def limit(name: str, table: Kept, look: Look, answer: Bag | Exception) -> str:
    """Return why the engine of that name can't answer *look* otherwise; "" if it can."""
    found = next(itertools.chain(LIMITS[name](table, look), _any_limit(table, look)), "")
    return found or (limits.known(name, answer) if isinstance(answer, Exception) else "")


# Reading all of them.


@dataclass
class Tally:
    """What came of reading tables with one engine.

    Args:
        tables: How many it was asked for.
        whole: Of these, on which it agreed with the model in every look.
        looks: How many there were.
        agreed: Looks in which it agreed.
        explained: Differences, and looks that it refused, by the limit of the engine that explains them.
        unexplained: Differences that nothing explains.
    """

    tables: int = 0
    whole: int = 0
    looks: int = 0
    agreed: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return it as lines."""
        said = (
            f"{self.tables:,} tables, {self.whole:,} of them as the model says in every look; {self.looks:,} looks, "
            f"{self.agreed:,} agree, {self.explained.total():,} are explained, {len(self.unexplained):,} are not"
        )
        return "\n".join([said, *(f"    {number:,} {reason}" for reason, number in self.explained.most_common())])


def compare(name: str, engine: Engine, table: Kept, tally: Tally) -> None:
    """Have *engine* answer every look at a table, and add to *tally* what differs from the model."""
    agreed = 0
    for look, answer in _answers(engine, table):
        if answer == look.rows:
            agreed += 1
        elif reason := limit(name, table, look, answer):
            tally.explained[reason] += 1
        else:
            tally.unexplained.append(f"{name}: seed {table.seed}, {table.location}: {_different(look, answer)}")
    tally.tables += 1
    tally.looks += len(table.looks)
    tally.agreed += agreed
    tally.whole += agreed == len(table.looks)


def _answers(engine: Engine, table: Kept) -> Iterator[tuple[Look, Bag | Exception]]:
    """Yield what *engine* answers to each look: rows or an error."""
    try:
        yield from zip(table.looks, engine(table), strict=True)
    except Exception as error:  # noqa: BLE001 - that it can't read the table is what is looked for
        if len(table.looks) == 1:
            yield table.looks[0], error
            return
        for look in table.looks:  # one by one: some of them it can answer
            yield from _answers(engine, replace(table, looks=[look]))


def _different(look: Look, answer: Bag | Exception) -> str:
    if isinstance(answer, Exception):
        return f"{look.where} can't be read: {type(answer).__name__}: {str(answer)[:500]}"
    return f"{look.where}: missing {_few(look.rows - answer)}, not expected {_few(answer - look.rows)}"


def _few(rows: Bag) -> str:
    some: list[Row] = list(rows.elements())
    return f"{some[:3]} of {len(some)}" if some else "nothing"


def read_all(folder: Path, names: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Read every table in *folder* with the engines of these names.

    Returns:
        How many differences nothing explains.
    """
    tallies: dict[str, Tally] = {}
    for name in names:
        began = time.monotonic()
        tally = tallies[name] = Tally()
        with ExitStack() as stack:
            engine = ENGINES[name](stack)
            for table in kept(folder):
                told = len(tally.unexplained)
                compare(name, engine, table, tally)
                for different in tally.unexplained[told:]:
                    say(different)
        say(f"{name}: {tally} ({time.monotonic() - began:.0f} s)")
    unexplained = sum(len(tally.unexplained) for tally in tallies.values())
    say(
        f"{max((tally.tables for tally in tallies.values()), default=0):,} tables, {len(names)} readers "
        f"({', '.join(names)}): {sum(tally.agreed for tally in tallies.values()):,} looks agree with the model, "
        f"{sum(tally.explained.total() for tally in tallies.values()):,} are explained by a limit of the reader, "
        f"{unexplained:,} are not explained"
    )
    return unexplained


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when all engines read what the model expects."""
    parser = argparse.ArgumentParser(prog="make rows-readers", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the tables; those that are in it already are read again")
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next one has the next seed")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--engine", choices=sorted(ENGINES), action="append", help="instead of all")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    findings: list[str] = []
    if not (options.folder / _TABLES).exists():
        made, findings = run_and_keep(options.folder.absolute(), range(options.seed, options.seed + options.runs))
        print(*findings, f"{options.runs:,} programs left {made:,} tables", sep="\n", flush=True)
    unread = read_all(options.folder, options.engine or list(ENGINES))
    return 1 if findings or unread else 0


if __name__ == "__main__":
    sys.exit(main())
