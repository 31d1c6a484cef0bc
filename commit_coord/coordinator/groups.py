"""Group commit: one swap publishes this commit's attempt and the attempts of writers that wait for the latch."""

from __future__ import annotations

import logging
from dataclasses import replace

from commit_coord.config import COALESCE
from commit_coord.coordinator import offers
from commit_coord.coordinator.payload import Member, Part, Payload, carried, journal_entry
from commit_coord.coordinator.planning import Planner
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.stores import delete_quietly
from commit_coord.errors import InternalError, LockError
from commit_coord.iceberg.attempt import together
from commit_coord.iceberg.rebase import Rebased
from commit_coord.iceberg.table_properties import flag
from commit_coord.model import CommitStatus
from commit_coord.protocol.commit import Planned, Verdict

logger = logging.getLogger(__name__)


class Group:
    """The offer of this commit while it waits for the latch, and the offers that it takes while it holds the latch.

    Args:
        run: The run that this group is part of.
        planner: Plans the attempt of this commit.
        operation_locked: Whether the attempt of this commit may land only under the locks of its operation.
    """

    def __init__(self, run: Run, planner: Planner, *, operation_locked: bool) -> None:
        self._run = run
        self._services = run.services
        self._planner = planner
        # One swap publishes all of its attempts or none, so an attempt with a condition of its own is swapped alone.
        alone = run.is_repair or bool(run.fences) or operation_locked or run.attempt.since is not None
        self.enabled = self._services.group_max_size > 1 and run.attempt.is_pure_append and not alone
        self._members: list[Member] = []
        self._taken: list[str] | None = None
        """Lock request ids of all offers that this commit took, readable or not; None before it looked for offers."""
        self.offered_in: str | None = None
        """The file with this commit's attempt, if the offer only names a file."""

    # The offer of this commit.

    def offer(self) -> str:
        """Return the offer, with which a latch holder can publish this attempt; "" if it can't be offered."""
        attempt = self._run.attempt
        data = attempt.to_json()
        if len(data) <= offers.MAX:
            return data.decode()
        self.offered_in = offers.file_of(attempt)
        try:
            return offers.in_file(data, self.offered_in, self._run.file_io(self.offered_in))
        except Exception:
            logger.warning("the file of an offer could not be written; no other writer publishes it", exc_info=True)
            return ""

    def delete_offer(self) -> None:
        """Delete the file of this commit's offer, if there is one."""
        if self.offered_in is not None:
            delete_quietly(self._run.file_io(self.offered_in), self.offered_in)

    # The offers of others.

    def gather(self, plan: Planned) -> None:
        """Add the offers of waiting writers to *plan*.

        Offers are taken at most once for each time that the latch is acquired.
        """
        payload: Payload = plan.payload
        # The result for each member is the table up to its own snapshot, without the snapshots of later members. This
        # needs sequence numbers, which format version 1 does not have.
        if not self.enabled or payload.metadata.format_version < 2:
            return
        if self._taken is None:
            self._taken = []
            self._take()
        payload.parts[:] = self._carry(payload.alone)

    def settle(self, verdict: Verdict | None) -> None:
        """Record which taken offers we published and which ones we return; the release reports this to their owners."""
        if not self._taken or verdict is None or verdict.status is CommitStatus.UNKNOWN:
            return
        done = [
            journal_entry(member.attempt, rebased, verdict, member.lock_request_id)
            for member, rebased in carried(verdict)
        ]
        ended = {entry.key for entry in done}
        self._run.latch.settle(done, [request_id for request_id in self._taken if request_id not in ended])

    def forget(self) -> None:
        """Forget the taken offers, after the latch was released."""
        self._members, self._taken = [], None

    def _take(self) -> None:
        latch, services, table = self._run.latch, self._services, self._run.attempt.table
        if latch.was_contended is False and table not in services.contended_tables:
            return
        try:
            waiting = latch.take(services.group_max_size - 1)
        except LockError:
            # None of these offers is published. Each owner commits its attempt itself when it is granted the latch.
            logger.warning("the offers of waiting writers could not be taken; committing alone", exc_info=True)
            return
        if waiting or latch.was_contended:
            services.contended_tables.add(table)
        else:
            services.contended_tables.discard(table)
        self._taken = [offer.request_id for offer in waiting]
        room = services.group_max_bytes
        for offer in waiting:
            try:
                offered = offers.read(offer.text, room, self._run.file_io)
            except Exception:
                logger.warning("an offer can't be read: %s", offer.request_id, exc_info=True)
                continue
            if offered is None:
                break  # Too large: its owner is granted the latch next, and later offers must not overtake it.
            attempt, size = offered
            room -= size
            self._members.append(Member(lock_request_id=offer.request_id, attempt=attempt))

    def _carry(self, own: Part) -> list[Part]:
        """Return *own*, followed by those taken attempts that can be published after it."""
        planner, head = self._planner, own.rebased.metadata
        parts, ids = [own], {self._run.attempt.request_id}
        coalesces = flag(head.properties, COALESCE, False, unreadable=False)
        for member in self._members:
            attempt = member.attempt
            try:
                if attempt.request_id in ids or (attempt.repeatable and planner.landed_before(attempt, own.location)):
                    continue  # It has landed, or a copy of it is in this group: its owner will find it in the table.
                if not attempt.repeatable and own.head is not None and planner.append_in(attempt, own.head) is not None:
                    continue  # An earlier holder has published it, and did not tell its owner.
                planner.check_manifests(attempt, head)
                last = parts[-1]
                result = planner.rebase(attempt, last.rebased.metadata, None)
                if not isinstance(result, Rebased):
                    continue
                both = together(last.attempt, attempt) if coalesces else None
                if both is None:
                    part = Part(attempt=attempt, head=last.rebased.metadata, location=None, rebased=result)
                else:
                    part = self._rejoined(replace(last, attempt=both), first=last is parts[0])
                    parts.pop()
            except Exception:
                # An error in one attempt must not affect the others. Its owner gets the same error when it commits.
                logger.warning(
                    "an offered append can't be published by this commit: %s", attempt.request_id, exc_info=True
                )
                continue
            parts.append(replace(part, members=(*part.members, member)))
            ids.add(attempt.request_id)
        return parts

    def _rejoined(self, part: Part, *, first: bool) -> Part:
        """Return *part* after one more append has joined its attempt."""
        assert part.head is not None, "an append never joins an attempt that creates the table"
        result = self._planner.rebase(part.attempt, part.head, part.location)
        if not isinstance(result, Rebased):
            raise InternalError("two appends of one group can't share a snapshot", reason=result.reason)
        return replace(part, rebased=self._planner.prepared(result, part.head) if first else result)
