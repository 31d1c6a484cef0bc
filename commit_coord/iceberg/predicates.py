"""Row filters select the rows that they say, in a scan as in a delete.

What a filter means: no condition but ``IS NULL`` is ever true of NULL, also none of ``!=``, ``NOT IN``, ``NOT STARTS
WITH`` and ``NOT NAN``; as in SQL, and as in a scan by Iceberg's row filters. ``NOT`` means the opposite condition:
``NOT x < 5`` is ``x >= 5``. NaN is unequal to every number, and neither less nor greater.

PyIceberg evaluates a filter for a manifest, for a file's partition, for its bounds, and for its rows. Where one of
these wrongly says "no row matches", rows that match are left behind without an error. Where one wrongly says "all rows
match", rows are deleted that do not. Known mistakes, each mended here:

* "All rows match" is the result for ``x != 5`` and ``x NOT IN (5)`` from the bounds, and for NaN's negation from the
  counts, even if there are NULLs; for a partition that is NULL; and for a file that lacks the column. The filter
  of rows evaluates ``NOT IN`` as true for NULL.
* ``NOT`` is evaluated after its operand, and turns "false, as for every NULL" into true.
* By its bounds Arrow skips a row group of 1.5 and NaN for ``x != 1.5`` and ``x IS NAN``: bounds leave out NaN.
* An infinity is out of the range of ``float``, so ``x == inf`` is false of every row, and ``x > 1e300`` of infinity:
  also where the column is a double by now, in files that were written before.
* A file that was written before its column became a double is asked in floats, so ``d == 1e-300`` finds its 0.0. A
  number with more digits than its column, or an older file, has room for fails in Arrow.
* A number that is compared with a ``float`` is the nearest ``float`` to the rows, but a double to the bounds of files
  and to partitions: ``f == 0.1`` leaves out a file whose bounds are both the ``float`` 0.1.
* What is compared with a number out of its column's range is so for every row, also where it is NULL or NaN: a delete
  of ``n < 3000000000`` would take every NULL in a column of ``int``. In a set it counts as the column's greatest
  number.
* A number between two that a column of ``int``, ``long`` or ``decimal`` can have is rounded or cut: ``n == 5.5`` finds
  6, and ``n < 4.5`` leaves out 4. So is a time within a day for a ``date``, and one between two microseconds for a
  ``time``, which also loses its offset.
* A required field of a struct is never NULL to it, also where the struct is: a delete of ``s.x IS NOT NULL`` would take
  every row.
* ``IN`` tells -0.0 from 0.0 in the rows, ``==`` does not.
* A partition value that is NULL is compared with ``<``, which Python can't do.
* The bounds do not show whether all rows of a file match a condition on a field of a struct: it fails for ``!=``.
* A dot in a name leads into a struct for Arrow, also where it is part of the name of a column or field.
* A ``uuid`` is bytes in a filter and a ``UUID`` in a partition, which are never equal. Arrow's reader compares none.
* The year and the month of a day are asked of Python's calendar, which ends within the range of ``date``: one day after
  ``9999-12-31``, to which ``> 9999-12-31`` leads. So is the name of a partition of a day or time.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from ctypes import c_float
from decimal import Decimal
from functools import partial
from types import ModuleType
from typing import Any
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIsNaN,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundNotEqualTo,
    BoundNotIn,
    BoundPredicate,
    BoundReference,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    Not,
    NotEqualTo,
    NotNull,
    Or,
    Reference,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FloatAboveMax,
    FloatBelowMin,
    FloatLiteral,
    LongLiteral,
    StringLiteral,
    TimestampLiteral,
)
from pyiceberg.expressions.visitors import (
    ROWS_MIGHT_NOT_MATCH,
    ResidualVisitor,
    _ColumnNameTranslator,
    _ExpressionEvaluationVisitor,
    _StrictMetricsEvaluationVisitor,
    visit,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StructType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils import datetime as calendar

from commit_coord.iceberg.mends import Mends
from commit_coord.iceberg.values import floor


def mend(mends: Mends) -> None:
    """Have PyIceberg evaluate row filters exactly, but for rows of Arrow."""
    for literal in (DoubleLiteral, StringLiteral):
        mends.wrap_case(vars(literal)["to"].dispatcher, FloatType, _narrowed)
    for number in (DecimalLiteral, DoubleLiteral, LongLiteral, StringLiteral):
        mends.wrap_case(vars(number)["to"].dispatcher, DecimalType, _within_its_digits)
    mends.wrap_case(visit, Not, _of_the_opposite)
    mends.wrap(FloatLiteral, "__init__", _of_32_bits)
    mends.wrap(Reference, "bind", _null_with_its_struct)
    mends.wrap(LiteralPredicate, "bind", _not_of_null)
    mends.wrap(SetPredicate, "bind", _in_range)
    mends.wrap(_ColumnNameTranslator, "visit_bound_predicate", _of_a_file_of_floats)
    for name in _NEVER_OF_NULL:
        for values in (ResidualVisitor, _ExpressionEvaluationVisitor):
            mends.wrap(values, f"visit_{name}", _false_of_null)
    mends.wrap(BoundReference, "eval", _plain)
    mends.wrap(_StrictMetricsEvaluationVisitor, "visit_bound_predicate", _never_of_null)
    for prefix, day in (("days_to", 1), ("micros_to", 86_400_000_000)):
        mends.wrap(calendar, f"{prefix}_years", partial(_beyond_python, day, _years))
        mends.wrap(calendar, f"{prefix}_months", partial(_beyond_python, day, _months))
    for name, day in (("day", 1), ("hour", 24), ("timestamp", _DAY_MICROS), ("timestamptz", _DAY_MICROS)):
        mends.wrap(calendar, f"to_human_{name}", partial(_written_beyond_python, day))


def mend_arrow(mends: Mends, reader: ModuleType) -> None:
    """Have the filters of Arrow rows in *reader*, PyIceberg's module for Arrow, be exact."""
    converter = reader._ConvertToArrowExpression
    mends.wrap(reader, "_task_to_record_batches", _behind_the_reader)
    mends.wrap(converter, "_get_field_name", _by_its_path)
    for name in ("in", "not_in"):
        mends.wrap(converter, f"visit_{name}", _of_both_zeros)
    for name, compared in _COMPARED.items():
        mends.wrap(converter, f"visit_{name}", partial(_of_uuids, compared))
    mends.wrap(converter, "visit_in", partial(_in_uuids, negated=False))
    mends.wrap(converter, "visit_not_in", partial(_in_uuids, negated=True))
    mends.wrap(converter, "visit_not_in", _of_values)


