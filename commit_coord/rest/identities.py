"""Who sent a request.

What a request says of itself is either true or the request is refused: a wrong token is never taken for none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from typing import Any

from commit_coord.errors import ConfigError
from commit_coord.rest.access import Caller, NotAuthenticated, Place
from commit_coord.rest.clients import Clients
from commit_coord.rest.files import Reloaded
from commit_coord.rest.settings import Authentication, Tls
from commit_coord.rest.tokens import ISSUER, OidcTokens, OwnTokens
from commit_coord.rest.wire import Request


class Identities:
    """Finds out who sent a request; never blocks.

    Args:
        settings: What is believed.
        tls: Whether certificates of clients are asked for.
        secret: What own tokens are signed with.
        place: See :class:`Clients`.

    Raises:
        ConfigError: A file makes no sense, or a client could never be recognised.
    """

    def __init__(
        self, settings: Authentication, tls: Tls | None, secret: bytes, place: Callable[[str, str], Place]
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
        """Those of the file as it is now."""
        return self._clients.get()

    def caller(self, request: Request) -> Caller:
        """Return who sent *request*.

        Raises:
            NotAuthenticated: Nobody says so, or nobody who is believed.
            KeysWanted: Try again when :meth:`OidcTokens.renew` has returned.
            IssuerUnavailable: Nobody can be believed now.
        """
        if (authorization := request.headers.get("authorization")) is not None:
            scheme, _, token = authorization.partition(" ")
            if scheme.lower() != "bearer":
                raise NotAuthenticated("a bearer token is expected", given=True)
            return self._bearer(token.strip())
        proxy = self._settings.proxy
        if proxy is not None and (user := request.headers.get(proxy.header)) is not None:
            if not proxy.has(request.peer):
                raise NotAuthenticated("this address may not say who sent the request", given=True)
            return self._known("proxy_user", user)
        if request.subject:
            return self._known("certificate", request.subject)
        raise NotAuthenticated("the request does not say who sent it", given=False)

    def token(self, client: str, secret: str) -> str:
        """Return a token for the client of these OAuth credentials.

        Raises:
            NotAuthenticated: There is no such client, or its secret is another one.
        """
        assert self.own is not None, "the route is served with it"
        clients = self.clients
        digest = _sha256(secret)
        if clients.found("token_sha256", digest) != client:
            raise NotAuthenticated("the client or its secret is not known", given=True)
        return self.own.give(client, digest)

    def exchanged(self, token: str) -> str:
        """Return a new token for the client of *token*, which is good yet.

        Raises:
            NotAuthenticated: It is not.
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
        """Return the client of one of our tokens, and the SHA-256 of its secret."""
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

    def _read_clients(self, tls: Tls | None, place: Callable[[str, str], Place]) -> Clients:
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
                    "a client could never be recognised: what its entry needs is not configured",
                    key=proof.replace("_", "-"),
                    file=self._settings.clients,
                    accepted=key,
                )
        return clients


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _issuer(token: str) -> Any:
    """Return what a JSON Web Token says is its issuer, which proves nothing; None if it is no such token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return claims.get("iss") if isinstance(claims, dict) else None
