"""Performs what the commit protocol asks for, against a lock manager, a pointer store and a file store.

The imperative shell around :mod:`commit_coord.protocol.commit`: no decision about a commit is made here. And the one
place in which a verdict becomes an exception.
"""

from __future__ import annotations

import logging
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from pyiceberg.io import FileIO
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.properties import property_as_bool

from commit_coord.config import COALESCE
from commit_coord.coordinator import offers
from commit_coord.coordinator.payload import Member, Part, Payload
from commit_coord.coordinator.request_ids import file_name, version_of
from commit_coord.coordinator.stores import Committed, Replanner, delete_quietly
from commit_coord.errors import (
    CommitConflict,
    CommitLockFailed,
    CommitNotApplied,
    CommitStateUnknown,
    InternalError,
    LockError,
    LockLost,
    LockRefused,
    StatementError,
)
from commit_coord.events import CommitBegan, CommitEnded, SwapEnded
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as lean
from commit_coord.iceberg.attempt import Attempt, table_name, together
from commit_coord.iceberg.overwrites import Acknowledged, Note
from commit_coord.iceberg.rebase import REQUEST_ID, Follows, Refused, Stale, created, follow
from commit_coord.locks.base import Lease
from commit_coord.model import CommitStatus, JournalEntry
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.commit import (
    Acquire,
    Answered,
    Cause,
    Confirm,
    Discard,
    Effect,
    EnsureActive,
    Gather,
    Locate,
    NeedsReplan,
    Pause,
    Plan,
    Planned,
    PlanResult,
    Refusal,
    Release,
    Replan,
    Retract,
    Swap,
    SwapResult,
    Verdict,
    Where,
    Write,
    WrongLatch,
    commit,
)

if TYPE_CHECKING:
    from commit_coord.coordinator import Coordinator

logger = logging.getLogger(__name__)

_STATUS_CHECK = Backoff(initial_ms=50, maximum_ms=5_000)
"""Between the looks after a lost reply: half a minute in all."""


