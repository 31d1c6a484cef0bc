"""How a process names itself, and tells whether another one has ended."""

from __future__ import annotations

import os
import subprocess
import sys

from commit_coord.process import is_dead, process_name, this_owner

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


def test_a_process_keeps_its_name_and_a_forked_child_has_its_own() -> None:
    """What was remembered of the parent is not the child's."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True, timeout=60)
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
