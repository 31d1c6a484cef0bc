"""Reads the metadata of tables, each version once."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.cache import MetadataCache


class MetadataReader:
    """Reads the metadata of one catalog's tables; what was read or written before comes from memory.

    Args:
        pointer: Returns the metadata location of a table, None when there is no such table.
        file_io: Returns the file store for a location.
    """

    def __init__(self, pointer: Callable[[Identifier], str | None], file_io: Callable[[str], FileIO]) -> None:
        self._pointer, self._file_io = pointer, file_io
        self.cache = MetadataCache()

    def load(self, table: Identifier) -> tuple[TableMetadata, str]:
        """Return the metadata of *table* and its location.

        Raises:
            NoSuchTableError: There is no such table.
            FileNotFoundError: The metadata file to which the pointer leads does not exist.
        """
        missing = None
        while True:
            location = self._pointer(table)
            if location is None:
                raise NoSuchTableError(f"Table does not exist: {table_name(table)}")
            try:
                return self.read(location), location
            except FileNotFoundError:
                # 1. We read the pointer.   2. Other commits land, and the last one deletes that file, since it is older
                # than `write.metadata.previous-versions-max` allows.   3. We read the file. Then the pointer has moved.
                if location == missing:
                    raise
                missing = location

    def read(self, location: str) -> TableMetadata:
        """Return the metadata in the file at *location*."""
        return self.cache.get(location, lambda known: fast_metadata.read(self._file_io(location), location, known))
