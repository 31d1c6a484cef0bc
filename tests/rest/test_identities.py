"""How it is known who sent a request: tokens, OAuth, an issuer, certificates, a proxy, and files that change."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commit_coord.errors import ConfigError
from commit_coord.model import Resource
from commit_coord.rest import Serving, check
from commit_coord.rest.access import NotAuthenticated
from commit_coord.rest.clients import Clients
from commit_coord.rest.gate import Gate
from commit_coord.rest.keys import FetchedKeys
from commit_coord.rest.settings import OAuth, Oidc, Proxy
from commit_coord.rest.tokens import OwnTokens
from commit_coord.testing.fleet import holds_within
from tests.rest.asgi import InProcess, configure
from tests.rest.issuer import Issuer
from tests.rest.kit import Response

_SECRET = "s3cret-of-spark"
_LIST = "/v1/shop/namespaces"


def _client(secret: str = _SECRET, grants: str = 'shop = "administer"') -> str:
    return f'[spark]\ntoken-sha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"\ngrants = {{ {grants} }}\n'


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the client ``spark``, and the catalog ``shop``."""
    configure(monkeypatch, tmp_path, "shop")
    path = tmp_path / "clients.toml"
    path.write_text(_client())
    return path


def serving(clients: Path, **authentication: Any) -> Serving:
    """Return how to serve to the clients of a file."""
    return Serving.model_validate(
        {"catalogs": ["shop"], "threads": 2, "authentication": {"clients": clients, **authentication}}
    )


@pytest.fixture
def server(clients: Path) -> Iterator[InProcess]:
    """A server that gives tokens."""
    with InProcess(serving(clients, oauth=OAuth())) as server:
        yield server


# -- bearer tokens -------------------------------------------------------------------------------------------


def test_a_known_token_comes_in(server: InProcess) -> None:
    assert 200 == server.ask("GET", _LIST, token=_SECRET).status


def test_without_a_token_the_answer_says_how_to_authenticate(server: InProcess) -> None:
    answer = server.ask("GET", _LIST)
    assert (401, "NotAuthorizedException") == answer.error[:2]
    assert 'Bearer realm="commit-coord"' == answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "authorization",
    ["Bearer wrong", "Bearer", "Basic c3Bhcms6eA==", f"Bearer {_SECRET}, Bearer x", "Bearer a.b.c", "Bearer ..", "x"],
)
def test_a_wrong_token_is_never_taken_for_none(server: InProcess, authorization: str) -> None:
    answer = server.ask("GET", _LIST, headers={"authorization": authorization}, subject="CN=x")
    assert 401 == answer.status
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


def test_a_refusal_is_in_the_errors_of_the_specification_and_says_what_is_missing(
    server: InProcess, clients: Path
) -> None:
    clients.write_text(_client(grants='"shop/a" = "read"'))
    assert (403, "ForbiddenException", "spark may not write shop/a") == server.ask(
        "POST", "/v1/shop/namespaces/a/tables", {"name": "t"}, token=_SECRET
    ).error


