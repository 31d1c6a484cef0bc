"""Names this process so that another one on the same host can tell whether it is still alive.

:class:`Host` is what the rest of the package asks, so that a test or a simulator can replace it as it does the clock.
"""

from __future__ import annotations

import functools
import getpass
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from commit_coord.model import LockEntry, Owner


class Host(Protocol):
    """The host on which this process runs."""

    def owner(self, statement: str = "", application: str = "") -> Owner:
        """Return the owner information of this process; see :func:`this_owner`."""
        ...

    def is_dead(self, process: str) -> bool:
        """Return True only if *process* ran in our reach and certainly has ended; see :func:`is_dead`."""
        ...

    def new_id(self) -> uuid.UUID:
        """Return an id that nobody else has or can guess."""
        ...


class SystemHost:
    """The machine."""

    def owner(self, statement: str = "", application: str = "") -> Owner:
        """See :func:`this_owner`."""
        return this_owner(statement, application)

    def is_dead(self, process: str) -> bool:
        """See :func:`is_dead`."""
        return is_dead(process)

    def new_id(self) -> uuid.UUID:
        """Return a random UUID."""
        return uuid.uuid4()


SYSTEM_HOST = SystemHost()


class _OnBehalf:
    """A host whose processes name another user: the person who asked for what they do."""

    def __init__(self, user: str, host: Host) -> None:
        self._user, self._host = user, host
        self.is_dead, self.new_id = host.is_dead, host.new_id

    def owner(self, statement: str = "", application: str = "") -> Owner:
        return replace(self._host.owner(statement, application), user=_text(self._user))


def on_behalf_of(user: str, host: Host = SYSTEM_HOST) -> Host:
    """Return *host* with owners that name *user*; "" returns *host*."""
    return _OnBehalf(user, host) if user else host


@cache
def boot() -> str:
    """Return the name of this boot of the machine; all containers on it have the same.

    Raises:
        OSError: It can't be read, as by a process that has no free file descriptor or sees no ``/proc``.
    """
    if sys.platform == "darwin":
        # Not kern.boottime: that moves when the clock is set.
        asked = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        name = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip()
        if not name:
            raise OSError("sysctl does not tell kern.bootsessionuuid")
        return name
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@cache
def boottime_ahead_ms() -> int:
    """Return by how many milliseconds this process's CLOCK_BOOTTIME is ahead of the machine's.

    Each time namespace has an offset of its own (time_namespaces(7)), and containers may be in different ones.

    Raises:
        OSError: It can't be read; see :func:`boot`.
    """
    with suppress(FileNotFoundError):  # macOS, and Linux before 5.6, have no time namespaces
        own, of_children = (Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("time", "time_for_children"))
        if own == _FIRST_TIME_NAMESPACE:
            return 0
        if own != of_children:
            raise OSError("the offset of this time namespace can't be read, only that of the next one")
        return boottime_offset_ms(Path("/proc/self/timens_offsets").read_text())
    return 0


def boottime_offset_ms(offsets: str) -> int:
    """Return the offset of CLOCK_BOOTTIME in the text of ``/proc/PID/timens_offsets``."""
    for line in offsets.splitlines():
        name, seconds, nanoseconds = line.split()
        if name in ("boottime", str(_CLOCK_BOOTTIME)):  # Linux 5.6 says the number
            return int(seconds) * 1000 + int(nanoseconds) // 1_000_000
    return 0


_CLOCK_BOOTTIME = 7
"""Source: Linux ``CLOCK_BOOTTIME``."""


def process_name(pid: int) -> str | None:
    """Return ``boot-id:pid-namespace:pid:start-time`` of a live process, None when it has ended or can't be seen.

    A pid alone is not enough: it is used again after its process ended, it means another process in
    another container, and it survives in a database when the machine was started again.
    """
    try:
        state, started = _state(pid)
    except OSError:
        return None
    return None if state in _ENDED else f"{_place()}:{pid}:{started}"


