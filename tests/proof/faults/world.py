"""What a run has for itself: network, mounts, memory. On Linux, as root; elsewhere cells that need it are left out."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWNET = 0x0002_0000, 0x4000_0000
"""Source: unshare(2)."""

_MEMORY = Path("/sys/fs/cgroup/memory")
"""The memory controller of control groups, version 1."""

_MEMORY_MAX = 64 * 1024 * 1024


class World:
    """Network and mount namespaces of this process and all that it starts. Call it before there are threads."""

    def __init__(self) -> None:
        self.why_not = self._leave()
        """Why there are none; "" where there are."""

    @staticmethod
    def _leave() -> str:
        if sys.platform != "linux" or os.geteuid() != 0:
            return "needs Linux and root: namespaces"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET):
            return f"needs namespaces: {os.strerror(ctypes.get_errno())}"
        try:
            _run("mount", "--make-rprivate", "/")
            _run("ip", "link", "set", "lo", "up")
            _run("iptables", "-L", "INPUT")
        except (OSError, subprocess.CalledProcessError) as error:
            return f"needs mount, ip and iptables: {error}"
        return ""

    def disk(self, path: Path, megabytes: int) -> None:
        """Mount a file system of its own at *path*, which the namespace takes along when it ends."""
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
        if not self.why_not:
            _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "commit-coord-faults", str(path))

    @staticmethod
    def drop(port: int, *, to_server: bool, to_client: bool) -> None:
        """Drop packets to or from *port*: a sender gets no answer."""
        for chosen, direction in ((to_server, "--dport"), (to_client, "--sport")):
            if chosen:
                _run("iptables", "-A", "INPUT", "-i", "lo", "-p", "tcp", direction, str(port), "-j", "DROP")

    @staticmethod
    def mend() -> None:
        """Drop nothing."""
        _run("iptables", "-F", "INPUT")


def fill(folder: Path) -> Path:
    """Leave no byte free on *folder*'s disk; return the file to delete."""
    ballast = folder / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        chunk = bytes(1 << 20)
        while True:
            file.write(chunk)
    with suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    return ballast


def memory_group() -> str:
    """Return why processes can't be put where memory is short; "" where they can, see :func:`run_out_of_memory`."""
    if not (_MEMORY / "memory.limit_in_bytes").exists() or not os.access(_MEMORY, os.W_OK):
        return "needs a writable memory control group (version 1)"
    return ""


def run_out_of_memory(name: str) -> None:
    """Take so much memory that the kernel's out-of-memory killer ends this process."""
    group = _MEMORY / f"commit-coord-faults-{name}"
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(_MEMORY_MAX))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    hoard = []
    while True:
        hoard.append(b"x" * (8 << 20))


def forget_memory_groups() -> None:
    """Remove what :func:`run_out_of_memory` made."""
    for group in _MEMORY.glob("commit-coord-faults-*"):
        with suppress(OSError):
            group.rmdir()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
