"""The settings of a server: a TOML file, and one clear sentence for each mistake in it."""

from __future__ import annotations

import difflib
import ipaddress
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError, ValidationInfo

from commit_coord.errors import ConfigError
from commit_coord.redaction import shown

M = TypeVar("M", bound=BaseModel)


def _in_folder(path: Path, info: ValidationInfo) -> Path:
    """Return *path* relative to the folder of the file that contains it."""
    return Path((info.context or {}).get("folder", ".")) / path


def _log(text: str, info: ValidationInfo) -> str:
    """Return *text*: the path of a file, ``-`` or ""."""
    return text if text in ("", "-") else str(_in_folder(Path(text), info))


def _keys(text: str, info: ValidationInfo) -> str:
    """Return *text*: a URL whose answers cannot be changed on the network, or the path of a file."""
    address = urlsplit(text)
    if address.scheme not in ("http", "https"):
        return str(_in_folder(Path(text), info))
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise ValueError("an https:// URL, or a file: over http:// an attacker could replace the keys")
    return text


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


FilePath = Annotated[Path, AfterValidator(_in_folder)]
Signature = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
"""Algorithms with a public key: a service that checks tokens cannot make any."""
Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    """A table of the file. An unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class Limits(_Section):
    """The limits of one process. Requests beyond them are refused with 408, 413 or 429.

    Args:
        max_body_bytes: Size of the body of a request.
        max_bodies_bytes: Size of the bodies of all requests that arrive, wait or run; None means 4 times the former.
        max_requests: Requests that run or wait. Of the changes of one object, no more than stay free for others.
        max_commits_per_table: Changes of one table, view or namespace that run or wait.
        head_timeout_ms: How long a connection may stay open without the complete head of its first request, and how
            long the head of a later one may take. Then the connection is closed.
        body_timeout_ms: How long the client may take to send the body of a request; and how long it may read nothing of
            an answer. Then the connection is closed.
    """

    max_body_bytes: Positive = 64 * 1024 * 1024
    max_bodies_bytes: Positive | None = None
    max_requests: Positive = 544
    max_commits_per_table: Positive = 256
    head_timeout_ms: Positive = 10_000
    body_timeout_ms: Positive = 30_000


class Tls(_Section):
    """The server's certificate.

    Args:
        certificate: PEM: the certificate, followed by its intermediate certificates.
        key: Its private key, in PEM.
        client_ca: PEM: the certificate authorities that sign clients' certificates. Without it, the server asks clients
            for no certificate.
    """

    certificate: FilePath
    key: FilePath
    client_ca: FilePath | None = None

    @property
    def files(self) -> list[Path]:
        """The files that are set."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


class OAuth(_Section):
    """Tokens that the server itself issues to its clients.

    Args:
        key: A file of at least 32 random bytes; servers with the same key accept each other's tokens. Without it,
            tokens are valid until the server stops.
        token_lifetime_ms: How long a token is valid.
    """

    key: FilePath | None = None
    token_lifetime_ms: Positive = 3_600_000


class Oidc(_Section):
    """Tokens of an OpenID Connect issuer.

    Args:
        issuer: The required claim ``iss``.
        audience: The required claim ``aud``.
        jwks: The issuer's public keys: the URL of a JSON Web Key Set, or a file.
        subject_claim: The claim that names the client.
        groups_claim: The claim that lists the client's groups.
        algorithms: The accepted signature algorithms.
        clock_skew_ms: How much the issuer's clock may differ from ours.
        keys_lifetime_ms: After this time the keys are fetched again, so that a withdrawn key is not accepted any more.
    """

    issuer: str
    audience: str
    jwks: Annotated[str, AfterValidator(_keys)]
    subject_claim: str = "sub"
    groups_claim: str = "groups"
    algorithms: tuple[Signature, ...] = ("RS256", "ES256")
    clock_skew_ms: Annotated[int, Field(ge=0)] = 60_000
    keys_lifetime_ms: Positive = 3_600_000

    @property
    def is_remote(self) -> bool:
        """Whether the keys are fetched from a URL."""
        return "://" in self.jwks


