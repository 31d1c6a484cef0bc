"""The partitions of an Iceberg table under the names that Hive would give them: what locks stand on."""

from __future__ import annotations

from itertools import product
from typing import Any

from pyiceberg import expressions as E
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from commit_coord.protocol.hierarchy import Partition


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


def partition_level(field: PartitionField, schema: Schema, value: Any) -> str:
    """Return one level of a partition as Hive names it, ``name=value``."""
    kind = field.transform.result_type(schema.find_type(field.source_id))
    return f"{field.name}={field.transform.to_human_string(kind, value)}"


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
