"""Offers between processes: files in the folder of the table's metadata, since a metastore has no room for them.

Theory of operation
    A request that waits writes what it offers into a file that is named by its request id; it keeps its place in the
    metastore's queue. The holder of the latch lists that queue once, and reads the files of the requests directly
    behind it, oldest first. It *takes* an offer by a second file, the mark. With its release it writes a third one, the
    outcome. A waiter that finds the outcome removes its own lock from the queue: the holder never removes it, because
    the waiter may be the holder by then (see below). An offer that was returned may be taken again: this is another
    *round*, with another mark and another outcome. No file is written twice, except a mark by a holder that comes late.

A holder and an owner that meet
    The holder: 1. writes the mark;   2. checks whether the offer is still there. If it is, the offer is taken.
    The owner:  1. deletes the offer;   2. checks whether a mark is there. If none is, the offer is retracted.

    Whichever order these four steps have, at least one of the two sees what the other did. If both do, the offer is not
    taken. Its owner does not know that, so it waits for the outcome. This rests on a file store that shows a new file,
    and the end of a file, to all clients at once.

A holder that comes late
    1. A takes the offer of B and stalls; its lease ends.   2. B is granted the latch. It finds the mark that A wrote.
    So it does not know whether A has published its attempt, and looks in the table.   3. A goes on, and swaps. That
    fails if B has swapped, because each swap compares.   4. A writes an outcome. B holds the latch and does not look at
    it. If A removed B's lock instead, the next request would be granted the latch while B holds it.

    A writes an outcome only if its lease is still live. Else it could return an offer that another holder has taken:
    1. A looks for a mark on B's offer, finds none, and stalls; its lease ends.   2. C is granted the latch and takes
    B's offer.   3. A goes on, marks the offer, too, and fails.   4. It returns the offer: B says FAILURE, and C swaps.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Protocol

import orjson

from commit_coord.clock import Clock
from commit_coord.hms.client import MetastoreClient
from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.requests import HmsTicket, MetastoreLock, grouped, translated
from commit_coord.model import JournalEntry, LockRequest, Offer, Resource

logger = logging.getLogger(__name__)

_SHARE = 4
"""A waiter spends at most one part in so many of its time on reading files."""

_SHORTEST = 0.01
"""Seconds between two looks at least."""

_USUAL, _LONGEST = 0.1, 1.0
"""Seconds after which a waiter expects its offer to be published: the first estimate, and the largest one."""

_END = b"\n"
"""The last byte of a file: one without it is not written to its end yet."""

_RETURNED = b"returned" + _END
"""The outcome of an offer that its holder did not publish and never will."""


class OfferFiles(Protocol):
    """The store of the tables' files. What one client has written or deleted, each client sees at once."""

    @property
    def allowed(self) -> bool:
        """Whether offers may be taken: each swap of a table compares, so a holder that comes late swaps nothing."""
        ...

    def read(self, locations: Sequence[str]) -> Sequence[Found]:
        """Return the content of each file; None if there is no such file, the error if that is not known."""
        ...

    def write(self, files: Mapping[str, bytes]) -> None:
        """Create files.

        Raises:
            Exception: Some files may be missing; a missing one may still appear later.
        """
        ...

    def delete(self, locations: Sequence[str]) -> None:
        """Delete files; that there is none is no error.

        Raises:
            Exception: Some may still be there.
        """
        ...


Found = bytes | Exception | None


@dataclass(frozen=True, slots=True)
class TakenInRound:
    """An offer that was taken, and in which round."""

    offer: Offer
    round: int


@dataclass(frozen=True, slots=True)
class SeenOffers:
    """What a waiter sees in the files.

    Args:
        entry: The report of the holder that has published its offer.
        is_next: The last holder wrote that this request is the first one behind it whose offer it did not publish.
        is_offered: The request before this one has an offer, or may have one. Then the files show when it leaves the
            queue.
    """

    entry: JournalEntry | None = None
    is_next: bool = False
    is_offered: bool = False


@dataclass(slots=True)
class _Published:
    """An offer of this client of which there may be files."""

    since: float
    round: int = 0


