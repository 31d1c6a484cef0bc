"""Keeps a stack of servers up until it is stopped, in a process of its own or in the caller's.

The process that keeps a folder's stack holds a lock on the folder's file ``keeper``, which the system takes away from
it when it ends, however it ends; the servers then end too. ``state.json`` in the same folder says what is up.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commit_coord.errors import ConfigError
from commit_coord.local import hms, postgres, zookeeper
from commit_coord.local.server import LocalServer, NotInstalled, ServerFailed
from commit_coord.local.stack import Stack, Wanted
from commit_coord.process import process_name

_PATIENCE_S = 90
"""For a keeper that was asked to stop: its servers have as long as they may take to stop, one after the other."""


class NotUp(LookupError):
    """No stack is up in this folder."""


class AlreadyUp(RuntimeError):
    """A stack is up in this folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A server that is up, or was when its stack came up.

    Args:
        kind: ``hms``, ``zookeeper`` or ``postgres``.
        name: For people.
        address: Where clients connect.
        port: Where it listens.
        pid: Its process id.
        folder: Its files.
        log: What it says.
    """

    kind: str
    name: str
    address: str
    port: int
    pid: int
    folder: str
    log: str

    def healthy(self) -> bool:
        """Whether it answers."""
        match self.kind:
            case "hms":
                return hms.answers(self.port)
            case "zookeeper":
                return zookeeper.mode(self.port) != ""
            case _:
                return process_name(self.pid) is not None and postgres.takes_connections(Path(self.folder), self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack that is up.

    Args:
        folder: Where everything is.
        temporary: The folder goes when the stack goes.
        configuration: PyIceberg's configuration file.
        properties: The catalog's.
        servers: All of them, in the order in which they were started.
    """

    folder: str
    temporary: bool
    configuration: str
    properties: dict[str, str]
    servers: list[Up]


def default_folder() -> Path:
    """Return the temporary folder of this user's stack; it need not be there.

    Raises:
        ConfigError: There are other files.
    """
    folder = Path(tempfile.gettempdir()) / f"commit-coord-local-{os.getuid()}"
    if folder.is_symlink() or (folder.exists() and (folder.stat().st_uid != os.getuid() or not folder.is_dir())):
        raise ConfigError("another user owns the temporary folder", folder=folder, accepted="--folder FOLDER")
    return folder


# -- from outside ------------------------------------------------------------------------------------------


def up(folder: Path, wanted: Wanted, *, temporary: bool, say: Callable[[str], None]) -> StackState:
    """Start a keeper for *folder* and return when its stack is up. If this process ends before, so does the keeper.

    Raises:
        AlreadyUp: A stack is up there.
        ConfigError: The version is unknown, or jars could not be fetched.
        NotInstalled: Something is missing.
        ServerFailed: A server did not come up; nothing is left running.
    """
    _make(folder)
    spec = json.dumps({"folder": str(folder.absolute()), "temporary": temporary, "wanted": asdict(wanted)})
    with (folder / "keeper.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "commit_coord.local.keeper", spec],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    with keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        for line in keeper.stdout:
            message = json.loads(line)
            if "say" in message:
                say(message["say"])
            elif "error" in message:
                raise _ERRORS[message["error"]](*message["arguments"])
            else:
                state = status(folder)
                keeper.stdin.write("go\n")
                keeper.stdin.flush()
                keeper.returncode = 0  # it lives on, and nothing waits for it
                return state
    raise ServerFailed("the supervisor ended while the servers started", (folder / "keeper.log").read_text()[-2000:])


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)  # PostgreSQL may run as another user, who must get through


def status(folder: Path) -> StackState:
    """Return what is up in *folder*.

    Raises:
        NotUp: Nothing.
    """
    _keeper_pid(folder)
    try:
        found = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        raise NotUp(f"the servers in {folder} are still starting or already stopping") from None
    return StackState(**{**found, "servers": [Up(**server) for server in found["servers"]]})


