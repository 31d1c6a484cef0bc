"""What a client does to a table through Spark, as data, what each means, and how it is drawn.

The client ``k`` has DataFrames: of rows that lie in the program, or of the table itself, read before others change it.
They come into the table by ``write_table``, ``foreach_batch`` and ``format("commit_coord")``, in a batch or a stream.
Each means what its counterpart of ``operations`` means; :mod:`spark_client` performs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from pyiceberg.types import IcebergType, ListType, MapType, StructType

from commit_coord.model import WriteMode
from commit_coord.testing.table_files.state import State, Unbound, rows_of
from commit_coord.testing.table_files.values import MAIN, Named, Row
from tests.proof.rows.draw.conditions import where
from tests.proof.rows.draw.dice import Dice, rows
from tests.proof.rows.draw.evolutions import View
from tests.proof.rows.draw.steps import Mix, meanwhile, step
from tests.proof.rows.model.conditions import (
    Always,
    And,
    Compare,
    In,
    IsNull,
    Not,
    NotNull,
    Or,
    Where,
    bound,
    columns_of,
)
from tests.proof.rows.model.meaning import meaning
from tests.proof.rows.model.operations import (
    DROPPED,
    REFUSED,
    Append,
    Compact,
    DynamicOverwrite,
    Elsewhere,
    Expected,
    Overwrite,
    Race,
    Refresh,
)
from tests.proof.rows.model.row_changes import files_replaced, on_snapshot, same_kinds
from tests.proof.rows.program import Step

CLIENT = "k"

Way = Literal["function", "foreach", "format", "stream"]
"""``write_table``, ``foreach_batch``, ``df.write.format``, ``df.writeStream.format``."""


@dataclass(frozen=True)
class SparkWrite(Elsewhere):
    """A DataFrame of *rows* is written, into the table as it is then.

    Args:
        client: ``k``.
        rows: What it holds; it has the columns that one of them names.
        way: How.
        mode: What it replaces.
        where: Which rows ``overwrite`` replaces.
        branch: Where to.
        shouted: The names of its columns are in upper case, their order is turned round.
        parts: Tasks that write it.
        given: ``reads="nothing"``; the functions see that by themselves.
        again: The same once more, by its request id or its checkpoint: nothing more may come of it.
        restored: The stream goes on with the checkpoint that it had before its batch, and other files: it is refused.
    """

    client: str
    rows: tuple[Named, ...]
    way: Way = "function"
    mode: WriteMode = "append"
    where: Where = Always()  # noqa: RUF009 - frozen
    branch: str = MAIN
    shouted: bool = False
    parts: int = 1
    given: bool = False
    again: bool = False
    restored: bool = False
    fresh = True

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        if self.mode == "append":
            return meaning(Append(self.client, self.rows, self.branch), base, head, {})
        free = self.given or self.way in {"function", "foreach"}
        if self.mode == "overwrite":
            return meaning(Overwrite(self.client, self.rows, self.where, self.branch, free), base, head, {})
        return _dynamic(self.client, self.rows, base, head, free=free)


@dataclass(frozen=True)
class SparkSelect(Elsewhere):
    """What ``read_table`` showed of the table is written back by ``write_table``.

    Args:
        client: ``k``.
        where: Which of its rows.
        mode: What they replace; ``overwrite`` is everything.
        pushed: *where* is the ``row_filter``; else the DataFrame is filtered.
        named: ``read_table`` gets the table's name, and reads what is there; else it reads what its client sees.
    """

    client: str
    where: Where
    mode: WriteMode = "append"
    pushed: bool = False
    named: bool = False

    @property
    def fresh(self) -> bool:
        """See :attr:`Elsewhere.fresh`."""
        return self.named

    def after_drop(self, base: State, head: State) -> Expected:
        """Return what may come of it: the rows of the table that was dropped may be appended to the next one.

        They replace nothing in it.
        """
        try:
            matches = bound(self.where, base.fields)
        except Unbound:
            return REFUSED
        found = tuple(_with_field_names(row, base.fields) for row in base.of().elements() if matches(row))
        if self.mode == "append":
            return Expected(meaning(Append(self.client, found), head, head, {}).states, DROPPED.refusable)
        replaces_nothing = not found and (self.mode == "dynamic" or not head.of())
        return Expected((head,), DROPPED.refusable) if replaces_nothing else DROPPED

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        try:
            matches = bound(self.where, base.fields)
        except Unbound:
            return Expected((), "a column is gone")
        found = [row for row in base.of().elements() if matches(row)]
        written = tuple(_with_field_names(row, base.fields) for row in found)
        if self.mode == "append":
            return meaning(Append(self.client, written), base, head, {})
        changed = base.fields == head.fields and Counter(found) != Counter(filter(matches, head.of().elements()))
        if changed and (written or self.mode == "overwrite"):  # no row replaces no partition, whatever has changed
            return Expected((), "rows that it was computed from have changed")
        if self.mode == "overwrite":
            made = meaning(Overwrite(self.client, written, given=True), base, head, {})
        else:
            made = _dynamic(self.client, written, base, head, free=True)
        return Expected(made.states, made.refusable or ("" if base is head else "the table has changed"))


@dataclass(frozen=True)
class SparkCompact(Elsewhere):
    """``compact_table``."""

    client: str
    fresh = True

    def meaning(self, base: State, head: State) -> Expected:
        """Return what may come of it."""
        return meaning(Compact(self.client), base, head, {})


@dataclass(frozen=True)
class SparkLook(Elsewhere):
    """``read_table`` reads everything, and with a condition that each of both sides evaluates; perhaps the format."""

    client: str
    where: Where
    format: bool = False


SparkOperation = SparkWrite | SparkSelect | SparkCompact


def _dynamic(client: str, named: tuple[Named, ...], base: State, head: State, *, free: bool) -> Expected:
    """Return what may come of an overwrite of the partitions that rows fall in; *free*: they depend on none."""
    if not named:
        return Expected((head,), "" if base.spec else "the table has no partitions")
    if not free:
        judged = meaning(DynamicOverwrite(client, named), base, head, {})
        if judged.refusable and not judged.states:
            return judged
    made = _rows_by_id(named, base)
    if made is None or not base.spec:
        return Expected((), "it can't be carried out")
    late = "" if base is head else "the table has changed"
    snapshot = base is not head and "snapshot" in {base.isolation, head.isolation}
    serial = tuple(files_replaced(made, view, head) for view in (base, head))
    if snapshot and not free:
        return on_snapshot(files_replaced(made, base, base), serial, base, head, MAIN)
    return Expected(serial if same_kinds(base, head) else serial[:1], late)


def _rows_by_id(named: Iterable[Named], view: State) -> tuple[Row, ...] | None:
    made = rows_of(list(named), view.fields)
    return None if made is None else tuple(made)


def _with_field_names(value: Any, kind: IcebergType) -> Any:
    """Return a value of the model as a user writes it."""
    if value is None:
        return None
    match kind:
        case StructType(fields=fields):
            there = dict(value)
            return {f.name: _with_field_names(there.get(f.field_id), f.field_type) for f in fields}
        case ListType():
            return [_with_field_names(item, kind.element_type) for item in value]
        case MapType():
            return [(_with_field_names(k, kind.key_type), _with_field_names(v, kind.value_type)) for k, v in value]
    return value


# Chance.


def draw(dice: Dice, view: View, often: Mix, *, last: bool) -> Step:
    """Return what is done next: every other time something of Spark's; *last*, a look."""
    if last or dice.chance(8):
        return SparkLook(CLIENT, readable(where(dice, view.head), view.head), dice.chance(40))
    if dice.chance(45):
        return step(dice, view, often)
    if dice.chance(8):
        return Refresh(CLIENT)
    one = _single(dice, view)
    if not dice.chance(often.races + 20):
        return one
    others = tuple(meanwhile(dice, view, CLIENT, often) for _ in range(dice.weighed(((4, 1), (1, 2)))))
    return Race(one, others)


