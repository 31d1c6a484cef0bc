"""Which names of partition fields are refused, and in whose words: every transform with every kind of name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from pyiceberg import partitioning
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DateType, ListType, NestedField, StructType

import commit_coord.catalog  # noqa: F401 - mends PyIceberg

_SCHEMA = Schema(
    NestedField(1, "day", DateType()),
    NestedField(2, "other", DateType()),
    NestedField(3, "s", StructType(NestedField(4, "day", DateType()))),
    NestedField(5, "l", ListType(6, StructType(NestedField(7, "day", DateType())), element_required=False)),
)
_NAMES = ("day", "DAY", "other", "s", "s.day", "l", "l.day", "l.element.day", "new", "", "taken")
_TRANSFORMS: Sequence[Transform[Any, Any]] = (
    IdentityTransform(),
    VoidTransform(),
    YearTransform(),
    BucketTransform(4),
    TruncateTransform(2),
)


def _refusal(validate: Any, *given: Any) -> str:
    try:
        validate(*given)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("transform, source_id", [*product(_TRANSFORMS, [1, 4, 7])], ids=str)
def test_pyiceberg_s_rule_and_words_hold_but_for_the_name_of_the_own_column(
    transform: Transform[Any, Any], source_id: int
) -> None:
    mended: Any = partitioning.validate_partition_name
    for name in _NAMES:
        given = (name, transform, source_id, _SCHEMA, {"taken"})
        try:
            is_own = _SCHEMA.find_field(name).field_id == source_id
        except ValueError:
            is_own = False
        assert _refusal(mended, *given) == ("" if is_own else _refusal(mended.__wrapped__, *given)), name


@pytest.mark.parametrize("transform, name", [*product(_TRANSFORMS, _NAMES)], ids=str)
def test_every_name_is_free_for_a_field_whose_column_is_gone(transform: Transform[Any, Any], name: str) -> None:
    """Java binds such a field to nothing."""
    mended: Any = partitioning.validate_partition_name
    assert not _refusal(mended, name, transform, 99, _SCHEMA, {"taken"})
