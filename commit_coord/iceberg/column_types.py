"""Types of columns that PyIceberg does not know, or spells otherwise. It refuses a table that has such a column.

The metadata of the table is kept and changed as that of others:

* ``variant``. Who reads or writes such a column gets PyIceberg's error that the type is not recognized; other columns
  can be read.
* ``geometry(OGC:CRS84)`` and ``geography(OGC:CRS84, karney)``, as the specification has them, and as Java and DuckDB
  write them. PyIceberg wants quotes around the names and writes them so; to Java the quotes belong to the name of the
  coordinate system, and it can't read an algorithm in quotes. So a type that comes without quotes is written as Java
  does. One that comes in quotes keeps them, because a client with PyIceberg has sent it and reads nothing else.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_serializer, model_validator
from pydantic_core.core_schema import ValidatorFunctionWrapHandler
from pyiceberg.typedef import TableVersion
from pyiceberg.types import DEFAULT_GEOGRAPHY_ALGORITHM, GeographyType, GeometryType, PrimitiveType


class VariantType(PrimitiveType):
    """A value of any type, with its structure in it."""

    root: Literal["variant"] = Field(default="variant")

    def minimum_format_version(self) -> TableVersion:
        """Return the version of the format that brought the type."""
        return 3


class _Geometry(GeometryType):
    """Shapes in a coordinate system whose name is in no quotes."""

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ValidatorFunctionWrapHandler) -> Self:
        """Take *v* for a coordinate system: PyIceberg's own takes a string for the type of a subclass."""
        made: Self = handler(v)
        return made

    @model_serializer
    def ser_model(self) -> str:
        """Return the name of the type."""
        return str(self)

    def __str__(self) -> str:
        """Return the name of the type."""
        return f"geometry({self.crs})"


class _Geography(GeographyType):
    """Shapes on a globe, in a coordinate system whose name is in no quotes."""

    @model_serializer
    def ser_model(self) -> str:
        """Return the name of the type."""
        return str(self)

    def __str__(self) -> str:
        """Return the name of the type."""
        return f"geography({self.crs}, {self.algorithm})"


_GEOMETRY = re.compile(r"geometry\s*\(\s*([^'\"\s)]+)\s*\)", re.IGNORECASE)
_GEOGRAPHY = re.compile(
    r"geography\s*\(\s*([^'\"\s,)]+)\s*(?:,\s*(spherical|vincenty|thomas|andoyer|karney)\s*)?\)", re.IGNORECASE
)


def with_all_types(schema: Any) -> Any:
    """Return *schema*, the JSON of a schema or of a part of it, with types where PyIceberg knows no such name."""
    if isinstance(schema, list):
        return [with_all_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _named(value) if isinstance(value, str) and key in ("type", "element", "value") else with_all_types(value)
        for key, value in schema.items()
    }


def _named(name: str) -> Any:
    """Return the type of this *name* if PyIceberg does not know the name, else *name*."""
    if name == "variant":
        return VariantType()
    if found := _GEOMETRY.fullmatch(name):
        return _Geometry(found[1])
    if found := _GEOGRAPHY.fullmatch(name):
        algorithm = (found[2] or DEFAULT_GEOGRAPHY_ALGORITHM).lower()
        return _Geography(found[1], algorithm)  # type: ignore[call-arg]  # it has the __init__ of its base
    return name
