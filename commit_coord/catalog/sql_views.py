"""The pointers of views in the tables of PyIceberg's SQL catalog, as in the schema V1 of Java's ``JdbcCatalog``.

Source: Iceberg Java ``JdbcUtil``, ``JdbcViewOperations``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.typedef import Identifier
from pyiceberg.view.metadata import ViewMetadata
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import IntegrityError

from commit_coord.catalog.sql_changes import KEY, Connected, NamedRows, send_once
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.view_metadata import ViewPointer
from commit_coord.protocol.commit import SwapResult

_IN_NAMESPACE = "catalog_name = :catalog AND table_namespace = :namespace"
_VIEWS_ONLY = " AND iceberg_type = 'VIEW'"
_KEY = KEY + _VIEWS_ONLY
_FIND = text(f"SELECT metadata_location, previous_metadata_location FROM iceberg_tables WHERE {_KEY}")
_NAMES = text(f"SELECT table_name FROM iceberg_tables WHERE {_IN_NAMESPACE}{_VIEWS_ONLY}")
_TAKEN = text(f"SELECT 1 FROM iceberg_tables WHERE {KEY} AND (iceberg_type <> 'VIEW' OR iceberg_type IS NULL)")
_SWAP = text(
    "UPDATE iceberg_tables SET metadata_location = :location, previous_metadata_location = :base "
    f"WHERE {_KEY} AND metadata_location = :base"
)
_CREATE = text(
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    "VALUES (:catalog, :namespace, :name, :location, 'VIEW')"
)


_Change = Callable[[Connection], bool]


class SqlViews:
    """The views of one catalog; a :class:`~commit_coord.coordinator.views.ViewStore`.

    Args:
        catalog: The name of the catalog.
        connected: Runs work in its database.
        fenced: Returns a change on the condition that Hive leases are live.
    """

    def __init__(self, catalog: str, connected: Connected, fenced: Callable[[Sequence[int], _Change], _Change]) -> None:
        self._catalog, self._connected, self._fenced = catalog, connected, fenced
        self._rows = NamedRows(
            connected,
            self._key,
            self._location,
            kind="View",
            missing=NoSuchViewError,
            taken=ViewAlreadyExistsError,
            only=_VIEWS_ONLY,
        )

    def find(self, view: Identifier) -> ViewPointer | None:
        """Return the pointer of *view* now, None if the view does not exist."""
        rows = self._connected(lambda connection: connection.execute(_FIND, self._key(view)).all())
        return ViewPointer(*rows[0]) if rows else None

    def names(self, namespace: Identifier) -> list[Identifier]:
        """Return the views of a namespace."""
        key = {"catalog": self._catalog, "namespace": ".".join(namespace)}
        rows = self._connected(lambda connection: connection.execute(_NAMES, key).all())
        return [(*namespace, name) for (name,) in rows]

    def swap(
        self, view: Identifier, base: str | None, location: str, made: ViewMetadata, lease_ids: Sequence[int] = ()
    ) -> SwapResult:
        """Set the pointer of *view* to *location* if it is *base*, and the leases are live.

        Raises:
            ViewAlreadyExistsError: A table has the name.
            LeaseEnded: One of the leases has ended.
        """
        values = {**self._key(view), "base": base, "location": location}
        result = self._change(_CREATE if base is None else _SWAP, values, lease_ids)
        if result is SwapResult.MOVED and base is None:
            self._refuse_table(view)
        return result

    def drop(self, view: Identifier) -> None:
        """Remove the pointer of *view*.

        Raises:
            NoSuchViewError: The view does not exist.
            CommitNotApplied: Other writers change the view all the time, or the database refuses.
            CommitStateUnknown: It is not known whether the view was dropped.
        """
        self._rows.drop(view)

    def rename(self, view: Identifier, to: Identifier) -> None:
        """Give *view* the name *to*.

        Raises:
            NoSuchViewError: The view does not exist.
            ViewAlreadyExistsError: A table or a view has the name *to*.
            CommitNotApplied: Other writers change the view all the time, or the database refuses.
            CommitStateUnknown: It is not known whether the view was renamed.
        """
        self._rows.rename(view, to)

    def _location(self, view: Identifier) -> str | None:
        found = self.find(view)
        return None if found is None else found.location

    def _change(self, statement: TextClause, values: dict[str, Any], lease_ids: Sequence[int]) -> SwapResult:
        def changed(connection: Connection) -> bool:
            return connection.execute(statement, values).rowcount == 1

        try:
            return send_once(self._connected, self._fenced(lease_ids, changed), f"the view {values['name']}")
        except IntegrityError:
            return SwapResult.MOVED  # another client has created the view

    def _refuse_table(self, view: Identifier) -> None:
        if self._connected(lambda connection: connection.execute(_TAKEN, self._key(view)).all()):
            raise ViewAlreadyExistsError(f"Table with same name already exists: {table_name(view)}")

    def _key(self, view: Identifier) -> dict[str, Any]:
        *namespace, name = view
        return {"catalog": self._catalog, "namespace": ".".join(namespace), "name": name}
