"""Requests to kazoo's client, and the conversion of its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commit_coord.locks.zookeeper.driver import kazoo_errors, serialization
from commit_coord.locks.zookeeper.nodes import ChildListing, Node, Stat

Query = Callable[[Any], Any]
"""Sends one request through kazoo's client and returns its asynchronous result."""


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """A request about one node."""

    path: str
    send: Query

    def __call__(self, client: Any) -> Any:
        """See :data:`Query`."""
        return self.send(client)


def path_of(request: Query) -> str | None:
    """Return the node that *request* is about; None if it is not about one node."""
    return request.path if isinstance(request, NodeQuery) else None


def children_of(path: str) -> Query:
    """Request the children of a node and its stat."""
    return NodeQuery(path, lambda client: client.get_children_async(path, include_data=True))


def data_of(path: str, watch: Callable[[str | None], None] | None) -> Query:
    """Request the data of a node and its stat."""
    watcher = None if watch is None else lambda event: watch(event.path)
    return NodeQuery(path, lambda client: client.get_async(path, watch=watcher))


def stat_of(path: str) -> Query:
    """Request the stat of a node."""
    return NodeQuery(path, lambda client: client.exists_async(path))


def deletion_of(path: str) -> Query:
    """Request the deletion of a node."""
    return NodeQuery(path, lambda client: client.delete_async(path))


def sync(client: Any) -> Any:
    """Request a sync with the leader."""
    return client.sync_async("/")


def found(answer: Callable[[], Any]) -> Any:
    """Return an answer, None if the node does not exist."""
    try:
        return answer()
    except kazoo_errors.NoNodeError:
        return None


def listing(answer: Any) -> ChildListing | None:
    """Convert the answer to :func:`children_of`."""
    return None if answer is None else ChildListing(answer[0], stat(answer[1]))


def node(answer: Any) -> Node | None:
    """Convert the answer to :func:`data_of`."""
    return None if answer is None else Node(answer[0], stat(answer[1]))


def stat(of: Any) -> Stat:
    """Convert kazoo's stat to ours."""
    return Stat(
        created=of.czxid,
        created_ms=of.ctime,
        changed_below=of.pzxid,
        version=of.version,
        session=of.ephemeralOwner,
    )


def taken(pending: Any) -> Any:
    """Return the answer, or raise its error: a copy of it, because kazoo keeps the original exception."""
    if pending.exception is not None:
        raise type(pending.exception)(*pending.exception.args)
    return pending.value


def alone(read: Any) -> Query:
    """Request one read of a multiRead alone."""
    get_children = isinstance(read, serialization.GetChildren)
    return NodeQuery(
        read.path,
        lambda client: client.get_children_async(read.path) if get_children else client.get_async(read.path),
    )
