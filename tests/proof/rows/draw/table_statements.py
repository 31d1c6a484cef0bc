"""Statements on partitions, branches, tags and snapshots, drawn for a table."""

from __future__ import annotations

from typing import Any, Literal

from commit_coord.testing.table_files.state import Partition, State, rows_of
from commit_coord.testing.table_files.values import MAIN, Row
from tests.proof.rows.draw.conditions import TYPED
from tests.proof.rows.draw.dice import Dice, rows, value_of
from tests.proof.rows.draw.evolutions import Maker, View, rollbacks
from tests.proof.rows.model.operations import Single
from tests.proof.rows.model.partition_clauses import Clause, written
from tests.proof.rows.model.spellings import SPELLINGS, Spelling
from tests.proof.rows.model.table_statements import (
    SqlAddPartition,
    SqlConcatenatePartition,
    SqlDropPartition,
    SqlDropRef,
    SqlExpire,
    SqlInsertPartition,
    SqlMakeRef,
    SqlRollback,
    SqlTruncatePartition,
)

# Partitions.


def _some_row(dice: Dice, state: State) -> Row | None:
    """Return a row that mostly is in the table."""
    there = sorted(state.rows.get(MAIN, ()), key=repr)
    if there and dice.chance(85):
        return dice.one(there)
    made = rows_of(rows(dice, state, 1, 1), state.fields)
    return made[0] if made else None


def _clause(dice: Dice, state: State, row: Row | None, fields: list[Partition]) -> Clause | None:
    """Return how a statement names the partition of *row*, by some of *fields*."""
    if row is None or not fields:
        return None
    columns = {f.field_id: f.name for f in state.fields.fields}
    made: list[tuple[str, Any]] = []
    for one in dice.some(fields, 1 if dice.chance(40) else len(fields), len(fields)):
        value = written(one, row, state.fields)
        if isinstance(value, bytes) and not value.isalnum():
            return None  # a statement has texts alone there
        called = columns[one.source] if one.transform == "identity" and dice.chance(50) else one.name
        made.append((called, value))
    return tuple(made)


def _fields(state: State) -> list[Partition]:
    columns = {f.field_id for f in state.fields.fields}
    return [one for one in state.spec if one.source in columns]


def _some_clause(dice: Dice, state: State) -> Clause | None:
    fields = _fields(state)
    if filtered := [one for one in fields if not one.transform.startswith(("bucket", "truncate"))]:
        fields = filtered if dice.chance(85) else fields
    return _clause(dice, state, _some_row(dice, state), fields) if fields else None


def _drop_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    made = [_some_clause(dice, base) for _ in range(dice.weighed(((4, 1), (1, 2))))]
    clauses = tuple(clause for clause in made if clause is not None)
    return SqlDropPartition(client, clauses, dice.chance(40)) if clauses else None


def _truncate_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    clause = _some_clause(dice, base)
    return SqlTruncatePartition(client, clause) if clause else None


def _concatenate_partition(dice: Dice, client: str, base: State, view: View) -> Single | None:
    clause = _some_clause(dice, base)
    return SqlConcatenatePartition(client, clause) if clause else None


def insert_partition(dice: Dice, client: str, base: State) -> SqlInsertPartition | None:
    """Return rows that are inserted into a partition which the statement names."""
    identities = [one for one in _fields(base) if one.transform == "identity"]
    clause = _clause(dice, base, _some_row(dice, base), identities) if identities else None
    if not clause:
        return None
    sources = {one.source for one in identities if one.name in dict(clause)}
    others = [f for f in base.fields.fields if f.field_id not in sources and f.name not in dict(clause)]
    chosen = [f for f in others if str(f.field_type) in TYPED and (f.required or dice.chance(80))]
    if not chosen or any(f.required and f not in chosen for f in others):
        return None
    lines = tuple(tuple(value_of(dice, f) for f in chosen) for _ in range(dice.number(1, 2)))
    return SqlInsertPartition(client, clause, tuple(f.name for f in chosen), lines, dice.chance(65))


def add_partition(dice: Dice, client: str, base: State, view: View) -> SqlAddPartition | None:
    """Return files that are added by a statement, often those that were added before; their location has a spelling."""
    spelling: Spelling = dice.one(SPELLINGS) if dice.chance(60) else ""
    if view.located and dice.chance(45):
        known = dice.one(view.located)
        return SqlAddPartition(client, known.clause, known.rows, known.folder, spelling, dice.chance(60))
    fields = _fields(base)
    named = rows(dice, base, 1, 1)
    made: list[Row] = rows_of(named, base.fields) or [()]
    row = _some_row(dice, base) if dice.chance(15) else made[0]
    clause = _clause(dice, base, row, fields)
    if not clause:
        return None
    again = named * dice.number(1, 2)
    return SqlAddPartition(client, clause, again, f"f{dice.number(1, 10**9)}", spelling, dice.chance(30))


# Branches, tags and snapshots.


def _make_ref(dice: Dice, client: str, base: State, view: View) -> Single | None:
    if MAIN not in base.rows:
        return None
    kind: Literal["branch", "tag"] = dice.one(("branch", "tag"))
    names = sorted(base.rows)
    name = dice.one(names) if dice.chance(20) else f"{kind}{len(base.rows)}"
    source = dice.one(names) if dice.chance(40) else MAIN
    back = dice.number(1, len(base.history) - 1) if len(base.history) > 1 and dice.chance(30) else 0
    return SqlMakeRef(client, name, kind, source, back, dice.chance(30))


def _drop_ref(dice: Dice, client: str, base: State, view: View) -> Single | None:
    names = sorted(base.rows)
    if len(names) < 2:
        return None
    name = dice.one(names)
    kind: Literal["branch", "tag"] = "tag" if (name in base.tags) != dice.chance(15) else "branch"
    return SqlDropRef(client, name, kind, dice.chance(30))


def _rollback(dice: Dice, client: str, base: State, view: View) -> Single | None:
    fine = rollbacks(base, view)
    return SqlRollback(client, dice.one(fine)) if fine else None


def timed_rollback(dice: Dice, client: str, view: View) -> SqlRollback | None:
    """Return a return to the time before a snapshot, where the times of snapshots differ."""
    fine = rollbacks(view.head, view)
    times = view.head.times
    apart = [back for back in fine if all(times[at] > times[at + 1] for at in range(back))]
    return SqlRollback(client, dice.one(apart), timed=True) if apart else None


def _expire(dice: Dice, client: str, base: State, view: View) -> Single | None:
    kind = dice.weighed(((3, "last"), (3, "backs"), (2, "all")))
    if kind == "backs" and len(base.history) > 1:
        backs = range(0 if dice.chance(15) else 1, len(base.history))
        return SqlExpire(client, backs=tuple(dice.some(backs, 1, 2)))
    return SqlExpire(client, last=dice.number(1, 3) if kind == "last" else 0)


TABLE_STATEMENTS: tuple[tuple[int, Maker], ...] = (
    (5, _drop_partition),
    (3, _truncate_partition),
    (2, _concatenate_partition),
    (4, _make_ref),
    (4, _drop_ref),
    (3, _rollback),
    (4, _expire),
)