def _single(dice: Dice, view: View) -> SparkOperation:
    head, base = view.head, view.base(CLIENT)
    kind = dice.weighed(((12, SparkWrite), (8 if head.of() else 1, SparkSelect), (1, SparkCompact)))
    if kind is SparkCompact:
        return SparkCompact(CLIENT)
    modes: tuple[tuple[int, WriteMode], ...] = ((5, "append"), (3, "overwrite"), (3 if head.spec else 0, "dynamic"))
    mode = dice.weighed(modes)
    if kind is SparkSelect and "snapshot" not in {head.isolation, base.isolation}:
        named = not base.of() or dice.chance(50)  # what it wrote by name its own handle does not see
        seen = head if named else base
        which = Always() if dice.chance(30) else readable(where(dice, seen), seen)
        return SparkSelect(CLIENT, which, mode, dice.chance(50), named)
    way: Way = dice.weighed(((8, "function"), (2, "foreach"), (3, "format"), (1, "stream")))
    if way in {"foreach", "stream"}:
        mode = "append"
    made = rows(dice, head, 0 if dice.chance(25) else 1)
    without = [f.name for f in head.fields.fields if not f.required and dice.chance(15)]
    if made and len(without) < len(head.fields.fields):
        made = tuple({name: value for name, value in row.items() if name not in without} for row in made)
    condition = where(dice, head) if mode == "overwrite" and dice.chance(60) else Always()
    if way == "format":
        condition = _as_text(condition)
    others = [name for name in head.rows if name != MAIN and name not in head.tags]
    return SparkWrite(
        CLIENT,
        made,
        way,
        mode,
        condition,
        dice.one(others) if others and mode != "dynamic" and dice.chance(25) else MAIN,
        shouted=dice.chance(20),
        parts=dice.weighed(((3, 1), (1, 2))),
        given=way == "format" and mode == "overwrite" and dice.chance(30),
        again=dice.chance(15),
        restored=way == "stream" and bool(made) and dice.chance(50),
    )


