"""Row filters are true of the rows that they say, or the call fails.

A delete, an overwrite or an upsert by filter evaluates it with PyIceberg, four times: for a manifest, for a file's
partition, for its bounds, and for its rows. What one of these takes wrongly for false is a row that stays in silence.
Known mistakes, each mended here for the process:

* An infinity is out of the range of ``float``, so ``x == inf`` is false of every row, and ``x > 1e300`` of infinity:
  also where the column is a double by now, in files that were written before.
* A number that is compared with a ``float`` is the nearest ``float`` to the rows, but a double to the bounds of files
  and to partitions: ``f == 0.1`` leaves out a file whose bounds are both the ``float`` 0.1.
* What is compared with a number out of its column's range is so for every row, also where it is NULL or NaN: a delete
  of ``n < 3000000000`` would take every NULL in a column of ``int``. In a set it stands for the column's greatest
  number.
* A required field of a struct is never NULL to it, also where the struct is: a delete of ``s.x IS NOT NULL`` would take
  every row.
* ``IN`` tells -0.0 from 0.0 in the rows, ``==`` does not.
* A partition value that is NULL is compared with ``<``, which Python can't.
* Whether all rows of a file match a condition on a field of a struct can't be told by its bounds: it fails for ``!=``.
* A ``uuid`` is bytes in a filter and a ``UUID`` in a partition, which equal each other never. Arrow compares none.
* The year and the month of a day are asked of Python's calendar, which ends within the range of ``date``: one day after
  ``9999-12-31``, to which ``> 9999-12-31`` leads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import c_float
from functools import cache, partial, wraps
from typing import Any
from uuid import UUID

from pyiceberg.expressions import (
    AlwaysTrue,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundReference,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotNull,
    Reference,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DoubleLiteral,
    FloatAboveMax,
    FloatBelowMin,
    FloatLiteral,
    StringLiteral,
)
from pyiceberg.expressions.visitors import (
    ROWS_MIGHT_NOT_MATCH,
    ResidualVisitor,
    _StrictMetricsEvaluationVisitor,
    extract_field_ids,
)
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, StructType, UUIDType
from pyiceberg.utils import datetime as calendar


@cache
def judge_exactly() -> None:
    """Have PyIceberg evaluate row filters exactly in this process."""
    _take_infinities()
    _wrap(FloatLiteral, "__init__", _of_32_bits)
    _wrap(Reference, "bind", _null_with_its_struct)
    _wrap(LiteralPredicate, "bind", _not_of_null)
    _wrap(SetPredicate, "bind", _in_range)
    for name in ("less_than", "less_than_or_equal", "greater_than", "greater_than_or_equal"):
        _wrap(ResidualVisitor, f"visit_{name}", _false_of_null)
    _wrap(BoundReference, "eval", _plain)
    _wrap(_StrictMetricsEvaluationVisitor, "visit_bound_predicate", _unknown_in_structs)
    for prefix, day in (("days_to", 1), ("micros_to", 86_400_000_000)):
        _wrap(calendar, f"{prefix}_years", partial(_beyond_python, day, _years))
        _wrap(calendar, f"{prefix}_months", partial(_beyond_python, day, _months))


@cache
def filter_exactly() -> None:
    """Have PyIceberg's filters of Arrow rows be exact in this process; apart, since Arrow takes long to load."""
    from pyiceberg.io import pyarrow as reader
    from pyiceberg.io.pyarrow import _ConvertToArrowExpression

    _wrap(reader, "_task_to_record_batches", _uuids_behind_the_reader)
    for name in ("in", "not_in"):
        _wrap(_ConvertToArrowExpression, f"visit_{name}", _of_both_zeros)
    for name, compared in _COMPARED.items():
        _wrap(_ConvertToArrowExpression, f"visit_{name}", partial(_of_uuids, compared))
    _wrap(_ConvertToArrowExpression, "visit_in", partial(_in_uuids, negated=False))
    _wrap(_ConvertToArrowExpression, "visit_not_in", partial(_in_uuids, negated=True))


def _wrap(owner: Any, name: str, by: Callable[[Any], Any]) -> None:
    real = getattr(owner, name)
    setattr(owner, name, wraps(real)(by(real)))


def _take_infinities() -> None:
    for literal in (DoubleLiteral, StringLiteral):
        convert: Any = vars(literal)["to"]
        convert.register(FloatType, _narrowed(convert.dispatcher.dispatch(FloatType)))


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


