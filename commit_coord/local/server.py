"""One server process: started, watched, paused, killed, stopped, and never left behind.

Between us and the server is a supervisor, a shell of a few lines. It is the server's parent and reads a pipe whose
other end nobody but us holds. When the pipe closes, however we ended, it ends the server: politely, then by force.
There is no moment without it, because the supervisor is there before the server is.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

LOOPBACK = "127.0.0.1"

_POLL_S = 0.05
_GRACE_S = 15
"""Between asking a server to end and ending it by force."""

_LOG_TAIL_LINES = 25

_SUPERVISOR = """
log=$1 signal=$2 grace=$3 doomed=$4
shift 4
exec 3<&0
"$@" </dev/null >>"$log" 2>&1 3<&- &
server=$!
echo $server
exec >/dev/null 2>&1
gone=
trap 'gone=yes' USR1
(
    read -r _ <&3
    kill -USR1 $$
    kill -$signal $server
    kill -CONT $server
    while kill -0 $server && [ $grace -gt 0 ]; do sleep 1; grace=$((grace - 1)); done
    kill -KILL $server
) &
watch=$!
while
    wait $server
    code=$?
    kill -0 $server
do :; done
kill -KILL $watch
[ -z "$gone" ] || [ -z "$doomed" ] || rm -rf "$doomed"
exit $code
"""


class NotInstalled(RuntimeError):
    """A program or a package that is needed is missing; the message says what to install."""


class ServerFailed(RuntimeError):
    """A server did not start or did not do what it was asked to.

    Args:
        message: Why, on one line.
        log: The end of its output.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message = message
        self.log = log

    def __str__(self) -> str:
        """Return both, the log below."""
        return f"{self.message}:\n{self.log}" if self.log else self.message


class Startable(ABC):
    """What runs from the beginning of a ``with`` block to its end."""

    @abstractmethod
    def start(self) -> None:
        """Start it, on the data of an earlier run if there is any, and wait until it answers.

        Raises:
            NotInstalled: Something that it needs is missing.
            ServerFailed: It did not come up.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop it, and remove its data if they are temporary. May be called again."""

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.close()


class Server(Startable):
    """The verbs of a server, native or in a container."""

    name: str
    """What it is, with its version, for people."""
    port: int
    """Where it listens, on loopback."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether its process is alive; it may be paused."""

    @abstractmethod
    def launch(self) -> None:
        """Start it without waiting until it answers; for servers that need each other."""

    @abstractmethod
    def await_ready(self) -> None:
        """Return when it answers.

        Raises:
            ServerFailed: It ended, or did not answer in time.
        """

    @abstractmethod
    def healthy(self) -> bool:
        """Whether it answers as it should, now."""

    @abstractmethod
    def stop(self) -> None:
        """Stop it as its operator would and keep its data. It may be stopped already."""

    @abstractmethod
    def kill(self) -> None:
        """End it as ``kill -9`` does."""

    @abstractmethod
    def pause(self) -> None:
        """Stop the process: connections stay open, requests get no answer."""

    @abstractmethod
    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""

    def start(self) -> None:
        """See :meth:`Startable.start`."""
        self.launch()
        self.await_ready()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()


