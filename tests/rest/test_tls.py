"""A real server with TLS: who is known by a certificate, and files that change while it runs."""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError

from tests.processes import until
from tests.rest.certificates import Authority
from tests.rest.kit import SCHEMA, Server, ids, row_ids, served

_SECRET = "a-long-secret"


@pytest.fixture(autouse=True)
def _own_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests would prefer the machine's authorities to those that the client is given."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Signs the server's certificate and those of its clients."""
    return Authority("first")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Path:
    """Where all files are."""
    made = tmp_path_factory.mktemp("tls")
    authority.write(made / "ca.pem")
    for name in ("server", "loader"):
        authority.sign(made, name)
    Authority("nobody").sign(made, "stranger")
    (made / "clients.toml").write_text(
        f"""
[spark]
token-sha256 = "{hashlib.sha256(_SECRET.encode()).hexdigest()}"
grants = {{ shop = "administer" }}

[loader]
certificate = "CN=loader,O=Example"
grants = {{ "shop/db" = "read" }}

[bob]
proxy-user = "bob"
grants = {{ "shop/db" = "read" }}
"""
    )
    (made / "serve.toml").write_text(
        """
[tls]
certificate = "server.pem"
key = "server.key"
client-ca = "ca.pem"

[authentication]
clients = "clients.toml"

[authentication.oauth]

[authentication.proxy]
addresses = ["10.0.0.1"]
"""
    )
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """Two processes with TLS, and the namespace ``db``."""
    with served("--config", str(folder / "serve.toml"), "--processes", "2") as server:
        with server.library() as catalog:
            catalog.create_namespace("db")
        yield server


@contextmanager
def connected(server: Server, ca: Path, pair: str = "") -> Iterator[http.client.HTTPSConnection]:
    """Yield a connection of a client that has the certificate *pair*."""
    context = ssl.create_default_context(cafile=str(ca))
    if pair:
        context.load_cert_chain(ca.parent / f"{pair}.pem", ca.parent / f"{pair}.key")
    address = urlsplit(server.url)
    with closing(
        http.client.HTTPSConnection(address.hostname or "", address.port, timeout=30, context=context)
    ) as made:
        yield made


def asked(server: Server, ca: Path, path: str, pair: str = "", **headers: str) -> tuple[int, int]:
    """Return the status of a request and the number of the server's certificate."""
    with connected(server, ca, pair) as connection:
        connection.request("GET", path, headers=headers)
        assert isinstance(connection.sock, ssl.SSLSocket)
        number = int(str((connection.sock.getpeercert() or {})["serialNumber"]), 16)
        return connection.getresponse().status, number


def test_pyiceberg_writes_with_credentials_over_tls(server: Server, folder: Path) -> None:
    assert server.url.startswith("https://")
    tls = {"ssl": {"cabundle": str(folder / "ca.pem")}}
    given = {"credential": f"spark:{_SECRET}", "oauth2-server-uri": f"{server.url}/v1/oauth/tokens"}
    client = RestCatalog("rest", uri=server.url, **given, **tls)  # type: ignore[arg-type]
    client.create_namespace("more")
    client.create_table(("db", "t"), SCHEMA).append(ids(1))
    assert [1] == row_ids(client.load_table(("db", "t")))
    with pytest.raises(UnauthorizedError):
        RestCatalog("rest", uri=server.url, token="wrong", **tls).list_namespaces()  # type: ignore[arg-type]


def test_a_certificate_says_who_the_client_is(server: Server, folder: Path) -> None:
    ca = folder / "ca.pem"
    assert 200 == asked(server, ca, "/v1/shop/namespaces/db/tables", "loader")[0]
    assert 403 == asked(server, ca, "/v1/shop/namespaces/other/tables", "loader")[0]
    assert 401 == asked(server, ca, "/v1/shop/namespaces/db/tables")[0]
    with pytest.raises((ssl.SSLError, ConnectionError)):
        asked(server, ca, "/v1/shop/namespaces/db/tables", "stranger")


def test_no_header_makes_a_client_a_trusted_proxy(server: Server, folder: Path) -> None:
    headers = {"x-forwarded-user": "bob", "x-forwarded-for": "10.0.0.1", "forwarded": "for=10.0.0.1"}
    assert 401 == asked(server, folder / "ca.pem", "/v1/shop/namespaces/db/tables", **headers)[0]


def is_stranger(server: Server, ca: Path, client: str) -> bool:
    """Return whether *client* is refused in the handshake."""
    try:
        asked(server, ca, "/health", client)
    except (ssl.SSLError, ConnectionError):
        return True
    return False


def test_new_certificates_are_used_without_a_restart(server: Server, folder: Path, authority: Authority) -> None:
    ca = folder / "ca.pem"
    before = asked(server, ca, "/health")[1]
    authority.sign(folder, "server")
    until(lambda: before not in {asked(server, ca, "/health")[1] for _ in range(8)}, "both processes have it")
    pid = server.process.pid
    # Another authority signs clients from now on; those of the first one are strangers.
    both, second = folder / "both.pem", Authority("second")
    both.write_bytes(authority.pem)
    second.write(ca)
    second.sign(folder, "newcomer")
    until(lambda: all(is_stranger(server, both, "loader") for _ in range(8)), "the second authority")
    assert 403 == asked(server, both, "/v1/shop/namespaces/db/tables", "newcomer")[0]
    authority.write(ca)
    until(lambda: not any(is_stranger(server, both, "loader") for _ in range(8)), "the first authority")
    assert 200 == asked(server, both, "/v1/shop/namespaces/db/tables", "loader")[0]
    assert pid == server.process.pid
    assert server.process.poll() is None


def test_a_stop_does_not_wait_for_a_client_that_keeps_its_connection(folder: Path) -> None:
    with (
        served("--config", str(folder / "serve.toml")) as server,
        connected(server, folder / "ca.pem", "loader") as connection,
    ):
        connection.request("GET", "/health")
        assert 200 == connection.getresponse().status
        server.end()
    assert "took too long" not in server.said


def test_a_head_without_end_is_cut_off(server: Server, folder: Path) -> None:
    address = urlsplit(server.url)
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    with (
        socket.create_connection((address.hostname or "", address.port or 0), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-filler: ")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            for _ in range(1000):
                connection.sendall(b"x" * 10_000)


def test_a_client_that_may_not_learns_it_in_its_own_error(server: Server, folder: Path) -> None:
    client = RestCatalog(
        "rest",
        uri=server.url,
        auth={"type": "noop"},  # type: ignore[arg-type] # else it sends "Bearer None"
        ssl={  # type: ignore[arg-type]
            "cabundle": str(folder / "ca.pem"),
            "client": {"cert": str(folder / "loader.pem"), "key": str(folder / "loader.key")},
        },
    )
    with pytest.raises(ForbiddenError, match="loader may not administer shop/db"):
        client.drop_namespace("db")
