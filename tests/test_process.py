"""How a process names itself, and tells whether another one has ended."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commit_coord.process import boot, is_dead, process_name, this_owner

FORKS = """
import os
from commit_coord.process import this_owner

print(this_owner().process, flush=True)
if os.fork() == 0:
    print(this_owner().process, os.getpid(), flush=True)
    os._exit(0)
os.wait()
print(this_owner().process, flush=True)
"""

NO_DESCRIPTOR = """
import sys, resource
from commit_coord.process import is_dead, this_owner

this_owner()
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
print(is_dead(sys.argv[1]))
"""

NAMELESS = """
import resource
from commit_coord.process import this_owner

(soft, hard) = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
print(repr(this_owner().process))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(this_owner().process)
"""

NAMED = """
import ctypes, sys

ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[1]), 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def running(command_name: bytes = b"child") -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of that name until the end of the block."""
    child = subprocess.Popen(
        [sys.executable, "-c", NAMED, command_name.hex()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def printed_by(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_keeps_its_name_and_a_forked_child_has_its_own() -> None:
    """What was remembered of the parent is not the child's."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=120)
    before, child, after = done.stdout.splitlines()
    assert before == after
    name, pid = child.split()
    assert name != before
    assert name.split(":")[2] == pid
    assert is_dead(name)
    assert is_dead(before)


def test_a_live_process_is_not_dead() -> None:
    own = this_owner().process
    assert own == process_name(os.getpid())
    assert not is_dead(own)


def test_a_process_that_has_ended_is_dead_and_so_is_one_whose_pid_is_another_one_s_by_now() -> None:
    with running() as child:
        name = process_name(child.pid)
        assert name is not None
        assert not is_dead(name)
        assert is_dead(f"{name.rpartition(':')[0]}:1")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(name), "its parent has not asked for its exit code yet"
    assert is_dead(name)


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_process_that_proc_does_not_show_is_not_dead(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOENT is ``hidepid=2``, EACCES ``hidepid=1``; EMFILE and ENFILE say that no file descriptor is free."""
    with running() as child:
        name = process_name(child.pid) or ""

        def hidden(path: Path) -> bytes:
            raise OSError(error, os.strerror(error), str(path))

        def of_another_user(pid: int, signal: int) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", hidden)
            patched.setattr(Path, "read_text", hidden)
            assert not is_dead(name)
            patched.setattr(os, "kill", of_another_user)
            assert not is_dead(name)


def test_a_live_process_is_not_dead_for_one_that_has_no_free_file_descriptor() -> None:
    with running() as child:
        name = process_name(child.pid) or ""
        assert printed_by(NO_DESCRIPTOR, name) == "False"


def test_a_process_that_could_not_name_itself_for_want_of_a_file_descriptor_can_once_it_has_one() -> None:
    nameless, name = printed_by(NAMELESS).splitlines()
    assert nameless == "''"
    assert name.count(":") == 3


def test_a_command_name_is_any_bytes() -> None:
    with running(b"caf\xc3) Z 1 (\xe9") as child:
        name = process_name(child.pid)
        assert name is not None
        assert not is_dead(name)
    assert is_dead(name)


@pytest.mark.parametrize("said, name", [("5A1C-77\n", "5A1C-77"), ("", None)])
def test_a_boot_of_macos_has_the_name_that_its_kernel_gave_it(
    said: str, name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time of a boot: that moves when the clock is set. Where there is none, nothing is made up."""

    def sysctl(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-1] == "kern.bootsessionuuid"
        return subprocess.CompletedProcess(command, 0 if said else 1, stdout=said)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", sysctl)
    if name is None:
        with pytest.raises(OSError, match=re.escape("kern.bootsessionuuid")):
            boot.__wrapped__()
    else:
        assert name == boot.__wrapped__()


@pytest.mark.parametrize(
    "rest", ["", "1", "1:", ":1", "x:1", "-1:1", "0:1", "0x1:1", "\u00b2:1", f"{10**30}:1", "1:1:1"]
)
def test_nobody_has_ended_whose_name_says_no_pid_and_start_time(rest: str) -> None:
    boot, namespace, _, _ = this_owner().process.split(":")
    assert not is_dead(f"{boot}:{namespace}:{rest}")
    assert not is_dead(rest)
