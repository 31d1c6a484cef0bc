"""Changes of columns, partitions, references and snapshots, drawn for a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyiceberg.types import DecimalType, DoubleType, IcebergType, LongType, StructType

from commit_coord.testing.table_files.state import State
from commit_coord.testing.table_files.values import MAIN
from tests.proof.rows.draw.dice import ALL_NAMES, NAMES, Dice
from tests.proof.rows.draw.tables import PRIMITIVES, kind_of, partition
from tests.proof.rows.model.operations import (
    AddColumn,
    AddPartition,
    DropColumn,
    DropPartition,
    DropRef,
    Expire,
    ExpireOne,
    MakeRef,
    MoveFirst,
    Orphans,
    Promote,
    Recreate,
    RenameColumn,
    Require,
    Rollback,
    SetProperty,
    Single,
    SortBy,
    SwapColumns,
    Upgrade,
)
from tests.proof.rows.model.table_statements import SqlAddPartition


@dataclass
class View:
    """What a step is drawn from.

    Args:
        head: The table as it is.
        base: The table as each client sees it.
        slots: Files that were written.
        located: Statements that had a file written.
        neighbour: There is another table in its folder.
    """

    head: State
    base: Callable[[str], State]
    slots: Mapping[str, Any]
    located: Sequence[SqlAddPartition] = ()
    neighbour: bool = False


def _unused(dice: Dice, state: State) -> str | None:
    """Return a name for a column; often the first one that is free, which a column may have had that was dropped."""
    if state.mapped:
        return None  # a mapping by names can't tell two columns apart that have had one name
    names = [name for name in ALL_NAMES + NAMES[3:] if name not in {f.name for f in state.fields.fields}]
    return (names[0] if dice.chance(60) else dice.one(names)) if names else None


def add_column(dice: Dice, client: str, base: State, view: View) -> Single | None:
    """Return a new column, on the top or in a struct."""
    structs = [f for f in base.fields.fields if isinstance(f.field_type, StructType)]
    if structs and dice.chance(40):
        struct = dice.one(structs)
        return AddColumn(client, f"{struct.name}.{dice.one(('z', 'w'))}", dice.one(PRIMITIVES))
    name = _unused(dice, base)
    numbers = itertools.count(1000)
    if name is None:
        return None
    # Of the types that have columns already, too: what has lost its column fits another one only then.
    known = [f.field_type for f in view.head.fields.fields if f.field_type.is_primitive]
    kind = dice.one(known) if known and dice.chance(30) else kind_of(dice, lambda: next(numbers), nested=45)
    return AddColumn(client, name, kind)


def drop_column(dice: Dice, client: str, base: State, view: View) -> Single | None:
    """Return the end of a column."""
    names = [f.name for f in base.fields.fields]
    if len(names) < 2:
        return None
    # The newest one often: then the columns are those of an old schema again.
    return DropColumn(client, names[-1] if dice.chance(50) else dice.one(names))


def rename_column(dice: Dice, client: str, base: State, view: View) -> Single | None:
    """Return another name for a column."""
    name = _unused(dice, base)
    return RenameColumn(client, dice.column(base.fields.fields).name, name) if name is not None else None


def _swap(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if len(base.fields.fields) < 2 or view.head.mapped:
        return None  # a mapping by names can't tell two columns apart that have had one name
    one = dice.column(base.fields.fields)
    others = [f for f in base.fields.fields if f is not one]
    # Of one type often: then nothing but the values tells that the wrong one was taken.
    alike = [f for f in others if f.field_type == one.field_type]
    return SwapColumns(client, one.name, dice.one(alike if alike and dice.chance(70) else others).name)


_WIDER: dict[str, IcebergType] = {
    "int": LongType(),
    "float": DoubleType(),
    "decimal(9, 2)": DecimalType(18, 2),
}


def _promote(dice: Dice, client: str, base: State, view: View) -> Single | None:
    there = [f for f in base.fields.fields if str(f.field_type) in _WIDER]
    if not there:
        return None
    column = dice.one(there)
    return Promote(client, column.name, _WIDER[str(column.field_type)])


def _require(dice: Dice, client: str, base: State, view: View) -> Single:
    # A column that holds NULLs could be made required as well: then its readers are on their own.
    there = [row for rows in (*view.head.rows.values(), *(rows for _, rows in view.head.history)) for row in rows]
    full = [f for f in base.fields.fields if not f.required and all(f.field_id in dict(row) for row in there)]
    if full and dice.chance(75):
        return Require(client, dice.column(full).name, True)
    return Require(client, dice.column(base.fields.fields).name, False)


def _move_first(dice: Dice, client: str, base: State, view: View) -> Single:
    return MoveFirst(client, dice.one(base.fields.fields).name)


def _add_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    found = partition(dice, base)
    if found is None:
        return None
    column = next(f for f in base.fields.fields if f.field_id == found.source)
    return AddPartition(client, column.name, found.transform, found.name)


def _drop_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    return DropPartition(client, dice.one(base.spec).name) if base.spec else None


def _sort(dice: Dice, client: str, base: State, view: View) -> Single | None:
    there = [f for f in base.fields.fields if f.field_type.is_primitive]
    return SortBy(client, dice.one(there).name) if there else None


def _upgrade(dice: Dice, client: str, base: State, view: View) -> Single | None:
    return Upgrade(client) if base.version == 1 else None


def set_property(dice: Dice, client: str, base: State, view: View) -> Single:
    """Return a value for a property that matters."""
    key, values = dice.one(
        (
            ("commit.manifest-merge.enabled", ("true", "false")),
            ("commit.manifest.min-count-to-merge", ("2", "3")),
            ("commit.group.coalesce", ("true", "false")),
            ("write.update.isolation-level", ("snapshot", "serializable")),
            ("gc.enabled", ("false", "false", "true")),
            ("p", ("1", "2")),
        )
    )
    return SetProperty(client, key, dice.one(values))


def _make_ref(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if MAIN not in base.rows:
        return None
    kind: Literal["branch", "tag"] = dice.one(("branch", "branch", "tag"))
    return MakeRef(client, f"{kind}{len(base.rows)}", kind)


def _drop_ref(dice: Dice, client: str, base: State, view: View) -> Single | None:
    names = sorted(name for name in base.rows if name != MAIN)
    if not names:
        return None
    name = dice.one(names)
    return DropRef(client, name, "tag" if name in base.tags else "branch")


def _expire(dice: Dice, client: str, base: State, view: View) -> Single:
    return Expire(client)


def _expire_one(dice: Dice, client: str, base: State, view: View) -> Single | None:
    return ExpireOne(client, dice.number(1, len(base.history) - 1)) if len(base.history) > 1 else None


def _rollback(dice: Dice, client: str, base: State, view: View) -> Single | None:
    fine = rollbacks(base, view)
    return Rollback(client, dice.one(fine)) if fine else None


def rollbacks(base: State, view: View) -> list[int]:
    """Return by how many snapshots the main branch may go back.

    Not to rows that lack what is required by now: their readers are on their own.
    """
    required = [f.field_id for f in view.head.fields.fields if f.required]
    return [
        back
        for back, (_, rows) in enumerate(base.history)
        if back and all(key in dict(row) for row in rows for key in required)
    ]


def _recreate(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if view.head.version > 2:
        return None  # PyIceberg makes no such table
    return Recreate(client, purge=client != "s" and dice.chance(40))


def clean_orphans(dice: Dice, client: str, base: State, view: View) -> Single:
    """Return a search for files that nothing refers to."""
    return Orphans(client)


Maker = Callable[[Dice, str, State, View], Single | None]

EVOLUTIONS: tuple[tuple[int, Maker], ...] = (
    (4, add_column),
    (2, drop_column),
    (3, rename_column),
    (2, _swap),
    (2, _promote),
    (2, _require),
    (1, _move_first),
    (5, _add_partition),
    (4, _drop_partition),
    (1, _sort),
    (4, _upgrade),
    (2, set_property),
    (3, _make_ref),
    (1, _drop_ref),
    (1, _expire),
    (2, _expire_one),
    (2, _rollback),
    (1, _recreate),
)

CHANGES = {make for _, make in EVOLUTIONS}
THEMES = (
    {add_column, drop_column, rename_column, _swap, _require},
    {add_column, drop_column, rename_column, _swap, _promote, _move_first, _require, set_property},
    {_add_partition, _drop_partition, _upgrade, drop_column, rename_column, set_property, _sort},
    {_make_ref, _drop_ref, _expire, _expire_one, _rollback, set_property, _recreate, _upgrade},
    {set_property, _upgrade},
)
"""Changes that meet each other."""
