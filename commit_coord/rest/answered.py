"""What was answered to requests with an ``Idempotency-Key``, and what they began on.

It is kept where the lock manager keeps its journal, so all processes and machines that serve the catalog share it, and
a restart forgets nothing. A lock manager without a journal leaves it to the memory of one process.

An entry of the journal has room for texts, and these are ours:

    request id         the key, and which of the two entries this is: what a request began on, or how it ended
    table              method and route, for people who read the table
    table UUID         the digest of the whole request
    metadata location  JSON: what is kept
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

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.model import JournalEntry
from commit_coord.rest.errors import error_answer, is_final
from commit_coord.rest.wire import Answer, Request, UnprocessableRequest

logger = logging.getLogger(__name__)

LIFETIME_MS = 30 * 60 * 1000
"""How long a key is known, as in the examples of the specification. Who sends a request again does it soon."""

_LONGEST_BODY = 256 * 1024
"""A longer answer is not kept: ZooKeeper takes nodes up to 1 MB."""

Seen = Mapping[str, Any]
"""What the store showed before a request was carried out, as far as it says later whether that was done."""


class Answered:
    """The requests with keys of one catalog. Thread safe.

    Args:
        locks: Of the catalog; its journal is used.
        lifetime_ms: How long each entry is kept.
    """

    def __init__(self, locks: HandoverLockManager, lifetime_ms: int) -> None:
        self._locks, self._lifetime_ms = locks, lifetime_ms
        self.shared = locks.guarantees.journal
        """Whether all processes know what one of them has answered."""
        self._own = _Memory()

    def answer(self, key: str, request: Request) -> tuple[Answer, str | None] | None:
        """Return what was answered to the request with *key*, None where nothing is known.

        The second value is the metadata file that the answer showed; its body is then not kept.

        Raises:
            UnprocessableRequest: It was another request.
        """
        kept = self._recall(f"{key}:answer", request)
        if kept is None:
            return None
        return Answer(status=kept["status"], body=(kept["body"] or "").encode()), kept["location"]

    def begun_on(self, key: str, request: Request) -> Seen | None:
        """Return what the request with *key* began on; None when it is not known to have begun.

        Raises:
            UnprocessableRequest: It was another request.
        """
        return self._recall(f"{key}:begun", request)

    def begin(self, key: str, request: Request, seen: Seen) -> None:
        """Keep what the request with *key* begins on.

        Raises:
            LockError: It could not be kept; the request must not be carried out.
        """
        self._remember(f"{key}:begun", request, seen)

    def end(self, key: str, request: Request, ended: Answer | Exception) -> None:
        """Keep how the request with *key* has ended, if it ends so whenever it is sent again.

        The request has ended, so nothing that fails here may end as an error: then a repeat asks the store.
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
            kept = {"status": ended.status, "location": ended.location, "body": text}
            self._remember(f"{key}:answer", request, kept)
        except Exception:
            logger.warning("what was answered to the key %s could not be kept", key, exc_info=True)

    def _remember(self, entry_id: str, request: Request, kept: Mapping[str, Any]) -> None:
        entry = JournalEntry(
            request_id=entry_id,
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
            raise UnprocessableRequest(f"The Idempotency-Key was given to another request: {entry.table}")
        kept: dict[str, Any] = orjson.loads(entry.metadata_location)
        return kept


def _digest(request: Request) -> str:
    query = sorted(request.query.items())
    head = orjson.dumps([request.method, request.path, query])
    return hashlib.sha256(head + b"\n" + request.body).hexdigest()


def _plain(answer: Answer) -> bytes:
    return gzip.decompress(answer.body) if "content-encoding" in answer.headers else answer.body


class _Memory:
    """The memory of one process. All entries live for the same time, so the oldest expire first."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, JournalEntry]] = OrderedDict()

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        now = SYSTEM_CLOCK.now()
        with self._mutex:
            self._entries[entry.request_id] = now + lifetime_ms / 1000, entry
            self._entries.move_to_end(entry.request_id)
            while self._entries and next(iter(self._entries.values()))[0] <= now:
                self._entries.popitem(last=False)

    def recall(self, entry_id: str) -> JournalEntry | None:
        with self._mutex:
            expires_at, entry = self._entries.get(entry_id, (0.0, None))
        return entry if expires_at > SYSTEM_CLOCK.now() else None
