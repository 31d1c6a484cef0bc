"""The locks of tables that move from the metastore to ZooKeeper, and back, while everybody writes.

Theory of operation
    Two lock managers, and for each table the *phase* that says whose locks are taken (``protocol/migration``). A
    request takes what its tables ask for, the metastore's first. What it goes by is what this client last saw of the
    table, so it may be wrong. That is found out once the locks are held: a commit asks the lease
    (:meth:`MigratingLease.lock_mismatch`) with what it reads under the latch; for everybody else :meth:`acquire` looks
    the table up. A request that holds too little or too much lets go, takes what is asked for, and starts over; its
    caller does not notice.

Who waits while holding
    1. A knows ``both``, holds the metastore's lock and waits for ZooKeeper's.
    2. B, in ``zookeeper``, holds ZooKeeper's, and its guard waits for the metastore's: neither goes on.
    So whoever waits for its second lock looks at the phase now and then, and lets go when it has changed.

The guard
    Who asks for the metastore's lock and meets the table's guard (``hms/guard.py``) looks the phase up. Where that asks
    for no guard, somebody died on the way back from ``zookeeper`` before it was removed, or set it too late. It is
    removed under ZooKeeper's latch, so that no phase can ask for it meanwhile.

Operation locks
    They are taken on the sides that the phase asks for, and stay there until they end: the phase leaves ``both`` only
    when none of them stands on the side alone that is about to be left. Locks on databases are taken on both sides.
"""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import LockError, LockRefused, OfferLost
from commit_coord.events import Event, Events, LockAcquired, LockEnded, LockNotAcquired, LockRequested
from commit_coord.locks.acquiring import pause_before_retry
from commit_coord.locks.base import DenyPolicy, Extension, Interrupted, Lease, LockSettings, Policy
from commit_coord.locks.event_emitter import LockEventEmitter
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.hms.requests import Guarded
from commit_coord.locks.migration.writers import Writers
from commit_coord.locks.zookeeper.layout import HIVE_APPLICATION
from commit_coord.locks.zookeeper.manager import ZooKeeperLockManager
from commit_coord.model import (
    Guarantees,
    JournalEntry,
    LeaseState,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    LockState,
    Offer,
    Resource,
)
from commit_coord.process import this_owner
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.migration import HMS, MIGRATING, Phase, State, locks_of

logger = logging.getLogger(__name__)

Phases = dict[Resource, Phase]

_AGAIN = Backoff(initial_ms=20, maximum_ms=500)
"""Between two tries that met a guard."""

_NEVER_MOVED = State(phase=Phase.HMS, epoch=0)


class _Inner(Events):
    """The events of the two managers. A request is one, so what they tell of their parts of it is not passed on.

    But for its end: of a lease that nobody refers to any more they alone hear.
    """

    def __init__(self, outer: Events, ended: Callable[[LockEnded], None]) -> None:
        super().__init__()
        self._outer, self._ended = outer, ended

    @property
    def heard(self) -> bool:
        return self._outer.heard

    def emit(self, event: Event) -> None:
        match event:
            case LockRequested() | LockAcquired() | LockNotAcquired():
                pass
            case LockEnded():
                self._ended(event)
            case _:
                self._outer.emit(event)


class _StepBack(Exception):
    """The phase has changed while the second lock was waited for."""


class _Denied(Exception):
    """The second lock was denied at once."""

    def __init__(self, refused: LockRefused) -> None:
        super().__init__(refused)
        self.refused = refused


