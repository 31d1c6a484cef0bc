"""Names of tables and namespaces as PyIceberg's SQL catalog stores them."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.typedef import Identifier

LEVEL_SEPARATOR = "\x1f"
"""It separates the levels of a namespace in the paths of the REST protocol."""


class NoSuchName(NoSuchTableError, NoSuchNamespaceError, ValueError):
    """No table can have this identifier. PyIceberg raises the one or the other, as the operation goes."""


class NamedCatalog:
    """The catalog's methods that bring a name into the form that the store keeps."""

    @staticmethod
    def _table_identifier(
        identifier: str | Identifier, error: type[ValueError] | type[NoSuchNamespaceError] = ValueError
    ) -> Identifier:
        """Return namespace levels and name as PyIceberg's SQL catalog stores them.

        It joins the levels with dots, so ``("a.b", "t")`` is ``("a", "b", "t")``, strips the blanks around each, and
        refuses a table without a namespace, with *error*. A table without a name has no lock, so it is refused too.
        """
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier), error)
        name = Catalog.table_name_from(identifier)
        if not name:
            raise NoSuchName(f"a table needs a name behind its namespace: {identifier!r}")
        return (*_levels(namespace), name)

    @staticmethod
    def _namespace_identifier(namespace: str | Identifier) -> Identifier:
        """Return the levels of *namespace* as PyIceberg's SQL catalog stores them.

        Raises:
            NoSuchNamespaceError: There is no level, or an empty one.
        """
        return _levels(Catalog.namespace_to_string(namespace, NoSuchNamespaceError))


def _levels(namespace: str) -> Identifier:
    """Return the levels of a namespace that is stored as *namespace*.

    Raises:
        NoSuchName: One is empty. PyIceberg stores the level ``..``, lists it as three empty ones, and finds none.
    """
    levels = Catalog.identifier_to_tuple(namespace)
    if not all(level.strip() for level in levels):
        raise NoSuchName(f"a level of a namespace can't begin or end with a dot: {namespace!r}")
    return levels
