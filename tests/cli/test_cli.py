"""The command line on a real catalog: what it prints, what it exits with, what it never does."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.types import LongType
from typer.main import get_command
from typer.testing import CliRunner

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.migration import Migration, Moved, Outcome, operator
from commit_coord.catalog.migration.sightings import SeenWriters
from commit_coord.catalog.orphans import Orphan, Orphans
from commit_coord.cli import app
from commit_coord.cli.exit_codes import MEANINGS, ExitCode
from commit_coord.cli.failures import explain
from commit_coord.cli.logs import warnings_in_one_line
from commit_coord.cli.reference import render
from commit_coord.cli.shell import is_complete
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.coordinator import Coordinator
from commit_coord.demo import DemoFailed
from commit_coord.errors import (
    CommitNotApplied,
    CommitStateUnknown,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
    MetastoreUnavailable,
)
from commit_coord.local import HiveMetastore
from commit_coord.locks.sql.requests import SqlRequests
from commit_coord.model import LockMode, LockRequest, LockScope, Resource
from commit_coord.process import this_owner
from commit_coord.protocol.migration import Phase, State
from tests import limits
from tests.processes import Process, until
from tests.threads import elsewhere, interrupts

ROOT = Path(__file__).parents[2]
SALES = Resource(("shop", "sales"))
EXCLUSIVE = LockMode.EXCLUSIVE


class Shell:
    """Runs ``commit-coord`` against one catalog.

    Args:
        folder: Where its database and tables are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = ""
        self.place = ["-c", "shop", "--uri", f"coord+sqlite:///{folder}/catalog.db"]
        self.place += ["--warehouse", folder.joinpath("warehouse").as_uri()]

    def __call__(self, *arguments: str, place: bool = True, answer: str | None = None) -> Any:
        """Return the result of a command; *answer* is typed when it asks."""
        line = [*arguments, *(self.place if place else [])]
        return CliRunner().invoke(app, line, input=answer, prog_name="commit-coord")

    def json(self, *arguments: str, place: bool = True, exits: int = 0) -> Any:
        """Return the document that a command prints with ``--json``."""
        result = self(*arguments, "--json", place=place)
        assert result.exit_code == exits, result.output
        return json.loads(result.stdout)

    def error(self, *arguments: str, place: bool = True, exits: int, answer: str | None = None) -> str:
        """Return the one line with which a command fails."""
        result = self(*arguments, place=place, answer=answer)
        assert result.exit_code == exits, result.output
        assert "Traceback" not in result.output
        line: str = result.stderr.splitlines()[-1]
        assert "error: " in line
        assert result.stdout == ""
        return line


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody's own ``.pyiceberg.yaml`` takes part."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """The command line, for the catalog of this test."""
    return Shell(tmp_path)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[CoordinatedCatalog]:
    """A catalog with ``shop.sales``, to which two appends were made."""
    properties: dict[str, Any] = {
        "uri": f"coord+sqlite:///{tmp_path}/catalog.db",
        "warehouse": tmp_path.joinpath("warehouse").as_uri(),
    }
    made = commit_coord.load_catalog("shop", **properties)
    made.create_namespace("shop")
    rows = pa.table({"id": [1, 2, 3]})
    table = made.create_table("shop.sales", schema=rows.schema)
    table.append(rows, snapshot_properties={"writer": "till [1]"})
    table.append(rows)
    yield made
    made.close()


def request_ids(shell: Shell) -> list[str]:
    """Return the request ids of the table's snapshots, newest first."""
    commits = shell.json("commits", "shop.sales")["commits"]
    return [commit["request_id"] for commit in commits if commit["snapshot_id"] is not None]


# -- locks -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("catalog")
def test_no_locks(shell: Shell) -> None:
    """Nothing held says so, and is no error."""
    assert "no locks" in shell("locks").stdout
    assert shell.json("locks")["locks"] == []


def test_locks_show_holder_and_waiter(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """Who holds, who waits for whom, for which statement."""
    held = catalog.lock_operation({SALES: EXCLUSIVE}, statement="rewrite [all]")
    waiting: list[Any] = []

    def wait() -> None:
        with catalog.lock_operation({SALES: EXCLUSIVE}, statement="another") as lease:
            waiting.append(lease)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: len(catalog.locks.locks()) >= 2, "a waiter")
    try:
        document = shell.json("locks")
        shown = shell("locks").stdout
    finally:
        held.release()
        thread.join()

    first, second = document["locks"]
    assert (first["state"], first["resource"], first["mode"]) == ("ACQUIRED", "shop/sales", "EXCLUSIVE")
    assert first["owner"]["statement"] == "rewrite [all]"
    assert first["expires_in_ms"] > 0
    assert (second["state"], second["blocked_by"]) == ("WAITING", first["request_id"])
    assert "1 held, 1 waiting" in shown
    assert "rewrite [all]" in shown
    assert [first["request_id"][:8], f"{first['owner']['user']}@{first['owner']['host']}"] == shown.split()[-5:-3]