def _narrowed(real: Any) -> Any:
    def converted(literal: Any, kind: FloatType) -> Any:
        try:
            value = float(literal.value)
        except ValueError:
            return real(literal, kind)
        return FloatLiteral(value) if math.isinf(value) else real(literal, kind)

    return converted


def _of_32_bits(real: Any) -> Any:
    def made(self: FloatLiteral, value: float) -> None:
        real(self, c_float(value).value if math.isfinite(value) and abs(value) <= FloatType.max else value)

    return made


class _DecimalAboveMax(DecimalLiteral, AboveMax):  # type: ignore[type-arg]
    """More than a decimal of some precision can be."""


class _DecimalBelowMin(DecimalLiteral, BelowMin):  # type: ignore[type-arg]
    """Less than a decimal of some precision can be."""


def _within_its_digits(real: Any) -> Any:
    def converted(literal: Any, kind: DecimalType) -> Any:
        found = real(literal, kind)
        if found.value.copy_abs() < Decimal(10) ** (kind.precision - kind.scale):
            return found
        return (_DecimalAboveMax if found.value > 0 else _DecimalBelowMin)(found.value)

    return converted


def _of_a_file_of_floats(real: Any) -> Any:
    def visited(self: _ColumnNameTranslator, predicate: Any) -> Any:
        found = real(self, predicate)
        field, there = predicate.term.ref().field, self.file_schema
        promoted = isinstance(field.field_type, DoubleType) and field.field_id in there.field_ids
        return _asked_of_floats(found) if promoted and there.find_type(field.field_id) == FloatType() else found

    return visited


def _asked_of_floats(condition: Any) -> Any:
    """Return the condition that is true of the same floats as *condition*, an unbound one, with floats to compare."""
    match condition:
        case SetPredicate(term=term, literals=literals):
            floats: Any = type(condition)(term, {one for one in literals if _is_float(one.value)})
            return floats if floats != AlwaysTrue() else NotNull(term=term)  # it is in no empty set
        case LiteralPredicate(term=term, literal=literal) if not _is_float(literal.value):
            below, above = _nearest_floats(literal.value)
            operator, side = _BETWEEN_FLOATS.get(type(condition), (None, 0))
            if operator is not None:
                return operator(term, literal=(below, above)[side])
            return NotNull(term=term) if isinstance(condition, NotEqualTo) else AlwaysFalse()
    return condition


