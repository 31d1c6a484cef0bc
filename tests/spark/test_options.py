"""An option of the data source has its effect, or is refused. None is ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from commit_coord.errors import ConfigError
from commit_coord.spark import datasource as ds
from commit_coord.spark.options import OPERATIONS, OPTIONS

SCHEMA = T.StructType([T.StructField("id", T.LongType())])
ROWS = pa.table({"id": [5]})


class Looked(dict[str, str]):
    """Options that know which of them somebody looked at."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self.keys_looked_at: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_looked_at.add(key)
        return super().get(key, default)


def read(source: ds.CommitCoordDataSource) -> None:
    source.reader(source.schema()).partitions()


def written(source: ds.CommitCoordDataSource, overwrite: bool) -> None:
    writer: Any = source.writer(SCHEMA, overwrite)
    writer.commit([writer.write(iter(ROWS.to_batches()))])


def streamed(source: ds.CommitCoordDataSource) -> None:
    writer = source.streamWriter(SCHEMA, False)
    message = writer.write(iter(ROWS.to_batches()))
    message.query_id = "q"
    writer.commit([message], 0)


DONE: dict[str, Callable[[ds.CommitCoordDataSource], None]] = {
    "a read": read,
    "an append": lambda source: written(source, False),
    "an overwrite": lambda source: written(source, True),
    "a stream": streamed,
}


@pytest.fixture
def table(catalog: Any) -> Any:
    """A table of one row, partitioned."""
    made = catalog.create_table("db.t", schema=ROWS.schema)
    with made.update_spec() as spec:
        spec.add_identity("id")
    made.append(ROWS)
    return made


@pytest.fixture
def given(table: Any, properties: dict[str, str]) -> dict[str, str]:
    """The options that every operation needs."""
    of_catalog = {f"catalog.{key}": value for key, value in properties.items()}
    return {"catalog": "test", "table": "db.t", "catalog.operation-locks": "off", **of_catalog}


def value_of(key: str, table: Any) -> dict[str, str]:
    """Return the option with a value that it may have, and what it needs beside it."""
    snapshot = str(table.metadata.current_snapshot_id)
    values: dict[str, dict[str, str]] = {
        "table": {"table": "db.t"},
        "path": {"path": "db.t"},
        "catalog": {"catalog": "test"},
        "catalog.…": {"catalog.lock.acquire-timeout-ms": "30000"},
        "branch": {"branch": "main"},
        "snapshot-id": {"snapshot-id": snapshot},
        "as-of-timestamp": {"as-of-timestamp": str(table.current_snapshot().timestamp_ms)},
        "row-filter": {"row-filter": "id = 5"},
        "overwrite-filter": {"overwrite-filter": "id = 5"},
        "overwrite-mode": {"overwrite-mode": "dynamic"},
        "reads": {"reads": "nothing"},
        "read-at": {"read-at": snapshot, "reads": "id = 5"},
        "request-id": {"request-id": "r"},
        "writer-id": {"writer-id": "w"},
        "checkpointlocation": {"checkpointlocation": "/checkpoint"},
        "queryname": {"queryname": "orders"},
    }
    return values[key]


