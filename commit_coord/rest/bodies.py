"""Reads the bodies of requests, and bounds the memory that all of them have together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from commit_coord.rest.errors import BodyTimeout, BodyTooLarge, Overloaded, stopping
from commit_coord.rest.wire import Request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


class Bodies:
    """The bodies of the requests that arrive, wait or run. For one event loop.

    What has arrived counts, not what is announced: a client that announces a body and sends none takes no room.

    Args:
        max_bytes: Of one body.
        max_bytes_together: Of all bodies together.
        timeout_ms: How long a client may take to send a body.
    """

    def __init__(self, *, max_bytes: int, max_bytes_together: int, timeout_ms: int) -> None:
        self._max_bytes, self._max_bytes_together, self._timeout_ms = max_bytes, max_bytes_together, timeout_ms
        self._bytes_together = 0
        self._arriving: set[asyncio.Timeout] = set()
        self._is_stopping = False

    @asynccontextmanager
    async def of(self, head: Request, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the body of a request. Its memory counts until the end of the block.

        Raises:
            BodyTooLarge: It is longer than a body may be.
            BodyTimeout: It did not arrive in time.
            Overloaded: All bodies together would be too long, or the server is stopping.
            Disconnected: The client disconnected.
        """
        length = head.headers.get("content-length", "")
        too_large = BodyTooLarge(f"The body of this request may have {self._max_bytes} bytes at most")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise too_large
        chunks: list[bytes] = []
        size, more = 0, True
        try:
            async with self._time_limit():
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    chunk: bytes = message.get("body", b"")
                    size += len(chunk)
                    self._bytes_together += len(chunk)
                    if size > self._max_bytes:
                        raise too_large
                    if self._bytes_together > self._max_bytes_together:
                        raise Overloaded("the bodies of all requests together are too long; try again")
                    chunks.append(chunk)
                    more = message.get("more_body", False)
            body = b"".join(chunks)
            chunks.clear()  # or a body would be in memory twice
            yield body
        finally:
            self._bytes_together -= size

    def stop(self) -> None:
        """Refuse the requests whose bodies are incomplete, and those that come."""
        self._is_stopping = True
        for limit in self._arriving:
            if limit.expired():  # at this moment: its task has not run yet, and the limit can't be changed any more
                continue
            limit.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def _time_limit(self) -> AsyncIterator[None]:
        try:
            if self._is_stopping:
                raise TimeoutError
            async with asyncio.timeout(self._timeout_ms / 1000) as limit:
                self._arriving.add(limit)
                try:
                    yield
                finally:
                    self._arriving.discard(limit)
        except TimeoutError:
            if self._is_stopping:
                raise stopping() from None
            raise BodyTimeout(f"The body of the request did not arrive within {self._timeout_ms} ms") from None