_BETWEEN_FLOATS: dict[type, tuple[Any, int]] = {
    LessThan: (LessThanOrEqual, 0),
    LessThanOrEqual: (LessThanOrEqual, 0),
    GreaterThan: (GreaterThanOrEqual, 1),
    GreaterThanOrEqual: (GreaterThanOrEqual, 1),
}
"""The replacement of a comparison with a number between two floats: the comparison to use, and 0 for the next smaller
float or 1 for the next larger one."""


def _is_float(value: float) -> bool:
    return c_float(value).value == value


def _nearest_floats(value: float) -> tuple[float, float]:
    """Return the floats of 32 bits right below and above *value*, which is none."""
    nearest = c_float(value).value
    beyond = _next_float(nearest, up=nearest < value)
    return (nearest, beyond) if nearest < value else (beyond, nearest)


def _next_float(value: float, *, up: bool) -> float:
    if value == 0:
        return math.copysign(_LEAST_FLOAT, 1 if up else -1)
    (bits,) = struct.unpack("<i", struct.pack("<f", value))  # the magnitudes of floats are ordered as their bits
    return float(struct.unpack("<f", struct.pack("<i", bits + (1 if up == (value > 0) else -1)))[0])


_LEAST_FLOAT = 2.0**-149


def _null_with_its_struct(real: Any) -> Any:
    def bound(self: Reference, schema: Schema, case_sensitive: bool = True) -> Any:
        found = real(self, schema, case_sensitive)
        if not found.field.required or always_there(schema.as_struct(), found.field.field_id):
            return found
        return type(found)(field=found.field.model_copy(update={"required": False}), accessor=found.accessor)

    return bound


def always_there(struct: StructType, field_id: int) -> bool | None:
    """Return whether every row has a value in a field at any depth of structs; None when it is not in *struct*."""
    for field in struct.fields:
        if field.field_id == field_id:
            return field.required
        if isinstance(field.field_type, StructType):
            inside = always_there(field.field_type, field_id)
            if inside is not None:
                return field.required and inside
    return None


def _not_of_null(real: Any) -> Any:
    def bound(self: LiteralPredicate, schema: Schema, case_sensitive: bool = True) -> Any:
        term = self.term.bind(schema, case_sensitive)
        kind = term.ref().field.field_type
        if (exact := _floor(self.literal, kind)) is not None:
            number, is_below = exact
            operator = _ABOVE.get(type(self), type(self)) if is_below else type(self)
            if operator is None:  # no row has a value between two of the column's
                unequal = isinstance(self, NotEqualTo)
                return NotNull(term=self.term).bind(schema, case_sensitive) if unequal else AlwaysFalse()
            self = operator(self.term, literal=number)
        number = self.literal.to(kind)
        beyond = _BEYOND_FLOATS.get((type(number), type(self)))
        if beyond is not None:
            operator, infinity = beyond
            return operator(term, FloatLiteral(infinity))
        found = real(self, schema, case_sensitive)
        return NotNull(term=self.term).bind(schema, case_sensitive) if isinstance(found, AlwaysTrue) else found

    return bound


_ABOVE: dict[type, Any] = {
    LessThan: LessThanOrEqual,
    GreaterThanOrEqual: GreaterThan,
    EqualTo: None,
    NotEqualTo: None,
}
"""What a comparison with a value that no row can have is with the next smaller one that rows can have."""


def _floor(literal: Any, kind: Any) -> tuple[Any, bool] | None:
    """Return the greatest value of *kind* that is not above *literal*, and whether it is below.

    None: PyIceberg converts *literal* exactly, or refuses it, or *kind* has no such value.

    Raises:
        ValueError: *literal* is a time of day with an offset, which *kind* has not.
    """
    match literal, kind:
        case TimestampLiteral(), DateType():
            days, rest = divmod(literal.value, _DAY_MICROS)
            return DateLiteral(days), rest > 0
        case StringLiteral(), TimeType() if (written := _TIME.fullmatch(literal.value)) is not None:
            if written["offset"]:
                raise ValueError(f"Could not convert {literal.value} into a {kind}: it has an offset")
            return literal.to(kind), bool(int(written["finer"] or 0))
    if not isinstance(kind, IntegerType | LongType | DecimalType):
        return None
    match literal:
        case DecimalLiteral() | LongLiteral():
            number = Decimal(literal.value)
        case DoubleLiteral() if isinstance(kind, DecimalType) and math.isfinite(literal.value):
            number = Decimal(repr(literal.value))  # as it was written
        case StringLiteral() if _NUMBER.fullmatch(literal.value):
            number = Decimal(literal.value)
        case _:
            return None
    found, is_below = floor(number, kind)
    if found is None:
        return None
    return (DecimalLiteral(found) if isinstance(kind, DecimalType) else LongLiteral(found)), is_below > 0


