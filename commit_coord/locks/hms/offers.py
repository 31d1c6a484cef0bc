"""Offers between processes: files in the folder of the table's metadata, since a metastore has no room for them.

Theory of operation
    A request that waits writes what it offers into a file that is named by its request id; it keeps its place in the
    metastore's queue. The holder of the latch lists that queue once, and reads the files of the requests directly
    behind it, oldest first. It *takes* an offer by a second file, the mark. With its release it writes a third one, the
    outcome. A waiter that finds the outcome removes its own lock from the queue: the holder never removes it, because
    the waiter may be the holder by then (see below). No file is ever changed.

A holder and an owner that meet
    The holder: 1. writes the mark;   2. looks whether the offer is still there. If it is, the offer is taken.
    The owner:  1. deletes the offer;   2. looks whether a mark is there. If none is, the offer is retracted.

    Whichever order these four steps have, one of the two sees the other. If both do, the offer is not taken, and its
    owner does not know that: it waits for the outcome. This rests on a file store that shows a new file, and the end of
    a file, to all clients at once, as Iceberg's metadata files do.

A holder that comes late
    1. A takes the offer of B and stalls; its lease ends.   2. B is granted the latch. It finds the mark of A, so it
    does not know whether A has published its attempt, and looks in the table.   3. A goes on, and swaps. That fails if
    B has swapped, because each swap compares.   4. A writes an outcome. B holds the latch and does not look at it. If A
    removed B's lock instead, the next request would be granted the latch beside B.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

import orjson

from commit_coord.clock import Clock
from commit_coord.errors import LockError
from commit_coord.hms.client import MetastoreClient
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.requests import HmsTicket, MetastoreLock, grouped, translated
from commit_coord.model import JournalEntry, LockRequest, Offer

logger = logging.getLogger(__name__)

_SHARE = 4
"""A waiter looks for an outcome for at most one part in so many of its time."""

_SHORTEST = 0.01
"""Seconds between two looks at least."""

_USUAL, _LONGEST = 0.1, 1.0
"""Seconds after which a waiter expects to be carried, before it knows better, and at most."""

_RETURNED = b"null"
"""The outcome of an offer that its holder did not publish and never will."""


class OfferFiles(Protocol):
    """The store of the tables' files. What one client has written or deleted, each client sees at once."""

    @property
    def allowed(self) -> bool:
        """Whether offers may be taken: each swap of a table compares, so a holder that comes late swaps nothing."""
        ...

    def read(self, location: str) -> bytes | None:
        """Return the content of a file, None if there is no such file."""
        ...

    def write(self, location: str, data: bytes) -> None:
        """Create or replace a file."""
        ...

    def delete(self, location: str) -> None:
        """Delete a file; that there is none is no error."""
        ...


