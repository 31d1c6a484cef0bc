"""A server process ends with the process that started it, and says clearly why it did not start."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest

from commit_coord.local import HiveMetastore, LocalServer, NotInstalled, PostgresServer, ServerFailed, ZooKeeperServer
from commit_coord.local.java import find_java
from commit_coord.local.server import free_ports
from commit_coord.testing.contract import until

ECHO = """
import pathlib, socket, sys
print("hello from", sys.argv[1], flush=True)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = listener.accept()
    connection.sendall(pathlib.Path("starts").read_bytes())
    connection.close()
"""


class Echo(LocalServer):
    """A server of a few lines: it answers how often it was started."""

    name = "Echo"
    code: ClassVar[str] = ECHO

    def healthy(self) -> bool:
        return self.answer() != ""

    def answer(self) -> str:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            return connection.recv(100).decode()
        return ""

    def _prepare(self) -> None:
        with (self.folder / "starts").open("a") as starts:
            starts.write("I")

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-c", self.code, str(self.port)]


def ended(pid: int, *, within_s: float = 30) -> bool:
    """Whether the process *pid*, which need not be a child of ours, has ended or ends in time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], within_s)[0])
    finally:
        os.close(process)


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 as the kernel lists it, for IPv4 and as an IPv6 address."""


def addresses(port: int) -> set[str]:
    """Return where somebody listens at *port*, as the kernel lists it."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, at = local.partition(":")
            if state == "0A" and int(at, 16) == port:
                found.add(address)
    return found


# -- start and stop ----------------------------------------------------------------------------------------


def test_port_and_data_stay_over_a_restart(tmp_path: Path) -> None:
    """A server that was stopped, killed or restarted comes back where it was."""
    with Echo(tmp_path / "echo") as server:
        port = server.port
        server.restart()
        server.kill()
        assert not server.running
        server.start()

        assert (port, "III") == (server.port, server.answer())
    assert not server.running
    assert (tmp_path / "echo" / "starts").exists()


def test_stop_ends_the_process(tmp_path: Path) -> None:
    """Nothing is left when ``stop`` returns, also of a server that is paused; and it may be called again."""
    server = Echo(tmp_path)
    server.start()
    pid = server.pid
    server.pause()
    server.stop()
    server.stop()

    assert ended(pid, within_s=0)


def test_temporary_folder_goes_with_the_server() -> None:
    """Without a folder of the caller's, ``close`` leaves nothing."""
    with Echo() as server:
        assert server.folder.stat().st_mode & 0o077 == 0
        assert server.log.read_text().startswith("hello")
    assert not server.folder.exists()


# -- nobody left behind ------------------------------------------------------------------------------------

PARENT = """
import multiprocessing, os, signal, sys
from tests.local.test_server import Echo

server = Echo()
server.start()
server.{trouble}
print(server.pid, server.folder, flush=True)
signal.pause()
"""


def orphan(trouble: str, tmp_path: Path) -> tuple[int, Path]:
    """Start a server in another process, kill that one, and return the server's pid and folder."""
    code = textwrap.dedent(PARENT).format(trouble=trouble)
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        parent.kill()
    return int(pid), Path(folder)


@pytest.mark.parametrize("trouble", ["healthy()", "pause()"])
def test_server_ends_with_its_killed_parent(trouble: str, tmp_path: Path) -> None:
    """SIGKILL of the parent ends the server, one that is paused too, and its temporary folder goes."""
    pid, folder = orphan(trouble, tmp_path)

    assert ended(pid)
    assert gone(folder)


def test_server_ends_although_a_forked_child_lives_on(tmp_path: Path) -> None:
    """A child that the parent forked does not keep the server alive.

    1. The parent holds the pipe to the supervisor and forks: the child has a copy.
    2. The parent is killed. 3. The child lives on. 4. Without the child's closing its copy, the pipe stays open.
    """
    child = tmp_path / "child"
    forks = f"healthy() and os.fork() == 0 and (open({str(child)!r}, 'w').write(str(os.getpid())), signal.pause())"
    pid, _ = orphan(forks, tmp_path)
    try:
        assert ended(pid)
    finally:
        until(lambda: child.exists() and child.read_text(), "the child")  # it may not have run yet
        os.kill(int(child.read_text()), signal.SIGKILL)