class MigratingLease(HandoverLease):
    """What is held of a request in the one manager, in the other, or in both."""

    def __init__(
        self, manager: MigratingLockManager, request: LockRequest, held: Sequence[HandoverLease], phases: Phases
    ) -> None:
        super().__init__(request, held[-1].generation)
        self._manager, self._held, self.phases = manager, tuple(held), phases
        self.is_changing = manager.is_changing
        for lease in held:
            lease.add_listener(_Forward(self))

    @property
    def name(self) -> str:
        """The request id under which the services know it."""
        return self._held[0].request.request_id

    @property
    def state(self) -> LeaseState:
        """See :attr:`Lease.state`: the worse of the two."""
        for lease in self._held:
            self._follow(lease.state)
        return self._state

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """See :meth:`Lease.ensure_active`."""
        for lease in self._held:
            lease.ensure_active(max_age_ms)
        self._raise_if_over()

    def lock_mismatch(self, properties: Mapping[str, str]) -> str | None:
        """See :class:`~commit_coord.coordinator.stores.TableBoundLease`."""
        ((table, phase),) = self.phases.items()
        state = State.of(properties)
        self._manager.seen(table, state)
        if locks_of(state.phase, changing=self.is_changing) == locks_of(phase, changing=self.is_changing):
            return None
        return f"the table is in phase {state}, and the locks of phase {phase} were taken"

    @property
    def was_contended(self) -> bool | None:
        """See :attr:`HandoverLease.was_contended`."""
        return self._held[0].was_contended

    def take(self, limit: int) -> Sequence[Offer]:
        """See :meth:`HandoverLease.take`: of those who wait for the lock that is taken first."""
        return self._held[0].take(limit)

    def settle(self, done: Sequence[JournalEntry], returned: Sequence[str]) -> None:
        """See :meth:`HandoverLease.settle`."""
        self._held[0].settle(done, returned)

    def retract(self) -> bool:
        """See :meth:`HandoverLease.retract`."""
        return self._held[0].retract()

    @property
    def note(self) -> str | None:
        """See :meth:`Lease.note`: ZooKeeper keeps notes, the metastore none."""
        return self._held[-1].handover_note

    def set_handover_note(self, note: str) -> None:
        """See :meth:`HandoverLease.set_handover_note`."""
        self._held[-1].set_handover_note(note)

    def release(self) -> None:
        """See :meth:`Lease.release`. The second lock first: whoever gets the first one finds it free."""
        self._transition(LeaseState.RELEASED)
        for lease in reversed(self._held):
            lease.release()

    def _follow(self, state: LeaseState) -> None:
        """Note that one of the two is in *state*."""
        if state in (LeaseState.LOST, LeaseState.SUSPECT):
            self._transition(state, next((lease._reason for lease in self._held if lease._reason), ""))
        elif state is LeaseState.HELD and all(lease._state is LeaseState.HELD for lease in self._held):
            self._transition(LeaseState.HELD)


class _Forward:
    """Tells a lease of its parts, without keeping it: a lease that nobody refers to is given back."""

    def __init__(self, lease: MigratingLease) -> None:
        self._lease = weakref.ref(lease)

    def __call__(self, _: Lease, state: LeaseState) -> None:
        lease = self._lease()
        if lease is not None and state is not LeaseState.RELEASED:
            lease._follow(state)


class _Heartbeats(Extension):
    """The heartbeats of both managers, paused and resumed together."""

    def __init__(self, *managers: HmsLockManager | ZooKeeperLockManager) -> None:
        self._managers = managers

    def pause(self) -> None:
        for manager in self._managers:
            manager.heartbeat.pause()

    def resume(self) -> None:
        for manager in self._managers:
            manager.heartbeat.resume()

    def stop(self) -> None:
        for manager in self._managers:
            manager.heartbeat.stop()


