"""ALTER TABLE on the columns and properties of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, pairwise

import pyarrow as pa
import pyarrow.fs
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, index_by_id, index_name_by_id
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType, NestedField

from commit_coord.errors import StatementError
from commit_coord.protocol.hierarchy import Operation
from commit_coord.sql.show import Answer, message
from commit_coord.sql.statement import (
    AddColumns,
    ChangeColumn,
    Column,
    ReplaceColumns,
)
from commit_coord.sql.types import iceberg_type
from commit_coord.sql.where.columns import field_of, known_field
from commit_coord.table import CoordinatedTable
from commit_coord.table.transaction import CoordinatedTransaction


def set_properties(table: Table, properties: Mapping[str, str | None]) -> Answer:
    """Set properties, and remove those whose value is None."""
    with table.transaction() as transaction:
        transaction.set_properties({key: value for key, value in properties.items() if value is not None})
        removed = [key for key, value in properties.items() if value is None and key in table.properties]
        if removed:
            transaction.remove_properties(*removed)
    return message(f"set {', '.join(properties)} of {'.'.join(table.name())}")


def change_columns(statement: AddColumns | ReplaceColumns | ChangeColumn, table: CoordinatedTable) -> Answer:
    """Add, replace or change columns."""

    def plan(tx: CoordinatedTransaction) -> None:
        with tx.update_schema() as update:
            match statement:
                case AddColumns(columns=columns):
                    _add(update, tx.view.schema(), columns)
                case ReplaceColumns(columns=columns):
                    _replace(update, tx.view.schema(), columns)
                case ChangeColumn():
                    _change(update, tx.view.schema(), statement)

    transaction = table.transaction()
    try:
        with transaction:
            transaction.perform(plan, Operation.EVOLVE_SCHEMA)
    except (ValueError, ValidationError) as error:
        raise StatementError(str(error), table=".".join(table.name())) from error
    return message(f"the columns of {'.'.join(table.name())} are changed")


def _add(update: UpdateSchema, schema: Schema, columns: Sequence[Column]) -> None:
    _refuse_twice([column.name for column in columns], schema.fields)
    for column in columns:
        update.add_column((column.name,), iceberg_type(column.type), column.comment or None)


def _replace(update: UpdateSchema, schema: Schema, columns: Sequence[Column]) -> None:
    """Make *columns* the table's: one that is there, in whatever case, keeps its name, and its values."""
    kept = {column.name: found for column in columns if (found := known_field(column.name, schema)) is not None}
    for field in schema.fields:
        if field not in kept.values():
            update.delete_column(field.name)
    for column in columns:
        if (known := kept.get(column.name)) is None:
            update.add_column((column.name,), iceberg_type(column.type), column.comment or None)
        else:
            _retype(update, known, column)
    names = [kept[column.name].name if column.name in kept else column.name for column in columns]
    _refuse_twice(names, ())
    for before, name in pairwise(names):
        update.move_after(name, before)


def _change(update: UpdateSchema, schema: Schema, statement: ChangeColumn) -> None:
    field, column = field_of(statement.name, schema), statement.column
    _retype(update, field, column)
    if statement.after == "":
        update.move_first(field.name)
    elif statement.after is not None:
        update.move_after(field.name, field_of(statement.after, schema).name)
    if column.name not in {field.name, statement.name}:
        _refuse_twice([column.name], [other for other in schema.fields if other is not field])
        update.rename_column(field.name, column.name)


def _retype(update: UpdateSchema, field: NestedField, column: Column) -> None:
    """Give a column its new type and comments; without a comment it, or a field in it, keeps the one it has."""
    kind = iceberg_type(column.type, count(2))
    same = _arrow_type(kind) == _arrow_type(field.field_type)  # Which ignores the ids of nested fields.
    update.update_column(field.name, None if same else kind)
    declared = Schema(NestedField(1, field.name, kind, doc=column.comment or None))
    fields = index_by_id(declared)
    for field_id, name in index_name_by_id(declared).items():
        update.update_column(name, doc=fields[field_id].doc)


def _arrow_type(kind: IcebergType) -> pa.DataType:
    return schema_to_pyarrow(kind, include_field_ids=False)


def _refuse_twice(names: Sequence[str], there: Sequence[NestedField]) -> None:
    """Refuse names that differ from each other, or from those of *there*, by case at most."""
    known = {field.name.lower() for field in there}
    for name in names:
        if name.lower() in known:
            raise StatementError("a column of that name already exists", column=name, accepted="another name")
        known.add(name.lower())
