"""What is done next, drawn for the table as it is and as its clients see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commit_coord.model import WriteMode
from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import MAIN, Named
from tests.proof.rows.draw.conditions import TYPED, simple_where, where
from tests.proof.rows.draw.dice import Dice, rows, value, value_of
from tests.proof.rows.draw.evolutions import (
    CHANGES,
    EVOLUTIONS,
    THEMES,
    Maker,
    View,
    add_column,
    clean_orphans,
    drop_column,
    rename_column,
    set_property,
)
from tests.proof.rows.draw.table_statements import (
    TABLE_STATEMENTS,
    add_partition,
    insert_partition,
    timed_rollback,
)
from tests.proof.rows.model.conditions import Always
from tests.proof.rows.model.operations import (
    AddFiles,
    Append,
    AppendToNeighbour,
    CommitFiles,
    Compact,
    Concatenate,
    Delete,
    DeletePositions,
    DeleteValues,
    DynamicOverwrite,
    Expire,
    Insert,
    InsertSelect,
    Orphans,
    Overwrite,
    Race,
    Recreate,
    Refresh,
    Single,
    SqlDelete,
    SqlUpdate,
    Transact,
    Truncate,
    UpdateRows,
    Upsert,
    WriteFiles,
)
from tests.proof.rows.model.spellings import SPELLINGS
from tests.proof.rows.program import Look, Step


@dataclass(frozen=True)
class Mix:
    """How often one program does what."""

    ours: tuple[tuple[int, Maker], ...]
    stock: tuple[tuple[int, Maker], ...]
    changes: tuple[tuple[int, Maker], ...]
    races: int
    merges_on_read: int
    """In how many of 100 steps an engine that merges on read deletes rows, instead of the client whose turn it is."""
    by_value: int
    """In how many it deletes them by their values."""
    stated: int
    """In how many of 100 steps a statement adds files, inserts into a partition, or names the time of a snapshot."""


def mix(dice: Dice) -> Mix:
    """Return how often a program does what.

    What takes three rare operations in a row would hardly ever be drawn from all of them. So a program leaves many
    operations out. Every second one goes further: of the changes it takes one theme (columns, partitions, snapshots),
    and does with these few operations what it does on few columns, so that they meet.
    """
    narrow = dice.chance(60)
    choices = ((6, 0), (2, 1), (2, 4)) if narrow else ((3, 0), (4, 1), (3, 4))
    theme = dice.one(THEMES)
    factors: dict[Maker, int] = {}
    for _, make in _MAKERS:
        if make not in CHANGES or not narrow:
            factors[make] = dice.weighed(choices)
        else:
            factors[make] = dice.weighed(((2, 0), (2, 2), (2, 5))) if make in theme else 0
    factors[_append] = max(1, factors[_append])
    factors[_commit_files] = factors[_write_files]

    def weighed(makers: tuple[tuple[int, Maker], ...]) -> tuple[tuple[int, Maker], ...]:
        return tuple((weight * factors[make], make) for weight, make in makers if factors[make])

    return Mix(
        weighed(_MAKERS),
        weighed(_STOCK_MAKERS),
        weighed(EVOLUTIONS),
        dice.one((10, 30, 50)),
        dice.one((0, 0, 15, 30)),
        dice.weighed(((7, 0), (1, 10))),
        dice.one((0, 10, 25)),
    )


def step(dice: Dice, view: View, mix: Mix) -> Step:
    """Return what is done next."""
    client = dice.client()
    if len(view.head.files) < 2 and dice.chance(40):
        return _append(dice, client, view.base(client), view)
    if view.neighbour and dice.chance(15):
        return AppendToNeighbour(client)
    if dice.chance(8):
        return Look(where(dice, view.head))
    if (made := _merged_on_read(dice, view, mix)) is not None:
        return made
    stated = _stated(dice, view, client, mix)
    if dice.chance(mix.races) and client != "s":
        one = stated or single(dice, view, client, mix, without=(Refresh, WriteFiles, Recreate, Expire, Orphans))
        others = tuple(meanwhile(dice, view, client, mix) for _ in range(dice.weighed(((4, 1), (2, 2), (1, 3)))))
        return Race(one, others, isinstance(one, Transact) and dice.chance(50), dice.chance(40))
    return stated or single(dice, view, client, mix)


def _stated(dice: Dice, view: View, client: str, mix: Mix) -> Single | None:
    """Return a statement that takes a folder or a clock, or whose texts mean other values once columns have changed.

    Simulations draw from ``single``, and have none of these.
    """
    if client == "s" or not dice.chance(mix.stated):
        return None
    kind = dice.weighed(((5, "add"), (4, "insert"), (2, "time")))
    if kind == "time":
        return timed_rollback(dice, client, view)
    if kind == "insert":
        return insert_partition(dice, client, view.head)
    return add_partition(dice, client, view.head, view)


def meanwhile(dice: Dice, view: View, client: str, mix: Mix) -> Single:
    """Return what another client than *client* does."""
    other = dice.one([name for name in ("a", "b", "s") if name != client])
    base = view.base(other)
    if (made := _merged_on_read(dice, view, mix)) is not None:
        return made
    if view.neighbour and dice.chance(15):
        return AppendToNeighbour(other)
    if other != "s" and dice.chance(mix.stated) and (located := add_partition(dice, other, view.head, view)):
        return located
    change = mix.changes and base.fields.fields and dice.chance(50)
    if change and (made := dice.weighed(mix.changes)(dice, other, base, view)) is not None:
        return made
    return single(dice, view, other, mix, without=(Orphans,))  # the raced client's files would be some


def single(dice: Dice, view: View, client: str, mix: Mix, *, without: tuple[type, ...] = ()) -> Single:
    """Return one operation of *client*."""
    while True:
        make = dice.weighed(mix.ours if client != "s" else mix.stock)
        base = view.head if make in _FRESH else view.base(client)
        if not base.fields.fields:
            return _append(dice, client, base, view)  # two clients have dropped its last columns
        made = make(dice, client, base, view)
        if made is not None and not isinstance(made, without):
            return made


def _append(dice: Dice, client: str, base: State, view: View) -> Single:
    return Append(client, rows(dice, base, 0 if dice.chance(25) else 1), _branch(dice, base))


def _branch(dice: Dice, base: State) -> str:
    others = [name for name in base.rows if name != MAIN and name not in base.tags]
    return dice.one(others) if others and dice.chance(40) else MAIN


def _overwrite(dice: Dice, client: str, base: State, view: View) -> Single:
    condition = where(dice, base, between=client != "s") if dice.chance(60) else Always()
    made = rows(dice, base, 0 if dice.chance(25) else 1)
    return Overwrite(client, made, condition, _branch(dice, base), client != "s" and dice.chance(20))


def _delete(dice: Dice, client: str, base: State, view: View) -> Single:
    return Delete(client, where(dice, base, between=client != "s"), _branch(dice, base))


def _upsert(dice: Dice, client: str, base: State, view: View) -> Single | None:
    no_keys = _ZEROS if client == "s" else ()
    there = [f for f in base.fields.fields if f.field_type.is_primitive and str(f.field_type) not in no_keys]
    if not there:
        return None
    keys = dice.some(there, 1, 2)
    made: dict[tuple[Any, ...], Named] = {}
    for row in rows(dice, base, 1):
        lacking = [f for f in keys if row.get(f.name) is None and (f.required or not dice.chance(30))]
        full = {**row, **{f.name: value(dice, f.field_type) for f in lacking}}
        made[tuple(full[f.name] for f in keys)] = full
    return Upsert(client, tuple(made.values()), tuple(f.name for f in keys))


_ZEROS = {"float", "double"}
"""Types by whose zeros PyIceberg's own upsert loses rows."""


