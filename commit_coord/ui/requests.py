"""What became of a request: its locks now, its commit in a table, and what was done to it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.coordinator.history import is_beginning, request_ids_that_begin
from commit_coord.errors import CommitCoordError
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.model import JournalEntry, LockEntry, Resource
from commit_coord.ui.looking import Look
from commit_coord.ui.now import SHORT, commit_of, latched_commit
from commit_coord.ui.recent import Ended, Recent
from commit_coord.ui.tables import namespaces
from commit_coord.ui.visiting import VisitedCatalog, namespace_of

logger = logging.getLogger(__name__)

_AUDIT_TAIL = 4 * 1024 * 1024
"""Bytes of the audit log's end that are searched."""
_SEARCH_S = 0.5
"""How long tables are searched for a request of which nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What is known of a request.

    Args:
        locks: Its locks, and its places in queues; of a commit, also those of its latch.
        commits: The commits whose latch the request is: a latch has an id of its own. A metastore may cut theirs off.
        is_lock: Whether the request is a lock and no commit is known to belong to it, or none with its whole id.
        landed: Its commit, if that has landed.
        ended: Its commits in this process.
        audits: The lines of the audit log that name it.
        searched: How many tables were searched for it.
        failed: How many could not be searched.
        complete: Whether no other table may have it: none took too long, and the visitor may read all.
    """

    locks: Sequence[LockEntry]
    commits: Sequence[str]
    is_lock: bool
    landed: JournalEntry | None
    ended: Sequence[Ended]
    audits: Sequence[dict[str, Any]]
    searched: int
    failed: int
    complete: bool

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.locks or self.landed or self.ended or self.audits)

    @property
    def is_nowhere(self) -> bool:
        """Whether every table that may have it was searched, and none has it."""
        return self.landed is None and self.complete and not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The requests that are known to begin with some letters, of which none is certainly the one that is meant.

    Args:
        request_ids: Their ids.
        searched: As for :class:`Fate`.
        failed: As for :class:`Fate`.
        complete: As for :class:`Fate`.
    """

    request_ids: Sequence[str]
    searched: int
    failed: int
    complete: bool


@dataclass(slots=True)
class _Search:
    """A search for a commit in tables, which may take a limited time."""

    landed: JournalEntry | None = None
    searched: int = 0
    failed: int = 0
    complete: bool = True


def fate(place: VisitedCatalog, recent: Recent, look: Look, text: str, table: Identifier | None) -> Fate | Candidates:
    """Return what became of the request *text*; or the requests that begin so, unless exactly one can be meant.

    UUIDs of version 7 that were made within a minute have their first letters in common. So the beginning of an id
    means a request only if everything was searched, and no other request begins so.

    Args:
        place: The catalog.
        recent: The commits of this process.
        look: The locks now.
        text: The request id, or its first 8 letters or more.
        table: Where its commit is looked for; None looks in all tables, for a limited time.
    """
    if not is_beginning(text):
        return _fate(place, recent, look, text, table)
    text = text.lower()
    locks, audits = _locks(place, look, text), _audited(place, text)
    named = {one.request_id for one in locks} | {commit_of(one) for one in locks}
    named |= {line["request_id"] for line in audits} | {_commit_of_line(line) for line in audits}
    named |= {one.request_id for one in recent.find(text) if place.reads_tables(one.tables)}
    found = {one: table for one in named if one.startswith(text) or (one and text.startswith(one))}
    search = _Search(complete=table is None and place.reads_all)

    def look_in(name: Identifier) -> bool:
        found.update(dict.fromkeys(request_ids_that_begin(text, *place.catalog.coordinator.load(name)), name))
        return False

    _search_tables(place, search, table, look_in)
    whole = [one for one in found if not is_beginning(one)]
    if not whole:
        became = _fate(place, recent, look, text, table)
        failed = max(became.failed, search.failed)
        return replace(became, failed=failed, complete=became.complete and search.complete)
    if len(found) > 1 or search.failed or not search.complete:
        return Candidates(
            request_ids=sorted(whole), searched=search.searched, failed=search.failed, complete=search.complete
        )
    return _fate(place, recent, look, whole[0], found[whole[0]])


def _fate(place: VisitedCatalog, recent: Recent, look: Look, text: str, table: Identifier | None) -> Fate:
    locks = _locks(place, look, text)
    audits = _audited(place, text) if len(text) >= SHORT else []
    named = [(one.request_id, commit_of(one)) for one in locks]
    named += [(line["request_id"], _commit_of_line(line)) for line in audits]
    of_lock = [commit for request_id, commit in named if _begins(request_id, text)]
    commits = list(dict.fromkeys(filter(None, of_lock)))
    wanted = commits[0] if commits else text
    is_cut = is_beginning(wanted) and bool(commits)
    ended = [one for one in recent.find(wanted) if not is_beginning(wanted) and place.reads_tables(one.tables)]
    table = table or (_latched(locks, audits) if commits else None)
    search = _Search(complete=False) if is_cut else _searched(place, wanted, table)
    return Fate(
        locks=locks,
        commits=commits,
        is_lock=is_cut or (bool(of_lock) and not commits and search.landed is None),
        landed=search.landed,
        ended=ended,
        audits=audits,
        searched=search.searched,
        failed=search.failed,
        complete=search.complete,
    )


def _locks(place: VisitedCatalog, look: Look, text: str) -> list[LockEntry]:
    """Return the locks of the request *text*, and the latch of its commit."""
    return [
        one
        for one in look.entries
        if (_begins(one.request_id, text) or _is_latch_of(commit_of(one), text)) and place.reads(one.resource)
    ]


def _latched(locks: Sequence[LockEntry], audits: Sequence[dict[str, Any]]) -> Identifier:
    """Return the table of a latch."""
    resource = locks[0].resource if locks else _resources(audits[0])[0]
    return (*namespace_of(resource), resource.path[1])


def _begins(request_id: str, text: str) -> bool:
    return len(text) >= SHORT and request_id.startswith(text)


def _is_latch_of(commit: str, text: str) -> bool:
    """Return whether the latch of *commit*, which may be cut off, belongs to the request *text*."""
    return bool(commit) and len(text) >= SHORT and (commit.startswith(text) or text.startswith(commit))


def _searched(place: VisitedCatalog, text: str, table: Identifier | None) -> _Search:
    """Search the journal for the commit *text*, and then the tables."""
    request_id = request_uuid(text)
    entry = place.catalog.locks.recall(request_id)
    if entry is not None and _reads_named(place, entry.table):
        return _Search(landed=entry)
    search = _Search(complete=table is not None or place.reads_all)

    def look_in(name: Identifier) -> bool:
        search.landed = place.catalog.coordinator.find(name, request_id)
        return search.landed is not None

    _search_tables(place, search, table, look_in)
    return search


def _reads_named(place: VisitedCatalog, name: str) -> bool:
    """Return whether the visitor may read every table that *name* may mean.

    The journal joins names with dots, which a name may contain: ``a.b.c`` is also the table ``b.c`` of ``a``. A commit
    that is not taken from the journal for that is looked for in the tables.
    """
    levels = name.split(".")
    return place.reads_tables(tuple(levels[: depth + 1]) for depth in range(1, len(levels)))


def _search_tables(
    place: VisitedCatalog, search: _Search, table: Identifier | None, look_in: Callable[[Identifier], bool]
) -> None:
    """Call *look_in* with *table*, or with all tables, until it returns True or the time is over; count in *search*."""
    until = SYSTEM_CLOCK.now() + _SEARCH_S
    for name in [table] if table is not None else _readable(place):
        if SYSTEM_CLOCK.now() > until:
            search.complete = False
            break
        try:
            found = look_in(name)
        except (NoSuchTableError, CommitCoordError, OSError, LookupError, ValueError) as error:
            if table is None and isinstance(error, NoSuchTableError):
                continue  # it was dropped meanwhile, or is no Iceberg table
            logger.warning("%s can't be searched for a request", ".".join(name), exc_info=True)
            search.failed += 1
            continue
        search.searched += 1
        if found:
            break


def _readable(place: VisitedCatalog) -> Iterator[Identifier]:
    for namespace in namespaces(place.catalog):
        if place.visitor.reads(place.catalog.name, namespace):
            yield from place.catalog.list_tables(namespace)


def _audited(place: VisitedCatalog, text: str) -> list[dict[str, Any]]:
    """Return the lines of the audit log about locks of the request, as far as the visitor may read what they locked."""
    path = place.catalog.settings.commit_coord_audit_log
    if not path:
        return []
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _AUDIT_TAIL))
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []  # nothing was audited yet
    except OSError:
        logger.warning("the audit log can't be read: %s", path, exc_info=True)
        return []
    found = []
    for line in lines:
        if text[:SHORT].encode("utf-8", "replace") in line:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the first one may be cut
            is_named = _begins(str(record.get("request_id", "")), text) or _is_latch_of(_commit_of_line(record), text)
            if is_named and _may_read(place, record):
                found.append(record)
    return found


def _commit_of_line(record: dict[str, Any]) -> str:
    return latched_commit(record.get("scope", ""), record.get("owner", {}).get("statement", ""))


def _may_read(place: VisitedCatalog, record: dict[str, Any]) -> bool:
    locks = _resources(record)
    return bool(locks) and record.get("catalog") == place.catalog.name and all(place.reads(one) for one in locks)


def _resources(record: dict[str, Any]) -> list[Resource]:
    return [Resource.parse(lock.partition(" ")[2]) for lock in record.get("locks", ())]
