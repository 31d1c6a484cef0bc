"""Detects commits that a writer without our rules has overwritten.

A conditional swap never overwrites the commits of others. But a writer that neither compares nor takes our locks can
overwrite ours: it builds on the metadata that it read earlier, so the table's new history lacks the commits that landed
in between. Two records make that visible:

In the lock service
    Each commit leaves a note with its release: the metadata file that it published (:class:`Acknowledged`). The next
    commit, of any client, gets the note with its grant, and checks whether this file is in the table's history.

    1. A swaps and is killed before its release: the note names an older commit.   2. B finds that one in the history.

    So a note that is too old raises no alarm, and without a note the next commit only checks less.

In the client
    The location that it published or loaded last, for lock services without notes (`hms`, `none`).

A lost commit stays in the note until it is repaired (``catalog/repair``) or forgotten on purpose.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import orjson
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.events import CommitOverwritten, Events
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import table_name

logger = logging.getLogger(__name__)

ReadMetadata = Callable[[str], TableMetadata]

_LOSSES = 20
"""Maximum number of lost commits in a note. The oldest ones are removed first; the log contains all of them."""

_FILES = 50
"""Maximum number of metadata files that one search of a history reads; each contains a whole metadata log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A commit that was acknowledged.

    Args:
        location: The metadata file that published it.
        table_uuid: Iceberg's id of the table.
        request_id: The attempt; if one swap published several, the attempt of the latch holder.
        snapshot_ids: What it added.
        by: Who, as locks show it.
        at_ms: When, by its own clock.
    """

    location: str
    table_uuid: str
    request_id: str = ""
    snapshot_ids: tuple[int, ...] = ()
    by: str = ""
    at_ms: int = 0

    def __str__(self) -> str:
        """Return who, when, and which request and snapshots."""
        ids = ", ".join(map(str, self.snapshot_ids)) or "none"
        return f"request {self.request_id or 'unknown'}, snapshots {ids}, by {self.by or 'unknown'}, {self.location}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverNote:
    """The note from one holder of a commit latch to the next.

    Args:
        head: The last commit that was acknowledged.
        lost: Commits that were overwritten and not brought back, oldest first.
    """

    head: Acknowledged | None = None
    lost: tuple[Acknowledged, ...] = ()

    def to_text(self) -> str:
        """Return what the lock service keeps, "" for nothing."""
        return orjson.dumps(asdict(self)).decode() if self.head or self.lost else ""

    @classmethod
    def parse(cls, text: str) -> HandoverNote:
        """Return what :meth:`to_text` wrote; of what another version wrote, nothing."""
        if not text:
            return cls()
        try:
            raw = orjson.loads(text)
            head = raw["head"] and _acknowledged(raw["head"])
            return cls(head=head, lost=tuple(map(_acknowledged, raw["lost"])))
        except (ValueError, KeyError, TypeError):
            logger.warning("the note of another version can't be read: %.200s", text)
            return cls()


def joined(one: str, other: str, table_uuid: str) -> HandoverNote:
    """Return what two notes say about the table with *table_uuid*: the later head, and all that was lost."""
    notes = [HandoverNote.parse(one), HandoverNote.parse(other)]
    heads = [note.head for note in notes if note.head is not None and note.head.table_uuid == table_uuid]
    lost = {each.location: each for note in notes for each in note.lost if each.table_uuid == table_uuid}
    return HandoverNote(
        head=max(heads, key=lambda head: head.at_ms, default=None), lost=tuple(lost.values())[-_LOSSES:]
    )


def _acknowledged(raw: dict[str, object]) -> Acknowledged:
    made = Acknowledged(**raw)  # type: ignore[arg-type]
    return replace(made, snapshot_ids=tuple(made.snapshot_ids))


def versions(read: ReadMetadata, location: str) -> Iterator[str]:
    """Yield the metadata files of a table, from *location* back to its first one, as long as they can be read.

    Raises:
        Exception: Of *read*: the log was trimmed there, and the older file is gone.
    """
    seen = {location}
    yield location
    log = _log(read(location))
    while log:
        for older in reversed(log):
            if older not in seen:
                seen.add(older)
                yield older
        oldest, log = log[0], _log(read(log[0]))
        if oldest in log:
            return


class Overwrites:
    """Detects overwritten commits by the known history of each table.

    Args:
        read: Returns the metadata in the file at a location.
        events: Receives each loss, once.
    """

    def __init__(self, read: ReadMetadata, events: Events) -> None:
        self._read = read
        self._events = events
        self._known: dict[Identifier, str] = {}
        self._reported: set[str] = set()

    def landed(self, table: Identifier, location: str) -> None:
        """Note that a swap of ours put *table* there. Call it under the latch."""
        self._known[table] = location

    def forget(self, table: Identifier) -> None:
        """Know nothing of *table*: it is dropped or renamed."""
        self._known.pop(table, None)

    def loaded(self, table: Identifier, location: str) -> None:
        """Note that *table* was read, without the latch: by now it may be elsewhere, through this client too."""
        known = self._known.get(table)
        if known == location or (known is not None and self._is_older(location, known)):
            return
        self.check(table, location)
        self._known[table] = location

    def check(self, table: Identifier, base: str) -> None:
        """Report what *base*, read under the latch, lacks of what this client knew of *table*. Never fails."""
        known = self._known.get(table)
        if known is not None and self._is_lost(table, Acknowledged(location=known, table_uuid=""), base):
            del self._known[table]

    def look_back(self, table: Identifier, base: str, text: str) -> HandoverNote:
        """Report what *base*, read under the latch, lacks of what the lock service noted. Never fails.

        Returns:
            The note to leave, without the head: with what was lost before, and what is found lost now.
        """
        note = HandoverNote.parse(text)
        if note.head is None or not self._is_lost(table, note.head, base):
            return HandoverNote(lost=note.lost)
        others = tuple(lost for lost in note.lost if lost.location != note.head.location)
        return HandoverNote(lost=(*others, note.head)[-_LOSSES:])

    def _is_lost(self, table: Identifier, known: Acknowledged, base: str) -> bool:
        """Return whether *base* lacks *known*; report it the first time."""
        if known.location == base:
            return False
        try:
            lost = self._lost(table, known, base)
        except Exception:
            # Old metadata files may be deleted at any time, and a commit does not depend on this.
            logger.warning("%s can't be compared with %s", table_name(table), known.location, exc_info=True)
            return False
        if lost is not None and known.location not in self._reported:
            self._reported.add(known.location)
            logger.error(
                "commits were overwritten by a writer that did not compare, the last of them: %s; "
                "`commit-coord repair %s --from %s` shows them and brings their rows back: %s",
                known,
                table_name(table),
                known.location,
                lost,
            )
            self._events.emit(lost)
        return lost is not None

    def _is_older(self, location: str, known: str) -> bool:
        try:
            return location in _log(self._read(known))
        except Exception:  # noqa: BLE001 - old metadata files may be deleted at any time
            return False

    def _lost(self, table: Identifier, known: Acknowledged, base: str) -> CommitOverwritten | None:
        found = self._read(base)
        if known.table_uuid and known.table_uuid != str(found.table_uuid):
            return None  # a table that was dropped, and made again
        if known.location in _log(found):
            return None
        ours = self._read(known.location)
        if found.table_uuid != ours.table_uuid:
            return None
        mine = [*_log(ours), known.location]
        behind: list[str] = []  # newest first
        common = -1
        try:
            for version in _bounded(self._read, base):
                if version == known.location:
                    return None
                if version in mine:
                    common = mine.index(version)
                    break
                behind.append(version)
        except Exception:
            # The beginning of the log was cut off, and the commit may have been in there.
            if fast_metadata.sequence_number(found) >= fast_metadata.sequence_number(ours):
                logger.debug("the history of %s can't be read back to %s", table_name(table), known, exc_info=True)
                return None
        first = behind[-1] if behind else base
        culprit = self._read(first)
        return CommitOverwritten(
            table=table_name(table),
            location=known.location,
            lost=tuple(mine[common + 1 :]),
            found=first,
            found_at_ms=culprit.last_updated_ms,
            summary=_summary(culprit),
            request_id=known.request_id,
            snapshot_ids=known.snapshot_ids,
            by=known.by,
            at_ms=known.at_ms,
        )


def _bounded(read: ReadMetadata, location: str) -> Iterator[str]:
    left = _FILES

    def counted(path: str) -> TableMetadata:
        nonlocal left
        left -= 1
        if left < 0:
            raise LookupError(f"more than {_FILES} metadata files before {location}")
        return read(path)

    return versions(counted, location)


def _log(metadata: TableMetadata) -> list[str]:
    return [entry.metadata_file for entry in metadata.metadata_log]


def _summary(metadata: TableMetadata) -> str:
    snapshot = metadata.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return ""
    stated = {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
    return ", ".join(f"{key}={value}" for key, value in stated.items())
