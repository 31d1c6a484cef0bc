"""Guards: permanent locks in a Hive Metastore for tables whose writers exclude each other elsewhere.

Theory of operation
    A writer that knows nothing but the metastore's EXCLUSIVE lock carries no condition with its alter, so it overwrites
    whatever was committed without that lock. A guard is a SHARED_READ lock on (database, table): an EXCLUSIVE request
    waits for it and fails, readers pass. It belongs to the table, not to a client. There is one for each table, known
    by its ``agentInfo``; a client that is about to swap looks for it, takes it over or sets it, and from then on
    extends it as long as the process lives. It stays when the last process ends, and goes with the table.

    It is set before the swap and waits for EXCLUSIVE locks that are held, so a writer that read the pointer under one
    has written it before ours is compared:

    1. P locks and reads the pointer.   2. Our guard waits.   3. P alters and unlocks; the guard is granted.
    4. Our swap finds the pointer moved.

    What it waits for may be the lock of one of ours that has died since, on a table whose writers lock elsewhere by
    now: nobody else waits for it, so the client that sets the guard frees it, as a waiter of ``hms`` would.

Two guards
    1. A and B find none.   2. Both set one.   3. Both list again, and the second one finds both.
    The one with the smallest lock id stays, and the other one is given back by the client that set it.

A guard that is left
    A program that drops or renames a table without us leaves its guard on a name, under which Java then can't create
    one. So the client that extends a guard checks whether the table is there, and removes the guard of one that is not:

    1. We find no table.   2. Somebody makes one of that name, and finds our guard.   3. We remove it.
    4. We look again, find the table, and set the guard again.

    A table that is there and declares no lock manager of ours is looked at twice: its first guarded swap may be on
    its way.

A guard that is gone
    Freed by force, or by a server that reaps what nobody extended. Extending it finds out, at the latest at the first
    swap after one lease. Before it is set again in the background, and after, *wanted* is asked: the table may have
    been handed back to the metastore's own lock meanwhile, and the client that did that removes the guards that it
    finds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable, LockTimeout, MetastoreUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import LostReply, MetaError, MetastoreServerFailed, NoSuchLock, UnknownMethod
from commit_coord.hms.locks import ListedLock, LockPart, LockType
from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.blockers import holder_facts
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.heartbeat_log import HeartbeatLog, is_over
from commit_coord.model import Owner
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.backoff import Backoff, next_wait

logger = logging.getLogger(__name__)

Identifier = tuple[str, ...]
"""Namespace and name, as PyIceberg's: a lock manager does not import PyIceberg."""

_CHECK = Backoff(initial_ms=50, maximum_ms=1_000)
"""Between two questions whether the guard is granted."""


@dataclass(slots=True)
class _Guard:
    lock_id: int
    last_confirmed_at: float
    """When the last confirmed renewal was sent."""
    doubted: bool = False
    """Whether the table was seen once without wanting it."""
    looked: float = 0.0
    """When the table was looked at last."""


