"""An OpenID Connect issuer: keys, tokens, and the set of keys that it publishes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey


class Issuer:
    """An issuer with one key.

    Args:
        kid: The key's name.
    """

    def __init__(self, kid: str = "k1") -> None:
        self.key = RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})

    @property
    def keys(self) -> str:
        """What it publishes."""
        return json.dumps(KeySet([self.key]).as_dict(private=False))

    def publish(self, path: Path) -> None:
        """Write the public keys to a file, as a whole."""
        made = path.with_suffix(".new")
        made.write_text(self.keys)
        made.replace(path)

    def token(
        self,
        subject: str,
        *,
        audience: Any = "coord",
        issuer: str = "https://issuer",
        begins_in_s: float = 0,
        ends_in_s: float = 60,
        **more: Any,
    ) -> str:
        """Return a token for *subject*."""
        now = int(time.time())
        times = {"iat": now, "nbf": now + int(begins_in_s), "exp": now + int(ends_in_s)}
        claims = {"iss": issuer, "aud": audience, "sub": subject, **times, **more}
        header = {"alg": "RS256", "kid": self.key.kid}
        return jwt.encode(header, {key: value for key, value in claims.items() if value is not None}, self.key)
