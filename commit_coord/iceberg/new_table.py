"""The metadata of a table that is not made yet: PyIceberg's, with what format version 3 needs in addition."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, _SetFreshIDs, pre_order_visit
from pyiceberg.table.metadata import TableMetadata, TableMetadataV3, new_table_metadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.types import IcebergType, StructType

from commit_coord.iceberg.partition_names import refuse_names
from commit_coord.iceberg.storage import cut_off, misplaced
from commit_coord.iceberg.table_properties import refuse_unreadable
from commit_coord.iceberg.usable import refuse_columns, refuse_transforms


def new_metadata(
    location: str, schema: Schema, spec: PartitionSpec, order: SortOrder, properties: Mapping[str, Any]
) -> TableMetadata:
    """Return the metadata of a new table, with ids of its own for columns, spec and order.

    Raises:
        ConfigError: A property is to be a number, or true or false, and is not.
        ValueError: The schema does not fit the format version, or a column of the spec or order is not there. Or as
            :func:`~commit_coord.iceberg.partition_names.refuse_names`, as
            :func:`~commit_coord.iceberg.usable.refuse_columns` and ``refuse_transforms``, or as
            :func:`~commit_coord.iceberg.storage.misplaced`: the properties name such a place.
        ValidationError: PyIceberg's: a transform of the spec or order does not fit its column.
    """
    refuse_unreadable({key: str(value) for key, value in properties.items()})
    made = new_table_metadata(
        location=location, schema=schema, partition_spec=spec, sort_order=order, properties=dict(properties)
    )
    refuse_columns(schema, made.format_version)
    refuse_transforms((*spec.fields, *order.fields))
    made.spec().check_compatible(made.schema())
    refuse_names(made.spec(), made.schema())
    made.sort_order().check_compatible(made.schema())
    if (reason := misplaced(made)) is not None:
        raise ValueError(reason)
    if not isinstance(made, TableMetadataV3):
        return made
    columns = pre_order_visit(schema, _FreshIdsAndDefaults()).model_copy(update={"schema_id": made.current_schema_id})
    return made.model_copy(update={"schemas": [columns], "next_row_id": 0})


def refuse_location(location: str, named: Sequence[str] = ()) -> None:
    """Return if a table may have *location*.

    Args:
        location: The folder of the table.
        named: The names that it was made of; none where a caller chose it.

    Raises:
        ValueError: File stores would cut it off, see :func:`~commit_coord.iceberg.storage.cut_off`. Or a name is a way
            out of the warehouse: ``../../etc``.
    """
    if not {".", ".."}.isdisjoint(part for name in named for part in name.split("/")):
        raise ValueError(f"a location can't hold '.' or '..', choose another with location=: {'.'.join(named)}")
    if (reason := cut_off(location)) is not None:
        raise ValueError(f"{reason}; choose another with location=")


class _FreshIdsAndDefaults(_SetFreshIDs):
    """Numbers columns as PyIceberg does, and keeps the default values, which that drops."""

    def struct(self, struct: StructType, field_results: builtins.list[Callable[[], IcebergType]]) -> StructType:
        """Return *struct* with new ids."""
        fresh = super().struct(struct, field_results)
        return StructType(
            *(
                field.model_copy(
                    update={"initial_default": given.initial_default, "write_default": given.write_default}
                )
                for field, given in zip(fresh.fields, struct.fields, strict=True)
            )
        )