def by_load(seconds: float) -> float:
    """Return how long what takes *seconds* at most on an idle machine may take on this one, as busy as it is now."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


def _is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is stopped or has ended; True where the system does not say."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            states.append(stat.read_bytes().rpartition(b") ")[2][:1])
    return all(state in (b"T", b"t", b"Z", b"X") for state in states)


class LocalServer(Server):
    """A server on a loopback port, with its files in a folder. Leaves both alone when it is stopped and started again.

    Args:
        folder: Where its files are; made when it is not there. Without one, a temporary folder, which :meth:`close`
            removes, as does the end of this process.
        port: Where it listens. Without one, a free port is chosen, and kept.
    """

    _start_timeout_s: ClassVar[float] = 60
    _stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path | None = None, port: int | None = None) -> None:
        self.folder = (folder or Path(tempfile.gettempdir(), f"commit-coord-{secrets.token_hex(8)}")).absolute()
        self.port = port or free_ports(1)[0]
        self._temporary = folder is None
        self._process: _Process | None = None

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """The server's process id while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is alive; it may be paused."""
        return self._process is not None and self._process.code() is None

    @property
    def failure(self) -> str:
        """The end of what the log says since the last start."""
        return "" if self._process is None else self._process.log_tail()

    def launch(self) -> None:
        """Start it without waiting until it answers; for servers that need each other.

        Raises:
            NotInstalled: Something that it needs is missing.
            ServerFailed: The port is taken.
        """
        assert not self.running
        self._make_folder()
        self._prepare()
        self._launch()

    def await_ready(self) -> None:
        """Return when it answers.

        Raises:
            ServerFailed: It ended, or did not answer in time and was ended.
        """
        assert self._process is not None
        began = time.monotonic()
        while not self.healthy():
            code = self._process.code()
            if code is not None:
                self.kill()
                raise ServerFailed(f"{self.name} ended with code {code} while it started", self.failure)
            if time.monotonic() - began > (limit_s := by_load(self._start_timeout_s)):
                self.kill()
                raise ServerFailed(f"{self.name} did not answer within {limit_s:.3g} s", self.failure)
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop it as its operator would and keep its data. It may be stopped already."""
        if self._process is not None:
            self._process.end(self._stop_signal)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self._process is not None:
            self._process.end(signal.SIGKILL)

    def pause(self) -> None:
        """Stop the process (SIGSTOP): connections stay open, requests get no answer."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine its threads go on, and answer, until one of them has had the processor and taken the signal.
        while not _is_stopped(self.pid):
            time.sleep(_POLL_S)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it, and remove its folder if that is temporary. May be called again."""
        self.stop()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700 if self._temporary else 0o777, parents=True, exist_ok=True)

    @abstractmethod
    def _prepare(self) -> None:
        """Write whatever files it needs; called before every start."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Return what starts it."""

    def _user(self) -> str | None:
        """Return the user that it runs as, None for our own."""
        return None

    def _launch(self) -> None:
        if not _is_free(self.port):
            raise ServerFailed(f"{self.name} can't start: port {self.port} of {LOOPBACK} is taken")
        self._process = _Process(
            self._command(),
            folder=self.folder,
            log=self.log,
            stop_signal=self._stop_signal,
            user=self._user(),
            doomed=self.folder if self._temporary else None,
        )


class _Process:
    """A process below a supervisor. See the module's text.

    Args:
        command: What starts it.
        folder: Where it starts.
        log: Where its output is appended.
        stop_signal: What asks it to end.
        user: Who runs it, None for ourselves.
        doomed: What is removed if we end without having ended it.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path,
        log: Path,
        stop_signal: signal.Signals,
        user: str | None,
        doomed: Path | None,
    ) -> None:
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._supervisor = subprocess.Popen(
            [
                *("/bin/sh", "-c", _SUPERVISOR, "supervisor"),
                *(str(log), stop_signal.name.removeprefix("SIG"), str(_GRACE_S), str(doomed or "")),
                *command,
            ],
            cwd=folder,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is for us, who then stop the server
        )
        _supervisors.add(self._supervisor)
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as output:
            self.pid = int(output.readline())

    def code(self) -> int | None:
        """How it ended, None while it lives."""
        return self._supervisor.poll()

    def end(self, how: signal.Signals) -> None:
        """End it; by force if it takes too long. Returns when it is gone."""
        with suppress(ProcessLookupError):
            if self.code() is None:
                os.kill(self.pid, how)
                os.kill(self.pid, signal.SIGCONT)  # a stopped process does not handle signals
        assert self._supervisor.stdin is not None
        try:
            self._supervisor.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._supervisor.wait()
        self._supervisor.stdin.close()
        _supervisors.discard(self._supervisor)

    def log_tail(self) -> str:
        """The end of its output."""
        with suppress(FileNotFoundError), self._log.open("rb") as log:
            log.seek(self._log_start)
            return "\n".join(log.read().decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
        return ""


_supervisors: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def _close_pipes() -> None:
    """Close our copies of the pipes in a forked child: it may outlive us, and the servers shall not."""
    for supervisor in list(_supervisors):
        assert supervisor.stdin is not None
        supervisor.stdin.close()


os.register_at_fork(after_in_child=_close_pipes)


def free_port(preferred: int) -> int:
    """Return *preferred*, if that is a free loopback port, else another one."""
    return preferred if _is_free(preferred) else free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different free loopback ports, outside of the range that the system gives to outgoing connections.

    From inside that range a client that tries to reach a stopped server could be given the server's own port:
    it would then talk to itself, and the server could not start again.
    """
    above = _first_ephemeral_port()
    candidates = random.sample(range(above - 20_000, above), 20_000)
    return list(islice(filter(_is_free, candidates), count))


def _first_ephemeral_port() -> int:
    try:
        return max(22_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    except OSError:
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what lingers is no obstacle
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
