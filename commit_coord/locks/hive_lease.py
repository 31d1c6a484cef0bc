"""Hive leases, as in Hive's proposal: locks with an end time and an id that every client may use.

Theory of operation
    A lease is a request of the ``lease`` lock manager in the operation scope, so leases, operations and LOCK statements
    are in the same queues, exclude each other by Hive's hierarchy, and are listed together. A second row makes
    the request a lease: it has the requested objects (the request also has their parents) and the start time. The id of
    a lease is the place of its request, which grows with every request of the catalog and is never given twice.

    ``grab_lease`` acquires as any operation does, in a fair queue, and is cleaned up as any operation is if its process
    ends meanwhile. After the grant, the request gets the requested duration, and its process is forgotten: from
    then on only its end time, ``drop_lease`` or force ends it.

    ``hold`` is for a process that has the lease as long as a block of its code runs. Its process is not
    forgotten: the heartbeat of the lock manager extends it like other leases, and reports when it is lost.

Fencing
    A lease may end between the check that it is live and the action that depends on it:

    1. A checks its lease: it is live.   2. A stalls. The lease ends, and B grabs one on the same object.
    3. A wakes up and publishes.

    The transaction that publishes can check the lease without such a gap (:meth:`HiveLeases.fence`): B is granted only
    after A's request is deleted, and this row can't be deleted while the transaction has locked it.
"""

from __future__ import annotations

import json
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import unquote

from commit_coord.errors import (
    ConfigError,
    ExceedsMaxLeaseTime,
    InvalidArguments,
    LeaseAlreadyExists,
    LeaseEnded,
    LockError,
    LockLost,
    LockServiceUnavailable,
    LockTimeout,
)
from commit_coord.locks.base import Lease, LockManager
from commit_coord.locks.forcing import FreedLocks, telling_what_was_freed
from commit_coord.locks.sql import statements as lease_sql
from commit_coord.locks.sql.manager import SqlLockManager
from commit_coord.locks.sql.requests import stored
from commit_coord.locks.sql.store import SqlStep, id_list
from commit_coord.model import Generation, LeaseState, LockMode, LockRequest, LockScope, Resource, is_encodable

_MODES = {"s": LockMode.SHARED, "x": LockMode.EXCLUSIVE}
_SCOPE = LockScope.OPERATION
_TABLE_DEPTH = 2  # db/table
_MAX_ID = 2**63 - 1
_LONGEST_S = 10**11  # the calendar ends in 9999

