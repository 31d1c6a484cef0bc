"""Metadata by location. A metadata file never changes, so what was read or written once need not be read again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

VERSIONS = 8
"""Versions of one table that are kept."""
_BYTES_PER_SNAPSHOT = 450
"""Rough size of one snapshot's JSON, for files whose size is not known."""


@dataclass(frozen=True, slots=True)
class _Entry:
    metadata: TableMetadata
    size: int
    json: Sequence[bytes] | None


class MetadataCache:
    """The newest metadata versions, a few of each table; of these the last used, up to *max_bytes*. Thread safe.

    A writer asks for the head, and for the head before it when it comes late; a caller that works on an older version
    keeps that itself. More versions of a table than :data:`VERSIONS` would only use memory.

    With what was written goes its JSON. Its parts are those of the metadata, but for the first one.
    """

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By location; the least used one first."""
        self._folders: dict[str, list[str]] = {}
        """The locations in each folder; the one that was put last is last."""
        self._lock = threading.Lock()

    def get(self, location: str, read: Callable[[TableMetadata | None], TableMetadata]) -> TableMetadata:
        """Return the metadata at *location*; when it is not here, what *read* returns.

        *read* is given the version that was put last of those in the same folder, None when there is none.
        """
        with self._lock:
            if location in self._entries:
                self._entries.move_to_end(location)
                return self._entries[location].metadata
            versions = self._folders.get(_folder(location))
            known = self._entries[versions[-1]].metadata if versions else None
        metadata = read(known)
        self.put(location, metadata, 4096 + _BYTES_PER_SNAPSHOT * len(metadata.snapshots))
        return metadata

    def json(self, location: str) -> Sequence[bytes] | None:
        """Return the JSON of the metadata at *location* in the parts in which it was written; None if it is not here.

        None also for metadata that this process has read: another one has written the file, perhaps in another layout.
        """
        with self._lock:
            entry = self._entries.get(location)
        return None if entry is None else entry.json

    def put(self, location: str, metadata: TableMetadata, size: int, json: Sequence[bytes] | None = None) -> None:
        """Keep *metadata*; the least used ones go when it gets too much, the newest one always stays.

        Args:
            location: Its file.
            metadata: As the file says it.
            size: How many bytes of memory it takes.
            json: The JSON in the file; None if it was read from there.
        """
        with self._lock:
            self._forget(location)
            self._entries[location] = _Entry(metadata, size, json)
            self._bytes += size
            versions = self._folders.setdefault(_folder(location), [])
            versions.append(location)
            if len(versions) > VERSIONS:
                self._forget(versions[0])
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))

    def drop(self, location: str) -> None:
        """Forget *location*: its file was deleted."""
        with self._lock:
            self._forget(location)

    def _forget(self, location: str) -> None:
        if entry := self._entries.pop(location, None):
            self._bytes -= entry.size
            versions = self._folders[_folder(location)]
            versions.remove(location)
            if not versions:
                del self._folders[_folder(location)]


def _folder(location: str) -> str:
    return location.rpartition("/")[0]
