"""Commits of other protocols: their requirements decide on the head under the latch, whatever it was before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.types import LongType, NestedField

from tests.catalog.kit import SCHEMA, Kit, ids, row_ids


@pytest.fixture
def behind(memory: Kit, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Has the next commit request find the table as it is now, though it is elsewhere by then."""

    def hold_back(table: Any) -> None:
        seen = [memory.catalog.coordinator.load(table.name())]
        load = memory.catalog.coordinator.load
        monkeypatch.setattr(memory.catalog.coordinator, "load", lambda name: seen.pop() if seen else load(name))

    return hold_back


def test_what_others_do_meanwhile_is_kept(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table(properties={"a": "1"})
    behind(table)
    other = memory.open()
    other.load_table(table.name()).append(ids(1))
    committed = memory.catalog.commit_request(table.name(), (), (SetPropertiesUpdate(updates={"b": "2"}),))
    assert {"a": "1", "b": "2"}.items() <= committed.metadata.properties.items()
    assert [1] == row_ids(other.load_table(table.name()))
    other.close()


def test_a_schema_gets_the_next_id_of_the_head_that_it_lands_on(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table()
    behind(table)
    other = memory.open()
    with other.load_table(table.name()).update_schema() as update:
        update.add_column("theirs", LongType())
    other.close()
    wider = Schema(*SCHEMA.fields, NestedField(9, "mine", LongType()), schema_id=1)
    updates = (AddSchemaUpdate(schema_=wider), SetCurrentSchemaUpdate(schema_id=-1))
    committed = memory.catalog.commit_request(table.name(), (), updates)
    assert [0, 1, 2] == [schema.schema_id for schema in committed.metadata.schemas]
    assert ["id", "s", "mine"] == committed.metadata.schema().column_names


def test_a_requirement_that_fails_on_the_head_refuses(memory: Kit, behind: Callable[[Any], None]) -> None:
    table = memory.table()
    behind(table)
    other = memory.open()
    other.load_table(table.name()).append(ids(1))
    with other.load_table(table.name()).update_schema() as update:
        update.add_column("theirs", LongType())
    other.close()
    snapshot = Snapshot(
        snapshot_id=7, sequence_number=1, manifest_list="nowhere", summary=Summary(Operation.APPEND), schema_id=0
    )
    for requirement in (AssertRefSnapshotId(ref="main"), AssertCurrentSchemaId(current_schema_id=0)):
        with pytest.raises(CommitFailedException, match="Requirement failed"):
            memory.catalog.commit_request(table.name(), (requirement,), (AddSnapshotUpdate(snapshot=snapshot),))
    assert [1] == row_ids(memory.again(table))


def test_a_table_that_is_not_there_is_not_made(memory: Kit) -> None:
    with pytest.raises(NoSuchTableError):
        memory.catalog.commit_request(memory.identifier(), (), (SetPropertiesUpdate(updates={"a": "1"}),))


def test_a_table_below_two_namespaces_is_made_with_its_first_rows(memory: Kit) -> None:
    memory.catalog.create_namespace(("upper", "lower"))
    with memory.catalog.create_table_transaction(("upper", "lower", "t"), SCHEMA) as tx:
        tx.append(ids(1))
    assert [1] == row_ids(memory.catalog.load_table(("upper", "lower", "t")))
