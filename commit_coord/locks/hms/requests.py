"""Requests in a metastore: as tickets of ours, and as they are listed, each with all its components."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from commit_coord.errors import LockRefused, LockServiceUnavailable, MetastoreUnavailable
from commit_coord.hms.connection import LostReply, MetaError, MetastoreServerFailed, UnknownMethod
from commit_coord.hms.locks import ListedLock, LockPart
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.keeping import Ticket
from commit_coord.locks.threads import Turn
from commit_coord.model import LockRequest, LockScope, Owner
from commit_coord.protocol.deadlock import Obstacle, Wait

REQUESTS = (hms_names.OPERATIONS, hms_names.REQUESTS)
"""Where every operation request is listed once."""


FOREIGN = "hms-"
"""How the request ids of other programs' locks begin; the rest is the lock id."""


class Guarded(LockRefused):
    """The latch was refused: the table's guard is in the metastore."""


@dataclass(slots=True, eq=False, kw_only=True)
class HmsTicket(Ticket):
    """A request in the metastore."""

    lock_id: int
    granted: float = 0.0
    """When the lease began, on ``Clock.now``."""
    blocked_by: int | None = None
    stepped_back: bool = False
    """Whether it was granted before an earlier request, and gave its place back."""
    turn: Turn
    """Set when this client releases the lock that blocks the request."""


@dataclass(slots=True, eq=False)
class MetastoreLock:
    """One lock as it was listed, all its components together."""

    lock_id: int
    listed: list[ListedLock]

    @property
    def acquired(self) -> bool:
        """Whether it is granted."""
        return self.listed[0].acquired

    @property
    def heartbeat_ms(self) -> int:
        """Its last heartbeat."""
        return max(one.heartbeat_ms for one in self.listed)

    @property
    def agent_info(self) -> hms_names.Agent | None:
        """What its client wrote into ``agentInfo``; None for a lock of another program."""
        return hms_names.Agent.parse(self.listed[0].agent)

    @property
    def agent(self) -> str:
        """The thread that asked for it; no thread of this process waits for a request of another client."""
        return hms_names.thread_of(self.listed[0]) or self.request_id

    @property
    def request_id(self) -> str:
        """Its request id; for a lock of another program, a name made of the lock id."""
        info = self.agent_info
        return info.request_id if info else f"{FOREIGN}{self.lock_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HmsBlocker(Blocker):
    """The nearest blocker, with what decides when to ask again."""

    ahead: int
    """How many requests block this one."""
    turns: int
    """How many holders come before this request, if each one publishes the offers of the requests behind it."""
    first: int
    """Lock id of the first request that blocks this one: if it changes, the queue has moved."""
    since: float
    """Since when this client has seen that request as the first one."""
    looked: float
    """When the listing that shows the blocker was requested."""
    expires: float | None
    """When the blocker will have had no new heartbeat for its lease time; None if it may be kept for ever."""


UNLISTED_BLOCKER = HmsBlocker(
    request_id="",
    owner=Owner(user="an owner that the metastore does not list", host="", pid=0, application=""),
    requested_at_ms=0,
    ahead=1,
    turns=1,
    first=0,
    since=0.0,
    looked=0.0,
    expires=None,
)
"""The blocker if the metastore makes us wait, but lists no lock that blocks us."""


def is_operation(request: LockRequest) -> bool:
    """Return whether *request* is of the operation scope."""
    return request.scope is LockScope.OPERATION


def grouped(listed: Iterable[ListedLock]) -> list[MetastoreLock]:
    """Return the locks that the components belong to, in the order of their arrival."""
    found: dict[int, MetastoreLock] = {}
    for one in listed:
        found.setdefault(one.lock_id, MetastoreLock(one.lock_id, [])).listed.append(one)
    return [found[lock_id] for lock_id in sorted(found)]


def waits_among(locks: Sequence[MetastoreLock]) -> list[Wait]:
    """Return the operation requests among *locks* that wait, each with the requests that block it."""
    index: dict[tuple[str, str | None], list[tuple[MetastoreLock, LockPart]]] = {}
    for one in locks:
        for listed in one.listed:
            index.setdefault((listed.part.table, listed.part.partition), []).append((one, listed.part))
    found: list[Wait] = []
    for one in locks:
        blockers = {
            other.lock_id: (other, listed.part)
            for listed in one.listed
            for other, part in index[listed.part.table, listed.part.partition]
            if other is not one
            and (other.acquired or other.lock_id < one.lock_id)
            and hms_names.conflict(listed.part, part)
        }
        info = one.agent_info
        if one.acquired or info is None or not blockers:
            continue
        _, wanted = blockers[max(blockers)]
        found.append(
            Wait(
                request_id=one.request_id,
                place=one.lock_id,
                agent=one.agent,
                owner=hms_names.owner_of(one.listed[0], info),
                wanted=(hms_names.resource_of(wanted)[1], hms_names.mode_of(wanted)),
                obstacles=[
                    Obstacle(
                        request_id=other.request_id,
                        place=other.lock_id,
                        agent=other.agent,
                    )
                    for other, _ in blockers.values()
                ],
            )
        )
    return found


def nearest_to(waiting: MetastoreLock, by_table: dict[tuple[str, str], list[MetastoreLock]]) -> MetastoreLock | None:
    """Return the lock for which *waiting* waits: the last one before it, else a later one that was granted first."""
    nearest: tuple[bool, int] | None = None
    found = None
    for listed in waiting.listed:
        part = listed.part
        for other in by_table.get((part.db, part.table), []) + (by_table.get((part.db, ""), []) if part.table else []):
            rank = (other.lock_id < waiting.lock_id, other.lock_id)
            if (
                other is not waiting
                and (rank[0] or other.acquired)
                and (nearest is None or rank > nearest)
                and any(hms_names.conflict(part, one.part) for one in other.listed)
            ):
                nearest, found = rank, other
    return found


@contextmanager
def translated(request: LockRequest | None) -> Iterator[None]:
    """Turn the metastore's errors into errors of a lock service, except NoSuchLock, which the caller handles."""
    try:
        yield
    except MetastoreUnavailable as error:
        message = "the metastore did not answer" if isinstance(error, LostReply) else "the metastore can't be reached"
        raise LockServiceUnavailable(message, locks=request, cause=error) from error
    except UnknownMethod as error:
        raise LockServiceUnavailable("the metastore does not support locks", locks=request, cause=error) from error
    except (MetaError, MetastoreServerFailed) as error:
        raise LockServiceUnavailable(
            "the metastore's lock service failed; if its database has no lock tables (HIVE_LOCKS, TXNS), create them "
            "with its schema tool",
            locks=request,
            cause=error,
        ) from error
