"""The fields of requests: which names they have, and what null means. The cases are made from the models."""

from __future__ import annotations

import enum
import json
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic.fields import FieldInfo
from pyiceberg.transforms import Transform
from pyiceberg.typedef import IcebergBaseModel
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from commit_coord.rest import doubts, wire
from commit_coord.rest.fields import MAPS
from commit_coord.rest.wire import CommitTransaction, MalformedRequest, Request, UnsupportedRequest
from tests.rest.kit import SCHEMA, Server, path_of

_UNIONS = (Union, types.UnionType)


def _requests() -> Iterator[type[IcebergBaseModel]]:
    """Yield the models of bodies."""
    for module in (wire, doubts):
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, IcebergBaseModel) and found.__module__ == module.__name__:
                yield found


def _below(annotation: Any) -> Iterator[type[IcebergBaseModel]]:
    """Yield the models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, IcebergBaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _below(argument)


def _models() -> list[type[IcebergBaseModel]]:
    """Return the models of bodies, and all models in them."""
    found: list[type[IcebergBaseModel]] = []
    # Types are told apart by code, and not by annotations.
    left: list[type[IcebergBaseModel]] = [*_requests(), StructType, ListType, MapType]
    while left:
        model = left.pop()
        if model not in found:
            found.append(model)
            left += [each for field in model.model_fields.values() for each in _below(field.annotation)]
    return [model for model in found if "root" not in model.model_fields and model is not IcebergType]


def _name(name: str, field: FieldInfo) -> str:
    return field.alias or name


_OPTIONAL = [
    pytest.param(model, _name(name, field), id=f"{model.__name__}.{_name(name, field)}")
    for model in _models()
    for name, field in model.model_fields.items()
    if not field.is_required()
]
_RENAMED = [
    pytest.param(model, name, id=f"{model.__name__}.{name}")
    for model in _models()
    for name, field in model.model_fields.items()
    if _name(name, field) != name
]


def _value(annotation: Any, fill: Callable[[type[IcebergBaseModel]], Any]) -> Any:
    """Return a value that fits; *fill* makes those of models."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(arguments[0], fill)
    if origin is Literal:
        return arguments[0]
    if origin in _UNIONS:
        return _value(next(each for each in arguments if each is not type(None)), fill)
    if origin in (list, tuple):
        inner = get_args(arguments[0])[0] if get_origin(arguments[0]) is Annotated else arguments[0]
        several = get_args(inner) if get_origin(inner) in _UNIONS else (inner,)
        return [_value(each, fill) for each in several]
    if origin is dict:
        return {}
    if annotation is IcebergType:
        return "long"
    if issubclass(annotation, Transform):
        return "identity"
    if issubclass(annotation, IcebergBaseModel):
        return fill(annotation)
    if issubclass(annotation, enum.Enum):
        return next(iter(annotation)).value
    return {bool: False, int: 1, str: "x.metadata.json", uuid.UUID: str(uuid.UUID(int=7))}[annotation]


def _filled(model: type[IcebergBaseModel], *, null: bool) -> Any:
    """Return a document of *model*, whose other fields are null or not there, down to the innermost models."""
    if "root" in model.model_fields:
        return _value(model.model_fields["root"].annotation, lambda below: _filled(below, null=null))
    document = {}
    for name, field in model.model_fields.items():
        tag = get_origin(field.annotation) is Literal
        if field.is_required() or tag or (list(_below(field.annotation)) and name not in ("summary", "operation")):
            document[_name(name, field)] = _value(field.annotation, lambda below: _filled(below, null=null))
        elif null:
            document[_name(name, field)] = None
    return document


def _parsed(model: type[IcebergBaseModel], document: Any) -> dict[str, Any] | str:
    """Return what *document* means; the reason if it is malformed."""
    try:
        parsed = Request(method="POST", path="/", body=json.dumps(document).encode()).parsed(model)
    except MalformedRequest as error:
        return str(error)
    return parsed.model_dump(mode="json")


