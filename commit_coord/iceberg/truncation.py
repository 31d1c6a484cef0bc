"""Partitions that ``truncate`` moves below all values of their type, and rows that lie there.

``truncate`` moves a number down to a multiple of the width. For the least numbers of a type, that multiple can lie
below the type: ``truncate[100]`` moves -9.99 of ``decimal(3, 2)`` to -10.00, and ``truncate[10]`` moves -2147483648 of
``int`` to -2147483650. What writers store then:

* An integer that wraps around, in Java as in Rust: 2147483646. Every other reader compares with that, and does not find
  the row with ``x < 0``.
* A decimal with one digit more than its type. Iceberg's Java library and PyIceberg read it, but refuse to write a
  manifest with it. The specification says nothing of it, and other libraries may write it.

So no new row is written there. But PyIceberg and Java do write such integers. A scan must find the rows, a delete must
not take them for others, and what stays of their files is written back to where it lay. Known mistakes of PyIceberg,
mended here:

* A filter compares the partition that has wrapped around as any other: it leaves out its rows, or is taken to be true
  for all of them. So it is where :mod:`commit_coord.iceberg.predicates` takes a number for out of a decimal's range.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions import BooleanExpression, BoundPredicate, BoundUnaryPredicate, EqualTo, Or
from pyiceberg.expressions.literals import DecimalLiteral
from pyiceberg.expressions.visitors import InclusiveProjection, ResidualVisitor
from pyiceberg.transforms import Transform, TruncateTransform
from pyiceberg.types import DecimalType, IcebergType, IntegerType, LongType
from pyiceberg.utils.decimal import unscaled_to_decimal

from commit_coord.iceberg.mends import Mends


def mend(mends: Mends) -> None:
    """Have PyIceberg look for rows in partitions below all values of their type, and never decide by these alone."""
    mends.wrap(InclusiveProjection, "visit_bound_predicate", _or_below_the_type)
    mends.wrap(ResidualVisitor, "visit_bound_predicate", _undecided_below_the_type)


def below_the_type(transform: Transform[Any, Any], kind: IcebergType) -> set[Any]:
    """Return the partition values that stand for a multiple below all values of *kind*, as writers store them.

    None of them stands for anything else. A ``long`` may have been an ``int`` when a row was written.

    Args:
        transform: Of a partition field.
        kind: Of its column.
    """
    if not isinstance(transform, TruncateTransform):
        return set()
    if isinstance(kind, DecimalType):
        least = 1 - 10**kind.precision
        moved = least - least % transform.width
        return {unscaled_to_decimal(moved, kind.scale)} if moved < least else set()
    moves = ((least - least % transform.width, least) for least in _LEAST.get(type(kind), ()))
    return {_wrapped(moved, least) for moved, least in moves if moved < least}


_LEAST: dict[type[IcebergType], tuple[int, ...]] = {
    IntegerType: (-(2**31),),
    LongType: (-(2**63), -(2**31)),
}


def as_stored(value: Any, kind: IcebergType) -> Any:
    """Return a truncated *value* of a column of *kind* as writers store it."""
    return value if value is None or type(kind) not in _LEAST else _wrapped(value, _LEAST[type(kind)][0])


def _wrapped(value: int, least: int) -> int:
    """Return *value*, or what it wraps around to if it is below *least*, the least number of a type."""
    return value if value >= least else value - 2 * least


class _OfAPartition(DecimalLiteral):
    """A decimal as a partition has it, whatever the number of its digits."""

    def to(self, _: IcebergType) -> DecimalLiteral:
        """Return itself."""
        return self


def _or_below_the_type(real: Any) -> Any:
    def visited(self: InclusiveProjection, predicate: BoundPredicate) -> BooleanExpression:
        found: BooleanExpression = real(self, predicate)
        if isinstance(predicate, BoundUnaryPredicate):
            return found
        column = predicate.term.ref().field
        for part in self.spec.fields_by_source_id(column.field_id):
            for value in below_the_type(part.transform, column.field_type):
                literal = _OfAPartition(value) if isinstance(column.field_type, DecimalType) else value
                found = Or(found, EqualTo(term=part.name, value=literal))
        return found

    return visited


def _undecided_below_the_type(real: Any) -> Any:
    def visited(self: ResidualVisitor, predicate: BoundPredicate) -> BooleanExpression:
        column = predicate.term.ref().field
        for place, part in enumerate(self.spec.fields):
            if part.source_id == column.field_id and self.struct[place] in below_the_type(
                part.transform, column.field_type
            ):
                return predicate
        return real(self, predicate)  # type: ignore[no-any-return]

    return visited
