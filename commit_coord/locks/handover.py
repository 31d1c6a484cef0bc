"""What a lock manager may carry from one holder of a commit latch to the next: offers, notes, and the journal.

Theory of operation
    A request may say what its owner would do once it is granted: its *offer*. A holder may *take* the offers that wait
    right behind it, do them along with its own work, and *settle* them with its release: those requests end without
    ever being granted. So one holder carries many waiters, and none is overtaken. An offer that was taken can't be
    withdrawn any more; until it is settled its owner does not know what becomes of it.

    The latch of a table carries a *note* from each holder to the next: what it means is the holders' business.

    The *journal* remembers for a while which requests were carried out.

    All of it has defaults, which carry nothing: a lock manager that grants locks and no more overrides none of them,
    and says so in its guarantees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from commit_coord.errors import LockRefused
from commit_coord.locks.base import Lease, LockManager, Policy
from commit_coord.model import JournalEntry, LockRequest, Offer


class HandoverLease(Lease):
    """A lease whose holder may carry what others offer, and leave a note for the next holder."""

    @property
    def was_contended(self) -> bool | None:
        """Whether another request was in the way of this one; None where it costs nothing to look for offers."""
        return None

    def take(self, limit: int) -> Sequence[Offer]:
        """Take the offers that wait right behind this lease, oldest first, at most *limit*.

        The first request that offers nothing ends them, so nobody is overtaken; as does one whose offer an earlier
        holder took and never settled: it may still be carrying it out.

        Raises:
            LockError: The service did not answer. Some offers may have been taken; they stay with their owners.
        """
        return ()

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """Say what became of offers that were taken. Their owners learn it together with the release.

        Args:
            done: Carried out; ``request_id`` is that of the lock request, whose ``submit`` returns the entry.
            returned: Lock requests whose offers were not carried out and never will be.

        Raises:
            LockRefused: The lock manager carries no offers.
        """
        raise LockRefused("this lock manager carries no offers", locks=self.request)

    def retract(self) -> bool:
        """Take back the own offer. Return whether it is certain that nobody has taken it or will."""
        return True

    @property
    def handover_note(self) -> str | None:
        """What the last holder of this commit latch left for the next one; "" for nothing.

        None where the guarantees declare no notes, and of whatever is not the latch of one table.
        """
        return None

    def set_handover_note(self, note: str) -> None:
        """Have the release leave *note* for the next holder; "" leaves nothing.

        It costs no round trip of its own, and may get lost: then the one before stays. It is left only if nobody else
        has held the latch meanwhile.

        Raises:
            LockRefused: The lock manager keeps no notes.
        """
        raise LockRefused("this lock manager keeps no notes", locks=self.request)


class HandoverLockManager(LockManager):
    """A client of a lock service that may carry offers, notes and a journal."""

    @abstractmethod
    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> HandoverLease:
        """See :meth:`LockManager.acquire`."""

    def submit(self, request: LockRequest, *, deadline: float) -> HandoverLease | JournalEntry:
        """Block until *request* is granted, or until another holder has carried out what it offers.

        Where the guarantees declare no carrying this is :meth:`acquire`.

        Returns:
            A held lease; or the holder's answer, and nothing is held.

        Raises:
            OfferLost: Not granted, and the offer may have been carried out.
            LockError: As :meth:`acquire`; it is certain that nobody has carried out the offer or will.
        """
        return self.acquire(request, deadline=deadline)

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """Keep *entry* in the journal for *lifetime_ms*.

        Raises:
            LockRefused: The guarantees declare no journal.
        """
        raise LockRefused("this lock manager keeps no journal", manager=self.name)

    def recall(self, request_id: str) -> JournalEntry | None:
        """Return what the journal knows of *request_id*, None when it knows nothing or keeps none."""
        return None
