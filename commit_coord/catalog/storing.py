"""The common part of all pointer stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.iceberg.storage import FileIOs
from commit_coord.locks.base import Lease


class StoringCatalog:
    """A :class:`~commit_coord.coordinator.PointerStore` but for ``pointer``, ``swap`` and ``swap_under_leases``.

    A subclass sets the attributes before the first call.
    """

    _file_ios: FileIOs

    def wait_for_lock_only_writers(self, table: tuple[str, ...], location: str, lease: Lease) -> bool:
        """See :class:`~commit_coord.coordinator.PointerStore`: nobody swaps without comparing."""
        return False

    def prepare_metadata(
        self, table: tuple[str, ...], head: TableMetadata | None, made: TableMetadata, *, changes_phase: bool
    ) -> TableMetadata:
        """Return *made* as it may follow *head*; see :class:`~commit_coord.coordinator.PointerStore`."""
        before = head.properties if head is not None else None
        properties = self._properties(table, before, made.properties, changes_phase=changes_phase)
        return made if properties == made.properties else made.model_copy(update={"properties": properties})

    def _properties(
        self, table: tuple[str, ...], before: Mapping[str, str] | None, after: Mapping[str, Any], *, changes_phase: bool
    ) -> dict[str, Any]:
        """Return the properties *after*, with those that declare the writers of *table*; this default declares nothing.

        Raises:
            ConfigError: According to its properties *before* (None: it is new), this catalog must not write to it.
        """
        return dict(after)

    def _refuse_registered(self, table: tuple[str, ...], base: str | None, registered: TableMetadata) -> None:
        """Return if *registered* may take the place of what *table* has at *base*; here everything may.

        *base* is None if the name is free.

        Raises:
            ConfigError: The writers of the table would lock elsewhere.
        """

    def file_io(self, location: str) -> FileIO:
        """Return the file store for *location*; no property of a table changes it."""
        return self._file_ios.at(location)

    def _load_file_io(self, properties: dict[str, str] = EMPTY_DICT, location: str | None = None) -> FileIO:
        """Return it to PyIceberg's own code, which would heed the *properties* of the table."""
        return self.file_io(location or "")
