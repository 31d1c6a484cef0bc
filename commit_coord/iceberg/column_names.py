"""What a name means where its case does not count: what has exactly this name, else the only one that it matches.

Iceberg tells the columns ``a`` and ``A`` apart, and a table may have both. Where case does not count, PyIceberg takes
the last one for a filter, a projection or a change of the schema, and the first one for a field of a struct, also if
the other one has exactly the name that was written: ``update_rows("a = 1")`` changed the rows with ``A = 1``. Java
refuses such a table in its case-insensitive calls (``TypeUtil.indexByLowerCaseName``).

Every call, statement and Spark path that takes names asks :func:`id_of`, some through PyIceberg's own classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType

from commit_coord.iceberg.mends import Mends


def id_of(name: str, ids: Mapping[str, int]) -> int | None:
    """Return the id of what *name* means: what has exactly this name, else the only one that has it in another case.

    Args:
        name: As the caller wrote it.
        ids: Of what there is, by name. One may have several names.

    Returns:
        None where nothing has this name in any case.

    Raises:
        ValidationError: Several have it in another case, and none has exactly this one.
    """
    if name in ids:
        return ids[name]
    folded = name.lower()
    found = {number: one for one, number in ids.items() if one.lower() == folded}
    if len(found) > 1:
        names = ", ".join(found.values())
        raise ValidationError(f"the name {name!r} is ambiguous: {names} differ only in case, so write the exact name")
    return next(iter(found), None)


def mend(mends: Mends) -> None:
    """Have PyIceberg find columns by :func:`id_of` where case does not count."""
    mends.wrap(Schema, "find_field", _found)
    mends.wrap(Schema, "select", _selected)
    mends.wrap(StructType, "field_by_name", _field_of_struct)


def _found(real: Any) -> Any:
    def find_field(self: Schema, name_or_id: str | int, case_sensitive: bool = True) -> NestedField:
        if not case_sensitive and isinstance(name_or_id, str):
            field_id = id_of(name_or_id, self._name_to_id)
            name_or_id = name_or_id if field_id is None else field_id
        found: NestedField = real(self, name_or_id, case_sensitive)
        return found

    return find_field


def _selected(real: Any) -> Any:
    def select(self: Schema, *names: str, case_sensitive: bool = True) -> Schema:
        if not case_sensitive:
            names = tuple(self.find_column_name(self.find_field(name, False).field_id) or name for name in names)
        selected: Schema = real(self, *names)
        return selected

    return select


def _field_of_struct(real: Any) -> Any:
    def field_by_name(self: StructType, name: str, case_sensitive: bool = True) -> NestedField | None:
        if case_sensitive:
            found: NestedField | None = real(self, name)
            return found
        field_id = id_of(name, {field.name: field.field_id for field in self.fields})
        return None if field_id is None else self.field(field_id)

    return field_by_name