LeaseLocks = dict[Resource, LockMode]


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """An object that a lease locks. It need not exist.

    Args:
        db_name: The database.
        table_name: The table.
        partition_name: ``k=v`` or ``k=v/k2=v2`` as in paths, a prefix of levels included; none is the whole table.
        lease_type: ``s`` for shared or read, ``x`` for exclusive or write. Used only when a lease is grabbed.

    Raises:
        InvalidArguments: A name is empty, a partition has another form, or the type is unknown.
    """

    db_name: str
    table_name: str
    partition_name: str | None = None
    lease_type: str = "x"

    def __post_init__(self) -> None:
        """Refuse what can't be leased."""
        texts: tuple[Any, ...] = (self.db_name, self.table_name, self.lease_type)
        if self.partition_name is not None:
            texts = (*texts, self.partition_name)
        if not all(isinstance(text, str) and is_encodable(text) for text in texts):
            raise InvalidArguments(
                "names and types are strings of valid Unicode, without half of a surrogate pair", value=repr(texts)
            )
        if not self.db_name or not self.table_name:
            raise InvalidArguments("a lease needs a database and a table", object=self)
        if self.lease_type not in _MODES:
            raise InvalidArguments("unknown lease type", value=self.lease_type, accepted="s, x", object=self)
        levels = self.partition_name.split("/") if self.partition_name else []
        if any(level.find("=") < 1 for level in levels):
            raise InvalidArguments("invalid partition name", value=self.partition_name, accepted="k=v/k2=v2")

    @classmethod
    def of(cls, resource: Resource, mode: LockMode = LockMode.EXCLUSIVE) -> LeaseObject:
        """Return *resource*, a table or something in it, as an object of a lease."""
        database, table = resource.path[:_TABLE_DEPTH]
        partition = "/".join(str(resource).split("/")[_TABLE_DEPTH:])
        return cls(database, table, partition or None, mode.letter.lower())

    @property
    def resource(self) -> Resource:
        """The locked resource."""
        levels = self.partition_name.split("/") if self.partition_name else []
        return Resource((self.db_name, self.table_name, *map(unquote, levels)))

    @property
    def mode(self) -> LockMode:
        """The mode of the lock."""
        return _MODES[self.lease_type]

    def __str__(self) -> str:
        """Return ``db.table`` or ``db.table k=v``."""
        return f"{self.db_name}.{self.table_name} {self.partition_name or ''}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveLease:
    """One object of a live lease.

    Args:
        user: Who grabbed it.
        lease_id: The lease, one for all its objects.
        db_name: The database.
        table_name: The table.
        partition_name: "" for the whole table.
        start_utc: When it was granted, milliseconds since the epoch by the service's clock; extensions don't change it.
        end_utc: When it ends if nobody extends it.
        lease_type: ``s`` or ``x``.

    Source: Hive's proposal of leases, ``class HiveLease``.
    """

    user: str
    lease_id: int
    db_name: str
    table_name: str
    partition_name: str
    start_utc: int
    end_utc: int
    lease_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    """A live lease as its row has it."""

    lease_id: int
    request_id: str
    text: str
    user: str
    start_utc: int
    end_utc: int

    @property
    def objects(self) -> LeaseLocks:
        return {Resource.parse(path): _MODES[mode] for path, mode in json.loads(self.text)}

    def listed(self, chosen: Callable[[Resource], bool]) -> Iterator[HiveLease]:
        for resource, mode in self.objects.items():
            if chosen(resource):
                named = LeaseObject.of(resource, mode)
                yield HiveLease(
                    user=self.user,
                    lease_id=self.lease_id,
                    db_name=named.db_name,
                    table_name=named.table_name,
                    partition_name=named.partition_name or "",
                    start_utc=self.start_utc,
                    end_utc=self.end_utc,
                    lease_type=named.lease_type,
                )


class _Every:
    """Stands for all leases, as no value of a caller does."""


_EVERY = _Every()


