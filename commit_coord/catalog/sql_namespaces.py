"""PyIceberg's ``SqlCatalog`` whose changes of namespaces are sent once: a lost reply is no failure of the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.catalog.sql import IcebergNamespaceProperties, SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from sqlalchemy import Connection, Delete, Executable, Insert, delete, insert

from commit_coord.catalog.sql_changes import send_once
from commit_coord.errors import CommitNotApplied, CommitStateUnknown
from commit_coord.protocol.commit import SwapResult

T = TypeVar("T")

_MARK = IcebergNamespaceProperties.NAMESPACE_MINIMAL_PROPERTIES
"""A namespace is stored as its properties alone. With none it has this one, by which PyIceberg and Java find it."""

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
            if self._send(namespace, "created", self._set(namespace, properties or _MARK)):
                return
            # 1. Two clients find no namespace.   2. The first creates it.   3. The second gets a duplicate key.
            if not self.namespace_exists(namespace):
                raise _refused(namespace, "created")
        raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """See :meth:`CoordinatedCatalog.drop_namespace`."""
        if tables := self.list_tables(namespace):
            raise NamespaceNotEmptyError(f"Namespace {_name(namespace)} is not empty. {len(tables)} tables exist.")
        if not self._send(namespace, "dropped", self._removed(namespace)):
            raise _refused(namespace, "dropped")

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Return the properties of a namespace, without the mark that keeps it when it has none.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
        """
        found = super().load_namespace_properties(namespace)
        return {key: value for key, value in found.items() if _MARK.get(key) != value}

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Remove and set properties of a namespace, which stays when its last one is removed.

        Each removal sets the mark: two clients may remove the last two properties at once.

        Raises:
            NoSuchNamespaceError: There is no such namespace.
            ValueError: A property is to be removed and set.
            CommitNotApplied: The database refuses the properties; nothing was changed.
            CommitStateUnknown: It is not known whether the properties were changed.
        """
        removed = set(removals or ()) - _MARK.keys()
        for _ in range(_TRIES):
            found = self.load_namespace_properties(namespace)
            summary, _ = self._get_updated_props_and_update_summary(found, removed, updates)
            put = {**(_MARK if removed else {}), **updates}
            changes = [self._removed(namespace, removed | put.keys()), *([self._set(namespace, put)] if put else [])]
            if self._send(namespace, "changed", *changes):
                return summary
        raise _refused(namespace, "changed")

    def _send(self, namespace: str | Identifier, what: str, *statements: Executable) -> bool:
        """Return whether the *statements* were executed in one transaction; if not, the database refuses them.

        Raises:
            CommitStateUnknown: It is not known whether they were.
        """

        def changed(connection: Connection) -> bool:
            for statement in statements:
                connection.execute(statement)
            return True

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

    def _removed(self, namespace: str | Identifier, names: set[str] | None = None) -> Delete:
        """Return the statement that removes the properties *names*; None means all."""
        row = IcebergNamespaceProperties
        statement = delete(row).where(row.catalog_name == self.name, row.namespace == _name(namespace))
        return statement if names is None else statement.where(row.property_key.in_(names))


def _name(namespace: str | Identifier) -> str:
    return Catalog.namespace_to_string(namespace, NoSuchNamespaceError)


def _refused(namespace: str | Identifier, what: str) -> CommitNotApplied:
    return CommitNotApplied(
        f"the namespace was not {what}: the database refuses that, or other clients change it all the time",
        namespace=_name(namespace),
    )
