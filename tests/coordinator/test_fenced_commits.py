"""Commits that land only while a lease is live, and operations of its holder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue

from commit_coord import (
    CommitLockFailed,
    ConfigError,
    InvalidArguments,
    LeaseEnded,
    LeaseObject,
    LockTimeout,
    sql,
)
from commit_coord.coordinator.publishing import Publisher
from commit_coord.events import Event
from commit_coord.model import LockMode, LockScope, Resource
from commit_coord.protocol.commit import SwapResult
from commit_coord.spark.locks import holding
from tests.catalog.kit import SCHEMA, Kit, coordinated, files_in, ids, kit, orphans, row_ids
from tests.catalog.test_views import replacing, version
from tests.processes import until
from tests.threads import elsewhere

LONG = 600


@pytest.fixture(
    params=[
        "sqlite",
        "leases elsewhere",
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("metastore", marks=[pytest.mark.hms, pytest.mark.slow]),
    ]
)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kit]:
    """Catalogs whose pointers are in the database of the leases, and in another one."""
    properties, uri = {}, None
    match request.param:
        case "postgresql":
            uri = request.getfixturevalue("postgres").url
        case "leases elsewhere":
            properties["lock.uri"] = f"sqlite:///{tmp_path}/leases.db"
        case "metastore":
            uri = request.getfixturevalue("hms").uri
            properties["lock.uri"] = f"sqlite:///{tmp_path}/leases.db"
    with kit("lease", uri, **properties) as found:
        yield found
        coordinated(found.catalog).leases.force_drop_lease()
        found.check()


def leased(table: Any, lease_type: str = "x") -> list[LeaseObject]:
    """Return *table* as what a lease is asked for."""
    database, name = table.name()
    return [LeaseObject(database, name, None, lease_type)]


def before_the_swap(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> list[str]:
    """Let something happen once, when the files of a commit are written and its pointer is not swapped.

    Returns:
        The files that were about to be swapped in, as time goes on.
    """
    real, left, writes = Publisher.write, [happens], list[str]()

    def write(self: Any, plan: Any) -> None:
        real(self, plan)
        writes.append(plan.location)
        if left:
            left.pop()()

    monkeypatch.setattr(Publisher, "write", write)
    return writes


def test_a_commit_lands_while_its_lease_is_live(made: Kit) -> None:
    table, leases = made.table(ids(1)), made.catalog.leases
    lease_id = leases.grab_lease(leased(table), LONG)
    with made.catalog.fenced(lease_id):
        table.append(ids(2))
        table.overwrite(ids(3))
        with table.transaction() as tx:
            tx.append(ids(4))
            tx.set_properties({"a": "b"})
        new = made.catalog.create_table(made.identifier(), table.schema())
        new.append(ids(1))
    assert [3, 4] == row_ids(made.again(table))
    assert leases.confirm_lease(lease_id)


def test_a_commit_to_several_tables_lands_only_while_its_lease_is_live(made: Kit) -> None:
    if made.on_hive:
        pytest.skip("a metastore swaps the pointer of one table at a time")
    tables, leases = [made.table(ids(1)), made.table(ids(1))], made.catalog.leases
    lease_id = leases.grab_lease(leased(tables[0]), LONG)
    for number, is_live in ((2, True), (3, False)):
        with made.catalog.fenced(lease_id), made.catalog.transaction() as tx:
            for table in tables:
                tx.table(table).append(ids(number))
            if not is_live:
                leases.force_drop_lease()
                with pytest.raises(CommitLockFailed, match="the lease has ended"):
                    tx.commit_transaction()
                break
    assert [[1, 2], [1, 2]] == [row_ids(made.again(table)) for table in tables]
    assert not [file for table in tables for file in orphans(made.again(table))]


@pytest.mark.parametrize("change", ["append", "overwrite", "properties"])
def test_a_commit_whose_lease_ended_after_it_was_planned_does_not_land(
    made: Kit, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """An operator ended it by force, grabbed one and committed. What was refused left no file."""
    table, leases = made.table(ids(1)), made.catalog.leases
    rival = made.open()
    following: list[int] = []

    def taken_over() -> None:
        leases.force_drop_lease()
        following.append(rival.leases.grab_lease(leased(table), LONG))

    lease_id = leases.grab_lease(leased(table), LONG)
    writes = before_the_swap(monkeypatch, taken_over)
    before = table.metadata_location
    with made.catalog.fenced(lease_id):
        with pytest.raises(CommitFailedException, match="the lease has ended") as refused:
            match change:
                case "append":
                    table.append(ids(2))
                case "overwrite":
                    table.overwrite(ids(2))
                case _:
                    table.transaction().set_properties({"a": "b"}).commit_transaction()
        assert isinstance(refused.value, CommitLockFailed)
        assert isinstance(refused.value.__cause__, LeaseEnded)
        assert 1 == len(writes), "to take the latch again would not help"
        assert before == made.again(table).metadata_location
        with pytest.raises(CommitLockFailed):
            table.append(ids(3))
    assert [1] == row_ids(made.again(table))
    assert set() == orphans(made.again(table))
    with rival.fenced(following[0]):
        rival.load_table(table.name()).append(ids(4))
    table.append(ids(5))  # without a fence, as ever
    assert [1, 4, 5] == row_ids(made.again(table))
    rival.close()


def test_a_commit_whose_lease_ran_out_after_it_was_planned_does_not_land(
    made: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of its database; that nobody else has it makes no difference."""
    table, leases = made.table(ids(1)), made.catalog.leases
    lease_id = leases.grab_lease(leased(table), 0.5)

    def run_out() -> None:
        until(lambda: not leases.confirm_lease(lease_id), "the end of the lease")

    before_the_swap(monkeypatch, run_out)
    with made.catalog.fenced(lease_id), pytest.raises(CommitLockFailed):
        table.append(ids(2))
    assert [1] == row_ids(made.again(table))
    assert set() == orphans(made.again(table))


