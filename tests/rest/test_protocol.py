"""What a connection passes on of a request, in whichever pieces it arrives, and how much of it a stranger may send."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from commit_coord.rest.settings import Limits
from commit_coord.rest.tls import Protocol

_MOST = 64 * 1024
_EARLY = "early"
"""The end of a path whose requests are answered before their bodies are read."""
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
    """Notes what is sent, and how it ends. What arrives behind its end is passed on, as it is in TLS."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_aborted = self.is_closed = False

    def write(self, data: Any) -> None:
        """Note it."""
        self.sent += data

    def abort(self) -> None:
        """Note it."""
        self.is_aborted = True

    def close(self) -> None:
        """Note it: the peer has not closed."""
        self.is_closed = True

    def is_closing(self) -> bool:
        """Return whether it was closed or aborted."""
        return self.is_aborted or self.is_closed

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
        self.carried_out: list[str] = []
        """The path of each request that the application has carried out, once it knew its body."""
        self._transport = _Transport()
        config = uvicorn.Config(self._answer, interface="asgi3", ws="none", lifespan="off", log_config=None)
        self._protocol = Protocol(config, ServerState(), {}, limits=limits or Limits())
        self._protocol.connection_made(self._transport)

    async def _answer(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body, more = b"", not scope["path"].endswith(_EARLY)
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.requests.append((scope["headers"], body))
        for _ in range(int((scope["query_string"] or b"0").decode())):
            await asyncio.sleep(0)
        if not scope["path"].endswith(_EARLY):
            self.carried_out.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @property
    def is_cut(self) -> bool:
        """Whether the protocol has cut it off."""
        return self._transport.is_aborted

    @property
    def is_closed(self) -> bool:
        """Whether the protocol has closed it, or cut it off."""
        return self._transport.is_closing()

    @property
    def statuses(self) -> list[int]:
        """The status of each answer."""
        return [int(each) for each in re.findall(rb"HTTP/1.1 ([2-5]\d\d)", self._transport.sent)]

    async def send(self, data: bytes) -> None:
        """Let *data* arrive in one piece, and let the application run."""
        self._protocol.data_received(data)
        for _ in range(5):
            await asyncio.sleep(0)

    async def idle(self) -> None:
        """Let the application run until it waits for the client."""
        for _ in range(60):
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


# -- where a request ends ------------------------------------------------------------------------------------

_INNER = b"DELETE /inner HTTP/1.1\r\nhost: a\r\nx-forwarded-user: admin\r\n\r\n"
"""The body of each request; if a part of the server took it for a request, a client would send as another user."""

_IN_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(_INNER), _INNER)
_LENGTH = b"content-length: %d" % len(_INNER)
_NO_BODY: tuple[bytes, ...] = ()

