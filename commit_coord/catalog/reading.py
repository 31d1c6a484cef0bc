"""How a catalog finds its tables."""

from __future__ import annotations

from typing import cast

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.names import NamedCatalog
from commit_coord.coordinator import Coordinator
from commit_coord.iceberg.attempt import table_name
from commit_coord.table import CoordinatedTable


class ReadingCatalog(NamedCatalog):
    """The catalog's methods that find its tables. A subclass sets the attribute before the first call."""

    coordinator: Coordinator

    def load_table(self, identifier: str | Identifier) -> CoordinatedTable:
        """Return the table as it is now; its commits are coordinated.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        table = self._table_identifier(identifier)
        metadata, location = self.coordinator.load(table)
        return CoordinatedTable(
            identifier=table,
            metadata=metadata.model_copy(deep=True),  # a caller may change its properties; the cache must not
            metadata_location=location,
            io=self.coordinator.store.file_io(location),
            catalog=cast(Catalog, self),
        )

    def metadata_location(self, identifier: str | Identifier) -> str:
        """Return where the metadata of the table is now, without reading it.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        return self._location_of(self._table_identifier(identifier))

    def _location_of(self, table: Identifier) -> str:
        location = self.coordinator.store.pointer(table)
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {table_name(table)}")
        return location

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Return whether there is a table of that name, without reading its metadata."""
        try:
            return self.coordinator.store.pointer(self._table_identifier(identifier)) is not None
        except NoSuchTableError:
            return False
