"""Which names are taken: a table and a view of one name would be one thing to whoever reads them."""

from __future__ import annotations

from pyiceberg.exceptions import TableAlreadyExistsError, ViewAlreadyExistsError
from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.rest.namespaces import shown


def refuse_taken_by_table(catalog: CoordinatedCatalog, name: Identifier, words: str = "Table already exists") -> None:
    """Return if there is no table of that name.

    Raises:
        TableAlreadyExistsError: There is one.
    """
    if catalog.table_exists(name):
        raise TableAlreadyExistsError(f"{words}: {shown(name)}")


def refuse_taken_by_view(catalog: CoordinatedCatalog, name: Identifier, words: str = "View already exists") -> None:
    """Return if there is no view of that name.

    Raises:
        ViewAlreadyExistsError: There is one.
    """
    if catalog.views is not None and catalog.views.store.location(name) is not None:
        raise ViewAlreadyExistsError(f"{words}: {shown(name)}")


def refuse_taken(catalog: CoordinatedCatalog, table: Identifier) -> None:
    """Return if a table can be made under this name.

    Raises:
        TableAlreadyExistsError: There is one.
        ViewAlreadyExistsError: There is a view.
    """
    refuse_taken_by_table(catalog, table)
    refuse_taken_by_view(catalog, table, "View with same name already exists")
