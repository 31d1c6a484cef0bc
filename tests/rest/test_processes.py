"""Servers as processes: how they start, share a port, and end."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commit_coord.cli import app
from commit_coord.cli.failures import ExitCode
from commit_coord.errors import ConfigError
from commit_coord.model import Resource
from commit_coord.rest import Serving, check
from commit_coord.testing.fleet import holds_within
from tests.rest.kit import SCHEMA, ids, path_of, row_ids, served


def test_two_processes_serve_one_port_and_none_outlives_the_first() -> None:
    with served("--processes", "2") as server:
        client = server.client()
        client.create_namespace("db")
        client.create_table(("db", "t"), SCHEMA).append(ids(1))
        assert [1] == row_ids(client.load_table(("db", "t")))
        workers = _children(server.process.pid)
        assert len(workers) == 2
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        assert holds_within(lambda: not any(_runs(worker) for worker in workers), 30, every_s=0.1)


def test_a_process_that_dies_is_replaced() -> None:
    with served("--processes", "2") as server:
        server.client().create_namespace("db")
        before = _children(server.process.pid)
        os.kill(before[0], signal.SIGKILL)
        assert holds_within(lambda: len(set(_children(server.process.pid)) - set(before)) == 1, 30, every_s=0.1)
        assert 200 == server.ask("GET", "/v1/config").status


def test_a_commit_that_runs_when_the_server_is_stopped_is_finished_and_answered() -> None:
    with served() as server, server.library() as catalog:
        client = server.client()
        client.create_namespace("db")
        client.create_table(("db", "t"), SCHEMA)
        statuses: list[int] = []

        def commit() -> None:
            update = {"action": "set-properties", "updates": {"a": "1"}}
            document = {"requirements": [], "updates": [update]}
            statuses.append(server.ask("POST", path_of("db", "t"), document).status)

        committing = threading.Thread(target=commit)
        with catalog.coordinator.latch(("db", "t"), statement="in the way"):
            committing.start()
            assert holds_within(lambda: len(catalog.show_locks(Resource.table(("db", "t")))) == 2, 30, every_s=0.05)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            assert server.process.poll() is None
        committing.join()
        assert [200] == statuses
        assert 0 == server.process.wait(30)
        assert "1" == catalog.load_table(("db", "t")).properties["a"]
        assert [] == list(catalog.locks.locks())


def _children(pid: int) -> list[int]:
    """Return the processes below *pid* that serve."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=", "-o", "args=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "spawn_main" in line]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--host", "0.0.0.0"], "without authentication the server listens on loopback only"),  # noqa: S104
        (["--catalog", "unknown"], "a catalog needs a uri"),
    ],
)
def test_what_can_not_be_served_ends_with_one_line(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert ExitCode.USAGE == result.exit_code
    assert result.stderr.startswith(f"error: {reason}")
    assert 1 == result.stderr.count("\n")


def test_processes_of_one_server_share_no_lock_manager_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {
        "URI": f"coord+sqlite:///{tmp_path}/c.db",
        "WAREHOUSE": "file:///w",
        "LOCK_IMPL": "memory",
    }.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__SHOP__{key}", value)
    with pytest.raises(ConfigError, match="the `memory` lock manager serves one process alone"):
        check(Serving(catalogs=("shop",), processes=2))
