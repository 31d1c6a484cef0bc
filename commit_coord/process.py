"""Names this process so that another one on the same host can tell whether it is still alive."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from functools import cache
from pathlib import Path

from commit_coord.model import Owner


def process_name(pid: int) -> str | None:
    """Return ``boot-id:pid-namespace:pid:start-time`` of a live process, None when there is none with that pid.

    A pid alone is not enough: it is used again after its process ended, it means another process in
    another container, and it survives in a database when the machine was started again.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # Fields behind the command name, which may itself hold blanks and parentheses; state is the
        # first of them and the start time in clock ticks the twentieth (proc(5), field 22).
        fields = stat[stat.rindex(")") + 2 :].split()
        if fields[0] in ("Z", "X"):
            return None
        return f"{_place()}:{pid}:{fields[19]}"
    except OSError:
        return None


def is_dead(process: str) -> bool:
    """Return True only if *process* (of :func:`process_name`) ran in our reach and certainly has ended.

    False says nothing: it may run on another host or in another container.
    """
    boot, _, rest = process.partition(":")
    own_boot, _, own_namespace = _place().partition(":")
    if not rest or not own_boot:
        return False
    namespace, pid, _ = rest.split(":")
    return boot == own_boot and namespace == own_namespace and process_name(int(pid)) != process


@cache
def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def this_owner(statement: str = "", application: str = "") -> Owner:
    """Return the owner information of this process."""
    return Owner(
        user=_user(),
        host=socket.gethostname(),
        pid=os.getpid(),
        application=application or os.path.basename(sys.argv[0] or "python"),
        statement=statement,
        process=_own_name(),
    )


@cache
def _own_name() -> str:
    """Return the name of this process, which it keeps."""
    return process_name(os.getpid()) or ""


# Not by its pid alone: a descendant may get that of an ancestor that has ended.
os.register_at_fork(after_in_child=_own_name.cache_clear)


@cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a uid that has no entry in the password file.
        return str(os.getuid())
