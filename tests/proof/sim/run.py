"""One run: real coordinators with real lock managers write one table in a simulated world, and it is proved right."""

from __future__ import annotations

import gc
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Self
from unittest.mock import patch

import orjson
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.types import LongType, NestedField

from commit_coord.catalog.metastore.offers import StoredOffers
from commit_coord.catalog.migration import TableMoves
from commit_coord.coordinator import Committed, Coordinator, Replanner
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, LockError, LockTimeout, MetastoreUnavailable
from commit_coord.events import Events
from commit_coord.hms.connection import MetastoreServerFailed
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Append as AppendAttempt
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.rebase import Rebased, rebase
from commit_coord.locks import memory_space
from commit_coord.locks.base import Lease, LockSettings
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.keeping import HeartbeatLease
from commit_coord.locks.migration.lease import MigratingLease
from commit_coord.locks.none import NoneLockManager
from commit_coord.locks.zookeeper.layout import HIVE_NAMESPACE, NodeLayout
from commit_coord.model import LeaseState, LockMode, LockRequest, LockScope, LockState, Resource
from commit_coord.protocol.commit import SwapResult, TryLimits
from commit_coord.protocol.lease import LeaseEvent, next_state
from commit_coord.protocol.migration import Phase, State
from commit_coord.testing.history import (
    Answer,
    Append,
    Body,
    Call,
    Hold,
    check_appends,
    check_changes,
    check_files,
    check_holds,
    check_line,
    check_register,
    check_snapshots,
)
from tests.proof.sim.bugs import LoggedBugs, bug_in
from tests.proof.sim.locking import LockDatabase, SimulatedLeaseManager, SimulatedMemoryManager
from tests.proof.sim.metastore import SimulatedHmsManager, SimulatedMetastore, StockLocks
from tests.proof.sim.moving import (
    MovingClient,
    SimulatedGuards,
    SimulatedHms,
    SimulatedZooKeeper,
    check_phases,
)
from tests.proof.sim.plan import Job, Kind, Locks, Plan, Writer
from tests.proof.sim.services import Client, Condition, Files, Pointers, SimulatedFileIO, short
from tests.proof.sim.world import (
    CALM,
    Event,
    Fault,
    NoAnswer,
    Outage,
    Process,
    Service,
    Thread,
    Unreachable,
    World,
    owner_of,
)
from tests.proof.sim.zookeeper import Ensemble, SimulatedZooKeeperManager, parent_of

TABLE = ("db", "t")
LATCH = Resource.table(TABLE)
MARK = "sim-mark"
_SAW = "sim-saw"
_REGISTER = "sim-register"
_END = 10_000.0
"""Seconds after which a process that is not done hangs."""
_LEASE = LockSettings(heartbeat_interval_ms=5_000)
"""With the longest heartbeat that may be set, so leases become as old as they may."""
_MANIFEST = b"Obj\x01" + 2 * b"16 bytes of sync"
"""What a commit looks at of a manifest: that it is a whole Avro file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run showed: its history, and what does not hold."""

    plan: Plan
    history: tuple[Event, ...]
    broken: tuple[str, ...]
    acknowledged: int
    refused: int
    unknown: int

    @property
    def digest(self) -> str:
        """Names the history."""
        return hashlib.sha256("\n".join(map(str, self.history)).encode()).hexdigest()


def simulate(plan: Plan) -> Outcome:
    """Run *plan*. The same plan gives the same outcome."""
    with Run.of(plan) as run:
        return run.outcome()