class MigratingLockManager(HandoverLockManager):
    """Locks in a Hive Metastore, in ZooKeeper, or in both, as each table asks for.

    Args:
        uri: ZooKeeper's servers.
        metastore: The metastore, as :class:`~commit_coord.locks.hms.manager.HmsLockManager` takes it.
        look: Returns the state of a table as it is now; of one that is not there, as it would be made.
        space: As for ZooKeeper.
        settings: Times.
        clock: Where time and chance come from.
        events: Who is told.
        options: Of :class:`~commit_coord.locks.zookeeper.manager.ZooKeeperLockManager`.

    Raises:
        ConfigError: An argument makes no sense, or something is not installed.
    """

    name = MIGRATING
    guarantees = Guarantees(
        mutual_exclusion=True,
        hierarchy=True,
        fifo=False,  # the metastore's is not, and who starts over stands behind the others
        reach="network",
        expiry=True,
        survives_restart=True,
        explicit_locks=True,
        journal=True,
        clock="client",
        carries="process",
    )

    def __init__(
        self,
        uri: str,
        *,
        metastore: str,
        look: Callable[[Resource], State] | None = None,
        space: str = "",
        settings: LockSettings | None = None,
        clock: Clock = SYSTEM_CLOCK,
        events: Events | None = None,
        **options: Any,
    ) -> None:
        self._events, self._clock = events or Events(), clock
        common: dict[str, Any] = {"settings": settings, "clock": clock, "events": _Inner(self._events, self._ended)}
        self.hms = HmsLockManager(metastore, **common)
        self.zookeeper = ZooKeeperLockManager(uri, space=space, **common, **options)
        self.settings = self.hms.settings
        self.look = look or (lambda _: _NEVER_MOVED)
        self.unguard: Callable[[Resource], bool] = lambda _: False
        """Removes the guards of a table, called under ZooKeeper's latch; false if they are of other lock managers."""
        self.moved: Callable[[Resource, State], None] = lambda *_: None
        """Told when a table was seen in another state than before."""
        self.writers = Writers(lambda: self.zookeeper.session, self.zookeeper.layout, lambda: self.hms.client, clock)
        self._states: dict[Resource, State] = {}
        self._leases: weakref.WeakValueDictionary[str, MigratingLease] = weakref.WeakValueDictionary()
        self._telling = LockEventEmitter(self._events, clock)
        self._thread = threading.local()
        self._closings = 0

    @property
    def heartbeat(self) -> Extension:
        """See :attr:`LockManager.heartbeat`."""
        return _Heartbeats(self.hms, self.zookeeper)

    # Phases.

    def seen(self, table: Resource, state: State) -> None:
        """Note the state in which *table* was just seen."""
        before = self._states.get(table)
        if before != state:
            self._states[table] = state
            if before is not None:
                logger.info("%s went from %s to %s", table, before, state)
                self.moved(table, state)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Have this thread's commits take what a change of the phase needs."""
        self._thread.changing = True
        try:
            yield
        finally:
            self._thread.changing = False

    @property
    def is_changing(self) -> bool:
        """Whether this thread changes the phase of a table."""
        return getattr(self._thread, "changing", False)

    def _now(self, table: Resource) -> Phase:
        """Return the phase of *table* as it is now, and note it."""
        state = self.look(table)
        self.seen(table, state)
        return state.phase

    def _believed(self, request: LockRequest) -> Phases:
        """Return the phases of the tables of *request*, as they were seen last."""
        tables = {Resource(resource.path[:2]) for resource, _ in request.locks if len(resource.path) > 1}
        return {
            table: self._states[table].phase if table in self._states else self._now(table) for table in sorted(tables)
        }

    def _have_changed(self, phases: Phases) -> bool:
        """Return whether a table asks for other locks by now than those of *phases*."""
        changing = self.is_changing
        now = {table: self._now(table) for table in phases}
        return any(
            locks_of(now[table], changing=changing) != locks_of(phase, changing=changing)
            for table, phase in phases.items()
        )

    def _parts(
        self, request: LockRequest, phases: Phases
    ) -> Iterator[tuple[HmsLockManager | ZooKeeperLockManager, LockRequest]]:
        """Yield what to ask of whom, in this order. The offer goes along with the first."""
        offer = request.offer
        for manager in (self.hms, self.zookeeper):
            locks = tuple(
                (resource, mode)
                for resource, mode in request.locks
                if len(resource.path) == 1
                or manager.name in locks_of(phases[Resource(resource.path[:2])], changing=self.is_changing)
            )
            if locks:
                yield manager, replace(request, locks=locks, offer=offer)
                offer = ""

    # Acquire.

    def acquire(self, request: LockRequest, *, deadline: float, policy: Policy | None = None) -> HandoverLease:
        """See :meth:`LockManager.acquire`. What is returned is what the tables ask for at that time."""
        names = _names(request)
        with self._told(request) as started:
            while True:
                lease = self._take(replace(request, offer=""), names, deadline, policy)
                assert isinstance(lease, MigratingLease)
                changed = True
                try:
                    changed = self._have_changed(lease.phases)
                finally:
                    if changed:
                        self._release_quietly(lease)
                if not changed:
                    return self._granted(lease, started)

    def submit(self, request: LockRequest, *, deadline: float) -> HandoverLease | JournalEntry:
        """See :meth:`HandoverLockManager.submit`. The caller asks the lease whether it suits the table."""
        with self._told(request) as started:
            lease = self._take(request, _names(request), deadline, None)
            if isinstance(lease, JournalEntry):
                self._telling.not_granted(request, started, "carried")
                return lease
            for table, phase in lease.phases.items():
                self.writers.latched(table, phase, (self._clock.now() - started) * 1000)
            return self._granted(lease, started)

    def _take(
        self, request: LockRequest, names: Iterator[str], deadline: float, policy: Policy | None
    ) -> MigratingLease | JournalEntry:
        """Take what the phases ask for that are believed in, until that can be had.

        Each try has a name of its own in the services: what is being given back there, maybe in the background, must
        not be taken for what is asked for anew.
        """
        self.writers.appear()
        tries = denials = 0
        closings = self._closings
        while True:
            if closings != self._closings:
                raise LockRefused("the client was closed while it waited", locks=request)
            phases = self._believed(request)
            try:
                return self._take_all(request, next(names), phases, deadline, policy)
            except _StepBack:
                continue
            except _Denied as denied:
                assert isinstance(policy, DenyPolicy)
                denials = pause_before_retry(self._clock, policy, denials, deadline, denied.refused)
            except Guarded:
                may_go_on = self._have_changed(phases) or self._sweep(phases, deadline)
                if not may_go_on or self._clock.now() >= deadline:
                    raise
                self._clock.sleep(next_wait(_AGAIN, tries, self._clock.random()))
                tries += 1

    def _take_all(
        self, request: LockRequest, name: str, phases: Phases, deadline: float, policy: Policy | None
    ) -> MigratingLease | JournalEntry:
        held: list[HandoverLease] = []
        asked: list[tuple[HmsLockManager | ZooKeeperLockManager, LockRequest]] = []
        try:
            for manager, part in self._parts(replace(request, request_id=name), phases):
                asked.append((manager, part))
                if held:
                    held.append(self._second(manager, part, phases, deadline, policy))
                elif part.offer:
                    got = manager.submit(part, deadline=deadline)
                    if isinstance(got, JournalEntry):
                        return got
                    held.append(got)
                else:
                    held.append(manager.acquire(part, deadline=deadline, policy=policy))
            lease = MigratingLease(self, request, held, phases)
            self._leases[name] = lease
            return lease
        except BaseException as error:
            # 1. A holder of the first lock takes the offer, sends its swap, and ends in doubt.   2. We have that lock.
            # 3. The second one can't be had.   4. The swap lands: so this is no failure, and no reason to offer again.
            in_doubt = False
            try:
                in_doubt = isinstance(error, Exception) and bool(request.offer and held) and not held[0].retract()
            finally:
                # By the request, not by what was noted: an interrupt may have come in between.
                for manager, part in reversed(asked):
                    manager.give_up(part)
            if in_doubt:
                raise OfferLost("the holder that took the offer did not answer", locks=request) from error
            raise

    def _second(
        self,
        manager: HmsLockManager | ZooKeeperLockManager,
        part: LockRequest,
        phases: Phases,
        deadline: float,
        policy: Policy | None,
    ) -> HandoverLease:
        """Return the second lock, or step back from waiting for it; see the module."""
        started = self._clock.now()

        def watch() -> None:
            if self._have_changed(phases):
                raise _StepBack

        at_once = DenyPolicy(numretries=0) if isinstance(policy, DenyPolicy) else None
        try:
            return manager.acquire_while(part, deadline=deadline, policy=at_once, watch=watch)
        except Interrupted as error:
            # A wait that is watched is a row of short ones, and a service that is slow for a moment must not end it.
            if self._clock.now() - started >= self.settings.lease_ms / 1000:
                raise
            raise _StepBack from error
        except LockRefused as refused:
            if at_once is None:
                raise
            raise _Denied(refused) from refused

    def _sweep(self, phases: Phases, deadline: float) -> bool:
        """Remove guards that no phase asks for; return whether all of them could be removed."""
        removed = True
        for table in [table for table, phase in phases.items() if HMS in locks_of(phase, changing=self.is_changing)]:
            with self.latched_in_zookeeper(table, "remove a guard that was left", deadline=deadline):
                if self._now(table) is not Phase.ZOOKEEPER:
                    logger.warning("%s is not in phase zookeeper, and guarded: the guard is swept", table)
                    removed &= self.unguard(table)
        return removed

    def latched_in_zookeeper(self, table: Resource, statement: str, *, deadline: float) -> Lease:
        """Take ZooKeeper's latch of *table* whatever its phase: so long nobody can bring it to another one."""
        request = LockRequest.of(
            LockScope.COMMIT,
            {table: LockMode.EXCLUSIVE},
            owner=this_owner(statement),
            request_id=str(uuid.uuid4()),
        )
        return self.zookeeper.acquire(request, deadline=deadline)

    def _release_quietly(self, lease: MigratingLease) -> None:
        """Give back what nobody was told of."""
        lease._transition(LeaseState.RELEASED)
        lease.release()

    # Tell.

    @contextmanager
    def _told(self, request: LockRequest) -> Iterator[float]:
        """Tell of *request*, and of its end unless it is granted. Gives the time when it began."""
        started = self._telling.asked(request)
        try:
            yield started
        except BaseException as error:
            self._telling.not_granted(request, started, error.kind if isinstance(error, LockError) else "interrupted")
            raise

    def _granted(self, lease: MigratingLease, started: float) -> MigratingLease:
        self._telling.granted(lease.name, lease.request, lease.generation, started)
        return lease

    def _ended(self, part: LockEnded) -> None:
        """Tell of the end of a request with the first of its parts."""
        self._telling.ended(part.request_id, lost=part.lost)

    # Look, and free by force.

    def lease_on(self, resource: Resource, mode: LockMode) -> Lease | None:
        """See :meth:`LockManager.lease_on`."""
        part = self.hms.lease_on(resource, mode) or self.zookeeper.lease_on(resource, mode)
        return None if part is None else self._leases.get(part.request.request_id, part)

    def locks(self, resource: Resource | None = None, *, scope: LockScope | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.locks`. A lock that is held on both sides is listed once."""
        return _merged(self.hms.locks(resource, scope=scope), self.zookeeper.locks(resource, scope=scope))

    def one_sided(self, table: Resource, phase: Phase) -> Sequence[LockEntry]:
        """Return the operation locks on *table*, and on its database, that are held where *phase* would not see them.

        Who waits for its first lock stands on one side alone, too, and is left out: once granted it looks at the phase.
        """
        near = {table, *table.ancestors}
        found = {
            manager: [
                entry
                for page in manager.pages(Resource(table.path[:1]), scope=LockScope.OPERATION)
                for entry in page
                if entry.resource in near or entry.resource.path[:2] == table.path
            ]
            for manager in (self.hms, self.zookeeper)
        }
        left = [manager for manager in found if manager.name not in locks_of(phase)]
        kept = {
            (entry.request_id, entry.resource) for manager in found if manager not in left for entry in found[manager]
        }
        return [
            entry
            for manager in left
            for entry in found[manager]
            if entry.state is LockState.ACQUIRED
            and (entry.request_id, entry.resource) not in kept
            and entry.owner.application != HIVE_APPLICATION
        ]

    def listed(self, resource: Resource) -> Resource:
        """See :meth:`LockManager.listed`: ZooKeeper cuts no name."""
        return self.hms.listed(resource)

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        """See :meth:`LockManager.unlock`."""
        return _merged(
            self.hms.unlock(request_id=request_id, resource=resource),
            self.zookeeper.unlock(request_id=request_id, resource=resource),
        )

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        """See :meth:`LockManager.reap`."""
        return _merged(self.hms.reap(dry_run=dry_run), self.zookeeper.reap(dry_run=dry_run))

    # Journal: in ZooKeeper in every phase.

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        self.zookeeper.remember(entry, lifetime_ms=lifetime_ms)

    def recall(self, request_id: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        return self.zookeeper.recall(request_id)

    def close(self) -> None:
        """See :meth:`LockManager.close`."""
        self._closings += 1
        with ExitStack() as ending:
            ending.callback(self.zookeeper.close)
            ending.callback(self.hms.close)
            self.writers.close()
            for ref in self._leases.valuerefs():
                lease = ref()
                if lease is not None and not lease.request.explicit:
                    lease.release()


def _names(request: LockRequest) -> Iterator[str]:
    """Yield the names of *request*, one for each try."""
    yield request.request_id
    for number in count(1):
        yield f"{request.request_id}-{number}"


def _merged(in_hms: Sequence[LockEntry], in_zookeeper: Sequence[LockEntry]) -> list[LockEntry]:
    """Return the entries of both, once each: waiting, where one of the two waits."""
    by_key: dict[tuple[str, Resource, LockScope], LockEntry] = {}
    for entry in (*in_hms, *in_zookeeper):
        key = entry.request_id, hms_names.listed(entry.resource), entry.scope
        if key not in by_key or by_key[key].state is not LockState.WAITING:
            by_key[key] = entry
    return sorted(by_key.values(), key=lambda entry: entry.requested_at_ms)
