"""Who may do what. Each answer is compared with an oracle that was written without the code it judges."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import commit_coord
from commit_coord.coordinator.history import newest
from commit_coord.rest import Serving
from commit_coord.rest.access import EVERYTHING, Access, Forbidden, Grants
from commit_coord.rest.gate import Gate
from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.rest.settings import Authentication, Oidc, Proxy
from commit_coord.ui.rendering import address
from tests.rest.asgi import InProcess, configure
from tests.rest.issuer import Issuer
from tests.rest.lost_replies import new_key

CATALOGS = ("shop", "depot")
NAMESPACES = ("a", "a.b", "a.b.c", "ab", "x")
_WORDS = ("none", "read", "write", "administer")
_ROUNDS = 30
_CASES_PER_ROUND = 40

_COLUMNS = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
_VERSION = {
    "version-id": 1,
    "schema-id": 0,
    "timestamp-ms": 1,
    "summary": {},
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    "default-namespace": ["a"],
}


# -- the oracle ----------------------------------------------------------------------------------------------


def allowed(grants: dict[str, str], catalog: str, namespace: str) -> str:
    """Return what *grants* say of a namespace; "" is the catalog itself."""
    levels = namespace.split(".") if namespace else []
    while levels:
        if (found := grants.get(f"{catalog}/{'.'.join(levels)}")) is not None:
            return found
        levels.pop()
    return grants.get(catalog, "none")


def visible(grants: dict[str, str], catalog: str, namespace: str) -> bool:
    """Return whether something at or below a namespace may be read."""
    if allowed(grants, catalog, namespace) != "none":
        return True
    for where, word in grants.items():
        granted, _, below = where.partition("/")
        if granted == catalog and word != "none" and (not namespace or f"{below}.".startswith(f"{namespace}.")):
            return True
    return False


def at_least(word: str, grants: dict[str, str], catalog: str, *namespaces: str) -> bool:
    """Return whether *grants* allow *word* in all *namespaces*."""
    return all(_WORDS.index(allowed(grants, catalog, each)) >= _WORDS.index(word) for each in namespaces)


def expected(case: Case, grants: dict[str, str] | None) -> bool | None:
    """Return whether the request comes in: None is that nobody knows who sent it."""
    if grants is None:
        return None
    catalog, one, other = case.catalog, case.namespace, case.other
    match case.what:
        case "config":
            return visible(grants, catalog, "")
        case "list namespaces":
            return visible(grants, catalog, "")
        case "list below":
            return visible(grants, catalog, one)
        case "load namespace" | "see namespace" | "list tables" | "load table" | "see table" | "metrics":
            return at_least("read", grants, catalog, one)
        case "list views" | "load view" | "see view":
            return at_least("read", grants, catalog, one)
        case "create table" | "commit" | "drop table" | "create view" | "commit view" | "drop view":
            return at_least("write", grants, catalog, one)
        case "rename table" | "rename view" | "transaction":
            return at_least("write", grants, catalog, one, other)
        case "create namespace" | "drop namespace" | "change namespace" | "purge" | "register" | "register view":
            return at_least("administer", grants, catalog, one)
    raise AssertionError(case.what)


# -- requests ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What is asked of which catalog and namespaces."""

    what: str
    catalog: str
    namespace: str
    other: str
    method: str = ""
    path: str = ""
    document: Any = None


