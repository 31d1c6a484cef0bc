"""How a server is started: one file of TOML, and what is wrong in it in one sentence."""

from __future__ import annotations

import difflib
import ipaddress
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError, ValidationInfo

from commit_coord.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def _in_folder(path: Path, info: ValidationInfo) -> Path:
    """Return *path* as seen from the folder of the file that names it."""
    return Path((info.context or {}).get("folder", ".")) / path


def _keys(text: str, info: ValidationInfo) -> str:
    """Return *text*, which is a URL that nobody can change on the way, or the path of a file."""
    address = urlsplit(text)
    if address.scheme not in ("http", "https"):
        return str(_in_folder(Path(text), info))
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise ValueError("whoever is between here and there could put other keys in: an https:// URL, or a file")
    return text


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


FilePath = Annotated[Path, AfterValidator(_in_folder)]
Signature = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"]
"""Those with a public key alone: who may check a token can't make one."""
Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    """A table of the file. An unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )


class Limits(_Section):
    """What one process takes at once; what is beyond is refused with 413 or 429.

    Args:
        max_body_bytes: Of one request.
        max_requests: In work, or waiting for a thread; None is 17 for each thread.
        max_commits_per_table: Of one table, in work or waiting.
        body_timeout_ms: How long the body of a request may take.
    """

    max_body_bytes: Positive = 64 * 1024 * 1024
    max_requests: Positive | None = None
    max_commits_per_table: Positive = 256
    body_timeout_ms: Positive = 30_000


class Tls(_Section):
    """The server's certificate.

    Args:
        certificate: PEM, with those between it and the root behind it.
        key: Its private key, in PEM.
        client_ca: PEM; who signs the certificates of clients. Without it none is asked for.
    """

    certificate: FilePath
    key: FilePath
    client_ca: FilePath | None = None

    @property
    def files(self) -> list[Path]:
        """All of them."""
        return [path for path in (self.certificate, self.key, self.client_ca) if path is not None]


class OAuth(_Section):
    """Tokens that the server itself gives to its clients.

    Args:
        key: A file of at least 32 random bytes, which servers that accept each other's tokens share. Without it tokens
            end with the server.
        token_lifetime_ms: How long one is good.
    """

    key: FilePath | None = None
    token_lifetime_ms: Positive = 3_600_000


class Oidc(_Section):
    """Tokens of an OpenID Connect issuer.

    Args:
        issuer: The claim ``iss``.
        audience: The claim ``aud``.
        jwks: Its public keys: the URL of a JSON Web Key Set, or a file.
        subject_claim: What names the client.
        groups_claim: What lists its groups.
        algorithms: Signatures that are accepted.
        clock_skew_ms: How far its clock may be from ours.
        keys_lifetime_ms: After so long the URL is asked again, and a key that is gone from it counts no more.
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
        """Whether the keys are behind a URL."""
        return "://" in self.jwks


class Proxy(_Section):
    """A proxy in front of the server that knows who the clients are.

    Args:
        addresses: Where its connections come from: addresses or networks.
        header: The one in which it names the client.
    """

    addresses: Annotated[tuple[IPvAnyNetwork, ...], Field(min_length=1)]
    header: Annotated[str, AfterValidator(str.lower)] = "x-forwarded-user"

    def has(self, peer: str) -> bool:
        """Return whether a connection from *peer* is one of the proxy's."""
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.addresses)


class Authentication(_Section):
    """How it is known who sent a request.

    Args:
        clients: The file of clients, see :mod:`.clients`.
        oauth: The server gives tokens for the secrets in that file.
        oidc: Tokens of an issuer are accepted.
        proxy: A proxy is believed.
    """

    clients: FilePath
    oauth: OAuth | None = None
    oidc: Oidc | None = None
    proxy: Proxy | None = None


class Serving(_Section):
    """How a server is started.

    Args:
        catalogs: In PyIceberg's configuration; the first one is the default.
        host: Where it listens.
        port: Likewise; 0 takes a free one.
        processes: How many serve the port.
        threads: Of each process; so many requests are carried out at once.
        access_log: A file to which a line is appended for each request; ``-`` is the standard output, "" is none.
        allow_plain_http: Whether other machines may be served without TLS, because something in front of the server
            has it.
        limits: What one process takes at once.
        tls: The server's certificate; None is plain HTTP.
        authentication: None knows nobody, and serves this machine alone.
    """

    catalogs: Annotated[tuple[str, ...], AfterValidator(_once)] = ()
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8181
    processes: Positive = 1
    threads: Positive = 32
    access_log: str = ""
    allow_plain_http: bool = False
    limits: Limits = Limits()
    tls: Tls | None = None
    authentication: Authentication | None = None

    @property
    def max_requests(self) -> int:
        """See :class:`Limits`."""
        return self.limits.max_requests or self.threads * 17


def read_settings(path: Path) -> dict[str, Any]:
    """Return what the file at *path* says.

    Raises:
        ConfigError: It can't be read, or it is no TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"a configuration file can't be read: {error.strerror}", key="file", value=path) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"a configuration file is no TOML: {error}", key="file", value=path) from error


def validated(model: type[M], document: Any, path: Path | None = None, below: str = "") -> M:
    """Return *document* as *model*.

    Args:
        model: What is expected.
        document: As TOML has it.
        path: The file that it comes from; other files are named as seen from its folder.
        below: In front of the keys in messages.

    Raises:
        ConfigError: It does not fit; the message says where, and what would.
    """
    try:
        return model.model_validate(document, context={"folder": path.parent if path else "."})
    except ValidationError as error:
        raise _explained(model, error, path, below) from error


def _explained(model: type[BaseModel], error: ValidationError, path: Path | None, below: str) -> ConfigError:
    found = error.errors(include_url=False, include_context=False)
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])  # why another one is missing
    *parents, last = [str(part) for part in first["loc"]] or [""]
    key = ".".join(filter(None, (below, *parents, last)))
    where = {"key": key, "file": path}
    if first["type"] == "extra_forbidden":
        known = _keys_of(model, parents)
        close = difflib.get_close_matches(last, known, 1)
        accepted = f"{close[0]}, perhaps; there are: {', '.join(known)}" if close else ", ".join(known)
        return ConfigError("there is no such setting", **where, accepted=accepted)
    if first["type"] == "missing":
        return ConfigError("a setting is missing", **where)
    reason = first["msg"].removeprefix("Value error, ")
    return ConfigError("a setting makes no sense", **where, value=first["input"], accepted=reason)


def _keys_of(model: type[BaseModel], parents: list[str]) -> list[str]:
    """Return the keys of the section of *model* to which *parents* lead."""
    for parent in parents:
        field = next((f for name, f in model.model_fields.items() if parent in (name, f.alias)), None)
        arguments = getattr(field.annotation, "__args__", (field.annotation,)) if field else ()
        model = next((kind for kind in arguments if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def is_loopback(host: str) -> bool:
    """Return whether *host* is this machine, seen from itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
