"""The locks of a catalog: the locks that operations take, the listing, the release by force, and Hive leases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from pyiceberg.typedef import Identifier

from commit_coord import doubt
from commit_coord.config import Configuration, Settings
from commit_coord.coordinator import Coordinator
from commit_coord.errors import CommitLockFailed, InvalidArguments, LockServiceUnavailable
from commit_coord.events import AccessRefused, Events, LocksForced
from commit_coord.locks.base import DenyPolicy, Lease, LockManager, Policy, WaitPolicy
from commit_coord.locks.forcing import FreedLocks, telling_what_was_freed
from commit_coord.locks.handover import (
    HandoverLease,
    HandoverLockManager,
)
from commit_coord.model import LockEntry, LockMode, LockRequest, LockScope, LockState, Resource, entries_by_request
from commit_coord.observing.audit import AuditLog
from commit_coord.process import SYSTEM_HOST, Host, has_dead_owner, on_behalf_of
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.hierarchy import COMMANDS, Level, Operation, escalate
from commit_coord.table.operation_locks import acquire, needed_locks

if TYPE_CHECKING:
    from commit_coord.locks.hive_lease import HiveLeases


class LockingCatalog:
    """The catalog's methods for locks. A subclass sets the attributes before the first call."""

    settings: Settings
    configuration: Configuration
    locks: HandoverLockManager
    coordinator: Coordinator
    events: Events
    host: Host = SYSTEM_HOST
    _audit: AuditLog

    def spelled(self, resource: Resource) -> Resource:
        """Return *resource* under the names that the store keeps: the only ones that lock, so one object has one lock.

        Every entry of this catalog that takes a resource spells it so. PyIceberg strips the blanks around the levels of
        a namespace.
        """
        namespace = ".".join(level.strip() for level in resource.path[0].split("."))
        return Resource((namespace, *resource.path[1:])) if namespace else resource

    def lock_operation(
        self, locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]], *, statement: str = ""
    ) -> Lease:
        """Take the locks of an operation, all or none; a context manager that gives them back.

        Read the tables again once they are held: what was read before may have changed while waiting.

        Args:
            locks: Without parents. More partitions than ``lock.max-partitions`` are locked by their prefixes.
            statement: Shown to those who wait.

        Raises:
            LockTimeout: ``lock.acquire-timeout-ms`` passed; the message names the holder.
            LockReentered: This thread holds one of them already.
            LockRefused: The policy is ``deny`` and its retries are used up.
        """
        return self.acquire_operation(self.lock_request(locks, statement=statement))

    def lock_request(
        self,
        locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]],
        *,
        statement: str = "",
        explicit: bool = False,
    ) -> LockRequest:
        """Return what :meth:`lock_operation` asks the lock manager for, parents included; nothing is asked yet.

        Args:
            locks: As for :meth:`lock_operation`.
            statement: Likewise.
            explicit: Whether a LOCK statement asks, so that only UNLOCK ends it.
        """
        pairs = _locks(locks)
        return LockRequest.of(
            LockScope.OPERATION,
            escalate([(self.spelled(resource), mode) for resource, mode in pairs], self.settings.lock_max_partitions),
            owner=self.host.owner(statement),
            request_id=str(self.host.new_id()),
            explicit=explicit,
            database_parents=self.settings.lock_database_parents,
        )

    def lock_change(
        self, locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]], *, statement: str = ""
    ) -> Lease:
        """Take the locks of an operation that changes a table or the catalog; see :meth:`lock_operation`.

        Raises:
            CommitLockFailed: The lock service could not be reached, as where a commit finds that out: nothing was
                changed.
            LockError: As :meth:`lock_operation`.
        """
        with before_a_change():
            return self.lock_operation(locks, statement=statement)

    def _latch(self, *tables: Identifier, statement: str) -> HandoverLease:
        """Take the commit latches of *tables* for a change of the catalog; see :meth:`Coordinator.latch`.

        Raises:
            CommitLockFailed: As :meth:`lock_change`.
            LockTimeout: Another owner held one of them for too long.
        """
        with before_a_change():
            return self.coordinator.latch(*tables, statement=statement)

    def acquire_operation(self, request: LockRequest) -> Lease:
        """Take what *request* asks for by ``lock.policy``.

        Under ``deny`` the number of retries ends the wait, as in Hive, unless ``lock.acquire-timeout-ms`` was set, too:
        then what comes first does.

        Raises:
            LockError: As :meth:`lock_operation`.
        """
        policy, seconds = self._policy(), self.settings.lock_acquire_timeout_ms / 1000
        if isinstance(policy, DenyPolicy) and self.configuration.origins["lock.acquire-timeout-ms"] == "default":
            seconds += policy.longest_s
        return self.locks.acquire(request, deadline=self.coordinator.clock.now() + seconds, policy=policy)

    @contextmanager
    def operating(self, operation: Operation, name: Identifier, statement: str = "") -> Iterator[None]:
        """Hold what *operation* takes on the table or database *name* when it is called from Python.

        Raises:
            CommitStateUnknown: An error in the block leaves it open whether the operation was carried out.
            CommitLockFailed: As :meth:`lock_change`.
            LockReentered: This thread holds a part of it, or holds it in a weaker mode.
            LockError: As :meth:`lock_operation`.
        """
        whole = COMMANDS[operation].level is Level.DATABASE
        on = Resource((".".join(name),)) if whole else Resource.table(name)
        statement = statement or operation.value
        with (
            doubt.deciding(f"the call was carried out ({statement})", name=".".join(name)),
            acquire(self, needed_locks(self, operation, on), statement) or nullcontext(),
        ):
            yield

    def show_locks(self, resource: Resource | None = None) -> Sequence[LockEntry]:
        """Return the held and the awaited locks on *resource* and below it, or all locks."""
        return self.locks.locks(self._spelled(resource))

    def lock_pages(self, resource: Resource | None = None) -> Iterator[Sequence[LockEntry]]:
        """Yield the entries of :meth:`show_locks` page by page, resource by resource; the first page comes soon."""
        yield from self.locks.pages(self._spelled(resource))

    def _spelled(self, resource: Resource | None) -> Resource | None:
        return None if resource is None else self.spelled(_resource(resource))

    def unlock(
        self,
        *,
        request_id: str | None = None,
        resource: Resource | None = None,
        shown: Sequence[LockEntry] = (),
        waiters: bool = False,
        guard: bool = False,
        dry_run: bool = False,
        why: str = "",
        by: str = "",
    ) -> Sequence[LockEntry]:
        """Release locks by force: one request, every request that holds a lock on exactly *resource*, or those *shown*.

        The requests of live owners that wait for *resource* stay. A request that is released while it waits ends with
        an error that names this process's user.

        Args:
            request_id: Which request, whether it holds its locks or waits for them.
            resource: Which resource.
            shown: What a dry run has returned and a person has seen. A request that waited then and holds its locks
                now, or the other way round, is left: nobody has agreed to that.
            waiters: Also release the requests that wait for *resource*.
            guard: Also release the guard of the table *resource*. Without it, only the guard of a dropped table.
            dry_run: Release nothing, and return what would be released.
            why: For the audit log, and for the requests that wait.
            by: The person who asked this process to do it, for the same; "" for its own user.

        Returns:
            The locks of the released requests.

        Raises:
            PartlyFreed: Some were released, or may have been, and then the lock service failed.
            LockServiceUnavailable: It failed, and nothing was released.
        """
        if resource is not None:
            _resource(resource)
        present = self.show_locks()
        waiting, had_waited = _waiting(present), _waiting(shown)
        chosen = {request_id} if request_id is not None else set[str]()
        chosen |= {e.request_id for e in shown if (e.request_id in had_waited) == (e.request_id in waiting)}
        for entry in present:
            if resource is None or not self.is_on(entry, resource):
                continue
            spared = entry.request_id in waiting and not waiters and not has_dead_owner(entry, self.host.is_dead)
            if (guard or self.is_left(entry)) if entry.guard else not spared:
                chosen.add(entry.request_id)
        found = [entry for entry in present if entry.request_id in chosen]
        if dry_run:
            return found
        # Those who wait first, the last one before the others: else a release would grant them the lock.
        newest_first = list(reversed(entries_by_request(found)))
        ids = sorted(newest_first, key=lambda one: one not in waiting)
        with self._forcing("unlock", why, by) as freed:
            by_manager = [manager.unlock_each(ids) for manager in self._lock_managers()]
            for one in ids:
                if one in waiting:
                    self.locks.note_forced_release(one, on_behalf_of(by, self.host).owner(), why)
                for each in by_manager:
                    freed.extend(next(each))
        return freed

    def reap(self, *, dry_run: bool = False, why: str = "", by: str = "") -> Sequence[LockEntry]:
        """Free what dead owners left; see :meth:`LockManager.reap`. Return what was freed.

        Args:
            dry_run: Free nothing, and return what would be freed.
            why: For the audit log.
            by: As for :meth:`unlock`.

        Raises:
            PartlyFreed: As :meth:`unlock`.
        """
        if dry_run:
            return [entry for some in self._reaped(dry_run=True) for entry in some]
        with self._forcing("reap", why, by) as freed:
            for some in self._reaped(dry_run=False):
                freed.extend(some)
        return freed

    def _reaped(self, *, dry_run: bool) -> Iterator[Sequence[LockEntry]]:
        """Yield what :meth:`reap` frees, or would free, part by part: as soon as it is freed."""
        for manager in self._lock_managers():
            yield manager.reap(dry_run=dry_run)

    def is_on(self, entry: LockEntry, resource: Resource) -> bool:
        """Return whether *entry* of :meth:`show_locks` is on exactly *resource*; see :meth:`LockManager.listed`."""
        return any(manager.is_on(entry, self.spelled(resource)) for manager in self._lock_managers())

    def is_left(self, entry: LockEntry) -> bool:
        """Return whether *entry* is a guard of a dropped table: no operation or commit needs it."""
        return False

    def _lock_managers(self) -> Sequence[LockManager]:
        """Return all lock managers that may have locks on this catalog's tables."""
        return [self.locks]

    @contextmanager
    def _forcing(self, how: str, why: str, by: str = "") -> Iterator[FreedLocks]:
        """Yield a list to which the block adds the locks that it frees; then record them, and emit an event.

        Both happen however the block ends, unless the list is empty.

        Raises:
            PartlyFreed: The block failed after something had been freed, or may have been.
        """
        freed = FreedLocks()
        try:
            with telling_what_was_freed() as freed:
                yield freed
        finally:
            if freed or freed.maybe:
                event = LocksForced(
                    how=how,
                    by=on_behalf_of(by, self.host).owner(),
                    at_ms=self.coordinator.clock.wall_ms(),
                    why=why,
                    freed=tuple(freed),
                    maybe_freed=tuple(freed.maybe),
                )
                self._audit.record(event)
                self.events.emit(event)

    def record_access_refused(self, event: AccessRefused) -> None:
        """Record *event* in the audit log. It was emitted when it happened."""
        self._audit.refused(event)

    def record_refusals_left_out(self, count: int) -> None:
        """Record in the audit log that *count* refused requests have no line of their own there."""
        self._audit.left_out(count, self.coordinator.clock.wall_ms())

    # Leases.

    @property
    def leases(self) -> HiveLeases:
        """The leases of this catalog: locks that are held for a time instead of by a process.

        Raises:
            ConfigError: The lock manager has no database; the message says what to set.
        """
        from commit_coord.locks.hive_lease import HiveLeases  # it needs a database; a metastore's catalog has none

        return HiveLeases(
            self.locks,
            max_duration_ms=self.settings.lease_max_duration_ms,
            database_parents=self.settings.lock_database_parents,
            spelled=self.spelled,
            forcing=lambda: self._forcing("drop lease", ""),
        )

    @contextmanager
    def fenced(self, lease_id: int) -> Iterator[None]:
        """Refuse every commit of this thread and catalog in the block unless the lease is live at the swap.

        In nested blocks, all of their leases must be.
        A commit that was refused did not land: ``CommitLockFailed``, and its files are gone. Operations of this thread
        do not wait for what the lease locks. What goes by no commit (create, drop and rename of tables) is not refused.

        Raises:
            InvalidArguments: There is no such lease, or it has ended already; or that is not the id of one.
        """
        with self.leases.treat_as_held(lease_id), self.coordinator.fenced(lease_id):
            yield

    def swap_under_leases(
        self, lease_ids: Sequence[int], table: tuple[str, ...], base: str | None, location: str
    ) -> SwapResult:
        """Swap if the leases are live; see :class:`~commit_coord.coordinator.PointerStore`.

        Asked right before the swap, in another database than that of the pointer: a lease that ends in between is not
        noticed.
        """
        self._ensure_live(lease_ids)
        return self.coordinator.store.swap(table, base, location)

    def _ensure_live(self, lease_ids: Sequence[int]) -> None:
        for lease_id in lease_ids:
            self.leases.ensure_live(lease_id)

    def _policy(self) -> Policy:
        if self.settings.lock_policy == "wait":
            return WaitPolicy()
        return DenyPolicy(
            numretries=self.settings.lock_num_retries,
            sleep_between_retries_ms=self.settings.lock_sleep_between_retries_ms,
        )


def _resource(resource: object) -> Resource:
    if not isinstance(resource, Resource):
        accepted = 'a Resource, such as Resource(("db", "table"))'
        raise InvalidArguments("not a resource", value=repr(resource), accepted=accepted)
    return resource


def _locks(
    locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]],
) -> list[tuple[Resource, LockMode]]:
    try:
        pairs: list[tuple[Any, Any]] = list(locks.items() if isinstance(locks, Mapping) else locks)
        return [(_resource(resource), LockMode(mode)) for resource, mode in pairs]
    except InvalidArguments:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidArguments("not locks", value=repr(locks), accepted="pairs of a Resource and a LockMode") from error


def _waiting(entries: Iterable[LockEntry]) -> set[str]:
    """Return the requests that wait, of which *entries* are."""
    return {entry.request_id for entry in entries if entry.state is LockState.WAITING}


@contextmanager
def before_a_change() -> Iterator[None]:
    """Have an outage of the lock service end as it ends a commit: nothing was sent that changes anything."""
    try:
        yield
    except LockServiceUnavailable as error:
        raise CommitLockFailed(f"nothing was changed: {error.message}", **error.details) from error