_REQUESTS: dict[str, tuple[str, str, Any]] = {
    "list namespaces": ("GET", "/namespaces", None),
    "list below": ("GET", "/namespaces?parent={one}", None),
    "create namespace": ("POST", "/namespaces", {"namespace": "{levels}"}),
    "load namespace": ("GET", "/namespaces/{one}", None),
    "see namespace": ("HEAD", "/namespaces/{one}", None),
    "drop namespace": ("DELETE", "/namespaces/{one}", None),
    "change namespace": ("POST", "/namespaces/{one}/properties", {"updates": {"k": "v"}}),
    "list tables": ("GET", "/namespaces/{one}/tables", None),
    "create table": ("POST", "/namespaces/{one}/tables", {"name": "made", "schema": _COLUMNS, "stage-create": True}),
    "load table": ("GET", "/namespaces/{one}/tables/t", None),
    "see table": ("HEAD", "/namespaces/{one}/tables/t", None),
    "commit": ("POST", "/namespaces/{one}/tables/t", {"requirements": [], "updates": []}),
    "drop table": ("DELETE", "/namespaces/{one}/tables/t", None),
    "purge": ("DELETE", "/namespaces/{one}/tables/t?purgeRequested=TRUE", None),
    "metrics": ("POST", "/namespaces/{one}/tables/t/metrics", {}),
    "register": (
        "POST",
        "/namespaces/{one}/register",
        {"name": "r", "metadata-location": "file:///nowhere.metadata.json"},
    ),
    "rename table": ("POST", "/tables/rename", "rename"),
    "list views": ("GET", "/namespaces/{one}/views", None),
    "create view": ("POST", "/namespaces/{one}/views", {"name": "made", "schema": _COLUMNS, "view-version": _VERSION}),
    "load view": ("GET", "/namespaces/{one}/views/v", None),
    "see view": ("HEAD", "/namespaces/{one}/views/v", None),
    "commit view": ("POST", "/namespaces/{one}/views/v", {"requirements": [], "updates": []}),
    "drop view": ("DELETE", "/namespaces/{one}/views/v", None),
    "rename view": ("POST", "/views/rename", "rename"),
    "transaction": ("POST", "/transactions/commit", "transaction"),
    "register view": (
        "POST",
        "/namespaces/{one}/register-view",
        {"name": "r", "metadata-location": "file:///nowhere.metadata.json"},
    ),
}


def _drawn(chance: random.Random) -> Case:
    what = chance.choice(["config", *_REQUESTS])
    catalog, one, other = chance.choice(CATALOGS), chance.choice(NAMESPACES), chance.choice(NAMESPACES)
    if what == "config":
        return Case(what, catalog, one, other, "GET", f"/v1/config?warehouse={catalog}")
    method, path, document = _REQUESTS[what]
    # The same namespace has many names: dots and 0x1F separate levels, and blanks around them do not count.
    spelled = "%1F".join(one.split(".")) if chance.random() < 0.7 else chance.choice([one, one.replace(".", "%2E")])
    spelled = chance.choice([spelled, spelled, f"+{spelled}", f"{spelled}%20"])
    if document == "rename":
        source, destination = ({"namespace": each.split("."), "name": "t"} for each in (one, other))
        document = {"source": source, "destination": {**destination, "name": "renamed"}}
    elif document == "transaction":
        document = {
            "table-changes": [
                {"identifier": {"namespace": each.split("."), "name": "t"}, "requirements": [], "updates": []}
                for each in (one, other)
            ]
        }
    elif isinstance(document, dict) and "namespace" in document:
        document = {"namespace": one.split(".")}
    return Case(what, catalog, one, other, method, f"/v1/{catalog}{path.format(one=spelled)}", document)


def _some_grants(chance: random.Random) -> dict[str, str]:
    places = [*CATALOGS, *(f"{catalog}/{namespace}" for catalog in CATALOGS for namespace in NAMESPACES)]
    return {place: chance.choice(_WORDS) for place in chance.sample(places, chance.randint(0, 5))}


@dataclass(frozen=True)
class Identity:
    """How a request says who sent it, and what it may do: None if nobody believes it."""

    options: dict[str, Any]
    grants: dict[str, str] | None