class Commit:
    """One run of the protocol: the state that its effects share."""

    def __init__(
        self,
        coordinator: Coordinator,
        attempt: Attempt,
        replan: Replanner | None,
        repeatable: bool,
        under: Lease | None,
        restores: bool,
    ) -> None:
        self._coordinator = coordinator
        self._attempt = attempt
        self._replan = replan
        self._repeatable = repeatable
        self._under = under
        self._lease: Lease | None = None
        self._lease_id = coordinator.fence
        # One swap can't be refused for some of those that it publishes, so whoever is fenced goes alone.
        alone = restores or self._lease_id is not None or under is not None
        self._groups = coordinator.group_max_size > 1 and attempt.is_pure_append and not alone
        self._members: list[Member] = []
        self._taken: list[str] | None = None
        """The lock requests of all offers that we took, readable or not; None as long as we did not look."""
        self._offered_in: str | None = None
        """The file that our offer names."""
        self._doubtful = False
        """Whether somebody else may have carried our attempt out."""
        self._rebased = False
        self._drained: set[str] = set()
        """What was swapped while somebody else may have had the latch, who is done by now."""
        self._named = restores
        """Whether a metadata file has the name that the first one has."""
        self._lacking: set[str | None] = set()
        """The heads in which our request was looked up, and not found."""
        self._note = Note()
        """What is left for the next commit of the table, but for what this one adds."""
        self._waited = self._held = self._acquired_at = 0.0

    def run(self) -> Committed:
        """Carry the attempt out; see :meth:`Coordinator.commit`."""
        events = self._coordinator.events
        if events.heard:
            events.emit(CommitBegan(table=table_name(self._attempt.table), request_id=self._attempt.request_id))
        try:
            verdict = self._drive()
        except BaseException as error:
            not_applied = isinstance(error, CommitNotApplied)
            self._ended(CommitStatus.FAILURE if not_applied else CommitStatus.UNKNOWN)
            raise
        finally:
            if self._lease is not None:
                self._lease.release()  # an interrupt came while an effect was being performed
            if self._offered_in is not None:
                delete_quietly(self._file_io(self._offered_in), self._offered_in)
        self._ended(verdict.status, tries=verdict.tries, carried=len(_carried(verdict)))
        return self._outcome(verdict)

    def _ended(self, status: CommitStatus, *, tries: int = 0, carried: int = 0) -> None:
        self._coordinator.events.emit(
            CommitEnded(
                table=table_name(self._attempt.table),
                request_id=self._attempt.request_id,
                status=status,
                waited_ms=self._waited * 1000,
                held_ms=self._held * 1000,
                tries=tries,
                rebased=self._rebased,
                carried=carried,
            )
        )

    def _drive(self) -> Verdict:
        """Perform one effect after the other until the protocol returns."""
        steps = commit(self._coordinator.limits)
        try:
            effect = next(steps)
            while True:
                try:
                    result = self._perform(effect)
                except BaseException as error:  # noqa: BLE001 - the protocol decides what it means
                    effect = steps.throw(error)
                else:
                    effect = steps.send(result)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Acquire(offering=offering):
                return self._acquire(offering=offering)
            case Retract():
                return self._retract()
            case Plan():
                return self._plan()
            case Replan():
                return self._plan_again()
            case Gather(plan=plan):
                return self._gather(plan)
            case Write(plan=plan):
                return self._write(plan)
            case EnsureActive():
                assert self._lease is not None
                self._ensure_operation()
                return self._lease.ensure_active()
            case Swap(plan=plan):
                return self._swap(plan)
            case Locate(plan=plan):
                return self._locate(plan)
            case Confirm(plan=plan):
                return self._confirm(plan)
            case Pause(check=check):
                clock = self._coordinator.clock
                return clock.sleep(next_wait(_STATUS_CHECK, check, clock.random()))
            case Discard(plan=plan):
                return self._discard(plan)
            case Release(verdict=verdict):
                return self._release(verdict)
            case _:
                assert_never(effect)

    def _swap(self, plan: Planned) -> SwapResult:
        coordinator, table = self._coordinator, self._attempt.table
        started, result = coordinator.clock.now(), "REFUSED"
        try:
            swapped = self._compare_and_set(plan)
            result = swapped.name
            return swapped
        finally:
            if coordinator.events.heard:
                coordinator.events.emit(
                    SwapEnded(
                        table=table_name(table),
                        request_id=self._attempt.request_id,
                        result=result,
                        took_ms=(coordinator.clock.now() - started) * 1000,
                    )
                )

    def _ensure_operation(self) -> None:
        """Return if the operation still has its locks.

        Raises:
            LockRefused: It has not; no latch that is taken anew brings them back.
        """
        if self._under is None:
            return
        try:
            self._under.ensure_active(0)
        except LockLost as error:
            raise LockRefused("the operation has lost its locks", **error.details) from error

    def _acquire(self, *, offering: bool) -> Answered | None:
        clock = self._coordinator.clock
        asked_at = clock.now()
        try:
            self._doubtful |= not offering
            offer = self._offer() if offering and self._groups else ""
            granted = self._coordinator.latch_or_answer(self._attempt, offer)
        finally:
            self._acquired_at = clock.now()
            self._waited += self._acquired_at - asked_at
        if isinstance(granted, Lease):
            self._lease = granted
            return None
        self._coordinator.crowded.add(self._attempt.table)
        return Answered(payload=granted)

    def _offer(self) -> str:
        """Return what lets others carry our attempt out; "" when it can't be offered."""
        data = self._attempt.to_json()
        if len(data) <= offers.MAX:
            return data.decode()
        self._offered_in = offers.file_of(self._attempt)
        try:
            return offers.in_file(data, self._offered_in, self._file_io(self._offered_in))
        except Exception:
            logger.warning("a large attempt could not be written down; committing alone", exc_info=True)
            return ""

    def _file_io(self, location: str) -> FileIO:
        return self._coordinator.store.file_io({}, location)

    def _carried_along(self, entry: JournalEntry) -> Committed:
        """Return our attempt as another holder published it.

        Raises:
            CommitStateUnknown: It has landed, and the table can't be read. No other error would keep its files.
        """
        coordinator, location = self._coordinator, entry.metadata_location
        try:
            try:
                metadata = coordinator.read(location)
            except Exception:  # noqa: BLE001 - above all, the file may be gone by now
                metadata, location = coordinator.load(self._attempt.table)
        except Exception as error:
            raise CommitStateUnknown(
                "the commit landed, but the table can't be read now; do not repeat it",
                table=entry.table,
                request_id=self._attempt.request_id,
                location=entry.metadata_location,
            ) from error
        return _published(metadata, location, entry.snapshot_ids)

    def _retract(self) -> bool:
        assert self._lease is not None
        certain = self._lease.retract()
        self._doubtful |= not certain
        return certain

    def _gather(self, plan: Planned) -> None:
        if not self._groups:
            return
        if self._taken is None:
            self._taken = []
            self._take()
        payload: Payload = plan.payload
        payload.parts[:] = self._carry(payload.alone)

    def _take(self) -> None:
        assert self._lease is not None
        crowded, table = self._coordinator.crowded, self._attempt.table
        if self._lease.waited is False and table not in crowded:
            return
        try:
            waiting = self._lease.take(self._coordinator.group_max_size - 1)
        except LockError:
            # What was taken stays with its owners, whose turn comes.
            logger.warning("the offers of waiting writers could not be taken; committing alone", exc_info=True)
            return
        if waiting or self._lease.waited:
            crowded.add(table)
        else:
            crowded.discard(table)
        self._taken = [offer.request_id for offer in waiting]
        room = self._coordinator.group_max_bytes
        for offer in waiting:
            try:
                offered = offers.read(offer.text, room, self._file_io)
            except Exception:
                logger.warning("an offer can't be read: %s", offer.request_id, exc_info=True)
                continue
            if offered is None:
                break  # It is the next to be granted, and nobody overtakes it.
            attempt, size = offered
            room -= size
            self._members.append(Member(lock_id=offer.request_id, attempt=attempt))

    def _release(self, verdict: Verdict | None) -> None:
        if self._lease is not None:
            try:
                if self._taken and verdict is not None and verdict.status is not CommitStatus.UNKNOWN:
                    self._settle(self._lease, verdict)
                if verdict is not None and verdict.status is CommitStatus.SUCCESS and verdict.plan is not None:
                    self._leave_note(self._lease, verdict.plan)
            finally:
                self._lease.release()
            self._lease, self._members, self._taken = None, [], None
            self._held += self._coordinator.clock.now() - self._acquired_at

    def _leave_note(self, lease: Lease, plan: Planned) -> None:
        """Have the release tell the next commit of this one, which was acknowledged."""
        if lease.note is None:
            return
        payload: Payload = plan.payload
        head = Acknowledged(
            location=plan.location,
            table_uuid=str(payload.metadata.table_uuid),
            request_id=self._attempt.request_id,
            snapshot_ids=tuple(one for part in payload.parts for one in part.follows.snapshot_ids),
            by=str(lease.request.owner),
            at_ms=payload.metadata.last_updated_ms,
        )
        lease.leave(replace(self._note, head=head).to_text())

    def _settle(self, lease: Lease, verdict: Verdict) -> None:
        """Have the release tell the owners of what we took: carried out, or left to them."""
        carried = _carried(verdict)
        done = [self._entry(member.attempt, follows, verdict, member.lock_id) for member, follows in carried]
        ended = {entry.request_id for entry in done}
        lease.settle(done, [lock_id for lock_id in self._taken or () if lock_id not in ended])

    def _entry(self, attempt: Attempt, follows: Follows, verdict: Verdict, request_id: str) -> JournalEntry:
        assert verdict.plan is not None
        return JournalEntry(
            request_id=request_id,
            table=table_name(attempt.table),
            table_uuid=str(follows.metadata.table_uuid),
            metadata_location=verdict.plan.location,
            snapshot_ids=follows.snapshot_ids,
        )

    def _plan(self) -> PlanResult:
        coordinator, attempt = self._coordinator, self._attempt
        pointer = coordinator.store.pointer(attempt.table)
        assert self._lease is not None
        if pointer is not None and self._lease.note:
            self._note = coordinator.overwrites.look_back(attempt.table, pointer, self._lease.note)
        if (own := self._own_snapshot(pointer)) is not None:
            # A holder took our offer, swapped, and was gone before it could tell us.
            return Answered(payload=own)
        if self._repeatable and (entry := self._already(attempt, pointer)):
            return Answered(payload=entry)
        self._lacking.add(pointer)
        if attempt.base_location is None:
            return self._plan_creation(pointer)
        if pointer is None:
            return Refusal(reason="the table was dropped since it was read")
        head = coordinator.read(pointer)
        assert self._lease is not None
        if (reason := self._lease.unsuited(head.properties)) is not None:
            return WrongLatch(reason=reason)
        self._rebased |= pointer != attempt.base_location
        if attempt.append is not None and pointer != attempt.base_location:
            # Whoever went before us may have left us alone because of them.
            self._check_manifests(attempt, head)
        result = self._follow(attempt, head, pointer)
        match result:
            case Refused(reason=reason):
                return Refusal(reason=reason)
            case Stale(reason=reason):
                return NeedsReplan(reason=reason) if self._replan is not None else Refusal(reason=reason)
            case Follows() if result.metadata is head:
                return Answered(payload=Committed(metadata=head, location=pointer, snapshot_ids=()))
            case Follows():
                return self._planned(self._succeeding(result, head), head, pointer)
            case _:
                assert_never(result)

    def _succeeding(self, follows: Follows, head: TableMetadata | None) -> Follows:
        made = self._coordinator.store.prepare_metadata(self._attempt.table, head, follows.metadata)
        return replace(follows, metadata=made)

    def _own_snapshot(self, pointer: str | None) -> Committed | None:
        """Return our append as somebody else has published it."""
        attempt, append = self._attempt, self._attempt.append
        if append is None or pointer is None or (self._repeatable and not self._doubtful):
            return None  # A repeated request is known by its id.
        head = self._coordinator.read(pointer)
        if head.snapshot_by_id(append.snapshot_id) is not None:
            return _published(head, pointer, (append.snapshot_id,))
        if not append.inherits:
            return None
        own = {manifest.manifest_path for manifest in append.manifests}
        snapshots: lean.LazyModels[Snapshot] = head.__dict__["snapshots"]
        for found in snapshots.ids_with_summary(REQUEST_ID, attempt.request_id, behind=attempt.base_sequence_number):
            # An earlier commit of the same request had other manifests. Ours are then in no table, and can go.
            if not self._repeatable or own & self._listed(snapshots.by_id(found)):
                return _published(head, pointer, (found,))
        return None

    def _listed(self, snapshot: Snapshot | None) -> set[str]:
        assert snapshot is not None
        listed = manifest_list.read(self._file_io(snapshot.manifest_list), snapshot.manifest_list)
        return {manifest.manifest_path for manifest in listed}

    def _check_manifests(self, attempt: Attempt, head: TableMetadata) -> None:
        assert attempt.append is not None
        manifest_list.check_whole(
            self._coordinator.store.file_io(head.properties, head.location), attempt.append.manifests
        )

    def _follow(self, attempt: Attempt, head: TableMetadata, location: str | None) -> Follows | Stale | Refused:
        assert self._lease is not None
        return follow(
            attempt,
            head,
            location,
            generation=self._lease.generation,
            now_ms=self._coordinator.clock.wall_ms(),
            file_id=str(self._coordinator.host.new_id()),
        )

    def _carry(self, own: Part) -> list[Part]:
        """Return *own* and behind it those of the attempts that we took which may stand there."""
        parts, ids, head = [own], {self._attempt.request_id}, own.follows.metadata
        if head.format_version < 2:
            return parts  # Without sequence numbers a table could not tell that it shows less than its file.
        coalesces = property_as_bool(head.properties, COALESCE, False)
        for member in self._members:
            attempt = member.attempt
            try:
                if attempt.request_id in ids or (attempt.repeatable and self._already(attempt, own.location)):
                    continue  # Its owner will find it in the table.
                self._check_manifests(attempt, head)
                last = parts[-1]
                result = self._follow(attempt, last.follows.metadata, None)
                if not isinstance(result, Follows):
                    continue
                both = together(last.attempt, attempt) if coalesces else None
                if both is None:
                    part = Part(attempt=attempt, head=last.follows.metadata, location=None, follows=result)
                else:
                    part = self._rejoined(replace(last, attempt=both), first=last is parts[0])
                    parts.pop()
            except Exception:
                # Whatever is wrong with it must not harm the others. Its owner meets the same error, in its turn.
                logger.warning("an offered attempt can't be carried: %s", attempt.request_id, exc_info=True)
                continue
            parts.append(replace(part, members=(*part.members, member)))
            ids.add(attempt.request_id)
        return parts

    def _rejoined(self, part: Part, *, first: bool) -> Part:
        """Return *part* after one more append has joined its attempt."""
        assert part.head is not None
        result = self._follow(part.attempt, part.head, part.location)
        if not isinstance(result, Follows):
            raise InternalError("appends that may follow each other can't stand together", reason=result.reason)
        return replace(part, follows=self._succeeding(result, part.head) if first else result)

    def _plan_creation(self, pointer: str | None) -> PlanResult:
        if pointer is not None:
            return Refusal(reason="the table exists already")
        attempt = self._attempt
        for requirement in attempt.requirements:
            requirement.validate(None)
        assert self._lease is not None
        made = created(attempt, generation=self._lease.generation)
        metadata = self._coordinator.store.prepare_metadata(attempt.table, None, made)
        return self._planned(Follows(metadata=metadata, manifest_list=None, snapshot_ids=()), None, None)

    def _planned(self, follows: Follows, head: TableMetadata | None, base: str | None) -> Planned:
        alone = Part(attempt=self._attempt, head=head, location=base, follows=follows)
        metadata = follows.metadata
        provider = load_location_provider(metadata.location, metadata.properties)
        suffix = ".gz" if metadata.properties.get("write.metadata.compression-codec", "none") == "gzip" else ""
        version = version_of(base) + 1
        host = self._coordinator.host
        name = file_name(self._attempt.request_id, host, fresh=not (self._named or self._repeatable))
        self._named = True
        location = provider.new_metadata_location(f"{version:05d}-{name}{suffix}.metadata.json")
        io = self._coordinator.store.file_io(metadata.properties, location)
        payload = Payload(parts=[alone], alone=alone, io=io, base=head, written=[], unused=[])
        return Planned(base=base, location=location, payload=payload)

    def _already(self, attempt: Attempt, pointer: str | None) -> Committed | None:
        if pointer is None:
            return None
        metadata = self._coordinator.read(pointer)
        entry = self._coordinator.recall(attempt.table, metadata, pointer, attempt.request_id)
        if entry is None:
            return None
        return Committed(metadata=metadata, location=pointer, snapshot_ids=entry.snapshot_ids, answered=True)

    def _plan_again(self) -> None:
        assert self._replan is not None
        head, location = self._coordinator.load(self._attempt.table)
        self._attempt = self._replan(head, location)

    def _write(self, plan: Planned) -> None:
        payload: Payload = plan.payload
        if len(payload.parts) == 1 and not payload.parts[0].members:
            # The two do not read each other, and on an object store each is a round trip under the latch.
            writing = ExecutorFactory.get_or_create().submit(self._write_metadata, payload, plan.location)
            try:
                self._write_list(payload, payload.own)
            finally:
                # The threads are PyIceberg's, and may all be busy with somebody's scan.
                unused = writing.cancel()
                if not unused:
                    wait([writing])  # whoever deletes what was written must find it
            if unused:
                self._write_metadata(payload, plan.location)
            else:
                writing.result()
            return
        for position, part in enumerate(tuple(payload.parts)):
            try:
                self._write_list(payload, part.follows)
            except Exception:
                if not part.members:
                    raise  # It is ours.
                # Those behind it stand on it, so they are left to their owners too.
                ids = ", ".join(member.attempt.request_id for member in part.members)
                logger.warning("offered attempts can't be carried: %s", ids, exc_info=True)
                del payload.parts[position:]
                break
        if not payload.parts:
            payload.parts.append(payload.alone)
            self._write_list(payload, payload.own)
        self._write_metadata(payload, plan.location)

    def _write_metadata(self, payload: Payload, location: str) -> None:
        parts = lean.dump_parts(payload.metadata, location)
        payload.written.append(location)
        with payload.io.new_output(location).create() as output:
            for part in parts:
                output.write(part)
        self._coordinator.cache.put(location, payload.metadata, sum(map(len, parts)))

    def _write_list(self, payload: Payload, follows: Follows) -> None:
        listed = follows.manifest_list
        if listed is not None:
            payload.written.append(listed.location)
            merge = listed.merge
            if merge is not None and merge.format_version != follows.metadata.format_version:
                merge = None  # the table was upgraded since it was prepared
            used = manifest_list.write_appended(
                payload.io,
                listed.location,
                head=listed.head,
                added=listed.added,
                merged=merge.merged if merge else None,
                replaced=merge.replaced if merge else frozenset(),
                clean=listed.clean,
                metadata=follows.metadata,
                snapshot_id=listed.snapshot_id,
                parent_snapshot_id=listed.parent_snapshot_id,
                sequence_number=listed.sequence_number,
                known=self._coordinator.lists,
            )
            if listed.merge is not None and not (merge and used):
                payload.unused.append(listed.merge.merged.manifest_path)

    def _discard(self, plan: Planned) -> None:
        payload: Payload = plan.payload
        self._coordinator.cache.drop(plan.location)
        for path in payload.written:
            delete_quietly(payload.io, path)

    def _compare_and_set(self, plan: Planned) -> SwapResult:
        store, table = self._coordinator.store, self._attempt.table
        if self._lease_id is None:
            return store.swap(table, plan.base, plan.location)
        return store.swap_under_lease(self._lease_id, table, plan.base, plan.location)

    def _confirm(self, plan: Planned) -> Where:
        assert self._lease is not None
        if self._coordinator.store.wait_for_unconditional_writers(self._attempt.table, plan.location, self._lease):
            self._drained.add(plan.location)
        return self._locate(plan) if plan.location in self._drained else Where.IN_LOG

    def _locate(self, plan: Planned) -> Where:
        """Walk the metadata log back from the pointer, through older metadata files where it was trimmed."""
        coordinator = self._coordinator
        try:
            pointer = coordinator.store.pointer(self._attempt.table)
            if pointer == plan.location:
                return Where.IN_LOG
            if pointer == plan.base:
                return Where.STILL_BASE
            while pointer is not None:
                metadata = coordinator.read(pointer)
                log = [entry.metadata_file for entry in metadata.metadata_log]
                if plan.location in log:
                    return Where.IN_LOG
                if plan.base in log:
                    return Where.NOT_IN_LOG
                if plan.base is None and (not log or str(metadata.table_uuid) != self._uuid(plan)):
                    return Where.NOT_IN_LOG
                pointer = log[0] if log and log[0] != pointer else None
        except Exception:
            logger.warning("the outcome of a commit could not be read yet", exc_info=True)
        return Where.UNDECIDED

    @staticmethod
    def _uuid(plan: Planned) -> str:
        payload: Payload = plan.payload
        return str(payload.metadata.table_uuid)

    def _outcome(self, verdict: Verdict) -> Committed:
        attempt = self._attempt
        facts = {"table": table_name(attempt.table), "request_id": attempt.request_id}
        if verdict.status is CommitStatus.UNKNOWN:
            raise CommitStateUnknown(
                "whether the commit landed could not be found out; every file is kept",
                **facts,
                location=verdict.plan.location if verdict.plan else None,
                reason=verdict.reason or None,
            ) from verdict.error
        if verdict.status is CommitStatus.FAILURE and self._repeatable and not self._is_the_last(verdict):
            doubt = (
                "this commit did not land, but an earlier one of this request may still"
                if self._lacking
                else "whether an earlier commit of this request landed could not be found out"
            )
            raise CommitStateUnknown(f"{doubt}: {verdict.reason}", **facts) from verdict.error
        if verdict.status is CommitStatus.FAILURE:
            if verdict.cause in (Cause.LOCK, Cause.PHASE):
                raise CommitLockFailed(f"the commit did not land: {verdict.reason}", **facts) from verdict.error
            if isinstance(verdict.error, StatementError):  # its own words say which files are to be kept
                raise verdict.error
            if verdict.cause is Cause.CONFLICT:
                raise CommitConflict(f"the commit did not land: {verdict.reason}", **facts) from verdict.error
            raise CommitNotApplied(f"the commit did not land: {verdict.reason}", **facts) from verdict.error
        if verdict.answered is not None:
            found: Committed | JournalEntry = verdict.answered.payload
            if not isinstance(found, JournalEntry):
                return found
            if self._repeatable:
                self._remember(replace(found, request_id=attempt.request_id))
            return self._carried_along(found)
        assert verdict.plan is not None
        payload: Payload = verdict.plan.payload
        if self._repeatable:
            self._remember(self._entry(attempt, payload.own, verdict, attempt.request_id))
        for path in (*payload.unused, *payload.superfluous):
            delete_quietly(payload.io, path)
        _delete_old_metadata(payload)
        if not payload.carried:
            own = payload.own
            return Committed(metadata=own.metadata, location=verdict.plan.location, snapshot_ids=own.snapshot_ids)
        return _published(payload.metadata, verdict.plan.location, payload.own.snapshot_ids)

    def _is_the_last(self, verdict: Verdict) -> bool:
        """Return whether no earlier commit of our request is there or ever will be, now that this one has failed.

        1. An earlier one sends its swap and is interrupted; the swap is late.   2. We look for it, and it is not there.
        3. We fail, for want of space.   4. The swap finds the head that it was planned on, and lands.

        It was planned on none later than the first one that we looked into: in a later head it would be found. And
        what is refused on a head was not planned on it before.
        """
        refused = verdict.cause is Cause.CONFLICT and verdict.plan is None
        return refused or len(self._lacking) > 1

    def _remember(self, entry: JournalEntry) -> None:
        if not self._coordinator.locks.guarantees.journal:
            return
        try:
            self._coordinator.locks.remember(entry, lifetime_ms=self._coordinator.journal_lifetime_ms)
        except Exception:
            # The commit has landed; its summary and file name still carry the request id.
            logger.warning("the journal did not take request %s", entry.request_id, exc_info=True)


