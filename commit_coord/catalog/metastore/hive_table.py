"""The data of an Iceberg table in the Hive Metastore besides its pointer, in the form of Iceberg Java.

Hive, Trino and Spark's ``DESCRIBE`` look at these columns, parameters and statistics, and Java's ``HiveCatalog`` finds
them as if it had written them itself.

Source: Iceberg Java ``HiveTableOperations``, ``HMSTablePropertyHelper``, ``HiveOperationsBase``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

import orjson
from pyiceberg.catalog.hive import _construct_hive_storage_descriptor
from pyiceberg.table.metadata import TableMetadata

from commit_coord.catalog.metastore.serde import SERDE_LIB, SERDE_PROPERTY

logger = logging.getLogger(__name__)

METADATA_LOCATION = "metadata_location"
PREVIOUS_METADATA_LOCATION = "previous_metadata_location"
TABLE_TYPE = "table_type"

ICEBERG_VIEW = "ICEBERG-VIEW"
"""The table type of a view."""

VIRTUAL_VIEW = "VIRTUAL_VIEW"
"""How Hive itself calls it."""

OWNER = "hive.metastore.table.owner"
"""The property that names the owner in the metastore; it is no parameter there."""

LONGEST_KEY = 256
"""``TABLE_PARAMS.PARAM_KEY`` in the schemas of all versions. A server tries for twenty seconds before it says so."""

LONGEST_VALUE = 4000
"""Characters of ``TABLE_PARAMS.PARAM_VALUE`` that fit everywhere. Later schemas take more, 2.3 on Derby 32672."""

_HMS_NAMES = {"gc.enabled": "external.table.purge"}
"""Iceberg's properties that have another name in Hive."""

_ENGINE = "engine.hive.enabled"
_STATISTICS = {
    "total-data-files": "numFiles",
    "total-records": "numRows",
    "total-files-size": "totalSize",
}
_HANDLER = "org.apache.iceberg.mr.hive.HiveIcebergStorageHandler"
_HANDLED = (
    "org.apache.iceberg.mr.hive.HiveIcebergInputFormat",
    "org.apache.iceberg.mr.hive.HiveIcebergOutputFormat",
    "org.apache.iceberg.mr.hive.HiveIcebergSerDe",
)


def parameters(
    found: dict[str, str] | None,
    location: str,
    metadata: TableMetadata,
    *,
    base_location: str | None = None,
    base: TableMetadata | None = None,
    longest: int,
) -> dict[str, str]:
    """Return the parameters of the table with *metadata* at *location*.

    Args:
        found: What they are now; those that are not Iceberg's stay.
        location: The new pointer.
        metadata: What it points to.
        base_location: The pointer before.
        base: What that points to.
        longest: Of the schema, snapshot summary, spec and sort order those that are longer are left out; 0 leaves
            all of them out.

    Raises:
        ValueError: A property's name is longer than the metastore takes.
    """
    for key in metadata.properties:
        if len(key) > LONGEST_KEY:
            raise ValueError(
                f"the metastore limits property names to {LONGEST_KEY} characters, this one has {len(key)}: {key!r}"
            )
    made = dict(found or {})
    for key in (base.properties.keys() - metadata.properties.keys()) if base is not None else ():
        made.pop(_HMS_NAMES.get(key, key), None)
    made |= {key: str(value) for key, value in metadata.properties.items() if key.lower() != OWNER}
    for key in metadata.properties.keys() & _HMS_NAMES.keys():
        # Also over a property that has Hive's name itself: what Iceberg must keep, Hive must not purge.
        made[_HMS_NAMES[key]] = made.pop(key)
    made |= {
        "EXTERNAL": "TRUE",
        TABLE_TYPE: "ICEBERG",
        METADATA_LOCATION: location,
        "uuid": str(metadata.table_uuid),
        "snapshot-count": str(len(metadata.snapshots)),
    }
    if base_location is not None:
        made[PREVIOUS_METADATA_LOCATION] = base_location
    engine = metadata.properties.get(_ENGINE)
    if engine is not None and engine.lower() == "true":
        made["storage_handler"] = _HANDLER
    elif engine is not None:
        made.pop("storage_handler", None)
    made |= _statistics(metadata)
    described = _described(metadata) if longest > 0 else {}
    for key in ("current-snapshot-id", "current-snapshot-timestamp-ms", *_DESCRIPTIONS):
        made.pop(key, None)
    for key, value in described.items():
        if len(value) <= longest:
            made[key] = value
        else:
            logger.warning("the table's %s is left out of the metastore: longer than %d characters", key, longest)
    return made


