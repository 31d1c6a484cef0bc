"""Makes HTML of values. Every value is escaped; a template has no way around that."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from commit_coord.ui.looking import time_left_ms
from commit_coord.ui.now import SHORT, commit_of
from commit_coord.ui.visiting import NotFound, Shown
from commit_coord.units import duration, moment, size

ROOT = "/ui"

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every page: it runs no script but its own, is in no frame, and is kept by no cache."""

_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
"""Control characters, and those that would show a name in another order than it has."""


def html(template: str, status: int = 200, **values: Any) -> Shown:
    """Return a page."""
    return Shown(body=text(template, **values).encode("utf-8", "replace"), status=status, headers=HEADERS)


def text(template: str, **values: Any) -> str:
    """Return what *template* makes of *values*."""
    return _environment().get_template(template).render(values)


def redirect(address: str) -> Shown:
    """Return an answer that leads to another page of this server."""
    return Shown(status=303, headers={**HEADERS, "location": address})


def asset(name: str) -> Shown:
    """Return a file of the page.

    Raises:
        NotFound: There is none of this name.
    """
    found = _assets().get(name)
    if found is None:
        raise NotFound("There is no such file.")
    kind = _TYPES["." + name.rpartition(".")[2]]
    headers = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}
    return Shown(body=found, content_type=kind, headers=headers)


def address(*names: str, **query: object) -> str:
    """Return the address of a page; *names* are the parts of its path, not encoded."""
    path = "/".join((ROOT, *(quote(name, safe="") for name in names)))
    given = {key: str(value) for key, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def event(name: str, content: str) -> bytes:
    """Return a server-sent event. Each line of *content* is a line of its data, so that none ends the event."""
    lines = re.split(r"\r\n|\r|\n", content)
    return "".join((f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n")).encode("utf-8", "replace")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("commit_coord.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    made.filters |= {
        "duration": duration,
        "moment": moment,
        "size": size,
        "clock": _clock,
        "iso": _iso,
        "short": _short,
        "time_left": time_left_ms,
        "commit": commit_of,
    }
    made.globals |= {"address": address, "asset_address": _asset_address}
    return made


def _visible(value: Any) -> Any:
    """Return *value*; in a text, characters that nobody would see are written as their codes."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", value)
    return value


def _short(request_id: str) -> str:
    return request_id[:SHORT]


def _clock(ms: int) -> str:
    """Return the time of day, with the date if that is not today."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return at.strftime("%H:%M:%S UTC" if at.date() == datetime.now(UTC).date() else "%Y-%m-%d %H:%M:%S UTC")


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


@cache
def _assets() -> dict[str, bytes]:
    folder = files("commit_coord.ui") / "assets"
    return {one.name: one.read_bytes() for one in folder.iterdir() if "." + one.name.rpartition(".")[2] in _TYPES}


@cache
def _asset_address(name: str) -> str:
    """Return the address of an asset. It changes with the content, so browsers may keep the file for ever."""
    return address("assets", name, v=sha256(_assets()[name]).hexdigest()[:12])