def _published(metadata: TableMetadata, location: str, snapshot_ids: tuple[int, ...]) -> Committed:
    """Return the commit of *snapshot_ids*, the table as of the last of them."""
    return Committed(metadata=lean.as_of(metadata, snapshot_ids[-1]), location=location, snapshot_ids=snapshot_ids)


def _carried(verdict: Verdict) -> list[tuple[Member, Follows]]:
    """Return what was published along with our own attempt."""
    if verdict.status is not CommitStatus.SUCCESS or verdict.plan is None:
        return []
    payload: Payload = verdict.plan.payload
    return payload.carried


def _delete_old_metadata(payload: Payload) -> None:
    """Delete the metadata files that fell out of the log, when the table's properties ask for it.

    Nobody waits for it but the end of the process: to free the pages of a long history takes a sixth of an append, and
    with an object store it is a round trip.
    """
    metadata = payload.metadata
    if payload.base is None or not property_as_bool(
        metadata.properties, "write.metadata.delete-after-commit.enabled", False
    ):
        return

    kept = {entry.metadata_file for entry in metadata.metadata_log}
    for path in [entry.metadata_file for entry in payload.base.metadata_log if entry.metadata_file not in kept]:
        try:
            ExecutorFactory.get_or_create().submit(delete_quietly, payload.io, path)
        except RuntimeError:  # The interpreter is ending, and takes no more work.
            delete_quietly(payload.io, path)
