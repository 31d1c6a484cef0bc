"""Identifies the sender of a request.

A request with a proof that is not valid is refused: the server never treats a wrong token as no token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from typing import Any

from commit_coord.errors import ConfigError
from commit_coord.rest.access import Caller, GrantPath, NotAuthenticated
from commit_coord.rest.clients import Clients
from commit_coord.rest.files import Reloaded
from commit_coord.rest.settings import Authentication, Tls
from commit_coord.rest.tokens import ISSUER, OidcTokens, OwnTokens
from commit_coord.rest.wire import Request


class Identities:
    """Identifies senders; never blocks.

    Args:
        settings: Which proofs are accepted.
        tls: Tells whether the server asks clients for certificates.
        secret: Signs the server's own tokens.
        place: See :class:`Clients`.

    Raises:
        ConfigError: A file is not valid, or a client could never be recognized.
    """

    def __init__(
        self, settings: Authentication, tls: Tls | None, secret: bytes, place: Callable[[str, str], GrantPath]
    ) -> None:
        self._settings = settings
        self._clients = Reloaded([settings.clients], lambda: self._read_clients(tls, place))
        self.own = OwnTokens(secret, settings.oauth.token_lifetime_ms) if settings.oauth else None
        try:
            self.oidc = OidcTokens(settings.oidc) if settings.oidc else None
        except (OSError, ValueError) as error:
            raise ConfigError(
                "the keys of the issuer can't be read",
                key="authentication.oidc.jwks",
                accepted=f"a JSON Web Key Set: {error}",
            ) from error

    @property
    def clients(self) -> Clients:
        """The clients in the file, as it was when it was looked at last."""
        return self._clients.value

    def refresh(self) -> None:
        """Read the files of clients and keys again if they have changed; blocks."""
        self._clients.get()
        if self.oidc is not None:
            self.oidc.refresh()

    def caller(self, request: Request) -> Caller:
        """Return the sender of *request*.

        Raises:
            NotAuthenticated: The request contains no proof of its sender, or one that is not accepted.
            KeysWanted: The keys of the issuer are being fetched; call this again afterwards.
            IssuerUnavailable: The token cannot be checked now.
        """
        if (authorization := request.headers.get("authorization")) is not None:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise NotAuthenticated("a bearer token is expected", given=True)
            return self._bearer(token.strip())
        proxy = self._settings.proxy
        if proxy is not None and (user := request.headers.get(proxy.header)) is not None:
            if not proxy.has(request.peer):
                raise NotAuthenticated(
                    "only a configured proxy may say who sent the request, and this address is not one", given=True
                )
            if not user.strip(", \t"):  # nor is it the proxy itself, whose certificate the connection may have
                raise NotAuthenticated("the proxy does not say who sent the request", given=True)
            return self._known("proxy_user", user)
        if request.subject:
            return self._known("certificate", request.subject)
        raise NotAuthenticated("the request does not say who sent it", given=False)

    def token(self, client: str, secret: str) -> str:
        """Return a token for the client with these OAuth credentials.

        Raises:
            NotAuthenticated: There is no such client, or the secret is wrong.
        """
        assert self.own is not None, "the route is served with it"
        clients = self.clients
        digest = _sha256(secret)
        if clients.found("token_sha256", digest) != client:
            raise NotAuthenticated("the client or its secret is not known", given=True)
        return self.own.give(client, digest)

    def exchanged(self, token: str) -> str:
        """Return a new token for the client of *token*.

        Raises:
            NotAuthenticated: *token* is not valid, or not valid any more.
        """
        assert self.own is not None, "the route is served with it"
        client, digest = self._own_client(token, self.clients)
        return self.own.give(client, digest)

    def _bearer(self, token: str) -> Caller:
        clients = self.clients
        if (name := clients.found("token_sha256", _sha256(token))) is not None:
            return clients.caller(name)
        issuer = _issuer(token)
        if self.own is not None and issuer == ISSUER:
            return clients.caller(self._own_client(token, clients)[0])
        if self.oidc is not None and issuer is not None:
            subject = self.oidc.read(token)
            groups = (clients.found("oidc_group", group) for group in subject.groups)
            return clients.known(f"oidc:{subject.name}", clients.found("oidc_subject", subject.name), *groups)
        raise NotAuthenticated("the token is not known", given=True)

    def _own_client(self, token: str, clients: Clients) -> tuple[str, str]:
        """Return the client of one of the server's own tokens, and the SHA-256 of its secret."""
        assert self.own is not None, "tokens are given"
        name, given_for = self.own.read(token)
        digest = clients.secret_of(name)
        if digest is None or digest[: len(given_for)] != given_for:
            raise NotAuthenticated("the client of the token has another secret now", given=True)
        return name, digest

    def _known(self, proof: str, value: str) -> Caller:
        clients = self.clients
        name = clients.found(proof, value)
        kind = "proxy" if proof == "proxy_user" else proof
        return clients.caller(name) if name is not None else clients.known(f"{kind}:{value}")

    def _read_clients(self, tls: Tls | None, place: Callable[[str, str], GrantPath]) -> Clients:
        clients = Clients(self._settings.clients, place)
        wanted = {
            "oidc_subject": (self._settings.oidc, "[authentication.oidc]"),
            "oidc_group": (self._settings.oidc, "[authentication.oidc]"),
            "proxy_user": (self._settings.proxy, "[authentication.proxy]"),
            "certificate": (tls and tls.client_ca, "tls.client-ca"),
        }
        for proof in clients.proofs & wanted.keys():
            setting, key = wanted[proof]
            if setting is None:
                raise ConfigError(
                    "a client could never be recognized: the setting that its entry needs is missing",
                    key=proof.replace("_", "-"),
                    file=self._settings.clients,
                    accepted=key,
                )
        return clients


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _issuer(token: str) -> Any:
    """Return the issuer in a JSON Web Token, unchecked; None if *token* is not a JSON Web Token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return claims.get("iss") if isinstance(claims, dict) else None