def _identities(chance: random.Random, issuer: Issuer) -> tuple[dict[str, Any], list[Identity]]:
    """Return a file of clients, and those who ask: known in every way, or in none."""
    grants = [_some_grants(chance) for _ in range(6)]
    clients = {
        "by-token": {"token-sha256": hashlib.sha256(b"secret").hexdigest(), "grants": grants[0]},
        "by-certificate": {"certificate": "CN=loader,O=Example", "grants": grants[1]},
        "by-proxy": {"proxy-user": "bob", "grants": grants[2]},
        "by-subject": {"oidc-subject": "alice", "grants": grants[3]},
        "by-group": {"oidc-group": "engineers", "grants": grants[4]},
        "by-another-group": {"oidc-group": "writers", "grants": grants[5]},
    }
    both = {
        place: max((g[place] for g in (grants[4], grants[5]) if place in g), key=_WORDS.index)
        for place in {*grants[4], *grants[5]}
    }
    proxied = {"headers": {"x-forwarded-user": "bob"}}
    asking = [
        Identity({"token": "secret"}, grants[0]),
        Identity({"subject": "CN=loader,O=Example"}, grants[1]),
        Identity({"subject": "CN=loader"}, {}),
        Identity({**proxied, "peer": "10.1.2.3"}, grants[2]),
        Identity({**proxied, "peer": "10.2.2.3"}, None),
        Identity({"headers": {"x-forwarded-user": "bob, eve"}, "peer": "10.1.2.3"}, {}),
        Identity({"token": issuer.token("alice")}, grants[3]),
        Identity({"token": issuer.token("eve", groups=["engineers", "writers", "unknown"])}, both),
        Identity({"token": issuer.token("eve")}, {}),
        Identity({"token": issuer.token("alice", audience="another")}, None),
        Identity({"token": "wrong"}, None),
        Identity({"token": "wrong", "subject": "CN=loader,O=Example"}, None),
        Identity({}, None),
    ]
    return clients, asking


def _toml(clients: dict[str, Any]) -> str:
    lines = []
    for name, client in clients.items():
        grants = ", ".join(f"{json.dumps(place)} = {json.dumps(word)}" for place, word in client["grants"].items())
        proofs = [f"{key} = {json.dumps(value)}" for key, value in client.items() if key != "grants"]
        lines += [f"[{name}]", *proofs, f"grants = {{ {grants} }}"]
    return "\n".join(lines) + "\n"


@pytest.fixture
def authentication(tmp_path: Path) -> Authentication:
    """Everybody is known in some way; the files are in the test's folder."""
    return Authentication.model_validate(
        {
            "clients": tmp_path / "clients.toml",
            "proxy": Proxy.model_validate({"addresses": ["10.1.0.0/16"]}),
            "oidc": Oidc(issuer="https://issuer", audience="coord", jwks=str(tmp_path / "keys.json")),
        }
    )


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authentication: Authentication) -> Iterator[InProcess]:
    """A server whose clients each test writes down."""
    configure(monkeypatch, tmp_path, *CATALOGS)
    (tmp_path / "clients.toml").write_text("")
    (tmp_path / "ca.pem").write_text("")
    Issuer().publish(tmp_path / "keys.json")
    tls = {"certificate": tmp_path / "s.pem", "key": tmp_path / "s.key", "client-ca": tmp_path / "ca.pem"}
    serving = Serving.model_validate({"catalogs": CATALOGS, "tls": tls, "authentication": authentication, "threads": 4})
    with InProcess(serving) as server:
        yield server