_DAY_MICROS = 86_400_000_000
_TIME = re.compile(r"[\d:]+([.,]\d{1,6}(?P<finer>\d*))?(?P<offset>[Zz+-].*)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?", re.IGNORECASE | re.ASCII)


_BEYOND_FLOATS: dict[tuple[type, type], tuple[Callable[..., Any], float]] = {
    (FloatAboveMax, LessThan): (BoundLessThan, math.inf),
    (FloatAboveMax, LessThanOrEqual): (BoundLessThan, math.inf),
    (FloatAboveMax, GreaterThan): (BoundGreaterThanOrEqual, math.inf),
    (FloatAboveMax, GreaterThanOrEqual): (BoundGreaterThanOrEqual, math.inf),
    (FloatBelowMin, LessThan): (BoundLessThanOrEqual, -math.inf),
    (FloatBelowMin, LessThanOrEqual): (BoundLessThanOrEqual, -math.inf),
    (FloatBelowMin, GreaterThan): (BoundGreaterThan, -math.inf),
    (FloatBelowMin, GreaterThanOrEqual): (BoundGreaterThan, -math.inf),
}
"""What a comparison with a number that only doubles have is for a float: only its infinities lie beyond."""


def _in_range(real: Any) -> Any:
    def bound(self: SetPredicate, schema: Schema, case_sensitive: bool = True) -> Any:
        kind = self.term.bind(schema, case_sensitive).ref().field.field_type
        exact = {one: _floor(one, kind) or (one, False) for one in self.literals}
        numbers = {number for number, is_below in exact.values() if not is_below}
        inside = {one for one in numbers if not isinstance(one.to(kind), AboveMax | BelowMin)}
        if {*map(repr, inside)} == {*map(repr, self.literals)}:  # also with as many digits
            return real(self, schema, case_sensitive)
        less: Any = type(self)(self.term, inside)  # one of another class where few are left
        if isinstance(less, AlwaysTrue):  # it is in no empty set, if it is anything
            less = NotNull(term=self.term)
        return less.bind(schema, case_sensitive) if isinstance(less, UnboundPredicate) else less

    return bound


def _of_the_opposite(_: Any) -> Any:
    def visited(negation: Not, visitor: Any) -> Any:
        return visit(~negation.child, visitor)

    return visited


_NEVER_OF_NULL = (
    "less_than",
    "less_than_or_equal",
    "greater_than",
    "greater_than_or_equal",
    "not_equal",
    "not_in",
    "not_nan",
    "not_starts_with",
)


def _false_of_null(real: Any) -> Any:
    def visited(self: Any, term: Any, **literal: Any) -> Any:
        return self.visit_false() if term.eval(self.struct) is None else real(self, term, **literal)

    return visited


def _never_of_null(real: Any) -> Any:
    def visited(self: _StrictMetricsEvaluationVisitor, predicate: Any) -> Any:
        field = predicate.term.ref().field
        if all(field.field_id != top.field_id for top in self.struct.fields):
            return ROWS_MIGHT_NOT_MATCH  # it lies in a struct
        may_be_null = not field.required and self.null_counts.get(field.field_id) != 0
        if may_be_null and not isinstance(predicate, BoundIsNull):
            return ROWS_MIGHT_NOT_MATCH
        return real(self, predicate)

    return visited


def _plain(real: Any) -> Any:
    def value(self: Any, struct: Any) -> Any:
        found = real(self, struct)
        return found.bytes if isinstance(found, UUID) else found

    return value


# Arrow.


def _by_its_path(real: Any) -> Any:
    from commit_coord.iceberg.partitioned_rows import path_to

    def named(self: Any, term: Any) -> Any:
        name = real(self, term)
        if isinstance(name, str):  # it has no dot
            return name
        return tuple(path_to(self._schema.as_struct(), term.ref().field.field_id)) or name

    return named


