"""Manifests are read as they were written, or not at all; and every reader can read what is written.

A commit that removes a file writes the other entries of its manifest anew, from what PyIceberg's reader returned. A
value that is misread once is so in the table for good, and every engine skips files by it. Known misreadings:

* Its compiled decoder returns a double with the precision of a float: the partition 0.1 becomes 0.10000000149.
* It takes a decimal for ``fixed`` of the fewest bytes, and a uuid for ``fixed`` of 16 bytes, whatever the file says.
  In another form they are garbage, and so is all that follows in the entry. The specification has no other form.
* An existing entry without a sequence number has none for it, and can't be written anew. An older version of this
  package left such entries behind when it merged manifests of format version 1, whose files are all of number 0.
* Where a file does not say how many NaN it has, PyIceberg takes it to have none. Its own writer never says it, and
  leaves NaN out of the bounds: a delete of ``x == 0.0`` would drop a whole file of 0.0 and NaN.
* No record of partition values that has a NaN is equal to another one: rows of such a partition that were deleted by
  position are there again.

Known mistakes of its writer:

* It gives two partition fields of one type, say ``decimal(18, 2)``, two definitions of one name. Avro forbids it, and
  no other engine can open the table.
* A partition field that was dropped from a table of format version 1 stays in the spec, always NULL. Where its column
  is required, it takes the field for required too, and fails. So it does for a required field of a struct that may be
  NULL; there a filter for NULL would also leave out such partitions.
* Where the head of a file can't be written, as on a full disk, it leaves the file open.
"""

from __future__ import annotations

from contextlib import suppress
from math import isnan
from typing import Any

from pyiceberg import manifest
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.expressions.visitors import _StrictMetricsEvaluationVisitor
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, StructType
from pyiceberg.utils.decimal import decimal_required_bytes
from pyiceberg.utils.schema_conversion import AvroSchemaConversion, ConvertSchemaToAvro

from commit_coord.iceberg.mends import Mends
from commit_coord.iceberg.predicates import always_there


def mend(mends: Mends) -> None:
    """Have PyIceberg read manifests exactly and refuse what it would misread, and write them for every reader.

    Its readers raise a ``ValueError`` then, before anything is written.
    """
    mends.wrap(AvroSchemaConversion, "_convert_logical_type", _of_the_size_that_is_read)
    mends.wrap(manifest, "_inherit_from_manifest", _of_number_0)
    mends.wrap(DoubleReader, "read", lambda _: _double)
    mends.wrap(_StrictMetricsEvaluationVisitor, "_can_contain_nans", lambda _: _can_contain_nans)
    mends.wrap(Record, "__eq__", _nan_is_nan)
    mends.wrap(ConvertSchemaToAvro, "__init__", _without_names)
    mends.wrap(ConvertSchemaToAvro, "field", _named_once)
    mends.wrap(AvroOutputFile, "__enter__", _closed_after_a_failure)
    mends.wrap(PartitionSpec, "partition_type", _null_is_optional)


def _of_the_size_that_is_read(real: Any) -> Any:
    def converted(self: AvroSchemaConversion, avro_type: dict[str, Any]) -> IcebergType:
        size = _SIZES.get(avro_type["logicalType"], lambda _: None)(avro_type)
        if size is not None and (avro_type["type"], avro_type.get("size")) != ("fixed", size):
            raise ValueError(
                f"an Avro file stores values as {avro_type}, which can't be read: Iceberg requires fixed[{size}]. "
                "Nothing was changed. The engine that wrote the file must rewrite its manifests"
            )
        return real(self, avro_type)  # type: ignore[no-any-return]

    return converted


def _of_number_0(real: Any) -> Any:
    def inherited(entry: ManifestEntry, of: ManifestFile) -> ManifestEntry:
        if entry.status == ManifestEntryStatus.EXISTING and entry.sequence_number is None:
            entry.sequence_number = entry.file_sequence_number = 0
        return real(entry, of)  # type: ignore[no-any-return]

    return inherited


def _nan_is_nan(real: Any) -> Any:
    def equal(self: Record, other: Any) -> bool:
        if real(self, other):
            return True
        return (
            isinstance(other, Record)
            and len(self) == len(other)
            and all(a == b or (_is_nan(a) and _is_nan(b)) for a, b in zip(self._data, other._data, strict=True))
        )

    return equal


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)


def _without_names(real: Any) -> Any:
    def begun(self: ConvertSchemaToAvro, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self._names = set()  # type: ignore[attr-defined]

    return begun


def _named_once(real: Any) -> Any:
    def named(self: ConvertSchemaToAvro, field: NestedField, made: Any) -> Any:
        if isinstance(made, dict) and made["type"] == "fixed":
            if made["name"] in self._names:  # type: ignore[attr-defined]
                made = {**made, "name": f"{made['name']}_r{field.field_id}"}
            self._names.add(made["name"])  # type: ignore[attr-defined]
        return real(self, field, made)

    return named


def _closed_after_a_failure(real: Any) -> Any:
    def entered(self: AvroOutputFile[Any]) -> Any:
        try:
            return real(self)
        except BaseException:
            with suppress(AttributeError, OSError):  # it was not opened, or can't be written
                self.output_stream.close()
            raise

    return entered


def _null_is_optional(real: Any) -> Any:
    def partition_type(self: PartitionSpec, schema: Schema) -> StructType:
        made: StructType = real(self, schema)
        if not any(field.required for field in made.fields):
            return made
        there = {
            field.field_id
            for field in self.fields
            if not isinstance(field.transform, VoidTransform) and always_there(schema.as_struct(), field.source_id)
        }
        return StructType(
            *(
                field if field.field_id in there or not field.required else field.model_copy(update={"required": False})
                for field in made.fields
            )
        )

    return partition_type


_SIZES = {"decimal": lambda avro_type: decimal_required_bytes(avro_type["precision"]), "uuid": lambda _: 16}
"""Bytes of a value, by its logical type. Source: Iceberg specification, "Appendix A", "Avro"."""


def _can_contain_nans(self: _StrictMetricsEvaluationVisitor, field_id: int) -> bool:
    if (count := self.nan_counts.get(field_id)) is not None:
        return count > 0
    field = self.struct.field(field_id=field_id)
    return field is None or isinstance(field.field_type, DoubleType | FloatType)  # None: it lies in a struct


def _double(self: DoubleReader, decoder: BinaryDecoder) -> float:
    (value,) = STRUCT_DOUBLE.unpack(decoder.read(8))
    return float(value)