def down(folder: Path) -> None:
    """Stop what is up in *folder*; return when it is gone.

    Raises:
        NotUp: Nothing is up there.
        ServerFailed: It did not stop in time.
    """
    os.kill(_keeper_pid(folder), signal.SIGTERM)
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        try:
            _keeper_pid(folder)
        except NotUp:
            return
        time.sleep(0.05)
    raise ServerFailed(f"the servers in {folder} did not stop within {_PATIENCE_S} s")


def _keeper_pid(folder: Path) -> int:
    """Return the process id of the keeper, which is alive because it holds the lock."""
    try:
        with (folder / "keeper").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())
    except (FileNotFoundError, ValueError):
        pass  # ValueError: it has the lock and has not written yet, so nothing is up
    raise NotUp(f"nothing is up in {folder}; `commit-coord local up` starts servers")


# -- the keeper --------------------------------------------------------------------------------------------


@contextmanager
def keep(folder: Path, wanted: Wanted, *, temporary: bool, say: Callable[[str], None]) -> Iterator[StackState]:
    """Have a stack up in *folder* inside of the ``with`` block.

    Raises:
        AlreadyUp: A stack is up there.
        ConfigError: The version is unknown, or jars could not be fetched.
        NotInstalled: Something is missing.
        ServerFailed: A server did not come up.
    """
    _make(folder)
    with (folder / "keeper").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyUp(f"servers are already up in {folder}: `commit-coord local status` shows them") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        state_file = folder / "state.json"
        try:
            with Stack(folder, wanted) as stack:
                stack.start(say)
                state = _state(stack, temporary=temporary)
                state_file.write_text(json.dumps(asdict(state), indent=1))
                yield state
        finally:
            state_file.unlink(missing_ok=True)
            if temporary:
                shutil.rmtree(folder, ignore_errors=True)


def _state(stack: Stack, *, temporary: bool) -> StackState:
    return StackState(
        folder=str(stack.folder),
        temporary=temporary,
        configuration=str(stack.configuration),
        properties=stack.properties,
        servers=[_up(server) for server in stack.servers],
    )


def _up(server: LocalServer) -> Up:
    match server:
        case hms.HiveMetastore():
            kind, address = "hms", server.uri
        case zookeeper.ZooKeeperServer():
            kind, address = "zookeeper", server.connect_string
        case _:
            kind, address = "postgres", f"127.0.0.1:{server.port}"
    return Up(
        kind=kind,
        name=server.name,
        address=address,
        port=server.port,
        pid=server.pid,
        folder=str(server.folder),
        log=str(server.log),
    )


_ERRORS: dict[str, type[Exception]] = {
    cls.__name__: cls for cls in (AlreadyUp, ConfigError, NotInstalled, ServerFailed)
}


def await_end(announce: Callable[[], None]) -> None:
    """Announce that all servers are up, and return on SIGTERM or Ctrl-C; block both signals before the announcement.

    Args:
        announce: Called when we may be ended. 1. It tells. 2. The signal comes at once. 3. We wait for it. Were it
            not held back before step 1, it would end us instead, and nothing would be put in order.
    """
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    announce()
    signal.sigwait(ends)


def main(spec: dict[str, Any]) -> None:
    """Keep the stack of *spec* up until SIGTERM; tell the parent, a JSON document a line, how it comes along."""

    def tell(**document: Any) -> None:
        print(json.dumps(document), flush=True)

    def watch_parent() -> None:
        if sys.stdin.readline() == "":  # it ended before it knew that the stack is up
            os.kill(os.getpid(), signal.SIGTERM)

    def end(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=watch_parent, daemon=True).start()
    try:
        with keep(
            Path(spec["folder"]), Wanted(**spec["wanted"]), temporary=spec["temporary"], say=lambda text: tell(say=text)
        ):
            await_end(lambda: tell(up=True))
    except tuple(_ERRORS.values()) as error:
        # A ConfigError's facts are no arguments of it; its text has them.
        tell(error=type(error).__name__, arguments=[str(error)] if isinstance(error, ConfigError) else error.args)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
