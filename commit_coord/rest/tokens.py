"""Tokens: the server's own ones, and those of an OpenID Connect issuer.

The two kinds share no keys and no algorithms, so a token of one kind is never accepted as one of the other.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet, OctKey

from commit_coord.rest.access import IssuerUnavailable, KeysWanted, NotAuthenticated
from commit_coord.rest.files import Reloaded
from commit_coord.rest.keys import FetchedKeys, key_set
from commit_coord.rest.settings import Oidc

ISSUER = "commit-coord"
"""The issuer in the server's own tokens."""

_OWN = ["HS256"]
_CLOCKS_DIFFER_S = 60
"""How far the clocks of servers that share a key may differ: a token that one of them issues is used at once."""


class OwnTokens:
    """Issues the server's own tokens, and checks them.

    Args:
        secret: The key of the signatures.
        lifetime_ms: How long a token is valid.
    """

    def __init__(self, secret: bytes, lifetime_ms: int) -> None:
        self._key = OctKey.import_key(hashlib.sha256(secret).digest())  # any file becomes a key of the right length
        self.lifetime_s = max(lifetime_ms // 1000, 1)
        self._claims = jwt.JWTClaimsRegistry(
            leeway=_CLOCKS_DIFFER_S,
            iss={"essential": True, "value": ISSUER},
            sub={"essential": True},
            exp={"essential": True},
        )

    def give(self, client: str, secret_sha256: str) -> str:
        """Return a token for *client*, valid as long as the client's secret is the same."""
        now = int(time.time())
        claims = {"iss": ISSUER, "sub": client, "iat": now, "exp": now + self.lifetime_s, "for": secret_sha256[:16]}
        return jwt.encode({"alg": _OWN[0]}, claims, self._key, algorithms=_OWN)

    def read(self, token: str) -> tuple[str, str]:
        """Return the client of *token*, and the beginning of the SHA-256 of the secret that the client had then.

        Raises:
            NotAuthenticated: *token* is not one of the server's own, or it has expired.
        """
        claims = _decoded(token, self._key, _OWN, self._claims)
        if claims["exp"] <= time.time():  # the leeway is for the time of issue alone
            raise NotAuthenticated("the token has expired", given=True)
        return str(claims["sub"]), str(claims.get("for"))


@dataclass(frozen=True, slots=True)
class Subject:
    """The client that a token of an issuer names, and its groups."""

    name: str
    groups: tuple[str, ...]


class OidcTokens:
    """Checks the tokens of an issuer. Thread safe.

    Args:
        settings: The issuer, and which of its tokens are accepted.

    Raises:
        ValueError: The file of keys contains none.
        OSError: The file cannot be read.
    """

    def __init__(self, settings: Oidc) -> None:
        self._settings = settings
        self._file = None if settings.is_remote else Reloaded([Path(settings.jwks)], self._from_file)
        self._remote = FetchedKeys(settings.jwks, settings.keys_lifetime_ms) if settings.is_remote else None
        self._claims = jwt.JWTClaimsRegistry(
            leeway=settings.clock_skew_ms // 1000,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "value": settings.audience},
            exp={"essential": True},
        )

    def read(self, token: str) -> Subject:
        """Return the client that *token* names.

        Raises:
            NotAuthenticated: *token* is not from the issuer, not for this server, not valid yet, or expired.
            KeysWanted: *token* may be signed with a key that is being fetched.
            IssuerUnavailable: No key has been fetched so far.
        """
        keys = self._keys()
        try:
            claims = _decoded(token, keys, list(self._settings.algorithms), self._claims)
        except InvalidKeyIdError as error:
            if self._remote is not None and (fetch := self._remote.fetching()) is not None:
                raise KeysWanted(fetch) from error
            # 1. These keys are read.   2. A fetch gets newer ones, and ends.   3. None is running any more.
            if self._remote is not None and self._remote.known is not keys:
                return self.read(token)
            raise NotAuthenticated("the token is signed with an unknown key", given=True) from error
        name, groups = claims.get(self._settings.subject_claim), claims.get(self._settings.groups_claim, [])
        if not isinstance(name, str) or not name:
            raise NotAuthenticated("the token does not name its subject", given=True)
        listed = groups if isinstance(groups, list) else []
        return Subject(name, tuple(group for group in listed if isinstance(group, str)))

    def refresh(self) -> None:
        """Read the file of keys again if there is one and it has changed; blocks."""
        if self._file is not None:
            self._file.get()

    def _keys(self) -> KeySet:
        if self._file is not None:
            return self._file.value
        assert self._remote is not None, "keys are in a file or behind a URL"
        if self._remote.known is None and (fetch := self._remote.fetching()) is not None:
            raise KeysWanted(fetch)
        if (known := self._remote.known) is None:  # read again: a fetch may have ended in between
            raise IssuerUnavailable(f"the keys of the issuer {self._settings.issuer} can't be fetched now")
        return known

    def _from_file(self) -> KeySet:
        return key_set(Path(self._settings.jwks).read_bytes())


def _decoded(
    token: str, key: KeySet | OctKey, algorithms: list[str], registry: jwt.JWTClaimsRegistry
) -> dict[str, Any]:
    """Return the claims of *token* after checking its signature and the claims that *registry* requires.

    Raises:
        NotAuthenticated: One of them is not valid.
        InvalidKeyIdError: *token* names a key that is not known.
    """
    try:
        claims = jwt.decode(token, key, algorithms=algorithms).claims
        registry.validate(claims)
    except InvalidKeyIdError:
        raise
    except ExpiredTokenError as error:
        raise NotAuthenticated("the token has expired", given=True) from error
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise NotAuthenticated("the token is not valid here", given=True) from error
    return claims
