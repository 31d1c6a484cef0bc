"""Values that all layers use: resources, modes, requests, owners, entries of a lock listing.

All are frozen. A *resource* is a path: ``db``, ``db/table``, ``db/table/k=v``, ``db/table/k=v/k2=v2``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NewType
from urllib.parse import quote, unquote

Generation = NewType("Generation", int)
"""Orders the grants of one resource; recorded with the commit that it covered."""


WriteMode = Literal["append", "overwrite", "dynamic"]
"""What a write replaces: nothing, the rows of a filter, or the partitions that it writes to. Users pass the text."""

_SHOWN = 50
"""Locks of one request that a message lists."""


class LockMode(StrEnum):
    """Hive's two modes. Shared locks coexist, an exclusive one excludes all others."""

    SHARED = "SHARED"
    EXCLUSIVE = "EXCLUSIVE"

    @property
    def letter(self) -> str:
        """``S`` or ``X``, as the Hive manual writes them."""
        return "S" if self is LockMode.SHARED else "X"


class LockScope(StrEnum):
    """The two scopes, never mixed: they do not see each other.

    OPERATION is the Hive hierarchy, held as long as a job runs. COMMIT is one exclusive latch for each table,
    held for milliseconds around read, validate and swap, and taken last.
    """

    OPERATION = "operation"
    COMMIT = "commit"


class LockState(StrEnum):
    """Whether a request is granted. Source: Hive Metastore Thrift ``LockState``."""

    ACQUIRED = "ACQUIRED"
    WAITING = "WAITING"


class LeaseState(StrEnum):
    """The state of a lease, as far as its holder knows. LOST and RELEASED are final."""

    HELD = "HELD"
    SUSPECT = "SUSPECT"
    LOST = "LOST"
    RELEASED = "RELEASED"


class CommitStatus(StrEnum):
    """The outcome of a commit. Source: Iceberg Java ``BaseMetastoreOperations.CommitStatus``."""

    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    UNKNOWN = "UNKNOWN"


