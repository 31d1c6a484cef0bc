"""PyIceberg's ``SqlCatalog`` whose changes of namespaces are sent once: a lost reply is no failure of the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.catalog.sql import IcebergNamespaceProperties, IcebergTables, SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import Connection, Delete, Executable, Insert, Update, delete, func, insert, select, update
from sqlalchemy.exc import DatabaseError

from commit_coord import doubt
from commit_coord.catalog.sql_changes import REFUSALS, refused, send_once
from commit_coord.errors import CommitNotApplied, CommitStateUnknown
from commit_coord.protocol.commit import SwapResult

T = TypeVar("T")

_MARK = IcebergNamespaceProperties.NAMESPACE_MINIMAL_PROPERTIES
"""A property that each namespace has which is created here: a namespace is stored as its properties alone.

1. Two clients create one, with different properties.   2. The rows of both are stored.   So one row has the same key.
A user may give it another value. PyIceberg and Java give it to a namespace without properties.
"""

_TRIES = 10
"""Of a change of properties that other clients set at the same time."""


class SqlNamespaces(SqlCatalog):
    """A subclass runs work in the database of the catalog."""

    def _connected(self, work: Callable[[Connection], T]) -> T:
        """See :class:`~commit_coord.catalog.sql_changes.Connected`."""
        raise NotImplementedError

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """See :meth:`CoordinatedCatalog.create_namespace`, also when several clients create it at once."""
        if not self.namespace_exists(namespace):
            try:
                self._send(namespace, "created", self._set(namespace, {**_MARK, **properties}))
            except REFUSALS as error:
                # 1. Two clients find no namespace.   2. The first creates it.   3. The second gets a duplicate key.
                if not self.namespace_exists(namespace):
                    raise _refused(namespace, "created", error) from error
            else:
                return
        raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists")

    def namespace_exists(self, identifier: str | Identifier) -> bool:
        """Return whether there is such a namespace, in this case of its letters, or one below it, or a table in either.

        PyIceberg's own finds the ones below with LIKE, which takes ``A`` for ``a`` on SQLite.
        """
        name = _name(identifier)
        begins = f"{name}."

        def found(connection: Connection) -> bool:
            for row, of in (
                (IcebergTables, IcebergTables.table_namespace),
                (IcebergNamespaceProperties, IcebergNamespaceProperties.namespace),
            ):
                named = (of == name) | (func.substr(of, 1, len(begins)) == begins)
                if connection.execute(select(of).where(row.catalog_name == self.name, named).limit(1)).first():
                    return True
            return False

        return self._connected(found)

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """See :meth:`CoordinatedCatalog.drop_namespace`."""
        if tables := self.list_tables(namespace):
            raise NamespaceNotEmptyError(f"Namespace {_name(namespace)} is not empty. {len(tables)} tables exist.")
        try:
            # A DELETE that waits for a change of the namespace removes only what was there before the change.
            self._send(namespace, "dropped", self._touched(namespace), self._removed(namespace))
        except REFUSALS as error:
            raise _refused(namespace, "dropped", error) from error

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Return the properties of a namespace, without the mark.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
        """
        return _shown(super().load_namespace_properties(namespace))

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Remove and set properties of a namespace, which stays when its last one is removed.

        A change begins with the rows of the namespace, so it meets a drop and other changes there. A change that finds
        no mark sets it: two clients may remove the last two properties at once.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
            ValueError: A property is to be removed and set.
            CommitNotApplied: The database refuses the properties (``UpdatesDoNotFit``), or other clients change them
                all the time; nothing was changed.
            CommitStateUnknown: It is not known whether the properties were changed.
        """
        removed = set(removals or ())
        for _ in range(_TRIES):
            found = super().load_namespace_properties(namespace)
            summary, _ = self._get_updated_props_and_update_summary(_shown(found), removed, updates)
            put = {**({} if _MARK.keys() <= found.keys() - removed else _MARK), **updates}
            changes = [self._removed(namespace, removed | put.keys()), *([self._set(namespace, put)] if put else [])]
            try:
                if self._send(namespace, "changed", *changes, is_there=True):
                    return summary
            except REFUSALS as error:
                if super().load_namespace_properties(namespace) == found:
                    raise _refused(namespace, "changed", error) from error
        raise CommitNotApplied(
            "the namespace was not changed: other clients change it all the time", namespace=_name(namespace)
        )

    def _send(self, namespace: str | Identifier, what: str, *statements: Executable, is_there: bool = False) -> bool:
        """Return whether the *statements* were executed in one transaction; False if *is_there* and it has no rows.

        Raises:
            DatabaseError: One of ``REFUSALS``; nothing was executed.
            CommitStateUnknown: It is not known whether they were executed.
        """

        def changed(connection: Connection) -> bool:
            if is_there and connection.execute(self._touched(namespace)).rowcount == 0:
                return False
            for statement in statements:
                connection.execute(statement)
            return True

        with doubt.deciding(f"the namespace was {what}", namespace=_name(namespace)):
            result = send_once(self._connected, changed, f"the namespace {_name(namespace)}")
        if result is SwapResult.LOST_REPLY:
            raise CommitStateUnknown(
                f"it is not known whether the namespace was {what}; look at it before you repeat the call",
                namespace=_name(namespace),
            )
        return result is SwapResult.SWAPPED

    def _set(self, namespace: str | Identifier, properties: Mapping[str, str]) -> Insert:
        key = {"catalog_name": self.name, "namespace": _name(namespace)}
        rows = [{**key, "property_key": name, "property_value": value} for name, value in properties.items()]
        return insert(IcebergNamespaceProperties).values(rows)

    def _touched(self, namespace: str | Identifier) -> Update:
        """Return the statement that makes other changes of the namespace wait; it hits all rows of the namespace."""
        row = IcebergNamespaceProperties
        of = row.catalog_name == self.name, row.namespace == _name(namespace)
        return update(row).where(*of).values(property_value=row.property_value)

    def _removed(self, namespace: str | Identifier, names: set[str] | None = None) -> Delete:
        """Return the statement that removes the properties *names*; None means all."""
        row = IcebergNamespaceProperties
        statement = delete(row).where(row.catalog_name == self.name, row.namespace == _name(namespace))
        return statement if names is None else statement.where(row.property_key.in_(names))


def _name(namespace: str | Identifier) -> str:
    return Catalog.namespace_to_string(namespace, NoSuchNamespaceError)


def _shown(properties: Properties) -> Properties:
    return {key: value for key, value in properties.items() if _MARK.get(key) != value}


def _refused(namespace: str | Identifier, done: str, error: DatabaseError) -> CommitNotApplied:
    return refused(f"the namespace was not {done}", error, namespace=_name(namespace))
