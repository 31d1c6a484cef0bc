"""What opens the files of a table, and where its new files go. Nobody else asks PyIceberg for either.

Everybody who may write to a table can set its properties. PyIceberg obeys some of them: it imports and calls the class
that they name (:data:`CLASSES`), and it sends requests and secrets to the hosts that they name (``s3.endpoint``, …). A
server, a writer and an operator who reads the table would then run the code of any writer of that table. So:

* A file store is made from the properties of the catalog alone, as in Iceberg Java.
* Metadata files, manifest lists and manifests lie where PyIceberg's own classes put them.
* Only a class that the catalog's own properties name, too, chooses the places of data files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io import PY_IO_IMPL, SCHEMA_TO_FILE_IO, FileIO, load_file_io
from pyiceberg.table import TableProperties
from pyiceberg.table.locations import LocationProvider, SimpleLocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata

logger = logging.getLogger(__name__)

CLASSES = (TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL, PY_IO_IMPL, "s3.retry-strategy-impl")
"""The properties whose values PyIceberg imports and calls."""

_PLACES = (
    TableProperties.WRITE_METADATA_PATH,
    TableProperties.WRITE_DATA_PATH,
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""The properties that say where files go; Java obeys the last two, of older versions, too."""


class FileIOs:
    """The file stores of one catalog: one for each scheme, because making one may open connections.

    Args:
        properties: Of the catalog.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._properties = properties
        self._made: dict[str, FileIO] = {}

    def at(self, location: str) -> FileIO:
        """Return the file store for *location*."""
        scheme = _scheme(location)
        if scheme not in SCHEMA_TO_FILE_IO:
            scheme = ""  # one for all of them: clients choose locations, so there may be a new scheme in each request
        if scheme not in self._made:
            self._made[scheme] = load_file_io(dict(self._properties), location if scheme else None)
        return self._made[scheme]


def cut_off(location: str) -> str | None:
    """Return why a file at *location* would become another file: file stores cut it off. None if they take it whole.

    They read a location as a URL: ``?`` and ``#`` end it; blanks before it, tabs and line breaks are left out. So all
    files of a table could become one, or become a file of another table.
    """
    try:
        parts = urlsplit(location)
    except ValueError as error:
        return f"{location!r} is no location of a file: {error}"
    if location[:1] <= " " or not location.endswith(parts.path) or not parts.netloc + parts.path:
        reason = "it can't hold '?', '#', tabs or line breaks, nor begin with a blank"
        return f"file stores do not take the location {location!r} as it is: {reason}"
    return None


def misplaced(metadata: TableMetadata) -> str | None:
    """Return why files of a table would become others, see :func:`cut_off`; None if none would."""
    for key in ("location", *_PLACES):
        place = metadata.location if key == "location" else metadata.properties.get(key)
        if place is not None and (reason := cut_off(place)) is not None:
            return f"{reason}; set another {key}"
    return None


def unserved(io: FileIO, location: str) -> str | None:
    """Return why no file can ever be at *location*: it is cut off, or *io* does not know its scheme. None if it can.

    A class that the catalog names may know other schemes than PyIceberg's own.
    """
    if (reason := cut_off(location)) is not None:
        return reason
    if _scheme(location) in SCHEMA_TO_FILE_IO:
        return None
    try:
        io.new_output(location)
    except ValueError as error:
        return f"no file can be written to {location}: {error}"
    return None


def metadata_places(metadata: TableMetadata) -> LocationProvider:
    """Return what places the metadata files of a table: ``write.metadata.path``, else its folder ``metadata``."""
    return SimpleLocationProvider(metadata.location.rstrip("/"), metadata.properties)


def data_places(metadata: TableMetadata, catalog: Mapping[str, Any]) -> LocationProvider:
    """Return what places the data files of a table: a class of PyIceberg's, or the class that *catalog* allows.

    Args:
        metadata: The table's.
        catalog: The properties of its catalog; a file store has them, too.
    """
    return load_location_provider(metadata.location, heeded(metadata, catalog).properties)


def _scheme(location: str) -> str:
    return location.partition(":")[0].lower()


def heeded(metadata: TableMetadata, catalog: Mapping[str, Any]) -> TableMetadata:
    """Return *metadata* without the properties that are not heeded: :func:`foreign_classes`."""
    ignored = foreign_classes(metadata.properties, catalog)
    if not ignored:
        return metadata
    for key, value in ignored.items():
        _warn(metadata.location, key, value)
    kept = {key: value for key, value in metadata.properties.items() if key not in ignored}
    return metadata.model_copy(update={"properties": kept})


def foreign_classes(properties: Mapping[str, str], catalog: Mapping[str, Any]) -> dict[str, str]:
    """Return the *properties* of a table that name a class to import, and to which *catalog* has not the same value."""
    return {key: properties[key] for key in CLASSES if key in properties and properties[key] != catalog.get(key)}


@lru_cache(maxsize=256)
def _warn(table: str, key: str, value: str) -> None:
    """Log it once for each table: every write gets here."""
    logger.warning(
        "the table at %s names a class to import: %s=%s. It is ignored; if the catalog's properties have the same "
        "value for this property, it is used",
        table,
        key,
        value,
    )
