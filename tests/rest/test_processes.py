"""Servers as processes: how they start, share a port, and end."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from commit_coord.cli import app
from commit_coord.cli.exit_codes import ExitCode
from commit_coord.errors import ConfigError
from commit_coord.rest import Serving, check
from commit_coord.rest.processes import NOT_STARTED, run_processes
from commit_coord.testing.fleet import holds_within
from tests.limits import PATIENCE
from tests.processes import until
from tests.rest.asgi import configure
from tests.rest.kit import SCHEMA, ids, row_ids, served


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


def test_a_process_that_can_not_start_is_an_error_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="could not start; its log says why"):
        run_processes(2, partial(sys.exit, NOT_STARTED), patience_s=60)


def test_the_more_often_a_process_dies_the_later_it_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def wait(_: object, attempt: int, __: float) -> float:
        waits.append(attempt)
        return 0.0

    monkeypatch.setattr("commit_coord.rest.processes.next_wait", wait)

    def ended(_: int) -> None:
        if len(waits) == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    run_processes(1, partial(os._exit, 1), patience_s=60, ended=ended)
    assert [0, 1, 2, 3] == waits


def _hang(begun: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begun.touch()
    threading.Event().wait(3600)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    def stop() -> None:
        until((tmp_path / "begun").exists, "the process runs")
        os.kill(os.getpid(), signal.SIGTERM)

    others = multiprocessing.active_children()
    stopping = threading.Thread(target=stop)
    stopping.start()
    run_processes(1, partial(_hang, tmp_path / "begun"), patience_s=0.5)
    stopping.join()
    until(lambda: {*multiprocessing.active_children()} <= {*others}, "the end of the process")


def test_a_stop_that_comes_while_the_server_starts_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, tmp_path, "shop")
    code = """
import os, signal, uvicorn
from commit_coord.rest import Serving, serve
run = uvicorn.Server.run
def stopped(self, **given):
    os.kill(os.getpid(), signal.SIGTERM)
    run(self, **given)
uvicorn.Server.run = stopped
serve(Serving(catalogs=("shop",), port=0), lambda url: None)
"""
    assert 0 == subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode


def test_a_connection_stays_open_for_longer_than_those_of_usual_proxies_are_idle(tmp_path: Path) -> None:
    """For as long as the setting says, and not for uvicorn's own 5 s."""
    assert 60_000 < Serving().keep_alive_ms
    (tmp_path / "serve.toml").write_text("keep-alive-ms = 6000\n")
    with served("--config", str(tmp_path / "serve.toml")) as server:
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=PATIENCE)
        connection.request("GET", "/health")
        assert b"true" in connection.getresponse().read()
        idle_since = time.monotonic()
        assert b"" == connection.sock.recv(1), "the server ends it"
        assert 5.5 < time.monotonic() - idle_since
        connection.close()


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
        (["--catalog", "unknown"], "no catalog 'unknown' is configured"),
    ],
)
def test_what_can_not_be_served_ends_with_one_line(arguments: list[str], reason: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments], env={"PYICEBERG_CATALOG__DEFAULT__URI": "coord+sqlite://"})
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
