"""The encoding of our locks in a Hive Metastore, whose lock table was not designed for them.

The commit latch is what Java and PyIceberg take: EXCLUSIVE on (database, table).

Operation locks must not conflict with the latch, so they are in a database that can't exist. HMS has a hierarchy of its
own, in which a lock on a table matches every partition: S on a table would wait for X on one of its partitions, which
Hive's rules (S on the table, X on the partition) allow together. So each resource, of whatever level, becomes a
*partition* of a table that no writer locks, and the parents that a request names in S do what Hive's hierarchy does:

    X on db/t/day=1, S on db/t   →   EXCLUSIVE on r=db~2ft~2fday~3d1, SHARED_READ on r=db~2ft

One more component, EXCLUSIVE on the request id, makes an id usable once and lists all requests in one place.

The owner is stored in three columns, each with at most 128 characters.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from commit_coord.hms.locks import ListedLock, LockPart, LockType
from commit_coord.model import LockMode, LockRequest, LockScope, Owner, Resource

OPERATIONS = "commit-coord"
"""The database of the operation locks: Hive allows no hyphen in a name."""

REQUESTS = "requests"
"""Its table in which each request locks its own id."""

RELEASES = "releases"
"""Its table with the notes of who released a request by force: locks that block nobody."""

_MARK = "commit-coord"
_COLUMN = 128
_THREAD = 12
_PARTITION = 700
"""Maximum length of a partition's name; Hive 2 allows 767 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The data of our requests in ``agentInfo``.

    Args:
        request_id: The request.
        client: Which client sent it.
        requested_ms: When, by the client's wall clock.
        lease_ms: How long it may be held without a heartbeat; None for a LOCK statement or a guard: for ever.
        application: The owner's application.
        statement: The owner's statement, cut to the length of the column.
        guard: Whether this is a table's guard (``guard``) and no request.
    """

    request_id: str
    client: str
    requested_ms: int
    lease_ms: int | None
    application: str
    statement: str
    guard: bool = False

    def __str__(self) -> str:
        """Return it as it is sent."""
        lease = "guard" if self.guard else "explicit" if self.lease_ms is None else f"{self.lease_ms}"
        head = f"{_MARK} {self.request_id} {self.client} {self.requested_ms:x} {lease}"
        application = quote(self.application, safe="/:@+=,()[]")[:24] or "-"
        return fitting(f"{head} {application} {self.statement}")

    @classmethod
    def parse(cls, text: str) -> Agent | None:
        """Return what *text* says; None when it is not one of ours."""
        mark, *words = text.split(" ", 6)
        if mark != _MARK or len(words) != 6:
            return None
        request_id, client, requested, lease, application, statement = words
        try:
            return cls(
                request_id=request_id,
                client=client,
                requested_ms=int(requested, 16),
                lease_ms=None if lease in ("explicit", "guard") else int(lease),
                application="" if application == "-" else unquote(application),
                statement=statement,
                guard=lease == "guard",
            )
        except ValueError:
            return None


def agent(request: LockRequest, *, client: str, requested_ms: int, lease_ms: int) -> str:
    """Return *request*'s ``agentInfo``."""
    return str(
        Agent(
            request_id=request.request_id,
            client=client,
            requested_ms=requested_ms,
            lease_ms=None if request.explicit else lease_ms,
            application=request.owner.application,
            statement=request.owner.statement,
        )
    )


def host(owner: Owner, thread: str = "") -> str:
    """Return the owner's host, process and *thread*, a word without colons, as one column."""
    process = f"{owner.process or f'::{owner.pid}:'} {thread[:_THREAD]}".rstrip()
    return fitting(f"{owner.host[: _COLUMN - 1 - len(process)]} {process}")


def thread_of(listed: ListedLock) -> str:
    """Return the thread that asked for *listed*, as a word that no other thread ever has; empty if it does not say."""
    thread = listed.host.rpartition(" ")[2]
    return "" if ":" in thread else thread


def user(owner: Owner) -> str:
    """Return the owner's user as a column."""
    return fitting(owner.user)


def owner_of(listed: ListedLock, agent: Agent | None) -> Owner:
    """Return the owner of *listed*."""
    if agent is None:
        return Owner(user=listed.user, host=listed.host, pid=0, application=listed.agent)
    name, _, process = listed.host.removesuffix(f" {thread_of(listed)}").rpartition(" ")
    pid = process.split(":")[2] if process.count(":") == 3 else ""
    return Owner(
        user=listed.user,
        host=name,
        pid=int(pid) if pid.isdigit() else 0,
        application=agent.application,
        statement=agent.statement,
        process="" if process.startswith("::") else process,
    )


