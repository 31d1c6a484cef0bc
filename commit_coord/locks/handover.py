"""What a lock manager can pass from one holder of a commit latch to the next: offers, notes, and the journal.

Theory of operation
    A request may contain an *offer*: the work that its owner would do after the grant. A latch holder may *take* the
    offers of the requests directly behind it, publish them together with its own work, and *settle* them with its
    release: those requests end without a grant. So one holder serves many waiters, in their order. A taken offer
    can't be retracted; until it is settled, its owner does not know the outcome.

    A holder can leave a *note* for the next holder of the latch. The lock manager does not interpret it.

    The *journal* keeps the outcomes of commits and of offers for a while.

    All methods here have defaults without these functions. A lock manager that only grants locks overrides none of
    them, and declares this in its guarantees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from commit_coord.errors import LockRefused
from commit_coord.locks.base import Lease, LockManager, Policy
from commit_coord.model import JournalEntry, LockRequest, Offer, Owner


class HandoverLease(Lease):
    """A lease whose holder may take the offers of others, and leave a note for the next holder."""

    @property
    def was_contended(self) -> bool | None:
        """Whether another request blocked this one before; None if it costs nothing to look for offers."""
        return None

    def take(self, limit: int) -> Sequence[Offer]:
        """Take the offers of the requests directly behind this lease, oldest first, at most *limit*.

        Stop at the first request without an offer, so that no request is overtaken. Also stop at an offer that an
        earlier holder took and never settled, because that holder may still publish it.

        Raises:
            LockError: The service did not answer. Some offers may have been taken; they stay with their owners.
        """
        return ()

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """Report the outcome of taken offers. The release passes it on to their owners.

        Args:
            done: The entries of published offers; the key of each is the id of the lock request, whose ``submit``
                returns the entry.
            returned: The ids of lock requests whose offers were not published and never will be.

        Raises:
            LockRefused: The lock manager does not support offers.
        """
        raise LockRefused("this lock manager does not support offers", locks=self.request)

    def retract(self) -> bool:
        """Retract this writer's offer. Return whether it is certain that no holder has taken it or will take it."""
        return True

    @property
    def handover_note(self) -> str | None:
        """The note of the last holder of this commit latch; "" if there is none.

        None if the guarantees declare no notes, or if this is not the latch of exactly one table.
        """
        return None

    def set_handover_note(self, note: str) -> None:
        """Let the release leave *note* for the next holder; "" deletes the note.

        This costs no additional round trip. The note may be lost: then the earlier note stays. It is only written if
        no other holder has had the latch meanwhile.

        Raises:
            LockRefused: The lock manager does not support notes.
        """
        raise LockRefused("this lock manager does not support notes", locks=self.request)


class HandoverLockManager(LockManager):
    """A client of a lock service that may support offers, notes and a journal."""

    @abstractmethod
    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> HandoverLease:
        """See :meth:`LockManager.acquire`."""

    def submit(self, request: LockRequest, *, deadline: float) -> HandoverLease | JournalEntry:
        """Block until *request* is granted, or until another holder has published its offer.

        If the guarantees declare no offers, this is :meth:`acquire`.

        Returns:
            A held lease; or the entry of the holder that published the offer, and then nothing is held.

        Raises:
            OfferLost: The request was not granted, and its offer may have been published.
            LockError: As :meth:`acquire`; it is certain that no holder has published the offer or will publish it.
        """
        return self.acquire(request, deadline=deadline)

    def acquire_note(self, request: LockRequest, *, deadline: float) -> HandoverLease | None:
        """Acquire the commit latch of *request*, a table, where its note is kept; None if no notes are kept.

        Raises:
            LockError: As :meth:`acquire`.
        """
        return self.acquire(request, deadline=deadline) if self.guarantees.notes else None

    def one_call(self) -> AbstractContextManager[None]:
        """Return a context in which all calls of this thread count as one.

        1. A commit waits for a lock service that is away.   2. Another thread closes this client.
        3. The commit tries again. It must not connect again, because nobody would close that connection.
        """
        return nullcontext()

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """Keep *entry* in the journal for *lifetime_ms*; it replaces an entry with the same key.

        Raises:
            LockRefused: The lock manager has no journal.
        """
        raise LockRefused("this lock manager has no journal", manager=self.name)

    def recall(self, key: str) -> JournalEntry | None:
        """Return the journal entry of *key*, None if there is no entry or no journal."""
        return None

    def note_forced_release(self, request_id: str, by: Owner, why: str) -> None:
        """Leave a note of who is about to release *request_id* by force, for the error that its waiter gets.

        Raises:
            LockServiceUnavailable: The note may be missing.
        """
        if self.guarantees.journal:
            entry = ForcedRelease.by(by, why).entry(request_id)
            self.remember(entry, lifetime_ms=FORCED_RELEASE_LIFETIME_MS)

    def forced_release_note(self, request_id: str) -> dict[str, str]:
        """Return what the note about *request_id* says, as facts for an error; nothing if there is no note."""
        entry = self.recall(ForcedRelease.key(request_id))
        return ForcedRelease.parse(entry).facts if entry is not None else {}


OFFER_IS_GONE = (
    "the lock request is gone from the queue, and it is not known whether another writer has published its append; "
    "look for the append before you repeat it"
)
"""The message of :class:`OfferLost` when a request with an offer left the queue without an outcome in the journal."""

FORCED_RELEASE_LIFETIME_MS = 3_600_000
"""How long a note is kept of who released a request by force. Its waiter asks at once, unless it is stopped."""


@dataclass(frozen=True, slots=True)
class ForcedRelease:
    """A note of who released a lock request by force.

    Args:
        operator: Who did it, as the error of the waiter names them.
        why: The reason that they gave; "" if they gave none.
    """

    operator: str
    why: str

    @classmethod
    def by(cls, operator: Owner, why: str) -> ForcedRelease:
        """Return the note of *operator*."""
        return cls(f"{operator.user}@{operator.host} pid {operator.pid}", why)

    @property
    def facts(self) -> dict[str, str]:
        """The facts for the error of the waiter."""
        return {"released_by": self.operator} | ({"why": self.why} if self.why else {})

    @staticmethod
    def key(lock_request_id: str) -> str:
        """Return the key in the journal of the note about *lock_request_id*."""
        return f"released:{lock_request_id}"

    def entry(self, lock_request_id: str) -> JournalEntry:
        """Return the journal entry of this note about *lock_request_id*."""
        return JournalEntry(
            key=self.key(lock_request_id), table=self.operator, table_uuid=self.why, metadata_location=""
        )

    @classmethod
    def parse(cls, entry: JournalEntry) -> ForcedRelease:
        """Return the note that :meth:`entry` encoded."""
        return cls(entry.table, entry.table_uuid)
