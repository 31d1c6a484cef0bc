"""``commit-coord local``: servers that stay up until they are stopped, and not longer than their keeper."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.utils.config import Config
from typer.testing import CliRunner

from commit_coord.cli import app
from commit_coord.cli.exit_codes import ExitCode
from tests import limits
from tests.local.test_server import ended


def run(*arguments: str, exits: int = 0) -> Any:
    """Return the result of ``commit-coord local``."""
    result = CliRunner().invoke(app, ["local", *arguments], prog_name="commit-coord")
    assert result.exit_code == exits, result.output
    assert "Traceback" not in result.output
    return result


def document(*arguments: str, exits: int = 0) -> Any:
    """Return what ``commit-coord local`` prints with ``--json``: one line, nothing else."""
    stdout = run(*arguments, "--json", exits=exits).stdout
    assert 1 == stdout.count("\n")
    return json.loads(stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for servers; whatever is up there in the end goes down."""
    yield tmp_path / "servers"
    CliRunner().invoke(app, ["local", "down", "--folder", str(tmp_path / "servers")])


@pytest.fixture
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary folders of a user who has none yet."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


# -- up, status, logs, down --------------------------------------------------------------------------------


@pytest.mark.hms
@pytest.mark.zookeeper
def test_a_day_of_servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up; status, logs and the configuration are right; up again is refused; one falls; down; nothing is left."""
    place = ("--folder", str(folder))
    with socket.socket() as taken:  # ports that everybody knows may be taken: others are chosen
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr("commit_coord.local.stack._HMS_PORT", taken.getsockname()[1])
        up = document("up", *place)
    kinds = {server["kind"]: server for server in up["servers"]}
    assert {"hms", "zookeeper"} == set(kinds)
    assert all(server["healthy"] for server in up["servers"])
    assert not up["temporary"]

    monkeypatch.setenv("PYICEBERG_HOME", str(folder))
    assert f"export PYICEBERG_HOME={folder}" == up["use"]
    properties: Any = Config().get_catalog_config("local")
    assert up["properties"] == properties
    assert f"coord+{kinds['hms']['address']}" == properties["uri"]
    assert ("zookeeper", kinds["zookeeper"]["address"]) == (properties["lock-impl"], properties["lock.uri"])

    assert up == document("status", *place)
    assert re.search(rf"ZooKeeper +{kinds['zookeeper']['address']} +\d+ +yes", run("status", *place).stdout)
    assert "== ZooKeeper" in run("logs", "zookeeper", *place).stdout
    assert "Hive Metastore" not in run("logs", "zookeeper", *place).stdout
    assert [1, 1] == [len(log["lines"]) for log in document("logs", "-n", "1", *place)["logs"]]
    assert "there is no 'postgres'; up are: hms, zookeeper" in run("logs", "postgres", *place, exits=1).stderr
    assert "already up" in run("up", *place, exits=ExitCode.REFUSED).stderr

    os.kill(kinds["zookeeper"]["pid"], signal.SIGKILL)
    assert ended(kinds["zookeeper"]["pid"])
    status = document("status", *place, exits=ExitCode.FAILED)
    assert {"zookeeper": False, "hms": True} == {server["kind"]: server["healthy"] for server in status["servers"]}

    assert {"stopped": ["ZooKeeper", "Hive Metastore 2.3.10 on Derby"], "folder": str(folder)} == document(
        "down", *place
    )
    assert ended(kinds["hms"]["pid"], within_s=0)
    assert (folder / "hms-2.3.10-derby" / "metastore_db").exists()
    assert "nothing is up" in run("status", *place, exits=ExitCode.REFUSED).stderr


@pytest.mark.hms
@pytest.mark.slow
def test_servers_end_with_their_killed_keeper(folder: Path) -> None:
    """SIGKILL of the keeper: its servers end, and the folder can be used again, with what is in it."""
    place = ("--folder", str(folder), "--zookeeper", "0")
    up = document("up", *place)
    os.kill(int((folder / "keeper").read_text()), signal.SIGKILL)

    assert all(ended(server["pid"]) for server in up["servers"])
    assert "nothing is up" in run("status", *place[:2], exits=ExitCode.REFUSED).stderr
    assert "hms" == document("up", *place)["properties"]["lock-impl"]


def test_a_signal_right_after_the_announcement_is_waited_for() -> None:
    """A user who reads that all is up may end it at once: that ends it in order."""
    code = "import os, signal; from commit_coord.local import keeper; "
    code += "keeper.await_end(lambda: os.kill(os.getpid(), signal.SIGTERM)); print('in order')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)

    assert (0, "in order\n") == (done.returncode, done.stdout)


@pytest.mark.hms
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_of_an_interrupted_start(folder: Path, how: signal.Signals) -> None:
    """When ``up`` dies or is interrupted while the servers start, its keeper and they end."""
    line = [sys.executable, "-m", "commit_coord.cli", "local", "up", "--folder", str(folder)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as up:
        assert up.stderr is not None
        said = next(line for line in up.stderr if "Hive Metastore" in line)  # ZooKeeper is up
        keeper = int((folder / "keeper").read_text())
        up.send_signal(how)

    assert "starting Hive Metastore" in said
    assert ended(keeper, within_s=60)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        assert str(folder).encode() not in process.read_bytes()


@pytest.mark.hms
@pytest.mark.slow
@pytest.mark.postgres
def test_foreground_and_temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the foreground SIGTERM stops it; a temporary folder goes; HMS on PostgreSQL, which may run as another user."""
    monkeypatch.setenv("TMPDIR", "/tmp")
    line = [sys.executable, "-m", "commit_coord.cli", "local", "up", "--postgres", "--foreground", "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        state = json.loads(up.stdout.readline())
        up.terminate()
        assert 0 == up.wait(limits.PATIENCE)

    assert ["postgres", "zookeeper", "hms"] == [server["kind"] for server in state["servers"]]
    assert all(server["healthy"] for server in state["servers"])
    assert all(ended(server["pid"], within_s=0) for server in state["servers"])
    assert not Path(state["folder"]).exists()


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_nowhere")
@pytest.mark.parametrize(
    "line, exits, words",
    [
        pytest.param("up --hms 9.9", 2, "version='9.9', accepted='2.3.10, 3.1.3, 4.0.1", id="unknown version"),
        pytest.param("up --zookeeper 2", 2, "accepted='0, 1, 3 or 5'", id="invalid number of ZooKeeper servers"),
        pytest.param("up --hms 4.0.1", 2, "accepted='--postgres, or another version'", id="4.0.1 on Derby"),
        pytest.param("up --folder /dev/null", 2, "the folder is a file", id="a file"),
        pytest.param("status", 1, "nothing is up in", id="status of nothing"),
        pytest.param("logs", 1, "nothing is up in", id="logs of nothing"),
        pytest.param("down", 1, "nothing is up in", id="nothing to stop"),
        pytest.param("", 2, "Usage", id="no command"),
    ],
)
def test_bad_input(line: str, exits: int, words: str) -> None:
    """One clear line, the documented code."""
    assert words in run(*line.split(), exits=exits).output


NO_JAVA = """#!{python}
import json, os, sys
from commit_coord.local import java, keeper
os.environ |= {{"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}}
java._PLACES, java.find_spec = (), lambda name: None
keeper.main(json.loads(sys.argv[-1]))
"""


def test_missing_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install, and nothing is left."""
    python = folder.parent / "python"
    python.write_text(NO_JAVA.format(python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    message = run("up", "--folder", str(folder), exits=ExitCode.MISSING).stderr

    assert "Java 17 to" in message
    assert "apt-get install" in message
    assert "nothing is up" in run("status", "--folder", str(folder), exits=ExitCode.REFUSED).stderr
