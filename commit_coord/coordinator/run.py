"""State that the parts of one commit share."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.io import FileIO

from commit_coord.coordinator.services import Services
from commit_coord.iceberg.attempt import Attempt
from commit_coord.locks.handover import HandoverLease


@dataclass(slots=True, kw_only=True)
class Run:
    """The state of a commit to one table; a commit to several tables has one for each table.

    Args:
        services: The services that the commits of the catalog share.
        attempt: The attempt to commit; replaced when it is planned again.
        fences: The ids of the Hive leases that must be live at the swap.
        is_repair: The attempt has the request id of a commit that landed, so files with the usual names exist already.
        lease: The latch; None while it is not held.
        may_be_carried: Whether another latch holder may have published the attempt.
        head_moved: Whether the head was not the base of the attempt.
    """

    services: Services
    attempt: Attempt
    fences: tuple[int, ...]
    is_repair: bool
    lease: HandoverLease | None = None
    may_be_carried: bool = False
    head_moved: bool = False

    @property
    def latch(self) -> HandoverLease:
        """The latch. Use this only while the latch is held."""
        assert self.lease is not None, "the protocol asks for this only under the latch"
        return self.lease

    def file_io(self, location: str) -> FileIO:
        """Return the file store for *location*."""
        return self.services.store.file_io(location)
