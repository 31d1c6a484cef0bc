"""Types for ZooKeeper's requests and answers: nodes, and the operations of a multi. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


def ancestors(path: str) -> list[str]:
    """Return all parents of *path*, outermost first."""
    levels = path.split("/")[1:-1]
    return ["/" + "/".join(levels[:depth]) for depth in range(1, len(levels) + 1)]


ANY_VERSION = -1


class Reason(StrEnum):
    """Why an operation was refused."""

    EXISTS = "exists"
    MISSING = "missing"
    NOT_EMPTY = "not-empty"
    VERSION = "version"


class MultiRefused(Exception):
    """A multi did nothing, because its operation number *index* was refused."""

    def __init__(self, index: int, reason: Reason) -> None:
        super().__init__(f"operation {index}: {reason}")
        self.index = index
        self.reason = reason


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Create *path*; with *sequential* the server appends a sequence number."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class DeleteNode:
    """Delete *path* if it has no children and is at *version*."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class CheckNode:
    """Change nothing, but refuse the multi if *path* does not exist."""

    path: str


@dataclass(frozen=True, slots=True)
class ChangeNode:
    """Replace the data of *path* if it is at *version*."""

    path: str
    data: bytes
    version: int = ANY_VERSION


NodeOperation = CreateNode | DeleteNode | CheckNode | ChangeNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """The stat of a node."""

    created: int
    """The transaction that created it (czxid): the ensemble's epoch in the upper half, a counter in the lower one."""
    created_ms: int
    changed_below: int
    """The last transaction that created or deleted a child (pzxid)."""
    version: int
    session: int
    """The session of an ephemeral node; 0 for a persistent node."""


@dataclass(frozen=True, slots=True)
class Node:
    """The data and the stat of a node."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class ChildListing:
    """The names of a node's children, and the stat of the node."""

    names: list[str]
    stat: Stat
