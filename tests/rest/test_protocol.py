"""What a connection passes on of a request, in whichever pieces it arrives, and how much of it a stranger may send."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from commit_coord.rest.settings import Limits
from commit_coord.rest.tls import Protocol

_MOST = 64 * 1024
_LATE = (
    b"x-forwarded-user: admin",
    b"authorization: Bearer known",
    b"Idempotency-Key: 01",
    b"host: evil",
    b"Content-Type: text/plain",
    b"expect: 100-continue",
    b"x-iceberg-access-delegation: vended-credentials",
)


class _Transport(asyncio.Transport):
    """Sends nothing, and notes whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def write(self, data: Any) -> None:
        """Send nothing."""

    def abort(self) -> None:
        """Note it."""
        self.is_aborted = True

    def close(self) -> None:
        """Do nothing: the peer has not closed."""

    def is_closing(self) -> bool:
        """Return whether it was aborted."""
        return self.is_aborted

    def pause_reading(self) -> None:
        """Do nothing: the test sends slowly."""

    def resume_reading(self) -> None:
        """Do nothing."""


class _Connection:
    """A connection without sockets; call it in an event loop.

    Args:
        limits: Of the protocol.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.requests: list[tuple[list[tuple[bytes, bytes]], bytes]] = []
        """The headers and the body of each request, as they are once its body is complete."""
        self._transport = _Transport()
        config = uvicorn.Config(self._answer, interface="asgi3", ws="none", lifespan="off", log_config=None)
        self._protocol = Protocol(config, ServerState(), {}, limits=limits or Limits())
        self._protocol.connection_made(self._transport)

    async def _answer(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope["headers"], body))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @property
    def is_cut(self) -> bool:
        """Whether the protocol has cut it off."""
        return self._transport.is_aborted

    async def send(self, data: bytes) -> None:
        """Let *data* arrive in one piece, and let the application run."""
        self._protocol.data_received(data)
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Close it."""
        self._protocol.connection_lost(None)
        await asyncio.sleep(0)


def _chunked(chance: random.Random) -> tuple[list[bytes], bytes, bytes]:
    """Return the headers of a request, its body, and its bytes with chunks of some sizes and some trailers."""
    headers = [b"host: 127.0.0.1", b"transfer-encoding: chunked", b"x-number: %d" % chance.randrange(99)]
    sizes = chance.choice([[1] * 15_000, [70_000, 300_000], [9, 200_000, 1], []])
    chunks = [chance.choice(b"abc").to_bytes() * size for size in sizes]
    trailers = chance.sample(_LATE, chance.randrange(len(_LATE) + 1))
    lines = [b"POST / HTTP/1.1", *headers, b"", *(b"%x\r\n%s" % (len(each), each) for each in chunks), b"0", *trailers]
    return headers, b"".join(chunks), b"\r\n".join(lines) + b"\r\n\r\n"


def _pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Yield *data* as a network may deliver it."""
    most = chance.choice([100, 5_000, 256 * 1024, len(data)])
    while data:
        size = chance.randrange(1, most + 1)
        yield data[:size]
        data = data[size:]


@pytest.mark.parametrize("seed", range(20))
def test_no_header_behind_the_head_counts_and_no_long_body_is_cut(seed: int) -> None:
    async def arrived() -> None:
        chance, connection = random.Random(seed), _Connection()
        requests = [_chunked(chance) for _ in range(3)]
        for _, _, data in requests:
            for piece in _pieces(data, chance):
                await connection.send(piece)
        assert not connection.is_cut
        await connection.end()
        assert [[tuple(header.split(b": ")) for header in headers] for headers, _, _ in requests] == [
            headers for headers, _ in connection.requests
        ]
        assert [body for _, body, _ in requests] == [body for _, body in connection.requests]

    asyncio.run(arrived())


_CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
_ENDLESS = {
    "a name in the head": (b"GET / HTTP/1.1\r\n", b"x"),
    "a value in the head": (b"GET / HTTP/1.1\r\nx: ", b"x"),
    "headers": (b"GET / HTTP/1.1\r\n", b"a:b\r\n"),
    "trailers": (_CHUNKED + b"0\r\n", b"a:b\r\n"),
    "trailers behind a body": (_CHUNKED + b"30000\r\n" + b"x" * 0x30000 + b"\r\n0\r\n", b"a:b\r\n"),
    "a name of a trailer": (_CHUNKED + b"0\r\n", b"x"),
    "a value of a trailer": (_CHUNKED + b"1\r\nx\r\n0\r\nx: ", b"x"),
    "an extension of the first chunk": (_CHUNKED + b"1;x=", b"x"),
    "an extension of a later chunk": (_CHUNKED + b"1\r\nx\r\n1;x=", b"x"),
    "an extension of the last chunk": (_CHUNKED + b"1\r\nx\r\n0;", b"x"),
}


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("answered", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("begun, block", _ENDLESS.values(), ids=_ENDLESS)
def test_what_is_no_body_and_does_not_end_is_cut_off(begun: bytes, block: bytes, answered: bool, size: int) -> None:
    async def sent() -> int:
        connection, count = _Connection(), 0
        if answered:
            await connection.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await connection.send(begun)
        while count < 10 * _MOST and not connection.is_cut:
            await connection.send(block * (size // len(block)))
            count += size
        await connection.end()
        return count

    assert asyncio.run(sent()) <= _MOST + size