def gone(folder: Path) -> bool:
    """Wait until the supervisor, the last of them, has removed *folder* and ended."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder) in (process / "cmdline").read_text():
                ended(int(process.name))
    return not folder.exists()


# -- what went wrong ---------------------------------------------------------------------------------------


def test_taken_port(tmp_path: Path) -> None:
    """A port that was asked for and is taken is named; nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerFailed, match=f"Echo can't start: port {port} of 127.0.0.1 is taken"):
            Echo(tmp_path, port).start()


def test_server_that_ends_while_it_starts(tmp_path: Path) -> None:
    """The message has the exit code and the end of the log, of this start only."""

    class Broken(Echo):
        code = "import sys; print('no', *sys.argv); sys.exit(7)"

    with Echo(tmp_path) as server:
        port = server.port
    with pytest.raises(ServerFailed, match="ended with code 7 while it started:\nno -c") as failed:
        Broken(tmp_path, port).start()
    assert "hello" not in str(failed.value)


def test_server_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended, and the message shows what it said."""

    class Silent(Echo):
        _start_timeout_s = 0.3
        code = "import signal; print('waiting', flush=True); signal.pause()"

    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    server = Silent(tmp_path)
    with pytest.raises(ServerFailed, match=r"did not answer within 0.3 s:\nwaiting"):
        server.start()
    assert not server.running


def test_a_server_may_take_longer_to_start_the_more_the_machine_has_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Echo):
        _start_timeout_s = 0.3
        code = "import time; time.sleep(1)\n" + Echo.code  # the subject: a server that is slow to start

    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    with Slow(tmp_path) as server:
        assert server.running


def install_java(place: Path, version: str) -> Path:
    """Put a program below *place* that says that it is Java *version*."""
    java = place / f"java-{version}" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def javas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only place where a Java can be found, except for JAVA_HOME, which has an old one."""
    old = install_java(tmp_path, "1.8.0_292")
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("commit_coord.local.java._PLACES", (str(tmp_path / "jvm"),))
    monkeypatch.setattr("commit_coord.local.java.find_spec", lambda name: None)
    return tmp_path / "jvm"


@pytest.mark.usefixtures("javas")
def test_missing_java(tmp_path: Path) -> None:
    """What is needed, what was found, what to type."""
    with pytest.raises(NotInstalled, match=r"Java 17 to 25 is needed; found: 8 \(.*/java\)\. Install one .*apt-get"):
        ZooKeeperServer(tmp_path / "zookeeper").start()


def test_java_is_chosen_by_its_version(javas: Path) -> None:
    """The first one that fits, wherever it is; one that does not start is none."""
    broken, java_17, java_21 = (install_java(javas, version) for version in ("11.0.1", "17.0.1", "21"))
    broken.write_text("no program")

    assert java_17 == find_java(range(17, 23))
    assert java_21 == find_java(range(21, 23))


def test_ports_are_no_ports_of_outgoing_connections() -> None:
    """A client that tries to reach a stopped server can't be given the server's own port."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(20)

    assert 20 == len(set(ports))
    assert all(1024 < port < lowest for port in ports)


# -- the Hive Metastore ------------------------------------------------------------------------------------


def test_a_schema_in_the_making_is_nobody_elses_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary folder, which will hold a password, is private from the first moment."""
    metastore = HiveMetastore()
    modes = []

    def look(_: object) -> None:
        modes.append(metastore.folder.stat().st_mode & 0o077)
        raise ServerFailed("far enough")

    monkeypatch.setattr(HiveMetastore, "_prepare", look)
    with pytest.raises(ServerFailed, match="far enough"), metastore:
        pass

    assert [0] == modes
    assert not metastore.folder.exists()


# -- PostgreSQL --------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_postgres_stops_although_a_session_is_open() -> None:
    """It is stopped the fast way: sessions are ended, not waited for; data and password stay."""
    import psycopg

    try:
        server = PostgresServer("fsync=off")
    except NotInstalled as missing:
        pytest.skip(str(missing))
    with server:
        assert {"0100007F"} == addresses(server.port)
        server.psql("create table t as select 1 as x")
        plain = re.sub(r"\+psycopg", "", server.url)
        with psycopg.connect(plain):
            server.restart()

        assert "1" == server.psql("select x from t")
        assert plain == re.sub(r"\+psycopg", "", server.url)
        with pytest.raises(ServerFailed, match='psql failed on postgres:\n.*relation "nothing" does not exist'):
            server.psql("select * from nothing")