class OwnOffers:
    """The offers of one client.

    Args:
        files: Where they are; None if there are none.
        clock: Time.
    """

    def __init__(self, files: OfferFiles | None, clock: Clock) -> None:
        self._files, self._clock = files, clock
        self._published: dict[str, _Published] = {}
        self._in_doubt: set[str] = set()
        """Requests whose offers may have been taken, or may still be, even if the files do not show it."""
        self.pause = math.inf
        """Seconds between two looks of a waiter."""
        self._usual_wait = _USUAL
        self._carried: set[Resource | None] = set()
        """The tables for which another holder published this client's last request."""

    def publish(self, request: LockRequest) -> bool:
        """Write the offer of *request*, which waits now. Return whether a holder may publish it."""
        if self._files is None or not request.offer or not _allowed(self._files, request):
            return False
        self._published[request.request_id] = _Published(self._clock.now())
        self.pause = _SHORTEST
        try:
            self._files.write({_offer(request, request.request_id): request.offer.encode() + _END})
        except Exception:
            # 1. The store does not answer.   2. We delete the file, find no mark, and end as refused.
            # 3. The file is written after all, and a holder that listed us before takes it.
            self._in_doubt.add(request.request_id)
            logger.warning("an offer could not be written: %s", request.request_id, exc_info=True)
        return True

    def expected_wait(self, request: LockRequest) -> float | None:
        """Return after how many seconds a holder should publish *request*; None if it did not the last time."""
        if request.request_id not in self._published or request.table not in self._carried:
            return None
        return self._usual_wait

    def look(self, request: LockRequest, before: str) -> SeenOffers:
        """Return what *request* sees; *before* is the request before it, "" if that is not known."""
        published = self._published.get(request.request_id)
        if published is None:
            return SeenOffers()
        assert self._files is not None, "only a client with files publishes offers"
        own, began = request.request_id, self._clock.now()
        names = [_outcome(request, own, published.round), _next(request, own)]
        outcome, following, *other = self._files.read([*names, _offer(request, before)] if before else names)
        now = self._clock.now()
        self.pause = max(_SHORTEST, (_SHARE - 1) * (now - began))
        if outcome == _RETURNED:
            published.round += 1
        entry = _entry(outcome)
        if entry is not None:
            self._usual_wait = min(_LONGEST, self._usual_wait + (now - published.since - self._usual_wait) / 4)
            self._carried.add(request.table)
        return SeenOffers(
            entry=entry, is_next=isinstance(following, bytes), is_offered=bool(other) and other[0] is not None
        )

    def granted(self, request: LockRequest) -> None:
        """Record that *request* was granted itself: no other holder published it."""
        self._carried.discard(request.table)

    def retract(self, request: LockRequest) -> bool:
        """Retract the offer of *request*. Return whether it is certain that no holder has taken it or will."""
        if request.request_id in self._in_doubt:
            return False
        published = self._published.get(request.request_id)
        if published is None:
            return True
        assert self._files is not None, "only a client with files publishes offers"
        own = request.request_id
        try:
            self._files.delete([_offer(request, own)])
        except Exception:
            logger.warning("an offer could not be retracted: %s", own, exc_info=True)
            return False
        while True:
            mark, outcome = self._files.read(
                [_mark(request, own, published.round), _outcome(request, own, published.round)]
            )
            if mark is None or outcome != _RETURNED:
                return mark is None
            published.round += 1

    def forget(self, request: LockRequest) -> None:
        """Delete the files of *request*, which has left the queue."""
        published = self._published.get(request.request_id)
        if published is None:
            return
        if not self.retract(request):
            self._in_doubt.add(request.request_id)
        assert self._files is not None, "only a client with files publishes offers"
        own = request.request_id
        files = [_next(request, own)]
        for number in range(published.round + 1):
            files += [_mark(request, own, number), _outcome(request, own, number)]
        try:
            self._files.delete(files)
        except Exception:
            logger.warning("the files of an offer are left: %s", own, exc_info=True)
        self._published.pop(own, None)

    def ended(self, request: LockRequest) -> None:
        """Forget *request*: nobody asks about it after this."""
        self._in_doubt.discard(request.request_id)


