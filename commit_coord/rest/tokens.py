"""Tokens: the server's own ones, and those of an OpenID Connect issuer.

The two kinds share no keys and no algorithms, so a token of one kind is never accepted as one of the other.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet, OctKey

from commit_coord.rest.access import IssuerUnavailable, KeysWanted, NotAuthenticated
from commit_coord.rest.files import Reloaded
from commit_coord.rest.settings import Oidc

logger = logging.getLogger(__name__)

ISSUER = "commit-coord"
"""The issuer in the server's own tokens."""

_OWN = ["HS256"]
_FETCH_TIMEOUT_S = 5
_FETCH_AGAIN_S = 10
_MAX_KEYS_BYTES = 1024 * 1024


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
            iss={"essential": True, "value": ISSUER}, sub={"essential": True}, exp={"essential": True}
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
        self._fetched: KeySet | None = None
        self._tried_at = self._fetched_at = float("-inf")
        self._fetching = threading.Lock()
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
            KeysWanted: *token* may be signed with a key that has not been fetched yet.
            IssuerUnavailable: No key has been fetched so far.
        """
        keys = self._keys()
        try:
            claims = _decoded(token, keys, list(self._settings.algorithms), self._claims)
        except InvalidKeyIdError as error:
            if self._may_fetch():
                raise KeysWanted from error
            raise NotAuthenticated("the token is signed with an unknown key", given=True) from error
        name, groups = claims.get(self._settings.subject_claim), claims.get(self._settings.groups_claim, [])
        if not isinstance(name, str) or not name:
            raise NotAuthenticated("the token names nobody", given=True)
        listed = groups if isinstance(groups, list) else []
        return Subject(name, tuple(group for group in listed if isinstance(group, str)))

    def refresh(self) -> None:
        """Read the file of keys again if there is one and it has changed; blocks."""
        if self._file is not None:
            self._file.get()

    def renew(self) -> None:
        """Fetch the keys, unless the last try is too recent. A failure is logged, and the known keys stay in use."""
        with self._fetching:
            if not self._may_fetch():
                return
            try:
                # The configuration accepts https, and http on loopback.
                with urllib.request.urlopen(self._settings.jwks, timeout=_FETCH_TIMEOUT_S) as answer:  # noqa: S310 # nosec B310
                    self._fetched = _key_set(answer.read(_MAX_KEYS_BYTES))
                self._fetched_at = time.monotonic()
            except (OSError, ValueError) as error:
                logger.error("the keys of the issuer can't be fetched: %s: %s", self._settings.jwks, error)
            finally:
                self._tried_at = time.monotonic()

    def _keys(self) -> KeySet:
        if self._file is not None:
            return self._file.value
        too_old = time.monotonic() - self._fetched_at > self._settings.keys_lifetime_ms / 1000
        if too_old and self._may_fetch():
            raise KeysWanted
        if self._fetched is None:
            raise IssuerUnavailable(f"the keys of the issuer {self._settings.issuer} can't be fetched now")
        return self._fetched

    def _may_fetch(self) -> bool:
        return self._file is None and time.monotonic() - self._tried_at > _FETCH_AGAIN_S

    def _from_file(self) -> KeySet:
        return _key_set(Path(self._settings.jwks).read_bytes())


def _key_set(text: bytes) -> KeySet:
    """Return the keys in *text*.

    Raises:
        ValueError: *text* contains none.
    """
    try:
        return KeySet.import_key_set(json.loads(text))
    except (JoseError, KeyError, TypeError) as error:
        raise ValueError(f"this is no JSON Web Key Set: {type(error).__name__}: {error}") from error


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
