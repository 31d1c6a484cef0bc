"""The oracle of rows finds what it was made for: each check fails on a table that is wrong in the way it looks for."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, LongType, NestedField, StringType, StructType, TimestampType

from commit_coord import load_catalog
from commit_coord.sql.grammar import parse
from commit_coord.sql.statement import (
    AddPartitions,
    Concatenate,
    CreateRef,
    DropPartitions,
    DropRef,
    ExpireSnapshots,
    Insert,
    RollBack,
    Truncate,
)
from commit_coord.testing.table_files.metadata import faults
from commit_coord.testing.table_files.observed import Files, Observed, local
from commit_coord.testing.table_files.state import Partition, State
from tests.proof.rows.clients import Clients
from tests.proof.rows.doing import NAMESPACE, Doing
from tests.proof.rows.findings import Finding
from tests.proof.rows.model.operations import DeleteValues
from tests.proof.rows.model.partition_clauses import lies_in, written
from tests.proof.rows.model.spellings import SPELLINGS, spelled
from tests.proof.rows.model.table_statements import (
    SqlAddPartition,
    SqlConcatenatePartition,
    SqlDropPartition,
    SqlDropRef,
    SqlExpire,
    SqlInsertPartition,
    SqlMakeRef,
    SqlRollback,
    SqlTruncatePartition,
)
from tests.proof.rows.neighbours import Neighbour
from tests.proof.rows.program import NEIGHBOURHOODS, Neighbourhood
from tests.proof.rows.snapshots_left import fault_of_expiry
from tests.proof.rows.statements import text_of

COLUMNS = Schema(NestedField(1, "k", LongType(), required=False), NestedField(2, "d", DateType(), required=False))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    with closing(load_catalog("judged", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")) as db:
        db.create_namespace(NAMESPACE)
        yield db


@pytest.fixture
def table(catalog: Any) -> Any:
    """Return a table with the rows 0, 1 and 2, each of a snapshot of its own."""
    made = catalog.create_table((NAMESPACE, "t"), COLUMNS)
    for number in range(3):
        made.append(pa.table({"k": pa.array([number], pa.int64()), "d": pa.array([None], pa.date32())}))
    return made


def seen(table: Any) -> Observed:
    return Observed(table.metadata_location, Files())


# Snapshots.


@pytest.mark.parametrize(
    "statement, taken, fault",
    [
        (SqlExpire("a", last=2), (2,), ""),
        (SqlExpire("a", last=2), (1,), "1 snapshots are gone that it does not name"),
        (SqlExpire("a", last=2), (), "it has left what it names"),
        (SqlExpire("a", last=1), (2,), "1 snapshots are left that it names"),
        (SqlExpire("a"), (1, 2), ""),
        (SqlExpire("a"), (1,), "1 snapshots are left that it names"),
        (SqlExpire("a", backs=(1,)), (1,), ""),
        (SqlExpire("a", backs=(1,)), (1, 2), "1 snapshots are gone that it does not name"),
    ],
)
def test_an_expiry_takes_what_it_names(table: Any, statement: SqlExpire, taken: tuple[int, ...], fault: str) -> None:
    """The snapshots in *taken* go, each so many behind the head."""
    before = seen(table)
    line = [entry.snapshot_id for entry in reversed(table.history())]
    if taken:
        table.maintenance.expire_snapshots().by_ids([line[back] for back in taken]).commit()
    assert fault_of_expiry(statement, before, seen(table)) == fault


def test_an_expiry_without_garbage_collection_is_found(table: Any) -> None:
    before = seen(table)
    before.raw.setdefault("properties", {})["gc.enabled"] = "false"
    table.maintenance.expire_snapshots().by_id(table.history()[0].snapshot_id).commit()
    assert "gc.enabled is false" in fault_of_expiry(SqlExpire("a"), before, seen(table))


# Statements.


def test_every_statement_can_be_typed(table: Any) -> None:
    """Ours parses each, with the spellings of its location."""
    clause = (("d", dt.date(2024, 2, 29)), ("k", None))
    statements: list[tuple[Any, type]] = [
        (SqlDropPartition("a", (clause, clause), lenient=True), DropPartitions),
        (SqlTruncatePartition("a", clause), Truncate),
        (SqlConcatenatePartition("a", clause), Concatenate),
        (SqlInsertPartition("a", clause, ("k",), ((1,), (None,)), overwrite=True), Insert),
        *((SqlAddPartition("a", clause, ({"k": 1},), "f", spelling), AddPartitions) for spelling in SPELLINGS),
        (SqlMakeRef("a", "r", "branch", back=1, lenient=True), CreateRef),
        (SqlMakeRef("a", "r", "tag", source="other"), CreateRef),
        (SqlDropRef("a", "r", "tag", lenient=True), DropRef),
        (SqlRollback("a", 1), RollBack),
        (SqlRollback("a", 1, timed=True), RollBack),
        (SqlExpire("a"), ExpireSnapshots),
        (SqlExpire("a", last=2), ExpireSnapshots),
        (SqlExpire("a", backs=(1, 2)), ExpireSnapshots),
    ]
    for one, kind in statements:
        assert isinstance(parse(text_of(one, table, spelled("/a/b", getattr(one, "spelling", "")))), kind)


def test_a_row_lies_in_the_partition_that_it_names() -> None:
    columns = StructType(
        NestedField(1, "t", TimestampType(), required=False), NestedField(2, "s", StringType(), required=False)
    )
    spec = (Partition(1, "hour", "t_hour"), Partition(2, "identity", "old"), Partition(1, "month", "t_month"))
    state = State("", columns, {}, spec=spec)
    row = ((1, dt.datetime(1969, 12, 31, 23, 59)), (2, "a"))  # noqa: DTZ001 - without a zone, as the column
    assert [written(one, row, columns) for one in spec] == ["1969-12-31-23", "a", "1969-12"]

    def lies(*clause: tuple[str, Any]) -> bool | None:
        test = lies_in(clause, state)
        return None if test is None else test(row)

    assert lies(("t_hour", "1969-12-31-23"), ("s", "a")) is True
    assert lies(("t_month", "1970-01")) is False
    assert lies(("old", None)) is False
    assert lies(("t", 1)) is None


# Rows that are deleted by value.


def test_rows_that_are_deleted_by_value_are_gone(tmp_path: Path) -> None:
    """As long as their file is older; NULL equals NULL."""
    with closing(SqlCatalog("stock", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")) as stock:
        stock.create_namespace(NAMESPACE)
        table = stock.create_table((NAMESPACE, "t"), COLUMNS)
        rows = pa.table({"k": [1, 2, None], "d": pa.array([None, None, None], pa.date32())})
        table.append(rows)
        before = seen(table)
        Doing(tmp_path, Files())(DeleteValues("s", ("k",), ({"k": 1}, {"k": None})), table)
        now = seen(table)
        assert list(faults(now, before)) == []
        assert now.state.of() == Counter({((1, 2),): 1})
        assert now.state.by_value
        table.append(rows)
        assert seen(table).state.of() == Counter({((1, 2),): 2, ((1, 1),): 1, (): 1})


# Locations.


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_location_has_many_spellings(spelling: Any) -> None:
    assert local(spelled("/a/b", spelling)).rstrip("/") == "/a/b"


@pytest.fixture
def next_table(request: Any, tmp_path: Path) -> Iterator[Neighbour]:
    where: Neighbourhood = request.param
    folder = tmp_path / "warehouse" / NAMESPACE / "t" / "i"
    with (
        closing(Clients(tmp_path, "off")) as clients,
        closing(Neighbour(clients.catalogs, where, folder, "t")) as made,
    ):
        yield made


@pytest.mark.parametrize("next_table", NEIGHBOURHOODS, indirect=True)
def test_a_neighbour_that_lost_a_file_is_found(next_table: Neighbour) -> None:
    next_table.grow("a")
    files = next_table.grow("b")
    next_table.judge()
    next_table.read()
    os.unlink(next(path for path in files if path.endswith(".parquet")))
    with pytest.raises(Finding, match="a neighbour lost files"):
        next_table.judge()
