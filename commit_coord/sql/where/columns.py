"""The columns of a table that a statement names."""

from __future__ import annotations

from pyiceberg import types as T
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from sqlglot import expressions as sql

from commit_coord.errors import StatementError
from commit_coord.iceberg.column_names import id_of

Called = tuple[str, ...]
"""The names by which a statement can refer to a table: its alias, or its database and its own name."""


def is_of(column: sql.Column, called: Called) -> bool:
    """Return whether *column* names no table, or the one that is *called* so, in whatever case."""
    before = [part.name.lower() for part in column.parts[:-1]]
    return not before or before == [part.lower() for part in called][-len(before) :]


def column_of(column: sql.Column, schema: Schema, called: Called = ()) -> T.NestedField:
    """Return the column of *schema* that *column* names, in whatever case.

    Raises:
        StatementError: There is none, or there are two.
    """
    if not is_of(column, called):
        raise StatementError(
            "unknown column or table; fields of structs are not supported",
            column=".".join(part.name for part in column.parts),
        )
    return field_of(column.name, schema)


def field_of(name: str, schema: Schema) -> T.NestedField:
    """Return the column of *schema* called *name*, in whatever case.

    Raises:
        StatementError: There is none, or there are two.
    """
    if (found := known_field(name, schema)) is None:
        raise _misnamed("there is no such column", name, schema)
    return found


def known_field(name: str, schema: Schema) -> T.NestedField | None:
    """Return the column of *schema* called *name*, in whatever case; None where there is none.

    Raises:
        StatementError: There are two.
    """
    try:
        field_id = id_of(name, {field.name: field.field_id for field in schema.fields})
    except ValidationError:
        raise _ambiguous(name, schema) from None
    return None if field_id is None else schema.find_field(field_id)


def source_of(name: str, schema: Schema) -> T.NestedField:
    """Return the column of *schema*, or the field inside of structs, whose path is *name*, in whatever case.

    Raises:
        StatementError: There is none, or there are two.
    """
    try:
        return schema.find_field(name, case_sensitive=False)
    except ValidationError:
        raise _ambiguous(name, schema) from None
    except ValueError:
        raise _misnamed("there is no such column", name, schema) from None


def _ambiguous(name: str, schema: Schema) -> StatementError:
    return _misnamed("ambiguous column: two names differ only in case, so write the exact one", name, schema)


def _misnamed(what: str, name: str, schema: Schema) -> StatementError:
    return StatementError(what, column=name, accepted=", ".join(field.name for field in schema.fields))
