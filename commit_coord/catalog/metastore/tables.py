"""PyIceberg's ``HiveCatalog`` with our client. Its changes of tables other than commits are made safe."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog, PropertiesUpdateSummary
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from commit_coord import doubt
from commit_coord.catalog.metastore.administration import Administration
from commit_coord.catalog.metastore.guards import Guards
from commit_coord.catalog.metastore.hive_table import TableFormat
from commit_coord.catalog.metastore.names import folded
from commit_coord.catalog.metastore.phases import refuse_unknown_default
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.hms.client import CREATION, MetastoreClient
from commit_coord.hms.connection import NoSuchObject
from commit_coord.hms.probe import Capabilities
from commit_coord.iceberg.overwrites import Overwrites


class MetastoreTables(HiveCatalog):
    """A subclass sets the attributes before the first call."""

    metastore: MetastoreClient
    administration: Administration
    guards: Guards
    overwrites: Overwrites
    table_format: TableFormat
    servers: Servers

    def capabilities(self) -> Capabilities:
        """Return what the metastore in use can do; warn once for each server that can't compare and set.

        Raises:
            MetastoreUnavailable: No server could be asked.
        """
        return self.servers.capabilities()

    def _create_hive_client(self, properties: dict[str, str]) -> Any:  # type: ignore[override]
        return self.metastore

    @staticmethod
    def identifier_to_database(identifier: str | Identifier, err: Any = ValueError) -> str:
        """Return the database, in the metastore's spelling."""
        return folded(Catalog.identifier_to_database(identifier, err))[0]

    @staticmethod
    def identifier_to_database_and_table(identifier: str | Identifier, err: Any = ValueError) -> tuple[str, str]:
        """Return database and table, in the metastore's spelling."""
        database, table = folded(*Catalog.identifier_to_database_and_table(identifier, err))
        return database, table

    def _convert_iceberg_into_hive(self, table: Table) -> Any:
        made = super()._convert_iceberg_into_hive(table)
        return self.table_format.fill(made, table.metadata_location, table.metadata)

    def _forget(self, table: tuple[str, ...]) -> None:
        """Leave nothing behind of a table that is gone."""
        self.overwrites.forget(table)
        self.guards.remove(table)

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """Return the Iceberg tables of a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
        """
        found = super().list_tables(namespace)
        if not found:
            self.load_namespace_properties(namespace)
        return found

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Return the properties of a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
        """
        found = super().load_namespace_properties(namespace)
        return {key: value for key, value in found.items() if key != CREATION}

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace.

        Raises:
            ConfigError: The properties declare an unknown phase of new tables.
        """
        refuse_unknown_default(properties, database=self.identifier_to_database(namespace))
        super().create_namespace(namespace, properties)

    def update_namespace_properties(
        self, namespace: str | Identifier, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Remove and set properties of a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
            ValueError: A property is to be removed and set.
            ConfigError: *updates* declare an unknown phase of new tables; nothing was changed.
            CommitNotApplied: The metastore refuses the properties; nothing was changed.
            MetastoreUnavailable: Nothing was sent.
            CommitStateUnknown: It is not known whether the properties were changed.
        """
        refuse_unknown_default(updates, database=self.identifier_to_database(namespace))
        with doubt.deciding("the namespace was changed", namespace=self.identifier_to_database(namespace)):
            try:
                return super().update_namespace_properties(namespace, removals, updates)
            except NoSuchObject as error:  # it was dropped after it was read
                raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}") from error

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return all namespaces; none below another: the metastore has one level.

        Raises:
            NoSuchNamespaceError: *namespace* does not exist.
        """
        if namespace:
            self.load_namespace_properties(namespace)
        return super().list_namespaces(namespace)