def parts(request: LockRequest) -> list[LockPart]:
    """Return the components of *request* as the metastore lists them: a latch names its table in lower case."""
    if request.scope is LockScope.COMMIT:
        names = dict.fromkeys(tuple(name.lower() for name in resource.path[:2]) for resource, _ in request.locks)
        return [LockPart(type=LockType.EXCLUSIVE, db=database, table=table) for database, table in names]
    named = LockPart(
        type=LockType.EXCLUSIVE, db=OPERATIONS, table=REQUESTS, partition=f"r={_encoded(request.request_id)}"
    )
    return [named, *(_operation(resource, mode) for resource, mode in request.locks)]


def forced_release_note(request_id: str) -> LockPart:
    """Return the lock that is a note about the forced release of a request; its owner is the operator."""
    return LockPart(type=LockType.SHARED_READ, db=OPERATIONS, table=RELEASES, partition=f"r={_encoded(request_id)}")


def fitting(text: str) -> str:
    """Return *text* as a column takes it: some servers store Latin-1, and all of them fail if it is too long.

    Servers put the text unescaped between quotes into an SQL statement: ``it's`` would end the text, and the rest would
    be executed.
    """
    return text.translate(_UNQUOTED).encode("ascii", "replace").decode()[:_COLUMN]


def places(request: LockRequest) -> list[tuple[str, str | None]]:
    """Return the databases and tables to list for the locks that may block *request*."""
    tables = {(part.db, part.table) for part in parts(request) if part.table != REQUESTS}
    if len(tables) > 1 and request.scope is LockScope.OPERATION:
        return [(OPERATIONS, None)]
    return sorted(tables)


def operation_table(resource: Resource) -> str:
    """Return the table under which the operation locks of *resource*'s table lie: readable, and one for each table."""
    name = "/".join(resource.path[:2])
    readable = re.sub(r"[^a-z0-9]+", "_", name.lower())[:80]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def resource_of(part: LockPart) -> tuple[LockScope, Resource]:
    """Return the scope and the resource of *part*. Locks of other programs are in the commit scope, like latches."""
    if part.db == OPERATIONS and part.partition is not None:
        return LockScope.OPERATION, Resource.parse(unquote(part.partition.removeprefix("r=").replace("~", "%")))
    levels = (part.db, *([part.table] if part.table else []), *(part.partition or "").split("/"))
    return LockScope.COMMIT, Resource(tuple(level for level in levels if level))


def mode_of(part: LockPart) -> LockMode:
    """Return our nearest mode: X for the locks of Hive's writers, because they block our latch, too."""
    return LockMode.SHARED if part.type is LockType.SHARED_READ else LockMode.EXCLUSIVE


def conflict(wanted: LockPart, other: LockPart) -> bool:
    """Return whether the server lets *wanted*, SHARED_READ or EXCLUSIVE, wait for *other*."""
    if wanted.db != other.db or (wanted.table and other.table and wanted.table != other.table):
        return False
    if wanted.partition is not None and other.partition is not None and wanted.partition != other.partition:
        return False
    if wanted.type is LockType.SHARED_READ:
        return other.type is LockType.EXCLUSIVE
    # A reader of a whole database stops nobody below it.
    return bool(other.table) or other.type is not LockType.SHARED_READ


def listed(resource: Resource) -> Resource:
    """Return *resource* as its operation locks name it: by table and digest if it is too long for the column."""
    text = _partition(resource)
    if len(text) <= _PARTITION:
        return resource
    return Resource((*resource.path[:2], hashlib.sha256(text.encode()).hexdigest()))


def _operation(resource: Resource, mode: LockMode) -> LockPart:
    return LockPart(
        type=LockType.SHARED_READ if mode is LockMode.SHARED else LockType.EXCLUSIVE,
        db=OPERATIONS,
        table=operation_table(resource),
        partition=_partition(listed(resource)),
    )


def _partition(resource: Resource) -> str:
    return f"r={_encoded(str(resource))}"


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_.-")


def _encoded(text: str) -> str:
    """Return *text* in small letters, digits and ``_.-~``.

    Hive 4 parses a partition's name and composes it again, and only such a value stays the same; 3.1 folds its case.
    """
    return "".join(c if c in _PLAIN else "".join(f"~{byte:02x}" for byte in c.encode()) for c in text)


_UNQUOTED = str.maketrans("'\\\0", '"/?')
