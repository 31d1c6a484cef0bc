"""Long lists, a page at a time.

A token says behind which name the next page begins. So a page costs no memory here, any process can answer the next
one, and what is added or removed meanwhile moves nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from pyiceberg.typedef import Identifier

from commit_coord.rest.wire import MalformedRequest, Request

_LONGEST = 1000
"""Entries of a page for which the client asks no length."""


def page(found: Iterable[Identifier], request: Request) -> tuple[list[Identifier], str | None]:
    """Return the page of *found* that *request* asks for, sorted, and the token of the next one.

    Everything is one page for a client that sends no token: the protocol has it so for those that know of no pages.

    Raises:
        MalformedRequest: The token is none of ours, or the length is no positive number.
    """
    names = sorted(found)
    token = request.query.get("pageToken")
    if token is None:
        return names, None
    length = _length(request.query.get("pageSize"))
    behind = _decoded(token)
    rest = [name for name in names if name > behind]
    if len(rest) <= length:
        return rest, None
    return rest[:length], _encoded(rest[length - 1])


def _length(text: str | None) -> int:
    if text is None:
        return _LONGEST
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise MalformedRequest(f"Invalid pageSize, not a positive number: {text}")
    return min(int(text), _LONGEST)


def _encoded(name: Identifier) -> str:
    return base64.urlsafe_b64encode("\x1f".join(name).encode()).decode().rstrip("=")


def _decoded(token: str) -> Identifier:
    """Return the name in *token*, the empty one in the token of the first page."""
    if not token:
        return ()
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise MalformedRequest(f"Invalid pageToken: {token}") from error
    return tuple(text.split("\x1f"))