class HiveLeases:
    """The leases of one catalog, which gives them as ``catalog.leases``.

    Args:
        manager: The catalog's lock manager.
        max_duration_ms: ``lease.max-duration-ms``.
        database_parents: ``lock.database-parents``.
        spelled: Returns an object under the names by which the catalog locks it.
        forcing: Writes down the locks of leases that its block drops by force, however the block ends.

    Raises:
        ConfigError: The lock manager has no database.
    """

    def __init__(
        self,
        manager: LockManager,
        *,
        max_duration_ms: int = 86_400_000,
        database_parents: bool = False,
        spelled: Callable[[Resource], Resource] = lambda resource: resource,
        forcing: Callable[[], AbstractContextManager[FreedLocks]] = telling_what_was_freed,
    ) -> None:
        if not manager.keeps_hive_leases:
            raise ConfigError(
                "leases are kept in a database by the lock manager `lease`, and this catalog uses another one",
                key="lock-impl",
                value=manager.name,
                accepted="lease, with lock.uri naming a SQLite file or a PostgreSQL database",
            )
        self.manager = cast(SqlLockManager, manager)
        self._max_ms = max_duration_ms
        self._database_parents = database_parents
        self._spelled = spelled
        self._forcing = forcing

    # Hive's interface.

    def grab_lease(
        self, objects: Iterable[LeaseObject], lease_duration_sec: float, lease_wait_duration_sec: float = 0
    ) -> int:
        """Take a lease on all *objects* or none, and return its id.

        Guarantee: the lease is held from before the return until it ends by the service's clock, or is dropped. It does
        not end with this process. Of two leases that conflict, the later one has the greater id. On any exception
        nothing is held and nothing stays queued, except when the service could not be reached: then it ends by itself.

        Args:
            objects: They need not exist. If an object occurs twice, the exclusive type counts.
            lease_duration_sec: How long it is kept without an extension, from the moment at which it is granted.
            lease_wait_duration_sec: How long to wait in the queue, after the earlier requests.

        Raises:
            LeaseAlreadyExists: Another owner held a lease or an operation lock on one of the objects until the end of
                the wait; the message names this owner.
            InvalidArguments: No object, a time that is negative or no number, or a duration above
                ``lease.max-duration-ms``.
            LockReentered: This thread's own operation holds one of the objects, so the thread would wait for itself.
            LockLost: An operator dropped the lease by force before it was returned.
            LockServiceUnavailable: The database could not be reached.
        """
        duration_ms = _milliseconds("lease_duration_sec", lease_duration_sec)
        if not 0 < duration_ms <= self._max_ms:
            raise InvalidArguments(
                "invalid lease duration",
                argument="lease_duration_sec",
                value=lease_duration_sec,
                accepted=f"seconds above 0, at most {self._max_ms / 1000:g} (lease.max-duration-ms)",
            )
        return self._grab(objects, lease_wait_duration_sec, duration_ms, None).lease_id

    def confirm_lease(self, lease_id: int) -> bool:
        """Return whether the lease is live, all of its objects."""
        return bool(self._live(lease_id))

    def list_lease(self, objects: Iterable[LeaseObject] = ()) -> list[HiveLease]:
        """Return the live leases on *objects* and what lies in them, oldest first; without objects all of them."""
        wanted = self._resources(objects)

        def chosen(resource: Resource) -> bool:
            return not wanted or not wanted.isdisjoint((resource, *resource.ancestors))

        self._delete_expired()
        return [listed for lease in self._live() for listed in lease.listed(chosen)]

    def extend_lease(self, lease_id: int, objects: Iterable[LeaseObject] = ()) -> int:
        """Extend a live lease by the duration for which it was grabbed, from now on. Return its ``end_utc``.

        Args:
            lease_id: Any client in any process may extend it: ids are numbers, not secrets.
            objects: If given, a check that they belong to this lease; all objects of a lease end together.

        Raises:
            InvalidArguments: There is no such lease, it has ended, or an object does not belong to it.
            ExceedsMaxLeaseTime: It would live longer than ``lease.max-duration-ms``. Its end time has not changed.
        """
        _refuse_strangers(self._one(lease_id), self._resources(objects))
        step = lease_sql.EXTEND, self._parameters_of(lease_id)
        (rows,) = self.manager.requests.run([step])
        if rows:
            return int(rows[0][0])
        lease = self._one(lease_id)
        raise ExceedsMaxLeaseTime(
            "the lease would last longer than the maximum",
            lease_id=lease_id,
            since=_moment(lease.start_utc),
            until=_moment(lease.end_utc),
        )

    def drop_lease(self, lease_id: int, objects: Iterable[LeaseObject] = ()) -> None:
        """Drop a lease, or some of its objects. On return this lease does not lock them any more. Any client may do so.

        Raises:
            InvalidArguments: There is no such lease, it has ended, or an object does not belong to it. Nothing was
                dropped.
            LockServiceUnavailable: The database failed. It is not known whether they were dropped; the call may be
                repeated.
        """
        dropped = self._resources(objects)
        found = self._one(lease_id)
        _refuse_strangers(found, dropped)
        lease: _Live | None = found
        while lease is not None:
            kept = {resource: mode for resource, mode in lease.objects.items() if resource not in dropped}
            if not kept or not dropped:
                self._end(lease.request_id, lease_id)
                return
            if self._reduce(lease, kept):
                return
            # Others have changed or ended it, perhaps after our own change, whose reply was lost.
            lease = next(iter(self._live(lease_id)), None)

    def force_drop_lease(self, objects: Iterable[LeaseObject] = ()) -> list[HiveLease]:
        """End the leases on exactly *objects*, of any client; without objects all leases. Return what was ended.

        A lease ends as a whole: its holder was granted all of its objects or none, and could not notice that it holds
        only some of them.

        Raises:
            PartlyFreed: Some were ended, or may have been, and then the database failed; ``freed`` has their locks.
        """
        wanted = self._resources(objects)
        self._delete_expired()
        doomed = [lease for lease in self._live() if not wanted or not wanted.isdisjoint(lease.objects)]
        requests = {lease.request_id for lease in doomed}
        present = self.manager.locks(scope=_SCOPE) if doomed else ()
        with self._forcing() as freed:
            freed.extend(self.manager.free_listed(entry for entry in present if entry.request_id in requests))
        ended = {entry.request_id for entry in freed}
        return [listed for lease in doomed if lease.request_id in ended for listed in lease.listed(lambda _: True)]

    # For a block of code.

    def hold(
        self,
        objects: Iterable[LeaseObject],
        lease_wait_duration_sec: float = 0,
        *,
        on_lost: Callable[[HeldHiveLease], object] | None = None,
    ) -> HeldHiveLease:
        """Take a lease on all *objects* or none and extend it until it is dropped; a context manager that drops it.

        Without extensions (the process stalls, or the database is gone) it is kept for ``lock.heartbeat-timeout-ms``.
        When this process ends, others on its host need not wait that long. Operations of this thread on what it locks
        do not wait for it.

        Args:
            objects: As in :meth:`grab_lease`.
            lease_wait_duration_sec: As in :meth:`grab_lease`.
            on_lost: Called once, from whatever thread notices it, when the lease is gone before it was dropped.

        Raises:
            LockError: As :meth:`grab_lease`.
            InvalidArguments: No object, or a wait that is negative or no number.
        """
        return self._grab(objects, lease_wait_duration_sec, None, on_lost)

    @contextmanager
    def treat_as_held(self, lease_id: int) -> Iterator[None]:
        """Let operations of this thread not wait for what the lease locks, as if the thread had locked it itself.

        Raises:
            InvalidArguments: There is no such lease, or it has ended.
        """
        lease = self._one(lease_id)
        borrowed = _Borrowed(self, self._request(lease.objects, lease.request_id, ""), lease_id)
        self.manager.treat_as_held(borrowed)
        with borrowed:
            yield

    # For commits.

    def ensure_live(self, lease_id: int) -> None:
        """Return if the lease is live.

        Raises:
            LeaseEnded: It is not.
        """
        if not self.confirm_lease(lease_id):
            raise not_live(lease_id)

    def fence(self, lease_id: int) -> tuple[str, Mapping[str, Any]]:
        """Return a statement, and its values, for a transaction in the database of the leases.

        It yields a row if the lease is live; then nobody else is granted what it locks before the transaction ends.
        """
        return self.manager.store.portable(lease_sql.HOLD, self._parameters_of(lease_id))

    # The rows.

    def _resources(self, objects: Iterable[LeaseObject]) -> set[Resource]:
        return {self._spelled(each.resource) for each in _lease_objects(objects)}

    def _grab(
        self,
        objects: Iterable[LeaseObject],
        wait_sec: float,
        duration_ms: int | None,
        on_lost: Callable[[HeldHiveLease], object] | None,
    ) -> HeldHiveLease:
        wait_ms = _milliseconds("lease_wait_duration_sec", wait_sec)
        wanted: LeaseLocks = {}
        for each in _lease_objects(objects):
            resource = self._spelled(each.resource)
            if wanted.get(resource) is not LockMode.EXCLUSIVE:
                wanted[resource] = each.mode
        if not wanted:
            raise InvalidArguments("a lease needs at least one object")
        manager, deadline = self.manager, self.manager.clock.now() + wait_ms / 1000
        with suppress(LockError):  # Else another client will.
            self._delete_expired()
        statement = "a lease while it is extended" if duration_ms is None else f"a lease of {duration_ms / 1000:g} s"
        request = self._request(wanted, str(manager.store.host.new_id()), statement)
        try:
            lease = manager.acquire(request, deadline=deadline)
            held = HeldHiveLease(lease, on_lost)
            self._name(lease, wanted, duration_ms)
            if duration_ms is not None:
                manager.detach(lease)
        except LockTimeout as error:
            raise self._exists(error) from error
        except BaseException:
            manager.give_up(request)
            raise
        return held

    def _name(self, lease: Lease, objects: LeaseLocks, duration_ms: int | None) -> None:
        """Make *lease* one that is known by its id."""
        request = {"request_id": lease.request.request_id, "place": lease.generation}
        length = {
            "lease_ms": self.manager.settings.lease_ms if duration_ms is None else duration_ms,
            "outlives": int(duration_ms is not None),
        }
        (rows, *_) = self.manager.requests.run(
            [
                (lease_sql.LENGTHEN, {**request, **length}),
                (lease_sql.NAME_LEASE, {**request, "objects": _text(objects), "max_ms": self._max_ms}),
                (lease_sql.FORGET_LEASES, {}),
            ]
        )
        if not rows:
            raise LockLost("the lease was released by force directly after it was granted", locks=lease.request)

    def _live(self, lease_id: int | _Every = _EVERY) -> list[_Live]:
        """Return the live lease with an id, or all of them."""
        rows = self.manager.requests.ask(lease_sql.LEASES, self._parameters_of(lease_id))
        return [
            _Live(lease_id=number, request_id=request, text=text, user=user, start_utc=start, end_utc=end)
            for number, request, text, start, user, end in rows
        ]

    def _one(self, lease_id: int) -> _Live:
        """Return a live lease.

        Raises:
            InvalidArguments: There is none with this id.
        """
        found = self._live(lease_id)
        if not found:
            raise InvalidArguments("there is no such lease, or it has ended", lease_id=lease_id)
        return found[0]

    def _end(self, request_id: str, lease_id: int, *, forced: bool = True) -> bool:
        manager = self.manager
        return manager.requests.retries.briefly(partial(manager.end, _SCOPE, request_id, lease_id, forced=forced))

    def _delete_expired(self) -> None:
        """Delete what leases that ended have left; a client that waits for one does it too."""
        for lease_id, request_id in self.manager.requests.ask(lease_sql.ENDED_LEASES, self._parameters_of(_EVERY)):
            self._end(request_id, lease_id, forced=False)

    def _reduce(self, lease: _Live, kept: LeaseLocks) -> bool:
        """Let *lease* have the objects *kept* alone; return False if its objects were others by now."""
        before = dict(self._request(lease.objects, lease.request_id, "").locks)
        after = dict(self._request(kept, lease.request_id, "").locks)
        gone = {resource: mode for resource, mode in before.items() if after.get(resource) is not mode}
        named = {
            **self._parameters_of(lease.lease_id),
            "request_id": lease.request_id,
            "before": lease.text,
            "after": _text(kept),
        }
        sharing: list[SqlStep] = [
            (lease_sql.SHARE_LOCK, {**named, "resource": stored(resource)}) for resource in gone if resource in after
        ]
        ids = id_list([f"{mode.letter}{stored(resource)}" for resource, mode in gone.items()])
        (reduced, *_) = self.manager.requests.run(
            [(lease_sql.REDUCE, named), (lease_sql.REDUCE_LOCKS, {**named, "ids": ids}), *sharing],
            then=[
                (
                    lease_sql.WAKE,
                    {
                        "scope": named["scope"],
                        "resource": stored(resource),
                        "mode": mode.letter,
                        "place": lease.lease_id,
                    },
                )
                for resource, mode in gone.items()
            ],
        )
        return bool(reduced)

    def _parameters_of(self, lease_id: int | _Every) -> dict[str, Any]:
        manager = self.manager
        return {
            "scope": manager.requests.scope(_SCOPE),
            "lease_id": 0 if isinstance(lease_id, _Every) else _checked(lease_id),
            "clock": manager.store.clock_name,
        }

    def _request(self, objects: LeaseLocks, request_id: str, statement: str) -> LockRequest:
        return LockRequest.of(
            _SCOPE,
            objects,
            owner=self.manager.store.host.owner(statement),
            request_id=request_id,
            database_parents=self._database_parents,
        )

    def _exists(self, error: LockTimeout) -> LeaseAlreadyExists:
        facts: dict[str, Any] = {}
        with suppress(LockError):  # Optional: the error already names the holder.
            for lease in self._live():
                if lease.request_id == error.details.get("request_id"):
                    facts = {"lease_id": lease.lease_id, "until": _moment(lease.end_utc)}
        return LeaseAlreadyExists("lease is held by another owner; wait timed out", **{**error.details, **facts})


