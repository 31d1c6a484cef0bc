"""Random programs over stale handles of one table: what lands is what a serial order of the commits gives.

Three clients read, compute, write back, delete, update, insert and open transactions, and refresh only now and then. A
plain list of rows is the model. What landed is applied to the model when it lands; rows that were computed from a read
may land only if the same computation on the model gives them. What was refused leaves the table as it was, and is
refused for a reason: another client has committed since the handle was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse

from commit_coord import NOTHING, CommitConflict
from tests.catalog.kit import NO_MATCH, Kit, kit, names, orphans

pytestmark = pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int64())])

Rows = dict[int, int]
"""The model: the value of each id."""


def frame(rows: Rows) -> pa.Table:
    return pa.table({"id": list(rows), "v": list(rows.values())}, schema=SCHEMA)


def model(df: pa.Table) -> Rows:
    found = dict(zip(df["id"].to_pylist(), df["v"].to_pylist(), strict=True))
    assert len(found) == df.num_rows, f"a row is there twice: {sorted(df['id'].to_pylist())}"
    return found


def bumped(rows: Rows) -> Rows:
    return {key: value + 1 for key, value in rows.items()}


@dataclass(frozen=True)
class Where:
    """A filter of the programs."""

    kind: str
    key: int

    @property
    def expression(self) -> BooleanExpression:
        """Return it for PyIceberg."""
        match self.kind:
            case "=":
                return parse(f"id = {self.key}")
            case ">=":
                return parse(f"id >= {self.key}")
        return AlwaysTrue()

    def of(self, rows: Rows) -> Rows:
        """Return what it matches."""
        return {
            key: value
            for key, value in rows.items()
            if self.kind == "all" or key == self.key or (self.kind == ">=" and key > self.key)
        }


@dataclass(frozen=True)
class Step:
    """One thing that a client does.

    Args:
        client: Which one.
        action: What it does.
        where: On which rows.
        staged: Only stage it, in the transaction of the client; ``commit`` lands that.
    """

    client: int
    action: str
    where: Where
    staged: bool


@dataclass
class Effect:
    """What a step does to the model when it lands.

    Args:
        on: Changes the rows.
        computed: Rows that were computed from a read, and from which rows; they must still be what that gives.
    """

    on: Callable[[Rows], Rows]
    computed: tuple[Where, Rows] | None = None


@dataclass
class Client:
    """A stale handle, and its transaction with what is staged there."""

    table: Any
    version: int
    tx: Any = None
    begun: int = 0
    staged: list[Effect] = field(default_factory=list)


WHERE = st.builds(Where, st.sampled_from(["=", "=", ">=", "all"]), st.integers(0, 5))
ACTIONS = ["append", "delete", "rewrite", "delete and append", "replace", "upsert", "update", "refresh", "commit"]
STEPS = st.lists(st.builds(Step, st.integers(0, 2), st.sampled_from(ACTIONS), WHERE, st.booleans()), max_size=14)


class Program:
    """Runs steps on a table and on its model."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.rows: Rows = {0: 0, 1: 0, 2: 0}
        self.made = kit.table(frame({0: 0, 1: 0}), frame({2: 0}), schema=SCHEMA)
        self.version = 0
        self.new = 10
        self.clients = [Client(kit.again(self.made), 0) for _ in range(3)]

    def run(self, step: Step) -> None:
        """Do *step*, and hold the table against the model."""
        client = self.clients[step.client]
        before = dict(self.rows)
        since = client.begun if client.tx is not None else client.version
        try:
            if step.action == "refresh":
                self.end(client, commit=False)
                client.table.refresh()
                client.version = self.version
            elif step.action == "commit":
                self.end(client, commit=True)
            elif step.staged or client.tx is not None:
                if client.tx is None:
                    client.tx, client.begun, since = client.table.transaction(), client.version, client.version
                client.staged.append(self.perform(client.tx, client, step))
            else:
                effect = self.perform(client.table, client, step)
                self.land([effect])
                client.version = self.version
        except CommitConflict as refused:
            if since == self.version:
                raise AssertionError("it was refused without a reason") from refused
            if client.tx is not None:
                self.give_up(client)
            self.rows = before
        self.check()

    def end(self, client: Client, *, commit: bool) -> None:
        """Commit the transaction of *client*, or give it up."""
        if client.tx is None:
            return
        if commit:
            client.tx.commit_transaction()
            self.land(client.staged)
            client.version = self.version
            client.tx, client.staged = None, []
        else:
            self.give_up(client)

    def give_up(self, client: Client) -> None:
        client.tx.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        client.tx, client.staged = None, []

    def land(self, effects: list[Effect]) -> None:
        """Apply what has landed to the model: it comes behind everything that landed before."""
        found = dict(self.rows)
        for effect in effects:
            if effect.computed is not None:
                where, given = effect.computed
                assert given == bumped(where.of(found)), (
                    f"rows landed that were computed from {given}, and the table has {where.of(found)}"
                )
            found = effect.on(found)
        self.rows, self.version = found, self.version + 1

    def perform(self, target: Any, client: Client, step: Step) -> Effect:
        """Do the action of *step*; return its effect."""
        where, kind = step.where, step.action
        match kind:
            case "append":
                self.new += 1
                added = {self.new: 0}
                target.append(frame(added))
                return Effect(lambda rows: rows | added)
            case "delete":
                target.delete(where.expression)
                return Effect(lambda rows: without(rows, where))
            case "rewrite":
                computed = bumped(where.of(self.read(target, client)))
                target.overwrite(frame(computed), where.expression)
                return Effect(lambda rows: without(rows, where) | computed, (where, computed))
            case "delete and append":
                computed = bumped(where.of(self.read(target, client)))
                with _together(target) as tx:
                    tx.delete(where.expression)
                    tx.append(frame(computed))
                return Effect(lambda rows: without(rows, where) | computed, (where, computed))
            case "replace":
                given = where.of({step.where.key: 100})
                target.overwrite(frame(given), where.expression, reads=NOTHING)
                return Effect(lambda rows: without(rows, where) | given)
            case "upsert":
                given = {where.key: 7, where.key + 1: 8}
                target.upsert(frame(given), ["id"])
                return Effect(lambda rows: rows | given)
            case _:
                with _together(target) as tx:
                    tx.update_rows(where.expression, lambda df: frame(bumped(model(df))))
                return Effect(lambda rows: rows | bumped(where.of(rows)))

    def read(self, target: Any, client: Client) -> Rows:
        """Return what the client sees: the handle, or its transaction with what it has staged."""
        return model((target if target is client.tx else client.table).scan().to_arrow())

    def check(self) -> None:
        """Assert that the table is what the model says."""
        found = model(self.kit.stock.load_table(self.made.name()).scan().to_arrow())
        assert found == self.rows