def test_a_token_is_revoked_without_a_restart_and_a_broken_file_changes_nothing(
    server: InProcess, clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clients.write_text("[spark\n")
    assert 200 == server.ask("GET", _LIST, token=_SECRET).status
    assert "the last valid content stays in use" in caplog.text
    clients.write_text(_client("another"))
    assert 401 == server.ask("GET", _LIST, token=_SECRET).status
    assert 200 == server.ask("GET", _LIST, token="another").status


def test_the_body_of_a_request_from_nobody_is_not_read(clients: Path) -> None:
    with InProcess(serving(clients, oauth=OAuth())) as server:
        headers = {"content-length": str(2**40)}
        assert 401 == server.ask("POST", _LIST, b"{}", headers=headers).status
        assert 413 == server.ask("POST", _LIST, b"{}", headers=headers, token=_SECRET).status
        assert 413 == server.ask("POST", "/v1/oauth/tokens", b"x" * 100_000).status


# -- OAuth ---------------------------------------------------------------------------------------------------


def _token(server: InProcess, form: dict[str, str], headers: dict[str, str] | None = None) -> Response:
    body = "&".join(f"{name}={value}" for name, value in form.items()).encode()
    return server.ask("POST", "/v1/oauth/tokens", body, headers=headers)


def _credentials(secret: str = _SECRET) -> dict[str, str]:
    return {"grant_type": "client_credentials", "client_id": "spark", "client_secret": secret, "scope": "catalog"}


def test_credentials_are_exchanged_for_a_token_that_comes_in(server: InProcess) -> None:
    given = _token(server, _credentials())
    assert (200, "bearer", 3600) == (given.status, given.json["token_type"], given.json["expires_in"])
    assert "no-store" == given.headers["cache-control"]
    assert 200 == server.ask("GET", _LIST, token=given.json["access_token"]).status


def test_credentials_may_be_in_the_header(server: InProcess) -> None:
    basic = base64.b64encode(f"spark:{_SECRET}".encode()).decode()
    assert 200 == _token(server, {"grant_type": "client_credentials"}, {"authorization": f"Basic {basic}"}).status


def test_a_token_that_ends_soon_is_exchanged_for_the_next_one(server: InProcess) -> None:
    first = _token(server, _credentials()).json["access_token"]
    exchange = {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": first}
    second = _token(server, exchange, {"authorization": f"Bearer {first}"}).json["access_token"]
    assert 200 == server.ask("GET", _LIST, token=second).status
    assert 401 == _token(server, {**exchange, "subject_token": _SECRET}).status


@pytest.mark.parametrize(
    "form, status, error",
    [
        (_credentials("wrong"), 401, "invalid_client"),
        ({**_credentials(), "client_id": "flink"}, 401, "invalid_client"),
        ({"grant_type": "client_credentials"}, 401, "invalid_client"),
        ({"grant_type": "password"}, 400, "unsupported_grant_type"),
        ({}, 400, "unsupported_grant_type"),
    ],
)
def test_wrong_credentials_are_refused_in_oauths_words_and_audited(
    server: InProcess, caplog: pytest.LogCaptureFixture, form: dict[str, str], status: int, error: str
) -> None:
    answer = _token(server, form)
    assert (status, error) == (answer.status, answer.json["error"])
    assert (status == 401) == any(record.name == "commit_coord.audit" for record in caplog.records)
    assert _SECRET not in caplog.text


@pytest.mark.parametrize("grant", ["client_credentials", "urn:ietf:params:oauth:grant-type:token-exchange"])
@pytest.mark.parametrize(
    "basic",
    ["", " ", ":", "c3Bhcms", "c3Bhcms=\n", "=", "/w==", "\xe9\xe9", "c3Bhcms6\xff", "c3Bh cms6", "c3Bhcms6_w=="],
)
def test_credentials_in_the_header_that_are_none_are_refused_and_audited(
    server: InProcess, caplog: pytest.LogCaptureFixture, basic: str, grant: str
) -> None:
    answer = _token(server, {**_credentials(), "grant_type": grant}, {"authorization": f"Basic {basic}"})
    assert (401, "invalid_client") == (answer.status, answer.json["error"])
    assert any(record.name == "commit_coord.audit" for record in caplog.records)


def test_the_open_route_does_not_tell_which_catalogs_there_are(server: InProcess) -> None:
    for warehouse in ("nope", "shop"):
        answer = server.ask("POST", f"/v1/oauth/tokens?warehouse={warehouse}", b"")
        assert (400, "unsupported_grant_type") == (answer.status, answer.json["error"])
        assert b"shop" not in answer.body


def test_a_token_ends_with_the_secret_for_which_it_was_given(server: InProcess, clients: Path) -> None:
    token = _token(server, _credentials()).json["access_token"]
    clients.write_text(_client("another"))
    assert 401 == server.ask("GET", _LIST, token=token).status
    clients.write_text("")
    assert 401 == server.ask("GET", _LIST, token=token).status


def test_servers_that_share_a_key_accept_each_others_tokens_and_others_do_not(clients: Path, tmp_path: Path) -> None:
    (tmp_path / "own.key").write_bytes(os.urandom(32))
    shared = serving(clients, oauth=OAuth(key=tmp_path / "own.key"))
    others = serving(clients, oauth=OAuth())
    with InProcess(shared) as one, InProcess(shared) as other, InProcess(others) as third:
        token = _token(one, _credentials()).json["access_token"]
        assert [200, 200, 401] == [each.ask("GET", _LIST, token=token).status for each in (one, other, third)]


def test_an_expired_token_of_ours_says_so(clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcess(serving(clients, oauth=OAuth(token_lifetime_ms=1000))) as server:
        token = _token(server, _credentials()).json["access_token"]
        later = time.time() + 2
        monkeypatch.setattr(time, "time", lambda: later)
        answer = server.ask("GET", _LIST, token=token)
        assert 401 == answer.status
        assert 'error_description="the token has expired"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize(
    "ahead_s, lifetime_s, comes_in",
    [(0, 3600, True), (30, 3600, True), (59, 3600, True), (90, 3600, False), (-30, 20, False), (-30, 40, True)],
)
def test_a_token_of_a_server_with_another_clock_comes_in_and_ends_in_time(
    monkeypatch: pytest.MonkeyPatch, ahead_s: int, lifetime_s: int, comes_in: bool
) -> None:
    tokens, now = OwnTokens(b"k" * 32, lifetime_s * 1000), time.time()
    with monkeypatch.context() as there:
        there.setattr(time, "time", lambda: now + ahead_s)
        token = tokens.give("spark", "0" * 64)
    monkeypatch.setattr(time, "time", lambda: now)
    if comes_in:
        assert ("spark", "0" * 16) == tokens.read(token)
    else:
        with pytest.raises(NotAuthenticated):
            tokens.read(token)


def test_a_proxy_is_known_in_each_notation_of_its_address() -> None:
    proxy = Proxy.model_validate({"addresses": ["10.1.0.0/16", "fd00::/8"]})
    assert all(proxy.has(peer) for peer in ("10.1.2.3", "::ffff:10.1.2.3", "::ffff:a01:203", "fd00::1"))
    assert not any(proxy.has(peer) for peer in ("10.2.2.3", "::ffff:10.2.2.3", "::10.1.2.3", "fe80::1", "", "x"))


@pytest.mark.parametrize("subject", ["", "CN=proxy", "CN=admin"], ids=["no certificate", "its own", "of a client"])
@pytest.mark.parametrize("user", ["", " ", "\t", " \t ", ", "])
def test_a_proxy_that_names_nobody_is_nobody(
    clients: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, user: str, subject: str
) -> None:
    clients.write_text('[admin]\ncertificate = "CN=admin"\nproxy-user = ""\ngrants = { shop = "administer" }\n')
    tls = {"certificate": tmp_path / "s.pem", "key": tmp_path / "s.key", "client-ca": tmp_path / "ca.pem"}
    made = serving(clients, proxy={"addresses": ["10.0.0.1"]}).model_dump()
    with InProcess(Serving.model_validate({**made, "tls": tls})) as server:
        for path in (_LIST, "/metrics"):
            answer = server.ask("GET", path, headers={"x-forwarded-user": user}, peer="10.0.0.1", subject=subject)
            assert (401, "NotAuthorizedException") == answer.error[:2]
    assert any(record.name == "commit_coord.audit" for record in caplog.records)


def test_without_oauth_there_is_no_such_route(clients: Path) -> None:
    with InProcess(serving(clients)) as server:
        assert 404 == _token(server, _credentials()).status


# -- OpenID Connect ------------------------------------------------------------------------------------------


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    """An issuer whose keys are in a file."""
    made = Issuer()
    made.publish(tmp_path / "keys.json")
    return made


@pytest.fixture
def with_issuer(clients: Path, issuer: Issuer, tmp_path: Path) -> Iterator[InProcess]:
    """A server that believes the issuer."""
    clients.write_text('[alice]\noidc-subject = "alice"\ngrants = { shop = "read" }\n')
    with InProcess(serving(clients, oidc=_oidc(str(tmp_path / "keys.json")), oauth=OAuth())) as server:
        yield server


def _oidc(keys: str, **more: Any) -> Oidc:
    return Oidc.model_validate({"issuer": "https://issuer", "audience": "coord", "jwks": keys, **more})


@pytest.mark.parametrize(
    "claims, status",
    [
        ({}, 200),
        ({"audience": ["other", "coord"]}, 200),
        ({"audience": "other"}, 401),
        ({"audience": None}, 401),
        ({"issuer": "https://other"}, 401),
        ({"issuer": "commit-coord"}, 401),
        ({"ends_in_s": -30}, 200),  # the clocks may differ by a minute
        ({"ends_in_s": -90}, 401),
        ({"begins_in_s": 30}, 200),
        ({"begins_in_s": 90}, 401),
        ({"exp": None}, 401),
        ({"exp": "soon"}, 401),
        ({"sub": None}, 401),
        ({"sub": 7}, 401),
        ({"groups": "engineers"}, 200),
        ({"groups": [1, None]}, 200),
    ],
)
def test_a_token_of_the_issuer_comes_in_if_it_is_for_us_and_good_now(
    with_issuer: InProcess, issuer: Issuer, claims: dict[str, Any], status: int
) -> None:
    assert status == with_issuer.ask("GET", _LIST, token=issuer.token("alice", **claims)).status


def test_whom_the_issuer_knows_and_no_client_is_may_nothing(with_issuer: InProcess, issuer: Issuer) -> None:
    assert (403, "oidc:eve may not see shop") == with_issuer.ask("GET", _LIST, token=issuer.token("eve")).error[::2]


def test_a_token_with_the_signature_of_another_issuer_is_refused(with_issuer: InProcess) -> None:
    assert 401 == with_issuer.ask("GET", _LIST, token=Issuer().token("alice")).status
    assert 401 == with_issuer.ask("GET", _LIST, token=Issuer("k2").token("alice")).status


def test_what_signs_with_the_public_key_as_a_secret_or_not_at_all_is_refused(
    with_issuer: InProcess, issuer: Issuer
) -> None:
    claims = {"iss": "https://issuer", "aud": "coord", "sub": "alice", "exp": int(time.time()) + 60}

    def encoded(part: Any) -> str:
        return (
            base64.urlsafe_b64encode(part if isinstance(part, bytes) else json.dumps(part).encode())
            .decode()
            .rstrip("=")
        )

    unsigned = f"{encoded({'alg': 'none'})}.{encoded(claims)}."
    signed = f"{encoded({'alg': 'HS256', 'kid': issuer.key.kid})}.{encoded(claims)}"
    forged = f"{signed}.{encoded(hmac.digest(issuer.key.as_pem(private=False), signed.encode(), 'sha256'))}"
    for token in (forged, unsigned, issuer.token("alice")[:-4] + "AAAA"):
        assert 401 == with_issuer.ask("GET", _LIST, token=token).status


def test_a_new_key_in_the_file_is_used_and_the_old_one_is_not(
    with_issuer: InProcess, issuer: Issuer, tmp_path: Path
) -> None:
    following = Issuer("k2")
    following.publish(tmp_path / "keys.json")
    assert 200 == with_issuer.ask("GET", _LIST, token=following.token("alice")).status
    assert 401 == with_issuer.ask("GET", _LIST, token=issuer.token("alice")).status


class _Keys:
    """A web server that publishes the keys of an issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer, self.asked, self.is_up, self.issuer_is = issuer, 0, True, "well"
        self.stalled, self.ends = 0, threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                if outer.issuer_is != "well":
                    outer.stalled += 1
                    self.stall()
                    return
                self.send_response(200 if outer.is_up else 500)
                self.end_headers()
                self.wfile.write(outer.issuer.keys.encode() if outer.is_up else b"")

            def stall(self) -> None:
                """Send nothing; or a byte of a header now and then, so that no read of the client times out."""
                with contextlib.suppress(OSError):
                    self.wfile.write(b"HTTP/1.0 200 OK\r\nx-slow: " if outer.issuer_is == "slow" else b"")
                    while not outer.ends.wait(0.1):
                        self.wfile.write(b"x" if outer.issuer_is == "slow" else b"")

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/keys"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def published(issuer: Issuer) -> Iterator[_Keys]:
    """The issuer's keys behind a URL."""
    made = _Keys(issuer)
    yield made
    made.ends.set()
    made.server.shutdown()
    made.server.server_close()


def test_the_keys_behind_a_url_are_fetched_once_and_again_for_a_new_one(
    clients: Path, published: _Keys, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients.write_text('[alice]\noidc-subject = "alice"\ngrants = { shop = "read" }\n')
    with InProcess(serving(clients, oidc=_oidc(published.url))) as server:
        assert [200, 200] == [server.ask("GET", _LIST, token=issuer.token("alice")).status for _ in range(2)]
        assert 1 == published.asked
        published.issuer = Issuer("k2")
        assert 401 == server.ask("GET", _LIST, token=published.issuer.token("alice")).status
        assert 1 == published.asked  # who sends unknown keys does not make us ask all the time
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 11)
        monkeypatch.setattr("commit_coord.rest.keys.time", later)
        assert 200 == server.ask("GET", _LIST, token=published.issuer.token("alice")).status
        assert 401 == server.ask("GET", _LIST, token=issuer.token("alice")).status


def test_while_the_issuer_is_down_its_clients_are_asked_to_come_back(
    clients: Path, published: _Keys, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.is_up = False
    clients.write_text(_client() + '[alice]\noidc-subject = "alice"\ngrants = { shop = "read" }\n')
    with InProcess(serving(clients, oidc=_oidc(published.url))) as server:
        answer = server.ask("GET", _LIST, token=issuer.token("alice"))
        assert (503, "1") == (answer.status, answer.headers["retry-after"])
        assert 200 == server.ask("GET", _LIST, token=_SECRET).status
        published.is_up = True
        monkeypatch.setattr("commit_coord.rest.keys._FETCH_AGAIN_S", 0)
        assert 200 == server.ask("GET", _LIST, token=issuer.token("alice")).status


def test_old_keys_are_fetched_anew_and_stay_if_that_fails(
    published: _Keys, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commit_coord.rest.keys._FETCH_AGAIN_S", 0)
    keys = FetchedKeys(published.url, lifetime_ms=1)
    assert keys.known is None

    def kid() -> str:
        keys.fetching()
        known = keys.known
        return known.keys[0].kid or "" if known is not None else ""

    assert holds_within(lambda: kid() == "k1", 60, every_s=0.01)
    published.is_up, before = False, published.asked
    assert holds_within(lambda: kid() == "k1" and published.asked > before + 1, 60, every_s=0.01)
    published.is_up, published.issuer = True, Issuer("k2")
    assert holds_within(lambda: kid() == "k2", 60, every_s=0.01)


@pytest.mark.parametrize("issuer_is", ["silent", "slow"])
def test_requests_with_known_keys_do_not_wait_for_the_one_fetch_that_renews_them(
    clients: Path, published: _Keys, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, issuer_is: str
) -> None:
    monkeypatch.setattr("commit_coord.rest.keys.FETCH_S", 600)
    monkeypatch.setattr("commit_coord.rest.keys._FETCH_AGAIN_S", 0)
    clients.write_text('[alice]\noidc-subject = "alice"\ngrants = { shop = "read" }\n')
    with InProcess(serving(clients, oidc=_oidc(published.url, **{"keys-lifetime-ms": 1}))) as server:
        assert 200 == server.ask("GET", _LIST, token=issuer.token("alice")).status
        published.issuer_is = issuer_is

        def status() -> int:
            return server.ask("GET", _LIST, token=issuer.token("alice")).status

        assert holds_within(lambda: status() == 200 and published.stalled == 1, 60, every_s=0.01)
        assert {200} == {status() for _ in range(50)}
        assert 1 == published.stalled


@pytest.mark.parametrize("issuer_is", ["silent", "slow"])
def test_a_fetch_ends_in_time_whatever_the_issuer_does_and_the_next_one_gets_the_keys(
    clients: Path, published: _Keys, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, issuer_is: str
) -> None:
    for module in ("keys", "application"):
        monkeypatch.setattr(f"commit_coord.rest.{module}.FETCH_S", 1)
    clients.write_text('[alice]\noidc-subject = "alice"\ngrants = { shop = "read" }\n')
    published.issuer_is = issuer_is
    with InProcess(serving(clients, oidc=_oidc(published.url))) as server:
        assert 503 == server.ask("GET", _LIST, token=issuer.token("alice")).status  # an unknown key: it waits
        assert holds_within(lambda: "issuer-keys" not in {each.name for each in threading.enumerate()}, 60)
        published.issuer_is = "well"
        monkeypatch.setattr("commit_coord.rest.keys._FETCH_AGAIN_S", 0)
        for module in ("keys", "application"):
            monkeypatch.setattr(f"commit_coord.rest.{module}.FETCH_S", 60)
        assert 200 == server.ask("GET", _LIST, token=issuer.token("alice")).status


# -- browsers ------------------------------------------------------------------------------------------------


@pytest.fixture
def open_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """A server without authentication."""
    configure(monkeypatch, tmp_path, "shop")
    with InProcess(Serving(catalogs=("shop",), threads=2)) as server:
        yield server


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"host": "127.0.0.1:8181"}, 200),
        ({"host": "localhost:8181"}, 200),
        ({"host": "[::1]:8181"}, 200),
        ({"host": "rebound.example.org:8181"}, 403),
        ({"host": "127.0.0.1.example.org"}, 403),
        ({"host": "10.0.0.1"}, 403),
        ({"host": "["}, 403),
        ({"host": ""}, 403),
        ({"host": "localhost@example.org"}, 403),
        ({"host": "localhost:8181", "origin": "http://localhost:8181"}, 200),
        ({"host": "localhost:8181", "origin": "http://localhost:9999"}, 403),
        ({"host": "localhost:8181", "origin": "https://example.org"}, 403),
        ({"host": "localhost:8181", "origin": "null"}, 403),
        ({"host": "localhost:8181", "sec-fetch-site": "cross-site"}, 403),
        ({"host": "localhost:8181", "sec-fetch-site": "none"}, 200),
    ],
)
def test_no_web_page_reaches_a_server_without_authentication(
    open_server: InProcess, headers: dict[str, str], status: int
) -> None:
    for path in ("/v1/config", "/health", "/metrics"):
        assert status == open_server.ask("GET", path, headers=headers).status