def _null_with_its_struct(real: Any) -> Any:
    def bound(self: Reference, schema: Schema, case_sensitive: bool = True) -> Any:
        found = real(self, schema, case_sensitive)
        if not found.field.required or _always_there(schema.as_struct(), found.field.field_id):
            return found
        return type(found)(field=found.field.model_copy(update={"required": False}), accessor=found.accessor)

    return bound


def _always_there(struct: StructType, field_id: int) -> bool | None:
    """Return whether every row has a value in a field at any depth of structs; None when it is not in *struct*."""
    for field in struct.fields:
        if field.field_id == field_id:
            return field.required
        if isinstance(field.field_type, StructType):
            inside = _always_there(field.field_type, field_id)
            if inside is not None:
                return field.required and inside
    return None


def _not_of_null(real: Any) -> Any:
    def bound(self: LiteralPredicate, schema: Schema, case_sensitive: bool = True) -> Any:
        term = self.term.bind(schema, case_sensitive)
        number = self.literal.to(term.ref().field.field_type)
        beyond = _BEYOND_FLOATS.get((type(number), type(self)))
        if beyond is not None:
            operator, infinity = beyond
            return operator(term, FloatLiteral(infinity))
        found = real(self, schema, case_sensitive)
        return NotNull(term=self.term).bind(schema, case_sensitive) if isinstance(found, AlwaysTrue) else found

    return bound


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
        inside = {one for one in self.literals if not isinstance(one.to(kind), AboveMax | BelowMin)}
        if len(inside) == len(self.literals):
            return real(self, schema, case_sensitive)
        less: Any = type(self)(self.term, inside)  # one of another class where few are left
        return less.bind(schema, case_sensitive) if isinstance(less, UnboundPredicate) else less

    return bound


def _false_of_null(real: Any) -> Any:
    def visit(self: ResidualVisitor, term: Any, literal: Any) -> Any:
        return self.visit_false() if term.eval(self.struct) is None else real(self, term, literal)

    return visit


def _unknown_in_structs(real: Any) -> Any:
    def visit(self: _StrictMetricsEvaluationVisitor, predicate: Any) -> Any:
        at_the_top = {field.field_id for field in self.struct.fields}
        return real(self, predicate) if predicate.term.ref().field.field_id in at_the_top else ROWS_MIGHT_NOT_MATCH

    return visit


def _plain(real: Any) -> Any:
    def value(self: Any, struct: Any) -> Any:
        found = real(self, struct)
        return found.bytes if isinstance(found, UUID) else found

    return value


# Arrow.


def _of_both_zeros(real: Any) -> Any:
    def visit(self: Any, term: Any, literals: Any) -> Any:
        if isinstance(term.ref().field.field_type, FloatType | DoubleType) and 0.0 in literals:
            literals = [*(value for value in literals if value != 0), 0.0, -0.0]
        return real(self, term, literals)

    return visit


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

    def visit(self: Any, term: Any, literal: Any) -> Any:
        if not isinstance(term.ref().field.field_type, UUIDType):
            return real(self, term, literal)
        return compared(_bytes_of(self, term), pa.scalar(_bytes(literal.value), pa.binary()))

    return visit


def _in_uuids(real: Any, *, negated: bool) -> Any:
    import pyarrow as pa

    def visit(self: Any, term: Any, literals: Any) -> Any:
        if not isinstance(term.ref().field.field_type, UUIDType):
            return real(self, term, literals)
        found = _bytes_of(self, term).isin(pa.array(map(_bytes, literals), pa.binary()))
        return ~found if negated else found

    return visit


def _uuids_behind_the_reader(real: Any) -> Any:
    """Filter by uuids what was read: Arrow's reader of Parquet compares them with a file's bounds, and can't."""
    import pyarrow as pa

    no_deletes = [pa.chunked_array([pa.array([], pa.int64())])]

    def batches(
        io: Any, task: Any, row_filter: Any, shown: Any, schema: Schema, ids: Any, deletes: Any, *rest: Any
    ) -> Any:
        if not deletes and any(isinstance(schema.find_type(key), UUIDType) for key in extract_field_ids(row_filter)):
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


def _months(days: int) -> int:
    """Return the months from 1970-01 to a day, in the proleptic Gregorian calendar, whose cycle is 400 years."""
    cycles, rest = divmod(days, 146_097)
    return cycles * 4_800 + calendar.days_to_months(rest)


def _years(days: int) -> int:
    return _months(days) // 12