class OthersOffers:
    """The offers that one client takes.

    Args:
        files: Where they are; None if there are none.
        metastore: Lists the queues.
    """

    def __init__(self, files: OfferFiles | None, metastore: MetastoreClient) -> None:
        self._files, self._metastore = files, metastore

    def take(self, ticket: HmsTicket, limit: int) -> list[TakenInRound]:
        """Take the offers directly behind *ticket*, at most *limit*, as :meth:`HandoverLease.take`; may be repeated."""
        request, files = ticket.request, self._files
        if files is None or limit <= 0 or not _allowed(files, request):
            return []
        queue = self._queue(request)
        if not any(one.lock_id == ticket.lock_id and one.acquired for one in queue):
            return []  # Our latch was released by force, or another client believed that we are dead.
        # List each request once: it is in the queue twice for a while, if the reply to its first lock call was lost.
        waiting = list(dict.fromkeys(one.request_id for one in queue if one.lock_id > ticket.lock_id))[:limit]
        own, marks, chosen = request.request_id.encode() + _END, dict[str, bytes](), list[TakenInRound]()
        for one, found in zip(waiting, files.read([_offer(request, one) for one in waiting]), strict=True):
            if (text := _text(found)) is None:
                break  # It has no offer, or none yet. No later request may overtake it.
            number, mark, outcome = self._last_round(request, one)
            if mark not in (None, own):
                if _entry(outcome) is not None:
                    continue  # It has landed: its owner is about to leave.
                break  # An earlier holder has taken it, and may still publish it.
            if mark is None:
                marks[_mark(request, one, number)] = own
            chosen.append(TakenInRound(Offer(request_id=one, text=text), number))
        try:
            files.write(marks)
        except Exception:
            logger.warning("offers could not be marked: %s", request, exc_info=True)
            return []
        still = files.read([_offer(request, one.offer.request_id) for one in chosen])
        return [one for one, found in zip(chosen, still, strict=True) if isinstance(found, bytes)]

    def _last_round(self, request: LockRequest, one: str) -> tuple[int, Found, Found]:
        """Return the round that the offer of *one* is in, with mark and outcome."""
        assert self._files is not None, "only a client with files takes offers"
        number = 0
        while True:
            mark, outcome = self._files.read([_mark(request, one, number), _outcome(request, one, number)])
            if outcome != _RETURNED:
                return number, mark, outcome
            number += 1

    def briefly(self) -> AbstractContextManager[None]:
        """Have the calls of a release end soon."""
        return self._metastore.within(BRIEFLY)

    def report(
        self, request: LockRequest, rounds: Mapping[str, int], outcomes: Mapping[str, JournalEntry | None]
    ) -> None:
        """Tell the owners of offers that *request* has taken the outcome: the entry, or None for one that is returned.

        Without an outcome the owner of an offer is in doubt, and looks in the table when it is granted the latch.
        """
        assert self._files is not None, "only a client with files takes offers"
        try:
            self._files.write(
                {
                    _outcome(request, one, rounds[one]): _RETURNED if entry is None else _published(entry)
                    for one, entry in outcomes.items()
                }
            )
        except Exception:
            logger.warning("the outcomes of offers could not be written: %s", request, exc_info=True)

    def tell_next(self, ticket: HmsTicket, landed: Collection[str]) -> None:
        """Tell the first waiter behind *ticket* whose offer has not *landed* that its turn comes next.

        Nothing depends on it: a waiter without this message asks later.
        """
        request, files = ticket.request, self._files
        if files is None or not _allowed(files, request):
            return
        with suppress(Exception), self.briefly():
            behind = [one.request_id for one in self._queue(request) if one.lock_id > ticket.lock_id]
            following = next((one for one in behind if one not in landed), None)
            if following is not None and isinstance(files.read([_offer(request, following)])[0], bytes):
                files.write({_next(request, following): _END})

    def _queue(self, request: LockRequest) -> list[MetastoreLock]:
        (part,) = hms_names.parts(request)
        with translated(request):
            return grouped(self._metastore.show_locks(part.db, part.table))


def _allowed(files: OfferFiles, request: LockRequest) -> bool:
    return bool(request.offers_at) and files.allowed


def _text(found: Found) -> str | None:
    """Return an offer; None if there is none, or if it is not written to its end yet, or damaged."""
    if not isinstance(found, bytes) or not found.endswith(_END):
        return None
    try:
        return found.removesuffix(_END).decode()
    except UnicodeDecodeError:
        return None


def _published(entry: JournalEntry) -> bytes:
    return orjson.dumps(entry.stored) + _END


def _entry(found: Found) -> JournalEntry | None:
    """Return what an outcome says; None if there is none, or if it is not written to its end yet, or damaged."""
    if not isinstance(found, bytes) or not found.endswith(_END) or found == _RETURNED:
        return None
    try:
        return JournalEntry.parse(orjson.loads(found))
    except (ValueError, TypeError, KeyError):
        return None


def _offer(request: LockRequest, one: str) -> str:
    return f"{request.offers_at}/{one}.offer.json"


def _mark(request: LockRequest, one: str, number: int) -> str:
    return f"{request.offers_at}/{one}.{number}.taken"


def _outcome(request: LockRequest, one: str, number: int) -> str:
    return f"{request.offers_at}/{one}.{number}.outcome.json"


def _next(request: LockRequest, one: str) -> str:
    return f"{request.offers_at}/{one}.next"
