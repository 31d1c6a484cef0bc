"""Which names partition fields may have.

A field may have the name of the column of which it is made, and of no other column as long as that one is there. Java
binds all specs of a table to its columns by this rule, and loads no table that breaks it. ClickHouse names each field
like its column. PyIceberg accepts this for the values of the column alone, and of a table with another such field it
refuses to change the columns.

Source: Iceberg Java ``PartitionSpec.Builder``, ``checkAndAddPartitionName`` as ``add`` calls it.
"""

from __future__ import annotations

from typing import Any

from pyiceberg import partitioning
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from commit_coord.iceberg.mends import Mends


def mend(mends: Mends) -> None:
    """Have PyIceberg accept the names that Java accepts."""
    mends.wrap(partitioning, "validate_partition_name", _of_its_column)


def refuse_names(spec: PartitionSpec, schema: Schema) -> None:
    """Return if the fields of *spec* may have their names in a table with the columns of *schema*.

    Raises:
        ValueError: A field has no name, the name of another field, or that of a column of which it is not made.
    """
    taken = set[str]()
    for field in spec.fields:
        if not field.name:
            raise ValueError("Cannot use empty partition name")
        if field.name in taken:
            raise ValueError(f"Cannot use partition name more than once: {field.name}")
        taken.add(field.name)
        partitioning.validate_partition_name(field.name, field.transform, field.source_id, schema, set())


def _of_its_column(real: Any) -> Any:
    def validated(name: str, transform: Any, source_id: int, schema: Schema, taken: set[str]) -> None:
        if schema.find_column_name(source_id) is not None:
            # By PyIceberg's rule, only the values themselves may have the name of their column.
            real(name, IdentityTransform() if _is_own(name, source_id, schema) else transform, source_id, schema, taken)

    return validated


def _is_own(name: str, source_id: int, schema: Schema) -> bool:
    try:
        return schema.find_field(name).field_id == source_id
    except ValueError:
        return False
