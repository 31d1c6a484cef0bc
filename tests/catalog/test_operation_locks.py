"""What calls from Python lock, by the table of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from commit_coord.errors import LockTimeout
from commit_coord.events import Event, LockAcquired
from commit_coord.model import LockMode, Resource
from tests.catalog.kit import SCHEMA, Kit, ids, kit, row_ids

Call = Callable[[Kit, Any], object]


@pytest.fixture(params=["off", "iceberg", "hive"])
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog with the one or other ``operation-locks``."""
    with kit("memory", **{"operation-locks": request.param, "lock.acquire-timeout-ms": "300"}) as made:
        yield made
        assert [] == made.held()


def _add_column(made: Kit, table: Any) -> None:
    with table.update_schema() as update:
        update.add_column("more", LongType())


def _add_field(made: Kit, table: Any) -> None:
    with table.update_spec() as update:
        update.add_field("s", IdentityTransform(), "s")


def _in_one_transaction(made: Kit, table: Any) -> None:
    with table.transaction() as transaction:
        transaction.append(ids(7))
        transaction.delete("id = 7")


def _tag(made: Kit, table: Any) -> None:
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()


def _roll_back(made: Kit, table: Any) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()


def _expire(made: Kit, table: Any) -> None:
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()


def _create(made: Kit, table: Any) -> None:
    made.catalog.create_table((made.namespace, "new"), SCHEMA)


def _create_with_rows(made: Kit, table: Any) -> None:
    with made.catalog.create_table_transaction((made.namespace, "new"), SCHEMA) as transaction:
        transaction.append(ids(1))


# What is called, the first setting with which it takes locks, and which.
CALLS: dict[str, tuple[Call, str, str]] = {
    "append": (lambda made, table: table.append(ids(9)), "hive", "X db/t"),
    "overwrite": (lambda made, table: table.overwrite(ids(9), "id = 1"), "iceberg", "X db/t"),
    "delete": (lambda made, table: table.delete("id = 1"), "iceberg", "X db/t"),
    "upsert": (lambda made, table: table.upsert(ids(1, 9), join_cols=["id"]), "iceberg", "X db/t"),
    "append, then delete": (_in_one_transaction, "iceberg", "X db/t"),
    "properties": (
        lambda made, table: table.transaction().set_properties(a="b").commit_transaction(),
        "hive",
        "X db/t",
    ),
    "schema": (_add_column, "hive", "X db/t"),
    "partitions": (_add_field, "hive", "X db/t"),
    "tag": (_tag, "hive", "S db/t"),
    "roll back": (_roll_back, "hive", "X db/t"),
    "expire": (_expire, "hive", "S db/t"),
    "create table": (_create, "hive", "S db, X db/new"),
    "create table with rows": (_create_with_rows, "hive", "S db, X db/new"),
    "rename": (lambda made, table: made.catalog.rename_table(table.name(), ("db", "u")), "iceberg", "X db/t"),
    "drop": (lambda made, table: made.catalog.drop_table(table.name()), "iceberg", "X db/t"),
    "purge": (lambda made, table: made.catalog.purge_table(table.name()), "iceberg", "X db/t"),
    "create database": (lambda made, table: made.catalog.create_namespace("other"), "hive", "X other"),
    "drop database": (lambda made, table: made.catalog.drop_namespace("empty"), "hive", "X empty"),
}


@pytest.mark.parametrize("call, first, locks", CALLS.values(), ids=CALLS)
def test_a_call_takes_what_the_table_says(made: Kit, call: Call, first: str, locks: str) -> None:
    """Once, with the settings that the table names, and gives it back; with others it takes none."""
    made.catalog.create_namespace("empty")
    table = made.catalog.create_table((made.namespace, "t"), SCHEMA)
    for number in range(2):
        table.append(ids(number))
    taken: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, LockAcquired) and event.scope == "operation":
            taken.append(event.request)

    made.catalog.events.subscribe(note)
    call(made, table)
    settings = ["off", "iceberg", "hive"]
    takes = settings.index(made.properties["operation-locks"]) >= settings.index(first)
    assert ([locks] if takes else []) == taken


def test_a_builder_waits_for_its_lock_and_builds_on_what_is_there_then(made: Kit) -> None:
    """It was begun before somebody else's change, and committed after it."""
    table = made.table(ids(1))
    name = Resource.table(table.name())
    update = table.update_schema().add_column("mine", LongType())
    other = made.open()
    if made.properties["operation-locks"] == "hive":
        with (
            other.lock_operation({name: LockMode.SHARED}, statement="a report"),
            pytest.raises(LockTimeout, match="a report"),
        ):
            update.commit()
    with other.load_table(table.name()).update_schema() as theirs:
        theirs.add_column("theirs", LongType())
    update.commit()
    other.close()
    assert ["id", "s", "theirs", "mine"] == [field.name for field in made.again(table).schema().fields]
    assert [1] == row_ids(made.again(table))
