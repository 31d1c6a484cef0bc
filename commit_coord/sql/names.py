"""Resolves the names in a statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.errors import StatementError
from commit_coord.model import Resource
from commit_coord.sql.statement import QualifiedName
from commit_coord.table import CoordinatedTable, Rewriter, rewrite_here

Tables = Callable[[QualifiedName], Table]
"""Returns the table that a name in a statement refers to."""

_SHOWN = 10
"""Tables that an error names at most."""


class Names:
    """Finds tables and databases in a catalog.

    Args:
        catalog: Where they are.
        database: Of names that name none.
        rewrite: The function that executes CONCATENATE.
    """

    def __init__(self, catalog: CoordinatedCatalog, database: str, rewrite: Rewriter = rewrite_here) -> None:
        self.catalog = catalog
        self.rewrite = rewrite
        self._database = database

    def identifier(self, name: QualifiedName) -> tuple[str, str]:
        """Return database and table, whether they are there or not.

        Raises:
            StatementError: No table has such a name.
        """
        if not name.table:  # Of a function in FROM.
            raise StatementError("invalid table name; for a query without a table, use Spark")
        database, table = self.catalog.spelled(Resource((name.database or self._database, name.table))).path
        return database, table

    def of_database(self, name: str) -> str:
        """Return the database *name* as the catalog spells it, whether it is there or not."""
        return self.catalog.spelled(Resource((name,))).path[0]

    def table(self, name: QualifiedName) -> CoordinatedTable:
        """Return the table as it is now.

        Raises:
            StatementError: There is none of that name.
        """
        try:
            return self.catalog.load_table(self.identifier(name))
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise StatementError(
                "there is no such table", table=".".join(self.identifier(name)), accepted=self._like(name)
            ) from error

    def _like(self, name: QualifiedName) -> str | None:
        """Return the tables that may have been meant; None where there are none."""
        database, table = self.identifier(name)
        if not self.has_database(database):
            return None
        inside = [found[-1] for found in self.tables_of(database)]
        return ", ".join(get_close_matches(table, inside) or inside[:_SHOWN]) or None

    def database(self, name: str) -> str:
        """Return *name*, which is a database's, as the catalog spells it.

        Raises:
            StatementError: It is not.
        """
        try:
            self.catalog.load_namespace_properties(name)
        except NoSuchNamespaceError as error:
            raise StatementError("there is no such database", database=name) from error
        return self.of_database(name)

    def has_database(self, name: str) -> bool:
        """Return whether there is a database of that name."""
        try:
            self.database(name)
        except StatementError:
            return False
        return True

    def databases(self) -> Sequence[str]:
        """Return the databases, sorted."""
        return sorted(".".join(namespace) for namespace in self.catalog.list_namespaces())

    def tables_of(self, database: str | None = None) -> Sequence[tuple[str, ...]]:
        """Return the tables of a database, sorted; None is the database of names that name none."""
        return sorted(self.catalog.list_tables(self.database(self._database if database is None else database)))
