"""Metadata by location. A metadata file never changes, so what was read or written once need not be read again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from pyiceberg.table.metadata import TableMetadata

_BYTES_PER_SNAPSHOT = 450
"""Rough size of one snapshot's JSON, for files whose size is not known."""


class MetadataCache:
    """The last used metadata versions, up to *max_bytes* of file size. Thread safe."""

    def __init__(self, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[str, tuple[TableMetadata, int]] = OrderedDict()
        self._newest: dict[str, str] = {}
        self._lock = threading.Lock()

    def get(self, location: str, read: Callable[[TableMetadata | None], TableMetadata]) -> TableMetadata:
        """Return the metadata at *location*; when it is not here, what *read* returns.

        *read* is given the version that was put last of those in the same folder, None when there is none.
        """
        with self._lock:
            if location in self._entries:
                self._entries.move_to_end(location)
                return self._entries[location][0]
            newest = self._newest.get(_folder(location))
            known = self._entries[newest][0] if newest is not None else None
        metadata = read(known)
        self.put(location, metadata, 4096 + _BYTES_PER_SNAPSHOT * len(metadata.snapshots))
        return metadata

    def put(self, location: str, metadata: TableMetadata, size: int) -> None:
        """Keep *metadata*; the least used ones go when it gets too much, the newest one always stays."""
        with self._lock:
            self._forget(location)
            self._entries[location] = (metadata, size)
            self._newest[_folder(location)] = location
            self._bytes += size
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._forget(next(iter(self._entries)))

    def drop(self, location: str) -> None:
        """Forget *location*: its file was deleted."""
        with self._lock:
            self._forget(location)

    def _forget(self, location: str) -> None:
        if entry := self._entries.pop(location, None):
            self._bytes -= entry[1]
            if self._newest.get(_folder(location)) == location:
                del self._newest[_folder(location)]


def _folder(location: str) -> str:
    return location.rpartition("/")[0]
