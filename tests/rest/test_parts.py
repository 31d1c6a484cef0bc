"""The parts that know no socket and no store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    RemovePartitionSpecsUpdate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
    TableUpdate,
)
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField
from sqlalchemy import Engine
from sqlalchemy.exc import InterfaceError, OperationalError

from commit_coord.errors import (
    CommitConflict,
    CommitLockFailed,
    CommitNotApplied,
    CommitStateUnknown,
    ConfigError,
    LockServiceUnavailable,
    LockTimeout,
    MetastoreUnavailable,
    UpdatesDoNotFit,
)
from commit_coord.iceberg.java_updates import as_java_applies
from commit_coord.rest.application import Application
from commit_coord.rest.bodies import Bodies, Disconnected
from commit_coord.rest.errors import BodyTimeout, BodyTooLarge, Overloaded, StillRunning, error_answer, is_final
from commit_coord.rest.metadata import with_referenced_snapshots
from commit_coord.rest.needs import NOTHING
from commit_coord.rest.routes import Admitted
from commit_coord.rest.routing import MethodNotAllowed, NoRoute, Route, Router
from commit_coord.rest.server import check
from commit_coord.rest.settings import Limits, Serving
from commit_coord.rest.wire import CommitTable, HttpAnswer, Request, UnsupportedRequest, read_commit
from tests.limits import PATIENCE
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA

_WIDER = Schema(*SCHEMA.fields, NestedField(3, "more", LongType()), schema_id=1)


@pytest.fixture
def head() -> TableMetadata:
    """A new table."""
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
    order = SortOrder(SortField(1, IdentityTransform()))
    return new_table_metadata(SCHEMA, spec, order, "file:///t", {})


# -- routes --------------------------------------------------------------------------------------------------


def _routes() -> list[Route[Any]]:
    return [Route("GET", "/v1/{prefix}/a/{x}", print, NOTHING), Route("GET", "/v1/{prefix}/a/fixed", str, NOTHING)]


def _router() -> Router[Any]:
    return Router(_routes())


def test_names_are_decoded_behind_the_choice_of_the_route() -> None:
    route, names = _router().find("GET", "/v1/p/a/x%2Fy%1Fz+%2B")
    assert print is route.handler
    assert {"prefix": "p", "x": "x/y\x1fz +"} == names


def test_a_fixed_part_goes_before_a_name() -> None:
    assert str is _router().find("GET", "/v1/p/a/fixed")[0].handler


def test_a_fixed_part_of_another_method_hides_no_name() -> None:
    router = Router([*_routes(), Route("DELETE", "/v1/{prefix}/a/only", str, NOTHING)])
    assert {"prefix": "p", "x": "only"} == router.find("GET", "/v1/p/a/only")[1]
    with pytest.raises(MethodNotAllowed, match="DELETE, GET"):
        router.find("POST", "/v1/p/a/only")


@pytest.mark.parametrize("path", ["/v1/p/a", "/v1/p/a/", "/v1/p/a/x/y", "/v1//a/x", "/v2/p/a/x"])
def test_what_is_no_route_is_not_found(path: str) -> None:
    with pytest.raises(NoRoute):
        _router().find("GET", path)


def test_the_answer_to_another_method_names_those_that_are_served() -> None:
    with pytest.raises(MethodNotAllowed, match="GET"):
        _router().find("POST", "/v1/p/a/x")


# -- bodies --------------------------------------------------------------------------------------------------


async def _body(bodies: Bodies, method: str, messages: list[dict[str, Any]], **headers: str) -> bytes:
    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async with bodies.of(Request(method=method, path="/", headers=headers), receive) as body:
        assert len(body) == bodies._bytes_together
        return body


def test_a_request_that_ends_with_its_head_needs_no_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = Bodies(max_bytes=9, max_bytes_together=9, timeout_ms=1)
    monkeypatch.setattr(bodies, "_time_limit", None)
    for method in ("GET", "HEAD"):
        assert b"" == asyncio.run(_body(bodies, method, [{"type": "http.request"}]))


@pytest.mark.parametrize("method, headers", [("GET", {}), ("GET", {"content-length": "7"}), ("POST", {})])
@pytest.mark.parametrize(
    "sizes, ends", [([3, 4], bytes), ([3, None], BodyTimeout), ([3, 7], BodyTooLarge), ([3, -1], Disconnected)]
)
def test_every_body_has_limits_and_is_counted(
    method: str, headers: dict[str, str], sizes: list[int | None], ends: type[Any]
) -> None:
    """Also one that was not announced, or of a method that usually has none."""
    bodies = Bodies(max_bytes=9, max_bytes_together=9, timeout_ms=50)
    messages = [
        {"type": "http.disconnect"}
        if size == -1
        else {"type": "http.request", "body": b"x" * size, "more_body": number == 0}
        for number, size in enumerate(sizes)
        if size is not None
    ]
    ask = _body(bodies, method, messages, **headers)
    if ends is bytes:
        assert b"x" * 7 == asyncio.run(ask)
    else:
        with pytest.raises(ends):
            asyncio.run(ask)
    assert 0 == bodies._bytes_together


def test_a_server_that_stops_refuses_what_has_no_body() -> None:
    bodies = Bodies(max_bytes=9, max_bytes_together=9, timeout_ms=50)
    bodies.stop()
    with pytest.raises(Overloaded):
        asyncio.run(_body(bodies, "GET", [{"type": "http.request"}]))


# -- errors --------------------------------------------------------------------------------------------------


def test_an_unknown_outcome_is_never_a_refusal_and_names_the_request() -> None:
    answer = error_answer(CommitStateUnknown("nobody knows", request_id="r-1"))
    error = json.loads(answer.body)["error"]
    assert (500, "CommitStateUnknownException") == (answer.status, error["type"])
    assert "r-1" in error["message"]


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, status",
    [
        (CommitConflict("the commit did not land: no"), 409),
        (CommitLockFailed("the commit did not land: held by x"), 409),
        (CommitFailedException("no"), 409),
        (_caused(CommitNotApplied("the commit did not land: the disk is full"), OSError("full")), 503),
        (LockTimeout("held"), 503),
        (_caused(CommitLockFailed("the commit did not land: away"), LockServiceUnavailable("away")), 503),
        (_caused(CommitNotApplied("the commit did not land: away"), MetastoreUnavailable("away")), 503),
        (OperationalError("SELECT 1", None, Exception("away")), 503),
        (InterfaceError("SELECT 1", None, Exception("away")), 503),
        (_caused(CommitNotApplied("the commit did not land: away"), OperationalError("", None, Exception())), 503),
        (_caused(CommitStateUnknown("nobody knows"), OperationalError("", None, Exception())), 500),
        (_caused(CommitLockFailed("the commit did not land: held"), LockTimeout("held")), 409),
        (UpdatesDoNotFit("the commit did not land: no such schema"), 400),
        (StillRunning("the first one is still running"), 503),
        (ConfigError("no"), 400),
        (RuntimeError("secret"), 500),
    ],
)
def test_every_error_has_its_status(error: Exception, status: int) -> None:
    assert status == error_answer(error).status


def test_a_database_that_is_away_is_unavailable_and_shows_no_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Engine) -> None:
        raise OperationalError("SELECT secret", None, Exception("connection refused"))

    configure(monkeypatch, tmp_path, "shop")
    update = {"action": "set-properties", "updates": {"a": "1"}}
    with InProcess(Serving(catalogs=("shop",), threads=2)) as server:
        server.ask("POST", "/v1/shop/namespaces", {"namespace": ["db"]})
        server.ask("POST", "/v1/shop/namespaces/db/tables", {"name": "t", "schema": SCHEMA.model_dump(mode="json")})
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "connect", away)
            for method, path, document in (
                ("GET", "/v1/shop/namespaces", None),
                ("POST", "/v1/shop/namespaces", {"namespace": ["other"]}),
                ("GET", "/v1/shop/namespaces/db/tables/t", None),
                ("POST", "/v1/shop/namespaces/db/tables/t", {"requirements": [], "updates": [update]}),
                ("DELETE", "/v1/shop/namespaces/db/tables/t", None),
            ):
                answer = server.ask(method, path, document)
                status, kind, message = answer.error
                assert (503, "ServiceUnavailableException", "1") == (status, kind, answer.headers["retry-after"])
                assert "database can't be reached" in message
                assert "this request changed nothing; if it was sent before, send it again with the same" in message
                assert "secret" not in message
        assert 200 == server.ask("GET", "/v1/shop/namespaces/db/tables/t").status


@pytest.mark.parametrize(
    "error, final",
    [
        (CommitConflict("the commit did not land: no"), True),
        (CommitFailedException("no"), True),
        (NoSuchTableError("no"), True),
        (CommitLockFailed("the commit did not land: held by x"), False),
        (CommitNotApplied("the commit did not land: the disk is full"), False),
        (CommitStateUnknown("nobody knows"), False),
        (Overloaded("busy"), False),
        (FileNotFoundError("not yet"), False),
        (RuntimeError("secret"), False),
    ],
)
def test_what_time_does_not_heal_is_answered_again(error: Exception, final: bool) -> None:
    assert final is is_final(error)


def test_what_nobody_expected_does_not_show_its_text() -> None:
    assert b"secret" not in error_answer(RuntimeError("secret")).body


def test_an_overloaded_server_says_when_to_come_back() -> None:
    answer = error_answer(Overloaded("busy", retry_after_s=3))
    assert (429, "3") == (answer.status, answer.headers["retry-after"])


# -- requirements --------------------------------------------------------------------------------------------


def _failure(requirement: dict[str, Any], metadata: TableMetadata | None) -> str:
    parsed = CommitTable.model_validate_json(json.dumps({"requirements": [requirement]})).requirements[0]
    try:
        parsed.validate(metadata)
    except CommitFailedException as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "requirement, words",
    [
        ({"type": "assert-create"}, "table already exists"),
        ({"type": "assert-table-uuid", "uuid": "0" * 32}, "UUID does not match: expected "),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 3}, "branch or tag main is missing"),
        ({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9}, "last assigned field id changed"),
        ({"type": "assert-current-schema-id", "current-schema-id": 9}, "current schema changed: expected id 9 != 0"),
        ({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9}, "last assigned partition id"),
        ({"type": "assert-default-spec-id", "default-spec-id": 9}, "default partition spec changed"),
        ({"type": "assert-default-sort-order-id", "default-sort-order-id": 9}, "default sort order changed"),
    ],
)
def test_each_requirement_fails_in_javas_words(head: TableMetadata, requirement: Any, words: str) -> None:
    assert _failure(requirement, head).startswith(f"Requirement failed: {words}")


def test_a_branch_may_begin_in_an_empty_table(head: TableMetadata) -> None:
    assert "" == _failure({"type": "assert-ref-snapshot-id", "ref": "audit", "snapshot-id": None}, head)


def test_a_branch_that_is_there_by_now_is_refused(head: TableMetadata) -> None:
    ref = SnapshotRef.model_validate({"snapshot-id": 1, "type": "branch"})
    grown = head.model_copy(update={"refs": {"audit": ref}})
    requirement = {"type": "assert-ref-snapshot-id", "ref": "audit", "snapshot-id": None}
    assert "Requirement failed: branch audit was created concurrently" == _failure(requirement, grown)


def _commit(update: dict[str, Any]) -> CommitTable:
    body = json.dumps({"requirements": [], "updates": [update]}).encode()
    return read_commit(Request(method="POST", path="/", body=body))


def test_a_field_that_would_be_lost_is_refused() -> None:
    snapshot = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "l", "summary": {"operation": "append", "x": "y"}}
    assert _commit({"action": "add-snapshot", "snapshot": snapshot}).updates
    with pytest.raises(UnsupportedRequest, match=r"updates\.0\.snapshot\.key-id"):
        _commit({"action": "add-snapshot", "snapshot": {**snapshot, "key-id": "k"}})


def test_what_javas_clients_say_twice_is_no_loss() -> None:
    schema = {"type": "struct", "schema-id": 1, "fields": [{"id": 1, "name": "a", "type": "int", "required": False}]}
    assert _commit({"action": "add-schema", "schema": schema, "last-column-id": 1}).updates
    file = {"snapshot-id": 1, "statistics-path": "p", "file-size-in-bytes": 1, "file-footer-size-in-bytes": 1}
    statistics = {**file, "blob-metadata": []}
    assert _commit({"action": "set-statistics", "snapshot-id": 1, "statistics": statistics}).updates


# -- ids that the table gives --------------------------------------------------------------------------------


def test_what_is_free_stays_as_it_is(head: TableMetadata) -> None:
    updates = (AddSchemaUpdate(schema_=_WIDER), SetCurrentSchemaUpdate(schema_id=1))
    assert updates == as_java_applies(updates, head)


def test_a_taken_id_becomes_the_next_one(head: TableMetadata) -> None:
    grown = head.model_copy(update={"schemas": [*head.schemas, Schema(NestedField(9, "x", LongType()), schema_id=1)]})
    snapshot = Snapshot(snapshot_id=1, manifest_list="l", schema_id=1)
    updates = (
        AddSchemaUpdate(schema_=_WIDER),
        SetCurrentSchemaUpdate(schema_id=-1),
        AddSnapshotUpdate(snapshot=snapshot),
        AddSortOrderUpdate(sort_order=SortOrder(SortField(2, IdentityTransform()), order_id=1)),
        SetDefaultSortOrderUpdate(sort_order_id=-1),
    )
    schema, current, added, order, default = as_java_applies(updates, grown)
    assert isinstance(schema, AddSchemaUpdate)
    assert isinstance(current, SetCurrentSchemaUpdate)
    assert isinstance(added, AddSnapshotUpdate)
    assert isinstance(order, AddSortOrderUpdate)
    assert isinstance(default, SetDefaultSortOrderUpdate)
    assert (2, 2, 2) == (schema.schema_.schema_id, current.schema_id, added.snapshot.schema_id)
    assert (2, 2) == (order.sort_order.order_id, default.sort_order_id)


def test_what_is_there_under_another_id_is_used(head: TableMetadata) -> None:
    spec = PartitionSpec(*head.spec().fields, spec_id=5)
    updates = (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1))
    assert (SetDefaultSpecUpdate(spec_id=0),) == as_java_applies(updates, head)


def test_a_property_that_is_not_there_is_removed_without_a_word(head: TableMetadata) -> None:
    updates = (SetPropertiesUpdate(updates={"a": "1"}), RemovePropertiesUpdate(removals=["a", "gone"]))
    assert RemovePropertiesUpdate(removals=["a"]) == as_java_applies(updates, head)[1]


def test_what_is_not_there_is_removed_without_a_word(head: TableMetadata) -> None:
    gone: tuple[TableUpdate, ...] = (
        RemoveSchemasUpdate(schema_ids=[7]),
        RemovePartitionSpecsUpdate(spec_ids=[7]),
        RemoveStatisticsUpdate(snapshot_id=7),
        RemovePartitionStatisticsUpdate(snapshot_id=7),
        RemovePropertiesUpdate(removals=["gone"]),
    )
    assert () == as_java_applies(gone, head)
    there = (RemoveSchemasUpdate(schema_ids=[0]), RemovePartitionSpecsUpdate(spec_ids=[0]))
    assert there == as_java_applies(there, head)  # they are current, so PyIceberg refuses it
    more = (RemoveSchemasUpdate(schema_ids=[7, 0]), RemovePartitionSpecsUpdate(spec_ids=[0, 7]))
    assert there == as_java_applies(more, head)


def test_the_last_id_of_a_schema_is_never_given_again(head: TableMetadata) -> None:
    """A client that knows only the removed schema would take the new one for it."""
    first, last = head.schemas[0], head.schemas[0].model_copy(update={"schema_id": 2})
    grown = head.model_copy(update={"schemas": [first, first.model_copy(update={"schema_id": 1}), last]})
    removals = (RemoveSchemasUpdate(schema_ids=[1, 2]),)
    assert (RemoveSchemasUpdate(schema_ids=[1]),) == as_java_applies(removals, grown)
    back = SetCurrentSchemaUpdate(schema_id=0)
    of_last = grown.model_copy(update={"current_schema_id": 2})
    assert (back, RemoveSchemasUpdate(schema_ids=[1])) == as_java_applies((back, removals[0]), of_last)


def test_a_removed_id_is_not_given_to_a_client_that_asks_for_it(head: TableMetadata) -> None:
    kept = head.model_copy(update={"schemas": [*head.schemas, head.schemas[0].model_copy(update={"schema_id": 2})]})
    wanted = Schema(*head.schema().fields, NestedField(99, "more", LongType(), required=False), schema_id=1)
    (added,) = as_java_applies((AddSchemaUpdate(schema_=wanted),), kept)
    assert isinstance(added, AddSchemaUpdate)
    assert 3 == added.schema_.schema_id


@pytest.mark.parametrize("asked, is_given", [(7, True), (2**31 - 1, False), (2**40, False), (-5, False)])
def test_a_client_cannot_take_the_last_id_that_java_reads(head: TableMetadata, asked: int, is_given: bool) -> None:
    fields = [NestedField(99, "more", LongType(), required=False)]
    updates = (
        AddSchemaUpdate(schema_=Schema(*head.schema().fields, *fields, schema_id=asked)),
        AddPartitionSpecUpdate(spec=PartitionSpec(PartitionField(1, 1000, BucketTransform(7), "b"), spec_id=asked)),
        AddSortOrderUpdate(sort_order=SortOrder(SortField(2, IdentityTransform()), order_id=asked)),
        SetCurrentSchemaUpdate(schema_id=-1),
    )
    schema, spec, order, current = as_java_applies(updates, head)
    assert isinstance(schema, AddSchemaUpdate)
    assert isinstance(spec, AddPartitionSpecUpdate)
    assert isinstance(order, AddSortOrderUpdate)
    given = [schema.schema_.schema_id, spec.spec.spec_id, order.sort_order.order_id]
    assert given == ([asked] * 3 if is_given else [1, 1, 2])  # the head has a schema, a spec, and two sort orders
    assert SetCurrentSchemaUpdate(schema_id=given[0]) == current


def test_statistics_are_removed_once(head: TableMetadata) -> None:
    """Java removes those of a snapshot that expires itself, behind the snapshot."""
    file = {"snapshot-id": 1, "statistics-path": "p", "file-size-in-bytes": 1}
    whole = StatisticsFile.model_validate({**file, "file-footer-size-in-bytes": 1, "blob-metadata": []})
    part = PartitionStatisticsFile.model_validate(file)
    removals = (RemoveStatisticsUpdate(snapshot_id=1), RemovePartitionStatisticsUpdate(snapshot_id=1))
    expiry = RemoveSnapshotsUpdate(snapshot_ids=[1])
    kept = head.model_copy(update={"statistics": [whole], "partition_statistics": [part]})
    assert (*removals, expiry) == as_java_applies((*removals, *removals, expiry), kept)
    assert (expiry,) == as_java_applies((expiry, *removals), kept)
    sets = (SetStatisticsUpdate(statistics=whole), SetPartitionStatisticsUpdate(partition_statistics=part))
    assert (*sets, *removals) == as_java_applies((*removals, *sets, *removals), head)


@pytest.mark.parametrize("number, parent, lands", [(5, 1, False), (6, 1, True), (5, None, True)])
def test_a_snapshot_takes_no_sequence_number_that_was_given(
    head: TableMetadata, number: int, parent: int | None, lands: bool
) -> None:
    grown = head.model_copy(update={"last_sequence_number": 5, "format_version": 3})
    snapshot = Snapshot(snapshot_id=9, parent_snapshot_id=parent, sequence_number=number, manifest_list="l")
    updates = (AddSnapshotUpdate(snapshot=snapshot),)
    if lands:
        assert updates == as_java_applies(updates, grown)
        return
    with pytest.raises(CommitFailedException, match="sequence number 5 older than last sequence number 5"):
        as_java_applies(updates, grown)


def _added(number: int, parent: int | None) -> AddSnapshotUpdate:
    return AddSnapshotUpdate(snapshot=Snapshot(snapshot_id=number, parent_snapshot_id=parent, manifest_list="l"))


def _moved(number: int, branch: str = "main") -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": branch, "type": "branch", "snapshot-id": number})


_REPLACED = RemoveSnapshotRefUpdate(ref_name="main")


@pytest.mark.parametrize(
    "updates, lands",
    [
        ((_added(2, 1), _moved(2)), True),
        ((_added(2, 0), _moved(2)), False),
        ((_added(2, None), _moved(2)), False),
        ((_added(2, 2), _moved(2)), False),
        ((_added(2, 3), _added(3, 2), _moved(3)), False),
        ((_added(2, 1), _added(3, 2), _moved(3)), True),
        ((_added(2, 1), _moved(2), _added(3, 2), _moved(3)), True),
        ((_added(2, 1), _moved(2), _added(3, 1), _moved(3)), False),
        ((_added(2, 0), _added(3, 2), _moved(3)), False),
        ((_moved(0), _added(2, 0), _moved(2)), True),
        ((_moved(0), _added(2, 1), _moved(2)), False),
        ((_moved(0),), True),
        ((_added(2, 0),), True),
        ((_added(2, None), _REPLACED, _moved(2)), True),
        ((_REPLACED, _added(2, None), _moved(2)), True),
        ((_added(2, None), _moved(2), _REPLACED), False),
        ((_added(2, 0), _moved(2, "audit")), True),
        ((_added(2, 1), _moved(2), _moved(2, "audit")), True),
        ((_added(2, 1), _moved(2), _moved(2, "other")), False),
        ((_added(2, 0), _moved(2, "other")), True),
    ],
)
def test_a_snapshot_follows_the_head_of_its_branch(
    head: TableMetadata, updates: tuple[TableUpdate, ...], lands: bool
) -> None:
    """The branch main is at the snapshot 1, and other at 0."""
    at = {"main": 1, "other": 0}
    refs = {name: SnapshotRef.model_validate({"snapshot-id": each, "type": "branch"}) for name, each in at.items()}
    there = head.model_copy(update={"refs": refs, "format_version": 1})
    if lands:
        as_java_applies(updates, there)
        return
    with pytest.raises(CommitFailedException, match="Requirement failed: branch (main|other) has changed"):
        as_java_applies(updates, there)


def test_files_under_a_spec_whose_id_was_taken_are_refused(head: TableMetadata) -> None:
    other = PartitionSpec(PartitionField(2, 1001, IdentityTransform(), "s"), spec_id=0)
    added = AddSnapshotUpdate(snapshot=Snapshot(snapshot_id=1, manifest_list="l"))
    with pytest.raises(CommitFailedException, match="Requirement failed: default partition spec changed"):
        as_java_applies((AddPartitionSpecUpdate(spec=other), added), head)


# -- metadata ------------------------------------------------------------------------------------------------


def test_snapshots_that_no_ref_names_are_left_out_and_the_rest_is_not_touched() -> None:
    metadata = {
        "current-snapshot-id": 2**62,
        "refs": {"t": {"snapshot-id": 1, "type": "tag"}},
        "snapshots": [{"snapshot-id": 1, "new": [1.5]}, {"snapshot-id": 2}, {"snapshot-id": 2**62}],
        "unknown": {"x": None},
    }
    made = json.loads(with_referenced_snapshots(json.dumps(metadata).encode()))
    assert {**metadata, "snapshots": [metadata["snapshots"][0], metadata["snapshots"][2]]} == made  # type: ignore[index]


@pytest.mark.parametrize("text", [b'{"a":1}', b'{"snapshots":null}', b'{"snapshots":[],"refs":null}'])
def test_a_table_without_snapshots_has_none_of_refs(text: bytes) -> None:
    assert json.loads(text) == json.loads(with_referenced_snapshots(text))


# -- the server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])  # noqa: S104 - to be refused
def test_an_address_that_others_reach_is_refused_without_authentication(host: str) -> None:
    with pytest.raises(ConfigError, match="without authentication the server listens on loopback only"):
        check(Serving(catalogs=("shop",), host=host))


def _asked(application: Application, times: int, *received: dict[str, Any]) -> list[int | None]:
    """Return the statuses of so many requests at once; None where there was no answer."""

    async def one() -> int | None:
        sent: list[Any] = []
        messages = list(received or [{"type": "http.request", "body": b""}])

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1:8181")]
        path = {"raw_path": b"/v1/config", "query_string": b""}
        scope = {"type": "http", "method": "GET", **path, "headers": headers}
        await application(scope, receive, send)
        return sent[0]["status"] if sent else None

    async def all_of_them() -> list[int | None]:
        return list(await asyncio.gather(*(one() for _ in range(times))))

    return asyncio.run(all_of_them())


class _Blocking(Application):
    """Answers nothing until it is let."""

    def __init__(self, threads: int) -> None:
        super().__init__(Serving(catalogs=("shop",), threads=threads, limits=Limits(max_requests=17)))
        self.go_on = threading.Event()
        self.answered = 0
        self.start()

    def answer(self, admitted: Admitted) -> HttpAnswer:
        """Wait."""
        self.go_on.wait(PATIENCE)
        self.answered += 1
        return HttpAnswer(status=200)


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Blocking]:
    """An application with one thread."""
    configure(monkeypatch, tmp_path, "shop")
    application = _Blocking(threads=1)
    yield application
    application.end()


def test_more_requests_than_the_server_can_take_are_refused(application: _Blocking) -> None:
    threading.Timer(0.2, application.go_on.set).start()
    statuses = _asked(application, 20)
    assert {200: 17, 429: 3} == {status: statuses.count(status) for status in set(statuses)}


def test_half_a_request_is_not_carried_out(application: _Blocking) -> None:
    application.go_on.set()
    half = {"type": "http.request", "body": b"{}", "more_body": True}
    assert [None] == _asked(application, 1, half, {"type": "http.disconnect"})
    assert [200] == _asked(application, 1, half, {"type": "http.request", "body": b""})
    assert 1 == application.answered


def test_what_has_not_begun_when_the_server_stops_is_refused(application: _Blocking) -> None:
    def stop() -> None:
        application.stop()
        application.go_on.set()

    threading.Timer(0.2, stop).start()
    assert [200, 429, 429] == _asked(application, 3)
