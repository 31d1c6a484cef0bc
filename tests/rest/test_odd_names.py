"""Names, locations and columns that are allowed and odd, or that no store takes: over HTTP, each has its own object.

A request that can never be carried out is a 4xx: after a 503 a client would send it again and again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from pyiceberg.exceptions import NoSuchNamespaceError

from commit_coord.rest.commits import key_of
from tests.rest.kit import SCHEMA, Response, Server, path_of
from tests.rest.lost_replies import new_key

_SPACES = "/v1/shop/namespaces"
_COLUMNS = SCHEMA.model_dump(mode="json")
_VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1,
    "summary": {},
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    "default-namespace": ["db"],
}
_SETS = [{"action": "set-properties", "updates": {"a": "1"}}]


def _make(server: Server, space: str, name: str, schema: Any = _COLUMNS) -> Response:
    return server.ask("POST", f"{_SPACES}/{quote(space, safe='')}/tables", {"name": name, "schema": schema})


def _status(server: Server, method: str, *levels: str) -> int:
    return server.ask(method, f"{_SPACES}/{quote(chr(0x1F).join(levels), safe='')}").status


def test_a_namespace_is_found_by_its_own_letters_alone(server: Server, named: Callable[[str], str]) -> None:
    low = named("sales")
    high = low.upper()
    for levels in ([low], [low, "eu"]):
        server.ask("POST", _SPACES, {"namespace": levels})
    assert 404 == _status(server, "HEAD", high)
    assert 404 == _status(server, "HEAD", high, "eu")
    assert 404 == _status(server, "DELETE", high)
    assert 404 == _make(server, high, "t").status
    assert 200 == server.ask("POST", _SPACES, {"namespace": [high]}).status
    listed = server.ask("GET", _SPACES).json["namespaces"]
    assert [[high], [low]] == sorted(each for each in listed if each[0].lower() == low)
    assert 204 == _status(server, "DELETE", high)
    assert [404, 204, 204] == [_status(server, "HEAD", *levels) for levels in ((high,), (low,), (low, "eu"))]


@pytest.mark.parametrize("wild", ["a_b", "a%b"])
def test_a_namespace_is_no_pattern(server: Server, named: Callable[[str], str], wild: str) -> None:
    stem = named("wild")
    server.ask("POST", _SPACES, {"namespace": [f"{stem}axb", "below"]})
    assert 404 == _status(server, "HEAD", f"{stem}{wild}")
    assert 204 == _status(server, "HEAD", f"{stem}axb")


@pytest.mark.parametrize("through", ["the server", "the library"])
@pytest.mark.parametrize("odd", [*map(chr, range(1, 33)), *".%/\\#?+:;'\"\x7f\x85\u2028é"], ids=ascii)
def test_a_namespace_that_can_be_created_can_be_reached(
    server: Server, named: Callable[[str], str], odd: str, through: str
) -> None:
    name = named("odd")
    level = f"{name}{odd}x"
    made = True
    if through == "the server":
        status = server.ask("POST", _SPACES, {"namespace": [level]}).status
        assert status in (200, 400)
        made = status == 200
    else:
        with server.library() as catalog:
            try:
                catalog.create_namespace((level,))
            except NoSuchNamespaceError:
                made = False
    listed = [space for (space,) in server.ask("GET", _SPACES).json["namespaces"] if space.startswith(name)]
    assert made == bool(listed)
    for space in listed:
        assert 204 == _status(server, "HEAD", space)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_pages_show_each_name_once_whatever_is_in_it(server: Server, named: Callable[[str], str], size: int) -> None:
    space = named("pages")
    server.ask("POST", _SPACES, {"namespace": [space]})
    parts = ("a", "\x1f", ".", "é", '"', "\x1e")
    names = sorted({"".join(each) for each in itertools.product(("a", "b"), parts, parts)})
    for name in names:
        assert 200 == _make(server, space, name).status
    seen: list[str] = []
    token: str | None = ""
    while token is not None and len(seen) <= len(names):
        answer = server.ask("GET", f"{_SPACES}/{space}/tables?pageSize={size}&pageToken={token}").json
        seen += [each["name"] for each in answer["identifiers"]]
        token = answer["next-page-token"]
    assert names == seen


@pytest.mark.parametrize("token", ["x", "InIi", "WzFd", "bnVsbA", "e30"])
def test_a_token_of_another_server_is_malformed(server: Server, token: str) -> None:
    assert 400 == server.ask("GET", f"{_SPACES}/db/tables?pageToken={token}").status


@pytest.mark.parametrize("has_key", [True, False], ids=["with a key", "without"])
def test_two_tables_whose_names_look_alike_are_two(server: Server, named: Callable[[str], str], has_key: bool) -> None:
    space = named("sales")
    for levels in ([space], [space, "payroll"]):
        server.ask("POST", _SPACES, {"namespace": levels})
    tables = [(space, "payroll.x"), (space, "payroll", "x")]
    for *levels, name in tables:
        assert 200 == _make(server, "\x1f".join(levels), name).status
    changes = [
        {"identifier": {"namespace": levels, "name": name}, "requirements": [], "updates": _SETS}
        for *levels, name in tables
    ]
    headers = {"Idempotency-Key": new_key()} if has_key else {}
    for _ in range(2):
        answer = server.ask("POST", "/v1/shop/transactions/commit", {"table-changes": changes}, headers)
        assert 204 == answer.status, answer.body
    for table in tables:
        assert "1" == server.ask("GET", path_of(*table)).json["metadata"]["properties"]["a"]
    twice = [changes[0], changes[0]]
    assert 400 == server.ask("POST", "/v1/shop/transactions/commit", {"table-changes": twice}).status


def test_tables_whose_names_look_alike_are_kept_apart() -> None:
    assert "a.b.c" == key_of(("a", "b", "c"))
    assert 3 == len({key_of(table) for table in (("a", "b", "c"), ("a", "b.c"), ("a", "b", "c.d"), ("a", "b", "c"))})


@pytest.mark.parametrize("odd", ["n\0l", "x" * 300, "é" * 200], ids=["NUL", "300 letters", "400 bytes"])
def test_a_name_that_no_store_takes_is_a_4xx(server: Server, named: Callable[[str], str], odd: str) -> None:
    view = {"schema": _COLUMNS, "view-version": _VERSION, "properties": {}}
    right = named("right")
    assert 200 == _make(server, "db", right).status
    answers = [
        _make(server, "db", odd),
        server.ask("POST", f"{_SPACES}/db/views", {"name": odd, **view}),
    ]
    if "\0" in odd:  # the database of this catalog takes the long ones, and no file is named after them
        source, destination = ({"namespace": ["db"], "name": name} for name in (right, odd))
        renamed = server.ask("POST", "/v1/shop/tables/rename", {"source": source, "destination": destination})
        answers += [server.ask("POST", _SPACES, {"namespace": [odd]}), renamed]
    for answer in answers:
        assert 400 == answer.status, answer.body
        assert "retry-after" not in answer.headers


@pytest.mark.parametrize("kind", ["register", "register-view"])
@pytest.mark.parametrize(
    "location", ["", "file:///tmp", "file:///etc/passwd", f"file:///tmp/{'x' * 300}.metadata.json"]
)
def test_what_is_no_metadata_file_is_not_registered(
    server: Server, named: Callable[[str], str], kind: str, location: str
) -> None:
    wanted = {"name": named("registered"), "metadata-location": location}
    assert 400 == server.ask("POST", f"{_SPACES}/db/{kind}", wanted).status


def _deep(levels: int) -> Any:
    kind: Any = "long"
    for number in range(levels):
        kind = {"type": "list", "element-id": number + 3, "element": kind, "element-required": False}
    column = {"id": 2, "name": "deep", "type": kind, "required": False}
    return {**_COLUMNS, "fields": [_COLUMNS["fields"][0], column]}


@pytest.mark.parametrize("levels, status", [(99, 200), (100, 400), (150, 400), (190, 400), (9000, 400)])
def test_columns_are_as_deep_as_everything_can_read(
    server: Server, named: Callable[[str], str], levels: int, status: int
) -> None:
    made, changed = named("made"), named("changed")
    body = b'{"name": "%s", "schema": %s}' % (
        made.encode(),
        orjson.dumps(_deep(levels)) if levels < 900 else b"[" * levels,
    )
    assert status == server.ask("POST", f"{_SPACES}/db/tables", body).status
    assert 200 == _make(server, "db", changed, {**_COLUMNS, "fields": _COLUMNS["fields"][:1]}).status
    if levels < 900:
        add = (
            b'{"updates": [{"action": "add-schema", "schema": %s}, {"action": "set-current-schema", "schema-id": -1}]}'
        )
        assert status == server.ask("POST", path_of("db", changed), add % orjson.dumps(_deep(levels))).status
    if status == 200:
        with server.library() as catalog:
            for name in (made, changed):
                table = catalog.load_table(("db", name))
                table.append(table.scan().to_arrow())
