"""The pointers of views in the tables of PyIceberg's SQL catalog, as in the schema V1 of Java's ``JdbcCatalog``.

Source: Iceberg Java ``JdbcUtil``, ``JdbcViewOperations``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.typedef import Identifier
from pyiceberg.view.metadata import ViewMetadata
from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import SQLAlchemyError

from commit_coord.catalog.sql_changes import Connected, send_once
from commit_coord.errors import CommitStateUnknown
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.view_metadata import ViewPointer
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

_IN_NAMESPACE = "catalog_name = :catalog AND table_namespace = :namespace"
_NAMED = f"{_IN_NAMESPACE} AND table_name = :name"
_KEY = f"{_NAMED} AND iceberg_type = 'VIEW'"
_FIND = text(f"SELECT metadata_location, previous_metadata_location FROM iceberg_tables WHERE {_KEY}")
_NAMES = text(f"SELECT table_name FROM iceberg_tables WHERE {_IN_NAMESPACE} AND iceberg_type = 'VIEW'")
_TAKEN = text(f"SELECT 1 FROM iceberg_tables WHERE {_NAMED} AND (iceberg_type <> 'VIEW' OR iceberg_type IS NULL)")
_SWAP = text(
    "UPDATE iceberg_tables SET metadata_location = :location, previous_metadata_location = :base "
    f"WHERE {_KEY} AND metadata_location = :base"
)
_CREATE = text(
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    "VALUES (:catalog, :namespace, :name, :location, 'VIEW')"
)
_DROP = text(f"DELETE FROM iceberg_tables WHERE {_KEY}")
_RENAME = text(f"UPDATE iceberg_tables SET table_namespace = :to_namespace, table_name = :to_name WHERE {_KEY}")

_TRIES = 10
"""How often a change is sent if its reply is lost."""


class SqlViews:
    """The views of one catalog; a :class:`~commit_coord.coordinator.views.ViewStore`.

    Args:
        catalog: The name of the catalog.
        connected: Runs work in its database.
    """

    def __init__(self, catalog: str, connected: Connected) -> None:
        self._catalog, self._connected = catalog, connected

    def find(self, view: Identifier) -> ViewPointer | None:
        """Return the pointer of *view* now, None if the view does not exist."""
        rows = self._connected(lambda connection: connection.execute(_FIND, self._key(view)).all())
        return ViewPointer(*rows[0]) if rows else None

    def names(self, namespace: Identifier) -> list[Identifier]:
        """Return the views of a namespace."""
        key = {"catalog": self._catalog, "namespace": ".".join(namespace)}
        rows = self._connected(lambda connection: connection.execute(_NAMES, key).all())
        return [(*namespace, name) for (name,) in rows]

    def swap(self, view: Identifier, base: str | None, location: str, made: ViewMetadata) -> SwapResult:
        """Set the pointer of *view* to *location* if it is *base*.

        Raises:
            ViewAlreadyExistsError: A table has the name.
        """
        result = self._change(
            _CREATE if base is None else _SWAP, {**self._key(view), "base": base, "location": location}
        )
        if result is SwapResult.MOVED and base is None:
            self._refuse_table(view)
        return result

    def drop(self, view: Identifier) -> None:
        """Remove the pointer of *view*.

        Raises:
            NoSuchViewError: The view does not exist.
            CommitStateUnknown: It could not be found out whether the view still exists.
        """
        self._again(view, _DROP, {}, lambda: self.find(view) is None)

    def rename(self, view: Identifier, to: Identifier) -> None:
        """Give *view* the name *to*.

        Raises:
            NoSuchViewError: The view does not exist.
            ViewAlreadyExistsError: A table or a view has the name *to*.
            CommitStateUnknown: It could not be found out which name the view has.
        """
        found = self.find(view)
        key = self._key(to)
        self._again(
            view,
            _RENAME,
            {"to_namespace": key["namespace"], "to_name": key["name"]},
            lambda: self.find(to) == found,
        )

    def _again(
        self, view: Identifier, statement: TextClause, values: dict[str, Any], is_done: Callable[[], bool]
    ) -> None:
        """Execute *statement* until it is certain whether it has changed the view, whose latch is held."""
        lost = False
        try:
            for _ in range(_TRIES):
                result = self._change(statement, {**self._key(view), **values})
                if result is SwapResult.SWAPPED or (lost and is_done()):
                    return
                if result is SwapResult.MOVED:
                    if self.find(view) is None:
                        raise NoSuchViewError(f"View does not exist: {table_name(view)}")
                    raise ViewAlreadyExistsError(f"the new name of {table_name(view)} is used")
                lost = True
        except SQLAlchemyError:
            if not lost:
                raise
            logger.warning("the database went away during a change of the view %s", table_name(view), exc_info=True)
        raise CommitStateUnknown(
            "it is not known whether the view was changed; load it before you repeat the call", table=table_name(view)
        )

    def _change(self, statement: TextClause, values: dict[str, Any]) -> SwapResult:
        def changed(connection: Connection) -> bool:
            return connection.execute(statement, values).rowcount == 1

        return send_once(self._connected, changed, f"the view {values['name']}")

    def _refuse_table(self, view: Identifier) -> None:
        if self._connected(lambda connection: connection.execute(_TAKEN, self._key(view)).all()):
            raise ViewAlreadyExistsError(f"Table with same name already exists: {table_name(view)}")

    def _key(self, view: Identifier) -> dict[str, Any]:
        *namespace, name = view
        return {"catalog": self._catalog, "namespace": ".".join(namespace), "name": name}