def test_a_swap_whose_reply_was_lost_counts_though_the_lease_ended(made: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It landed while the lease was live. That it would be refused now proves nothing."""
    table, catalog = made.table(ids(1)), made.catalog
    lease_id = catalog.leases.grab_lease(leased(table), LONG)
    real = catalog.swap_under_leases

    def swap(*arguments: Any) -> SwapResult:
        assert real(*arguments) is SwapResult.SWAPPED
        catalog.leases.force_drop_lease()
        return SwapResult.LOST_REPLY

    monkeypatch.setattr(catalog, "swap_under_leases", swap)
    with catalog.fenced(lease_id):
        table.append(ids(2))
    assert [1, 2] == row_ids(made.again(table))


def test_a_fenced_commit_lands_alone(made: Kit) -> None:
    """A waiting append that is fenced offers itself to nobody: its fence would be asked for by nobody."""
    table, catalog = made.table(ids(1)), made.catalog
    lease_id = catalog.leases.grab_lease(leased(table), LONG)

    def append() -> None:
        with catalog.fenced(lease_id):
            made.again(table).append(ids(2))

    with catalog.coordinator.latch(tuple(table.name())) as latch:
        waiter = threading.Thread(target=append)
        waiter.start()
        until(lambda: any(entry.blocked_by for entry in catalog.locks.locks(scope=LockScope.COMMIT)), "a waiter")
        assert [] == list(latch.take(10))
    waiter.join()
    assert [1, 2] == row_ids(made.again(table))


def test_a_fence_is_of_one_thread_and_one_block(made: Kit) -> None:
    table, leases = made.table(ids(1)), made.catalog.leases
    first, second = leases.grab_lease(leased(table, "s"), LONG), leases.grab_lease(leased(table, "s"), LONG)
    with made.catalog.fenced(first):
        with made.catalog.fenced(second):
            table.append(ids(2))
            leases.drop_lease(second)
            with pytest.raises(CommitLockFailed):
                made.again(table).append(ids(6))
        made.again(table).append(ids(7))
        leases.drop_lease(first)
        elsewhere = threading.Thread(target=lambda: made.again(table).append(ids(3)))
        elsewhere.start()
        elsewhere.join()
        with pytest.raises(CommitLockFailed):
            made.again(table).append(ids(4))
    made.again(table).append(ids(5))
    assert [1, 2, 3, 5, 7] == row_ids(made.again(table))


COMMITS: dict[str, Callable[[Kit, Any, Any], object]] = {
    "append": lambda made, table, view: made.again(table).append(ids(2)),
    "overwrite": lambda made, table, view: made.again(table).overwrite(ids(2)),
    "properties": lambda made, table, view: made.again(table).transaction().set_properties(a="b").commit_transaction(),
    "creation with rows": lambda made, table, view: creation_with_rows(made),
    "creation of a view": lambda made, table, view: made.catalog.create_view(
        made.identifier(), table.schema(), version("select 1")
    ),
    "registration of a view": lambda made, table, view: made.catalog.register_view(
        made.identifier(), made.catalog.view_location(view)
    ),
    "change of a view": lambda made, table, view: made.catalog.commit_view(
        view, [], replacing(f"select {made.identifier()}")
    ),
}


def creation_with_rows(made: Kit) -> None:
    with made.catalog.create_table_transaction(made.identifier(), SCHEMA) as tx:
        tx.append(ids(1))


@pytest.mark.parametrize("ended", range(3))
@pytest.mark.parametrize("change", COMMITS)
def test_every_commit_lands_only_while_the_leases_of_all_its_fences_are_live(
    made: Kit, change: str, ended: int
) -> None:
    """Three blocks, one in the other; the lease of one ends."""
    table, view, leases = made.table(ids(1)), made.identifier(), made.catalog.leases
    made.catalog.create_view(view, table.schema(), version("select 1"))
    lease_ids = [leases.grab_lease(leased(table, "s"), LONG) for _ in range(3)]
    with ExitStack() as stack:
        for lease_id in lease_ids:
            stack.enter_context(made.catalog.fenced(lease_id))
        COMMITS[change](made, table, view)
        leases.drop_lease(lease_ids[ended])
        before = [files_in(made.folder), made.again(table).metadata_location, made.catalog.view_location(view)]
        with pytest.raises(CommitLockFailed, match="the lease has ended"):
            COMMITS[change](made, table, view)
    after = [files_in(made.folder), made.again(table).metadata_location, made.catalog.view_location(view)]
    assert before[1:] == after[1:]
    assert not [name for name in after[0] - before[0] if "metadata" in name]


def test_a_fence_needs_a_lease_that_is_there(made: Kit) -> None:
    with pytest.raises(InvalidArguments, match="no such lease"), made.catalog.fenced(2**40):
        pytest.fail("the block must not run")


@pytest.mark.parametrize("no_id", [None, 0, -1, True, 2**63, "1", 1.0])
def test_what_is_no_id_of_a_lease_means_no_lease(made: Kit, no_id: Any) -> None:
    """Not every lease, either: a lookup that found nothing gives None."""
    table, leases = made.table(ids(1)), made.catalog.leases
    lease_id = leases.grab_lease(leased(table), LONG)
    for use in (leases.confirm_lease, leases.extend_lease, leases.drop_lease, leases.ensure_live, leases.fence):
        with pytest.raises(InvalidArguments, match="not the id of a lease"):
            use(no_id)
    for block in (made.catalog.fenced, leases.treat_as_held):
        with pytest.raises(InvalidArguments, match="not the id of a lease"), block(no_id):
            pytest.fail("the block must not run")
    assert leases.confirm_lease(lease_id)


def test_the_operations_of_a_holder_do_not_wait_for_its_own_lease(made: Kit) -> None:
    """Nor do its statements; those of everybody else wait."""
    table, catalog = made.table(ids(1)), made.catalog
    impatient = made.open()
    impatient.settings = replace(impatient.settings, lock_acquire_timeout_ms=1500)
    with catalog.leases.hold(leased(table)) as lease, catalog.fenced(lease.lease_id):
        table.overwrite(ids(2))
        sql.run(f"ALTER TABLE {table.name()[1]} SET TBLPROPERTIES ('a'='b')", catalog, database=made.namespace)
        with pytest.raises(LockTimeout, match="a lease while it is extended"):
            elsewhere(impatient.load_table(table.name()).overwrite, ids(3))
        catalog.rename_table(table.name(), (made.namespace, "renamed"))
    assert [2] == row_ids(catalog.load_table((made.namespace, "renamed")))
    impatient.close()


@pytest.mark.parametrize("held", ["a lease on the table", "a shared lease", "a lock on the database"])
def test_a_job_of_a_holder_asks_for_no_lock_that_it_has(made: Kit, held: str) -> None:
    """Nor does a statement; as a call of the table: also where the holder has a part of the locks alone."""
    table, catalog = made.table(ids(1)), made.catalog
    asked: list[Event] = []
    catalog.events.subscribe(lambda event: asked.append(event) if getattr(event, "scope", "") == "operation" else None)
    with ExitStack() as stack:
        if held == "a lock on the database":
            stack.enter_context(catalog.lock_operation({Resource((made.namespace,)): LockMode.EXCLUSIVE}))
        else:
            lease_type = "s" if held == "a shared lease" else "x"
            stack.enter_context(catalog.fenced(catalog.leases.grab_lease(leased(table, lease_type), LONG)))
        asked.clear()
        with holding(table, "overwrite", AlwaysTrue(), "a job"):
            table.overwrite(ids(2))
        sql.run(f"INSERT INTO {table.name()[1]} (id) VALUES (3)", catalog, database=made.namespace)
        assert [] == asked
    assert [2, 3] == row_ids(made.again(table))


def test_a_catalog_whose_locks_are_in_no_database_has_no_leases() -> None:
    with kit("memory") as made:
        with pytest.raises(ConfigError, match="kept in a database by the lock manager `lease`"):
            _ = made.catalog.leases
        with pytest.raises(ConfigError), made.catalog.fenced(1):
            pytest.fail("the block must not run")
