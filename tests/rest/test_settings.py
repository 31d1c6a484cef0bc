"""The file of settings: what is wrong in it is said in one sentence with a hint, before anything is served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commit_coord.cli import app
from commit_coord.cli.exit_codes import ExitCode
from commit_coord.rest import Serving, check
from commit_coord.rest.clients import Client
from commit_coord.rest.settings import Authentication, Limits, OAuth, Oidc, Proxy, Tls, Ui, read_settings, validated
from tests.rest.asgi import configure
from tests.rest.certificates import Authority

_MODELS = (Serving, Limits, Ui, Tls, Authentication, OAuth, Oidc, Proxy, Client)
DOCUMENT = Path(__file__).parents[2] / "docs" / "rest.md"

_OIDC = """[authentication]
clients = "c"
[authentication.oidc]
issuer = "x"
audience = "x"
"""
_PROXY = """[authentication]
clients = "c"
[authentication.proxy]
"""
_ALL = """
catalogs = ["shop", "shop"]
host = "127.0.0.1"
port = 0
processes = 2
threads = 8
keep-alive-ms = 60000
stop-timeout-ms = 5000
access-log = "-"
allow-plain-http = true
rest = true
properties = { warehouse = "file:///tables" }

[ui]
enabled = true
read-only = true

[limits]
max-body-bytes = 1000
max-bodies-bytes = 4000
max-requests = 10
max-commits-per-table = 5
head-timeout-ms = 1000
body-timeout-ms = 2000

[tls]
certificate = "server.pem"
key = "server.key"
client-ca = "ca.pem"

[authentication]
clients = "clients.toml"

[authentication.oauth]
key = "own.key"
token-lifetime-ms = 60000

[authentication.oidc]
issuer = "https://issuer"
audience = "coord"
jwks = "keys.json"
subject-claim = "email"
groups-claim = "roles"
algorithms = ["ES256"]
clock-skew-ms = 1000
keys-lifetime-ms = 60000

