"""What PyIceberg does for each manifest and each data file of a large table, done once or in C. No result changes.

* For each data file of a plan it derives what the filter leaves to be evaluated, from the schema, the spec and the
  filter. Only the partition matters: a third of the time that the plan of a whole table takes.
* It decodes and encodes manifest lists in Python: half of the time that the plan of one partition takes, and most of
  that of an overwrite, which changes one manifest of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyiceberg import manifest
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import InputFile
from pyiceberg.manifest import DataFile, ManifestFile, ManifestListWriter
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.typedef import Record

from commit_coord.iceberg import avro, manifest_list
from commit_coord.iceberg.mends import Mends
from commit_coord.iceberg.partitions import partition_key


def mend(mends: Mends) -> None:
    """Have PyIceberg plan reads and write manifest lists so."""
    mends.wrap(ManifestGroupPlanner, "_build_residual_evaluator", _once_for_each_partition)
    mends.wrap(manifest, "read_manifest_list", _decoded_in_c)
    mends.wrap(ManifestListWriter, "add_manifests", _encoded_in_c)


def _once_for_each_partition(real: Any) -> Any:
    def built(self: ManifestGroupPlanner, spec_id: int) -> Callable[[DataFile], _Residual]:
        evaluator_of = real(self, spec_id)
        known: dict[tuple[Any, ...], _Residual] = {}

        def of_file(file: DataFile) -> _Residual:
            key = partition_key(file.partition)
            if key not in known:
                known[key] = _Residual(evaluator_of(file).residual_for(file.partition))
            return known[key]

        return of_file

    return built


@dataclass(frozen=True, slots=True)
class _Residual:
    """What is left of the filter for the rows of one partition."""

    expression: BooleanExpression

    def residual_for(self, partition: Record) -> BooleanExpression:
        """Return it."""
        return self.expression


def _decoded_in_c(real: Any) -> Any:
    def read(input_file: InputFile) -> Iterator[ManifestFile]:
        with input_file.open() as stream:
            found = manifest_list.decoded(stream.read())
        return real(input_file) if found is None else iter(found)

    return read


def _encoded_in_c(real: Any) -> Any:
    def add(self: ManifestListWriter, manifest_files: list[ManifestFile]) -> ManifestListWriter:
        file = self._writer
        records = manifest_list.encoded(map(self.prepare_manifest, manifest_files), self._format_version)
        codec = file.compression_codec()
        payload = records if codec is None else codec.compress(records)[0]
        file.output_stream.write(avro.block(len(manifest_files), payload, file.sync_bytes))
        return self

    return add