@pytest.mark.timeout(300)
def test_no_request_comes_in_that_its_sender_may_not_send_and_every_other_one_does(
    server: InProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chance, issuer = random.Random(21), Issuer()
    issuer.publish(tmp_path / "keys.json")
    seen: dict[tuple[str, bool | None], int] = {}
    for number in range(_ROUNDS):
        clients, asking = _identities(chance, issuer)
        (tmp_path / "clients.toml").write_text(_toml(clients) + f"# {number}\n")
        for _ in range(_CASES_PER_ROUND):
            case, identity = _drawn(chance), chance.choice(asking)
            caplog.clear()
            answer = server.ask(case.method, case.path, case.document, **identity.options)
            wanted = expected(case, identity.grants)
            found = None if answer.status == 401 else answer.status != 403
            assert wanted == found, (case, identity, answer)
            assert answer.status < 500, (case, identity, answer)
            refusals = [record for record in caplog.records if record.name == "commit_coord.audit"]
            assert len(refusals) == (wanted is not True), (case, identity)
            seen[case.what, wanted] = seen.get((case.what, wanted), 0) + 1
    assert {what for what, _ in seen} == {"config", *_REQUESTS}
    for wanted in (True, False, None):
        assert sum(count for (_, was), count in seen.items() if was is wanted) > 100


def test_the_oracle_knows_every_route() -> None:
    asked = {(method, path.partition("?")[0]) for method, path, _ in _REQUESTS.values()}
    served = {
        (
            route.method,
            route.path.removeprefix("/v1/{prefix}")
            .replace("{namespace}", "{one}")
            .replace("{table}", "t")
            .replace("{view}", "v"),
        )
        for route in (*SERVED, *VIEWS, *TRANSACTIONS)
    }
    assert asked == served


@pytest.mark.parametrize("catalogs", [("shop",), CATALOGS], ids=["one", "two"])
def test_a_path_without_a_prefix_means_the_only_warehouse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, catalogs: tuple[str, ...]
) -> None:
    """ClickHouse leaves it out when it drops a table. Where there are two warehouses, both may have the table."""
    configure(monkeypatch, tmp_path, *catalogs)
    clients = {
        client: {"token-sha256": hashlib.sha256(client.encode()).hexdigest(), "grants": {"shop": word}}
        for client, word in (("writer", "administer"), ("reader", "read"))
    }
    (tmp_path / "clients.toml").write_text(_toml(clients))
    authentication = Authentication(clients=tmp_path / "clients.toml")
    tables, drop = "/v1/shop/namespaces/db/tables", "/v1/namespaces/db/tables/t?purgeRequested=False"
    with InProcess(Serving(catalogs=catalogs, threads=2, authentication=authentication)) as server:
        assert 200 == server.ask("POST", "/v1/shop/namespaces", {"namespace": ["db"]}, token="writer").status
        assert 200 == server.ask("POST", tables, {"name": "t", "schema": _COLUMNS}, token="writer").status
        dropped = [server.ask("DELETE", drop, token=client).status for client in ("reader", "writer")]
        left = server.ask("GET", f"{tables}/t", token="writer").status
    assert ([403, 204, 404] if len(catalogs) == 1 else [404, 404, 200]) == [*dropped, left]


# -- grants --------------------------------------------------------------------------------------------------


def test_the_longest_prefix_decides_also_where_it_allows_less() -> None:
    grants = Grants({("c",): Access.WRITE, ("c", "a"): Access.NONE, ("c", "a", "b"): Access.READ})
    assert grants.allow(("c", "x"), Access.WRITE)
    assert not grants.allow(("c", "a"), Access.READ)
    assert grants.allow(("c", "a", "b", "d"), Access.READ)
    assert not grants.allow(("d",), Access.READ)


def test_what_lies_above_something_readable_is_seen_and_no_more() -> None:
    grants = Grants({("c", "a", "b"): Access.READ})
    assert grants.allow(("c",), Access.SEE)
    assert grants.allow(("c", "a"), Access.SEE)
    assert not grants.allow(("c", "a"), Access.READ)
    assert not grants.allow(("c", "x"), Access.SEE)
    assert not Grants({("c", "a"): Access.NONE}).allow(("c",), Access.SEE)


def test_a_prefix_is_one_of_levels_and_not_of_letters() -> None:
    assert not Grants({("c", "a"): Access.WRITE}).allow(("c", "ab"), Access.READ)


def test_without_authentication_everything_is_allowed() -> None:
    assert EVERYTHING.allow(("c", "a"), Access.ADMINISTER)


# -- what is sent again --------------------------------------------------------------------------------------