def test_locks_of_one_table(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """A table as the only argument, or behind the catalog, or with the option."""
    with catalog.lock_operation({Resource(("shop", "other")): EXCLUSIVE}):
        assert len(shell.json("locks")["locks"]) == 1
        assert shell.json("locks", "shop.sales")["locks"] == []
        assert shell.json("locks", "shop", "shop.sales")["locks"] == []


def test_thousands_of_locks_are_shown_page_by_page(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """A user who looks does not have to wait for the last one."""
    days = [(Resource(("shop", "sales", f"day={day:04d}")), LockMode.EXCLUSIVE) for day in range(1000)]
    owner, scope = this_owner("a large job"), LockScope.OPERATION
    wanted = LockRequest.of(scope, days, owner=owner, request_id=str(uuid.uuid4()))
    with catalog.locks.acquire(wanted, deadline=SYSTEM_CLOCK.now() + 20):
        shown = shell("locks").stdout
        assert "locks 1 to 1,000" in shown
        assert shown.rstrip().endswith("1,001 locks")
        assert 1001 == len(shell.json("locks")["locks"])


def test_locks_watch(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """A document a line, as often as asked."""
    with catalog.lock_operation({SALES: EXCLUSIVE}):
        result = shell("locks", "--watch", "--every", "0.05", "--times", "3", "--json")
    assert result.exit_code == 0
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(document["locks"]) for document in documents] == [1, 1, 1]


# -- unlock ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["request id", "its beginning", "path", "name"])
def test_unlock(shell: Shell, catalog: CoordinatedCatalog, what: str) -> None:
    """By request id or resource; it says what it freed, and it is free."""
    lease = catalog.lock_operation({SALES: EXCLUSIVE}, statement="stuck")
    request_id = lease.request.request_id
    name = {"request id": request_id, "its beginning": request_id[:8], "path": "shop/sales", "name": "shop.sales"}[what]

    result = shell("unlock", name, "--yes")

    assert result.exit_code == 0, result.output
    assert "freed X shop/sales (operation)" in result.stdout
    assert "stuck" in result.stdout
    assert catalog.locks.locks() == []


def test_unlock_finds_a_lock_whose_name_the_lock_service_cuts_off(shell: Shell, catalog: CoordinatedCatalog) -> None:
    name = f"shop/sales/day={'x' * 700}"
    catalog.lock_operation({Resource(("shop", "sales", name.rpartition("/")[2])): EXCLUSIVE})
    assert [entry.resource for entry in catalog.show_locks()] != [SALES, Resource.parse(name)], "it is cut off"
    assert shell("unlock", name, "--yes").exit_code == 0
    assert catalog.locks.locks() == []


def test_unlock_asks(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """It shows what it would free and takes no for an answer."""
    with catalog.lock_operation({SALES: EXCLUSIVE}, statement="busy"):
        refused = shell("unlock", "shop.sales", answer="n\n")
        assert refused.exit_code == ExitCode.REFUSED
        assert "busy" in refused.stderr
        assert len(catalog.locks.locks()) == 1
        assert shell("unlock", "shop.sales", answer="y\n").exit_code == 0
        assert catalog.locks.locks() == []


def test_unlock_json(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """What was freed, as JSON; it can't ask, so it wants ``--yes``."""
    with catalog.lock_operation({SALES: EXCLUSIVE}):
        assert "--yes" in shell.json("unlock", "shop/sales", exits=2)["error"]["message"]
        assert [lock["resource"] for lock in shell.json("unlock", "shop/sales", "--yes")["freed"]] == ["shop/sales"]


class Waiter:
    """A request that waits in a thread.

    Args:
        catalog: Where.
        resource: For what.
    """

    def __init__(self, catalog: CoordinatedCatalog, resource: Resource) -> None:
        self.error: Exception | None = None
        self.was_granted = False
        self._catalog, self._resource = catalog, resource
        self._thread = threading.Thread(target=self._wait)
        before = len(catalog.locks.locks())
        self._thread.start()
        until(lambda: len(catalog.locks.locks()) > before, "a waiter")

    def ended(self) -> Waiter:
        """Return itself when its wait has ended."""
        self._thread.join()
        return self

    def _wait(self) -> None:
        try:
            with self._catalog.lock_operation({self._resource: EXCLUSIVE}, statement="a waiter"):
                self.was_granted = True
        except LockRefused as error:
            self.error = error


def test_unlock_frees_the_holder_and_the_waiter_gets_the_lock(shell: Shell, catalog: CoordinatedCatalog) -> None:
    catalog.lock_operation({SALES: EXCLUSIVE}, statement="stuck")
    waiter = Waiter(catalog, SALES)
    (freed,) = shell.json("unlock", "shop.sales", "--yes")["freed"]
    assert "stuck" == freed["owner"]["statement"]
    assert waiter.ended().was_granted


def test_unlock_frees_waiters_on_demand_and_their_error_names_the_operator(
    shell: Shell, catalog: CoordinatedCatalog
) -> None:
    catalog.lock_operation({SALES: EXCLUSIVE}, statement="stuck")
    waiter = Waiter(catalog, SALES)
    freed = shell.json("unlock", "shop.sales", "--waiters", "--why", "it hangs", "--yes")["freed"]
    assert {"stuck", "a waiter"} == {entry["owner"]["statement"] for entry in freed}
    error, operator = waiter.ended().error, this_owner()
    assert f"released_by='{operator.user}@{operator.host} pid {operator.pid}', why='it hangs'" in str(error)


def test_unlock_says_how_to_free_a_resource_for_which_others_only_wait(
    shell: Shell, catalog: CoordinatedCatalog
) -> None:
    day, month = Resource(("shop", "sales", "day=1")), Resource(("shop", "sales", "day=2"))
    with catalog.lock_operation({day: EXCLUSIVE}):
        both = threading.Thread(target=lambda: catalog.lock_operation({day: EXCLUSIVE, month: EXCLUSIVE}).release())
        both.start()
        until(lambda: len(catalog.locks.locks()) > 3, "a waiter")
        assert "add --waiters" in shell.error("unlock", "shop/sales/day=2", "--yes", exits=ExitCode.REFUSED)
    both.join()


def test_unlock_with_dry_run_frees_nothing(shell: Shell, catalog: CoordinatedCatalog) -> None:
    with catalog.lock_operation({SALES: EXCLUSIVE}, statement="busy") as lease:
        assert "would free X shop/sales (operation)" in shell("unlock", "shop.sales", "--dry-run").stdout
        assert shell.json("unlock", "shop.sales", "--dry-run")["dry_run"] is True
        lease.ensure_active(0)


def test_unlock_leaves_a_waiter_that_was_granted_while_it_asked(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user who confirmed has seen that it waits; it may be in the middle of its work now."""
    held, let_go = catalog.lock_operation({SALES: EXCLUSIVE}, statement="stuck"), threading.Event()
    day = catalog.lock_operation({Resource(("shop", "items")): EXCLUSIVE}, statement="another")

    def wait() -> None:
        with catalog.lock_operation({SALES: EXCLUSIVE}, statement="a waiter"):
            let_go.wait(limits.PATIENCE)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: len(catalog.locks.locks()) == 3, "a waiter")

    def confirmed(_: str) -> bool:
        held.release()
        until(lambda: [None, None] == [entry.blocked_by for entry in catalog.locks.locks()], "its lock")
        return True

    monkeypatch.setattr("commit_coord.cli.locks.confirmed", confirmed)
    refused = shell.error("unlock", "shop.sales", "--waiters", exits=ExitCode.REFUSED)
    assert "granted in the meantime; `commit-coord locks` lists the locks" in refused
    assert {"a waiter", "another"} == {entry.owner.statement for entry in catalog.locks.locks()}
    let_go.set()
    waiter.join()
    day.release()


def test_unlock_says_what_it_has_left(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = catalog.lock_operation({SALES: LockMode.SHARED}, statement="ends in time")
    lost = elsewhere(lambda: catalog.lock_operation({SALES: LockMode.SHARED}, statement="stuck"))

    def confirmed(_: str) -> bool:
        kept.release()
        return True

    monkeypatch.setattr("commit_coord.cli.locks.confirmed", confirmed)
    freed, left = sorted(shell("unlock", "shop.sales").stdout.splitlines())
    assert freed.startswith("freed S shop/sales (operation)")
    assert "stuck" in freed
    assert left.startswith("left S shop/sales (operation)")
    assert "ends in time" in left
    assert left.endswith("it was released or granted in the meantime")
    lost.release()


def test_unlock_names_what_it_has_freed_when_the_rest_fails(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [elsewhere(lambda: catalog.lock_operation({SALES: LockMode.SHARED})) for _ in range(2)]
    requests = [lease.request.request_id for lease in leases]
    remove = SqlRequests.remove

    def removes_one(there: SqlRequests, *given: Any, **options: Any) -> bool:
        if len(catalog.locks.locks()) < 2:
            raise LockServiceUnavailable("the database does not answer")
        return remove(there, *given, **options)

    monkeypatch.setattr(SqlRequests, "remove", removes_one)
    document = shell.json("unlock", "shop.sales", "--yes", exits=ExitCode.FAILED)
    (freed,) = {entry["request_id"] for entry in document["freed"]}
    assert [] == document["maybe_freed"]
    assert [freed] == [one for one in requests if one not in {e.request_id for e in catalog.locks.locks()}]
    error = document["error"]
    assert "partly-freed" == error["kind"]
    assert f"after a part of the locks had been freed: requests='{freed}', cause='the database does" in error["message"]
    assert "what is left with `commit-coord locks`" in error["message"]


def test_unlock_frees_the_dead_who_wait_too(shell: Shell, catalog: CoordinatedCatalog) -> None:
    waits = 'threading.Thread(target=locked, args=(X, "shop", "sales"), daemon=True).start(); hang()'
    with catalog.lock_operation({SALES: EXCLUSIVE}):
        with Process({**catalog.configuration.properties, "uri": shell.place[3]}, waits) as process:
            process.heard("up")
            until(lambda: len(catalog.locks.locks()) >= 2, "a waiter")
            process.signal(signal.SIGKILL).ended()
        states = [entry["dead"] for entry in shell.json("locks")["locks"]]
        assert [False, True] == states
        assert 2 == len(shell.json("unlock", "shop.sales", "--dry-run")["freed"])


# -- reap --------------------------------------------------------------------------------------------------


def test_reap_says_what_the_dead_left_and_frees_it(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """A process was killed with a lock; a living one keeps its own."""
    held = 'lease = locked(X, "shop", "sales", "day=1", statement="a job"); say("holds"); hang()'
    with Process({**catalog.configuration.properties, "uri": shell.place[3]}, held) as process:
        process.heard("holds")
        lease = catalog.lock_operation({Resource(("shop", "sales", "day=2")): EXCLUSIVE})
        assert "no dead owner left a lock" in shell("reap").stdout
        process.signal(signal.SIGKILL).ended()

    shown = shell("reap", "--dry-run")
    assert "would free X shop/sales/day=1 (operation)" in shown.stdout
    assert "a job" in shown.stdout
    assert "its process has ended" in shown.stdout
    assert 4 == len(catalog.show_locks())
    freed = shell.json("reap", "--why", "tidy")
    assert (False, ["shop/sales", "shop/sales/day=1"]) == (
        freed["dry_run"],
        [entry["resource"] for entry in freed["freed"]],
    )
    assert {"its process has ended"} == {entry["because"] for entry in freed["freed"]}
    assert 2 == len(catalog.show_locks())
    lease.ensure_active(0)
    lease.release()


# -- commits -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("catalog")
def test_commits(shell: Shell) -> None:
    """The newest first, with rows, request id, generation and writer."""
    document = shell.json("commits", "shop.sales")
    newest, oldest, created = document["commits"]
    assert document["total"] == 3
    assert (created["operation"], created["snapshot_id"]) == ("create", None)
    assert newest["parent_id"] == oldest["snapshot_id"]
    assert newest["current"]
    assert (oldest["operation"], oldest["added_rows"], oldest["writer"]) == ("append", 3, "till [1]")
    assert newest["generation"] > oldest["generation"]
    assert str(uuid.UUID(newest["request_id"])) == newest["request_id"]

    shown = shell("commits", "shop.sales").stdout
    assert newest["request_id"] in shown
    assert "till [1]" in shown
    assert "+3" in shown


@pytest.mark.usefixtures("catalog")
def test_commits_limit(shell: Shell) -> None:
    """As many as asked for, and it says that there are more."""
    assert len(shell.json("commits", "shop.sales", "-n", "1")["commits"]) == 1
    assert "3 commits, the newest 1" in shell("commits", "shop.sales", "-n", "1").stdout
    assert len(shell.json("commits", "shop.sales", "-n", "0")["commits"]) == 3


def test_commits_without_a_snapshot_are_listed_with_their_request_ids(
    shell: Shell, catalog: CoordinatedCatalog
) -> None:
    table = catalog.load_table("shop.sales")
    with table.transaction() as tx:
        tx.set_properties({"a": "1"})
    with table.update_schema() as changes:
        changes.add_column("more", LongType())
    schema, properties, *snapshots = shell.json("commits", "shop.sales")["commits"]
    for commit in (schema, properties):
        assert (commit["operation"], commit["snapshot_id"], commit["added_rows"]) == ("metadata", None, 0)
        assert shell.json("commits", "shop.sales", "--request-id", commit["request_id"][:8])["landed"] is True
    assert schema["request_id"] in table.metadata_location
    assert [commit["operation"] for commit in snapshots] == ["append", "append", "create"]
    assert "metadata" in shell("commits", "shop.sales").stdout


def operations(shell: Shell) -> list[str]:
    return [commit["operation"] for commit in shell.json("commits", "shop.sales")["commits"]]


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_append_whose_snapshot_was_expired_is_no_change_of_metadata(
    shell: Shell, catalog: CoordinatedCatalog, version: str
) -> None:
    """It looks like one in the metadata log. Where no snapshot is missing around it, a change is certain."""
    rows = pa.table({"id": [1]})
    catalog.drop_table("shop.sales")
    table = catalog.create_table("shop.sales", schema=rows.schema, properties={"format-version": version})
    for _ in range(3):
        table.append(rows)
    with table.transaction() as tx:
        tx.set_properties({"a": "1"})
    assert ["metadata", *["append"] * 3, "create"] == operations(shell)
    table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in table.snapshots()[:2]]).commit()
    newer = ["metadata", "metadata"] if version == "2" else ["unknown", "unknown"]
    assert [*newer, "append", "unknown", "unknown", "create"] == operations(shell)
    assert "its snapshot may be gone" in shell("commits", "shop.sales").stdout


def test_commits_of_one_millisecond_are_all_listed(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.load_table("shop.sales")
    at_ms = table.metadata.last_updated_ms + 1_000
    monkeypatch.setattr(time, "time", lambda: at_ms / 1_000)
    monkeypatch.setattr(time, "time_ns", lambda: at_ms * 1_000_000)
    table.append(pa.table({"id": [4]}))
    with table.transaction() as tx:
        tx.set_properties({"a": "1"})
    assert table.metadata.last_updated_ms == table.current_snapshot().timestamp_ms  # type: ignore[union-attr]
    assert ["append", "append", "append", "create", "metadata"] == sorted(operations(shell))


def test_the_commit_that_creates_a_table_with_rows_is_one_commit_with_its_request_id(
    shell: Shell, catalog: CoordinatedCatalog
) -> None:
    rows = pa.table({"id": [1, 2]})
    with catalog.create_table_transaction("shop.new", rows.schema) as tx:
        tx.append(rows)
    [commit] = shell.json("commits", "shop.new")["commits"]
    assert commit["request_id"] in catalog.load_table("shop.new").metadata_location
    assert shell.json("commits", "shop.new", "--request-id", commit["request_id"])["snapshot_ids"] == [
        commit["snapshot_id"]
    ]


@pytest.mark.usefixtures("catalog")
def test_did_it_land(shell: Shell) -> None:
    """Yes, with its snapshot; also by the beginning of the request id that the table shows."""
    newest, oldest = request_ids(shell)
    assert shell.json("commits", "shop.sales", "--request-id", oldest)["landed"] is True
    assert shell.json("commits", "shop.sales", "--request-id", newest[:8])["request_id"] == newest
    assert "landed in shop.sales" in shell("commits", "shop.sales", "--request-id", newest).stdout


def test_the_beginning_of_several_request_ids_is_the_id_of_none(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """Neither has landed for sure, nor may the write be repeated: the answer names them."""
    made = [f"01980000-{number}000-7000-8000-000000000001" for number in (1, 2)]
    for request_id in made:
        with catalog.transaction(request_id=request_id) as transaction:
            transaction.table("shop.sales").append(pa.table({"id": [4]}))
    refused = shell.error("commits", "shop.sales", "--request-id", "01980000", exits=2)
    assert all(request_id in refused for request_id in made)
    assert "repeat" not in refused
    found = shell("commits", "shop.sales", "--request-id", "01980000-2")
    assert f"by the request {made[1]}" in found.stdout
    missing = shell.error("commits", "shop.sales", "--request-id", "01980000-3", exits=1)
    assert "first ask with its whole id" in missing


# -- repair and orphans ------------------------------------------------------------------------------------


@pytest.fixture
def overwritten(shell: Shell, catalog: CoordinatedCatalog) -> str:
    """The metadata file of the table's last commit, which another program put back to the one before."""
    table = catalog.load_table(("shop", "sales"))
    lost, base = table.metadata_location, table.metadata.metadata_log[-1].metadata_file
    with sqlite3.connect(shell.folder / "catalog.db") as db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'sales'", (base,))
    db.close()
    return lost


def rows_of(catalog: CoordinatedCatalog) -> int:
    return len(catalog.load_table(("shop", "sales")).scan().to_arrow().to_pylist())


def test_repair_shows_asks_and_brings_back(shell: Shell, catalog: CoordinatedCatalog, overwritten: str) -> None:
    before = rows_of(catalog)
    dry = shell.json("repair", "shop.sales", "--dry-run")
    (lost,) = dry["lost"]
    assert (dry["restored"], lost["state"], lost["metadata_location"]) == (0, "restorable", overwritten)
    assert rows_of(catalog) == before
    refused = shell("repair", "shop.sales", answer="n\n")
    assert refused.exit_code == ExitCode.REFUSED
    assert "brought back as an append" in refused.stderr
    assert shell.json("repair", "shop.sales", exits=2)["error"]["kind"] == "usage"
    assert rows_of(catalog) == before
    done = shell("repair", "shop.sales", answer="y\n")
    assert done.exit_code == 0, done.output
    assert f"brought back 1 commits: {lost['rows']} rows in 1 files" in done.stdout
    assert rows_of(catalog) == before + lost["rows"]
    assert "nothing is known to be lost" in shell("repair", "shop.sales").stdout
    (again,) = shell.json("repair", "shop.sales", "--from", overwritten, "--yes")["lost"]
    assert again["state"] == "restored"
    assert rows_of(catalog) == before + lost["rows"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, CommitNotApplied])
def test_repair_that_ends_midway_says_what_it_brought_back(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    table = catalog.load_table("shop.sales")
    base = table.metadata_location
    for number in (4, 5):
        table.append(pa.table({"id": [number]}))
    with sqlite3.connect(shell.folder / "catalog.db") as db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'sales'", (base,))
    db.close()
    commit, sent = Coordinator.commit, count()

    def commits(*arguments: Any, **options: Any) -> Any:
        if next(sent) == 1:
            raise error("no answer")
        return commit(*arguments, **options)

    monkeypatch.setattr(Coordinator, "commit", commits)
    ended = shell("repair", "shop.sales", "--yes")
    if error is KeyboardInterrupt:
        assert ended.exit_code == ExitCode.INTERRUPTED
        assert "brought back before the interruption: 1 of 2 commits" in ended.stderr
    else:
        assert ended.exit_code == ExitCode.FAILED
        assert "1 of 2 commits were brought back, then the repair failed (no answer)" in ended.stderr
        assert "nothing was changed" not in ended.stderr
    assert shell.json("repair", "shop.sales", "--yes")["restored"] == 1


def test_repair_ends_with_a_code_of_its_own_while_commits_must_be_made_again(
    shell: Shell, catalog: CoordinatedCatalog
) -> None:
    table = catalog.load_table("shop.sales")
    base = table.metadata_location
    table.append(pa.table({"id": [4]}))
    table.delete("id = 1")
    with sqlite3.connect(shell.folder / "catalog.db") as db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'sales'", (base,))
    db.close()
    assert [one["state"] for one in shell.json("repair", "shop.sales", "--dry-run")["lost"]] == [
        "restorable",
        "by hand",
    ]
    assert shell.json("repair", "shop.sales", "--yes", exits=1)["restored"] == 1
    again = shell("repair", "shop.sales", "--yes")
    assert again.exit_code == ExitCode.REFUSED
    assert "1 have to be done again" in again.stdout
    assert shell("repair", "shop.sales", "--forget", "--yes").exit_code == 0
    assert shell("repair", "shop.sales").exit_code == 0


def test_repair_forgets_on_demand(shell: Shell, catalog: CoordinatedCatalog, overwritten: str) -> None:
    assert shell.json("repair", "shop.sales", "--yes", "--forget")["forgotten"][0]["location"] == overwritten
    assert shell.json("repair", "shop.sales", "--dry-run")["lost"] == []
    assert len(shell.json("repair", "shop.sales", "--dry-run", "--from", overwritten)["lost"]) == 1


def test_repair_forgets_what_it_has_shown(
    shell: Shell, catalog: CoordinatedCatalog, overwritten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirmed(_: str) -> bool:
        table = catalog.load_table(("shop", "sales"))
        base = table.metadata_location
        table.append(table.scan().to_arrow())
        with sqlite3.connect(shell.folder / "catalog.db") as db:
            db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'sales'", (base,))
        db.close()
        return True

    monkeypatch.setattr("commit_coord.cli.recovery.confirmed", confirmed)
    assert overwritten in shell("repair", "shop.sales", "--forget").stdout
    (left,) = shell.json("repair", "shop.sales", "--forget", "--dry-run")["lost"]
    assert left["location"] != overwritten


def test_what_repair_would_forget_is_shown_and_only_a_yes_forgets_it(shell: Shell, overwritten: str) -> None:
    dry = shell.json("repair", "shop.sales", "--forget", "--dry-run", "--yes")
    assert ([one["location"] for one in dry["lost"]], dry["forgotten"]) == ([overwritten], [])
    shown = shell("repair", "shop.sales", "--forget", "--dry-run")
    assert "would forget request" in shown.stdout
    assert overwritten in shown.stdout
    assert "1 commits can be brought back first: `commit-coord repair shop.sales`" in shown.stderr
    refused = shell("repair", "shop.sales", "--forget", answer="n\n")
    assert refused.exit_code == ExitCode.REFUSED
    assert overwritten in refused.stderr
    assert "leave one of them out" in shell.error("repair", "shop.sales", "--forget", "--from", overwritten, exits=2)
    assert len(shell.json("repair", "shop.sales", "--dry-run")["lost"]) == 1


def test_what_was_lost_can_be_forgotten_when_its_files_are_gone(
    shell: Shell, catalog: CoordinatedCatalog, overwritten: str
) -> None:
    catalog.load_table("shop.sales").append(pa.table({"id": [4]}))
    Path(overwritten.removeprefix("file://")).unlink()
    forgotten = shell("repair", "shop.sales", "--forget", "--yes")
    assert "it is not known what can be brought back: a lost metadata file can't be read" in forgotten.stderr
    assert f"{overwritten}\nshop.sales: 1 forgotten" in forgotten.stdout


def test_orphans_are_listed_and_deleted_on_demand(shell: Shell, catalog: CoordinatedCatalog) -> None:
    location = catalog.load_table(("shop", "sales")).location().removeprefix("file://")
    orphan = Path(location) / "data" / "left.parquet"
    orphan.write_bytes(b"four")
    days_ago = time.time() - 5 * 86_400
    os.utime(orphan, (days_ago, days_ago))
    listed = shell.json("orphans", "shop.sales")
    assert [one["path"] for one in listed["orphans"]] == [f"file://{orphan}"]
    assert "left.parquet" in shell("orphans", "shop.sales").stdout
    assert shell.json("orphans", "shop.sales", "--older-than", "6d")["too_young"] == 1
    assert shell("orphans", "shop.sales", "--delete", answer="n\n").exit_code == ExitCode.REFUSED
    assert orphan.exists()
    assert "deleted 1 files (4 bytes)" in shell("orphans", "shop.sales", "--delete", "--yes").stdout
    assert not orphan.exists()
    assert shell.json("orphans", "shop.sales", "--delete", "--yes")["deleted"] == 0


def with_two_orphans(catalog: CoordinatedCatalog) -> Path:
    """Put two old files that no snapshot names into the table's folder of data; return the folder."""
    folder = Path(catalog.load_table("shop.sales").location().removeprefix("file://")) / "data"
    for name in ("one.parquet", "two.parquet"):
        folder.joinpath(name).write_bytes(b"four")
        os.utime(folder / name, (0, 0))
    return folder


def test_orphans_that_could_not_be_deleted_are_not_counted_and_named(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = with_two_orphans(catalog)
    delete = PyArrowFileIO.delete

    def refuse_one(io: PyArrowFileIO, location: str) -> None:
        if location.endswith("one.parquet"):
            raise PermissionError("Access Denied")
        delete(io, location)

    monkeypatch.setattr(PyArrowFileIO, "delete", refuse_one)
    done = shell.json("orphans", "shop.sales", "--delete", "--yes", exits=3)
    assert (done["deleted"], done["not_deleted"]) == (1, [f"file://{folder}/one.parquet"])
    again = shell("orphans", "shop.sales", "--delete", "--yes")
    assert again.exit_code == ExitCode.FAILED
    assert f"could not be deleted, see the warning: file://{folder}/one.parquet" in again.stdout
    assert [path.name for path in folder.glob("*o*e.parquet")] == ["one.parquet"]


def test_orphans_that_is_interrupted_says_what_it_deleted(
    shell: Shell, catalog: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_two_orphans(catalog)

    def interrupted(self: Any, found: Orphans, *, on_deleted: Callable[[Orphan], None]) -> Orphans:
        on_deleted(found.files[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(CoordinatedCatalog, "delete_orphans", interrupted)
    for options in ([], ["--json"]):
        ended = shell("orphans", "shop.sales", "--delete", "--yes", *options)
        assert ended.exit_code == ExitCode.INTERRUPTED
        assert "deleted before the interruption: 1 of 2 files" in ended.stderr


def test_orphans_of_a_dropped_table_are_listed_when_its_id_is_given(shell: Shell, catalog: CoordinatedCatalog) -> None:
    old = catalog.load_table("shop.sales")
    catalog.drop_table("shop.sales")
    catalog.create_table("shop.sales", old.schema())
    hurry = ("--older-than", "0s", "--force")
    refused = shell.json("orphans", "shop.sales", *hurry, exits=2)["error"]["message"]
    assert f"uuid='{old.metadata.table_uuid}'" in refused
    listed = shell.json("orphans", "shop.sales", *hurry, "--dropped", str(old.metadata.table_uuid))
    assert old.metadata_location in [one["path"] for one in listed["orphans"]]


# -- config ------------------------------------------------------------------------------------------------


def test_config_says_where_from(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, environment, argument, default."""
    file = f"catalog:\n  shop:\n    uri: coord+sqlite:///{shell.folder}/catalog.db\n    lock.policy: deny\n"
    (shell.folder / ".pyiceberg.yaml").write_text(file)
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__LOCK__NUM_RETRIES", "7")

    document = shell.json("config", "shop", "-p", "lock.max-partitions=5", place=False)

    found = {record["property"]: (record["value"], record["from"]) for record in document["properties"]}
    assert found["lock.policy"] == ("deny", "file")
    assert found["lock.num-retries"] == ("7", "environment")
    assert found["lock.max-partitions"] == ("5", "argument")
    assert found["lock.database-parents"] == ("false", "default")
    assert document["lock_manager"] == "lease"
    assert document["guarantees"]["mutual_exclusion"] is True
    shown = shell("config", "shop", place=False).stdout
    assert "first come, first served" in shown


def test_config_opens_nothing(shell: Shell) -> None:
    """No database is made by looking at the settings."""
    assert shell("config").exit_code == 0
    assert list(shell.folder.iterdir()) == []


def test_config_hides_secrets(shell: Shell) -> None:
    """No password of a URL and no value of a property that sounds like a secret."""
    line = ["config", "--uri", "coord+postgresql://ann:hush@db/shop?password=hush"]
    line += ["-p", "s3.secret-access-key=hush", "-p", "token=hush", "-p", "gcs.oauth2.token=hush"]
    line += ["-p", "lock.uri=postgresql://ann:hush@locks/x", "-p", "s3.region=eu-1"]
    for more in ([], ["--json"]):
        result = shell(*line, *more, place=False)
        assert result.exit_code == 0, result.output
        assert "hush" not in result.output
        assert "ann:***@" in result.stdout
        assert "eu-1" in result.stdout


def test_adopt_locks(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """Another lock manager is refused until the locks are adopted, and it asks before."""
    other = ["-p", "lock-impl=none"]
    assert "another lock manager" in shell.error("locks", *other, exits=2)
    catalog.close()
    refused = shell("config", "--adopt-locks", *other, answer="n\n")
    assert refused.exit_code == ExitCode.REFUSED
    assert "lease" in refused.stderr
    assert "another lock manager" in shell.error("locks", *other, exits=2)
    assert shell.json("config", "--adopt-locks", "--yes", *other)["adopted"] is True
    assert shell.json("locks", *other)["locks"] == []


# -- migrate -----------------------------------------------------------------------------------------------


class Moving(Migration):
    """Moves tables of no metastore. Only ``shop.t0`` … ``shop.t19`` are there.

    Args:
        interrupt: What types Ctrl-C while the first table is moved.
        fails_at: Which call of the others than moves fails; then the first table does not move before its second try.
    """

    def __init__(self, interrupt: Callable[[], None] | None = None, fails_at: int | None = None) -> None:
        self.interrupt = interrupt
        self.calls = count()
        self.fails_at = fails_at
        self.waited = fails_at is None
        self.is_ending = threading.Event()
        self.defaults: list[Phase] = []
        self.moved: list[str] = []

    def tables(self, patterns: Sequence[str]) -> list[tuple[str, ...]]:
        self._call()
        if "shop.typo" in patterns:
            raise NoSuchTableError("no Iceberg table is named shop.typo")
        return [("shop", f"t{number}") for number in range(20)]

    def set_defaults(
        self, patterns: Sequence[str], phase: Phase, *, on_set: Callable[[str], None] = lambda _: None
    ) -> None:
        self._call()
        self.defaults.append(phase)
        on_set("shop")

    def watch(self, seconds: float) -> SeenWriters:
        self._call()
        return SeenWriters(sightings=[], seconds=seconds, locks=None)

    def _call(self) -> None:
        if next(self.calls) == self.fails_at:
            raise MetastoreUnavailable("the metastore can't be reached")

    def move(self, table: tuple[str, ...], target: Phase, **options: Any) -> Moved:
        if table[-1] == "t0" and not self.waited:
            self.waited = True
            state = State(phase=Phase.HMS, epoch=0)
            return Moved(table=".".join(table), before=state, after=state, outcome=Outcome.WAITS)
        self.moved.append(".".join(table))
        if self.interrupt and table[-1] == "t0":
            self.interrupt()
        elif self.interrupt:
            assert self.is_ending.wait(limits.PATIENCE)
        before, after = State(phase=Phase.HMS, epoch=0), State(phase=target, epoch=1)
        return Moved(table=".".join(table), before=before, after=after, outcome=Outcome.CHANGED)


def moving(
    monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[], None] | None = None, fails_at: int | None = None
) -> Moving:
    made = Moving(interrupt, fails_at)
    monkeypatch.setattr(operator, "Event", lambda: made.is_ending)
    monkeypatch.setattr("commit_coord.cli.migrate._migration", lambda *_: nullcontext(made))
    return made


@pytest.mark.parametrize("command", ["start", "abort"])
def test_migrate_changes_nothing_if_a_pattern_names_no_table(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    made = moving(monkeypatch)
    assert "no Iceberg table is named shop.typo" in shell.error("migrate", command, "shop", "shop.typo", exits=1)
    assert (made.defaults, made.moved) == ([], [])
    assert shell("migrate", command, "shop").exit_code == 0
    assert made.defaults == [Phase.BOTH if command == "start" else Phase.HMS]


def test_ctrl_c_ends_a_migration_and_says_which_tables_were_moved(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with interrupts() as (interrupt, _):
        made = moving(monkeypatch, interrupt)
        ended = shell("migrate", "start", "shop")
    assert ended.exit_code == ExitCode.INTERRUPTED, ended.stderr
    assert 1 <= len(made.moved) <= operator._TOGETHER + 1, "those that had begun, and one that follows the first"
    assert f"moved before the interruption: {', '.join(sorted(made.moved))}; new tables of shop begin" in ended.stderr


@pytest.mark.parametrize("command", ["start", "advance", "abort"])
def test_a_migration_that_fails_midway_says_which_tables_were_moved(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """And whose new tables begin in the new phase, whichever call fails, and if the answer can't be written."""
    monkeypatch.setattr("commit_coord.cli.migrate._AGAIN", 0.0)
    line = ["migrate", command, "shop", "--wait", "3600", *(["--window", "0"] if command == "advance" else [])]
    made = moving(monkeypatch, fails_at=-1)
    told = shell(*line)
    assert told.exit_code == 0, told.output
    calls, failed = next(made.calls), set()
    for call in range(calls + 1):
        made = moving(monkeypatch, fails_at=call)
        with monkeypatch.context() as full:
            if call == calls:
                full.setattr("commit_coord.cli.migration_views.moved_table", _no_space)
            told = shell(*line)
        assert told.exit_code == ExitCode.FAILED
        failed.add(len(made.moved))
        said = f"moved before the error: {', '.join(sorted(made.moved)) or 'no table'}; "
        said += "new tables of shop begin in the new phase; " if made.defaults else ""
        assert (said in told.stderr) is bool(made.moved or made.defaults), told.stderr
    assert {0, 20} <= failed


def _no_space(*_: object) -> object:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_move_whose_outcome_is_not_known_has_an_exit_code_of_its_own(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving(monkeypatch)
    monkeypatch.setattr(
        Moving,
        "move",
        lambda _, table, *__, **___: Moved(
            table=".".join(table), before=State(phase=Phase.HMS, epoch=0), after=None, outcome=Outcome.UNKNOWN
        ),
    )
    told = shell("migrate", "start", "shop", "--json")
    assert told.exit_code == ExitCode.UNKNOWN
    assert json.loads(told.stdout)["tables"][0]["after"] is None


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize(
    "line, exits, words",
    [
        pytest.param("commits shop.nope", 1, "no table 'shop.nope'", id="unknown table"),
        pytest.param("commits sales", 1, "NAMESPACE.TABLE", id="a table without its namespace"),
        pytest.param("locks shop shop.nope", 1, "no table 'shop.nope'", id="locks of an unknown table"),
        pytest.param("locks -p lock.acquire-timeout=3", 2, "lock.acquire-timeout-ms", id="unknown property"),
        pytest.param("locks -p lock.acquire-timeout-ms=3s", 2, "whole number", id="wrong unit"),
        pytest.param("locks -p lock.policy", 2, "key=value", id="a property without a value"),
        pytest.param("locks -p lock-impl=zebra", 2, "lock-impl", id="unknown lock manager"),
        pytest.param("locks other shop.sales", 2, "two catalogs", id="two catalogs"),
        pytest.param("unlock shop/nothing --yes", 1, "no lock 'shop/nothing'", id="no such lock"),
        pytest.param("unlock // --yes", 1, "no lock '//'", id="no resource at all"),
        pytest.param("commits shop.sales --request-id 42", 1, "'42' is not known", id="a text that nobody committed"),
        pytest.param(f"commits shop.sales --request-id {uuid.UUID(int=1)}", 1, "not known to have", id="not there"),
        pytest.param("commits shop.sales -n -1", 2, "greater than or equal to 0", id="a number out of range"),
        pytest.param("commits", 2, "TABLE", id="a missing argument"),
        pytest.param(
            "repair shop.sales --from file:///no/such", 2, "can't be read", id="a lost file that is not there"
        ),
        pytest.param("orphans shop.sales --older-than soon", 2, "3d, 12h", id="no length of time"),
        pytest.param("orphans shop.sales --older-than 59m", 2, "or force", id="an age that is too short"),
        pytest.param("lokcs", 2, "lokcs", id="unknown command"),
        pytest.param("locks --verbose", 2, "--verbose", id="unknown option"),
        pytest.param("demo --folder .", 2, "not empty", id="a folder in use"),
    ],
)
def test_bad_input(shell: Shell, line: str, exits: int, words: str) -> None:
    """One clear line on stderr, the documented code; the same as JSON."""
    arguments, place = line.split(), not line.startswith(("lokcs", "demo"))
    if "--yes" not in line:
        assert words in shell.error(*arguments, place=place, exits=exits)
    result = shell(*arguments, "--json", place=place)
    error = json.loads(result.stdout)["error"]
    assert error["exit_code"] == exits == result.exit_code
    assert words in error["message"]


def test_unknown_catalog(shell: Shell) -> None:
    """The message names the catalogs that are configured."""
    (shell.folder / ".pyiceberg.yaml").write_text("catalog:\n  depot:\n    uri: coord+sqlite:////nowhere/x.db\n")
    for line in (("locks", "shop"), ("serve", "--catalog", "shop")):
        message = shell.error(*line, place=False, exits=2)
        assert "no catalog 'shop'" in message
        assert "depot" in message


def test_a_typing_error_makes_no_database(shell: Shell) -> None:
    """A SQLite file that is not there is not made."""
    assert "there is no database" in shell.error("locks", exits=2)
    assert list(shell.folder.iterdir()) == []


def test_not_a_database(shell: Shell) -> None:
    """A file that holds something else."""
    (shell.folder / "catalog.db").write_text("no database, but long enough to be looked at closely" * 40)
    assert "not a database" in shell.error("locks", exits=2)


def test_unreachable_database(shell: Shell) -> None:
    """Nobody listens there; the password is not shown."""
    uri = "coord+postgresql+psycopg://ann:hush@127.0.0.1:1/shop?connect_timeout=2"
    message = shell.error("locks", "--uri", uri, place=False, exits=3)
    assert "can't be opened" in message
    assert "hush" not in message


def test_memory_locks_are_not_visible(shell: Shell, tmp_path: Path) -> None:
    """Locks that live in another process's memory can't be listed, and it says so."""
    options = ["-p", "lock-impl=memory"]
    uri = f"coord+sqlite:///{tmp_path}/alone.db"
    (tmp_path / "alone.db").touch()
    assert "in the memory of each process" in shell.error("locks", "--uri", uri, *options, place=False, exits=1)


def test_debug_shows_the_traceback(shell: Shell) -> None:
    """Only when asked for."""
    assert "Traceback" in shell("locks", "--debug").stderr


def test_outcomes_have_their_own_codes() -> None:
    """A failure and an unknown outcome look different."""
    assert explain(LockTimeout("too late", holder="ann")).code == ExitCode.FAILED
    assert explain(CommitStateUnknown("who knows", request_id="7")).code == ExitCode.UNKNOWN
    assert explain(RuntimeError("two\nlines postgresql://ann:hush@db/x")).message.count("\n") == 0
    assert "hush" not in explain(RuntimeError("postgresql://ann:hush@db/x")).message
    assert set(MEANINGS) == set(ExitCode)


def test_demo_without_java(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install, before anything is started."""
    monkeypatch.setenv("JAVA_HOME", str(shell.folder))
    message = shell.error("demo", place=False, exits=ExitCode.MISSING)
    assert "Java 17" in message
    assert "apt-get install" in message


@pytest.mark.parametrize(
    "ends, exits",
    [
        pytest.param(True, 0, id="proved"),
        pytest.param(False, 1, id="a proof does not hold"),
        pytest.param(DemoFailed("feed-1 ended with code 1"), 3, id="a writer failed"),
        pytest.param(KeyboardInterrupt(), 130, id="interrupted"),
    ],
)
def test_demo_exit_codes(shell: Shell, monkeypatch: pytest.MonkeyPatch, ends: bool | BaseException, exits: int) -> None:
    """A script can tell how the demo ended."""

    def run(**_: Any) -> bool:
        if isinstance(ends, BaseException):
            raise ends
        return ends

    monkeypatch.setattr("commit_coord.demo.run", run)
    assert shell("demo", place=False).exit_code == exits


# -- the document ------------------------------------------------------------------------------------------


def test_a_list_of_the_commands_imports_none_of_them() -> None:
    """PyArrow, PyIceberg and SQLAlchemy take most of a second."""
    code = (
        "import sys\n"
        "from commit_coord.cli import app\n"
        "assert app(['--help'], standalone_mode=False) in (0, None)\n"
        "heavy = {'pyarrow', 'pyiceberg', 'sqlalchemy', 'kazoo', 'thrift'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)
    assert "locks" in done.stdout


@pytest.mark.parametrize(
    "code, unneeded",
    [
        (
            "from commit_coord.cli import app; app(['locks', *sys.argv[1:]], standalone_mode=False)",
            "pyarrow, kazoo, thrift, sqlalchemy.dialects.postgresql, commit_coord.catalog.hive, commit_coord.cli.tree",
        ),
        (
            "import commit_coord.cli.locks, commit_coord.catalog.hive",
            "pyarrow, jinja2, uvicorn, sqlalchemy, commit_coord.catalog.sql, commit_coord.cli.tree",
        ),
    ],
    ids=["sql", "hive"],
)
def test_locks_imports_only_what_its_catalog_needs(tmp_path: Path, code: str, unneeded: str) -> None:
    place = {"uri": f"coord+sqlite:///{tmp_path}/catalog.db", "warehouse": tmp_path.as_uri()}
    commit_coord.load_catalog("shop", **place).close()
    line = [sys.executable, "-c", f"import sys\n{code}\nprint('imported:', *sys.modules)", "-c", "shop"]
    line += [f"--{key}={value}" for key, value in place.items()]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    imported = done.stdout.split("imported: ")[1].split()
    assert "commit_coord.cli.locks" in imported
    assert [module for module in unneeded.split(", ") if module in imported] == []


def test_every_command_of_the_list_is_there() -> None:
    group: Any = get_command(app)
    assert {name: group.get_command(None, name).name for name in group.list_commands(None)} == {
        name: name for name in group.list_commands(None)
    }


def test_document_is_current() -> None:
    """``docs/cli.md`` is what the application says (else: python -m commit_coord.cli.reference > docs/cli.md)."""
    assert (ROOT / "docs" / "cli.md").read_text() == render()


def test_help_of_everything(shell: Shell) -> None:
    """Every command explains itself."""
    assert shell("--help", place=False).exit_code == 0
    for command in ("locks", "unlock", "reap", "commits", "config", "demo"):
        assert "--json" in shell(command, "--help", place=False).stdout


@pytest.mark.usefixtures("catalog")
@pytest.mark.parametrize("line", ["locks", "commits shop.sales", "config"])
def test_only_json_on_stdout(shell: Shell, line: str) -> None:
    """One document, one line, nothing else."""
    result = shell(*line.split(), "--json")
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert isinstance(json.loads(result.stdout), dict)


# A catalog on a metastore.


@pytest.fixture
def hive(shell: Shell, hms: HiveMetastore) -> Iterator[CoordinatedCatalog]:
    """A catalog on a metastore with a table of three commits, and the shell on it."""
    shell.place = ["-c", "shop", "--uri", f"coord+{hms.uri}"]
    name = f"cli{uuid.uuid4().hex}"
    catalog = commit_coord.load_catalog("shop", uri=f"coord+{hms.uri}")
    catalog.create_namespace(name)
    table = catalog.create_table((name, "sales"), pa.schema([("id", pa.int64())]))
    for number in range(3):
        table.append(pa.table({"id": [number]}))
    shell.table = f"{name}.sales"
    yield catalog
    catalog.close()


def test_the_commands_work_on_a_metastore(shell: Shell, hive: CoordinatedCatalog) -> None:
    """Locks, commits, lock and unlock, as on a database."""
    assert [c["added_rows"] for c in shell.json("commits", shell.table)["commits"]] == [1, 1, 1, 0]
    sales = Resource(tuple(shell.table.split(".")))
    with hive.lock_operation({sales: EXCLUSIVE}, statement="ALTER TABLE sales"):
        (entry,) = shell.json("locks", shell.table)["locks"]
        assert (entry["mode"], entry["owner"]["statement"]) == ("EXCLUSIVE", "ALTER TABLE sales")
        assert "ALTER TABLE sales" in shell("locks").stdout
        (freed,) = shell.json("unlock", entry["request_id"], "--yes")["freed"]
        assert freed["request_id"] == entry["request_id"]
    assert shell.json("locks", shell.table)["locks"] == []


def test_config_says_what_the_metastore_can_do(shell: Shell, hms: HiveMetastore) -> None:
    """Tried out on the server, or said to be out of reach."""
    place = ["--uri", f"coord+{hms.uri}"]
    found = shell.json("config", *place, place=False)["metastore"]
    assert (found["server"], found["compare_and_set"], found["tried"], found["locks"]) == (
        hms.uri,
        "honoured",
        True,
        True,
    )
    assert "can't overwrite another one" in shell("config", *place, place=False).stdout
    ignored = shell("config", *place, "-p", "hive.compare-and-set=ignored", place=False).stdout
    assert "as configured, not tried" in " ".join(ignored.split())
    nowhere = shell("config", "--uri", "coord+thrift://127.0.0.1:1", place=False)
    assert (nowhere.exit_code, "can't be reached" in nowhere.stdout) == (0, True)
    assert "--table" in shell.error("config", "--adopt-locks", "--yes", *place, place=False, exits=2)
    assert "can't be reached" in shell.error("locks", "--uri", "coord+thrift://127.0.0.1:1", place=False, exits=3)


def test_config_says_what_protects_a_table(shell: Shell, hive: CoordinatedCatalog, tmp_path: Path) -> None:
    """By its declaration, its guard, and what its properties tell Java."""
    shared = shell.json("config", "--table", shell.table)["table"]
    assert (shared["lock_manager"], shared["guard"], shared["lock_enabled"]) == ("hms", None, None)
    assert (shared["lock_only_writers"], shared["java_writers"]) == ("take turns", "take turns")
    assert "in turn" in " ".join(shell("config", "--table", shell.table).stdout.split())
    assert "there is no table" in shell.error("config", "--table", "no.where", exits=1)

    shell.place += ["-p", "lock-impl=lease", "-p", f"lock.uri=sqlite:///{tmp_path}/l.db"]
    assert "so it can't commit" in " ".join(shell("config", "--table", shell.table).stdout.split())
    adopt = ("config", "--adopt-locks", "--table", shell.table)
    refused = shell(*adopt, answer="n\n")
    assert (refused.exit_code, "nothing was changed" in refused.stderr) == (1, True)
    adopted = shell.json(*adopt, "--yes")
    assert (adopted["was"], adopted["is"]) == ("hms", "lease")

    guarded = shell.json("config", "--table", shell.table)["table"]
    assert (guarded["lock_manager"], guarded["lock_enabled"]) == ("lease", "false")
    assert (guarded["lock_only_writers"], guarded["java_writers"]) == ("kept out", "compare and set")
    (listed,) = shell.json("locks", shell.table)["locks"]
    assert (listed["guard"], listed["mode"], listed["scope"]) == (True, "SHARED", "commit")
    assert listed["request_id"] == guarded["guard"]["request_id"]
    assert "never (guard)" in " ".join(shell("locks", shell.table).stdout.split())
    assert "--guard" in shell.error("unlock", shell.table, "--yes", exits=1)
    (freed,) = shell.json("unlock", shell.table, "--guard", "--yes")["freed"]
    assert freed["guard"]
    alone = shell.json("config", "--table", shell.table)["table"]
    assert (alone["guard"], alone["lock_only_writers"]) == (None, "can overwrite commits")
    assert "not safe" in " ".join(shell("config", "--table", shell.table).stdout.split())

    del shell.place[-4:]
    assert shell.json(*adopt, "--yes")["was"] == "lease"
    assert shell.json("config", "--table", shell.table)["table"]["lock_enabled"] is None
    hive.load_table(shell.table).append(pa.table({"id": [3]}))


def test_config_of_a_table_is_for_metastores(shell: Shell, catalog: CoordinatedCatalog) -> None:
    """An SQL catalog compares and sets for everybody."""
    assert "for catalogs on a metastore" in shell.error("config", "--table", "shop.sales", exits=2)


# sql


@pytest.mark.usefixtures("catalog")
def test_a_statement_is_answered_as_hive_prints_it_or_as_json(shell: Shell) -> None:
    result = shell("sql", "-d", "shop", "EXPLAIN LOCKS DROP TABLE sales")
    assert (0, "LOCK INFORMATION:\nshop.sales -> EXCLUSIVE\n") == (result.exit_code, result.stdout)
    found = shell.json("sql", "-d", "shop", "EXPLAIN LOCKS SELECT * FROM sales")
    assert {"columns": ["object", "lock_type"], "rows": [{"object": "shop.sales", "lock_type": "SHARED_READ"}]} == found


@pytest.mark.usefixtures("catalog")
def test_a_script_of_statements_ends_with_the_first_error(shell: Shell) -> None:
    script = "LOCK TABLE sales\n  SHARED;\n\nSHOW LOCKS; -- held\nSHOW; UNLOCK TABLE sales;\n"
    result = shell("sql", "-d", "shop", answer=script)
    assert 2 == result.exit_code
    assert "shop@sales\tSHARED\n" in result.stdout
    assert "freed" not in result.stdout


def test_a_script_that_is_cut_off_within_a_delete_deletes_nothing(shell: Shell, catalog: CoordinatedCatalog) -> None:
    cut = shell("sql", "-d", "shop", answer="SHOW TABLES;\nDELETE FROM sales\n")
    assert (2, "sales\n") == (cut.exit_code, cut.stdout)
    assert "the last statement has no `;`, so the script may have been cut off" in cut.stderr
    assert rows_of(catalog) == 6
    assert shell("sql", "-d", "shop", "DELETE FROM sales WHERE id = 1").exit_code == 0
    assert shell("sql", "-d", "shop", answer="DELETE FROM sales WHERE id = 2; -- done").exit_code == 0
    assert rows_of(catalog) == 2


@pytest.mark.usefixtures("catalog")
def test_the_error_of_a_malformed_statement_says_where(shell: Shell) -> None:
    said = shell.error("sql", "LOCK TABLE sales SHARD", exits=2)
    assert "expected SHARED or EXCLUSIVE, found 'SHARD': position='line 1, column 18'" in said


@pytest.mark.parametrize(
    "typed, ends",
    [
        ("", True),
        ("help", True),
        ("SHOW LOCKS;", True),
        ("SHOW LOCKS; -- all", True),
        ("SHOW LOCKS; /* all */ ", True),
        ("-- nothing yet", True),
        ("SHOW LOCKS", False),
        ("SHOW LOCKS -- all;", False),
        ("SHOW LOCKS; SHOW", False),
        ("SELECT ';", False),
    ],
)
def test_enter_ends_what_has_nothing_but_comments_behind_its_last_semicolon(typed: str, ends: bool) -> None:
    assert ends == is_complete(typed)


def test_a_warning_goes_to_what_stderr_is_when_it_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a screen is drawn again and again, stderr is the program that draws it."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    before, during = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", before)
    with warnings_in_one_line():
        monkeypatch.setattr(sys, "stderr", during)
        logging.getLogger("commit_coord.locks").warning("no answer,\nasking again")
    assert ("", "no answer,; asking again\n") == (before.getvalue(), during.getvalue())


def test_the_version_is_shown() -> None:
    shown = CliRunner().invoke(app, ["--version"], prog_name="commit-coord")
    assert (0, f"commit-coord {commit_coord.__version__}\n") == (shown.exit_code, shown.stdout)


@pytest.mark.parametrize(
    "typed, completed",
    [
        ("commit-coord lo", {"locks", "local"}),
        ("commit-coord locks --wat", {"--watch"}),
        ("commit-coord local u", {"up"}),
    ],
)
def test_a_shell_completes_commands_and_options(typed: str, completed: set[str]) -> None:
    asked = {"_COMMIT_COORD_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    shown = CliRunner().invoke(app, [], prog_name="commit-coord", env=asked)
    assert completed == set(shown.stdout.split())
