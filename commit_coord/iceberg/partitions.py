"""The partitions of an Iceberg table by their names in Hive, which locks use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import product, takewhile
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pyiceberg import expressions as E
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType, StructType

from commit_coord.iceberg.partitioned_rows import canonical, split, values_of_rows
from commit_coord.protocol.hierarchy import Partition

if TYPE_CHECKING:
    import pyarrow as pa


def fixed_partitions(filters: E.BooleanExpression, spec: PartitionSpec, schema: Schema) -> list[Partition]:
    """Return the partitions that rows matching *filters* lie in, as ``name=value`` by level; None for what is open."""
    result: list[Partition] = []
    for fixed in _alternatives(filters, schema):
        levels: list[list[str | None]] = []
        for field in spec.fields:
            values = fixed.get(field.source_id) if isinstance(field.transform, IdentityTransform) else None
            levels.append([None] if values is None else [partition_level(field, schema, value) for value in values])
        result.extend(product(*levels))
    return result


def partitions_of_rows(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> list[Partition]:
    """Return the partitions that *rows* lie in, by level.

    Raises:
        ValueError, NotImplementedError: *rows* lack a column that partitions are made of, or there is no way to tell.
    """
    if spec.is_unpartitioned():
        return []
    return [
        [partition_level(field, schema, value) for field, value in zip(spec.fields, partition._data, strict=True)]
        for partition, _ in split(rows, spec, schema, keep_rows=False)
    ]


def partition_keys_of_rows(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Any, ...]]:
    """Yield for each of *rows* the :func:`partition_key` of the partition that it lies in.

    Raises:
        ValueError, NotImplementedError: As :func:`partitions_of_rows`.
    """
    columns = [[field.values[code] for code in field.codes.to_pylist()] for field in values_of_rows(rows, spec, schema)]
    return (partition_key(Record(*values)) for values in zip(*columns, strict=True))


def lockable(partitions: Iterable[Partition]) -> list[Partition]:
    """Return those of *partitions* that must be locked; none (meaning the table) if one of them may be anywhere in it.

    What lies in another one of them needs no lock of its own.
    """
    known = {tuple(takewhile(lambda level: level is not None, levels)): levels for levels in partitions}
    if () in known:
        return []
    return [levels for path, levels in known.items() if not any(path[:depth] in known for depth in range(1, len(path)))]


def partition_level(field: PartitionField, schema: Schema, value: Any) -> str:
    """Return one level of a partition as Hive names it, ``name=value``."""
    if isinstance(field.transform, VoidTransform):  # its column may have been dropped
        return f"{field.name}=null"
    kind = field.transform.result_type(schema.find_type(field.source_id))
    return f"{field.name}={field.transform.to_human_string(kind, canonical(value, kind))}"


def _alternatives(filters: E.BooleanExpression, schema: Schema) -> list[dict[int, list[Any]]]:
    """Return the branches of a disjunction, each as source id to the values that it allows. Sound, not complete."""
    match filters:
        case E.Or(left=left, right=right):
            return _alternatives(left, schema) + _alternatives(right, schema)
        case E.And(left=left, right=right):
            return [{**one, **other} for one in _alternatives(left, schema) for other in _alternatives(right, schema)]
        case E.AlwaysFalse():
            return []
        case E.EqualTo() | E.In() | E.IsNull():
            bound = filters.bind(schema, case_sensitive=True)
            if isinstance(bound, E.BoundEqualTo):
                return [{bound.term.ref().field.field_id: [bound.literal.value]}]
            if isinstance(bound, E.BoundIn):
                values = sorted({literal.value for literal in bound.literals})
                return [{bound.term.ref().field.field_id: values}]
            if isinstance(bound, E.BoundIsNull):
                return [{bound.term.ref().field.field_id: [None]}]
    return [{}]


class _NaN(Enum):
    NAN = "NaN"


_NAN = _NaN.NAN


def partition_key(partition: Record) -> tuple[Any, ...]:
    """Return what is equal for equal partitions. NaN is unlike itself; a UUID is bytes in rows, not in manifests."""
    plain = (value.bytes if isinstance(value, UUID) else value for value in partition._data)
    return tuple(_NAN if isinstance(value, float) and math.isnan(value) else value for value in plain)


def may_hold(kind: StructType, partitions: Sequence[Record]) -> Callable[[ManifestFile], bool]:
    """Return whether a manifest, whose partitions are of *kind*, may have an entry in one of *partitions*."""
    values = [_Values(column) for column in zip(*map(partition_key, partitions), strict=True)]
    types: list[Any] = [field.field_type for field in kind.fields]

    def overlaps(manifest: ManifestFile) -> bool:
        return bool(partitions) and all(
            column.may_lie_in(summary, kind)
            for column, summary, kind in zip(values, manifest.partitions or (), types, strict=False)
        )

    return overlaps


class _Values:
    """The values of one partition field."""

    def __init__(self, values: Iterable[Any]) -> None:
        distinct = set(values)
        self._null, self._nan = None in distinct, _NAN in distinct
        plain = distinct - {None, _NAN}
        self._ends = (min(plain), max(plain)) if plain else None

    def may_lie_in(self, summary: PartitionFieldSummary, kind: PrimitiveType) -> bool:
        """Return whether *summary* leaves room for one of the values."""
        if (self._null and summary.contains_null) or (self._nan and summary.contains_nan is not False):
            return True
        if self._ends is None:
            return False
        if summary.lower_bound is None or summary.upper_bound is None:
            return True
        first, last = self._ends
        try:
            lower, upper = (from_bytes(kind, bound) for bound in (summary.lower_bound, summary.upper_bound))
            return bool(lower <= last and first <= upper)
        except (TypeError, ValueError):
            return True  # the field's type is not known, or its values can't be compared


def is_hidden(below: str) -> bool:
    """Return whether Hive and Spark pass over the file at *below*, a path in its folder.

    Their writers have there what is not committed: files of failed attempts, marks, summaries of Parquet. A folder with
    ``=`` in its name is a partition.
    """
    return any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in below.split("/"))