class HeldHiveLease:
    """A lease that is extended until it is dropped: see :meth:`HiveLeases.hold`.

    Args:
        lease: What the lock manager granted.
        on_lost: Called when it is gone.
    """

    def __init__(self, lease: Lease, on_lost: Callable[[HeldHiveLease], object] | None) -> None:
        assert lease.generation is not None
        self.lease_id = int(lease.generation)
        self.lost = threading.Event()
        """Set when the lease is gone before it was dropped."""
        self._lease = lease
        self._on_lost = on_lost
        # Weak: a reference cycle would keep an unused lease, and its heartbeat, until the garbage collector runs.
        weakly = weakref.WeakMethod(self._changed)

        def changed(lease: Lease, state: LeaseState) -> None:
            if tell := weakly():
                tell(lease, state)

        lease.add_listener(changed)

    def _changed(self, lease: Lease, state: LeaseState) -> None:
        if state is LeaseState.LOST:
            self.lost.set()
            if self._on_lost is not None:
                self._on_lost(self)

    def check(self) -> None:
        """Return if the lease is live. Asks the service if its last confirmation is older than a third of the lease.

        Raises:
            LockLost: It is gone, or was dropped.
            LockServiceUnavailable: The service did not answer, and the lease may have run out.
        """
        self._lease.ensure_active()

    def drop(self) -> None:
        """Give the lease back. Never raises."""
        self._lease.release()

    def __enter__(self) -> Self:
        """Return the lease itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drop the lease.

        Raises:
            LockLost: The lease was lost before the end of the block, and the block raised no error.
        """
        try:
            if exc_type is None and self._lease.state is not LeaseState.RELEASED:
                with suppress(LockServiceUnavailable):  # by our own clock the lease is live
                    self._lease.ensure_active(0)
        finally:
            self._lease.release()


