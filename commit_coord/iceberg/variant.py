"""Columns of type ``variant``. PyIceberg does not know the type, and refuses a table that has such a column.

The metadata of the table is kept and changed as that of others. Who reads or writes such a column gets PyIceberg's
error that the type is not recognized; other columns can be read.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pyiceberg.typedef import TableVersion
from pyiceberg.types import PrimitiveType


class VariantType(PrimitiveType):
    """A value of any type, with its structure in it."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        """Return the version of the format that brought the type."""
        return 3


def with_variants(schema: Any) -> Any:
    """Return *schema*, the JSON of a schema or of a part of it, with :class:`VariantType` where PyIceberg needs it."""
    if isinstance(schema, list):
        return [with_variants(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: VariantType() if value == "variant" and key in ("type", "element", "value") else with_variants(value)
        for key, value in schema.items()
    }
