"""What would leave a table or view that nobody can load or change: each way to give it one is refused, and gives none.

The values fit JSON and PyIceberg's models. Java, or the library, fails on what has them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import FixedType, ListType, LongType, NestedField, StringType

from tests.rest.kit import SCHEMA, Server, ids, path_of, row_ids

Json = dict[str, Any]

_COLUMNS: list[Json] = [
    {"id": 1, "name": "id", "type": "long", "required": False},
    {"id": 2, "name": "s", "type": "string", "required": False},
]


def _schema(*more: Json) -> Json:
    return {"type": "struct", "schema-id": 0, "fields": [*_COLUMNS, *more]}


def _column(number: int = 3, kind: Any = "long", **more: Any) -> Json:
    return {"id": number, "name": "more", "type": kind, "required": False, **more}


def _list(number: int, kind: Any = "long") -> Json:
    return {"type": "list", "element-id": number, "element": kind, "element-required": False}


def _deep(**more: Any) -> Json:
    return {"type": "struct", "fields": [{**_column(4, **more), "name": "below"}]}


_WRONG_COLUMNS = {
    "an id of 41 bits": _column(2**40),
    "an id of 41 bits below": _column(kind=_list(2**40)),
    "the id of another one": _column(2, "string"),
    "the id of another one below": _column(kind=_list(1)),
    "a length of 37 bits": _column(kind="fixed[99999999999]"),
    "a length of 32 bits below": _column(kind=_list(4, "fixed[2147483648]")),
    "a default": _column(**{"initial-default": 5}),
    "a default for new rows": _column(**{"write-default": 5}),
    "a default below": _column(kind=_deep(**{"initial-default": 5})),
}
_LAST_IDS = {"the last id": _column(2**31 - 1), "the last id below": _column(kind=_list(2**31 - 1))}


def _partitions(transform: str, number: int = 1000) -> Json:
    field = {"source-id": 2, "field-id": number, "name": "p", "transform": transform}
    return {"spec-id": 1, "fields": [field]}


_WRONG_TRANSFORMS = ["bucket[0]", "bucket[99999999999]", "truncate[0]", "truncate[2147483648]"]
_FAR_PARTITIONS = [_partitions("bucket[4]", number) for number in (2**40, 2**31 - 1)]


def _sorted(transform: str) -> Json:
    field = {"source-id": 2, "transform": transform, "direction": "asc", "null-order": "nulls-first"}
    return {"order-id": 1, "fields": [field]}


_WRONG_PARTS: dict[str, Json] = {
    **{f"{name}": {"schema": _schema(column)} for name, column in _WRONG_COLUMNS.items()},
    **{f"{each} of a spec": {"partition-spec": _partitions(each)} for each in _WRONG_TRANSFORMS},
    **{f"{each} of an order": {"write-order": _sorted(each)} for each in _WRONG_TRANSFORMS},
}
_FAR_PARTS: dict[str, Json] = {
    **{name: {"schema": _schema(column)} for name, column in _LAST_IDS.items()},
    **{f"partition field {spec['fields'][0]['field-id']}": {"partition-spec": spec} for spec in _FAR_PARTITIONS},
}


def _updates(part: Json) -> list[Json]:
    match part:
        case {"schema": schema}:
            return [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
        case {"partition-spec": spec}:
            return [{"action": "add-spec", "spec": spec}, {"action": "set-default-spec", "spec-id": -1}]
        case {"write-order": order}:
            return [{"action": "add-sort-order", "sort-order": order}]
    raise AssertionError(part)


@pytest.mark.parametrize("staged", [True, False], ids=["staged", "made"])
@pytest.mark.parametrize("part", _WRONG_PARTS.values(), ids=_WRONG_PARTS.keys())
def test_a_table_is_not_made_with_it(server: Server, named: Callable[[str], str], part: Json, staged: bool) -> None:
    name = named("made")
    wanted = {"name": name, "schema": _schema(), "stage-create": staged, **part}
    assert 400 == server.ask("POST", "/v1/shop/namespaces/db/tables", wanted).status
    assert 404 == server.ask("HEAD", path_of("db", name)).status


_PARTS = {**_WRONG_PARTS, **_FAR_PARTS}


@pytest.mark.parametrize("part", _PARTS.values(), ids=_PARTS.keys())
def test_a_table_does_not_get_it(server: Server, named: Callable[[str], str], part: Json) -> None:
    name = ("db", named("changed"))
    client = server.client()
    client.create_table(name, SCHEMA).append(ids(1))
    before = client.load_table(name)
    assert 400 == server.ask("POST", path_of(*name), {"updates": _updates(part)}).status
    assert before.metadata == client.load_table(name).metadata
    with server.library() as catalog:
        catalog.load_table(name).append(ids(2))
    assert [1, 2] == row_ids(client.load_table(name))


@pytest.mark.parametrize("part", _PARTS.values(), ids=_PARTS.keys())
def test_a_commit_that_creates_a_table_does_not_give_it_one(
    server: Server, named: Callable[[str], str], part: Json
) -> None:
    name = named("created")
    whole = {"schema": _schema(), "partition-spec": {"spec-id": 0, "fields": []}, **part}
    staged = {"name": name, "schema": _schema(), "stage-create": True}
    location = server.ask("POST", "/v1/shop/namespaces/db/tables", staged).json["metadata"]["location"]
    updates = [
        {"action": "assign-uuid", "uuid": str(uuid.uuid4())},
        {"action": "upgrade-format-version", "format-version": 2},
        *(update for key, value in whole.items() for update in _updates({key: value})),
        {"action": "set-location", "location": location},
    ]
    document = {"requirements": [{"type": "assert-create"}], "updates": updates}
    assert 400 == server.ask("POST", path_of("db", name), document).status
    assert 404 == server.ask("HEAD", path_of("db", name)).status


@pytest.mark.parametrize(
    "numbers",
    [
        {"sequence-number": 2**63 - 1},
        {"sequence-number": 2**62},
        {"first-row-id": 0, "added-rows": 2**63 - 1},
        {"first-row-id": 2**62, "added-rows": 1},
    ],
    ids=str,
)
def test_a_snapshot_leaves_numbers_to_the_next_ones(server: Server, named: Callable[[str], str], numbers: Json) -> None:
    name = ("db", named("numbered"))
    version = "3" if "added-rows" in numbers else "2"
    made = server.client().create_table(name, SCHEMA, properties={"format-version": version})
    snapshot = {
        "snapshot-id": 1,
        "sequence-number": 1,
        "timestamp-ms": 1,
        "manifest-list": f"{made.location()}/metadata/list.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        **numbers,
    }
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 1},
    ]
    assert 400 == server.ask("POST", path_of(*name), {"updates": updates}).status


@pytest.mark.parametrize("version", [3, 2])
def test_a_default_comes_with_version_3(server: Server, named: Callable[[str], str], version: int) -> None:
    made, changed = (named(each) for each in ("made", "changed"))
    more = _column(**{"initial-default": 5, "write-default": 6})
    wanted = {"name": made, "schema": _schema(more), "properties": {"format-version": str(version)}}
    answers = [server.ask("POST", "/v1/shop/namespaces/db/tables", wanted)]
    server.client().create_table(("db", changed), SCHEMA)
    upgrade = {"action": "upgrade-format-version", "format-version": version}
    document = {"updates": [upgrade, *_updates({"schema": _schema(more)})]}
    answers.append(server.ask("POST", path_of("db", changed), document))
    for answer in answers:
        if version < 3:
            assert 400 == answer.status
            assert "more has a default value" in answer.error[2]
        else:
            column = answer.json["metadata"]["schemas"][-1]["fields"][2]
            assert (5, 6) == (column["initial-default"], column["write-default"])


_VIEW_PARTS = [
    {"schema": _schema(_column(2, "string"))},
    {"schema": _schema(_column(2**40))},
    {"schema": _schema(_column(kind="fixed[99999999999]"))},
    {"version-id": 2**40},
    {"version-id": 2**31 - 1},
]


@pytest.mark.parametrize("part", _VIEW_PARTS, ids=lambda part: next(iter(part)))
def test_a_view_does_not_get_it(server: Server, named: Callable[[str], str], part: Json) -> None:
    new, old = named("new"), named("old")
    version = {
        "version-id": part.get("version-id", 1),
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": {},
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
        "default-namespace": ["db"],
    }
    wanted = {"schema": part.get("schema", _schema()), "view-version": version, "properties": {}}
    views = "/v1/shop/namespaces/db/views"
    assert 400 == server.ask("POST", views, {**wanted, "name": new}).status
    assert 404 == server.ask("HEAD", f"{views}/{new}").status
    right = {"schema": _schema(), "view-version": {**version, "version-id": 1}, "properties": {}}
    assert 200 == server.ask("POST", views, {**right, "name": old}).status
    updates = [
        {"action": "add-schema", "schema": wanted["schema"]},
        {"action": "add-view-version", "view-version": {**version, "schema-id": -1}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    assert 400 == server.ask("POST", f"{views}/{old}", {"updates": updates}).status


@pytest.mark.parametrize(
    "schema, spec, order, reason",
    [
        (Schema(NestedField(1, "a", FixedType(2**31))), None, None, "too long"),
        (Schema(NestedField(1, "a", ListType(1, LongType()))), None, None, "several have the id 1"),
        (Schema(NestedField(1, "a", LongType(), initial_default=5)), None, None, "default value"),
        (None, BucketTransform(0), None, "from 1 to"),
        (None, None, TruncateTransform(0), "from 1 to"),
    ],
)
def test_the_library_makes_no_such_table(
    server: Server, named: Callable[[str], str], schema: Schema | None, spec: Any, order: Any, reason: str
) -> None:
    name = ("db", named("library"))
    by = PartitionSpec(*([PartitionField(1, 1000, spec, "p")] if spec else []))
    sort = SortOrder(*([SortField(1, order)] if order else []))
    columns = schema or Schema(NestedField(1, "a", StringType()))
    with server.library() as catalog:
        with pytest.raises(ValueError, match=reason):
            catalog.create_table(name, columns, partition_spec=by, sort_order=sort)
        with pytest.raises(ValueError, match=reason):
            catalog.create_table_transaction(name, columns, partition_spec=by, sort_order=sort)
        assert not catalog.table_exists(name)


def test_the_library_changes_no_table_into_such_a_one(server: Server, named: Callable[[str], str]) -> None:
    name = ("db", named("library"))
    with server.library() as catalog:
        table = catalog.create_table(name, SCHEMA)
        with pytest.raises(ValueError, match="too long"), table.update_schema() as columns:
            columns.add_column("more", FixedType(2**31))
        with pytest.raises(ValueError, match="from 1 to"), table.update_spec() as spec:
            spec.add_field("s", BucketTransform(0), "p")