[authentication.proxy]
addresses = ["10.0.0.0/8", "::1"]
header = "X-Remote-User"
"""


def read(path: Path, text: str) -> Serving:
    """Return the settings in *text*."""
    path.write_text(text)
    return validated(Serving, read_settings(path), path)


def test_all_settings_are_read_and_files_are_sought_in_the_folder_of_the_file(tmp_path: Path) -> None:
    serving = read(tmp_path / "serve.toml", _ALL)
    assert ("shop",) == serving.catalogs
    assert serving.tls is not None
    assert tmp_path / "server.pem" == serving.tls.certificate
    authentication = serving.authentication
    assert authentication is not None
    assert authentication.oidc is not None
    assert authentication.proxy is not None
    assert str(tmp_path / "keys.json") == authentication.oidc.jwks
    assert "x-remote-user" == authentication.proxy.header
    assert authentication.proxy.has("10.1.1.1")
    assert not authentication.proxy.has("11.1.1.1")
    assert not authentication.proxy.has("")


def test_the_access_log_is_in_the_folder_of_the_file_unless_it_is_the_standard_output(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    for given, expected in (
        ("access.log", str(tmp_path / "access.log")),
        ("/var/log/access.log", "/var/log/access.log"),
        ("-", "-"),
        ("", ""),
    ):
        assert expected == read(file, f'access-log = "{given}"\n').access_log
    assert "" == read(file, "").access_log


def test_every_setting_is_in_the_document() -> None:
    sections = [line.strip() for line in _ALL.splitlines() if line.startswith("[")]
    keys = [line.partition(" = ")[0] for line in _ALL.splitlines() if " = " in line]
    text = DOCUMENT.read_text()
    assert [] == [name for name in [*sections, *keys] if f"`{name}`" not in text]
    fields = [field.alias for model in _MODELS for field in model.model_fields.values()]
    assert [] == [name for name in fields if not re.search(rf"`\[?(authentication\.)?{name}\]?`", text)]


@pytest.mark.parametrize(
    "text, reason",
    [
        ("prot = 1", "there is no such setting: key='prot', file="),
        ("prot = 1", "accepted='perhaps port; there are: catalogs, host, port,"),
        ("[limits]\nmax-requsts = 1", "key='limits.max-requsts'"),
        ("[limits]\nmax-requsts = 1", "accepted='perhaps max-requests"),
        (f"{_OIDC}jwk = 'x'", "perhaps jwks"),
        ("[authentication]", "a setting is missing: key='authentication.clients'"),
        ("port = 70000", "a setting is not valid: key='port'"),
        ("threads = 0", "accepted='Input should be greater than or equal to 1'"),
        ("threads = 'many'", "key='threads'"),
        (f"{_PROXY}addresses = []", "key='authentication.proxy.addresses'"),
        (f"{_PROXY}addresses = ['10.0.0.1/8']", "key='authentication.proxy.addresses.0"),
        (f"{_OIDC}jwks = 'http://example.org/keys'", "an https:// URL, or a file"),
        (f"{_OIDC}jwks = 'k'\nalgorithms = ['HS256']", "key='authentication.oidc.algorithms.0'"),
        ("port = ", "a configuration file is not TOML"),
    ],
)
def test_a_wrong_setting_is_refused_with_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "serve.toml").write_text(text)
    result = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "serve.toml")])
    assert ExitCode.USAGE == result.exit_code
    assert reason in result.stderr
    assert 1 == result.stderr.count("\n")


def test_a_representation_shows_no_secret() -> None:
    properties = {"uri": "postgresql://me:hidden@db/x", "s3.secret-access-key": "hidden", "lock-impl": "sql"}
    shown = repr(Serving(catalogs=("shop",), properties=properties))
    assert "hidden" not in shown
    assert "'lock-impl': 'sql'" in shown


_CLIENTS = "[authentication]\nclients = 'clients.toml'\n"


@pytest.mark.parametrize(
    "text, options, read_only",
    [
        ("", [], True),
        (_CLIENTS, [], False),
        ("[ui]\nread-only = false", [], False),
        (f"{_CLIENTS}[ui]\nread-only = true", [], True),
        ("", ["--administer"], False),
        ("[ui]\nread-only = true", ["--administer"], False),
    ],
)
def test_a_page_without_authentication_is_read_only_unless_the_settings_say_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, options: list[str], read_only: bool
) -> None:
    configure(monkeypatch, tmp_path, "shop")
    (tmp_path / "clients.toml").write_text(_TOKEN)
    (tmp_path / "serve.toml").write_text(f"catalogs = ['shop']\n{text}")
    served: list[Serving] = []
    monkeypatch.setattr("commit_coord.rest.serve", lambda serving, _: served.append(serving))
    result = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "serve.toml"), *options])
    assert ExitCode.OK == result.exit_code, result.stderr
    assert [read_only] == [serving.page_is_read_only for serving in served]


def test_a_file_that_is_not_there_is_refused() -> None:
    result = CliRunner().invoke(app, ["serve", "--config", "/nowhere/serve.toml"])
    assert ExitCode.USAGE == result.exit_code
    assert "a configuration file can't be read: No such file or directory" in result.stderr


_TOKEN = f'[a]\ntoken-sha256 = "{"0" * 64}"\n'


@pytest.mark.parametrize(
    "text, reason",
    [
        ("", "without authentication the server listens on loopback only"),
        ("[authentication]\nclients = 'clients.toml'", "tokens would cross the network without encryption"),
        (
            "[authentication]\nclients = 'nowhere.toml'\n[tls]\ncertificate = 'server.pem'\nkey = 'server.key'",
            "nowhere",
        ),
        ("[authentication]\nclients = 'clients.toml'\n[tls]\ncertificate = 'server.pem'\nkey = 'other.key'", "PEM"),
        ("[authentication]\nclients = 'clients.toml'\n[tls]\ncertificate = 'none.pem'\nkey = 'server.key'", "none.pem"),
        ("[tls]\ncertificate = 'server.pem'\nkey = 'server.key'", "without authentication"),
    ],
)
def test_an_address_that_others_reach_needs_authentication_and_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    configure(monkeypatch, tmp_path, "shop")
    (tmp_path / "clients.toml").write_text(_TOKEN)
    authority = Authority("ca")
    authority.sign(tmp_path, "server")
    authority.sign(tmp_path, "other")
    (tmp_path / "serve.toml").write_text(f"host = '0.0.0.0'\ncatalogs = ['shop']\n{text}")
    result = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "serve.toml")])
    assert ExitCode.USAGE == result.exit_code, result.stderr
    assert reason in result.stderr


def test_plain_http_to_others_is_allowed_to_those_who_ask_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, tmp_path, "shop")
    (tmp_path / "clients.toml").write_text(_TOKEN)
    text = "host = '0.0.0.0'\ncatalogs = ['shop']\nallow-plain-http = true\n[authentication]\nclients = 'clients.toml'"
    check(read(tmp_path / "serve.toml", text))