def value_refused(parameters: dict[str, str], refusal: str) -> str | None:
    """Return in words which value is too long for the metastore, if that is what *refusal* means; else None.

    Args:
        parameters: What it was asked to keep.
        refusal: Its answer. Some servers pass on what their database says, some only which statement failed.
    """
    key, value = max(parameters.items(), key=lambda item: len(item[1]))
    if len(value) <= LONGEST_VALUE or not _STORING.search(refusal):
        return None
    shorter = "set hive.table-property-max-size" if key in _DESCRIPTIONS else "make it shorter"
    return (
        f"the metastore could not store the property {key!r} of {len(value)} characters: {LONGEST_VALUE} fit "
        f"everywhere, more where the column TABLE_PARAMS.PARAM_VALUE is wider; {shorter}, or widen it: {refusal}"
    )


def folder_refused(location: str, refusal: str) -> str | None:
    """Return in words that the metastore can't make or see the table's folder, if that is what *refusal* means."""
    if not _REACHING.search(refusal):
        return None
    return (
        f"the metastore can't reach the table's folder {location}; it needs the same storage as the table's writers, "
        f"and the right to make folders there: {refusal}"
    )


_REACHING = re.compile("^Got exception: |unable to create one|No FileSystem for scheme|Permission denied|AccessControl")
"""In what a server says when its file system refuses the folder. Source: Hive ``Warehouse``, ``HMSHandler``."""

_STORING = re.compile("TABLE_PARAMS|PARAM_VALUE")
"""In what a server says when its database refuses a parameter."""

_DESCRIPTIONS = ("current-snapshot-summary", "current-schema", "default-partition-spec", "default-sort-order")


def _statistics(metadata: TableMetadata) -> dict[str, str]:
    snapshot = metadata.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return {}
    summary = snapshot.summary.additional_properties
    return {hive: summary[iceberg] for iceberg, hive in _STATISTICS.items() if iceberg in summary}


def _described(metadata: TableMetadata) -> dict[str, str]:
    described = {"current-schema": metadata.schema().model_dump_json()}
    snapshot = metadata.current_snapshot()
    if snapshot is not None:
        described["current-snapshot-id"] = str(snapshot.snapshot_id)
        described["current-snapshot-timestamp-ms"] = str(snapshot.timestamp_ms)
        if snapshot.summary is not None:
            summary = {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
            described["current-snapshot-summary"] = orjson.dumps(summary).decode()
    if not metadata.spec().is_unpartitioned():
        described["default-partition-spec"] = metadata.spec().model_dump_json()
    order = next(order for order in metadata.sort_orders if order.order_id == metadata.default_sort_order_id)
    if not order.is_unsorted:
        described["default-sort-order"] = order.model_dump_json()
    return described


def storage_descriptor(found: Any, metadata: TableMetadata, *, hive2_compatible: bool) -> Any:
    """Return the columns, folder and formats of the table with *metadata*.

    The formats stay as they are in *found*, the table's present descriptor, unless the table's properties say whether
    Hive itself shall be able to read it.
    """
    made = _construct_hive_storage_descriptor(metadata.schema(), metadata.location, hive2_compatible)
    engine = metadata.properties.get(_ENGINE)
    if engine is not None and engine.lower() == "true":
        made.inputFormat, made.outputFormat, made.serdeInfo.serializationLib = _HANDLED
    elif engine is None and found is not None:
        made.inputFormat, made.outputFormat, made.serdeInfo = found.inputFormat, found.outputFormat, found.serdeInfo
    made.serdeInfo.serializationLib = metadata.properties.get(SERDE_LIB, made.serdeInfo.serializationLib)
    stated = {key: value for key, value in metadata.properties.items() if key.startswith(SERDE_PROPERTY)}
    if stated:
        named = {key.removeprefix(SERDE_PROPERTY): value for key, value in stated.items()}
        made.serdeInfo.parameters = {**(made.serdeInfo.parameters or {}), **named}
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """How a catalog writes its tables into the metastore.

    Args:
        longest: See :func:`parameters`.
        hive2_compatible: Whether only types are written that Hive 2 knows.
    """

    longest: int
    hive2_compatible: bool

    def fill(
        self,
        table: Any,
        location: str,
        metadata: TableMetadata,
        *,
        base_location: str | None = None,
        base: TableMetadata | None = None,
    ) -> Any:
        """Return the metastore's *table* with *metadata* at *location*, in place.

        Args:
            table: As it is now; of a new one nothing is kept.
            location: The new pointer.
            metadata: What it points to.
            base_location: The pointer before; None of a new table.
            base: What that points to.

        Raises:
            ValueError: A property's name is longer than the metastore takes.
        """
        is_new = base_location is None
        table.parameters = parameters(
            None if is_new else table.parameters,
            location,
            metadata,
            base_location=base_location,
            base=base,
            longest=self.longest,
        )
        found = None if is_new else table.sd
        table.sd = storage_descriptor(found, metadata, hive2_compatible=self.hive2_compatible)
        return table
