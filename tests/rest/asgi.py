"""A server without sockets: requests go into the ASGI application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from prometheus_client import REGISTRY

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.rest import Serving
from commit_coord.rest.application import Application
from commit_coord.rest.server import own_secret
from commit_coord.rest.tls import SUBJECT
from tests.rest.kit import IN_WORK, Response

T = TypeVar("T")


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> None:
    """Configure catalogs of these names, each in a SQLite file in *folder*."""
    for name in names:
        for key, value in {
            "URI": f"coord+sqlite:///{folder}/{name}.db",
            "WAREHOUSE": f"file://{folder}/{name}",
        }.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key}", value)


class InProcess:
    """An application that is started, and a client of it.

    Args:
        serving: How it is started.
    """

    def __init__(self, serving: Serving) -> None:
        self.application = Application(serving, own_secret(serving))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self.application.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self.application.end()

    @property
    def catalog(self) -> CoordinatedCatalog:
        """The catalog ``shop`` that it serves."""
        return self.application._warehouses.chosen("shop").catalog

    @property
    def in_work(self) -> int:
        """How many requests of this process are in work or wait."""
        return int(REGISTRY.get_sample_value(IN_WORK) or 0)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of *work*, which runs on the event loop of the application."""
        return self._runner.run(work)

    def ask(self, method: str, path: str, document: Any = None, **options: Any) -> Response:
        """Return the answer to one request, see :meth:`asked`. Changed files are in use, and then the logs have it."""
        self.application.refresh()
        answer = self._runner.run(self.asked(method, path, document, **options))
        self.application.flush()
        return answer

    async def asked(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        peer: str = "127.0.0.1",
        subject: str = "",
    ) -> Response:
        """Return the answer to one request.

        Args:
            method: In upper case.
            path: Raw, with the query behind it.
            document: Sent as JSON, bytes as they are.
            headers: Of the request; ``host`` is a loopback name without it.
            token: A bearer token.
            peer: Where it comes from.
            subject: Of the client's certificate.
        """
        body = document if isinstance(document, bytes) else b"" if document is None else json.dumps(document).encode()
        given = {"host": "127.0.0.1", **(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}
        raw_path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "raw_path": raw_path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": (peer, 1),
            "state": {SUBJECT: subject} if subject else {},
        }
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.application(scope, receive, send)
        answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return Response(sent[0]["status"], answered, sent[1]["body"])
