"""What this client knows about its own requests in ZooKeeper, and about requests that block them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from commit_coord.locks.base import Interrupted
from commit_coord.locks.blockers import Blocker
from commit_coord.locks.keeping import Ticket
from commit_coord.locks.threads import Turn
from commit_coord.locks.zookeeper.nodes import NodeOperation
from commit_coord.locks.zookeeper.offers import TakenNodes
from commit_coord.model import LockMode, Resource


class Gone(Exception):
    """The nodes of our request do not exist any more."""


class Bygone(Interrupted):
    """The nodes belong to a lost session; the servers will delete them together with it."""


def nothing() -> None:
    """Do nothing."""


UNHEARD = -1, -1
"""The wait may be published; nobody knows."""


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """Operations that a release adds to the multi that deletes the released request's nodes: all of them or none."""

    operations: list[NodeOperation]
    instead: Callable[[], None] = nothing
    """Called if the servers refuse the step: by default nothing, since the request that the step is about has ended."""


@dataclass(slots=True, eq=False)
class RequestPart:
    """The locks that one multi enters into their queues."""

    marker: str
    locks: tuple[tuple[Resource, LockMode], ...]
    sent: bool = False
    """Whether the multi may have been executed."""
    nodes: dict[Resource, str] | None = None
    """The paths of the lock nodes by resource; None before they are known."""
    unclear: list[Resource] = field(default_factory=list)
    """Resources that are not known to be free yet."""
    marks: dict[Resource, int] = field(default_factory=dict)
    """The node versions of resources that have a mark, read before their locks were listed."""
    withdrawn: bool = False
    """Whether this client has begun to delete the nodes of this part, in order to wait apart."""


@dataclass(slots=True, eq=False, kw_only=True)
class ZooKeeperTicket(Ticket):
    """A request in ZooKeeper. An answer of the leader confirms it."""

    parts: list[RequestPart]
    session: int = -1
    """The number of the session of its ephemeral nodes."""
    generation: int = 0
    rounds: int = 0
    """How often the request was withdrawn because a later part was blocked."""
    turn: Turn
    """Set when the waiting thread should look at its queues again."""
    ended: bool = False
    """Whether a watch has reported that the marker is gone. The request may have entered again since."""
    shows_its_wait: bool = False
    """Whether the node below ``statements`` may exist."""
    offers: bool = False
    """Whether the offer of the request is made, as far as this client knows."""
    doubtful: bool = False
    """Whether a holder may have taken an earlier offer of the request, which does not exist any more."""
    behind: tuple[str, float] = "", 0.0
    """The path of the node that blocks the request, and the time since which it does."""
    tells: tuple[int, int] | None = None
    """The place in the queue (czxid of the marker) for which the wait is published, and the number of the session.

    :data:`UNHEARD` if it may be published; None if it is not.
    """
    taken: dict[str, TakenNodes] = field(default_factory=dict)
    """The offers that this latch holder took, by request id."""
    noted: int | None = None
    """The version of the note that was found; None if there was no note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBlocker(Blocker):
    """The nearest node that blocks a request on one resource."""

    path: str
    resource: Resource
    explicit: bool
    outlives: bool = False
    """Whether it is known that the request is of a LOCK statement that was granted."""
    known: bool = False
    """Whether the owner was looked up."""
    apart: bool = False
    """Whether the blocked request waits outside of all queues."""
