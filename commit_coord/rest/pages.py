"""Splits long lists into pages.

A page token contains the last name of the page before. So the server keeps no state between pages, any process can
answer the next one, and entries that are added or removed in between do not shift the pages.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec
import orjson
from pyiceberg.typedef import Identifier

from commit_coord.rest.wire import MalformedRequest, Request

_LONGEST = 1000
"""The largest page, and the size of a page if the client asks for none."""


def page(found: Iterable[Identifier], request: Request) -> tuple[list[Identifier], str | None]:
    """Return the page of *found* that *request* asks for, sorted, and the token of the next one.

    A client that sends no token gets everything in one page: the protocol requires this for clients without pagination.

    Raises:
        MalformedRequest: The token is not one of ours, or the page size is not a positive number.
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
    return base64.urlsafe_b64encode(orjson.dumps(name)).decode().rstrip("=")


def _decoded(token: str) -> Identifier:
    """Return the name in *token*. The token of the first page is empty; its name is the empty one."""
    if not token:
        return ()
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text, type=tuple[str, ...])
    except ValueError as error:  # of both
        raise MalformedRequest(f"Invalid pageToken: {token}") from error