@pytest.fixture(autouse=True)
def _at_one_moment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some defaults are the time."""
    if "server" not in request.fixturenames:
        monkeypatch.setattr(time, "time", lambda: 1.0)


@pytest.mark.parametrize("model, name", _OPTIONAL)
def test_an_optional_field_that_is_null_has_its_default(model: type[IcebergBaseModel], name: str) -> None:
    document = {key: value for key, value in _filled(model, null=False).items() if key != name}
    absent = _parsed(model, document)
    assert isinstance(absent, dict), absent
    assert absent == _parsed(model, {**document, name: None})
    assert absent == _parsed(model, {**document, name: absent.get(name)})


@pytest.mark.parametrize("model", list(_requests()), ids=lambda model: model.__name__)
def test_null_means_the_default_at_every_depth(model: type[IcebergBaseModel]) -> None:
    absent, null = (_parsed(model, _filled(model, null=each)) for each in (False, True))
    assert isinstance(absent, dict), absent
    assert absent == null


@pytest.mark.parametrize("model, name", _RENAMED)
def test_a_field_has_the_name_in_the_specification_and_no_other(model: type[IcebergBaseModel], name: str) -> None:
    document = _filled(model, null=False)
    value = document.pop(_name(name, model.model_fields[name]), 1)
    if issubclass(model, wire.Body) and isinstance(_parsed(model, document), dict):
        with pytest.raises(UnsupportedRequest, match=f" {name}$"):
            _parsed(model, {**document, name: value})
    else:
        assert _parsed(model, document) == _parsed(model, {**document, name: value})


def _misspelled(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield *document* with one more field, and with each of its fields under another name that is near; and this."""
    yield "frobnicate", {**document, "frobnicate": 1}
    for name, value in document.items():
        others = {f"{name}s", name[:-1], name.title(), name.upper(), name.replace("-", "_"), name.replace("-", "")}
        for other in others - document.keys() - {""}:
            for kept in (document, {key: each for key, each in document.items() if key != name}):
                yield other, {**kept, other: 1 if value is None else value}


_BODIES = [model for model in _requests() if issubclass(model, wire.Body) and model is not wire.Body]


@pytest.mark.parametrize("model", _BODIES, ids=lambda model: model.__name__)
def test_a_body_has_no_field_that_is_not_known(model: type[wire.Body]) -> None:
    whole = {**_filled(model, null=True), **_filled(model, null=False)}
    assert isinstance(_parsed(model, {**whole, "frobnicate": None}), dict)
    cases = [*_misspelled(whole)]
    for name, part in whole.items():
        if isinstance(part, dict) and part.keys() == {"namespace", "name"}:
            cases += [(where, {**whole, name: changed}) for where, changed in _misspelled(part)]
    assert len(cases) > len(whole)
    for where, document in cases:
        if where == "identifier" and "identifier" in model.ignored:
            continue
        assert _refused_for(model, document) in ("malformed", where), document


def _refused_for(model: type[wire.Body], document: dict[str, Any]) -> str | None:
    """Return the name of the field that is not known; "malformed" if another one is missing, None if it is read."""
    try:
        return "malformed" if isinstance(_parsed(model, document), str) else None
    except UnsupportedRequest as error:
        return str(error).split()[-1].split(".")[-1]


_REQUIREMENTS: list[dict[str, Any]] = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": str(uuid.UUID(int=7))},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
    {"type": "assert-current-schema-id", "current-schema-id": 1},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1},
    {"type": "assert-default-spec-id", "default-spec-id": 1},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]


