"""Takes the locks that the phases of tables ask for; see :mod:`commit_coord.locks.migration.manager`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from commit_coord.clock import Clock
from commit_coord.errors import ClientStops, LockRefused, OfferLost
from commit_coord.locks.acquiring import pause_before_retry
from commit_coord.locks.base import DenyPolicy, Interrupted, Policy
from commit_coord.locks.handover import HandoverLease
from commit_coord.locks.hms.requests import Guarded
from commit_coord.locks.migration.beliefs import Beliefs, PhaseByTable, managers_of
from commit_coord.locks.migration.lease import MigratingLease
from commit_coord.locks.migration.sides import Side, Sides
from commit_coord.locks.migration.writers import WriterRegistry
from commit_coord.model import JournalEntry, LockRequest, Resource
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.migration import HMS, Phase

logger = logging.getLogger(__name__)

_AGAIN = Backoff(initial_ms=20, maximum_ms=500)
"""Between two tries that met a guard."""


class _StepBack(Exception):
    """The phase has changed while the second lock was waited for."""


class _Denied(Exception):
    """The second lock was denied at once."""

    def __init__(self, refused: LockRefused) -> None:
        super().__init__(refused)
        self.refused = refused


class Taking:
    """Takes what tables ask for, on the one side, on the other, or on both.

    Args:
        sides: The two lock managers.
        beliefs: What is known of the phases.
        remove_guard: Removes the guards of a table, called under ZooKeeper's latch; false if they are of other lock
            managers.
        writers: The registry of the writers in a migration.
        clock: Time and random numbers.
    """

    def __init__(
        self,
        sides: Sides,
        beliefs: Beliefs,
        *,
        remove_guard: Callable[[Resource], bool],
        writers: WriterRegistry,
        clock: Clock,
    ) -> None:
        self._sides, self._beliefs, self._writers, self._clock = sides, beliefs, writers, clock
        self._remove_guard = remove_guard
        self.leases: weakref.WeakValueDictionary[str, MigratingLease] = weakref.WeakValueDictionary()
        """The acquired leases, by the name of the lock manager."""
        self._closings = 0

    def refuse_waiters(self) -> None:
        """Refuse what waits; the sides end the waits themselves."""
        self._closings += 1

    def release_all(self) -> None:
        """Give back every lease that is not explicit."""
        for ref in self.leases.valuerefs():
            lease = ref()
            if lease is not None and not lease.request.explicit:
                lease.release()

    def take(
        self, request: LockRequest, names: Iterator[str], deadline: float, policy: Policy | None
    ) -> MigratingLease | JournalEntry:
        """Take what the phases ask for that are believed in, until that can be had.

        Each try has a name of its own in the services: what is being given back there, maybe in the background, must
        not be taken for what is asked for anew.

        Args:
            request: What is asked for.
            names: Of :func:`names_of`; a caller that takes it again goes on with them.
            deadline: Of the whole acquire.
            policy: As for :meth:`LockManager.acquire`.

        Returns:
            What is held; or the entry of the holder that published the request's offer.

        Raises:
            LockError: As :meth:`HandoverLockManager.submit`; nothing is held or queued.
        """
        self._writers.appear()
        tries = denials = 0
        closings = self._closings
        while True:
            if closings != self._closings:
                raise ClientStops("the client is stopping; it has withdrawn its lock request", locks=request)
            phases = self._beliefs.of(request)
            try:
                return self._take_all(request, next(names), phases, deadline, policy)
            except _StepBack:
                continue
            except _Denied as denied:
                assert isinstance(policy, DenyPolicy)
                denials = pause_before_retry(
                    self._clock, policy, denials, deadline, denied.refused, lambda: closings != self._closings
                )
            except Guarded:
                may_go_on = self._beliefs.have_changed(phases, request) or self._remove_unneeded_guards(
                    request, phases, deadline
                )
                if not may_go_on or self._clock.now() >= deadline:
                    raise
                self._clock.sleep(next_wait(_AGAIN, tries, self._clock.random()))
                tries += 1

    def _take_all(
        self, request: LockRequest, name: str, phases: PhaseByTable, deadline: float, policy: Policy | None
    ) -> MigratingLease | JournalEntry:
        held: list[HandoverLease] = []
        asked: list[tuple[Side, LockRequest]] = []
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
            lease = MigratingLease(request, held, phases, self._beliefs)
            self.leases[name] = lease
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
        manager: Side,
        part: LockRequest,
        phases: PhaseByTable,
        deadline: float,
        policy: Policy | None,
    ) -> HandoverLease:
        """Return the second lock, or step back from waiting for it; see the module."""
        started = self._clock.now()

        def watch() -> None:
            if self._beliefs.have_changed(phases, part):
                raise _StepBack

        at_once = DenyPolicy(numretries=0) if isinstance(policy, DenyPolicy) else None
        try:
            return manager.acquire_while(part, deadline=deadline, policy=at_once, watch=watch)
        except Interrupted as error:
            # A wait that is watched is a row of short ones, and a service that is slow for a moment must not end it.
            if self._clock.now() - started >= self._sides.hms.settings.lease_ms / 1000:
                raise
            raise _StepBack from error
        except ClientStops:
            raise
        except LockRefused as refused:
            if at_once is None:
                raise
            raise _Denied(refused) from refused

    def _remove_unneeded_guards(self, request: LockRequest, phases: PhaseByTable, deadline: float) -> bool:
        """Remove guards that no phase asks for; return whether all of them could be removed."""
        removed = True
        for table in [table for table, phase in phases.items() if HMS in managers_of(phase, request)]:
            with self._sides.latched_in_zookeeper(table, "remove a guard that was left", deadline=deadline):
                if self._beliefs.now(table) is not Phase.ZOOKEEPER:
                    logger.warning("%s is not in phase zookeeper, and guarded: the guard is removed", table)
                    removed &= self._remove_guard(table)
        return removed

    def _parts(self, request: LockRequest, phases: PhaseByTable) -> Iterator[tuple[Side, LockRequest]]:
        """Yield what to ask of whom, in this order. The offer goes along with the first."""
        offer = request.offer
        for manager in self._sides.in_order:
            locks = tuple(
                (resource, mode)
                for resource, mode in request.locks
                if len(resource.path) == 1 or manager.name in managers_of(phases[Resource(resource.path[:2])], request)
            )
            if locks:
                yield manager, replace(request, locks=locks, offer=offer)
                offer = ""


def names_of(request: LockRequest) -> Iterator[str]:
    """Yield the names of *request*, one for each try."""
    yield request.request_id
    for number in count(1):
        yield f"{request.request_id}-{number}"
