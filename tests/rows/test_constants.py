"""The oracle of rows compares columns with constants of every type as PyIceberg does, and as SQL does.

A column that was swapped with another one meets constants that were chosen for that one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import InvalidOperation
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from commit_coord.errors import StatementError
from commit_coord.sql.grammar import parse
from commit_coord.sql.where.binding import bound as bound_where
from commit_coord.sql.where.truth import truth
from commit_coord.testing.table_files.state import Unbound
from commit_coord.testing.table_files.values import canonical
from tests.proof.rows.draw.dice import POOLS
from tests.proof.rows.model.conditions import Compare, In, Stated, bound
from tests.proof.rows.read import readers
from tests.proof.rows.statements import where_text

CONSTANTS = [value for pool in POOLS.values() for value in pool if not (isinstance(value, float) and math.isnan(value))]

Found = list[Any] | str


def by_pyiceberg(condition: Compare | In, schema: Schema, rows: pa.Table) -> Any:
    found = bind(schema, readers.expression(condition), case_sensitive=True)
    return rows.filter(expression_to_pyarrow(found, schema))


def by_sql(condition: Compare | In, schema: Schema, rows: pa.Table) -> Any:
    statement: Any = parse(f"DELETE FROM t{where_text(condition)}")
    return rows.filter(truth(bound_where(statement.where, schema), rows))


REFUSALS: dict[Any, tuple[type[Exception], ...]] = {
    by_pyiceberg: (TypeError, ValueError, InvalidOperation),
    by_sql: (StatementError,),
}
"""How each says that it does not compare the two."""


def asked(
    how: Callable[[Compare | In, Schema, pa.Table], pa.Table], condition: Compare | In, schema: Schema, rows: pa.Table
) -> Found:
    """Return the rows that satisfy *condition*; "refused" when it is."""
    try:
        found = how(condition, schema, rows)
    except REFUSALS[how]:
        return "refused"
    return sorted(repr(canonical(row, schema.as_struct())) for row in found.to_pylist())


@pytest.mark.parametrize("how", [by_pyiceberg, by_sql])
@pytest.mark.parametrize("kind", POOLS)
def test_a_column_meets_constants_of_every_type(kind: str, how: Any) -> None:
    schema = Schema(NestedField(1, "c", IcebergType.model_validate(kind), required=False))
    values = [{"c": value} for value in (*POOLS[kind], None)]
    rows = pa.Table.from_pylist(values, schema=schema_to_pyarrow(schema, include_field_ids=False))
    differ = []
    conditions: list[Compare | In] = [Compare("c", op, value) for value in CONSTANTS for op in ("==", "<=", ">")]
    conditions += [In("c", tuple(pool[:2])) for pool in POOLS.values()]
    for condition in conditions:
        real = asked(how, condition, schema, rows)
        try:
            holds = bound(Stated(condition) if how is by_sql else condition, schema.as_struct())
            ours: Found = sorted(repr(row) for value in values if holds(row := canonical(value, schema.as_struct())))
        except Unbound:
            ours = "refused"
        if real != ours:
            differ.append(f"{condition}: the model says {ours}, not {real}")
    assert differ == []