def _of_both_zeros(real: Any) -> Any:
    def visited(self: Any, term: Any, literals: Any) -> Any:
        if isinstance(term.ref().field.field_type, FloatType | DoubleType) and 0.0 in literals:
            literals = [*(value for value in literals if value != 0), 0.0, -0.0]
        return real(self, term, literals)

    return visited


def _of_values(real: Any) -> Any:
    import pyarrow.compute as pc

    def visited(self: Any, term: Any, literals: Any) -> Any:
        return real(self, term, literals) & pc.field(self._get_field_name(term)).is_valid()

    return visited


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
    "less_than": lambda a, b: a < b,
    "less_than_or_equal": lambda a, b: a <= b,
    "greater_than": lambda a, b: a > b,
    "greater_than_or_equal": lambda a, b: a >= b,
}


def _of_uuids(compared: Callable[[Any, Any], Any], real: Any) -> Any:
    import pyarrow as pa

    def visited(self: Any, term: Any, literal: Any) -> Any:
        if not isinstance(term.ref().field.field_type, UUIDType):
            return real(self, term, literal)
        return compared(_bytes_of(self, term), pa.scalar(_bytes(literal.value), pa.binary()))

    return visited


def _in_uuids(real: Any, *, negated: bool) -> Any:
    import pyarrow as pa

    def visited(self: Any, term: Any, literals: Any) -> Any:
        if not isinstance(term.ref().field.field_type, UUIDType):
            return real(self, term, literals)
        found = _bytes_of(self, term).isin(pa.array(map(_bytes, literals), pa.binary()))
        return ~found if negated else found

    return visited


def tells_more_than_bounds(condition: BooleanExpression) -> bool:
    """Return whether Arrow must not skip row groups by *condition*, which is bound.

    It can't compare uuids with bounds. And bounds leave out NaN: Arrow would skip a row group of 1.5 and NaN for
    ``x != 1.5``.
    """
    match condition:
        case And(left=left, right=right) | Or(left=left, right=right):
            return tells_more_than_bounds(left) or tells_more_than_bounds(right)
        case BoundPredicate():
            kind = condition.term.ref().field.field_type
            of_nan = isinstance(condition, BoundNotEqualTo | BoundNotIn | BoundIsNaN)
            return isinstance(kind, UUIDType) or (of_nan and isinstance(kind, FloatType | DoubleType))
    return False


def _behind_the_reader(real: Any) -> Any:
    """Filter what was read, instead of having Arrow's reader skip what its bounds seem to rule out."""
    import pyarrow as pa

    no_deletes = [pa.chunked_array([pa.array([], pa.int64())])]

    def batches(
        io: Any, task: Any, row_filter: Any, shown: Any, schema: Any, ids: Any, deletes: Any, *rest: Any
    ) -> Any:
        if not deletes and tells_more_than_bounds(row_filter):
            deletes = no_deletes  # where there are some, PyIceberg filters behind the reader
        return real(io, task, row_filter, shown, schema, ids, deletes, *rest)

    return batches


def _bytes_of(visitor: Any, term: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.field(visitor._get_field_name(term)).cast(pa.binary(16)).cast(pa.binary())


def _bytes(value: Any) -> bytes:
    return value.bytes if isinstance(value, UUID) else bytes(value)


# The calendar.


def _beyond_python(day: int, counted: Callable[[int], int], real: Any) -> Any:
    def found(number: int) -> int:
        try:
            return int(real(number))
        except OverflowError:
            return counted(number // day)

    return found


def _written_beyond_python(day: int, real: Any) -> Any:
    """Write years that Python's calendar does not have as Java does, and the rest as 400 years earlier or later."""

    def found(number: int) -> str:
        try:
            return str(real(number))
        except OverflowError:
            cycles, rest = divmod(number, day * _CYCLE)
            text = str(real(rest))
            year = int(text[:4]) + 400 * cycles
            return (f"{year:+05d}" if year else "0000") + text[4:]

    return found


def _months(days: int) -> int:
    """Return the months from 1970-01 to a day, in the proleptic Gregorian calendar, whose cycle is 400 years."""
    cycles, rest = divmod(days, _CYCLE)
    return cycles * 4_800 + calendar.days_to_months(rest)


_CYCLE = 146_097
"""Days of 400 years."""


def _years(days: int) -> int:
    return _months(days) // 12