def _ways(requirement: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield what reads the requirement in a commit, and in a transaction."""
    yield lambda: wire.read_commit(_commit(requirements=[requirement]))
    change = {"identifier": {"namespace": ["a"], "name": "t"}, "requirements": [requirement], "updates": []}
    yield lambda: wire.read_transaction(_transaction(change))


@pytest.mark.parametrize("requirement", _REQUIREMENTS, ids=lambda requirement: str(requirement["type"]))
def test_a_requirement_has_no_field_that_is_not_known(requirement: dict[str, Any]) -> None:
    for read in _ways(requirement):
        assert read()
    for where, changed in _misspelled(requirement):
        for read in _ways(changed):
            with pytest.raises((MalformedRequest, UnsupportedRequest), match="requirements"):
                assert not read(), where


def test_a_requirement_of_a_view_has_no_field_that_is_not_known() -> None:
    requirement = {"type": "assert-view-uuid", "uuid": "x"}
    assert wire.read_view_commit(_commit(requirements=[requirement])).requirements
    for _, changed in _misspelled(requirement):
        with pytest.raises((MalformedRequest, UnsupportedRequest), match="requirements"):
            wire.read_view_commit(_commit(requirements=[changed]))


@pytest.mark.parametrize("place", ["the change", "its identifier"])
def test_a_change_of_a_transaction_has_no_field_that_is_not_known(place: str) -> None:
    name = {"namespace": ["a"], "name": "t", **({"frobnicate": 1} if place == "its identifier" else {})}
    change = {
        "identifier": name,
        "requirements": [],
        "updates": [],
        **({"frobnicate": 1} if place == "the change" else {}),
    }
    with pytest.raises(UnsupportedRequest, match=r"table-changes\.0\.(identifier\.)?frobnicate"):
        wire.read_transaction(_transaction(change))


def test_the_keys_of_a_map_are_the_clients_own() -> None:
    fields = [(_name(name, field), field) for model in _models() for name, field in model.model_fields.items()]
    assert not [name for name, _ in fields if "_" in name]
    maps = {name for name, field in fields if "dict[" in str(field.annotation)}
    assert maps <= MAPS
    properties = {"a_b": "1", "c-d": "2"}
    made = _parsed(wire.CreateNamespace, {"namespace": ["a"], "properties": properties})
    assert {"namespace": ["a"], "properties": properties} == made
    assert "string" in _parsed(wire.CreateNamespace, {"namespace": ["a"], "properties": {"a": None}})


@pytest.mark.parametrize(
    "model, document, name",
    [
        (wire.CreateNamespace, {"namespace": ["a"]}, "properties"),
        (wire.UpdateNamespace, {}, "updates"),
        (wire.CreateTableRequest, {"name": "t", "schema": SCHEMA.model_dump(mode="json")}, "properties"),
    ],
)
def test_numbers_and_booleans_are_properties_as_java_reads_them(
    model: type[IcebergBaseModel], document: Any, name: str
) -> None:
    given = {"a": 7, "b": 2**70, "c": -1.5, "d": True, "e": False, "f": "True"}
    made = _parsed(model, {**document, name: given})
    assert isinstance(made, dict), made
    assert {"a": "7", "b": str(2**70), "c": "-1.5", "d": "true", "e": "false", "f": "True"} == made[name]
    wrong: Any
    for wrong in ([], {}, None):
        assert "string" in _parsed(model, {**document, name: {"a": wrong}})


_SNAPSHOT = {
    "snapshot-id": 1,
    "sequence-number": 1,
    "timestamp-ms": 1,
    "manifest-list": "file:///none",
    "schema-id": 0,
    "summary": {"operation": "append"},
}
_STATISTICS = {
    "snapshot-id": 1,
    "statistics-path": "file:///none",
    "file-size-in-bytes": 1,
    "file-footer-size-in-bytes": 1,
    "blob-metadata": [{"type": "a", "snapshot-id": 1, "sequence-number": 1, "fields": [1]}],
}
_WITH_INTEGERS: list[dict[str, Any]] = [
    {"action": "add-snapshot", "snapshot": {**_SNAPSHOT, "parent-snapshot-id": 1, "first-row-id": 1, "added-rows": 1}},
    {
        "action": "set-snapshot-ref",
        "ref-name": "main",
        "type": "branch",
        "snapshot-id": 1,
        "max-ref-age-ms": 1,
        "max-snapshot-age-ms": 1,
        "min-snapshots-to-keep": 1,
    },
    {"action": "remove-snapshots", "snapshot-ids": [1, 2]},
    {"action": "set-statistics", "statistics": _STATISTICS},
    {"action": "remove-statistics", "snapshot-id": 1},
    {
        "action": "set-partition-statistics",
        "partition-statistics": {"snapshot-id": 1, "statistics-path": "file:///none", "file-size-in-bytes": 1},
    },
]


_BITS = {
    **dict.fromkeys(("snapshot-id", "parent-snapshot-id", "snapshot-ids", "sequence-number", "timestamp-ms"), 64),
    **dict.fromkeys(("first-row-id", "added-rows", "max-ref-age-ms", "max-snapshot-age-ms"), 64),
    **dict.fromkeys(("file-size-in-bytes", "file-footer-size-in-bytes"), 64),
    **dict.fromkeys(("schema-id", "min-snapshots-to-keep", "fields"), 32),
}
"""How many bits the integers of a field have in Java's parsers."""


def _with_each_integer(document: Any, value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield *document* as often as it has integers, each time with *value* instead of one of them; and its field."""
    if isinstance(document, int):
        yield name, value
    elif isinstance(document, dict | list):
        for key, below in document.items() if isinstance(document, dict) else enumerate(document):
            for where, changed in _with_each_integer(below, value, key if isinstance(key, str) else name):
                copy = document.copy()
                copy[key] = changed
                yield where, copy


def _commit(**document: Any) -> Request:
    return Request(method="POST", path="/", body=json.dumps({"updates": [], **document}).encode())


def _transaction(*changes: Any) -> Request:
    return Request(method="POST", path="/", body=json.dumps({"table-changes": changes}).encode())


@pytest.mark.parametrize("update", _WITH_INTEGERS, ids=lambda update: str(update["action"]))
def test_an_integer_is_one_that_java_can_read(update: dict[str, Any]) -> None:
    for where, changed in _with_each_integer(update, 7):
        (parsed,) = wire.read_commit(_commit(updates=[changed])).updates
        assert "7" in parsed.model_dump_json(), where
    for where, bits in _BITS.items():
        last = 2 ** (bits - 1) - 1
        for changed in (each for name, each in _with_each_integer(update, last) if name == where):
            (parsed,) = wire.read_commit(_commit(updates=[changed])).updates
            assert str(last) in parsed.model_dump_json()
    for bad in (2**63, -(2**63) - 1, 1.0, 9007199254740993.0, True, "7"):
        for where, changed in _with_each_integer(update, bad):
            with pytest.raises(MalformedRequest, match=where):
                wire.read_commit(_commit(updates=[changed]))
    for bad in (2**31, -(2**31) - 1, 2**40):
        for where, changed in _with_each_integer(update, bad):
            if _BITS[where] == 32:
                with pytest.raises(MalformedRequest, match=f"{where}.*32 bits"):
                    wire.read_commit(_commit(updates=[changed]))


def test_the_integer_that_is_none_is_named() -> None:
    update = {"action": "add-snapshot", "snapshot": {**_SNAPSHOT, "snapshot-id": 1.0}}
    with pytest.raises(MalformedRequest, match=r"updates\.0\.snapshot\.snapshot-id: .* 64 bits"):
        wire.read_commit(_commit(updates=[update]))
    requirement = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 9007199254740993.0}
    with pytest.raises(MalformedRequest, match=r"requirements\.0\.snapshot-id: .* 64 bits"):
        wire.read_commit(_commit(requirements=[requirement]))
    change = {"identifier": {"namespace": ["a"], "name": "t"}, "requirements": [requirement], "updates": []}
    with pytest.raises(MalformedRequest, match=r"table-changes\.0\.requirements\.0\.snapshot-id"):
        wire.read_transaction(_transaction(change))


def _read_with(source: dict[str, Any]) -> set[int]:
    """Return which columns the specs and orders of a commit and of a creation are read to be of."""
    partition = {"fields": [{**source, "transform": "identity", "name": "a"}]}
    by = {"transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    order = {"order-id": 1, "fields": [{**source, **by}]}
    updates = [{"action": "add-spec", "spec": partition}, {"action": "add-sort-order", "sort-order": order}]
    read: Any = wire.read_commit(_commit(updates=updates)).updates
    body = {"name": "t", "schema": SCHEMA.model_dump(mode="json"), "partition-spec": partition, "write-order": order}
    made = wire.read_creation(Request(method="POST", path="/", body=json.dumps(body).encode()), wire.CreateTableRequest)
    found = (read[0].spec, read[1].sort_order, made.spec, made.order)
    return {field.source_id for each in found for field in each.fields}


@pytest.mark.parametrize("other", [{}, {"source-id": 2}, {"source-id": None}], ids=repr)
def test_one_source_in_a_list_is_the_source(other: dict[str, Any]) -> None:
    """iceberg-go writes it so."""
    assert {2} == _read_with({"source-ids": [2], **other})


@pytest.mark.parametrize("other", [{}, {"source-id": 2}], ids=repr)
@pytest.mark.parametrize("sources", [[], [2, 1], [1, 2], ["2"], [2.0], [True], 2], ids=repr)
def test_other_sources_than_one_are_refused(sources: Any, other: dict[str, Any]) -> None:
    with pytest.raises((MalformedRequest, UnsupportedRequest)):
        _read_with({"source-ids": sources, **other})


def test_two_sources_that_differ_are_refused() -> None:
    with pytest.raises(UnsupportedRequest, match=r"updates\.0\.spec\.fields\.0\.source-ids"):
        _read_with({"source-ids": [1], "source-id": 2})


@pytest.mark.parametrize("value", [5, True, 1.5, None, [], {}], ids=repr)
def test_a_summary_has_strings_only(value: Any) -> None:
    update = {"action": "add-snapshot", "snapshot": {**_SNAPSHOT, "summary": {"operation": "append", "n": value}}}
    with pytest.raises(MalformedRequest, match="strings"):
        wire.read_commit(_commit(updates=[update]))


def test_a_body_that_is_no_json_is_malformed() -> None:
    for body in (b"", b"{", b"\xff", b'{"table-changes": NaN}', b"[" * 50_000, b"null", b"[]"):
        with pytest.raises(MalformedRequest):
            Request(method="POST", path="/", body=body).parsed(CommitTransaction)


# -- through a server ----------------------------------------------------------------------------------------


def test_what_iceberg_go_sends_for_an_empty_map_or_list_is_taken(server: Server, named: Callable[[str], str]) -> None:
    space = named("go")
    columns = {**SCHEMA.model_dump(mode="json"), "identifier-field-ids": None}
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": 0,
        "summary": None,
        "representations": [{"type": "sql", "sql": "SELECT 1", "dialect": "spark"}],
        "default-namespace": [space],
    }
    below = f"/v1/shop/namespaces/{space}"
    view = {"name": "v", "location": None, "schema": columns, "view-version": version, "properties": None}
    table = {"name": "t", "schema": columns, "partition-spec": None, "write-order": None, "properties": None}
    for path, document in (
        ("/v1/shop/namespaces", {"namespace": [space], "properties": None}),
        (f"{below}/properties", {"removals": None, "updates": {"a": "1"}}),
        (f"{below}/properties", {"removals": ["a"], "updates": None}),
        (f"{below}/tables", {**table, "stage-create": None, "location": None}),
        (f"{below}/tables/t", {"requirements": None, "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}),
        (f"{below}/tables/t", {"requirements": None, "updates": None}),
        (f"{below}/views", view),
        (f"{below}/views/v", {"requirements": None, "updates": []}),
    ):
        answer = server.ask("POST", path, document)
        assert 200 == answer.status, (path, answer.body)


@pytest.mark.parametrize(
    "document", [{"table_changes": []}, {"table-changes": None}, {"table_changes": [], "table-changes": 1}]
)
def test_a_transaction_by_another_name_is_malformed(server: Server, document: Any) -> None:
    assert (400, "BadRequestException") == server.ask("POST", "/v1/shop/transactions/commit", document).error[:2]


def _with_a_field_more(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield *document* as often as there are objects in it, each time with one more field in one; and where that is."""
    pairs: Any = document.items() if isinstance(document, dict) else ()
    for key, value in enumerate(document) if isinstance(document, list) else pairs:
        more = [("frobnicate", {**value, "frobnicate": 1})] if isinstance(value, dict) and key not in MAPS else []
        for where, changed in (*more, *_with_a_field_more(value)):
            copy = document.copy()
            copy[key] = changed
            yield f"{key}.{where}", copy


_CREATIONS: dict[str, Any] = {
    "tables": {
        "name": "t",
        "schema": {
            "type": "struct",
            "schema-id": 0,
            "fields": [
                {"id": 1, "name": "a", "type": "long", "required": False},
                {
                    "id": 2,
                    "name": "b",
                    "type": {"type": "list", "element-id": 3, "element": "long", "element-required": False},
                    "required": False,
                },
            ],
        },
        "partition-spec": {
            "spec-id": 0,
            "fields": [{"source-id": 1, "field-id": 1000, "name": "a", "transform": "identity"}],
        },
        "write-order": {
            "order-id": 1,
            "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
        },
        "properties": {"a": "1"},
    },
    "views": {
        "name": "v",
        "schema": {
            "type": "struct",
            "schema-id": 0,
            "fields": [{"id": 1, "name": "a", "type": "long", "required": False}],
        },
        "view-version": {
            "version-id": 1,
            "timestamp-ms": 1,
            "schema-id": 0,
            "summary": {"a": "1"},
            "default-namespace": ["db"],
            "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
        },
        "properties": {"a": "1"},
    },
}


@pytest.mark.parametrize("kind", _CREATIONS)
def test_a_creation_with_a_field_that_is_not_known_is_refused(
    server: Server, named: Callable[[str], str], kind: str
) -> None:
    path, wanted = f"/v1/shop/namespaces/db/{kind}", {**_CREATIONS[kind], "name": named("made")}
    cases = list(_with_a_field_more(wanted))
    assert len(cases) >= 4
    for where, document in cases:
        status, kind_of_error, message = server.ask("POST", path, document).error
        assert (406, "UnsupportedOperationException") == (status, kind_of_error), where
        assert where in message
    for wrong in ("7", 7.0, 2**63):
        schema = {**wanted["schema"], "fields": [{**wanted["schema"]["fields"][0], "id": wrong}]}
        assert 400 == server.ask("POST", path, {**wanted, "schema": schema}).status
    assert 200 == server.ask("POST", path, wanted).status


def test_a_redundant_field_is_ignored(server: Server, named: Callable[[str], str]) -> None:
    """ClickHouse says of lists and maps whether they are required, DuckDB of specs that they are structs."""
    inner = {"type": "list", "element-id": 6, "required": False, "element": "long", "element-required": True}
    pairs = {"type": "map", "key-id": 4, "key": "string", "value-id": 5, "value": inner, "value-required": False}
    deep = {"type": "list", "element-id": 3, "element": {**pairs, "required": True}, "element-required": False}
    columns = [
        {"id": 1, "name": "a", "type": "long", "required": False},
        {"id": 2, "name": "deep", "type": {**deep, "required": False}, "required": False},
    ]
    schema = {"type": "struct", "schema-id": 0, "fields": columns}
    spec = {**_CREATIONS["tables"]["partition-spec"], "type": "struct"}
    order = {**_CREATIONS["tables"]["write-order"], "type": "struct"}
    tables, (plain, full) = "/v1/shop/namespaces/db/tables", (named("plain"), named("full"))
    wanted = {"name": full, "schema": schema, "partition-spec": spec, "write-order": order}
    made = server.ask("POST", tables, wanted)
    assert 200 == made.status, made.body
    server.client().create_table(("db", plain), SCHEMA)
    updates = [
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
        {"action": "add-sort-order", "sort-order": order},
    ]
    changed = server.ask("POST", path_of("db", plain), {"updates": updates})
    assert 200 == changed.status, changed.body
    for found in (made.json["metadata"], changed.json["metadata"]):
        assert "element-required" in str(found["schemas"][-1])
        assert not any("required" in each["type"] for each in found["schemas"][-1]["fields"] if each["name"] == "deep")
    version = _CREATIONS["views"]["view-version"]
    view = {"name": named("v"), "schema": schema, "view-version": version, "properties": {}}
    assert 200 == server.ask("POST", "/v1/shop/namespaces/db/views", view).status


def test_a_required_where_there_is_no_list_or_map_is_unknown(server: Server, named: Callable[[str], str]) -> None:
    struct = {"type": "struct", "fields": [], "required": False}
    columns = [{"id": 1, "name": "a", "type": struct, "required": False}]
    wanted = {"name": named("t"), "schema": {"type": "struct", "schema-id": 0, "fields": columns}}
    status, _, message = server.ask("POST", "/v1/shop/namespaces/db/tables", wanted).error
    assert (406, True) == (status, "schema.fields.0.type.required" in message)


def test_a_field_of_a_commit_by_another_name_is_unknown(server: Server, named: Callable[[str], str]) -> None:
    name = ("db", named("t"))
    server.client().create_table(name, SCHEMA)
    update = {"action": "set-current-schema", "schema-id": -1, "schema_id": 0}
    answer = server.ask("POST", path_of(*name), {"updates": [update]})
    assert (406, "UnsupportedOperationException") == answer.error[:2]
