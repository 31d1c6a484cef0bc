"""Guards: permanent locks in a Hive Metastore for tables whose writers exclude each other elsewhere.

Theory of operation
    A lock-only writer takes the metastore's EXCLUSIVE lock and alters the table without a condition, so it overwrites
    whatever was committed without that lock. A guard is a SHARED_READ lock on (database, table): an EXCLUSIVE request
    waits for it and fails, readers pass. It belongs to the table, not to a client. There is one for each table,
    recognized by its ``agentInfo``; a client that is about to swap looks for it, takes it over or sets it, and from
    then on extends it as long as the process lives. It stays when the last process ends, and is removed with the table.

    A guard is set before the swap, and waits until no EXCLUSIVE lock is held. So a writer that has read the pointer
    under such a lock has written it before our swap compares:

    1. P locks and reads the pointer.   2. Our guard waits.   3. P alters and unlocks; the guard is granted.
    4. Our swap finds the pointer moved.

    The guard may wait for the lock of one of our writers that has died, on a table whose writers now take their locks
    in another service. Nobody else waits for this lock, so the client that sets the guard releases it, as a waiter of
    ``hms`` would.

Two guards
    1. A and B find none.   2. Both set one.   3. Both list again, and the second one finds both.
    The one with the smallest lock id stays, and the client that set the other one releases it.

A guard that is left
    A program that drops or renames a table without us leaves the guard on the old name, and Java can't create a table
    with this name. So the client that extends a guard checks whether the table exists, and removes the guard if not:

    1. We find no table.   2. Another client creates one with that name, and finds our guard.   3. We remove it.
    4. We look again, find the table, and set the guard again.

    If the table exists and declares no lock manager of ours, the client removes the guard only when it sees this for
    the second time: the first guarded swap of the table may be on its way.

A guard that is gone
    It was released by force, or by a server that reaps what nobody extends. The next extension notices this: at the
    latest, that of the first swap after one lease time. Before and after the guard is set again in the background,
    *wanted* is called: the table may have been handed back to the metastore's own lock meanwhile, and the client that
    did that removes the guards that it finds.
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
from commit_coord.locks.hms.requests import FOREIGN
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
    table_uuid: str = ""
    """The table that it guards; a table that gets the name later may be without it."""
    doubted: bool = False
    """Whether the table was seen once without wanting it."""
    looked: float = 0.0
    """When the table was looked at last."""


class HmsGuards:
    """The guards that this process extends.

    Args:
        metastore: The metastore with the guards.
        statement: Shown to those who wait for them.
        interval_ms: A guard that was confirmed less than this time ago is not extended again.
        clock: Time and random numbers.
        host: Names this process, and knows which have ended.
        wanted: Returns whether a table still needs a guard, by what the metastore says of the table now.
        left: Returns whether a guard is left behind. True: there is no table with that name. False: the table wants its
            guard, or its state could not be read. None: the table wants no guard.
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
        """Seconds for calls without a deadline: a server that hangs must not delay the guards of other tables."""
        self._clock = clock
        self._host = host
        self._wanted = wanted
        self._left = left
        self._client = host.new_id().hex[:8]
        self._known: dict[Identifier, _Guard | None] = {}
        """None: it was lost, and is to be set again."""
        self.heartbeat = Heartbeat(self.beat, idle=lambda: self._interval, name="commit-coord-guards")

    def place(self, table: Identifier, *, deadline: float, table_uuid: str = "") -> None:
        """Return when *table* is guarded. Costs nothing when that was confirmed a moment ago for the same table.

        1. We confirm the guard.   2. Another client drops the table, and removes the guard.   3. A table is made under
        this name.   4. We commit to it. So the name is not enough.

        Args:
            table: Its name.
            deadline: How long to wait for the lock of another owner.
            table_uuid: Which table has the name, in Iceberg's metadata.

        Raises:
            LockTimeout: Another owner held the EXCLUSIVE lock until *deadline*.
            LockServiceUnavailable: The metastore did not answer, or grants no locks.
        """
        self.heartbeat.ensure_running()
        guard = self._known.get(table)
        is_known = guard is not None and guard.table_uuid == table_uuid
        if guard is not None and is_known and self._clock.now() - guard.last_confirmed_at < self._interval:
            return
        with self._metastore.within(max(0.0, deadline - self._clock.now()) + BRIEFLY):
            if guard is None or not self._extended(table, guard):
                self._known[table] = guard = self._set(table, deadline)
            guard.table_uuid = table_uuid

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
        """Stop extending the guards. They stay in the metastore."""
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
        """Release locks of dead owners that block the guard: if all writers lock elsewhere, nobody else would."""
        asked = self._clock.now()
        listed = self._metastore.show_locks(*table)
        answered = self._clock.now()
        for one in listed:
            blocks = hms_names.conflict(_part(table), one.part)
            if blocks and is_over(
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
        """Send a guard; return its id, None if the reply was lost: then the list shows whether it is there."""
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
        # A guard outlives its process, so it names none: it does not matter whether that process is alive.
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
            return False  # it was released meanwhile; the next listing shows that
        return True

    def _listed(self, table: Identifier) -> list[ListedLock]:
        """Return the guards of *table*, held or waiting, oldest first."""
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
                    agent.request_id if agent else f"{FOREIGN}{one.lock_id}",
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
        """Execute *step* for *table*, and only log its error: the guards of the other tables must still be kept."""
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
        """Remove the guard of *table* if nobody wants it any more."""
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
            # 1. The table is wanted.   2. It is handed back, and its guards are removed.   3. Ours is set.
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
