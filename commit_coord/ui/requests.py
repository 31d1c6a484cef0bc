"""What became of a request: its locks now, its commit in a table, and what was done to it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.typedef import Identifier

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.coordinator.history import history
from commit_coord.errors import CommitCoordError
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.model import JournalEntry, LockEntry, Resource
from commit_coord.ui.looking import Look
from commit_coord.ui.now import SHORT
from commit_coord.ui.recent import Ended, Recent
from commit_coord.ui.tables import namespaces
from commit_coord.ui.visiting import Place

logger = logging.getLogger(__name__)

_AUDIT_TAIL = 4 * 1024 * 1024
"""Bytes of the audit log's end that are searched."""
_SEARCH_S = 0.5
"""How long tables are searched for a request of which nothing else is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What is known of a request.

    Args:
        locks: Its locks, and its places in queues.
        landed: Its commit, if that has landed.
        ended: Its commits in this process.
        audits: The lines of the audit log that name it.
        searched: How many tables were searched for it.
        skipped: How many were not, because it took too long.
    """

    locks: Sequence[LockEntry]
    landed: JournalEntry | None
    ended: Sequence[Ended]
    audits: Sequence[dict[str, Any]]
    searched: int
    skipped: int

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.locks or self.landed or self.ended or self.audits)


def fate(place: Place, recent: Recent, look: Look, text: str, table: Identifier | None) -> Fate:
    """Return what became of the request *text*.

    Args:
        place: The catalog.
        recent: The commits of this process.
        look: The locks now.
        text: The request id, or its first 8 letters or more.
        table: Where its commit is looked for; None looks in all tables, for a limited time.
    """
    locks = [one for one in look.entries if _begins(one.request_id, text) and place.reads(one.resource)]
    ended = [one for one in recent.find(text) if len(text) >= SHORT and _reads_table(place, one.table)]
    audits = _audited(place, text) if len(text) >= SHORT else []
    landed, searched, skipped = _landed(place, text, table)
    return Fate(locks=locks, landed=landed, ended=ended, audits=audits, searched=searched, skipped=skipped)


def _begins(request_id: str, text: str) -> bool:
    return len(text) >= SHORT and request_id.startswith(text)


def _reads_table(place: Place, table: str) -> bool:
    return place.reads(Resource.table(table.split(".")))


def _landed(place: Place, text: str, table: Identifier | None) -> tuple[JournalEntry | None, int, int]:
    """Return the commit, and how many tables were searched and skipped."""
    entry = place.catalog.locks.recall(request_uuid(text))
    if entry is not None and _reads_table(place, entry.table):
        return entry, 0, 0
    until = SYSTEM_CLOCK.now() + _SEARCH_S
    searched = skipped = 0
    for name in [table] if table is not None else _readable(place):
        if SYSTEM_CLOCK.now() > until:
            skipped += 1
            continue
        searched += 1
        try:
            found = _landed_in(place, name, text)
        except (CommitCoordError, OSError, LookupError):
            logger.warning("%s can't be searched for a request", ".".join(name), exc_info=True)
            continue
        if found is not None:
            return found, searched, skipped
    return None, searched, skipped


def _readable(place: Place) -> list[Identifier]:
    return [
        table
        for namespace in namespaces(place.catalog)
        if place.visitor.reads(place.catalog.name, namespace)
        for table in place.catalog.list_tables(namespace)
    ]


def _landed_in(place: Place, table: Identifier, text: str) -> JournalEntry | None:
    coordinator = place.catalog.coordinator
    whole = text
    if SHORT <= len(text) < len("01234567-0123-0123-0123-0123456789ab"):
        metadata, location = coordinator.load(table)
        listed = (record["request_id"] or "" for record in history(metadata, location))
        ids = {one for text_ in listed for one in text_.split(",") if one.startswith(text.lower())}
        whole = ids.pop() if len(ids) == 1 else text
    return coordinator.find(table, request_uuid(whole))


def _audited(place: Place, text: str) -> list[dict[str, Any]]:
    """Return the lines of the audit log that name the request; only for visitors who may read the whole catalog."""
    path = place.catalog.settings.commit_coord_audit_log
    if not path or not place.reads_all:
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
        if text.encode() in line:
            try:
                record = json.loads(line)
            except ValueError:
                continue  # the first one may be cut
            if str(record.get("request_id", "")).startswith(text) and record.get("catalog") == place.catalog.name:
                found.append(record)
    return found
