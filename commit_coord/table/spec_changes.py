"""Changes of the partition fields."""

from __future__ import annotations

from typing import Any

from pyiceberg.partitioning import PartitionField
from pyiceberg.table.update.spec import UpdateSpec
from pyiceberg.transforms import Transform


class SpecChanges(UpdateSpec):
    """PyIceberg's builder, which gives no id twice in one spec.

    A field that is added again gets the id that it had. But a field that was dropped in format version 1 stays in the
    spec, void, with its id: also when the table has been upgraded since. Two fields of one id are two columns of one
    name in manifests, which no reader can open.
    """

    def _partition_field(self, transform_key: tuple[int, Transform[Any, Any]], name: str | None) -> PartitionField:
        made = super()._partition_field(transform_key, name)
        stays = {field.field_id for field in self._transaction.table_metadata.spec().fields} - self._deletes
        if made.field_id not in stays:
            return made
        return PartitionField(made.source_id, self._new_field_id(), made.transform, made.name)
