"""Views in the SQL catalog's table of tables, where Iceberg Java's ``JdbcCatalog`` keeps them (its schema V1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyiceberg.exceptions import ViewAlreadyExistsError
from pyiceberg.typedef import Identifier
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from commit_coord.protocol.commit import SwapResult

_VIEW = "catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name AND iceberg_type = 'VIEW'"
_LOCATION = text(f"SELECT metadata_location FROM iceberg_tables WHERE {_VIEW}")
_LISTED = text(
    "SELECT table_name FROM iceberg_tables "
    "WHERE catalog_name = :catalog AND table_namespace = :namespace AND iceberg_type = 'VIEW'"
)
_CREATE = (
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    "VALUES (:catalog, :namespace, :name, :location, 'VIEW')"
)
_SWAP = (
    "UPDATE iceberg_tables SET metadata_location = :location, previous_metadata_location = :base "
    f"WHERE {_VIEW} AND metadata_location = :base"
)
_DROP = text(f"DELETE FROM iceberg_tables WHERE {_VIEW} AND metadata_location = :base")
_RENAME = text(
    "UPDATE iceberg_tables SET table_namespace = :to_namespace, table_name = :to_name "
    f"WHERE {_VIEW} AND metadata_location = :base"
)


class SqlViewStore:
    """A :class:`~commit_coord.catalog.views.ViewStore`.

    Args:
        connected: Runs work on a connection, again where that could not be had.
        key: Returns the values that find a name.
        compare_and_set: Runs a statement that changes one row or none.
    """

    def __init__(
        self,
        connected: Callable[[Callable[[Connection], Any]], Any],
        key: Callable[[Identifier], Mapping[str, Any]],
        compare_and_set: Callable[[str, Identifier, Mapping[str, Any]], SwapResult],
    ) -> None:
        self._connected, self._key, self._compare_and_set = connected, key, compare_and_set

    def location(self, view: Identifier) -> str | None:
        """See :class:`~commit_coord.catalog.views.ViewStore`."""
        found: str | None = self._connected(lambda on: on.execute(_LOCATION, self._key(view)).scalar())
        return found

    def listed(self, namespace: Identifier) -> list[Identifier]:
        """See :class:`~commit_coord.catalog.views.ViewStore`."""
        values = self._key((*namespace, ""))
        names = self._connected(lambda on: on.execute(_LISTED, values).scalars().all())
        return [(*namespace, name) for name in names]

    def swap(self, view: Identifier, base: str | None, location: str) -> SwapResult:
        """See :class:`~commit_coord.catalog.views.ViewStore`."""
        return self._compare_and_set(_CREATE if base is None else _SWAP, view, {"base": base, "location": location})

    def drop(self, view: Identifier, base: str) -> bool:
        """See :class:`~commit_coord.catalog.views.ViewStore`."""
        return self._changed(_DROP, {**self._key(view), "base": base})

    def rename(self, old: Identifier, new: Identifier, base: str) -> bool:
        """See :class:`~commit_coord.catalog.views.ViewStore`."""
        to = {f"to_{name}": value for name, value in self._key(new).items()}
        try:
            return self._changed(_RENAME, {**self._key(old), **to, "base": base})
        except IntegrityError as error:
            raise ViewAlreadyExistsError(f"Cannot rename {'.'.join(old)} to {'.'.join(new)}: it exists") from error

    def _changed(self, statement: Any, values: Mapping[str, Any]) -> bool:
        def change(connection: Connection) -> bool:
            changed = connection.execute(statement, values).rowcount > 0
            connection.commit()
            return changed

        found: bool = self._connected(change)
        return found
