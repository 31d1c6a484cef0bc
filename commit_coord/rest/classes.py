"""Properties that no client may give a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.table.update import SetPropertiesUpdate, TableUpdate

from commit_coord.errors import ConfigError
from commit_coord.iceberg.storage import foreign_classes
from commit_coord.rest.warehouses import Warehouse


def refuse_classes(warehouse: Warehouse, properties: Mapping[str, str]) -> None:
    """Return if a client may give a table these *properties*.

    The server itself would ignore them. But every client that opens the table with PyIceberg would run that code.

    Raises:
        ConfigError: One names a class to import, and the catalog has not the same value.
    """
    for key, value in foreign_classes(properties, warehouse.catalog.properties).items():
        raise ConfigError(
            "nothing was done: PyIceberg imports the class that this property names, so a client of the server can't "
            "set it; leave it out, or ask the owner of the catalog to set it in the catalog's properties",
            key=key,
            value=value,
        )


def refuse_classes_in(warehouse: Warehouse, updates: Iterable[TableUpdate]) -> None:
    """Return if a client may make these *updates*; else raise, as :func:`refuse_classes`."""
    for update in updates:
        if isinstance(update, SetPropertiesUpdate):
            refuse_classes(warehouse, update.updates)