class Inline(Executor):
    """Does at once, in the simulated thread that asks."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it, and return what is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the result
            future.set_exception(error)
        return future


@cache
def _created() -> TableMetadata:
    """Return the table as it is created, the same in every run."""
    return fast_metadata.as_fast(
        new_table_metadata(
            schema=Schema(NestedField(1, "id", LongType(), required=False)),
            partition_spec=UNPARTITIONED_PARTITION_SPEC,
            sort_order=UNSORTED_SORT_ORDER,
            location="sim://t",
            properties={_REGISTER: "0"},
            table_uuid=uuid.UUID(int=1),
        )
    ).model_copy(update={"last_updated_ms": 1_600_000_000_000})


def _manifest(path: str, snapshot_id: int) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=path,
        manifest_length=len(_MANIFEST),
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=-1,
        min_sequence_number=-1,
        added_snapshot_id=snapshot_id,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[],
    )


class Run:
    """The world of one plan and what was observed in it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = world = World(plan.seed)
        self.appends: dict[str, Append] = {}
        self.calls: list[Call] = []
        self.holds: list[Hold] = []
        """Operation locks that were held to the end."""
        self.broken: list[str] = []
        self.done: set[str] = set()
        self._process: Process | None = None
        self._leases: list[tuple[Process, str, Lease]] = []
        self._threads: dict[str, Thread] = {}
        """Whose each request is that was granted."""
        # As on one host, where a process can be looked up; a server's clients are on hosts of their own.
        world.host.is_one = plan.locks is Locks.HOST or plan.one_host
        pointer_service = Service(world, "pointer", plan.pointer_weather, patience=10.0)
        # What is lost on the way from one host's memory to itself is nothing; only time passes.
        lock_service = Service(world, "locks", plan.lock_weather, patience=plan.lock_patience)
        other_service = Service(world, "zookeeper", plan.lock_weather, patience=5.0)
        self.files = Files(Service(world, "files", plan.file_weather))
        length = {
            "write.metadata.previous-versions-max": str(plan.log_length),
            "write.metadata.delete-after-commit.enabled": str(plan.deletes_old).lower(),
        }
        created = self.created()
        if plan.move is not None and plan.move.begins is not Phase.HMS:
            length |= State(phase=Phase.HMS, epoch=0).changed_to(plan.move.begins)
        created = created.model_copy(update={"properties": {**created.properties, **length}})
        location = "sim://t/metadata/00000-created.metadata.json"
        self.files.content[location] = fast_metadata.dump(created, location)
        self.pointers = Pointers(pointer_service, plan.condition, location)
        self.locks = LockDatabase(
            lock_service,
            lambda: world.now,
            remote=plan.locks in (Locks.SERVER, Locks.MIGRATING),
            forgets=any(outage.forgets for outage in plan.outages),
        )
        self.zookeeper = LockDatabase(other_service, lambda: world.now, remote=True)
        """Where the locks go, in runs in which the table moves there."""
        self.metastore = SimulatedMetastore(lock_service, plan.metastore) if plan.locks is Locks.HMS else None
        self.ensemble = Ensemble(lock_service)
        self.name = f"run {plan.seed}"
        for outage in plan.outages:
            self._away(pointer_service if outage.service == "pointer" else lock_service, outage)
        world.mourners.append(self._bury)
        self._writers = {writer.name: writer for writer in plan.writers}
        self._operators = [writer.name for writer in plan.writers if writer.kind is Kind.OPERATOR]
        self._lives = {writer.name: writer.lives for writer in plan.writers}
        self._left = {
            writer.name: [list(enumerate(writer.jobs))[thread :: writer.threads] for thread in range(writer.threads)]
            for writer in plan.writers
        }
        for writer in plan.writers:
            faults = {fault.step: fault for fault in plan.faults if fault.process == writer.name}
            self._start(writer, faults, after=writer.begins)

    def created(self) -> TableMetadata:
        """Return the table as it is at first."""
        return _created()

    def replaced(self) -> Iterable[tuple[Any, str, Any]]:
        """Return what is replaced of other libraries while the run lasts: whose it is, its name, and by what."""
        return ()

    @classmethod
    @contextmanager
    def of(cls, plan: Plan) -> Iterator[Self]:
        """Run *plan* with everything that is random or a thread replaced by what the seed says."""
        run = cls(plan)
        enabled = gc.isenabled()
        gc.disable()  # what is collected when must not depend on the runs before
        try:
            with ExitStack() as stack:
                # Nobody reads what is logged: what goes wrong here is meant to, except for bugs.
                stack.enter_context(patch.object(logging.root, "handlers", [LoggedBugs(run.broken)]))
                for owner, name, value in run.replaced():
                    stack.enter_context(patch.object(owner, name, value))
                stack.enter_context(run.world.ending())
                run.world.run(until=_END)
                run.look_at_locks()
                if run.metastore is not None:
                    run.look_at_metastore(run.metastore)
                yield run
        finally:
            memory_space.SPACES.pop((run.name, ""), None)
            run.locks.db.close()
            run.zookeeper.db.close()
            if enabled:
                gc.enable()

    # Processes.

    def _start(self, writer: Writer, faults: dict[int, Fault], *, after: float) -> None:
        process = Process(self.world, writer.name, faults, rate=writer.rate)
        self.world.host.processes.append(process)
        self.world.start(process, lambda: self._live(process, writer, self.kinds()[writer.kind]), after=after)

    def kinds(self) -> dict[Kind, Callable[[Process, Writer], None]]:
        """Return how each kind of writer lives."""
        return {
            Kind.OURS: self._be_ours,
            Kind.ONLY_COMPARES: self._be_comparer,
            Kind.ONLY_LOCKS: self._be_locker,
            Kind.OPERATOR: self._be_operator,
            Kind.ADMINISTRATOR: self._be_administrator,
        }

    def _live(self, process: Process, writer: Writer, be: Callable[[Process, Writer], None]) -> None:
        try:
            be(process, writer)
        except KeyboardInterrupt:
            process.note("ends by the interrupt")
        process.note("is done")
        self.done.add(writer.name)

    def _bury(self, process: Process) -> None:
        """Start a process again that died, as a scheduler of such jobs does."""
        self._lives[process.name] -= 1
        if self._lives[process.name]:
            later = 1.0 + 20 * self.world.random.random()
            self._start(self._writers[process.name], {}, after=later)
        else:
            self.done.add(process.name)

    def _away(self, service: Service, outage: Outage) -> None:
        def leave() -> None:
            service.away = True
            self.world.note(service.name, "is away")
            if service.name == "locks":
                self.locks.forget_listeners()
                if self.metastore is not None:
                    self.metastore.starts += 1
                self.ensemble.leave()
                if outage.forgets:
                    self.locks.crash()

        def come_back() -> None:
            service.away = False
            if service.name == "locks":
                self.ensemble.come_back()
            self.world.note(service.name, "is back")

        self.world.at(outage.begins, leave)
        self.world.at(outage.ends, come_back)

    def manager(self, process: Process, client: Client) -> HandoverLockManager:
        """Return the process's lock manager; what it grants is observed."""
        if self.plan.locks is Locks.NONE:
            return NoneLockManager()

        def granted(lease: Lease) -> None:
            if lease.request.scope is LockScope.COMMIT:
                client.latch = lease
            self._granted(process, lease)

        if self.plan.locks is Locks.MEMORY:
            return SimulatedMemoryManager(process, self.name, _LEASE, granted)
        if self.plan.locks is Locks.MIGRATING:
            return self._hms(process, ours=False)
        kind = self._writers[process.name].kind
        prompt = self.plan.condition is Condition.IGNORES or kind is Kind.ONLY_LOCKS
        if self.metastore is not None:
            files = StoredOffers(lambda _: client.io, client, map)
            return SimulatedHmsManager(process, self.metastore, _LEASE, granted, prompt=prompt, files=files)
        several = kind is Kind.SERVER
        if self.plan.locks is Locks.ZOOKEEPER:
            return SimulatedZooKeeperManager(
                process, self.ensemble, _LEASE, granted, prompt=prompt, several_threads=several
            )
        return SimulatedLeaseManager(process, self.locks, _LEASE, granted, prompt=prompt, several_threads=several)

    def _hms(self, process: Process, *, ours: bool) -> SimulatedHms:
        def granted(lease: Lease) -> None:
            self._granted(process, lease, "hms")

        return SimulatedHms(process, self.locks, _LEASE, granted, prompt=not ours, ours=ours)

    def _coordinator(self, process: Process, believed: Phase | None) -> tuple[Client, Coordinator]:
        """Return a process's client and coordinator, as a catalog makes them."""
        options: dict[str, Any] = {
            "acquire_timeout_ms": self.plan.acquire_timeout_ms,
            "clock": process.clock,
            "events": Events(),
            "journal_lifetime_ms": 3_600_000,
            "group_max_size": self.plan.group_max_size,
            "limits": TryLimits(),
            "host": process.world.host,
            "executor": Inline,
        }
        if self.plan.move is None:
            client = self.client(process)
            return client, Coordinator(client, self.manager(process, client), **options)

        def granted(lease: Lease) -> None:
            self._granted(process, lease, "zookeeper")

        hms = self._hms(process, ours=True)
        zookeeper = SimulatedZooKeeper(process, self.zookeeper, _LEASE, granted, prompt=False)
        guards = SimulatedGuards(process, lambda: self._hms(process, ours=False), trusted_s=15.0)
        moving = MovingClient(
            process, self.pointers, self.files, hms=hms, zookeeper=zookeeper, guards=guards, believed=believed
        )
        moving.coordinator = Coordinator(moving, moving.locks, metadata=moving.metadata, **options)
        return moving, moving.coordinator

    def client(self, process: Process) -> Client:
        """Return the process's client of pointers and files."""
        shares = any(writer.kind is Kind.ONLY_LOCKS for writer in self.plan.writers)
        return Client(process, self.pointers, self.files, shares_latch=shares)

    def _granted(self, process: Process, lease: Lease, service: str = "") -> None:
        process.note(f"holds {lease.request}{service and ' in '}{service}, generation {lease.generation}")
        if lease.request.explicit:
            return  # a guard is nobody's
        if not _believes(process, lease):
            process.note("was stopped for longer than that lease, and finds it lost")
            return
        wanted = dict(lease.request.locks)
        mine = self._threads[lease.request.request_id] = self.world.expected()[0]
        present = []
        for other, where, held in self._leases:
            if not (other.alive and _believes(other, held)):
                continue
            present.append((other, where, held))
            clash = (
                where == service
                and held.request.scope is lease.request.scope
                and any(
                    name in wanted and LockMode.EXCLUSIVE in (mode, wanted[name]) for name, mode in held.request.locks
                )
            )
            if clash and self._threads[held.request.request_id] is not mine and self.plan.belief_is_true:
                self.broken.append(
                    f"BeliefIsTrue: {other.name} believes to hold {held.request} when {process.name} is granted it"
                )
        self._leases = [*present, (process, service, lease)]

    # What writers do.

    def _be_ours(self, process: Process, writer: Writer) -> None:
        believed = self.plan.move.believed if self.plan.move is not None and process.name == "w1" else None
        client, coordinator = self._coordinator(process, believed)
        client.take_latch = lambda: coordinator.latch(TABLE)
        lanes = self._left[process.name]
        ended: list[int] = []

        def work(lane: int) -> None:
            self.work(process, coordinator, lanes[lane])
            ended.append(lane)

        for lane in range(1, len(lanes)):
            self.world.start(process, partial(work, lane))
        work(0)
        while len(ended) < len(lanes):
            process.clock.sleep(0.1)
        coordinator.locks.close()

    def work(self, process: Process, coordinator: Coordinator, jobs: list[tuple[int, Job]]) -> None:
        """Do *jobs*, one after the other. Each is taken from the list when it is not to be done again."""
        while jobs:
            number, job = jobs[0]
            mark = f"{process.name}.{number}"
            match job:
                case Job.APPEND:
                    jobs.pop(0)
                    self._append(process, coordinator, mark)
                case Job.NAMED_APPEND:
                    self._append_until_answered(process, coordinator, mark)
                    jobs.pop(0)
                case Job.OVERWRITE:
                    jobs.pop(0)
                    self._overwrite(process, coordinator, mark)
                case Job.REGISTER:
                    jobs.pop(0)
                    self._set_register(process, coordinator, mark)
                case Job.LOCKED_APPEND | Job.TABLE_APPEND:
                    jobs.pop(0)
                    partition = ("k=1",) if job is Job.LOCKED_APPEND else ()
                    self._append_locked(process, coordinator, mark, Resource.table(TABLE, *partition))

    def _append(
        self,
        process: Process,
        coordinator: Coordinator,
        mark: str,
        *,
        request_id: str | None = None,
        operation_lease: Lease | None = None,
    ) -> Answer:
        try:
            head, location = coordinator.load(TABLE)
            attempt = self._attempt(process, head, location, mark, request_id)
        except (OSError, NoAnswer, Unreachable):
            process.note(f"{mark}: the table can't be read")
            return Answer.UNKNOWN
        answer, _ = self._commit(
            process, coordinator, attempt, mark, repeatable=request_id is not None, operation_lease=operation_lease
        )
        if answer is Answer.REFUSED and request_id is None:
            self._clean(attempt)
        return answer

    def _append_until_answered(self, process: Process, coordinator: Coordinator, mark: str) -> None:
        request_id = str(uuid.UUID(int=self.plan.seed << 64 | hash_of(mark), version=4))
        for _ in range(5):
            if self._append(process, coordinator, mark, request_id=request_id) is Answer.ACKNOWLEDGED:
                return
            process.clock.sleep(1.0 + process.clock.random())

    def _append_locked(self, process: Process, coordinator: Coordinator, mark: str, resource: Resource) -> None:
        request = LockRequest.of(
            LockScope.OPERATION,
            {resource: LockMode.EXCLUSIVE},
            owner=owner_of(process, mark),
            request_id=str(self.world.host.new_id()),
        )
        try:
            lease = coordinator.locks.acquire(request, deadline=process.clock.now() + 60)
        except LockError as error:
            process.note(f"{mark}: no lock, {type(error).__name__}")
            return
        begins = self.world.now
        with lease:
            self._append(process, coordinator, mark, operation_lease=lease)
            if _believes(process, lease) and self.plan.belief_is_true:
                self.holds.append(Hold(who=mark, locks=request.locks, begins=begins, ends=self.world.now))

    def _overwrite(self, process: Process, coordinator: Coordinator, mark: str) -> None:
        request_id = str(self.world.host.new_id())
        try:
            head, location = coordinator.load(TABLE)
            attempt = self._replanned(process, head, location, mark, request_id)
        except (OSError, NoAnswer, Unreachable):
            process.note(f"{mark}: the table can't be read")
            return

        def replan(head: TableMetadata, location: str) -> Attempt:
            process.note(f"{mark} is planned again on {short(location)}")
            return self._replanned(process, head, location, mark, request_id)

        self._commit(process, coordinator, attempt, mark, replan=replan)

    def _set_register(self, process: Process, coordinator: Coordinator, mark: str) -> None:
        begins = self.world.now
        try:
            head, location = coordinator.load(TABLE)
        except (OSError, NoAnswer, Unreachable):
            return
        saw = head.properties[_REGISTER]
        self.calls.append(Call(saw=saw, begins=begins, ends=self.world.now))
        attempt = Attempt(
            request_id=str(self.world.host.new_id()),
            table=TABLE,
            table_uuid=str(head.table_uuid),
            base_location=location,
            base_sequence_number=fast_metadata.sequence_number(head),
            updates=(SetPropertiesUpdate(updates={_REGISTER: mark}),),
            properties_read={_REGISTER: saw},
        )
        call = Call(saw=saw, wrote=mark, begins=self.world.now)
        self.calls.append(call)
        answer, _ = self._commit(process, coordinator, attempt, mark, is_append=False)
        if answer is not Answer.UNKNOWN:
            self.calls.remove(call)
        if answer is Answer.ACKNOWLEDGED:
            self.calls.append(replace(call, ends=self.world.now))

    def _be_operator(self, process: Process, writer: Writer) -> None:
        """Bring the table to where it shall be, again and again until it is there."""
        assert self.plan.move is not None
        client, coordinator = self._coordinator(process, None)
        assert isinstance(client, MovingClient)
        target = self.plan.move.ends[self._operators.index(writer.name)]
        for _ in range(30):
            moved = TableMoves(client, client.migrating, host=process.world.host).move(TABLE, target)
            process.note(f"to {target}: {moved.outcome}, {moved.after} {moved.reason}")
            if moved.phase is target:
                break
            process.clock.sleep(2.0)
        coordinator.locks.close()

    def _be_administrator(self, process: Process, writer: Writer) -> None:
        """Free by force what waits, every few seconds."""
        manager = self.manager(process, self.client(process))
        for _ in range(10):
            process.clock.sleep(4 * process.clock.random())
            with suppress(LockError, MetastoreUnavailable, MetastoreServerFailed):
                waiting = [entry for entry in manager.locks(LATCH) if entry.state is LockState.WAITING]
                if waiting:
                    one = waiting[int(len(waiting) * process.clock.random())]
                    process.note(f"frees what {one.owner.user} waits for")
                    manager.unlock(request_id=one.request_id)
        manager.close()

    def _be_comparer(self, process: Process, writer: Writer) -> None:
        """Write as those do that compare and set, and take no lock."""
        client = self.client(process)
        for number, _ in self._left[process.name][0]:
            mark = f"{process.name}.{number}"
            self.appends[mark] = Append(mark=mark, answer=Answer.UNKNOWN)
            for _ in range(5):
                if self._put(process, client, mark, client.swap_once) is not Answer.REFUSED:
                    break

    def _be_locker(self, process: Process, writer: Writer) -> None:
        """Write as those do that take the common lock, and set without a condition."""
        client = self.client(process)
        if self.metastore is not None:
            # Where locks are reaped nobody tells them that theirs was: what they believe is nothing to go by.
            told = partial(self._granted, process) if self.plan.metastore.timeout is None else lambda lease: None
            manager: HandoverLockManager | StockLocks = StockLocks(process, self.metastore, told)
        else:
            manager = self.manager(process, client)
        for number, _ in self._left[process.name][0]:
            mark = f"{process.name}.{number}"
            self.appends[mark] = Append(mark=mark, answer=Answer.UNKNOWN)
            request = LockRequest.of(
                LockScope.COMMIT,
                {LATCH: LockMode.EXCLUSIVE},
                owner=owner_of(process, mark),
                request_id=str(self.world.host.new_id()),
            )
            try:
                lease = manager.acquire(request, deadline=process.clock.now() + 60)
            except LockError:
                continue

            def alter(base: str, location: str, lease: Lease = lease) -> SwapResult:
                lease.ensure_active(0)
                with process.deaf():  # else their lock is given back while what they sent is under way
                    return client.alter(base, location)

            with lease:
                self._put(process, client, mark, alter)
        manager.close()

    def _put(self, process: Process, client: Client, mark: str, swap: Callable[[str, str], SwapResult]) -> Answer:
        """Append without a coordinator, in one try."""
        try:
            base = client.pointer(TABLE)
            assert base is not None
            head = fast_metadata.read(client.io, base)
            attempt = self._attempt(process, head, base, mark, None)
            now_ms, file_id = process.clock.wall_ms(), str(self.world.host.new_id())
            made = rebase(attempt, head, base, generation=None, now_ms=now_ms, file_id=file_id)
            assert isinstance(made, Rebased)
            assert made.manifest_list is not None
            plan = made.manifest_list
            manifest_list.write_appended(
                client.io, plan.location, head=plan.head, added=plan.added, clean=plan.clean, metadata=made.metadata,
                snapshot_id=plan.snapshot_id, parent_snapshot_id=plan.parent_snapshot_id,
                sequence_number=plan.sequence_number,
            )  # fmt: skip
            location = f"sim://t/metadata/{_next_version(base)}-{self.world.host.new_id()}.metadata.json"
            with client.io.new_output(location).create() as stream:
                stream.write(fast_metadata.dump(made.metadata, location))
            result = swap(base, location)
        except (OSError, NoAnswer, Unreachable, LockError) as error:
            process.note(f"{mark}: {type(error).__name__}")
            return Answer.REFUSED
        if result is SwapResult.SWAPPED:
            self.appends[mark] = Append(mark=mark, answer=Answer.ACKNOWLEDGED)
            process.note(f"{mark}: acknowledged")
            return Answer.ACKNOWLEDGED
        process.note(f"{mark}: {result.name}")
        return Answer.REFUSED if result is SwapResult.MOVED else Answer.UNKNOWN

    # Commits.

    def look_for_bug(self, error: Exception) -> None:
        """Note that the run is broken if *error*, in which a call ended, comes from a bug."""
        if (bug := bug_in(error)) is not None:
            self.broken.append(bug)

    def _commit(
        self,
        process: Process,
        coordinator: Coordinator,
        attempt: Attempt,
        mark: str,
        *,
        is_append: bool = True,
        replan: Replanner | None = None,
        repeatable: bool = False,
        operation_lease: Lease | None = None,
    ) -> tuple[Answer, Committed | None]:
        if is_append:
            self.appends[mark] = Append(mark=mark, answer=Answer.UNKNOWN)
        process.note(f"commits {mark}")
        committed: Committed | None = None
        try:
            (committed,) = coordinator.commit(
                [attempt], replan=replan, repeatable=repeatable, operation_lease=operation_lease
            )
            answer, why = Answer.ACKNOWLEDGED, f"in {short(committed.location)}"
        except (CommitNotApplied, CommitStateUnknown) as error:
            answer = Answer.REFUSED if isinstance(error, CommitNotApplied) else Answer.UNKNOWN
            why = _why(error)
            self.look_for_bug(error)
        except KeyboardInterrupt:
            answer, why = Answer.UNKNOWN, "interrupted"
        process.note(f"{mark}: {answer}, {why}")
        mine = self.world.expected()[0]
        own = [lease for _, _, lease in self._leases if self._threads[lease.request.request_id] is mine]
        if any(lease.request.scope is LockScope.COMMIT and lease.state is LeaseState.HELD for lease in own):
            self.broken.append(f"FreeInTheEnd: {process.name} holds the latch after {mark}")
        if is_append:
            snapshot_id = committed.snapshot_ids[-1] if committed else None
            self.appends[mark] = Append(mark=mark, answer=answer, snapshot_id=snapshot_id)
        return answer, committed

    def _attempt(
        self, process: Process, head: TableMetadata, location: str, mark: str, request_id: str | None
    ) -> Attempt:
        """Write a data file and its manifest, and return what is to be committed."""
        made = request_id or str(self.world.host.new_id())
        snapshot_id = hash_of(made)
        path = f"sim://t/metadata/{mark}-{self.world.host.new_id()}-m0.avro"
        self.files.content[path] = _MANIFEST
        return Attempt(
            request_id=made,
            table=TABLE,
            table_uuid=str(head.table_uuid),
            base_location=location,
            base_sequence_number=fast_metadata.sequence_number(head),
            append=AppendAttempt(
                snapshot_id=snapshot_id,
                branch="main",
                manifests=(_manifest(path, snapshot_id),),
                summary={"added-data-files": "1", "added-records": "1", MARK: mark},
                schema_id=0,
            ),
        )

    def _clean(self, attempt: Attempt) -> None:
        """Delete what was written for an attempt that was refused, as PyIceberg does."""
        assert attempt.append is not None
        for manifest in attempt.append.manifests:
            self.files.content.pop(manifest.manifest_path, None)

    def _replanned(self, process: Process, head: TableMetadata, location: str, mark: str, request_id: str) -> Attempt:
        """Return a snapshot that is right on *head* alone."""
        snapshot_id = self.world.random.getrandbits(62)
        parent = head.current_snapshot()
        listed = f"sim://t/metadata/snap-{snapshot_id}-{self.world.host.new_id()}.avro"
        io = self.client(process).io
        manifest_list.write_appended(
            io, listed, head=parent.manifest_list if parent else None, added=(), metadata=head,
            snapshot_id=snapshot_id, parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=head.next_sequence_number(),
        )  # fmt: skip
        saw = str(parent.snapshot_id) if parent else "nothing"
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=head.next_sequence_number(),
            timestamp_ms=process.clock.wall_ms(),
            manifest_list=listed,
            summary=Summary(Operation.OVERWRITE, **{MARK: mark, _SAW: saw}),
            schema_id=0,
        )
        return Attempt(
            request_id=request_id,
            table=TABLE,
            table_uuid=str(head.table_uuid),
            base_location=location,
            base_sequence_number=fast_metadata.sequence_number(head),
            requirements=(AssertRefSnapshotId(ref="main", snapshot_id=parent.snapshot_id if parent else None),),
            updates=(
                AddSnapshotUpdate(snapshot=snapshot),
                SetSnapshotRefUpdate(
                    ref_name="main",
                    type=SnapshotRefType.BRANCH,
                    snapshot_id=snapshot_id,
                    max_ref_age_ms=None,
                    max_snapshot_age_ms=None,
                    min_snapshots_to_keep=None,
                ),
            ),
            reads_data=True,
        )

    # The proof.

    def look_at_locks(self) -> None:
        """FreeInTheEnd: everybody is done, and what the dead left has expired."""
        hanging = self._writers.keys() - self.done
        if hanging:
            self.broken.append(f"FreeInTheEnd: not done: {', '.join(sorted(hanging))}")
        if self.plan.locks in (Locks.HOST, Locks.SERVER, Locks.MIGRATING):
            left = [
                row
                for service in (self.locks, self.zookeeper)
                for row in service.db.execute(
                    "SELECT owner_user, request_id FROM commit_coord_requests WHERE expires_at > ?",
                    (int(self.world.now * 1000),),
                ).fetchall()
            ]
            self.broken += [f"FreeInTheEnd: {owner} still has request {request}" for owner, request in left]
        elif self.plan.locks is Locks.ZOOKEEPER:
            layout = NodeLayout(HIVE_NAMESPACE, "")
            below = [layout.requests, parent_of(layout.offer("-"))]
            self.broken += [f"FreeInTheEnd: {path} is still there" for path in self.ensemble.left(below)]
        elif self.plan.locks is Locks.MEMORY:
            left = memory_space.space_of(self.name, "").tickets()
            self.broken += [f"FreeInTheEnd: {one.request.owner.user} still has {one.request}" for one, _ in left]

    def look_at_metastore(self, metastore: SimulatedMetastore) -> None:
        """FreeInTheEnd: those who live have left nothing, and what the dead left is in the way of the next one no more.

        What came late belongs to nobody any more: it too stays until somebody waits for it. What is not ours stays.
        """
        never_died = {name for name, writer in self._writers.items() if self._lives[name] == writer.lives}
        for row in metastore.ours():
            in_time = row.came - row.sent <= _LEASE.lease_ms / 1000
            if row.asked.user in never_died and in_time:
                self.broken.append(f"FreeInTheEnd: {row.asked.user} still has lock {row.lock_id}")
        metastore.service.weather = CALM
        process = Process(self.world, "next", {})

        def come() -> None:
            manager = SimulatedHmsManager(process, metastore, _LEASE, lambda lease: None, prompt=False)
            for scope in LockScope:
                request = LockRequest.of(
                    scope,
                    {LATCH: LockMode.EXCLUSIVE},
                    owner=owner_of(process, ""),
                    request_id=str(self.world.host.new_id()),
                )
                with suppress(LockTimeout), manager.acquire(request, deadline=process.clock.now() + 60):
                    process.note(f"holds {request}")

        self.world.start(process, come)
        self.world.run(until=_END + 200)
        self.broken += [f"FreeInTheEnd: {row.asked.user} left lock {row.lock_id}" for row in metastore.ours()]

    def _body(self, path: str) -> Body:
        body: dict[str, Any] = orjson.loads(self.files.read(path))
        return body

    def look_at_table(self) -> list[str]:
        """Return what does not hold in the table."""
        location, there = self.pointers.location, self.files.content.__contains__
        if broken := check_files([location], there):
            return broken
        body = self._body(location)
        line, broken = check_line(location, self._body)
        if self.plan.deletes_old:
            line = [change.location for change in self.pointers.changes]
        heedless = {writer.name for writer in self.plan.writers if writer.kind is Kind.ONLY_LOCKS}
        broken += check_changes(self.pointers.changes, line, heedless=heedless)
        broken += check_phases([self._body(one) for one in reversed(line)] if self.plan.move is not None else [])
        broken += check_snapshots(body)
        broken += check_appends(self.appends.values(), body, MARK)
        broken += _check_overwrites(body)
        lists = [snapshot["manifest-list"] for snapshot in body["snapshots"]]
        broken += check_files(lists, there)
        if not broken and lists:
            last = manifest_list.read(SimulatedFileIO(None, self.files), lists[-1])
            broken += check_files((one.manifest_path for one in last), there)
            appended = sum(snapshot["summary"]["operation"] == "append" for snapshot in body["snapshots"])
            if len(last) != appended:
                broken.append(f"AcknowledgedStays: the list has {len(last)} of {appended} manifests")
        return broken

    def outcome(self) -> Outcome:
        """Prove the table."""
        broken = [
            *self.world.escaped,
            *self.broken,
            *check_holds(self.holds),
            *check_register(self.calls, "0"),
            *self.look_at_table(),
        ]
        answers = [append.answer for append in self.appends.values()]
        return Outcome(
            plan=self.plan,
            history=tuple(self.world.history),
            broken=tuple(broken),
            acknowledged=answers.count(Answer.ACKNOWLEDGED),
            refused=answers.count(Answer.REFUSED),
            unknown=answers.count(Answer.UNKNOWN),
        )


