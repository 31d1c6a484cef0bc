"""What a run could not test, its end says: also where the tests run in several processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = """
import pytest
from commit_coord.testing.servers import running, untested
from commit_coord.local import NotInstalled

class Absent:
    def start(self):
        raise NotInstalled("it is not installed")

@pytest.fixture
def server():
    yield from running("a server", Absent)

@pytest.mark.skipif(True, reason=untested("a program", "there is none"))
def test_program(): ...

def test_server(server): ...

@pytest.mark.skip(reason="another reason")
def test_other(): ...
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_end_of_a_run_says_what_it_did_not_test(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    plugin = "commit_coord.testing.servers"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", processes, "-p", plugin, "test_skipped.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip().split("\n")[-3:-1] == [
        "NOT TESTED: a program, because there is none",
        "NOT TESTED: everything on a server, because it is not installed",
    ], done.stdout + done.stderr