def test_a_repeat_is_answered_to_a_client_that_may_send_it_alone(server: InProcess, tmp_path: Path) -> None:
    clients = {
        name: {"token-sha256": hashlib.sha256(name.encode()).hexdigest(), "grants": {"shop": word}}
        for name, word in (("all", "administer"), ("few", "read"))
    }
    (tmp_path / "clients.toml").write_text(_toml(clients))
    key = {"idempotency-key": "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"}
    asked = ("POST", "/v1/shop/namespaces", {"namespace": ["kept"]})
    assert [200, 403, 200] == [server.ask(*asked, headers=key, token=each).status for each in ("all", "few", "all")]


def test_a_key_belongs_to_the_client_that_sent_it(server: InProcess, tmp_path: Path) -> None:
    """Two clients use one key: neither gets what the other was answered, nor what the other has committed."""
    clients = {
        name: {"token-sha256": hashlib.sha256(name.encode()).hexdigest(), "grants": {"shop": "administer"}}
        for name in ("one", "two")
    }
    (tmp_path / "clients.toml").write_text(_toml(clients))

    def asked(client: str, key: int, path: str, document: Any) -> int:
        headers = {"idempotency-key": f"0190a1b2-c3d4-7e5f-8a9b-{key:012x}"}
        return server.ask("POST", f"/v1/shop/namespaces{path}", document, headers=headers, token=client).status

    assert [200, 409, 200] == [asked(client, 1, "", {"namespace": ["kept"]}) for client in ("one", "two", "one")]
    tables = {"name": "t", "schema": _COLUMNS}
    assert [200, 409, 200] == [asked(client, 2, "/kept/tables", tables) for client in ("one", "two", "one")]

    def sets(key: str) -> Any:
        return {"requirements": [], "updates": [{"action": "set-properties", "updates": {key: "1"}}]}

    assert [200, 200] == [asked(client, 3, "/kept/tables/t", sets(client)) for client in ("one", "two")]
    found = server.ask("GET", "/v1/shop/namespaces/kept/tables/t", token="one").json["metadata"]["properties"]
    assert {"one", "two"} <= found.keys()


# -- lists ---------------------------------------------------------------------------------------------------


def test_lists_leave_out_what_a_client_may_not_know_of(server: InProcess, tmp_path: Path) -> None:
    secret = {"token-sha256": hashlib.sha256(b"all").hexdigest(), "grants": {"shop": "administer"}}
    few = {"token-sha256": hashlib.sha256(b"few").hexdigest(), "grants": {"shop/a.b": "read", "shop/x": "none"}}
    (tmp_path / "clients.toml").write_text(_toml({"all": secret, "few": few}))
    for namespace in NAMESPACES:
        made = server.ask("POST", "/v1/shop/namespaces", {"namespace": namespace.split(".")}, token="all")
        assert 200 == made.status
    assert [["a"], ["ab"], ["x"]] == server.ask("GET", "/v1/shop/namespaces", token="all").json["namespaces"]
    assert [["a"]] == server.ask("GET", "/v1/shop/namespaces", token="few").json["namespaces"]
    page = server.ask("GET", "/v1/shop/namespaces?parent=a&pageToken=&pageSize=1", token="few").json
    assert [["a", "b"]] == page["namespaces"]


def test_a_namespace_that_nobody_may_reach_is_left_out_of_lists(server: InProcess, tmp_path: Path) -> None:
    secret = {"token-sha256": hashlib.sha256(b"all").hexdigest(), "grants": {"shop": "administer"}}
    (tmp_path / "clients.toml").write_text(_toml({"all": secret}))
    with closing(commit_coord.load_catalog("shop")) as catalog:
        catalog.create_namespace("@made_elsewhere")
        catalog.create_namespace("ours")
    listed = server.ask("GET", "/v1/shop/namespaces", token="all")
    assert (200, [["ours"]]) == (listed.status, listed.json["namespaces"])
    assert 403 == server.ask("GET", "/v1/shop/namespaces/@made_elsewhere", token="all").status


# -- what refusals say, and where they are recorded ---------------------------------------------------------------


def _few_see_shop(tmp_path: Path) -> None:
    few = {"token-sha256": hashlib.sha256(b"few").hexdigest(), "grants": {"shop/a": "read"}}
    (tmp_path / "clients.toml").write_text(_toml({"few": few}))


