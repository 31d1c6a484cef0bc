"""What no table may be given: Java, or the library, could not load the table any more, or not change it.

PyIceberg's models accept these values: their integers have no bounds, and they check no column against another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortField
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.transforms import BucketTransform, TruncateTransform
from pyiceberg.types import FixedType, IcebergType, ListType, MapType, NestedField, StructType

FAR = 2**30
"""Java's ids have 31 bits. A client that asks for the last one must not leave the table without a next id."""

VERSION_OF_DEFAULTS = 3
_MOST = 2**62
"""Of what has 63 bits: as far from the last one as :data:`FAR` is."""


def refuse_unusable(updates: Sequence[TableUpdate], head: TableMetadata | None) -> None:
    """Return if *head* can be loaded and changed after *updates*; None is a table that they create.

    Raises:
        ValueError: As :func:`refuse_columns` and :func:`refuse_transforms`. Or a column, partition field or snapshot
            takes an id or number that is too high.
    """
    version = max(
        head.format_version if head is not None else 1,
        *(each.format_version for each in updates if isinstance(each, UpgradeFormatVersionUpdate)),
        1,
    )
    last_column = head.last_column_id if head is not None else 0
    last_partition = (head.last_partition_id if head is not None else None) or 0
    for update in updates:
        match update:
            case AddSchemaUpdate(schema_=schema):
                refuse_columns(schema, version)
                _refuse_far("column", (field.field_id for field in _columns(schema)), last_column)
            case AddPartitionSpecUpdate(spec=spec):
                refuse_transforms(spec.fields)
                _refuse_far("partition field", (field.field_id for field in spec.fields), last_partition)
            case AddSortOrderUpdate(sort_order=order):
                refuse_transforms(order.fields)
            case AddSnapshotUpdate(snapshot=snapshot):
                _refuse_far_snapshot(snapshot)


def refuse_columns(schema: Schema, version: int) -> None:
    """Return if a table of this format *version* can have the columns of *schema*.

    Raises:
        ValueError: Two columns have one id, a value of fixed length is too long, or a column has a default value,
            which tables before version 3 can't keep.
    """
    fields = list(_columns(schema))
    counted = Counter(field.field_id for field in fields if field.field_id > 0)  # those that have none yet share -1
    if twice := [number for number, count in counted.items() if count > 1]:
        raise ValueError(f"Invalid schema: the columns need ids of their own, and several have the id {twice[0]}")
    for field in fields:
        if isinstance(field.field_type, FixedType) and field.field_type.root >= 2**31:
            raise ValueError(f"Invalid schema: the type of {field.name} is too long: {field.field_type}")
        has_default = field.initial_default is not None or field.write_default is not None
        if has_default and version < VERSION_OF_DEFAULTS:
            raise ValueError(
                f"Invalid schema for v{version}: {field.name} has a default value, which needs format version "
                f"{VERSION_OF_DEFAULTS}; upgrade the table, or leave the default out"
            )


def refuse_transforms(fields: Iterable[PartitionField | SortField]) -> None:
    """Return if the transforms of *fields* can be computed.

    Raises:
        ValueError: A number of buckets or a width is zero, or has more than 31 bits.
    """
    for field in fields:
        match field.transform:
            case BucketTransform(num_buckets=number) | TruncateTransform(width=number) if not 0 < number < 2**31:
                raise ValueError(f"Invalid transform {field.transform}: its number must be from 1 to {2**31 - 1}")


def _columns(schema: Schema) -> Iterator[NestedField]:
    for field in schema.fields:
        yield field
        yield from _below(field.field_type)


def _below(kind: IcebergType) -> Iterator[NestedField]:
    match kind:
        case StructType(fields=fields):
            parts = fields
        case ListType(element_field=element):
            parts = (element,)
        case MapType(key_field=key, value_field=value):
            parts = (key, value)
        case _:
            return
    for part in parts:
        yield part
        yield from _below(part.field_type)


def _refuse_far(what: str, given: Iterable[int], last: int) -> None:
    if far := [number for number in given if number >= FAR and number > last]:
        raise ValueError(f"the {what} id {far[0]} is too high: the table could give no other one after it")


def _refuse_far_snapshot(snapshot: Snapshot) -> None:
    rows = (snapshot.first_row_id or 0) + (snapshot.added_rows or 0)
    for what, number in (("sequence number", snapshot.sequence_number or 0), ("row id", rows)):
        if number >= _MOST:
            raise ValueError(f"the {what} {number} is too high: the table could give no other one after it")
