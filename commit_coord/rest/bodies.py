"""Reads the bodies of requests, and bounds the memory that all of them have together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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

    def of(self, head: Request, receive: Receive) -> AbstractAsyncContextManager[bytes]:
        """Return a context manager that reads the body of a request. Its memory counts until the end of the block.

        Raises:
            BodyTooLarge: It is longer than a body may be.
            BodyTimeout: It did not arrive in time.
            Overloaded: All bodies together would be too long, or the server is stopping.
            Disconnected: The client disconnected.
        """
        return _Body(self, head, receive)

    async def read(self, body: _Body, head: Request, receive: Receive) -> bytes:
        """Return the body of a request, and count it in *body*; see :meth:`of`."""
        length = head.headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        more = True
        if _ends_with_its_head(head):  # so nothing is waited for, and a timer would be for nothing
            if self._is_stopping:
                raise stopping()
            more = self._taken(await receive(), body, chunks)
        if more:
            async with self._time_limit():
                while more:
                    more = self._taken(await receive(), body, chunks)
        return b"".join(chunks)

    def release(self, size: int) -> None:
        """Count *size* bytes less."""
        self._bytes_together -= size

    def _taken(self, message: Message, body: _Body, chunks: list[bytes]) -> bool:
        """Add what has arrived to *chunks*; return whether more follows."""
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunk: bytes = message.get("body", b"")
        body.size += len(chunk)
        self._bytes_together += len(chunk)
        if body.size > self._max_bytes:
            raise self._too_large()
        if self._bytes_together > self._max_bytes_together:
            raise Overloaded("the bodies of all requests together are too long; try again")
        chunks.append(chunk)
        return bool(message.get("more_body", False))

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body of this request may have {self._max_bytes} bytes at most")

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


class _Body:
    """One body; a context manager, see :meth:`Bodies.of`."""

    __slots__ = ("_bodies", "_head", "_receive", "size")

    def __init__(self, bodies: Bodies, head: Request, receive: Receive) -> None:
        self._bodies, self._head, self._receive = bodies, head, receive
        self.size = 0
        """The bytes of it that are counted."""

    async def __aenter__(self) -> bytes:
        try:
            return await self._bodies.read(self, self._head, self._receive)
        except BaseException:
            self._bodies.release(self.size)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._bodies.release(self.size)


def _ends_with_its_head(head: Request) -> bool:
    """Return whether no body follows, so the head is all of the request.

    Source: RFC 9112, "Message Body Length". In later versions of HTTP a body needs neither header; but no client sends
    one with these methods.
    """
    return head.method in ("GET", "HEAD") and not head.headers.keys() & {"content-length", "transfer-encoding"}