class HmsOffers:
    """The offers of one client and those that it takes.

    Args:
        files: Where offers are; None if there are none.
        metastore: Lists the queues.
        clock: Time.
    """

    def __init__(self, files: OfferFiles | None, metastore: MetastoreClient, clock: Clock) -> None:
        self._files, self._metastore, self._clock = files, metastore, clock
        self._published: dict[str, float] = {}
        """Requests of this client of which there may be files, and when they began to wait."""
        self._in_doubt: set[str] = set()
        """Requests of this client whose offers may have been taken, or may be."""
        self.pause = _SHORTEST
        """Seconds between two looks of a waiter."""
        self.usual_wait = _USUAL
        """Seconds after which requests of this client are carried, about."""

    def shares(self, request: LockRequest) -> bool:
        """Return whether a holder can publish what *request* offers."""
        return bool(request.offer) and self._has_files(request)

    def _has_files(self, request: LockRequest) -> bool:
        return self._files is not None and bool(request.offers_at) and self._files.allowed

    # What the owner does.

    def publish(self, request: LockRequest) -> bool:
        """Write the offer of *request*, which waits now. Return whether a holder may publish it."""
        is_shared = self.shares(request)
        if is_shared:
            self._published[request.request_id] = self._clock.now()
            if not self._write(_offer(request, request.request_id), request.offer.encode()):
                # 1. The store does not answer.   2. We delete the file, find no mark, and end as refused.
                # 3. The file is written after all, and a holder that listed us before takes it.
                self._in_doubt.add(request.request_id)
        return is_shared

    def outcome(self, request: LockRequest) -> JournalEntry | None:
        """Return what the holder reported that has published the offer of *request*; None as long as there is none."""
        if request.request_id not in self._published:
            return None
        began = self._clock.now()
        found = self._read(_outcome(request, request.request_id))
        now = self._clock.now()
        self.pause = max(_SHORTEST, _SHARE * (now - began))
        entry = None if found is None else _entry(found)
        if entry is not None:
            took = now - self._published[request.request_id]
            self.usual_wait = min(_LONGEST, self.usual_wait + (took - self.usual_wait) / 4)
        return entry

    def is_next(self, request: LockRequest) -> bool:
        """Return whether the last holder saw *request* as the first one that it did not carry."""
        return request.request_id in self._published and self._read(_next(request, request.request_id)) is not None

    def is_offered(self, request: LockRequest, other: str) -> bool:
        """Return whether *other*, which is before *request*, waits and offers: it is cheap to see when that ends."""
        is_named = bool(other) and request.request_id in self._published
        return is_named and self._read(_offer(request, other)) is not None

    def retract(self, request: LockRequest) -> bool:
        """Retract the offer of *request*. Return whether it is certain that no holder has taken it or will."""
        if request.request_id in self._in_doubt:
            return False
        if request.request_id not in self._published:
            return True
        assert self._files is not None, "only a client with files publishes offers"
        try:
            self._files.delete(_offer(request, request.request_id))
            if self._files.read(_mark(request, request.request_id)) is None:
                return True
            return self._files.read(_outcome(request, request.request_id)) == _RETURNED
        except Exception:
            logger.warning("an offer could not be retracted: %s", request.request_id, exc_info=True)
            return False

    def forget(self, request: LockRequest) -> None:
        """Delete the files of *request*, which leaves the queue."""
        if request.request_id not in self._published:
            return
        if not self.retract(request):
            self._in_doubt.add(request.request_id)
        for file_of in (_mark, _outcome, _next):
            self._write(file_of(request, request.request_id), None)
        self._published.pop(request.request_id, None)

    def ended(self, request: LockRequest) -> None:
        """The acquire of *request* has ended."""
        self._in_doubt.discard(request.request_id)

    # What the holder does.

    def take(self, ticket: HmsTicket, limit: int) -> list[Offer]:
        """Take the offers directly behind *ticket*, at most *limit*, as :meth:`HandoverLease.take`; may be repeated."""
        request = ticket.request
        if limit <= 0 or not self._has_files(request):
            return []
        queue = self._queue(request)
        if not any(one.lock_id == ticket.lock_id and one.acquired for one in queue):
            return []  # Released by force, or taken for dead.
        own, taken = request.request_id.encode(), list[Offer]()
        for one in queue:
            if one.lock_id <= ticket.lock_id or any(one.request_id == offer.request_id for offer in taken):
                continue  # A request has two places for a while, if the reply to its first lock call was lost.
            text = self._read(_offer(request, one.request_id))
            if text is None or len(taken) == limit:
                break
            by = self._read(_mark(request, one.request_id))
            if by not in (None, own):
                if self._read(_outcome(request, one.request_id)) in (None, _RETURNED):
                    break  # An earlier holder has taken it, and may still publish it.
                continue  # It has landed: its owner leaves the queue.
            if by is None and not self._write(_mark(request, one.request_id), own):
                break
            if self._read(_offer(request, one.request_id)) is not None:
                taken.append(Offer(request_id=one.request_id, text=text.decode()))
        return taken

    def _queue(self, request: LockRequest) -> list[MetastoreLock]:
        (part,) = hms_names.parts(request)
        with translated(request):
            return grouped(self._metastore.show_locks(part.db, part.table))

    def tell_next(self, ticket: HmsTicket, done: Collection[str]) -> None:
        """Tell the first waiter behind *ticket* whose request is not among *done* that it comes next.

        Nothing depends on it: a waiter that is not told asks later.
        """
        if not self._has_files(ticket.request):
            return
        try:
            waiting = [one for one in self._queue(ticket.request) if one.lock_id > ticket.lock_id]
        except LockError:
            return
        following = next((one for one in waiting if one.request_id not in done), None)
        if following is not None and following.agent_info is not None:
            self._write(_next(ticket.request, following.request_id), b"")

    def settle(self, request: LockRequest, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """Write the outcomes of offers that *request* has taken. Without an outcome the owner of one is in doubt."""
        for entry in done:
            self._write(_outcome(request, entry.request_id), orjson.dumps(entry))
        for request_id in returned:
            self._write(_outcome(request, request_id), _RETURNED)

    def _read(self, location: str) -> bytes | None:
        assert self._files is not None, "only a client with files has offers"
        try:
            return self._files.read(location)
        except Exception:
            logger.warning("the file of an offer could not be read: %s", location, exc_info=True)
            return None

    def _write(self, location: str, data: bytes | None) -> bool:
        """Write a file, or delete it; return whether that was possible."""
        assert self._files is not None, "only a client with files has offers"
        try:
            if data is None:
                self._files.delete(location)
            else:
                self._files.write(location, data)
        except Exception:
            logger.warning("the file of an offer could not be written: %s", location, exc_info=True)
            return False
        return True


def _offer(request: LockRequest, request_id: str) -> str:
    return f"{request.offers_at}/{request_id}.offer.json"


def _mark(request: LockRequest, request_id: str) -> str:
    return f"{request.offers_at}/{request_id}.taken"


def _outcome(request: LockRequest, request_id: str) -> str:
    return f"{request.offers_at}/{request_id}.outcome.json"


def _next(request: LockRequest, request_id: str) -> str:
    return f"{request.offers_at}/{request_id}.next"


def _entry(data: bytes) -> JournalEntry | None:
    """Return the outcome *data*; None if the offer was returned, or the file is not written to its end yet."""
    try:
        found = orjson.loads(data)
        return None if found is None else JournalEntry(**{**found, "snapshot_ids": tuple(found["snapshot_ids"])})
    except (ValueError, TypeError, KeyError):
        return None