class Proxy(_Section):
    """A proxy in front of the server that authenticates the clients.

    Args:
        addresses: The addresses or networks from which the proxy connects.
        header: The header in which the proxy names the client.
    """

    addresses: Annotated[tuple[IPvAnyNetwork, ...], Field(min_length=1)]
    header: Annotated[str, AfterValidator(str.lower)] = "x-forwarded-user"

    def has(self, peer: str) -> bool:
        """Return whether *peer* is an address of the proxy."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        # On a socket for IPv6 and IPv4, the address of an IPv4 client is mapped: ::ffff:10.0.0.1.
        mapped = getattr(address, "ipv4_mapped", None)
        return any(each in network for network in self.addresses for each in (address, mapped) if each is not None)


class Authentication(_Section):
    """How the server identifies the sender of a request.

    Args:
        clients: The file of clients, see :mod:`.clients`.
        oauth: The server issues tokens for the secrets in that file; None: it does not.
        oidc: The issuer whose tokens are accepted; None: no issuer.
        proxy: The trusted proxy; None: no proxy.
    """

    clients: FilePath
    oauth: OAuth | None = None
    oidc: Oidc | None = None
    proxy: Proxy | None = None


class Ui(_Section):
    """The web page, under ``/ui``.

    Args:
        enabled: Whether it is served.
        read_only: Whether nobody may free locks or move tables there; else a client with the right ``administer`` may.
            None: on a server without authentication, where everybody on the machine would have that right.
    """

    enabled: bool = True
    read_only: bool | None = None


class Serving(_Section):
    """The settings of a server.

    Args:
        catalogs: The catalogs' names in PyIceberg's configuration; the first one is the default.
        host: The address on which the server listens.
        port: The port on which the server listens; 0 takes a free one.
        processes: The number of processes.
        threads: The number of reads that each process carries out at once, and of commits; the commits to one table get
            a half of these threads at most. Other changes have a quarter as many threads, and purges have two.
        keep_alive_ms: How long a connection may be idle between two requests. Longer than a proxy in front of the
            server keeps its connections: else it sends a request on one that the server is closing.
        stop_timeout_ms: How long the server finishes the requests that run, after SIGTERM. Then it closes their
            connections, releases every lock and ends.
        access_log: A file to which the server appends a line for each request; ``-`` is the standard output, "" is
            none.
        allow_plain_http: Whether to serve other machines without TLS, because a proxy in front of the server has TLS.
        rest: Whether Iceberg's protocol is served; `commit-coord ui` serves only the page.
        properties: Properties of all catalogs, before those in PyIceberg's configuration.
        limits: The limits of one process.
        ui: The web page.
        tls: The server's certificate; None means plain HTTP.
        authentication: How senders are identified; None for a server that serves this machine only.
    """

    catalogs: Annotated[tuple[str, ...], AfterValidator(_once)] = ()
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8181
    processes: Positive = 1
    threads: Positive = 32
    keep_alive_ms: Positive = 75_000
    stop_timeout_ms: Positive = 20_000
    access_log: Annotated[str, AfterValidator(_log)] = ""
    allow_plain_http: bool = False
    rest: bool = True
    properties: Mapping[str, str] = Field(default_factory=dict)
    limits: Limits = Limits()
    ui: Ui = Ui()
    tls: Tls | None = None
    authentication: Authentication | None = None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield what a representation shows: no secrets among the properties."""
        for name, value in super().__repr_args__():
            yield name, {key: shown(key, one) for key, one in value.items()} if name == "properties" else value

    @property
    def page_is_read_only(self) -> bool:
        """See :class:`Ui`."""
        return self.authentication is None if self.ui.read_only is None else self.ui.read_only

    @property
    def max_bodies_bytes(self) -> int:
        """See :class:`Limits`."""
        return self.limits.max_bodies_bytes or 4 * self.limits.max_body_bytes


def read_settings(path: Path) -> dict[str, Any]:
    """Return the content of the TOML file at *path*.

    Raises:
        ConfigError: The file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(
            f"a configuration file can't be read: {error.strerror}", key="file", value=path, accepted="a TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"a configuration file is not TOML: {error}", key="file", value=path) from error


def validated(model: type[M], document: Any, path: Path | None = None, below: str = "") -> M:
    """Return *document* as *model*.

    Args:
        model: The expected model.
        document: The parsed TOML.
        path: The file that it comes from; paths in it are relative to the folder of this file.
        below: Prefix of the keys in messages.

    Raises:
        ConfigError: *document* does not fit; the message names the key and what is accepted.
    """
    try:
        return model.model_validate(document, context={"folder": path.parent if path else "."})
    except ValidationError as error:
        raise _explained(model, error, path, below) from error


def _explained(model: type[BaseModel], error: ValidationError, path: Path | None, below: str) -> ConfigError:
    found = error.errors(include_url=False, include_context=False)
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])  # or why one is missing
    *parents, last = [str(part) for part in first["loc"]] or [""]
    key = ".".join(filter(None, (below, *parents, last)))
    where = {"key": key, "file": path}
    if first["type"] == "extra_forbidden":
        known = _keys_of(model, parents)
        close = difflib.get_close_matches(last, known, 1)
        accepted = f"perhaps {close[0]}; there are: {', '.join(known)}" if close else ", ".join(known)
        return ConfigError("there is no such setting", **where, accepted=accepted)
    if first["type"] == "missing":
        return ConfigError("a setting is missing", **where)
    reason = first["msg"].removeprefix("Value error, ")
    return ConfigError("a setting is not valid", **where, value=first["input"], accepted=reason)


def _keys_of(model: type[BaseModel], parents: list[str]) -> list[str]:
    """Return the keys of the section of *model* to which *parents* lead."""
    for parent in parents:
        field = next((f for name, f in model.model_fields.items() if parent in (name, f.alias)), None)
        arguments = getattr(field.annotation, "__args__", (field.annotation,)) if field else ()
        model = next((kind for kind in arguments if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def is_loopback(host: str) -> bool:
    """Return whether *host* is a loopback address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
