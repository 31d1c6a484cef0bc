"""The catalog's calls for overwritten commits and for orphan files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from pyiceberg.typedef import Identifier

from commit_coord.catalog import orphans, repair
from commit_coord.iceberg.overwrites import Acknowledged


class Maintained(orphans.SearchedCatalog, Protocol):
    """The methods of a catalog that this module needs."""

    def _table_identifier(self, identifier: str | Identifier) -> Identifier: ...


class MaintainedCatalog:
    """The catalog's methods that repair tables and delete orphan files."""

    def find_lost(self: Maintained, identifier: str | Identifier, since: Iterable[str] = ()) -> repair.Repair:
        """Return the commits of a table that writers without our rules overwrote; see :func:`repair.find`.

        Args:
            identifier: The table.
            since: Metadata files of commits that are known to be lost, in addition to what the lock service remembers.
        """
        return repair.find(self.coordinator, self._table_identifier(identifier), since)

    def repair(
        self: Maintained, found: repair.Repair, *, on_restored: Callable[[repair.LostCommit], None] = lambda _: None
    ) -> list[repair.LostCommit]:
        """Bring back what can be of what was *found*; see :func:`repair.execute`."""
        return repair.execute(self.coordinator, found, on_restored=on_restored)

    def forget_lost(
        self: Maintained, identifier: str | Identifier, only: Collection[str] | None = None, *, dry_run: bool = False
    ) -> tuple[Acknowledged, ...]:
        """Have the lock service forget what was lost of a table; return what it forgot, or with *dry_run* would.

        Args:
            identifier: The table.
            only: The metadata files to forget, as an earlier call returned their locations; None: all.
            dry_run: Forget nothing.
        """
        return repair.forget(self.coordinator, self._table_identifier(identifier), only, dry_run=dry_run)

    def find_orphans(
        self: Maintained,
        identifier: str | Identifier,
        *,
        older_than_ms: int = orphans.OLDER_THAN_MS,
        force: bool = False,
        dropped: Collection[str] = (),
    ) -> orphans.Orphans:
        """Return the files of a table that no commit refers to and no writer can still publish; see `orphans.find`."""
        table = self._table_identifier(identifier)
        return orphans.find(self, table, older_than_ms=older_than_ms, force=force, dropped=dropped)

    def delete_orphans(
        self: Maintained, found: orphans.Orphans, *, on_deleted: Callable[[orphans.Orphan], None] = lambda _: None
    ) -> orphans.Orphans:
        """Delete what was *found*, but for what was committed since; return what was deleted; see `orphans.delete`."""
        return orphans.delete(self, found, on_deleted=on_deleted)
