"""PyIceberg's own REST client, unmodified, in front of a coordinated catalog."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType

from tests.rest.kit import SCHEMA, Server, ids, row_ids

Name = tuple[str, str]


def test_a_table_is_created_appended_to_evolved_and_read_back(client: RestCatalog, name: Name) -> None:
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
    order = SortOrder(SortField(1, IdentityTransform()))
    table = client.create_table(name, SCHEMA, partition_spec=spec, sort_order=order, properties={"owner": "anna"})
    table.append(ids(1, 2))
    with table.update_schema() as update:
        update.add_column("more", IntegerType())
        update.rename_column("s", "text")
    table.delete("id == 2")
    with table.transaction() as tx:
        tx.set_properties({"owner": "berta"})
    found = client.load_table(name)
    assert [{"id": 1, "text": "1", "more": None}] == found.scan().to_arrow().to_pylist()
    assert {"owner": "berta"}.items() <= found.properties.items()
    assert ["s"] == [field.name for field in found.spec().fields]
    assert 1 == len(found.sort_order().fields)


def test_the_library_and_rest_clients_see_each_others_commits(server: Server, client: RestCatalog, name: Name) -> None:
    remote = client.create_table(name, SCHEMA)
    remote.append(ids(1))
    with server.library() as catalog:
        local = catalog.load_table(name)
        assert [1] == row_ids(local)
        local.append(ids(2))
    remote.refresh()
    remote.append(ids(3))
    with server.library() as catalog:
        assert [1, 2, 3] == row_ids(catalog.load_table(name))
    assert [1, 2, 3] == row_ids(client.load_table(name))


def test_every_snapshot_carries_the_request_id_of_its_commit(client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    table.append(ids(1))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["commit-coord.request-id"]


def test_a_table_is_created_with_rows_in_one_commit(client: RestCatalog, name: Name) -> None:
    with client.create_table_transaction(name, SCHEMA) as tx:
        assert not client.table_exists(name)
        tx.append(ids(1, 2))
    assert [1, 2] == row_ids(client.load_table(name))
    assert 1 == len(client.load_table(name).metadata.snapshots)


def test_of_two_staged_creations_one_wins(client: RestCatalog, name: Name) -> None:
    first, second = (client.create_table_transaction(name, SCHEMA) for _ in range(2))
    first.append(ids(1))
    second.append(ids(2))
    first.commit_transaction()
    with pytest.raises(CommitFailedException, match="Requirement failed: table already exists"):
        second.commit_transaction()
    assert [1] == row_ids(client.load_table(name))


def test_a_commit_on_a_branch_that_moved_is_refused(client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA, properties={"commit.retry.num-retries": "0"})
    stale = client.load_table(name)
    client.load_table(name).append(ids(1))
    with pytest.raises(CommitFailedException, match="Requirement failed: branch main was created concurrently"):
        stale.append(ids(2))
    assert [1] == row_ids(client.load_table(name))


def test_changes_that_do_not_touch_each_other_both_land(client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    stale = client.load_table(name)
    client.load_table(name).append(ids(1))
    with stale.transaction() as tx:
        tx.set_properties({"owner": "anna"})
    found = client.load_table(name)
    assert [1] == row_ids(found)
    assert "anna" == found.properties["owner"]


def test_two_clients_that_add_a_column_do_not_get_one_id(client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    stale = client.load_table(name)
    with client.load_table(name).update_schema() as update:
        update.add_column("mine", LongType())
    with (
        pytest.raises(CommitFailedException, match="Requirement failed: current schema changed: expected id 0 != 1"),
        stale.update_schema() as update,
    ):
        update.add_column("yours", LongType())
    assert ["id", "s", "mine"] == client.load_table(name).schema().column_names


def test_appends_of_many_threads_all_land(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA, properties={"commit.retry.num-retries": "100", "commit.retry.min-wait-ms": "5"})

    def append(number: int) -> None:
        server.client().load_table(name).append(ids(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(12)))
    assert list(range(12)) == row_ids(client.load_table(name))


@pytest.mark.parametrize("level", ["x y", "a+b", "ü", "q?r", "50%", "a/b", "'quoted'", "UPPER"])
def test_odd_names_come_back_as_they_were_given(client: RestCatalog, level: str) -> None:
    client.create_namespace((level,))
    assert (level,) in client.list_namespaces()
    assert client.namespace_exists((level,))
    location = f"file:///tmp/nowhere/{abs(hash(level))}"
    client.create_table((level, f"t {level}"), SCHEMA, location=location)
    assert [(level, f"t {level}")] == client.list_tables((level,))
    assert client.table_exists((level, f"t {level}"))
    client.drop_table((level, f"t {level}"))
    client.drop_namespace((level,))
    assert (level,) not in client.list_namespaces()


def test_namespaces_are_nested(client: RestCatalog) -> None:
    client.create_namespace(("outer", "inner", "core"), {"owner": "anna"})
    assert [("outer", "inner")] == client.list_namespaces(("outer",))
    assert [("outer", "inner", "core")] == client.list_namespaces(("outer", "inner"))
    table = client.create_table(("outer", "inner", "core", "t"), SCHEMA)
    table.append(ids(1))
    assert [1] == row_ids(client.load_table(("outer", "inner", "core", "t")))
    assert {"owner": "anna"} == client.load_namespace_properties(("outer", "inner", "core"))


def test_properties_of_a_namespace_are_set_and_removed(client: RestCatalog) -> None:
    client.create_namespace("props", {"a": "1", "b": "2"})
    done = client.update_namespace_properties("props", {"b", "gone"}, {"c": "3"})
    assert (["b"], ["c"], ["gone"]) == (done.removed, done.updated, done.missing)
    assert {"a": "1", "c": "3"} == client.load_namespace_properties("props")


def test_properties_of_a_namespace_are_sent_as_they_are_given(client: RestCatalog, named: Callable[[str], str]) -> None:
    name, given, more = named("typed"), {"a": 1, "b": True}, {"c": 1.5}
    client.create_namespace(name, given)
    client.update_namespace_properties(name, None, more)
    assert {"a": "1", "b": "true", "c": "1.5"} == client.load_namespace_properties(name)


@pytest.mark.parametrize("properties", [{"a": "1", "b": "2"}, {"a": "1"}, {}])
def test_a_namespace_stays_without_its_last_property(
    client: RestCatalog, named: Callable[[str], str], properties: dict[str, str]
) -> None:
    name = named("bare")
    client.create_namespace(name, properties)
    assert properties == client.load_namespace_properties(name)
    client.update_namespace_properties(name, {"a", "b", "exists"})
    assert {} == client.load_namespace_properties(name)
    assert (name,) in client.list_namespaces()
    client.update_namespace_properties(name, set(), {"c": "3"})
    assert {"c": "3"} == client.load_namespace_properties(name)
    client.drop_namespace(name)
    assert not client.namespace_exists(name)


def test_a_table_gets_another_name(client: RestCatalog, name: Name) -> None:
    client.create_namespace("elsewhere")
    client.create_table(name, SCHEMA).append(ids(1))
    moved = client.rename_table(name, ("elsewhere", "t"))
    assert [1] == row_ids(moved)
    assert not client.table_exists(name)


def test_a_dropped_table_keeps_its_files_and_a_purged_one_does_not(client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    table.append(ids(1))
    folder, location = Path(table.location().removeprefix("file://")), table.metadata_location
    client.drop_table(name)
    assert any(path.is_file() for path in folder.rglob("*"))
    assert [1] == row_ids(client.register_table(name, location))
    client.purge_table(name)
    assert not any(path.is_file() for path in folder.rglob("*.parquet"))
    assert not client.table_exists(name)


def test_a_table_is_put_back_to_an_earlier_metadata_file(client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    table.append(ids(1))
    earlier = table.metadata_location
    table.append(ids(2))
    assert [1] == row_ids(client.register_table(name, earlier, overwrite=True))
    client.load_table(name).append(ids(3))
    assert [1, 3] == row_ids(client.load_table(name))


def test_a_snapshot_expires_along_with_the_branch_that_named_it(client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    table.append(ids(1))
    (first,) = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    table.manage_snapshots().create_branch(first, "old").commit()
    table.append(ids(2))
    updates = (RemoveSnapshotRefUpdate(ref_name="old"), RemoveSnapshotsUpdate(snapshot_ids=[first]))
    client.commit_table(client.load_table(name), (), updates)
    found = client.load_table(name).metadata
    assert first not in [snapshot.snapshot_id for snapshot in found.snapshots]
    assert ["main"] == list(found.refs)


@pytest.mark.parametrize("expired_first", [False, True])
def test_a_snapshot_expires_along_with_the_move_of_the_branch_that_named_it(
    client: RestCatalog, name: Name, expired_first: bool
) -> None:
    """Main is rolled back, and what it rolled back is removed; what another branch is moved to stays."""
    table = client.create_table(name, SCHEMA)
    for number in (1, 2, 3):
        table.append(ids(number))
    first, second, third = (snapshot.snapshot_id for snapshot in table.metadata.snapshots)
    updates = (
        SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": first}),
        SetSnapshotRefUpdate.model_validate({"ref-name": "kept", "type": "branch", "snapshot-id": second}),
        RemoveSnapshotsUpdate(snapshot_ids=[second, third]),
    )
    client.commit_table(table, (), updates[::-1] if expired_first else updates)
    found = client.load_table(name)
    assert [first, second] == [snapshot.snapshot_id for snapshot in found.snapshots()]
    assert {"main": first, "kept": second} == {key: ref.snapshot_id for key, ref in found.refs().items()}
    assert [1] == row_ids(found)


def test_no_snapshot_expires_of_a_table_that_shares_its_files(client: RestCatalog, name: Name) -> None:
    """A retry does not help, so it is no conflict."""
    table = client.create_table(name, SCHEMA, properties={"gc.enabled": "false"})
    for number in (1, 2):
        table.append(ids(number))
    expiry = (RemoveSnapshotsUpdate(snapshot_ids=[table.snapshots()[0].snapshot_id]),)
    with pytest.raises(BadRequestError, match="ValidationException: gc.enabled=false"):
        client.commit_table(table, (), expiry)
    assert 2 == len(client.load_table(name).snapshots())


def test_what_is_not_there_and_what_is_there_already_has_its_own_error(client: RestCatalog, name: Name) -> None:
    with pytest.raises(NoSuchTableError, match=f"Table does not exist: db.{name[1]}"):
        client.load_table(name)
    with pytest.raises(NoSuchTableError):
        client.drop_table(name)
    with pytest.raises(NoSuchTableError):
        client.rename_table(name, ("db", "other"))
    with pytest.raises(NoSuchNamespaceError, match="Namespace does not exist: nowhere"):
        client.create_table(("nowhere", "t"), SCHEMA)
    with pytest.raises(NamespaceAlreadyExistsError, match="Namespace already exists: db"):
        client.create_namespace("db")
    table = client.create_table(name, SCHEMA)
    with pytest.raises(TableAlreadyExistsError, match=f"Table already exists: db.{name[1]}"):
        client.create_table(name, SCHEMA)
    with pytest.raises(TableAlreadyExistsError):
        client.register_table(name, table.metadata_location)


def test_a_warehouse_is_chosen_by_its_name(server: Server, client: RestCatalog) -> None:
    second = server.client(warehouse="second")
    second.create_namespace("only here")
    assert ("only here",) in second.list_namespaces()
    assert ("only here",) not in client.list_namespaces()
