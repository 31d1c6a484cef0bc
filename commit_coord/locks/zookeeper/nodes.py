"""What is asked of ZooKeeper and what it answers: nodes, and the operations of a multi. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


def ancestors(path: str) -> list[str]:
    """Return every proper prefix of *path* that names a node, outermost first."""
    levels = path.split("/")[1:-1]
    return ["/" + "/".join(levels[:depth]) for depth in range(1, len(levels) + 1)]


class Reason(StrEnum):
    """Why an operation can't be done."""

    EXISTS = "exists"
    MISSING = "missing"
    NOT_EMPTY = "not-empty"
    VERSION = "version"


class MultiRefused(Exception):
    """A multi did nothing, because of its operation number *index*."""

    def __init__(self, index: int, reason: Reason) -> None:
        super().__init__(f"operation {index}: {reason}")
        self.index = index
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Create:
    """Create *path*; with *sequential* the server adds a number."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete *path* if it has no children, and *version* unless that is -1."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Do nothing, but refuse the multi if *path* is not there."""

    path: str


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the data of *path*, and of *version* alone unless that is -1."""

    path: str
    data: bytes
    version: int = -1


Operation = Create | Delete | Check | Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What the server knows of a node."""

    created: int
    """The transaction that created it (czxid): the ensemble's epoch in the upper half, a counter in the lower one."""
    created_ms: int
    changed_below: int
    """The last transaction that created or deleted a child (pzxid)."""
    version: int
    session: int
    """Whose ephemeral it is; 0 for a persistent node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's data."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Listing:
    """A node's children."""

    names: list[str]
    stat: Stat