class HmsGuards:
    """The guards that this process extends.

    Args:
        metastore: Has their locks.
        statement: Shown to those who wait for them.
        interval_ms: A guard that was confirmed less than this time ago is not extended again.
        clock: Time and chance.
        host: Names this process, and knows which have ended.
        wanted: Whether a table is still to be guarded, by what the metastore says of it now.
        left: Looks whether a guard is left behind. True: there is no table of that name. False: there is one that wants
            its guard, or it could not be seen. None: there is one that wants none.
    """

    def __init__(
        self,
        metastore: MetastoreClient,
        *,
        statement: str,
        interval_ms: int,
        clock: Clock,
        host: Host = SYSTEM_HOST,
        wanted: Callable[[Identifier], bool],
        left: Callable[[Identifier], bool | None],
    ) -> None:
        self._metastore = metastore
        self._statement = statement
        self._interval = interval_ms / 1000
        self._patience = max(BRIEFLY, self._interval)
        """Seconds for what nobody gave a deadline: one server that hangs must not keep the others' guards waiting."""
        self._clock = clock
        self._host = host
        self._wanted = wanted
        self._left = left
        self._client = host.new_id().hex[:8]
        self._known: dict[Identifier, _Guard | None] = {}
        """None: it was lost, and is to be set again."""
        self.heartbeat = Heartbeat(self.beat, idle=lambda: self._interval, name="commit-coord-guards")

    def place(self, table: Identifier, *, deadline: float) -> None:
        """Return when *table* is guarded. Costs nothing when that was confirmed a moment ago.

        Raises:
            LockTimeout: Somebody held the EXCLUSIVE lock until *deadline*.
            LockServiceUnavailable: The metastore did not answer, or grants no locks.
        """
        self.heartbeat.ensure_running()
        guard = self._known.get(table)
        if guard is not None and self._clock.now() - guard.last_confirmed_at < self._interval:
            return
        with self._metastore.within(max(0.0, deadline - self._clock.now()) + BRIEFLY):
            if guard is None or not self._extended(table, guard):
                self._known[table] = self._set(table, deadline)

    def remove(self, table: Identifier) -> None:
        """Remove every guard of *table*, also those that others set.

        Raises:
            LockServiceUnavailable: The metastore did not answer within a lease.
        """
        self._known.pop(table, None)
        with self._metastore.within(self._patience), _translated(table):
            for guard in self._listed(table):
                self._metastore.unlock(guard.lock_id)

    def forget(self, table: Identifier) -> None:
        """Look for the guard of *table* again before the next swap: it may have been removed and be due again."""
        self._known.pop(table, None)

    def close(self) -> None:
        """Extend them no more. They stay."""
        self.heartbeat.stop()
        self._known.clear()

    def _extended(self, table: Identifier, guard: _Guard) -> bool:
        """Extend *guard*; return whether it is still there."""
        sent = self._clock.now()
        try:
            with _translated(table):
                self._metastore.heartbeat(guard.lock_id)
        except NoSuchLock:
            logger.warning("the guard of %s was removed; it is set again", ".".join(table))
            self._known[table] = None
            return False
        guard.last_confirmed_at = sent
        return True

    def _set(self, table: Identifier, deadline: float) -> _Guard:
        """Take over the guard that is there, or set one; wait until it is granted."""
        mine: int | None = None
        kept: int | None = None
        check = 0
        heartbeats: HeartbeatLog = {}
        try:
            while True:
                asked = self._clock.now()
                with _translated(table):
                    listed = self._listed(table)
                    if not listed:
                        mine = self._sent(table)
                        listed = self._listed(table)
                    if listed and self._granted(listed[0]):
                        kept = listed[0].lock_id
                        return _Guard(kept, asked)
                    if asked >= deadline:
                        raise self._timeout(table)
                    self._free_dead(table, heartbeats)
                wait = next_wait(_CHECK, check, self._clock.random())
                self._clock.sleep(max(0.0, min(wait, deadline - asked)))
                check += 1
        finally:
            if mine is not None and mine != kept:
                with suppress(MetastoreUnavailable, MetaError, MetastoreServerFailed):  # a second guard harms nobody
                    self._metastore.unlock(mine)

    def _free_dead(self, table: Identifier, heartbeats: HeartbeatLog) -> None:
        """Free what the dead left that the guard waits for: where all lock elsewhere nobody else would do so."""
        asked = self._clock.now()
        listed = self._metastore.show_locks(*table)
        answered = self._clock.now()
        for one in listed:
            in_the_way = hms_names.conflict(_part(table), one.part)
            if in_the_way and is_over(
                one,
                one.heartbeat_ms,
                heartbeats=heartbeats,
                failures=self._metastore.failures,
                asked=asked,
                answered=answered,
                host=self._host,
            ):
                logger.info("freed a lock whose owner has ended: %s", one)
                self._metastore.unlock(one.lock_id)

    def _sent(self, table: Identifier) -> int | None:
        """Send a guard; return its id, None where the answer was lost: the list shows whether it is there."""
        owner = self._host.owner()
        agent = hms_names.Agent(
            request_id=str(self._host.new_id()),
            client=self._client,
            requested_ms=self._clock.wall_ms(),
            lease_ms=None,
            application="guard",
            statement=self._statement,
            guard=True,
        )
        # It outlives its process, so it names none: nobody shall check whether that is alive.
        host = hms_names.host(Owner(user=owner.user, host=owner.host, pid=0, application=""))
        try:
            lock_id, _ = self._metastore.lock([_part(table)], user=hms_names.user(owner), host=host, agent=str(agent))
        except LostReply:
            logger.warning("the reply to the guard of %s was lost", ".".join(table), exc_info=True)
            return None
        return lock_id

    def _granted(self, guard: ListedLock) -> bool:
        """Return whether *guard* is granted, and extend it: it may have been there for long without an extension."""
        try:
            if not guard.acquired:
                return self._metastore.check_lock(guard.lock_id)
            self._metastore.heartbeat(guard.lock_id)
        except NoSuchLock:
            return False  # it was given back meanwhile; the next listing tells
        return True

    def _listed(self, table: Identifier) -> list[ListedLock]:
        """Return the guards of *table*, held or waiting, first the first."""
        found = [one for one in self._metastore.show_locks(*table) if _is_guard(one)]
        return sorted(found, key=lambda one: one.lock_id)

    def _timeout(self, table: Identifier) -> LockTimeout:
        facts: dict[str, object] = {}
        for one in self._metastore.show_locks(*table):
            if one.acquired and hms_names.conflict(_part(table), one.part):
                agent = hms_names.Agent.parse(one.agent)
                facts = holder_facts(
                    hms_names.owner_of(one, agent),
                    one.acquired_ms or one.heartbeat_ms,
                    agent.request_id if agent else f"hms-{one.lock_id}",
                )
        return LockTimeout(
            "the deadline passed while the table's guard waited for a lock in the metastore",
            table=".".join(table),
            **facts,
        )

    def beat(self) -> float | None:
        """Extend what is due, or set it again where it was lost; then look which guards nobody wants any more.

        All are extended before the first look: a look may wait for a file store, and guards must outlive its outage.
        """
        begun = self._clock.now()
        due = {
            table: guard
            for table, guard in dict(self._known).items()
            if guard is None or begun - guard.last_confirmed_at >= self._interval * 0.9
        }
        for table, guard in due.items():
            self._quietly(table, partial(self._keep, table, guard))
        for table in sorted(due, key=self._looked):
            if self._clock.now() - begun > self._interval / 2:
                break  # the next extension comes first; the next beat goes on with those that waited longest
            self._quietly(table, partial(self._look_after, table))
        return self._interval if self._known else None

    def _quietly(self, table: Identifier, step: Callable[[], None]) -> None:
        """Take *step* for *table*. Whatever goes wrong there must not end what is done for the others."""
        try:
            with self._metastore.within(self._patience):
                step()
        except Exception as error:  # noqa: BLE001 - of a metastore, or of whatever file store the table is in
            logger.warning("the guard of %s could not be kept: %s", ".".join(table), error)

    def _keep(self, table: Identifier, guard: _Guard | None) -> None:
        if guard is None or not self._extended(table, guard):
            self._again(table, self._clock.now() + self._interval)

    def _looked(self, table: Identifier) -> float:
        guard = self._known.get(table)
        return guard.looked if guard is not None else 0.0

    def _look_after(self, table: Identifier) -> None:
        """Remove the guard of *table* where nobody wants it any more."""
        if (guard := self._known.get(table)) is None:
            return
        guard.looked = self._clock.now()
        left = self._left(table)
        doubted, guard.doubted = guard.doubted, left is None
        if left or (left is None and doubted):
            logger.info("the guard of %s is removed: the table is gone, or its writers want none", table)
            self.remove(table)
            self._again(table, self._clock.now() + self._interval)

    def _again(self, table: Identifier, deadline: float) -> None:
        if self._wanted(table):
            guard = self._set(table, deadline)
            # 1. The table is wanted.   2. It is handed back, and its guards are removed.   3. Ours comes.
            if self._wanted(table):
                self._known[table] = guard
                return
            self.remove(table)
        self._known.pop(table, None)


def _part(table: Identifier) -> LockPart:
    return LockPart(type=LockType.SHARED_READ, db=table[0], table=table[1])


def _is_guard(listed: ListedLock) -> bool:
    agent = hms_names.Agent.parse(listed.agent)
    return agent is not None and agent.guard and listed.part.type is LockType.SHARED_READ


@contextmanager
def _translated(table: Identifier) -> Iterator[None]:
    try:
        yield
    except MetastoreUnavailable as error:
        raise LockServiceUnavailable("the metastore can't be reached", table=".".join(table), cause=error) from error
    except NoSuchLock:
        raise
    except (MetaError, MetastoreServerFailed, UnknownMethod) as error:
        raise LockServiceUnavailable(
            "the metastore refused a request for the guard lock, which blocks writers that take only the metastore's "
            "lock; if the metastore's database has no lock tables (HIVE_LOCKS, TXNS), create them with Hive's schema "
            "tool, or set hive.guard=false",
            table=".".join(table),
            cause=error,
        ) from error
