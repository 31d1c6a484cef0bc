"""State that the parts of one commit share."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.io import FileIO

from commit_coord.coordinator.services import Services
from commit_coord.iceberg.attempt import Attempt
from commit_coord.locks.handover import HandoverLease


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of the protocol.

    Args:
        services: What the commits of the catalog share.
        attempt: What is to land; another one once it was planned again.
        fence: The lease without which nothing is swapped; None where there is none.
        is_repair: The request id is that of a commit that had landed, so its names are taken.
        remembered: A request id that may be asked for again is kept in the journal.
        lease: The latch; None while it is not held.
        may_be_carried: Whether another latch holder may have published the attempt.
        rebased: Whether the head has moved since the attempt was planned.
    """

    services: Services
    attempt: Attempt
    fence: int | None
    is_repair: bool
    remembered: bool
    lease: HandoverLease | None = None
    may_be_carried: bool = False
    rebased: bool = False

    @property
    def latch(self) -> HandoverLease:
        """The latch. Use this only while the latch is held."""
        assert self.lease is not None, "the protocol asks for this only under the latch"
        return self.lease

    def file_io(self, location: str) -> FileIO:
        """Return the file store for *location*."""
        return self.services.store.file_io({}, location)
