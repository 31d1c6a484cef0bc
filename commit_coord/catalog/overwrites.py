"""Notices commits that a writer without our rules overwrote.

Our condition keeps us from overwriting others. Nothing keeps a writer that neither compares nor locks as we do from
overwriting us: it builds on the metadata that it read before, so the history that the table has from then on lacks
what was committed in between. A client that knew one of these commits, its own or one that it loaded, finds out when
it meets the table again. What was lost can be put back from the files that are named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_int

from commit_coord.events import CommitOverwritten, Events
from commit_coord.iceberg import metadata as lean
from commit_coord.iceberg.attempt import table_name

logger = logging.getLogger(__name__)

Table = tuple[str, ...]


class Overwrites:
    """What this client knows of each table's history.

    Args:
        read: Returns the metadata in the file at a location.
        events: Told of each loss, once.
    """

    def __init__(self, read: Callable[[str], TableMetadata], events: Events) -> None:
        self._read = read
        self._events = events
        self._known: dict[Table, str] = {}

    def landed(self, table: Table, location: str) -> None:
        """Note that a swap of ours put *table* there. Call it under the latch."""
        self._known[table] = location

    def forget(self, table: Table) -> None:
        """Know nothing of *table*: it is dropped or renamed."""
        self._known.pop(table, None)

    def loaded(self, table: Table, location: str) -> None:
        """Note that *table* was read, without the latch: by now it may be elsewhere, through this client too."""
        known = self._known.get(table)
        if known == location or (known is not None and self._is_older(location, known)):
            return
        self.check(table, location)
        self._known[table] = location

    def check(self, table: Table, base: str) -> None:
        """Report what *base*, read under the latch, lacks of what was known of *table*. Never fails."""
        known = self._known.get(table)
        if known is None or known == base:
            return
        try:
            lost = self._lost(table, known, base)
        except Exception:
            # Old metadata files may be deleted at any time, and a commit does not depend on this.
            logger.debug("the history of %s can't be compared with %s", table_name(table), known, exc_info=True)
            return
        if lost is not None:
            del self._known[table]
            logger.error(
                "commits were overwritten by a writer that neither compares nor locks as we do; "
                "`lost` names the metadata files that had them: %s",
                lost,
            )
            self._events.emit(lost)

    def _is_older(self, location: str, known: str) -> bool:
        try:
            return location in _log(self._read(known))
        except Exception:  # noqa: BLE001 - old metadata files may be deleted at any time
            return False

    def _lost(self, table: Table, known: str, base: str) -> CommitOverwritten | None:
        found = self._read(base)
        history = [*_log(found), base]
        if known in history:
            return None
        ours = self._read(known)
        longest = property_as_int(
            found.properties,
            TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
            TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT,
        )
        trimmed = len(history) > (longest or 1)
        if found.table_uuid != ours.table_uuid:
            return None
        if trimmed and lean.sequence_number(found) >= lean.sequence_number(ours):
            return None  # it may have stood in what was cut off
        mine = [*_log(ours), known]
        common = max((mine.index(location) for location in history if location in mine), default=-1)
        behind = history[history.index(mine[common]) + 1 :] if common >= 0 else history
        first = behind[0] if behind else base
        culprit = self._read(first)
        return CommitOverwritten(
            table=table_name(table),
            location=known,
            lost=tuple(mine[common + 1 :]),
            found=first,
            found_at_ms=culprit.last_updated_ms,
            summary=_summary(culprit),
        )


def _log(metadata: TableMetadata) -> list[str]:
    return [entry.metadata_file for entry in metadata.metadata_log]


def _summary(metadata: TableMetadata) -> str:
    snapshot = metadata.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return ""
    said = {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
    return ", ".join(f"{key}={value}" for key, value in said.items())
