"""The file of clients: how the server recognizes each client, and what the client may do.

::

    [nightly-load]
    token-sha256 = "…"
    grants = { shop = "read", "shop/sales" = "write", "shop/sales.payroll" = "none" }

The server reads the file again when it changes, so a token can be revoked without a restart.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from commit_coord.errors import ConfigError
from commit_coord.rest.access import Access, Caller, GrantPath, Grants
from commit_coord.rest.settings import read_settings, validated

_GRANTED: dict[str, Access] = {str(access): access for access in Access if access is not Access.SEE}


def _granted(grants: dict[str, str]) -> dict[str, str]:
    for where, access in grants.items():
        if access not in _GRANTED:
            raise ValueError(f"one of {', '.join(_GRANTED)} for {where}")
    return grants


class Client(BaseModel):
    """One entry of the file.

    Args:
        token_sha256: The SHA-256 of the client's bearer token, in hexadecimal; the token is also the secret of its
            OAuth credentials.
        oidc_subject: The client's name at the OIDC issuer.
        oidc_group: A group at the OIDC issuer; the entry is for all members of the group.
        certificate: The subject of the client's certificate, in the format of RFC 4514.
        proxy_user: The client's name at the proxy.
        grants: For each ``CATALOG`` or ``CATALOG/NAMESPACE``, what is allowed there and below.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"), populate_by_name=True
    )

    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    oidc_subject: str | None = None
    oidc_group: str | None = None
    certificate: str | None = None
    proxy_user: str | None = None
    grants: Annotated[dict[str, str], AfterValidator(_granted)] = {}


PROOFS = ("token_sha256", "oidc_subject", "oidc_group", "certificate", "proxy_user")
"""The fields by which the server recognizes a client."""


class Clients:
    """All clients.

    Args:
        path: The file.
        place: Returns the place of a grant, given a catalog's name and a namespace; raises ValueError if there is no
            such catalog.

    Raises:
        ConfigError: The file is not valid.
    """

    def __init__(self, path: Path, place: Callable[[str, str], GrantPath]) -> None:
        self._by_proof: dict[tuple[str, str], str] = {}
        self._clients: dict[str, Client] = {}
        self._grants: dict[str, Grants] = {}
        for name, entry in read_settings(path).items():
            client = validated(Client, entry, path, name)
            self._recognise(name, client, path)
            self._clients[name] = client
            self._grants[name] = Grants(_placed(name, client, place, path))

    @property
    def proofs(self) -> set[str]:
        """The fields that at least one entry has."""
        return {proof for proof, _ in self._by_proof}

    def found(self, proof: str, value: str) -> str | None:
        """Return the name of the entry whose field *proof* is *value*, None if there is none."""
        return self._by_proof.get((proof, value))

    def caller(self, name: str) -> Caller:
        """Return the sender that the entry *name* describes."""
        return Caller(name, self._grants[name])

    def known(self, name: str, *others: str | None) -> Caller:
        """Return a sender that an issuer or a proxy calls *name*, with the grants of the entries *others*, if any."""
        return Caller(name, Grants.union(self._grants[other] for other in others if other is not None))

    def secret_of(self, name: str) -> str | None:
        """Return the SHA-256 of the client's secret, None if it has none."""
        client = self._clients.get(name)
        return client.token_sha256 if client else None

    def _recognise(self, name: str, client: Client, path: Path) -> None:
        given = {proof: value for proof in PROOFS if (value := getattr(client, proof)) is not None}
        if not given:
            raise ConfigError(
                "the entry does not say how to recognize the client",
                key=name,
                file=path,
                accepted="one of " + ", ".join(proof.replace("_", "-") for proof in PROOFS),
            )
        for proof, value in given.items():
            other = self._by_proof.setdefault((proof, value), name)
            if other != name:
                raise ConfigError(
                    "two clients have the same proof of identity",
                    key=f"{name}.{proof.replace('_', '-')}",
                    file=path,
                    accepted=f"a value that {other} does not have",
                )


def _placed(name: str, client: Client, place: Callable[[str, str], GrantPath], path: Path) -> dict[GrantPath, Access]:
    made: dict[GrantPath, Access] = {}
    named: dict[GrantPath, str] = {}
    for where, access in client.grants.items():
        catalog, slash, namespace = where.partition("/")
        if slash and re.search(r"^$|^\.|\.\.|\.$|[/\x00-\x1f]", namespace):
            raise ConfigError(
                "a grant names no namespace",
                key=f"{name}.grants",
                file=path,
                value=where,
                accepted="CATALOG or CATALOG/NAMESPACE, the levels of the namespace joined with dots",
            )
        try:
            granted = place(catalog, namespace)
        except ValueError as error:
            raise ConfigError(str(error), key=f"{name}.grants", file=path, value=where) from error
        if (other := named.setdefault(granted, where)) != where:
            raise ConfigError(
                "two grants are for the same namespace: the catalog does not tell the two names apart",
                key=f"{name}.grants",
                file=path,
                value=f"{other}, {where}",
                accepted="one of them",
            )
        made[granted] = _GRANTED[access]
    return made