@pytest.mark.parametrize("key", OPTIONS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_option_is_used_or_refused(table: Any, given: dict[str, str], key: str, operation: str) -> None:
    if key == "path":
        del given["table"]
    source = ds.CommitCoordDataSource(given | value_of(key, table))
    looked = Looked(dict(source._given.values))
    object.__setattr__(source._given, "values", looked)
    if OPERATIONS[operation].isdisjoint(OPTIONS[key][0].split(", ")):
        with pytest.raises(ConfigError, match=f"no meaning for {operation}") as refused:
            DONE[operation](source)
        assert key in str(refused.value)
        assert [5] == table.refresh().scan().to_arrow()["id"].to_pylist()
        return
    DONE[operation](source)
    of_spark = key in ("checkpointlocation", "queryname")  # and a catalog's properties are read all together
    assert of_spark or key in ("catalog.…", "catalog") or key in looked.keys_looked_at


@pytest.mark.parametrize("operation", OPERATIONS)
def test_two_tables_are_one_too_many(given: dict[str, str], operation: str) -> None:
    more = {"writer-id": "w"} if operation == "a stream" else {}
    with pytest.raises(ConfigError, match="two tables are named"):
        DONE[operation](ds.CommitCoordDataSource(given | {"path": "db.other"}))
    DONE[operation](ds.CommitCoordDataSource(given | {"path": "db.t"} | more))


@pytest.mark.parametrize("value", ["", "id = 5"])
def test_a_filter_of_an_overwrite_says_nothing_of_an_append(given: dict[str, str], value: str) -> None:
    with pytest.raises(ConfigError, match="no meaning for an append"):
        DONE["an append"](ds.CommitCoordDataSource(given | {"overwrite-filter": value}))


@pytest.mark.parametrize("without", ["partitions", "a partition that is not void", "partitions once it has its locks"])
def test_a_dynamic_overwrite_needs_partitions(catalog: Any, given: dict[str, str], without: str) -> None:
    """It would replace all rows."""
    name = "db.new"
    version = "1" if "void" in without else "2"
    table = catalog.create_table(name, schema=ROWS.schema, properties={"format-version": version})

    def drop_spec() -> None:
        with table.update_spec() as spec:
            spec.remove_field("id")

    if without != "partitions":
        with table.update_spec() as spec:
            spec.add_identity("id")
    if "void" in without:
        drop_spec()
    table.append(ROWS)

    class Held:
        def acquire(self, *_: Any) -> None:
            if "once" in without:
                drop_spec()

        def release(self, *_: Any) -> None:
            pass

    options = given | {"table": name, "overwrite-mode": "dynamic", "catalog.operation-locks": "iceberg"}
    holder: Any = Held()
    with pytest.raises(ConfigError, match="without partitions"):
        ds.CommitCoordDataSource(options, holder).writer(SCHEMA, True)
    assert [5] == table.refresh().scan().to_arrow()["id"].to_pylist()


def test_partitions_that_a_table_loses_before_the_commit_are_replaced_alone(table: Any, given: dict[str, str]) -> None:
    table.append(pa.table({"id": [6, 7]}))
    writer: Any = ds.CommitCoordDataSource(
        given | {"overwrite-mode": "dynamic", "reads": "nothing", "catalog.operation-locks": "off"}
    ).writer(SCHEMA, True)
    message = writer.write(iter(ROWS.to_batches()))
    with table.refresh().update_spec() as spec:
        spec.remove_field("id")
    writer.commit([message])
    assert [5, 6, 7] == sorted(table.refresh().scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("key", ["table", "branch", "writer-id", "checkpointlocation", "queryname", "catalog.uri"])
def test_each_stream_has_its_own_locks(given: dict[str, str], key: str) -> None:
    """The locks of another table, or of another branch, are not those of this stream."""
    one, same, other = (ds.Options(given | {key: value}) for value in ("a", "a", "b"))
    assert ds._stream_claim(one) == ds._stream_claim(same) != ds._stream_claim(other)


def test_a_stream_that_takes_locks_has_a_name(given: dict[str, str]) -> None:
    """Spark does not pass on the checkpoint that the session names."""
    held: set[str] = set()
    taken: list[str] = []

    class Held:
        def acquire(self, claim: str, *_: Any) -> None:
            held.add(claim)
            taken.append(claim)

        def release(self, claim: str) -> None:
            held.discard(claim)

    holder: Any = Held()
    options = given | {"catalog.operation-locks": "hive"}
    with pytest.raises(ConfigError, match="writer-id"):
        ds.CommitCoordDataSource(options, holder).streamWriter(SCHEMA, False)
    assert set() == held
    assert [] == taken, "it is refused before it waits for locks"
    ds.CommitCoordDataSource(options | {"queryname": "orders"}, holder).streamWriter(SCHEMA, False)
    assert 1 == len(held)


@pytest.mark.parametrize("rows", ["some rows", "no row"])
def test_a_filter_on_a_column_that_is_not_there_is_refused(catalog: Any, given: dict[str, str], rows: str) -> None:
    table = catalog.create_table("db.new", schema=ROWS.schema)
    if rows == "some rows":
        table.append(ROWS)
    source = ds.CommitCoordDataSource(given | {"table": "db.new", "row-filter": "nope = 1"})
    with pytest.raises(ValueError, match="nope"):
        source.reader(SCHEMA).partitions()
