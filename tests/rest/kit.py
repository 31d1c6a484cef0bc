"""A server in a process of its own, and what tests ask it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from tests.limits import PATIENCE

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))
_ARROW = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string())])

IN_WORK = "commit_coord_rest_requests_in_work"
"""The metric that says how many requests a server works on or lets wait."""


def ids(*numbers: int) -> pa.Table:
    """Return rows with these ids."""
    return pa.Table.from_pylist([{"id": number, "s": str(number)} for number in numbers], schema=_ARROW)


def row_ids(table: Any) -> list[int]:
    """Return the ids in *table*, sorted."""
    return sorted(table.scan().to_arrow()["id"].to_pylist())


@dataclass(frozen=True, slots=True)
class Response:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        """Status, type and message of an error; the code in its body is the status."""
        error = self.json["error"]
        assert self.status == error["code"]
        return self.status, error["type"], error["message"]


class Server:
    """``commit-coord serve`` on a SQLite file of its own.

    Args:
        folder: Where everything is kept.
        arguments: Behind ``serve --catalog shop``.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.said = folder, ""
        environment = {
            "PYICEBERG_CATALOG__SHOP__URI": _uri(folder),
            "PYICEBERG_CATALOG__SHOP__WAREHOUSE": _warehouse(folder),
            "PYICEBERG_CATALOG__SECOND__URI": f"coord+sqlite:///{folder}/second.db",
            "PYICEBERG_CATALOG__SECOND__WAREHOUSE": f"file://{folder}/second",
        }
        command = "-m commit_coord.cli serve --catalog shop --port 0 --json"
        self.process = subprocess.Popen(
            [sys.executable, *command.split(), *arguments],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.url: str = json.loads(line)["url"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()
        self.process.communicate()

    def client(self, **properties: str) -> RestCatalog:
        """Return PyIceberg's own client of the server."""
        return RestCatalog("rest", uri=self.url, **properties)

    @contextmanager
    def library(self) -> Iterator[CoordinatedCatalog]:
        """Yield the same catalog as those see it that use the library."""
        with library(self.folder) as catalog:
            yield catalog

    def ask(self, method: str, path: str, document: Any = None, headers: Mapping[str, str] | None = None) -> Response:
        """Return the answer to a request; *document* is sent as JSON, bytes as they are."""
        body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Response(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def in_work(self) -> int:
        """Return how many other requests it works on or lets wait."""
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        (count,) = (line.split()[1] for line in lines if line.startswith(f"{IN_WORK} "))
        return int(float(count)) - 1

    def end(self) -> None:
        """Stop the server as its service manager does; assert that it ends well and leaves no lock."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, errors
        assert "Traceback" not in errors
        self.said = errors
        with self.library() as catalog:
            assert [] == [str(entry) for entry in catalog.locks.locks()]


@contextmanager
def library(folder: Path) -> Iterator[CoordinatedCatalog]:
    """Yield the catalog that a server serves from *folder*, as those see it that use the library."""
    catalog = commit_coord.load_catalog("shop", uri=_uri(folder), warehouse=_warehouse(folder))
    try:
        yield catalog
    finally:
        catalog.close()


def _uri(folder: Path) -> str:
    return f"coord+sqlite:///{folder}/catalog.db"


def _warehouse(folder: Path) -> str:
    return f"file://{folder}/warehouse"


@contextmanager
def served(*arguments: str) -> Iterator[Server]:
    """Yield a server in a temporary folder of its own."""
    with tempfile.TemporaryDirectory(prefix="coord-rest-") as folder, Server(Path(folder), *arguments) as server:
        yield server


def path_of(*table: str, prefix: str = "shop") -> str:
    """Return the path of a table."""
    *namespace, name = table
    levels = quote("\x1f".join(namespace), safe="")
    return f"/v1/{prefix}/namespaces/{levels}/tables/{quote(name, safe='')}"