@pytest.mark.parametrize(
    "options, status",
    [
        ({}, 401),
        ({"token": "wrong"}, 401),
        ({"token": "few"}, 403),
        ({"token": "few", "headers": {"origin": "https://evil.example.org"}}, 403),
        ({"headers": {"sec-fetch-site": "cross-site"}}, 403),
    ],
)
@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_refusal_is_recorded_in_the_catalog_and_under_the_route_that_the_path_names(
    server: InProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture, catalog: str, options: Any, status: int
) -> None:
    _few_see_shop(tmp_path)
    log = tmp_path / "access.log"
    server.application._watch._path = str(log)
    assert status == server.ask("DELETE", f"/v1/{catalog}/namespaces/x/tables/t", **options).status
    (refusal,) = [record for record in caplog.records if record.name == "commit_coord.audit"]
    assert catalog == refusal.audit["catalog"]  # type: ignore[attr-defined]
    line = json.loads(log.read_text())
    route = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
    assert (route, catalog, "x.t", status) == tuple(line[key] for key in ("route", "catalog", "table", "status"))


def test_no_answer_names_a_catalog_that_its_reader_may_not_see(tmp_path: Path, server: InProcess) -> None:
    _few_see_shop(tmp_path)
    for method, path in (
        ("GET", "/v1/config?warehouse=nope"),
        ("GET", "/v1/config"),
        ("GET", "/v1/nope/namespaces"),
        ("GET", "/v1/shop/namespaces/x"),
        ("POST", "/v1/oauth/tokens?warehouse=nope"),
        ("GET", "/nope"),
        ("GET", "/ready"),
    ):
        for token in ("few", "wrong", None):
            answer = server.ask(method, path, token=token)
            assert b"depot" not in answer.body, (path, token)
            assert token == "few" or b"shop" not in answer.body.replace(path.encode(), b""), (path, token)
    assert "served are: shop" in server.ask("GET", "/v1/config?warehouse=nope", token="few").error[2]


# -- names of a metastore ------------------------------------------------------------------------------------


class _Metastore:
    """A catalog that folds names as a metastore does."""

    name = "hive"

    def spelled(self, resource: Any) -> Any:
        return type(resource)(tuple(level.lower() for level in resource.path))


class _Warehouse:
    catalog = _Metastore()


@pytest.mark.parametrize("namespace", ["finance", "FINANCE", " finance", "finance\t", "\x01Finance", "\x1efinance"])
def test_no_spelling_leads_past_a_grant_on_a_metastore(namespace: str) -> None:
    assert ("hive", "finance") == Gate.place(_Warehouse(), (namespace,))  # type: ignore[arg-type]


def test_a_namespace_of_another_catalog_of_a_metastore_is_forbidden() -> None:
    with pytest.raises(Forbidden, match="another catalog"):
        Gate.place(_Warehouse(), (" @hive#finance",))  # type: ignore[arg-type]


# -- the page --------------------------------------------------------------------------------------------------

_ALIKE = (
    ("a", "b.c"),
    ("a", "b", "c"),
    ("a", "b.c.d"),
    ("a", "b", "c.d"),
    ("a", "x, y"),
    ("a", "c, a.b.c"),
    ("x", "c, a.b.c"),
    ("x", "b\x1fc"),
    ("a", "b\x1fc"),
)
"""Tables whose names look alike once their levels are joined, or once several names are."""


@dataclass(frozen=True)
class Marked:
    """A table; a text that only its refused commits contain, and the ids of its requests."""

    name: tuple[str, ...]
    marker: str
    requests: tuple[str, ...]

    @property
    def page(self) -> str:
        return address("shop", "table", namespace=".".join(self.name[:-1]), name=self.name[-1])