def is_encodable(text: str) -> bool:
    """Return whether *text* can be sent and stored: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True, order=True)
class Resource:
    """A database, a table, a partition prefix or a partition, as the path of its names.

    Args:
        path: Names from the database down, unescaped. Partition levels are ``key=value``.
    """

    path: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse empty paths and names, and what is no text: half of a surrogate pair can't be sent or stored."""
        if not self.path or not all(self.path):
            raise ValueError(f"no level of a resource name may be empty, got: {self.path!r}")
        if not all(map(is_encodable, self.path)):
            raise ValueError(f"a name contains an unpaired surrogate, which no service can lock: {self.path!r}")

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Return the resource that ``str()`` wrote: levels split at ``/``, each percent-decoded."""
        return cls(tuple(unquote(part) for part in text.split("/")))

    @classmethod
    def table(cls, identifier: Iterable[str], *partition: str) -> Resource:
        """Return the table *identifier* (``("db", "table")``, namespaces joined by dots) or a partition of it."""
        *namespace, name = identifier
        return cls((".".join(namespace), name, *partition))

    @property
    def ancestors(self) -> tuple[Resource, ...]:
        """Every proper prefix, database first."""
        return tuple(Resource(self.path[:depth]) for depth in range(1, len(self.path)))

    def __str__(self) -> str:
        """Return the levels joined by ``/``; ``/`` and ``%`` inside a name are percent-encoded."""
        return "/".join(quote(part, safe=" =.,:;@!$&'()*+-_~[]{}<>^`|\"\\#?") for part in self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who asks for a lock: shown to those who wait for it."""

    user: str
    host: str
    pid: int
    application: str
    statement: str = ""
    process: str = ""
    """Names the operating system process beyond its pid: boot, pid namespace, pid, start time (see ``process.py``)."""

    def __str__(self) -> str:
        """Return ``user@host pid application: statement``."""
        head = f"{self.user}@{self.host} pid {self.pid} {self.application}".rstrip()
        return f"{head}: {self.statement}" if self.statement else head


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """A set of locks, granted all or none. Build it with :meth:`of`, which closes it under parents.

    Args:
        scope: Operation or commit.
        locks: Sorted by resource, one mode each (duplicates merged, X wins), parents included.
        owner: The owner of the request.
        request_id: Unique. After a lost reply, a client finds its own request by it.
        explicit: Taken by a LOCK statement: outlives its client until UNLOCK.
        offer: The work that its owner would do after the grant; an earlier holder may do it for the owner. "": none.
        offers_at: A folder for offers that are too large for the lock service; "" if there is none.
        changes_phase: The latch of a commit that brings its table to another phase (``protocol/migration``).
    """

    scope: LockScope
    locks: tuple[tuple[Resource, LockMode], ...]
    owner: Owner
    request_id: str
    explicit: bool = False
    offer: str = field(default="", repr=False)
    offers_at: str = field(default="", repr=False)
    changes_phase: bool = False

    @classmethod
    def of(
        cls,
        scope: LockScope,
        locks: Mapping[Resource, LockMode] | Iterable[tuple[Resource, LockMode]],
        *,
        owner: Owner,
        request_id: str,
        explicit: bool = False,
        offer: str = "",
        database_parents: bool = False,
    ) -> LockRequest:
        """Return a request for *locks*: parents added in S, duplicates merged, sorted.

        Args:
            scope: Operation or commit. In the commit scope every lock is X on a table and has no parents.
            locks: Resources and modes; a resource may come more than once.
            owner: The owner of the request.
            request_id: Unique id of this request.
            explicit: Taken by a LOCK statement.
            offer: The work that the owner would do after the grant.
            database_parents: Also hold S on the database of every table and partition.

        Source: Hive wiki "Locking": a partition lock in any mode holds S on all its parents;
        objects are taken in lexicographic order.
        """
        pairs = list(locks.items() if isinstance(locks, Mapping) else locks)
        if not pairs:
            raise ValueError("a lock request names at least one resource")
        merged: dict[Resource, LockMode] = {}
        for resource, mode in pairs:
            if scope is LockScope.COMMIT:
                if len(resource.path) != 2 or mode is not LockMode.EXCLUSIVE:
                    raise ValueError(f"the commit scope takes X on tables only, got: {mode.letter} on {resource}")
            else:
                for ancestor in resource.ancestors:
                    if len(ancestor.path) > 1 or database_parents:
                        merged.setdefault(ancestor, LockMode.SHARED)
            if merged.get(resource) is not LockMode.EXCLUSIVE:
                merged[resource] = mode
        ordered = tuple(sorted(merged.items()))
        return cls(scope=scope, locks=ordered, owner=owner, request_id=request_id, explicit=explicit, offer=offer)

    @property
    def table(self) -> Resource | None:
        """The table whose commit latch this asks for; None where it asks for anything else, or for several."""
        return self.locks[0][0] if self.scope is LockScope.COMMIT and len(self.locks) == 1 else None

    def __str__(self) -> str:
        """Return ``S db/t, X db/t/k=v``; of thousands of partitions the first ones and how many more."""
        shown = [f"{mode.letter} {resource}" for resource, mode in self.locks[:_SHOWN]]
        if len(self.locks) > _SHOWN:
            shown.append(f"and {len(self.locks) - _SHOWN:,} more")
        return ", ".join(shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The work that a waiting request would do after its grant.

    Args:
        request_id: The lock request.
        text: As its owner wrote it; means nothing to a lock manager.
    """

    request_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEntry:
    """One lock of one request, as a listing shows it.

    Args:
        resource: What is locked.
        mode: How.
        scope: Which of the two scopes.
        state: ACQUIRED or WAITING.
        owner: The owner of the request.
        request_id: Which request it belongs to.
        generation: Orders grants; None where the manager has none.
        requested_at_ms: Wall clock of the lock service, milliseconds since the epoch.
        expires_in_ms: What is left of the lease by the service's clock; 0 or less where it is over. None where leases
            do not expire, and where it is not known whether it is over.
        explicit: Taken by a LOCK statement, or a guard: it has no lease once it is granted.
        blocked_by: The request id that this one waits for, None when granted.
        guard: Belongs to the table, and keeps out writers that know nothing but the metastore's lock.
    """

    resource: Resource
    mode: LockMode
    scope: LockScope
    state: LockState
    owner: Owner
    request_id: str
    generation: Generation | None
    requested_at_ms: int
    expires_in_ms: int | None = None
    explicit: bool = False
    blocked_by: str | None = None
    guard: bool = False

    @property
    def is_endless(self) -> bool:
        """Whether it outlives its owner: of a LOCK statement that was granted, or a guard."""
        return self.explicit and self.expires_in_ms is None and self.state is LockState.ACQUIRED


def entries_by_request(entries: Iterable[LockEntry]) -> dict[str, list[LockEntry]]:
    """Return *entries* by their requests, in their order."""
    found: dict[str, list[LockEntry]] = {}
    for entry in entries:
        found.setdefault(entry.request_id, []).append(entry)
    return found


class Reach(StrEnum):
    """How far something is seen: by nobody else, or by threads, processes or machines that use one lock service."""

    NOBODY = "nobody"
    PROCESS = "process"
    HOST = "host"
    NETWORK = "network"


class ExpiryClock(StrEnum):
    """Whose clock decides that a lease has ended."""

    NONE = "none"
    """No lease ends by itself."""
    HOST = "host"
    SERVER = "server"
    CLIENT = "client"
    """Each client's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantees:
    """The guarantees of a lock manager. It refuses what it does not guarantee; the contract suite asserts both.

    Args:
        mutual_exclusion: Two conflicting requests are never granted at one time.
        hierarchy: The operation scope with parents and prefixes; else only the commit scope is served.
        fifo: Requests that conflict are granted in the order in which they entered.
        reach: How far exclusion goes.
        expiry: A holder that dies or stalls loses its lease by itself.
        survives_restart: Locks outlive a restart of the lock service.
        explicit_locks: LOCK and UNLOCK statements, locks that outlive their client.
        journal: Remembers the outcome of request ids.
        clock: Whose clock decides on expiry.
        carries: How far a holder sees the offers that it can publish.
        deadlocks: Threads that hold locks and wait for each other in a cycle get ``LockDeadlock``; else deadlines end
            it.
        notes: The holder of a commit latch gets the handover note of the last one, and leaves one with its release.
    """

    mutual_exclusion: bool
    hierarchy: bool
    fifo: bool
    reach: Reach
    expiry: bool
    survives_restart: bool
    explicit_locks: bool
    journal: bool
    clock: ExpiryClock
    carries: Reach = Reach.NOBODY
    deadlocks: bool = False
    notes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """An entry in the journal of a lock manager: a landed commit. A lock manager stores it and interprets nothing.

    The kind of the entry follows from its key. Two kinds are no commits, and encode other facts in these fields: a
    forced release has ``released:`` and the lock request id (:class:`~commit_coord.locks.handover.ForcedRelease`), a
    request to the REST server its idempotency key with ``:begun`` or ``:answer`` (``rest/answered``).

    Args:
        key: The id of the entry in the journal. Of a landed commit the commit request id; of an offer that a lock
            holder published the lock request id.
        table: ``db.table`` at the time.
        table_uuid: Iceberg's id of the table.
        metadata_location: The metadata file that published the attempt.
        snapshot_ids: The snapshots that it added.
    """

    key: str
    table: str
    table_uuid: str
    metadata_location: str
    snapshot_ids: tuple[int, ...] = field(default=())

    @property
    def request_id(self) -> str:
        """The commit request id, of what ``find_commit`` returns; the key of any other entry."""
        return self.key

    @property
    def stored(self) -> dict[str, Any]:
        """What services store as JSON. The key is called ``request_id`` there, as in all entries since the first."""
        return {
            "request_id": self.key,
            "table": self.table,
            "table_uuid": self.table_uuid,
            "metadata_location": self.metadata_location,
            "snapshot_ids": self.snapshot_ids,
        }

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> JournalEntry:
        """Return the entry that ``stored`` wrote.

        Raises:
            KeyError: A field is missing.
            TypeError: A field has another type.
        """
        return cls(
            key=stored["request_id"],
            table=stored["table"],
            table_uuid=stored["table_uuid"],
            metadata_location=stored["metadata_location"],
            snapshot_ids=tuple(stored["snapshot_ids"]),
        )
