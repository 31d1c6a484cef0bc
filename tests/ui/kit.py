"""What tests of the page share: HTML as a list of elements, and forms that are sent back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from tests.limits import PATIENCE
from tests.rest.asgi import InProcess
from tests.rest.kit import Response

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 123456789 * 3 }}{% raise %}",
    "a\r\nevent: now\r\ndata: <b>forged</b>\r\n\r\n",
    "javascript:alert(1)",
    "\u202egnp.exe",
    "</textarea></title><svg onload=alert(1)>",
)
"""Names and statements that would be code, if a page did not escape them."""


@dataclass(frozen=True, slots=True)
class Element:
    """The start of one element."""

    tag: str
    attributes: dict[str, str | None]


class Html(HTMLParser):
    """A page: its elements, and its text without white space that nobody sees."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._texts: list[str] = []
        self.feed(body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))
        self._texts.append(" ")

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        """The text of the page."""
        return re.sub(r"\s+", " ", "".join(self._texts)).strip()

    @property
    def tags(self) -> set[str]:
        """The kinds of elements."""
        return {element.tag for element in self.elements}

    def links(self, part: str) -> list[str]:
        """Return the addresses of links that contain *part*."""
        found = [element.attributes.get("href") or "" for element in self.elements if element.tag == "a"]
        return [address for address in found if part in address]

    def form(self, method: str = "post") -> dict[str, str]:
        """Return the fields of the forms with *method*, with their values."""
        inside, fields = False, {}
        for element in self.elements:
            if element.tag == "form":
                inside = element.attributes.get("method") == method
            elif element.tag == "input" and inside:
                fields[element.attributes["name"] or ""] = element.attributes.get("value") or ""
        return fields


@contextmanager
def served_page(properties: Mapping[str, str]) -> Iterator[str]:
    """Yield the address of the locks of the catalog ``shop``, on a page of a process of its own that ends well."""
    given = [f"--property={key}={value}" for key, value in properties.items()]
    with served("ui", "--catalog=shop", "--administer", *given) as address:
        yield f"{address}shop/"


@contextmanager
def served(*command: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the address of the page of ``commit-coord`` *command*, which runs in a process of its own and ends well."""
    process = subprocess.Popen(
        [sys.executable, "-m", "commit_coord.cli", *command, "--port=0", "--json"],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["ui"]
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert 0 == process.returncode, errors
    assert "Traceback" not in errors


def page(server: InProcess, path: str, status: int = 200, **options: Any) -> Html:
    """Return the page at *path*, which has this *status*."""
    answer = server.ask("GET", path, **options)
    assert status == answer.status, answer.body
    return Html(answer.body)


def send(server: InProcess, path: str, fields: dict[str, str], **options: Any) -> Response:
    """Return the answer to a form."""
    return server.ask("POST", path, urlencode(fields).encode(), **options)


def cookie(name: str) -> dict[str, str]:
    """Return the header of a browser in which *name* has logged in."""
    return {"cookie": f"commit_coord_token={name}"}