class _Outer:
    def __init__(self, tx: Any) -> None:
        self.tx = tx

    def __enter__(self) -> Any:
        return self.tx

    def __exit__(self, *error: object) -> None:
        """Leave the transaction open: it is the client's."""


def _together(target: Any) -> Any:
    """Return a transaction of one call's own, or the one that is open."""
    return target.transaction() if hasattr(target, "transaction") else _Outer(target)


def without(rows: Rows, where: Where) -> Rows:
    matched = where.of(rows)
    return {key: value for key, value in rows.items() if key not in matched}


@pytest.fixture(scope="module", params=["off", "iceberg"])
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    with kit("memory", None, **{"operation-locks": request.param}) as found:
        yield found


@settings(
    max_examples=settings().max_examples * 2 // 5,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(steps=STEPS)
@example(
    # What is deleted and appended in one transaction was computed from rows that others have added to since.
    steps=[*[Step(0, "append", Where("=", 0), False)] * 3, Step(1, "delete and append", Where(">=", 0), False)]
)
@pytest.mark.timeout(600)
def test_what_stale_handles_commit_is_what_a_serial_order_gives(made: Kit, steps: list[Step]) -> None:
    program = Program(made)
    for step in steps:
        program.run(step)
    for client in program.clients:
        program.run(Step(program.clients.index(client), "commit", Where("all", 0), False))
    assert names(orphans(made.again(program.made))) == []
    assert made.held() == []
