"""Keeps the answers to requests with an ``Idempotency-Key``, and the state that each request found at its start.

Both are kept in the journal of the lock manager. So all processes and machines that serve the catalog share them, and
they survive a restart. With a lock manager that has no journal, they are in the memory of one process.

The fields of a journal entry are used as follows:

    request id         the key, with a suffix: the state at the start of the request, that of one which did nothing, or
                       the answer
    table              method and path, for people who read the journal
    table UUID         the digest of the whole request
    metadata location  JSON: the state, or the answer
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.model import JournalEntry
from commit_coord.rest.errors import error_answer, is_final
from commit_coord.rest.wire import HttpAnswer, MetadataHolder, Request, UnprocessableRequest

logger = logging.getLogger(__name__)

LIFETIME_MS = 30 * 60 * 1000
"""How long a key is known, as in the examples of the specification. Clients send a request again soon or never."""

_LONGEST_BODY = 256 * 1024
"""A longer answer is not kept, because a node of ZooKeeper holds 1 MB at most."""

StateBefore = Mapping[str, Any]
"""The part of the store's state before a request that tells later whether the request was carried out."""


class KeyedRequests:
    """The requests with keys of one catalog. Thread safe.

    Args:
        locks: The catalog's lock manager, whose journal is used.
        lifetime_ms: How long each entry is kept.
        clock: Tells when an entry in the memory of this process expires.
    """

    def __init__(self, locks: HandoverLockManager, lifetime_ms: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._locks, self._lifetime_ms = locks, lifetime_ms
        self.shared = locks.guarantees.journal
        """Whether all processes see the answers of each other."""
        self._own = _Memory(clock)

    def answer(self, key: str, request: Request) -> HttpAnswer | None:
        """Return the answer that was given to the request with *key*; None if no answer is kept.

        If it contained a metadata file, its body was not kept: only the location of the file, and the table or view.

        Raises:
            UnprocessableRequest: The key was used for another request.
        """
        kept = self._recall(f"{key}:answer", request)
        if kept is None:
            return None
        holder = kept.get("holder")
        return HttpAnswer(
            status=kept["status"],
            body=(kept["body"] or "").encode(),
            location=kept["location"],
            holder=MetadataHolder(tuple(holder["name"]), holder["uuid"], holder["is_view"]) if holder else None,
        )

    def begun_on(self, key: str, request: Request) -> StateBefore | None:
        """Return the state that the request with *key* found at its start.

        None means that no start is known. An empty state means that what began did nothing.

        Raises:
            UnprocessableRequest: The key was used for another request.
        """
        return self._recall(f"{key}:begun", request)

    def nothing_done_on(self, key: str, request: Request) -> StateBefore | None:
        """Return the state that a request with *key* found and left as it was; None if it is not known.

        It counts only if that of :meth:`begun_on` is empty.

        Raises:
            UnprocessableRequest: The key was used for another request.
        """
        return self._recall(f"{key}:nothing-done", request)

    def begin(self, key: str, request: Request, seen: StateBefore) -> None:
        """Keep the state that the request with *key* finds at its start.

        Raises:
            LockError: The state could not be kept, so the request must not be carried out.
        """
        self._remember(f"{key}:begun", request, seen)

    def withdraw(self, key: str, request: Request, seen: StateBefore) -> None:
        """Keep that the request with *key* has ended and did nothing. No copy may be running.

        A failure is logged; then it is not known what the request did.

        The state has an entry of its own: a server of an older version replaces only the other one when it begins.

        Args:
            key: The key.
            request: The request.
            seen: The state that it found; empty if the repeat begins as if the request had never been sent.
        """
        try:
            if seen:
                self._remember(f"{key}:nothing-done", request, seen)
            self._remember(f"{key}:begun", request, {})
        except Exception:
            logger.warning("that the request with the key %s did nothing could not be kept", key, exc_info=True)

    def end(self, key: str, request: Request, ended: HttpAnswer | Exception) -> None:
        """Keep the answer to the request with *key*, unless a repeat may have another outcome.

        The request has ended, so a failure here must not become an error. A repeat then compares the store's states.
        """
        if isinstance(ended, Exception):
            if not is_final(ended):
                return
            ended = error_answer(ended)
        body = None if ended.location is not None else _plain(ended)
        if body is not None and len(body) > _LONGEST_BODY:
            return
        try:
            text = None if body is None else body.decode()
            kept = {"status": ended.status, "location": ended.location, "body": text, "holder": ended.holder}
            self._remember(f"{key}:answer", request, kept)
        except Exception:
            logger.warning("the answer to the key %s could not be kept", key, exc_info=True)

    def _remember(self, entry_id: str, request: Request, kept: Mapping[str, Any]) -> None:
        entry = JournalEntry(
            key=entry_id,
            table=f"{request.method} {request.path}"[:200],
            table_uuid=_digest(request),
            metadata_location=orjson.dumps(kept).decode(),
        )
        if self.shared:
            self._locks.remember(entry, lifetime_ms=self._lifetime_ms)
        else:
            self._own.remember(entry, lifetime_ms=self._lifetime_ms)

    def _recall(self, entry_id: str, request: Request) -> dict[str, Any] | None:
        entry = (self._locks if self.shared else self._own).recall(entry_id)
        if entry is None:
            return None
        if entry.table_uuid != _digest(request):
            raise UnprocessableRequest(f"The Idempotency-Key was already sent with another request: {entry.table}")
        kept: dict[str, Any] = orjson.loads(entry.metadata_location)
        return kept


def _digest(request: Request) -> str:
    query = sorted(request.query.items())
    head = orjson.dumps([request.method, request.path, query])
    return hashlib.sha256(head + b"\n" + request.body).hexdigest()


def _plain(answer: HttpAnswer) -> bytes:
    return gzip.decompress(answer.body) if "content-encoding" in answer.headers else answer.body


class _Memory:
    """Keeps entries in the memory of the process. All have the same lifetime, so the oldest expires first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, JournalEntry]] = OrderedDict()

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        now = self._clock.now()
        with self._mutex:
            self._entries[entry.key] = now + lifetime_ms / 1000, entry
            self._entries.move_to_end(entry.key)
            while self._entries and next(iter(self._entries.values()))[0] <= now:
                self._entries.popitem(last=False)

    def recall(self, entry_id: str) -> JournalEntry | None:
        with self._mutex:
            expires_at, entry = self._entries.get(entry_id, (0.0, None))
        return entry if expires_at > self._clock.now() else None
