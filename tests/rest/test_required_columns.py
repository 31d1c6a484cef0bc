"""Rows that were written while a column was optional, and arrive when it is required."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from tests.rest.held import BLIND, Held
from tests.rest.kit import Response, Server, path_of

Name = tuple[str, str]


def _long(required: bool) -> NestedField:
    return NestedField(2, "c", LongType(), required=required)


def _list(required: bool, element: bool = False) -> NestedField:
    return NestedField(2, "c", ListType(3, LongType(), element), required=required)


def _map(required: bool, value: bool = False) -> NestedField:
    return NestedField(2, "c", MapType(3, StringType(), 4, LongType(), value), required=required)


def _struct(required: bool, field: bool = False) -> NestedField:
    return NestedField(2, "c", StructType(NestedField(3, "x", LongType(), required=field)), required=required)


COLUMNS: dict[str, tuple[Any, Any, Any]] = {
    "long": (_long, None, 7),
    "list": (_list, None, [7]),
    "map": (_map, None, [("a", 7)]),
    "struct": (_struct, None, {"x": 7}),
    "element": (lambda required: _list(False, required), [None], [7]),
    "value": (lambda required: _map(False, required), [("a", None)], [("a", 7)]),
    "field": (lambda required: _struct(False, required), {"x": None}, {"x": 7}),
}
"""The column by whether it is required; a value that lacks what is required, and one that does not."""

HEADERS = {"blind": BLIND, "checked": None}

KINDS = pytest.mark.parametrize("kind", COLUMNS)
DECLARED = pytest.mark.parametrize("declared", HEADERS)
METRICS = pytest.mark.parametrize("metrics", ["full", "none"])
SOME_METRICS = pytest.mark.parametrize("metrics", ["full", pytest.param("none", marks=pytest.mark.slow)])


def _schema(kind: str, *, required: bool) -> Schema:
    return Schema(NestedField(1, "id", LongType()), COLUMNS[kind][0](required))


def _table(client: RestCatalog, name: Name, kind: str, metrics: str = "full") -> Any:
    return client.create_table(
        name, _schema(kind, required=False), properties={"write.metadata.metrics.default": metrics}
    )


def _rows(table: Any, value: Any) -> pa.Table:
    return pa.Table.from_pylist([{"id": 1, "c": value}], schema=table.schema().as_arrow())


def _require(server: Server, name: Name, kind: str) -> None:
    schema = json.loads(_schema(kind, required=True).model_dump_json())
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    answer = server.ask("POST", path_of(*name), {"requirements": [], "updates": updates})
    assert 1 == answer.json["metadata"]["current-schema-id"]


def _refused(answer: Response) -> bool:
    if answer.status == 200:
        return False
    status, error, message = answer.error
    assert (409, "CommitFailedException") == (status, error)
    assert "is required now and was not when the files were written" in message
    return True


@KINDS
@DECLARED
@METRICS
def test_no_null_lands_in_a_column_that_became_required(
    server: Server, client: RestCatalog, name: Name, kind: str, declared: str, metrics: str
) -> None:
    """The client has refreshed its table, and written the manifest of its files anew."""
    table, (_, lacking, _) = _table(client, name, kind, metrics), COLUMNS[kind]
    _require(server, name, kind)
    late = Held.append(client.load_table(name), _rows(table, lacking), written_for=table)
    assert _refused(late.send(server, HEADERS[declared]))
    assert not client.load_table(name).snapshots()


@KINDS
@DECLARED
@SOME_METRICS
def test_what_is_written_with_the_required_column_lands(
    server: Server, client: RestCatalog, name: Name, kind: str, declared: str, metrics: str
) -> None:
    _table(client, name, kind, metrics)
    _require(server, name, kind)
    table = client.load_table(name)
    late = Held.append(table, _rows(table, COLUMNS[kind][2]))
    assert 200 == late.send(server, HEADERS[declared]).status
    assert 1 == len(client.load_table(name).scan().to_arrow())


@KINDS
@DECLARED
@SOME_METRICS
def test_files_of_before_land_only_if_they_show_that_nothing_is_missing(
    server: Server, client: RestCatalog, name: Name, kind: str, declared: str, metrics: str
) -> None:
    """No count, and no statistics of a Parquet file, show that a list has no NULL."""
    table, (_, _, whole) = _table(client, name, kind, metrics), COLUMNS[kind]
    _require(server, name, kind)
    late = Held.append(client.load_table(name), _rows(table, whole), written_for=table)
    assert (kind not in ("long", "struct", "field")) == _refused(late.send(server, HEADERS[declared]))


@KINDS
@DECLARED
def test_a_manifest_of_the_optional_column_is_refused_whatever_its_files_hold(
    server: Server, client: RestCatalog, name: Name, kind: str, declared: str
) -> None:
    table = _table(client, name, kind)
    late = Held.append(table, _rows(table, COLUMNS[kind][2]))
    _require(server, name, kind)
    assert _refused(late.send(server, HEADERS[declared]))
    assert not client.load_table(name).snapshots()


@DECLARED
def test_rows_of_a_schema_that_was_removed_may_lack_it(
    server: Server, client: RestCatalog, name: Name, declared: str
) -> None:
    table = _table(client, name, "long")
    late = Held.append(table, _rows(table, None))
    _require(server, name, "long")
    removal = {"updates": [{"action": "remove-schemas", "schema-ids": [0]}]}
    assert 200 == server.ask("POST", path_of(*name), removal).status
    assert 409 == late.send(server, HEADERS[declared]).status
    table = client.load_table(name)
    assert 200 == Held.append(table, _rows(table, 7)).send(server, HEADERS[declared]).status


def test_a_commit_that_sets_the_columns_itself_lands(server: Server, client: RestCatalog, name: Name) -> None:
    table = _table(client, name, "long")
    late = Held.append(table, _rows(table, None))
    _require(server, name, "long")
    late.document["updates"].insert(0, {"action": "set-current-schema", "schema-id": 0})
    assert 200 == late.send(server).status
    assert [None] == client.load_table(name).scan().to_arrow()["c"].to_pylist()
