"""Row filters of partitions: among the rows that match are all those that lie in the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, EqualTo, IsNaN, IsNull, Or
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from commit_coord.iceberg.partitioned_rows import split
from commit_coord.iceberg.written import has_partitions

if TYPE_CHECKING:
    import pyarrow as pa


def of_files(metadata: TableMetadata, files: Sequence[DataFile]) -> BooleanExpression:
    """Return the filter of the partitions of *files*, each under the spec that it says (``DataFile.spec_id``).

    A table without partitions is one partition, also of no file.
    """
    if not files and not has_partitions(metadata.spec()):
        return AlwaysTrue()
    partitions: dict[int, list[Record]] = {}
    for file in files:
        partitions.setdefault(file.spec_id, []).append(file.partition)
    specs, schema = metadata.specs(), metadata.schema()
    return any_of(of_partitions(specs[spec_id], schema, found) for spec_id, found in partitions.items())


def of_rows(metadata: TableMetadata, rows: pa.Table) -> BooleanExpression:
    """Return the filter of the partitions of the current spec that *rows* fall in: all, where they do not tell."""
    spec, schema = metadata.spec(), metadata.schema()
    try:
        return of_partitions(spec, schema, (partition for partition, _ in split(rows, spec, schema, keep_rows=False)))
    except (ValueError, TypeError, NotImplementedError, AttributeError):  # writing them will tell
        return AlwaysTrue()


def of_partitions(spec: PartitionSpec, schema: Schema, partitions: Iterable[Record]) -> BooleanExpression:
    """Return the filter of *partitions* of *spec*, by what identity transforms of columns of *schema* tell."""
    names = {
        position: name
        for position, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform) and (name := schema.find_column_name(field.source_id))
    }
    return of_values(
        list(names.values()), {tuple(partition[position] for position in names) for partition in partitions}
    )


def of_values(names: Sequence[str], found: Iterable[Sequence[Any]]) -> BooleanExpression:
    """Return the filter of rows whose columns *names* have values that were *found* together.

    PyIceberg's has no partition of NaN, which equals nothing.
    """
    return any_of(
        And(AlwaysTrue(), AlwaysTrue(), *(_is(name, values[position]) for position, name in enumerate(names)))
        for values in found
    )


def any_of(filters: Iterable[BooleanExpression]) -> BooleanExpression:
    """Return a filter that matches what one of *filters* does; a balanced tree, so there may be thousands."""
    return Or(AlwaysFalse(), AlwaysFalse(), *filters)


def _is(name: str, value: Any) -> BooleanExpression:
    if value is None:
        return IsNull(term=name)
    if value != value:  # noqa: PLR0124 - NaN alone
        return IsNaN(term=name)
    return EqualTo(term=name, value=value)
