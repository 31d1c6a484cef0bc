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

Known mistakes of its writer:

* It gives two partition fields of one type, say ``decimal(18, 2)``, two definitions of one name. Avro forbids it, and
  no other engine can open the table.
* A partition field that was dropped from a table of format version 1 stays in the spec, always NULL. Where its column
  is required, it takes the field for required too, and fails.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

from pyiceberg import manifest
from pyiceberg.avro import STRUCT_DOUBLE
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.expressions.visitors import _StrictMetricsEvaluationVisitor
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, StructType
from pyiceberg.utils.decimal import decimal_required_bytes
from pyiceberg.utils.schema_conversion import AvroSchemaConversion, ConvertSchemaToAvro


@cache
def read_exactly() -> None:
    """Have PyIceberg read manifests exactly in this process, and refuse what it would misread.

    Its readers raise a ``ValueError`` then, before anything is written.
    """
    convert, inherit = AvroSchemaConversion._convert_logical_type, manifest._inherit_from_manifest

    @wraps(convert)
    def converted(self: AvroSchemaConversion, avro_type: dict[str, Any]) -> IcebergType:
        size = _SIZES.get(avro_type["logicalType"], lambda _: None)(avro_type)
        if size is not None and (avro_type["type"], avro_type.get("size")) != ("fixed", size):
            raise ValueError(
                f"an Avro file has values as {avro_type}, which can't be read: Iceberg has them as fixed[{size}]. "
                "Nothing was changed; have the writer of the file write its manifests anew"
            )
        return convert(self, avro_type)

    @wraps(inherit)
    def inherited(entry: ManifestEntry, of: ManifestFile) -> ManifestEntry:
        if entry.status == ManifestEntryStatus.EXISTING and entry.sequence_number is None:
            entry.sequence_number = entry.file_sequence_number = 0
        return inherit(entry, of)

    _StrictMetricsEvaluationVisitor._can_contain_nans = _can_contain_nans  # type: ignore[method-assign]
    manifest._inherit_from_manifest = inherited  # type: ignore[assignment]
    AvroSchemaConversion._convert_logical_type = converted  # type: ignore[assignment,method-assign]
    DoubleReader.read = _double  # type: ignore[method-assign]
    _write_for_every_reader()


def _write_for_every_reader() -> None:
    begin, convert, types_of = ConvertSchemaToAvro.__init__, ConvertSchemaToAvro.field, PartitionSpec.partition_type

    @wraps(begin)
    def begun(self: ConvertSchemaToAvro, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._names = set()  # type: ignore[attr-defined]

    @wraps(convert)
    def named_once(self: ConvertSchemaToAvro, field: NestedField, made: Any) -> Any:
        if isinstance(made, dict) and made["type"] == "fixed":
            if made["name"] in self._names:  # type: ignore[attr-defined]
                made = {**made, "name": f"{made['name']}_r{field.field_id}"}
            self._names.add(made["name"])  # type: ignore[attr-defined]
        return convert(self, field, made)

    @wraps(types_of)
    def partition_type(self: PartitionSpec, schema: Schema) -> StructType:
        void = {field.field_id for field in self.fields if isinstance(field.transform, VoidTransform)}
        fields = types_of(self, schema).fields
        return StructType(
            *(f.model_copy(update={"required": False}) if f.field_id in void and f.required else f for f in fields)
        )

    ConvertSchemaToAvro.__init__ = begun  # type: ignore[method-assign]
    ConvertSchemaToAvro.field = named_once  # type: ignore[assignment,method-assign]
    PartitionSpec.partition_type = partition_type  # type: ignore[method-assign]


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