def test_a_web_page_does_not_use_the_certificate_of_its_reader(server: InProcess) -> None:
    headers = {"host": "coord.example.org", "origin": "https://evil.example.org"}
    assert 403 == server.ask("GET", _LIST, headers=headers, token=_SECRET).status
    assert 200 == server.ask("GET", _LIST, headers={"host": "coord.example.org"}, token=_SECRET).status


# -- what is refused at start --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, reason",
    [
        ("[spark]\n", "the entry does not say how to recognize the client: key='spark'"),
        (_client() + _client().replace("[spark]", "[flink]"), "two clients have the same proof of identity"),
        ('[spark]\ntoken-sha256 = "abc"\n', "a setting is not valid: key='spark.token-sha256'"),
        ("[spark]\ntoken = 'x'\n", "there is no such setting: key='spark.token'"),
        (_client(grants='shop = "all"'), "accepted='one of none, read, write, administer for shop'"),
        (_client(grants='depot = "read"'), "a grant is for a catalog that is not served; served are: shop"),
        (_client(grants='"shop/" = "read"'), "a grant names no namespace"),
        (_client(grants='"shop/a/b" = "read"'), "a grant names no namespace"),
        (_client(grants='"shop/a..b" = "read"'), "a grant names no namespace"),
        ('[alice]\noidc-subject = "alice"\n', "accepted='[authentication.oidc]'"),
        ('[alice]\nproxy-user = "alice"\n', "accepted='[authentication.proxy]'"),
        ('[alice]\ncertificate = "CN=alice"\n', "accepted='tls.client-ca'"),
        ("[spark\n", "a configuration file is not TOML"),
    ],
)
def test_a_file_of_clients_that_makes_no_sense_is_refused_at_start(clients: Path, text: str, reason: str) -> None:
    clients.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check(serving(clients))
    assert reason in str(caught.value)