def _dynamic(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if not base.spec or any(p.transform != "identity" for p in base.spec):
        return None
    return DynamicOverwrite(client, rows(dice, base))


def _add_files(dice: Dice, client: str, base: State, view: View) -> Single:
    made = rows(dice, base, 1, 1 if base.spec else 3)
    return AddFiles(client, made, dice.one(SPELLINGS) if dice.chance(25) else "")


def _write_files(dice: Dice, client: str, base: State, view: View) -> Single:
    return WriteFiles(client, rows(dice, base, 1), f"w{len(view.slots)}")


def _commit_files(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if not view.slots:
        return None
    mode: WriteMode = dice.one(("append", "append", "overwrite", "dynamic"))
    condition = where(dice, base) if mode == "overwrite" and dice.chance(50) else Always()
    slot = dice.one(sorted(view.slots))
    written, _ = view.slots[slot]
    with_schema_id = (written.uuid, written.fields) != (base.uuid, base.fields) or dice.chance(50)
    return CommitFiles(client, slot, mode, condition, dice.chance(50), with_schema_id)


def _sets(dice: Dice, base: State, kinds: set[str] | None = None) -> tuple[tuple[str, Any], ...]:
    there = [f for f in base.fields.fields if kinds is None or str(f.field_type) in kinds]
    return tuple((f.name, value_of(dice, f)) for f in dice.some(there, 1, 2))


def _update_rows(dice: Dice, client: str, base: State, view: View) -> Single:
    return UpdateRows(client, where(dice, base, between=client != "s"), _sets(dice, base), _branch(dice, base))


def _compact(dice: Dice, client: str, base: State, view: View) -> Single:
    return Compact(client)


def _insert(dice: Dice, client: str, base: State, view: View) -> Single | None:
    columns = [f for f in base.fields.fields if str(f.field_type) in TYPED]
    if not columns or any(f.required and f not in columns for f in base.fields.fields):
        return None
    chosen = [f for f in columns if f.required or dice.chance(80)] or columns
    lines = tuple(tuple(value_of(dice, f) for f in chosen) for _ in range(dice.number(1, 3)))
    return Insert(client, tuple(f.name for f in chosen), lines, overwrite=dice.chance(30))


def _insert_select(dice: Dice, client: str, base: State, view: View) -> Single:
    return InsertSelect(client, simple_where(dice, base), overwrite=dice.chance(60))


def _sql_update(dice: Dice, client: str, base: State, view: View) -> Single | None:
    sets = _sets(dice, base, TYPED)
    return SqlUpdate(client, simple_where(dice, base), sets) if sets else None


def _sql_delete(dice: Dice, client: str, base: State, view: View) -> Single:
    return SqlDelete(client, simple_where(dice, base))


def _merged_on_read(dice: Dice, view: View, mix: Mix) -> Single | None:
    """Return what an engine that merges on read deletes."""
    if view.head.version != 2 or not view.head.rows.get(MAIN):
        return None
    if dice.chance(mix.merges_on_read) and not view.head.by_value:
        return DeletePositions("s", where(dice, view.head), dice.chance(50))
    return _delete_values(dice, view) if dice.chance(mix.by_value) else None


def _delete_values(dice: Dice, view: View) -> Single | None:
    kinds = {"float", "double"}  # which the specification keeps out
    there = [f for f in view.head.fields.fields if f.field_type.is_primitive and str(f.field_type) not in kinds]
    if not there:
        return None
    columns = dice.some(there, 1, 2)
    lines = tuple({f.name: value_of(dice, f, 10) for f in columns} for _ in range(dice.number(1, 2)))
    return DeleteValues("s", tuple(f.name for f in columns), lines)


def _truncate(dice: Dice, client: str, base: State, view: View) -> Single:
    return Truncate(client)


def _concatenate(dice: Dice, client: str, base: State, view: View) -> Single:
    return Concatenate(client)


def _refresh(dice: Dice, client: str, base: State, view: View) -> Single:
    return Refresh(client)


def _transact(dice: Dice, client: str, base: State, view: View) -> Single | None:
    rows = (_append, _append, _delete, _delete, _overwrite, _upsert, _update_rows)
    makers = (*rows, *rows, set_property, add_column, rename_column, drop_column)
    calls: list[Any] = []
    for _ in range(dice.number(2, 3)):
        made = dice.one(makers)(dice, client, base, view)
        if made is not None:
            calls.append(made)
    return Transact(client, tuple(calls)) if calls else None


_STOCK_MAKERS: tuple[tuple[int, Maker], ...] = (
    (12, _append),
    (4, _overwrite),
    (5, _delete),
    (2, _upsert),
    (3, _dynamic),
    (2, _add_files),
    (8, _refresh),
    *EVOLUTIONS,
)
_MAKERS: tuple[tuple[int, Maker], ...] = (
    (12, _append),
    (6, _overwrite),
    (6, _delete),
    (3, _upsert),
    (3, _dynamic),
    (2, _add_files),
    (4, _write_files),
    (8, _commit_files),
    (4, _update_rows),
    (3, _compact),
    (4, _insert),
    (3, _insert_select),
    (3, _sql_update),
    (3, _sql_delete),
    (1, _truncate),
    (1, _concatenate),
    (4, _refresh),
    (4, _transact),
    (2, clean_orphans),
    *TABLE_STATEMENTS,
    *EVOLUTIONS,
)
_FRESH = {
    _insert,
    _insert_select,
    _sql_update,
    _sql_delete,
    _truncate,
    _concatenate,
    *(make for _, make in TABLE_STATEMENTS),
}
"""Statements see the table as it is."""
