"""Requests in ZooKeeper, as this client knows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from commit_coord.locks.base import Interrupted
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.keeping import Ticket
from commit_coord.locks.threads import Turn
from commit_coord.locks.zookeeper.nodes import Operation
from commit_coord.locks.zookeeper.offers import Taken
from commit_coord.model import LockMode, Resource


class Gone(Exception):
    """The nodes of our request are not there any more."""


class Bygone(Interrupted):
    """What is there belongs to a session that was lost, and goes with it."""


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a release does beside deleting its own nodes, all or nothing."""

    operations: list[Operation]
    instead: Callable[[], None] = nothing
    """Done where that is refused: by default nothing, since the request that it is for has gone by itself."""


@dataclass(slots=True, eq=False)
class Part:
    """What one multi enters."""

    marker: str
    locks: tuple[tuple[Resource, LockMode], ...]
    sent: bool = False
    """Whether the multi may have been done."""
    nodes: dict[Resource, str] | None = None
    """The lock nodes by resource, once they are known."""
    unclear: list[Resource] = field(default_factory=list)
    """Resources that were not found free yet."""
    marks: dict[Resource, int] = field(default_factory=dict)
    """Versions of those that were found marked, from before they were listed."""


@dataclass(slots=True, eq=False, kw_only=True)
class ZooKeeperTicket(Ticket):
    """A request in ZooKeeper. An answer of the leader confirms it."""

    parts: list[Part]
    session: int = -1
    """The number of the session that its ephemeral nodes belong to."""
    generation: int = 0
    rounds: int = 0
    """How often it was withdrawn because a later part was blocked."""
    turn: Turn
    """Set when it is worth to look again."""
    ended: bool = False
    """Whether a watch says that its nodes are gone. It may mean others, which we removed to enter anew."""
    offers: bool = False
    """Whether its offer is published, as far as is known."""
    doubtful: bool = False
    """Whether an offer of it may have been taken that is not published any more."""
    behind: tuple[str, float] = "", 0.0
    """The node that it waits for, and since when."""
    tells: int | None = None
    """The place for which it has told whom it waits for."""
    taken: dict[str, Taken] = field(default_factory=dict)
    """The offers that it took, by request."""
    noted: int | None = None
    """The version of the note that it found; None for no note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBlocker(Blocker):
    """The nearest blocker in one resource."""

    path: str
    resource: Resource
    explicit: bool
    known: bool = False
    """Whether the owner was looked up."""
    apart: bool = False
    """Whether we wait for it outside of all queues."""