class _Folding:
    """A catalog that folds names as a metastore does."""

    name = "hive"

    def spelled(self, resource: Resource) -> Resource:
        return Resource(tuple(level.lower() for level in resource.path))


class _Hive:
    catalog = _Folding()


@pytest.mark.parametrize("access", ["none", "read", "administer"])
@pytest.mark.parametrize(
    "catalog, one, other",
    [
        ("shop", "sales", " sales"),
        ("shop", "sales ", "sales"),
        ("shop", "sales.payroll", "sales . payroll"),
        ("hive", "sales", "Sales"),
        ("hive", "SALES", "sales "),
        ("hive", "Sales.Payroll", "sales.payroll"),
    ],
)
def test_two_grants_for_one_namespace_are_refused_whichever_is_wider(
    clients: Path, monkeypatch: pytest.MonkeyPatch, catalog: str, one: str, other: str, access: str
) -> None:
    clients.write_text(
        _client(grants=f'{catalog} = "read", "{catalog}/{one}" = "{access}", "{catalog}/{other}" = "read"')
    )
    with pytest.raises(ConfigError, match="two grants are for the same namespace") as caught:
        if catalog == "hive":
            Clients(clients, lambda _, name: Gate.place(_Hive(), tuple(name.split("."))))  # type: ignore[arg-type]
        else:
            check(serving(clients))
    assert f"value='{catalog}/{one}, {catalog}/{other}'" in str(caught.value)


def test_grants_for_names_that_a_catalog_tells_apart_are_two(clients: Path) -> None:
    clients.write_text(
        _client(grants='shop = "none", "shop/sales" = "read", "shop/Sales" = "none", "shop/sales.a" = "write"')
    )
    check(serving(clients))


def test_keys_that_can_not_be_read_are_refused_at_start(clients: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    for keys in ("keys.json", "nowhere.json"):
        with pytest.raises(ConfigError, match="the keys of the issuer can't be read"):
            check(serving(clients, oidc=_oidc(str(tmp_path / keys))))
    (tmp_path / "short").write_bytes(b"guess")
    with pytest.raises(ConfigError, match="the key of the tokens is too short: it could be guessed"):
        check(serving(clients, oauth=OAuth(key=tmp_path / "short")))
