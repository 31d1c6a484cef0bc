"""Who holds, who waits, and for whom: the locks of a catalog at one moment, in the order in which people need them.

Pure. However many locks there are, a page shows a bounded number of requests: those on the objects with the longest
waits first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from commit_coord.model import LockEntry, LockMode, LockScope, LockState, Owner, Resource

PAGE_SIZE = 100
"""Locks on one page."""

SHORT = 8
"""As many letters of a request id as the command line prints, and as a person types to confirm."""

_COMMIT = re.compile(r"commit ([0-9a-f]{8}[0-9a-f-]{0,28})")
"""The statement of a commit's latch, which has a request id of its own. A metastore cuts off what is too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRow:
    """One lock of one request.

    Args:
        entry: The lock.
        cause_of_death: How it is known that its owner is dead; "" if that is not known.
        blocker: The owner of the request that it waits for; None if it waits for none, or for one that is not listed.
        behind: How many requests wait for this one.
    """

    entry: LockEntry
    cause_of_death: str = ""
    blocker: Owner | None = None
    behind: int = 0

    @property
    def waits(self) -> bool:
        """Whether it waits."""
        return self.entry.state is LockState.WAITING

    @property
    def kind(self) -> str:
        """What it takes, in words."""
        if self.entry.guard:
            return "guard"
        if self.entry.scope is LockScope.COMMIT:
            return "commit"
        return "exclusive" if self.entry.mode is LockMode.EXCLUSIVE else "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLocks:
    """The locks on one object, holders first."""

    resource: Resource
    rows: Sequence[LockRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The locked objects of one database."""

    name: str
    groups: Sequence[ObjectLocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The locks of a catalog at one moment.

    Args:
        at_ms: When, by this host's wall clock.
        held: Number of locks that are held.
        waiting: Number of locks that are waited for.
        dead: Number of requests whose owner is dead.
        found: Number of locks that fit what the visitor looks for.
        page: The number of this page, from 1.
        pages: How many there are.
        databases: The locks of this page.
    """

    at_ms: int
    held: int
    waiting: int
    dead: int
    found: int
    page: int
    pages: int
    databases: Sequence[Database]


def commit_of(entry: LockEntry) -> str:
    """Return the request id, or its beginning, of the commit whose latch *entry* is; "" if it is none."""
    return latched_commit(entry.scope, entry.owner.statement)


def latched_commit(scope: str, statement: str) -> str:
    """Return the request id, or its beginning, of the commit of a latch with *statement*; "" for another lock."""
    match = _COMMIT.fullmatch(statement) if scope == LockScope.COMMIT else None
    return match[1] if match else ""


def now(
    entries: Iterable[LockEntry],
    *,
    at_ms: int,
    cause_of_death: Callable[[LockEntry], str],
    wanted: str = "",
    page: int = 1,
) -> Now:
    """Return what a page shows.

    Args:
        entries: Those that the visitor may see.
        at_ms: When they were listed.
        cause_of_death: Returns how it is known that the owner of an entry is dead, "" if that is not known.
        wanted: A part of a resource, an owner, a statement or a request id; "" for all.
        page: Which page.
    """
    listed = list(entries)
    shown = _without_implied(listed)
    owners = {entry.request_id: entry.owner for entry in listed}
    blockers = {entry.request_id: entry.blocked_by for entry in listed if entry.blocked_by}
    behind = Counter(blockers.values())
    dead = {entry.request_id: cause for entry in listed if (cause := cause_of_death(entry))}
    held = sum(entry.state is LockState.ACQUIRED for entry in listed)
    found = [entry for entry in _ordered(shown) if _fits(entry, wanted.casefold())]
    pages = max(1, -(-len(found) // PAGE_SIZE))
    page = min(max(page, 1), pages)
    rows = [
        LockRow(
            entry=entry,
            cause_of_death=dead.get(entry.request_id, ""),
            blocker=owners.get(entry.blocked_by or ""),
            behind=behind[entry.request_id],
        )
        for entry in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    ]
    return Now(
        at_ms=at_ms,
        held=held,
        waiting=len(listed) - held,
        dead=len(dead),
        found=len(found),
        page=page,
        pages=pages,
        databases=_grouped(rows),
    )


def _without_implied(entries: Sequence[LockEntry]) -> list[LockEntry]:
    """Leave out the shared locks that a request holds on the parents of what it locks, unless a request waits there."""
    above: dict[str, set[tuple[str, ...]]] = {}
    awaited: set[tuple[str, tuple[str, ...]]] = set()
    for entry in entries:
        path = entry.resource.path
        above.setdefault(entry.request_id, set()).update(path[:depth] for depth in range(1, len(path)))
        if entry.blocked_by:
            awaited.add((entry.blocked_by, path))
    return [
        entry
        for entry in entries
        if entry.mode is LockMode.EXCLUSIVE
        or entry.resource.path not in above[entry.request_id]
        or (entry.request_id, entry.resource.path) in awaited
    ]


def _ordered(entries: Sequence[LockEntry]) -> list[LockEntry]:
    """Return *entries* by databases and tables, those with the longest wait first; on one object the holders first."""
    longest: dict[tuple[str, ...], int] = {}
    for entry in entries:
        if entry.state is LockState.WAITING:
            for depth in (1, 2):
                path = entry.resource.path[:depth]
                longest[path] = min(longest.get(path, entry.requested_at_ms), entry.requested_at_ms)
    never = 1 << 62

    def urgency(entry: LockEntry) -> tuple[object, ...]:
        path = entry.resource.path
        return (
            longest.get(path[:1], never),
            path[0],
            longest.get(path[:2], never),
            path,
            entry.state is LockState.WAITING,
            entry.requested_at_ms,
            entry.request_id,
        )

    return sorted(entries, key=urgency)


def _fits(entry: LockEntry, wanted: str) -> bool:
    if not wanted:
        return True
    texts = (str(entry.resource), ".".join(entry.resource.path), str(entry.owner), entry.request_id)
    return any(wanted in text.casefold() for text in texts)


def _grouped(rows: Sequence[LockRow]) -> list[Database]:
    by_database: dict[str, dict[Resource, list[LockRow]]] = {}
    for row in rows:
        resource = row.entry.resource
        by_database.setdefault(resource.path[0], {}).setdefault(resource, []).append(row)
    return [
        Database(name=name, groups=[ObjectLocks(resource=resource, rows=found) for resource, found in groups.items()])
        for name, groups in by_database.items()
    ]
