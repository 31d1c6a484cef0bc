"""What only native servers can do wrong: outlive their parent, meet a taken port, miss their Java."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commit_coord.local import HiveMetastore, NotInstalled, ServerFailed
from commit_coord.local.hms import VERSIONS
from tests.local.test_server import LOOPBACK, addresses, ended

pytestmark = pytest.mark.hms

PARENT = """
import signal, sys
from pathlib import Path
from commit_coord.local import HiveMetastore, PostgresServer

folder, version = sys.argv[1:]
with PostgresServer("fsync=off") as postgres:
    metastore = HiveMetastore(Path(folder), version, postgres=postgres)
    metastore.start()
    print(metastore.port, metastore.pid, postgres.pid, flush=True)
    signal.pause()
"""


@pytest.mark.postgres
@pytest.mark.parametrize("version", VERSIONS)
def test_metastore_is_on_loopback_and_ends_with_its_killed_parent(version: str, tmp_path: Path) -> None:
    """No other machine reaches it; SIGKILL of the process that started it ends it, and the PostgreSQL below it."""
    line = [sys.executable, "-c", PARENT, str(tmp_path), version]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port, *pids = (int(word) for word in parent.stdout.readline().split())
        listens = addresses(port)
        parent.kill()

    assert listens in [{address} for address in LOOPBACK]
    assert 2 == len(pids)
    assert all(ended(pid) for pid in pids)


@pytest.mark.parametrize("version", VERSIONS)
def test_taken_port(version: str, tmp_path: Path) -> None:
    """It is named before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "schema").touch()  # as if there had been an earlier run
        with pytest.raises(ServerFailed, match=f"{version} on Derby can't start: port {port} of 127.0.0.1 is taken"):
            HiveMetastore(tmp_path, version, port).start()


@pytest.mark.parametrize("version", VERSIONS)
def test_missing_java(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which versions would do."""
    monkeypatch.setattr("commit_coord.local.java._programs", lambda: iter(()))
    lowest = 21 if version == "4.2.0" else 17

    with pytest.raises(NotInstalled, match=f"Java {lowest} to 22 is needed; found: none. Install one"):
        HiveMetastore(tmp_path / "hms", version).start()