_FRAMED: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "nothing": (_NO_BODY, b""),
    "no length": ((b"Content-Length: 0",), b""),
    "a length": ((_LENGTH,), _INNER),
    "chunks": ((b"Transfer-Encoding: chunked",), _IN_CHUNKS),
    "chunks of another coding": ((b"transfer-encoding: gzip, chunked",), _IN_CHUNKS),
}
_MISFRAMED: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "two lengths": ((_LENGTH, b"content-length: 5"), _INNER),
    "the same length twice": ((_LENGTH, _LENGTH), _INNER),
    "a list of lengths": ((_LENGTH + b", 5",), _INNER),
    "a sign before the length": ((_LENGTH.replace(b" ", b" +"),), _INNER),
    "a length and chunks": ((_LENGTH, b"transfer-encoding: chunked"), _IN_CHUNKS),
    "chunks and a length": ((b"transfer-encoding: chunked", b"content-length: 5"), _IN_CHUNKS),
    "chunks that are not the last coding": ((b"transfer-encoding: chunked, identity",), _IN_CHUNKS),
    "an unknown coding": ((b"transfer-encoding: xchunked",), _IN_CHUNKS),
    "a space behind a name": ((b"transfer-encoding : chunked",), _IN_CHUNKS),
}
_BROKEN: dict[str, tuple[tuple[bytes, ...], bytes]] = {
    "a chunk without a size": ((b"transfer-encoding: chunked",), b"zz\r\n" + _INNER),
    "a chunk that is longer than its size": ((b"transfer-encoding: chunked",), b"1\r\n" + _INNER),
}
_UPGRADES: tuple[tuple[bytes, ...], ...] = (
    (b"Connection: Upgrade", b"Upgrade: h2c"),
    (b"Upgrade: TLS/1.2", b"Connection: upgrade"),
    (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
    (b"connection: keep-alive, upgrade", b"upgrade: websocket", b"sec-websocket-version: 13", b"sec-websocket-key: x"),
    (b"connection: x", b"connection: upgrade", b"upgrade: a", b"upgrade: b"),
)
_PLAIN: tuple[tuple[bytes, ...], ...] = (
    (),
    (b"upgrade: h2c",),
    (b"connection: upgrade",),
    (b"connection: upgrade", b"upgrade: "),
    (b"HTTP2-Settings: AAMAAABkAAQAAP__",),
    (b"expect: 100-continue",),
    (b"Expect: 200-ok",),
    (b"connection: keep-alive",),
)
_LAST: tuple[tuple[bytes, ...], ...] = ((b"connection: close",), (b"connection: close, upgrade", b"upgrade: h2c"))
"""Nothing behind such a request is answered."""


def _request(path: str, chance: random.Random) -> tuple[bytes, bytes, str]:
    """Return a head, a body, and what is due: "answered", "last" if it is answered, or "refused"."""
    methods = [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"REPORT"]
    method = b"CONNECT" if chance.random() < 0.05 else chance.choice(methods)
    version = b"1.0" if chance.random() < 0.05 else b"1.1"
    more = chance.choice(chance.choice([_PLAIN, _PLAIN, _UPGRADES, _UPGRADES, _LAST]))
    bodies = chance.choice([*[_FRAMED] * 8, _MISFRAMED, _BROKEN])
    framing, body = chance.choice(list(bodies.values()))
    lines = [b"host: a", *more, *framing]
    chance.shuffle(lines)
    target = b"a:80" if method == b"CONNECT" and chance.random() < 0.5 else path.encode()
    head = b"\r\n".join([b"%s %s HTTP/%s" % (method, target, version), *lines, b"", b""])
    if bodies is not _FRAMED or method == b"CONNECT":
        return head, body, "refused"
    return head, body, "last" if more in _LAST or version == b"1.0" else "answered"


@pytest.mark.parametrize("size", [1, 10, 10_000])
@pytest.mark.parametrize("framing, body", _FRAMED.values(), ids=_FRAMED)
@pytest.mark.parametrize("upgrade", _UPGRADES)
def test_a_request_that_asks_for_an_upgrade_is_answered_with_its_whole_body(
    upgrade: tuple[bytes, ...], framing: tuple[bytes, ...], body: bytes, size: int
) -> None:
    async def arrived() -> None:
        connection = _Connection()
        head = b"\r\n".join([b"POST /%d HTTP/1.1", b"host: a", *upgrade, *framing, b"", b""])
        data = b"".join(head % number + body for number in (1, 2))
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
        await connection.idle()
        assert ["/1", "/2"] == connection.carried_out
        assert [_INNER if body else b""] * 2 == [read for _, read in connection.requests]
        assert not connection.is_closed
        await connection.end()

    asyncio.run(arrived())


@pytest.mark.parametrize("seed", range(400))
def test_no_body_is_taken_for_a_request_and_each_request_gets_its_own_answer_alone(seed: int) -> None:
    async def arrived() -> None:
        chance, connection = random.Random(seed), _Connection()
        pieces, due, bodies_apart = [], [], chance.random() < 0.5
        for number in range(chance.randrange(1, 4)):
            path = f"/{number}{chance.choice(['', _EARLY])}"
            head, body, ends = _request(f"{path}?{chance.choice([0, 1, 9, 9])}", chance)
            pieces += [head, body] if bodies_apart else [head + body]
            due.append((path, ends))
        if chance.random() < 0.5:
            pieces = list(_pieces(b"".join(pieces), chance))
        for piece in pieces:
            await connection.send(piece)
        await connection.idle()

        ends = next((ends for _, ends in due if ends != "answered"), "answered")
        before = [path for path, _ in itertools.takewhile(lambda each: each[1] == "answered", due)]
        answered = before if ends != "last" else [path for path, _ in due[: len(before) + 1]]
        assert [path for path in answered if not path.endswith(_EARLY)] == connection.carried_out
        assert [204] * len(answered) == connection.statuses[: len(answered)]
        # A 400 would be taken for the answer to a request before, if that has none yet.
        assert connection.statuses[len(answered) :] in ([[], [400], [204]] if ends == "refused" else [[]])
        assert connection.is_closed == (ends != "answered")
        await connection.end()

    asyncio.run(arrived())
