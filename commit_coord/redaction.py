"""What of a text may be printed: no secret, and in a log no character that begins a line or commands a terminal.

Secrets are passwords in URLs, and values of properties whose name suggests a secret.
"""

from __future__ import annotations

import json
import re
from typing import Any

HIDDEN = "***"

_SECRET_KEY = re.compile(
    r"secret|passw|token|credential|authorization|api-?key|access-?key|account-?key|private-?key|"
    r"connection-?string|session-?key|signature|sas\b|(^|[.-])key$",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"(?<=://)([^\s:/@']*):([^\s/']*)@")
_DIGEST = re.compile(r"\b(digest:[^:,\s]*):[^:,\s]+")
_ARGUMENT = re.compile(r"([?&;](?:[\w.-]*(?:passw|secret|token|sig|key)[\w.-]*)=)[^&;\s'\"]+", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """Return *text* with the passwords of its URLs hidden, and the hashes of ZooKeeper's digests."""
    text = _DIGEST.sub(rf"\1:{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", text))
    return _ARGUMENT.sub(rf"\1{HIDDEN}", text)


def shown(key: str, value: str) -> str:
    """Return *value* of property *key* as it may be printed."""
    return HIDDEN if value and _SECRET_KEY.search(key) else without_passwords(value)


def printable(text: str) -> str:
    """Return *text* with JSON's escapes for what is not printable: it stays in its line, and letters in their order.

    Of text that is JSON already, the values stay the same.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def facts(details: dict[str, Any]) -> dict[str, Any]:
    """Return the details of an error without secrets; ``value`` is one of the property ``key``."""
    key = str(details.get("key", ""))
    return {
        name: shown(key if name == "value" else "", value) if isinstance(value, str) else value
        for name, value in details.items()
    }
