"""Whether writers of any program land in the order in which the metastore queued their locks.

Theory of operation
    Each writer has a way to the metastore of its own, which notes its lock, unlock and alter calls, with the time at
    which a call left the client and the time at which its answer came. A writer does one thing at a time, so what it
    alters it alters under the lock that it got last. A writer of ours that was carried alters nothing itself: the
    snapshot that a holder has published for it names its commit, and so does the ``agentInfo`` of its lock.

    If the answer to one lock came before another lock was asked for, the first one is before the other in the queue.
    While it is there, the other one must not land.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from hive_metastore import ThriftHiveMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from commit_coord.hms.locks import LockType
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.hms.names import Agent

ALTER = "alter_table_with_environment_context"

_EXCLUDE = (LockType.EXCLUSIVE, LockType.EXCL_WRITE)


@dataclass(slots=True)
class Call:
    """One call of the metastore.

    Args:
        writer: Whose.
        sent_at: When it had left the client, in seconds of one clock for all writers.
        request: Its bytes.
        answer: Likewise.
        answered_at: When the answer left the metastore; infinite while none has come.
    """

    writer: str
    sent_at: float
    request: bytearray
    answer: bytearray = field(default_factory=bytearray)
    answered_at: float = float("inf")


class Wiretap:
    """Ways to one metastore, one for each writer, that note its calls.

    Args:
        port: The metastore's, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listeners: list[socket.socket] = []
        self.calls: list[Call] = []
        """In the order in which they were sent."""

    def uri(self, writer: str) -> str:
        """Return the address of a new way, for *writer*."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._accept, args=(listener, writer), daemon=True).start()
        return f"thrift://127.0.0.1:{listener.getsockname()[1]}"

    def _accept(self, listener: socket.socket, writer: str) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client, writer), daemon=True).start()

    def _serve(self, client: socket.socket, writer: str) -> None:
        """Forward one call after the other: Thrift has one at a time on a connection."""
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            calls: list[Call] = []

            def answers() -> None:
                with suppress(OSError):
                    while data := server.recv(1 << 20):
                        now = time.monotonic()
                        calls[-1].answer += data
                        calls[-1].answered_at = min(calls[-1].answered_at, now)
                        client.sendall(data)
                    client.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=answers, daemon=True).start()
            with suppress(OSError):
                while data := client.recv(1 << 20):
                    if not calls or calls[-1].answer:
                        calls.append(Call(writer, time.monotonic(), bytearray()))
                        self.calls.append(calls[-1])
                    calls[-1].request += data
                    server.sendall(data)
                server.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take no further connections; those that are open end with their ends."""
        for listener in self._listeners:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@dataclass(slots=True)
class Queued:
    """An exclusive lock on the table.

    Args:
        writer: Whose.
        lock_id: The metastore's.
        request_id: Of the commit, if the writer is ours.
        sent_at: See :class:`Call`.
        answered_at: Likewise: from then on it is in the queue.
        left_at: When it was unlocked.
    """

    writer: str
    lock_id: int
    request_id: str | None
    sent_at: float
    answered_at: float
    left_at: float = float("inf")

    def is_queued_throughout(self, swap: Swap) -> bool:
        """Return whether it was in the queue when *swap* was sent, and still when it had been carried out."""
        return self.answered_at < swap.sent_at and swap.answered_at < self.left_at


@dataclass(frozen=True, slots=True)
class Swap:
    """The pointer was moved.

    Args:
        writer: By whom.
        sent_at: See :class:`Call`.
        answered_at: Likewise.
        location: The new metadata file.
    """

    writer: str
    sent_at: float
    answered_at: float
    location: str


def overtaken(queued: Sequence[Queued], swaps: Sequence[Swap], requests_of: Callable[[str], set[str]]) -> list[str]:
    """Return, in words, which writers landed before one that had entered the queue earlier.

    Args:
        queued: All locks on the table.
        swaps: All swaps of the table, in their order.
        requests_of: Gives the request ids of the snapshots of a metadata file.
    """
    found, known = [], set[str]()
    for swap in swaps:
        new = requests_of(swap.location) - known
        carried = [lock for lock in queued if lock.request_id in new and lock.answered_at < swap.answered_at]
        own = [lock for lock in queued if lock.writer == swap.writer and lock.is_queued_throughout(swap)]
        granted = [min(own, key=lambda lock: lock.lock_id)] if own else []
        landed = [lock for lock in queued if lock in carried or lock in granted]
        known |= new
        found += [
            f"lock {late.lock_id} of {late.writer} landed in {swap.location} before lock {early.lock_id} of "
            f"{early.writer}, which had waited for longer"
            for late in landed
            for early in queued
            if early.answered_at < late.sent_at and early.is_queued_throughout(swap) and early not in landed
        ]
    return found


def locks_and_swaps(calls: Sequence[Call], db: str, table: str) -> tuple[list[Queued], list[Swap]]:
    """Return the exclusive locks on a table, and its swaps in their order, from *calls*."""
    queued: dict[int, Queued] = {}
    swaps = []
    for call in calls:
        name, asked, answer = _decoded(call)
        if name == "lock" and answer.success is not None:
            asks = any(
                part.type in _EXCLUDE and (part.dbname, part.tablename) == (db, table) for part in asked.rqst.component
            )
            if asks:
                agent = Agent.parse(asked.rqst.agentInfo or "")
                lock_id = answer.success.lockid
                request_id = agent.statement.removeprefix("commit ") if agent else None
                queued[lock_id] = Queued(call.writer, lock_id, request_id, call.sent_at, call.answered_at)
        elif name == ALTER and (asked.dbname, asked.tbl_name) == (db, table) and _succeeded(answer):
            location = asked.new_tbl.parameters["metadata_location"]
            swaps.append(Swap(call.writer, call.sent_at, call.answered_at, location))
    for call in calls:
        name, asked, answer = _decoded(call)
        if name == "unlock" and _succeeded(answer) and (lock := queued.get(asked.rqst.lockid)):
            lock.left_at = min(lock.left_at, call.sent_at)
    return list(queued.values()), sorted(swaps, key=lambda swap: swap.answered_at)


def requests_in(location: str) -> set[str]:
    """Return the request ids of the snapshots of a metadata file."""
    body = json.loads(Path(urlsplit(location).path).read_bytes())
    summaries = (snapshot.get("summary", {}) for snapshot in body.get("snapshots", []))
    return {one for summary in summaries for one in summary.get(REQUEST_ID, "").split(",") if one}


def _decoded(call: Call) -> tuple[str, Any, Any]:
    """Return a call's name, arguments and result; nothing for calls that are not looked at or were not answered."""
    if not call.answer:
        return "", None, None
    asked = TBinaryProtocol(TMemoryBuffer(bytes(call.request)))
    answered = TBinaryProtocol(TMemoryBuffer(bytes(call.answer)))
    name, _, _ = asked.readMessageBegin()
    _, kind, _ = answered.readMessageBegin()
    if name not in ("lock", "unlock", ALTER) or kind != TMessageType.REPLY:
        return "", None, None
    arguments, result = (getattr(ThriftHiveMetastore, f"{name}_{what}")() for what in ("args", "result"))
    arguments.read(asked)
    result.read(answered)
    return name, arguments, result


def _succeeded(result: Any) -> bool:
    return all(value is None for key, value in vars(result).items() if key != "success")