class _Borrowed(Lease):
    """Resources for which a thread need not wait, because it uses the lease that locks them."""

    def __init__(self, leases: HiveLeases, request: LockRequest, lease_id: int) -> None:
        super().__init__(request, Generation(lease_id))
        self._leases = leases

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        """See :meth:`Lease.ensure_active`."""
        self._raise_if_over()
        assert self.generation is not None
        if not self._leases.confirm_lease(self.generation):
            raise LockLost("the lease has ended", lease_id=self.generation)

    def release(self) -> None:
        """Go back to waiting; the lease stays."""
        self._transition(LeaseState.RELEASED)


def not_live(lease_id: int) -> LeaseEnded:
    """Return what to raise where a lease has to be live and is not."""
    return LeaseEnded("the lease has ended", lease_id=lease_id)


def _checked(lease_id: int) -> int:
    if type(lease_id) is not int or not 0 < lease_id <= _MAX_ID:
        raise InvalidArguments("not the id of a lease", value=lease_id, accepted="a whole number above 0")
    return lease_id


def _lease_objects(objects: Iterable[LeaseObject]) -> list[LeaseObject]:
    given: Any = objects
    found: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    if isinstance(objects, LeaseObject) or not all(isinstance(each, LeaseObject) for each in found):
        raise InvalidArguments("not objects of a lease", value=repr(objects), accepted="a list of LeaseObject")
    return found


def _milliseconds(argument: str, seconds: float) -> int:
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST_S:
        accepted = f"seconds >= 0, at most {_LONGEST_S:,}"
        raise InvalidArguments("invalid length of time", argument=argument, value=seconds, accepted=accepted)
    return math.ceil(seconds * 1000)


def _refuse_strangers(lease: _Live, named: Set[Resource]) -> None:
    """Raise InvalidArguments if *lease* is not on all that is *named*."""
    if named and (strangers := named - lease.objects.keys()):
        stranger = LeaseObject.of(min(strangers))
        raise InvalidArguments("the lease is not on this object", lease_id=lease.lease_id, object=stranger)


def _text(objects: LeaseLocks) -> str:
    return json.dumps([(str(resource), mode.letter.lower()) for resource, mode in sorted(objects.items())])


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


Leases, HeldLease = HiveLeases, HeldHiveLease
"""Former names of two classes, for programs that import them."""