def _marked(server: InProcess, number: int, name: tuple[str, ...]) -> Marked:
    """Make a table, land one commit, and have one refused; the metadata files and the reason contain the marker."""
    *levels, table = name
    marker, space = f"marker-{number}-", quote("\x1f".join(levels), safe="")
    location = server.catalog.properties["warehouse"] + f"/{marker}"
    root = {"token": "root"}
    made = {"name": table, "schema": _COLUMNS, "location": location}
    assert 200 == server.ask("POST", f"/v1/shop/namespaces/{space}/tables", made, **root).status
    identifier = {"namespace": levels, "name": table}
    updates = [{"action": "set-properties", "updates": {"k": "v"}}]
    update: dict[str, Any] = {"identifier": identifier, "requirements": [], "updates": updates}
    key = {"headers": {"idempotency-key": new_key()}}
    assert 204 == server.ask("POST", "/v1/shop/transactions/commit", {"table-changes": [update]}, **root, **key).status
    loaded = server.catalog.load_table(name)
    landed = newest(loaded.metadata, loaded.metadata_location, 9)[0]["request_id"]
    missing = {"type": "assert-ref-snapshot-id", "ref": marker, "snapshot-id": 1}
    other = {"identifier": {"namespace": ["open"], "name": "t"}, "requirements": [], "updates": update["updates"]}
    refused = []
    for changes in ([{**update, "requirements": [missing]}], [other, {**update, "requirements": [missing]}]):
        answer = server.ask("POST", "/v1/shop/transactions/commit", {"table-changes": changes}, **root)
        assert 409 == answer.status
        (found,) = re.findall(r"request_id='([0-9a-f-]+)'", answer.json["error"]["message"])
        refused.append(found)
    return Marked(name, marker, (landed, *refused))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("read", ["a", "a.b", "x", "open"])
def test_no_page_and_no_route_shows_anything_of_a_table_that_its_reader_may_not_read(
    server: InProcess, tmp_path: Path, read: str
) -> None:
    """However its name looks: of a table without a grant no page has the commits, the files or the errors."""
    grants = {"root": {"shop": "administer"}, "reader": {f"shop/{read}": "read", "shop/open": "read"}}
    (tmp_path / "clients.toml").write_text(
        _toml(
            {
                name: {"token-sha256": hashlib.sha256(name.encode()).hexdigest(), "grants": given}
                for name, given in grants.items()
            }
        )
    )
    for levels in (["a"], ["a", "b"], ["x"], ["open"]):
        assert 200 == server.ask("POST", "/v1/shop/namespaces", {"namespace": levels}, token="root").status
    made = {"name": "t", "schema": _COLUMNS}
    assert 200 == server.ask("POST", "/v1/shop/namespaces/open/tables", made, token="root").status
    tables = [_marked(server, number, name) for number, name in enumerate(_ALIKE)]
    paths = {"/ui/shop/", "/ui/shop/tables", "/ui/shop/request"}
    for table in tables:
        *levels, name = table.name
        paths |= {table.page, address("shop", "", find=".".join(table.name))}
        paths.add(f"/v1/shop/namespaces/{quote(chr(0x1F).join(levels), safe='')}/tables/{quote(name, safe='')}")
        for request_id in table.requests:
            paths |= {address("shop", "request", id=text) for text in (request_id, request_id[:8], request_id[:13])}
            paths.add(address("shop", "request", id=request_id, table=".".join(table.name)))
    shown = {}
    for path in sorted(paths):
        answer = server.ask("GET", path, token="reader")
        assert answer.status in (200, 403, 404), path
        shown[path] = unescape(answer.body.decode())
    everything = "".join(shown.values())
    for table in tables:
        if allowed(grants["reader"], "shop", ".".join(table.name[:-1])) == "none":
            assert table.marker not in everything, [path for path, text in shown.items() if table.marker in text]
        else:
            landed, alone, along = table.requests
            assert table.marker in shown[address("shop", "request", id=landed)]
            assert table.marker in shown[address("shop", "request", id=alone)]
            assert table.marker in shown[address("shop", "request", id=along)]
            assert table.marker in shown[table.page]
