"""Commits that arrive late, over HTTP: which follow a head that moved, and which must not."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.update import RemovePartitionSpecsUpdate, RemoveSnapshotsUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from commit_coord.errors import CommitStateUnknown
from commit_coord.rest.wire import CommitTable
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Server, ids, path_of, row_ids
from tests.sent import body_of

Name = tuple[str, str]

MERGING = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


@pytest.fixture
def table(client: RestCatalog, name: Name) -> Any:
    """A table with the row 0."""
    made = client.create_table(name, SCHEMA)
    made.append(ids(0))
    return made


def _rows(client: RestCatalog, table: Any) -> list[int]:
    return row_ids(client.load_table(table.name()))


def _overtake(client: RestCatalog, table: Any, number: int = 100) -> None:
    """Have another client append a row."""
    client.load_table(table.name()).append(ids(number))


def _files(table: Any) -> set[str]:
    return {str(path) for path in Path(table.location().removeprefix("file://")).rglob("*") if path.is_file()}


# -- declared appends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fast_append", "merge_append"])
def test_a_declared_append_follows_a_head_that_moved_and_keeps_its_id(
    server: Server, client: RestCatalog, table: Any, kind: str
) -> None:
    late = Held.append(table, ids(1, 2), kind=kind)
    _overtake(client, table)
    answer = late.send(server, BLIND)
    assert 200 == answer.status
    assert late.snapshot_id == answer.json["metadata"]["current-snapshot-id"]
    assert [0, 1, 2, 100] == _rows(client, table)


def test_its_answer_is_the_whole_file(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    _overtake(client, table)
    answer = late.send(server, BLIND)
    assert answer.json == server.ask("GET", path_of(*table.name())).json
    assert 3 == len(answer.json["metadata"]["snapshots"])


def test_its_sequence_numbers_and_totals_are_those_of_its_place(
    server: Server, client: RestCatalog, table: Any
) -> None:
    late = Held.append(table, ids(1), properties={"owner": "anna"})
    assert 2 == late.snapshot["sequence-number"]
    _overtake(client, table)
    late.send(server, BLIND)
    snapshot = client.load_table(table.name()).current_snapshot()
    assert 3 == snapshot.sequence_number
    own = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == late.snapshot_id]
    assert [(3, 3)] == [(m.sequence_number, m.min_sequence_number) for m in own]
    assert [3] == [e.sequence_number for m in own for e in m.fetch_manifest_entry(table.io)]
    assert ("3", "1", "anna") == tuple(snapshot.summary[key] for key in ("total-records", "added-records", "owner"))


@pytest.mark.parametrize(
    "declared, headers, properties, lands",
    [
        ({}, {}, {}, False),
        ({}, BLIND, {}, True),
        ({}, {}, {"commit.append.blind": "true"}, True),
        ({"commit-coord.append": "blind"}, {}, {}, True),
        ({}, {"X-Commit-Coord-Append": "checked"}, {"commit.append.blind": "true"}, False),
        ({"commit-coord.append": "checked"}, BLIND, {"commit.append.blind": "true"}, False),
        ({"commit-coord.append": "blind"}, {"X-Commit-Coord-Append": "checked"}, {}, True),
        ({}, {}, {"commit.append.blind": "false"}, False),
    ],
)
def test_a_declaration_of_less_goes_before_one_of_more(
    server: Server,
    client: RestCatalog,
    name: Name,
    declared: Mapping[str, str],
    headers: Mapping[str, str],
    properties: Mapping[str, str],
    lands: bool,
) -> None:
    table = client.create_table(name, SCHEMA, properties=dict(properties))
    late = Held.append(table, ids(1), properties=declared)
    Held.append(table, ids(100)).send(server)
    assert (200 if lands else 409) == late.send(server, headers).status
    assert ([1, 100] if lands else [100]) == _rows(client, table)


def test_a_declaration_that_nobody_knows_is_refused(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    status, kind, message = late.send(server, {"X-Commit-Coord-Append": "blnd"}).error
    assert (400, "IllegalArgumentException") == (status, kind)
    assert "declared to be blind or checked, not 'blnd'" in message
    assert [0] == _rows(client, table)


def test_pyiceberg_declares_all_its_appends_by_a_catalog_property(
    server: Server, client: RestCatalog, name: Name
) -> None:
    declared = server.client(**{"header.X-Commit-Coord-Append": "blind"})
    stale = declared.create_table(name, SCHEMA, properties={"commit.retry.num-retries": "0"})
    client.load_table(name).append(ids(1))
    stale.append(ids(2))
    assert [1, 2] == _rows(client, stale)


def test_what_a_client_sets_along_with_an_append_is_set(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    late.document["updates"].append({"action": "set-properties", "updates": {"offset": "17"}})
    _overtake(client, table)
    assert 200 == late.send(server, BLIND).status
    found = client.load_table(table.name())
    assert ("17", [0, 1, 100]) == (found.properties["offset"], row_ids(found))


def test_an_append_to_a_branch_that_moved_follows_it(server: Server, client: RestCatalog, table: Any) -> None:
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
    late = Held.append(client.load_table(table.name()), ids(1), branch="side")
    client.load_table(table.name()).append(ids(2), branch="side")
    assert 200 == late.send(server, BLIND).status
    found = client.load_table(table.name())
    assert [0, 1, 2] == sorted(found.scan().use_ref("side").to_arrow()["id"].to_pylist())
    assert [0] == row_ids(found)


def test_of_a_merged_manifest_the_added_files_land(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    for number in range(4):
        table.append(ids(number))
    table = table.transaction().set_properties(MERGING).commit_transaction() or client.load_table(name)
    late = Held.append(table, ids(10), kind="merge_append")
    with server.library() as catalog:
        catalog.load_table(name).transaction().set_properties(
            {"commit.manifest-merge.enabled": "false"}
        ).commit_transaction()
        catalog.load_table(name).append(ids(100))
    assert 200 == late.send(server, BLIND).status
    found = client.load_table(name)
    assert [0, 1, 2, 3, 10, 100] == row_ids(found)
    listed = found.current_snapshot().manifests(found.io)
    assert [(0, 4), (1, 0), (1, 0)] == sorted((m.added_files_count, m.existing_files_count) for m in listed)
    numbers = {
        entry.data_file.record_count and entry.sequence_number
        for manifest in listed
        for entry in manifest.fetch_manifest_entry(found.io)
        if entry.status == ManifestEntryStatus.EXISTING
    }
    assert {1, 2, 3, 4} == numbers


def test_of_two_that_merged_the_same_manifests_the_second_appends_alone(
    server: Server, client: RestCatalog, name: Name
) -> None:
    table = client.create_table(name, SCHEMA)
    for number in range(4):
        table.append(ids(number))
    with table.transaction() as tx:
        tx.set_properties(MERGING)
    first, second = (Held.append(table, ids(number), kind="merge_append") for number in (10, 11))
    assert 200 == first.send(server, BLIND).status
    before = _files(table)
    assert 200 == second.send(server, BLIND).status
    found = client.load_table(name)
    assert [0, 1, 2, 3, 10, 11] == row_ids(found)
    listed = {m.manifest_path.removeprefix("file://") for m in found.current_snapshot().manifests(found.io)}
    assert {path for path in _files(table) - before if path.endswith("-m0.avro")} <= listed


def test_a_table_of_version_1_is_appended_to(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA, properties={"format-version": "1"})
    held = [Held.append(table, ids(number)) for number in range(3)]
    assert [200] * 3 == [one.send(server, BLIND).status for one in held]
    assert [0, 1, 2] == _rows(client, table)
    with client.load_table(name).transaction() as tx:
        tx.upgrade_table_version(2)
    late = Held.append(table, ids(9))
    assert 409 == late.send(server, BLIND).status  # its manifest is of version 1
    assert [0, 1, 2] == _rows(client, table)


def test_an_append_of_no_files_lands(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids())
    _overtake(client, table)
    assert 200 == late.send(server, BLIND).status
    assert late.snapshot_id == client.load_table(table.name()).current_snapshot().snapshot_id
    assert [0, 100] == _rows(client, table)


def test_declared_appends_share_no_snapshot(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA, properties={"commit.group.coalesce": "true"})
    held = [Held.append(table, ids(number)) for number in range(3)]
    assert [200] * 3 == [one.send(server, BLIND).status for one in held]
    found = client.load_table(name)
    assert [one.snapshot_id for one in held] == [snapshot.snapshot_id for snapshot in found.snapshots()]


# -- what is no append ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fast_append", "merge_append", "overwrite"])
def test_what_only_adds_and_is_not_declared_is_refused_when_the_head_moved(
    server: Server, client: RestCatalog, table: Any, kind: str
) -> None:
    """A ``MERGE`` without a match and an overwrite that removed nothing look like appends."""
    late = Held.append(table, ids(1), kind=kind).as_append()
    _overtake(client, table)
    before = _files(table)
    status, type_, message = late.send(server).error
    assert (409, "CommitFailedException") == (status, type_)
    assert message.startswith("Requirement failed: branch main has changed: expected id")
    assert [0, 100] == _rows(client, table)
    assert before == _files(table)


def test_an_overwrite_is_refused_also_where_all_is_declared(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1), kind="overwrite")
    _overtake(client, table)
    assert 409 == late.send(server, BLIND).status
    assert [0, 100] == _rows(client, table)


def test_a_declared_append_that_leaves_out_a_file_is_refused(server: Server, client: RestCatalog, table: Any) -> None:
    """Its label says append, and its list lacks a manifest that the list of its parent has."""
    empty = client.create_table((table.name()[0], f"{table.name()[1]}e"), SCHEMA, location=f"{table.location()}/e")
    late = Held.append(empty, ids(1))
    held = Held.append(table, ids(1))
    held.snapshot["manifest-list"] = late.snapshot["manifest-list"]
    held.snapshot["snapshot-id"] = held.document["updates"][1]["snapshot-id"] = late.snapshot_id
    _overtake(client, table)
    assert 409 == held.send(server, BLIND).status
    assert [0, 100] == _rows(client, table)


@pytest.mark.parametrize(
    "summary", [{"deleted-data-files": "1"}, {"added-delete-files": "1"}, {"added-data-files": "7"}]
)
def test_a_summary_that_says_more_than_that_files_were_added_is_believed(
    server: Server, client: RestCatalog, table: Any, summary: dict[str, str]
) -> None:
    late = Held.append(table, ids(1))
    late.snapshot["summary"].update(summary)
    _overtake(client, table)
    assert 409 == late.send(server, BLIND).status
    assert [0, 100] == _rows(client, table)


def test_a_declared_append_with_a_change_of_columns_is_refused(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    wider = Schema(*SCHEMA.fields, NestedField(3, "more", LongType()), schema_id=1)
    late.document["updates"].append({"action": "add-schema", "schema": wider.model_dump(mode="json")})
    _overtake(client, table)
    assert 409 == late.send(server, BLIND).status
    assert [0, 100] == _rows(client, table)


def test_several_snapshots_of_one_commit_are_not_taken_apart(server: Server, client: RestCatalog, table: Any) -> None:
    def both(*numbers: int) -> dict[str, Any]:
        transaction = client.load_table(table.name()).transaction()
        for number in numbers:
            transaction.append(ids(number))
        return body_of(transaction)

    path, first, late = path_of(*table.name()), both(1, 2), both(3, 4)
    assert [200, 200, 409] == [server.ask("POST", path, one, BLIND).status for one in (first, first, late)]
    assert [0, 1, 2] == _rows(client, table)


def test_an_append_to_version_3_is_decided_on_by_its_requirements(
    server: Server, client: RestCatalog, name: Name
) -> None:
    client.create_table(name, SCHEMA, properties={"format-version": "3"})
    location = client.load_table(name).location()

    def append(snapshot_id: int, parent: int | None, first_row_id: int) -> int:
        snapshot = {
            "snapshot-id": snapshot_id,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            "sequence-number": 1 if parent is None else 2,
            "timestamp-ms": 1,
            "manifest-list": f"{location}/metadata/list-{snapshot_id}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
            "first-row-id": first_row_id,
            "added-rows": 4,
        }
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        document = {
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
            "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref],
        }
        return server.ask("POST", path_of(*name), document, BLIND).status

    assert [200, 409, 200, 200] == [append(1, None, 0), append(2, None, 0), append(2, 1, 4), append(1, None, 0)]


def test_a_staged_snapshot_passes_through(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1), branch=None)
    assert 1 == len(late.document["updates"])
    assert 200 == late.send(server, BLIND).status
    found = client.load_table(table.name())
    assert [0] == row_ids(found)
    staged = found.snapshot_by_id(late.snapshot_id)
    assert late.snapshot["manifest-list"] == staged.manifest_list


def test_a_staged_snapshot_behind_others_is_refused_for_its_number_and_staged_anew(
    server: Server, client: RestCatalog, table: Any
) -> None:
    late = Held.append(table, ids(1), branch=None)
    _overtake(client, table)
    status, kind, message = late.send(server, BLIND).error
    assert (409, "CommitFailedException") == (status, kind)
    assert "sequence number" in message
    again = Held.append(client.load_table(table.name()), ids(1), branch=None)
    assert 200 == again.send(server, BLIND).status
    assert [0, 100] == _rows(client, table)


def test_a_new_branch_is_forked_from_the_snapshot_that_its_client_saw(
    server: Server, client: RestCatalog, table: Any
) -> None:
    fork = Held.append(table, ids(1)).to_new_branch("audit")
    assert 200 == fork.send(server, BLIND).status
    found = client.load_table(table.name())
    assert [0, 1] == sorted(found.scan().use_ref("audit").to_arrow()["id"].to_pylist())
    assert [0] == row_ids(found)


def test_a_new_branch_behind_others_is_refused_and_never_started_empty(
    server: Server, client: RestCatalog, table: Any
) -> None:
    fork = Held.append(table, ids(1)).to_new_branch("audit")
    _overtake(client, table)
    assert 409 == fork.send(server, BLIND).status
    assert ["main"] == list(client.load_table(table.name()).refs())
    again = Held.append(client.load_table(table.name()), ids(1)).to_new_branch("audit")
    assert 200 == again.send(server, BLIND).status
    found = client.load_table(table.name())
    assert [0, 1, 100] == sorted(found.scan().use_ref("audit").to_arrow()["id"].to_pylist())


def test_a_new_branch_is_forked_also_where_nothing_is_required_of_it(
    server: Server, client: RestCatalog, table: Any
) -> None:
    fork = Held.append(table, ids(1)).to_new_branch("audit")
    del fork.document["requirements"][1]
    assert 200 == fork.send(server, BLIND).status
    found = client.load_table(table.name())
    assert [0, 1] == sorted(found.scan().use_ref("audit").to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("declared", ["source-snapshot-id", "published-wap-id", "replace-partitions"])
def test_what_publishes_a_staged_snapshot_or_replaces_partitions_is_no_blind_append(
    server: Server, client: RestCatalog, table: Any, declared: str
) -> None:
    both = [Held.append(table, ids(1), properties={declared: "1"}) for _ in range(2)]
    assert [200, 409] == [held.send(server, BLIND).status for held in both]
    assert [0, 1] == _rows(client, table)


def test_a_branch_that_others_forked_meanwhile_is_not_appended_to(
    server: Server, client: RestCatalog, table: Any
) -> None:
    first, second = (Held.append(table, ids(number)).to_new_branch("audit") for number in (1, 2))
    assert 200 == first.send(server, BLIND).status
    status, _, message = second.send(server, BLIND).error
    assert 409 == status
    assert "branch audit was created concurrently" in message


def test_a_branch_is_set_back_only_where_it_was(server: Server, client: RestCatalog, table: Any) -> None:
    first = table.current_snapshot().snapshot_id
    table.append(ids(1))
    head = table.current_snapshot().snapshot_id
    document = {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": head}],
        "updates": [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}],
    }
    _overtake(client, table)
    assert 409 == server.ask("POST", path_of(*table.name()), document, BLIND).status
    document["requirements"][0]["snapshot-id"] = client.load_table(table.name()).current_snapshot().snapshot_id
    assert 200 == server.ask("POST", path_of(*table.name()), document, BLIND).status
    assert [0] == _rows(client, table)


@pytest.mark.parametrize("declared", [{}, BLIND], ids=["checked", "blind"])
@pytest.mark.parametrize("read", ["no rows", "one row"])
@pytest.mark.parametrize("parent", ["that of the client", "none", "unknown"])
@pytest.mark.parametrize("version, number", [("1", None), ("2", None), ("2", 99)])
def test_no_row_leaves_a_branch_with_a_commit_that_requires_nothing_of_it(
    server: Server, client: RestCatalog, name: Name, version: str, number: int | None, parent: str, read: str,
    declared: Mapping[str, str],
) -> None:  # fmt: skip
    table = client.create_table(name, SCHEMA, properties={"format-version": version})
    if read == "one row":
        table.append(ids(0))
    late = Held.append(client.load_table(name), ids(1))
    if number is not None:
        late.snapshot["sequence-number"] = number
    if parent != "that of the client":
        late.snapshot["parent-snapshot-id"] = None if parent == "none" else 12345
    late.document["requirements"] = []
    _overtake(client, table)
    before = set(_rows(client, table))
    answer = late.send(server, declared)
    after = set(_rows(client, table))
    assert before <= after
    assert (answer.status, after - before) in ((409, set()), (200, {1}))
    if not declared:
        assert (409, "CommitFailedException") == answer.error[:2]


# -- what no longer fits -------------------------------------------------------------------------------------


def _require(catalog: Any, name: Name) -> None:
    with catalog.load_table(name).update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", LongType(), required=True)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("refreshed", [False, True])
def test_an_append_behind_a_new_required_column_is_refused(
    server: Server, client: RestCatalog, name: Name, moved: bool, refreshed: bool
) -> None:
    table = client.create_table(name, SCHEMA)
    late = Held.append(table, ids(1))
    with server.library() as catalog:
        _require(catalog, table.name())
    if moved:
        assert 200 == Held.append(client.load_table(name), ids()).send(server).status
    if refreshed:
        late.snapshot["schema-id"] = 1  # Java names the schema that it has seen last, whatever the files have
    before = _files(table)
    status, _, message = late.send(server, BLIND).error
    assert 409 == status
    assert "the column 'must' is required now and was not when the files were written" in message
    assert [] == _rows(client, table)
    assert before == _files(table)


def test_files_that_were_written_before_their_manifest_are_looked_into(
    server: Server, client: RestCatalog, name: Name
) -> None:
    """A manifest names the schema of its client when it was written, and a merged one that of the merge."""
    table = client.create_table(name, SCHEMA)
    with server.library() as catalog:
        _require(catalog, table.name())
    late = Held.append(client.load_table(name), ids(1), written_for=table)
    status, _, message = late.send(server, BLIND).error
    assert 409 == status
    assert "the column 'must' is required now and was not when the files were written" in message
    assert [] == _rows(client, table)


def test_an_append_that_has_the_new_required_column_lands(server: Server, client: RestCatalog, name: Name) -> None:
    client.create_table(name, SCHEMA)
    with server.library() as catalog:
        _require(catalog, name)
    table = client.load_table(name)
    must = pa.field("must", pa.int64(), nullable=False)
    late = Held.append(table, ids(1).append_column(must, [[7]]))
    assert 200 == Held.append(table, ids()).send(server).status
    assert 200 == late.send(server, BLIND).status
    assert [1] == _rows(client, table)


@pytest.mark.parametrize("java", [False, True])
def test_a_stale_client_that_adds_a_column_does_not_show_what_a_dropped_one_held(
    server: Server, client: RestCatalog, table: Any, java: bool
) -> None:
    """The schema is what the client has read, and the table has the one that the client adds: it was dropped."""
    with server.library() as catalog:
        local = catalog.load_table(table.name())
        with local.update_schema() as update:
            update.add_column("a", LongType())
        local.append(ids(1).append_column("a", [[7]]))
        with local.update_schema() as update:
            update.delete_column("a")
    body = _adding_a(table)
    if java:
        last = {"type": "assert-last-assigned-field-id", "last-assigned-field-id": table.metadata.last_column_id}
        body["requirements"].append(last)
    status, kind, _ = server.ask("POST", path_of(*table.name()), body).error
    assert (409, "CommitFailedException") == (status, kind)
    assert 200 == server.ask("POST", path_of(*table.name()), _adding_a(client.load_table(table.name()))).status
    assert [None, None] == client.load_table(table.name()).scan().to_arrow()["a"].to_pylist()


def _adding_a(table: Any) -> dict[str, Any]:
    transaction = table.transaction()
    with transaction.update_schema() as update:
        update.add_column("a", LongType())
    return body_of(transaction)


def test_a_column_that_was_dropped_comes_back_with_its_schema(server: Server, client: RestCatalog, table: Any) -> None:
    table.append(ids(1))
    with table.update_schema() as update:
        update.delete_column("s")
    undo = {"updates": [{"action": "set-current-schema", "schema-id": 0}]}
    assert 200 == server.ask("POST", path_of(*table.name()), undo).status
    assert ["0", "1"] == sorted(client.load_table(table.name()).scan().to_arrow()["s"].to_pylist())


def test_an_append_behind_a_new_optional_column_lands(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    with client.load_table(table.name()).update_schema() as update:
        update.add_column("more", LongType())
    _overtake_wider(client, table)
    assert 200 == late.send(server, BLIND).status
    rows = client.load_table(table.name()).scan().to_arrow().to_pylist()
    assert {(0, None), (1, None), (5, 7)} == {(row["id"], row["more"]) for row in rows}


def _overtake_wider(client: RestCatalog, table: Any) -> None:
    found = client.load_table(table.name())
    rows = ids(5).append_column("more", [[7]])
    found.append(rows)


@pytest.mark.parametrize("moved, headers", [(False, BLIND), (True, BLIND), (False, None)])
def test_an_append_to_a_dropped_spec_is_refused(
    server: Server, client: RestCatalog, name: Name, moved: bool, headers: Mapping[str, str] | None
) -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    table = client.create_table(name, SCHEMA, partition_spec=spec)
    late = Held.append(table, ids(1))
    with client.load_table(name).update_spec() as update:
        update.remove_field("id")
    found = client.load_table(name)
    client.commit_table(found, (), (RemovePartitionSpecsUpdate(spec_ids=[0]),))
    if moved:
        client.load_table(name).append(ids(100))
    status, _, message = late.send(server, headers).error
    assert (409, True) == (status, "partition spec 0 of the written files is gone" in message)
    assert ([100] if moved else []) == _rows(client, table)


@pytest.mark.parametrize("headers", [BLIND, None])
def test_an_append_to_a_spec_whose_id_another_one_got_is_refused(
    server: Server, client: RestCatalog, name: Name, headers: Mapping[str, str] | None
) -> None:
    table = client.create_table(name, SCHEMA)
    with client.load_table(name).update_spec() as update:
        update.add_identity("id")
    late = Held.append(client.load_table(name), ids(1))
    with client.load_table(name).update_spec() as update:
        update.remove_field("id")
    client.commit_table(client.load_table(name), (), (RemovePartitionSpecsUpdate(spec_ids=[1]),))
    with client.load_table(name).update_spec() as update:
        update.add_identity("s")
    assert [0, 1] == sorted(client.load_table(name).specs())
    status, _, message = late.send(server, headers).error
    assert (409, True) == (status, "partition spec 1 of the written files is gone" in message)
    assert [] == _rows(client, table)


def test_a_spec_is_not_removed_as_long_as_a_snapshot_has_files_of_it(
    server: Server, client: RestCatalog, name: Name
) -> None:
    """Java requires nothing of main when it removes specs, and a writer under an old one may come first."""
    table = client.create_table(
        name, SCHEMA, partition_spec=PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    )
    late = Held.append(table, ids(1))
    with client.load_table(name).update_spec() as update:
        update.remove_field("id")
    assert 200 == late.send(server).status
    client.load_table(name).append(ids(2))
    removal = {"requirements": [], "updates": [{"action": "remove-partition-specs", "spec-ids": [0]}]}
    status, _, message = server.ask("POST", path_of(*name), removal).error
    assert (409, True) == (status, "has files of the partition specs [0]" in message)
    client.load_table(name).delete("id == 1")
    assert 409 == server.ask("POST", path_of(*name), removal).status  # an older snapshot has them still
    client.load_table(name).append(ids(3))  # the list has no manifest of deleted files any more
    found = client.load_table(name)
    expired = [s.snapshot_id for s in found.snapshots() if s.snapshot_id != found.current_snapshot().snapshot_id]
    client.commit_table(found, (), (RemoveSnapshotsUpdate(snapshot_ids=expired),))
    assert 200 == server.ask("POST", path_of(*name), removal).status
    assert [2, 3] == _rows(client, found)


def test_a_replacement_that_was_read_before_appends_leaves_a_table_that_can_be_read(
    server: Server, client: RestCatalog, table: Any
) -> None:
    late = Held.replacement(table, ids(7))
    for row in (1, 2):
        client.load_table(table.name()).append(ids(row))
    numbers = [s.sequence_number for s in client.load_table(table.name()).metadata.snapshots]
    answer = late.send(server)
    assert 200 == answer.status
    assert max(numbers) == answer.json["metadata"]["last-sequence-number"]
    client.load_table(table.name()).append(ids(8))
    assert [7, 8] == _rows(client, table)
    assert max(numbers) + 1 == client.load_table(table.name()).current_snapshot().sequence_number


def test_an_append_under_an_earlier_spec_lands(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    with client.load_table(table.name()).update_spec() as update:
        update.add_identity("id")
    client.load_table(table.name()).append(ids(100))
    assert 200 == late.send(server, BLIND).status
    assert [0, 1, 100] == _rows(client, table)


# -- repeats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{}, BLIND])
def test_a_commit_that_is_sent_twice_lands_once(
    server: Server, client: RestCatalog, table: Any, headers: Mapping[str, str]
) -> None:
    held = Held.append(table, ids(1))
    first = held.send(server, headers)
    assert first.json == held.send(server, headers).json
    _overtake(client, table)
    again = held.send(server, headers)
    assert 200 == again.status
    assert 3 == len(again.json["metadata"]["snapshots"])
    assert [0, 1, 100] == _rows(client, table)


def test_a_repeat_is_answered_although_its_client_has_deleted_its_list(
    server: Server, client: RestCatalog, table: Any
) -> None:
    held = Held.append(table, ids(1))
    _overtake(client, table)
    held.send(server, BLIND)
    Path(held.snapshot["manifest-list"].removeprefix("file://")).unlink()
    assert 200 == held.send(server, BLIND).status
    assert [0, 1, 100] == _rows(client, table)


def test_a_list_that_is_gone_is_no_proof_that_nothing_landed(server: Server, table: Any) -> None:
    held = Held.append(table, ids(1))
    Path(held.snapshot["manifest-list"].removeprefix("file://")).unlink()
    asked = CommitTable.model_validate(held.document)
    with (
        server.library() as catalog,
        pytest.raises(CommitStateUnknown, match="perhaps because the commit has landed"),
    ):
        catalog.commit_request(table.name(), asked.requirements, asked.updates, declared="blind")


def test_a_repeat_is_no_new_append_when_its_snapshot_is_no_ancestor_any_more(
    server: Server, client: RestCatalog, table: Any
) -> None:
    held, first = Held.append(table, ids(1)), table.current_snapshot().snapshot_id
    held.send(server, BLIND)
    client.load_table(table.name()).manage_snapshots().rollback_to_snapshot(first).commit()
    assert 200 == held.send(server, BLIND).status
    assert [0] == _rows(client, table)


def test_what_was_written_for_a_repeat_is_deleted(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    for number in range(4):
        table.append(ids(number))
    with table.transaction() as tx:
        tx.set_properties(MERGING)
    held = Held.append(table, ids(10), kind="merge_append")
    with client.load_table(name).update_schema() as update:
        update.add_column("more", LongType())
    held.send(server, BLIND)
    before = _files(table)
    assert 200 == held.send(server, BLIND).status
    assert before == _files(table)


def test_what_was_written_for_a_refused_append_is_deleted(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    for number in range(4):
        table.append(ids(number))
    with table.transaction() as tx:
        tx.set_properties(MERGING)
    held = Held.append(table, ids(10), kind="merge_append")
    held.document["requirements"].append({"type": "assert-current-schema-id", "current-schema-id": 0})
    with client.load_table(name).update_schema() as update:
        update.add_column("more", LongType())
    before = _files(table)
    assert 409 == held.send(server, BLIND).status
    assert before == _files(table)


def test_a_creation_that_is_sent_twice_is_answered(server: Server, client: RestCatalog, name: Name) -> None:
    staged = client.create_table_transaction(name, SCHEMA)
    staged.append(ids(1))
    document = {**body_of(staged), "requirements": [{"type": "assert-create"}]}
    assert [200, 200] == [server.ask("POST", path_of(*name), document).status for _ in range(2)]
    assert [1] == row_ids(client.load_table(name))


# -- streams -------------------------------------------------------------------------------------------------


def _flink(checkpoint: int, job: str = "job-1", operator: str = "op-1") -> dict[str, str]:
    return {
        "flink.job-id": job,
        "flink.operator-id": operator,
        "flink.max-committed-checkpoint-id": str(checkpoint),
    }


@pytest.mark.parametrize("headers", [{}, BLIND])
@pytest.mark.parametrize("late, lands", [(6, False), (7, False), (8, True)])
def test_a_checkpoint_of_flink_that_is_in_the_table_is_refused(
    server: Server, client: RestCatalog, table: Any, headers: Mapping[str, str], late: int, lands: bool
) -> None:
    zombie = Held.append(table, ids(1), properties=_flink(late))
    table.append(ids(7), snapshot_properties=_flink(7))
    client.load_table(table.name()).append(ids(100))
    answer = zombie.send(server, headers)
    if not lands:
        status, kind, message = answer.error
        assert (409, "CommitFailedException") == (status, kind)
        assert f"checkpoint {late} of the Flink job job-1 is already in the table" in message
    else:
        assert (200 if headers else 409) == answer.status
    again = Held.append(client.load_table(table.name()), ids(2), properties=_flink(late))
    assert (200 if lands and not headers else 409) == again.send(server, headers).status
    assert [0, 7, 100, *([1] if lands and headers else []), *([2] if lands and not headers else [])] == sorted(
        _rows(client, table), key=[0, 7, 100, 1, 2].index
    )


@pytest.mark.parametrize("other", [_flink(7, job="job-2"), _flink(7, operator="op-2")])
def test_another_job_or_operator_of_flink_has_checkpoints_of_its_own(
    server: Server, client: RestCatalog, table: Any, other: dict[str, str]
) -> None:
    late = Held.append(table, ids(1), properties=other)
    table.append(ids(7), snapshot_properties=_flink(9))
    assert 200 == late.send(server, BLIND).status
    assert [0, 1, 7] == _rows(client, table)


def test_a_checkpoint_on_another_branch_is_not_in_this_one(server: Server, client: RestCatalog, table: Any) -> None:
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "side").commit()
    late = Held.append(client.load_table(table.name()), ids(1), properties=_flink(7))
    client.load_table(table.name()).append(ids(7), snapshot_properties=_flink(7), branch="side")
    assert 200 == late.send(server, BLIND).status


def test_rows_that_flink_replaces_are_guarded_too(server: Server, client: RestCatalog, table: Any) -> None:
    table.append(ids(7), snapshot_properties=_flink(7))
    zombie = Held.append(client.load_table(table.name()), ids(1), kind="overwrite", properties=_flink(7))
    assert 409 == zombie.send(server).status
    assert [0, 7] == _rows(client, table)


def _spark(epoch: int, query: str = "q-1") -> dict[str, str]:
    return {"spark.sql.streaming.queryId": query, "spark.sql.streaming.epochId": str(epoch)}


@pytest.mark.parametrize(
    "late, status", [(_spark(6), 409), (_spark(7), 409), (_spark(8), 200), (_spark(7, "q-2"), 200)]
)
def test_an_epoch_of_a_spark_query_that_is_in_the_table_is_refused(
    server: Server, client: RestCatalog, table: Any, late: dict[str, str], status: int
) -> None:
    zombie = Held.append(table, ids(1), properties=late)
    table.append(ids(7), snapshot_properties=_spark(7))
    assert status == zombie.send(server, BLIND).status
    assert ([0, 7] if status == 409 else [0, 1, 7]) == _rows(client, table)


_OFFSETS = "kafka.connect.offsets.control.group"


@pytest.mark.parametrize("headers", [{}, BLIND])
def test_a_coordinator_of_kafka_connect_whose_offsets_have_moved_is_refused_and_not_asked_to_come_back(
    server: Server, client: RestCatalog, table: Any, headers: Mapping[str, str]
) -> None:
    table.append(ids(1), snapshot_properties={_OFFSETS: '{"0":50}'})
    zombie = Held.append(table, ids(2, 3), properties={_OFFSETS: '{"0":120}'})
    client.load_table(table.name()).append(ids(2), snapshot_properties={_OFFSETS: '{"0":100}'})
    status, kind, message = zombie.send(server, headers).error
    assert (400, "ValidationException") == (status, kind)
    assert f'the offsets of {_OFFSETS} were {{"0":50}} when they were read, and are {{"0":100}} now' in message
    assert [0, 1, 2] == _rows(client, table)


def test_the_first_offsets_of_two_coordinators_are_distinct(server: Server, client: RestCatalog, name: Name) -> None:
    table = client.create_table(name, SCHEMA)
    first, second = (Held.append(table, ids(n), properties={_OFFSETS: f'{{"0":{n}}}'}) for n in (1, 2))
    assert [200, 400] == [held.send(server, BLIND).status for held in (first, second)]
    assert [1] == _rows(client, table)


def test_a_coordinator_of_kafka_connect_follows_the_commits_of_others(
    server: Server, client: RestCatalog, table: Any
) -> None:
    table.append(ids(1), snapshot_properties={_OFFSETS: '{"0":50}'})
    late = Held.append(table, ids(2), properties={_OFFSETS: '{"0":60}'})
    client.load_table(table.name()).append(ids(9), snapshot_properties={"kafka.connect.offsets.control.other": "{}"})
    _overtake(client, table)
    assert 200 == late.send(server, BLIND).status
    assert [0, 1, 2, 9, 100] == _rows(client, table)


# -- together with the library --------------------------------------------------------------------------------------


def test_declared_appends_follow_those_of_the_library(server: Server, client: RestCatalog, table: Any) -> None:
    late = Held.append(table, ids(1))
    with server.library() as catalog:
        local = catalog.load_table(table.name())
        local.append(ids(50))
        assert 200 == late.send(server, BLIND).status
        local.append(ids(51))
        assert [0, 1, 50, 51] == row_ids(catalog.load_table(table.name()))


def test_a_client_that_deletes_what_it_wrote_after_a_refusal_breaks_nothing(
    server: Server, client: RestCatalog, table: Any
) -> None:
    stale = client.load_table(table.name())
    stale.transaction().set_properties({"commit.retry.num-retries": "0"}).commit_transaction()
    _overtake(client, table)
    with contextlib.suppress(CommitFailedException):
        stale.append(ids(1))
    assert set(_rows(client, table)) - {1} == {0, 100}