def is_dead(process: str) -> bool:
    """Return True only if *process* (of :func:`process_name`) ran in our reach and certainly has ended.

    False proves nothing: the process may run on another host or in another container, or be hidden. A process that
    can't be seen may still run: ``/proc`` hides processes of other users under ``hidepid`` and systemd's
    ``ProtectProc``, and a caller without a free file descriptor can read nothing.
    """
    place, _, rest = process.partition(":")
    namespace, _, rest = rest.partition(":")
    number, _, start = rest.partition(":")
    if not number.isdecimal() or not start.isdecimal() or f"{place}:{namespace}" != _place():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError) as error:  # PermissionError: it runs, as another user.
        if is_of_signal_handler(error):
            raise
    try:
        state, started = _state(int(number))
    except OSError as error:
        if is_of_signal_handler(error):
            raise
        return False
    return state in _ENDED or started != start


def is_of_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler of this process has raised *error*: it ends the work of the caller.

    A handler may raise TimeoutError or another OSError at any line, also where such an error of the system is expected.
    One that sets another handler before it raises is not recognized.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # Python runs handlers there alone.
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def raise_of_signal_handler(error: BaseException) -> None:
    """Return if *error*, of a library, was not raised because of an error of a signal handler; else raise that one."""
    at: BaseException | None = error
    while at is not None:
        if is_of_signal_handler(at):
            raise at
        at = at.__cause__ or at.__context__


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = handler.__call__
    return getattr(handler, "__code__", None)


def has_dead_owner(entry: LockEntry, ended: Callable[[str], bool] = is_dead) -> bool:
    """Return whether the owner of *entry* is dead: its process has *ended*, or its lease is over.

    A lock without a lease, of a LOCK statement that was granted or a guard, outlives its process.
    """
    over = entry.expires_in_ms is not None and entry.expires_in_ms <= 0
    return not entry.is_endless and (over or ended(entry.owner.process))


_ENDED = ("Z", "X")
"""The states of a process that has ended, and whose parent has not asked for its exit code."""


def _state(pid: int) -> tuple[str, str]:
    """Return the state of a process and when it started, in clock ticks since the machine did.

    Raises:
        OSError: It can't be seen: there is none, it is hidden, or the caller has no free file descriptor.
    """
    # Bytes: a command name is whatever its process made of it. It may hold blanks and parentheses too; behind it the
    # state is the first field and the start time the twentieth (proc(5), fields 3 and 22).
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    if len(fields) < 20:
        raise ProcessLookupError(f"/proc/{pid}/stat has no start time")
    return fields[0].decode(), fields[19].decode()


def _place() -> str:
    """Return the boot and the pid namespace of this process; empty where the system does not say."""
    try:
        return _known_place()
    except OSError:
        return ""


@cache
def _known_place() -> str:
    namespace = str(Path("/proc/self/ns/pid").stat().st_ino)
    # Start times are those of the reader's time namespace, so processes of two of them can't compare any.
    with suppress(FileNotFoundError):  # Linux before 5.6 has none
        own_time = Path("/proc/self/ns/time").stat().st_ino
        namespace += "" if own_time == _FIRST_TIME_NAMESPACE else f".{own_time}"
    return f"{boot()}:{namespace}"


_FIRST_TIME_NAMESPACE = 0xEFFFFFFA
"""Source: Linux ``PROC_TIME_INIT_INO``."""


def this_owner(statement: str = "", application: str = "") -> Owner:
    """Return the owner information of this process."""
    return Owner(
        user=_text(_user()),
        host=_text(socket.gethostname()),
        pid=os.getpid(),
        application=_text(application or os.path.basename(sys.argv[0] or "python")),
        statement=_text(statement),
        process=_own_name(),
    )


def _text(text: str) -> str:
    """Return *text* as every service can store it: the name of a program may be any bytes, a statement any string."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def _own_name() -> str:
    """Return the name of this process, which it keeps; empty where it can't be found out now."""
    try:
        return _known_own_name()
    except OSError:
        return ""


@cache
def _known_own_name() -> str:
    return f"{_known_place()}:{os.getpid()}:{_state(os.getpid())[1]}"


# Not by its pid alone: a descendant may get that of an ancestor that has ended.
os.register_at_fork(after_in_child=_known_own_name.cache_clear)
# A child may be the first process of a pid namespace of its own.
os.register_at_fork(after_in_child=_known_place.cache_clear)


@cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a uid that has no entry in the password file.
        return str(os.getuid())