def _check_overwrites(body: Body) -> list[str]:
    """What was planned on a snapshot comes right after it."""
    return [
        f"Unbroken: {snapshot['summary'][MARK]} was planned on {snapshot['summary'][_SAW]}"
        for snapshot in body["snapshots"]
        if _SAW in snapshot["summary"]
        and snapshot["summary"][_SAW] != str(snapshot.get("parent-snapshot-id") or "nothing")
    ]


def _believes(process: Process, lease: Lease) -> bool:
    """Return whether *process* would find its lease alive if it looked now."""
    if isinstance(lease, MigratingLease):
        return all(_believes(process, part) for part in lease._held)
    state = lease._state
    if isinstance(lease, HeartbeatLease):
        service = lease.keeper.service
        if service.denial(lease.ticket) is not None:
            return False
        confirmed_at, lease_s = service.counted_from(lease.ticket), _LEASE.lease_ms / 1000
        now = process.clock.now()
        state = next_state(state, LeaseEvent.TICK, now=now, last_confirmed_at=confirmed_at, lease=lease_s)
    return state in (LeaseState.HELD, LeaseState.SUSPECT)


def _why(error: BaseException) -> str:
    return str(error).partition(" request_id=")[0]


def _next_version(location: str) -> str:
    return f"{int(location.rpartition('/')[2].partition('-')[0]) + 1:05d}"


def hash_of(text: str) -> int:
    """Return a number of *text* that is the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