def readable(condition: Where, state: State) -> Where:
    """Return *condition*, or none at all where it is about a time of day, which Spark does not compare."""
    kinds = dict(_types(state.fields))
    asked = columns_of(condition)
    return Always() if any(str(kinds.get(column)) == "time" for column in asked) else condition


def _types(fields: StructType, prefix: str = "") -> Iterator[tuple[str, IcebergType]]:
    for f in fields.fields:
        yield f"{prefix}{f.name}", f.field_type
        if isinstance(f.field_type, StructType):
            yield from _types(f.field_type, f"{prefix}{f.name}.")


def text(condition: Where) -> str:
    """Return *condition* as PyIceberg's text.

    Raises:
        ValueError: Its parser does not read such a constant.
    """
    match condition:
        case Not(inner=inner):
            return f"not ({text(inner)})"
        case And(left=left, right=right):
            return f"({text(left)} and {text(right)})"
        case Or(left=left, right=right):
            return f"({text(left)} or {text(right)})"
        case IsNull(column=column):
            return f"{column} is null"
        case NotNull(column=column):
            return f"{column} is not null"
        case In(column=column, values=values):
            return f"{column} in ({', '.join(map(_constant, values))})"
        case Compare(column=column, op=op, value=value):
            return f"{column} {op} {_constant(value)}"
    raise ValueError(condition)


def _constant(value: Any) -> str:
    match value:
        case bool() | int():
            return str(value).lower()
        case Decimal():
            return f"{value:f}"
        case date():
            return f"'{value.isoformat()}'"
        case str() if value.isalnum():
            return f"'{value}'"
    raise ValueError(value)


def _as_text(condition: Where) -> Where:
    """Return *condition*, or none at all where it can't be written as text."""
    try:
        text(condition)
    except ValueError:
        return Always()
    return condition
