"""Writers in processes: what each start, signal, kill and log of theirs promises."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from commit_coord.testing.fleet import (
    Acknowledgement,
    CommandWriter,
    Fleet,
    ForkedWriter,
    OutcomeLog,
    Outcomes,
    PipeWriter,
    SyncedLog,
    WriterFailed,
    holds_within,
    read_outcomes,
    whole_lines,
)
from tests.limits import PATIENCE
from tests.processes import until

IDLE = [sys.executable, "-c", "import threading; threading.Event().wait(600)"]
ECHO = [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"]


@pytest.fixture
def writer() -> Iterator[CommandWriter]:
    made = CommandWriter(IDLE)
    yield made
    made.kill()


# Logs.


def test_a_line_that_a_kill_cut_off_says_nothing_and_harms_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert whole_lines(path) == []
    path.write_text("one\ntw")
    assert whole_lines(path) == ["one"]
    with SyncedLog(path) as log:
        log.line("three", 3)
    assert whole_lines(path) == ["one", "tw", "three 3"]


def test_a_log_says_what_became_of_each_operation(tmp_path: Path) -> None:
    began = time.monotonic()
    with OutcomeLog(tmp_path / "log") as log:
        for mark in ("a", "b", "c", "d", "e"):
            log.tries(mark)
        log.acknowledged("a", 7)
        log.acknowledged("b", None)
        log.refused("c", ValueError("with words"))
        log.unknown("d", OSError("with words"))
        log.failed_start(KeyError("a word"))
    found = read_outcomes(tmp_path / "log")
    at = [one.at for one in found.acknowledged.values()]
    assert began <= at[0] <= at[1] <= time.monotonic()
    assert found == Outcomes(
        tried=["a", "b", "c", "d", "e"],
        acknowledged={"a": Acknowledgement(7, at[0]), "b": Acknowledgement(None, at[1])},
        refused={"c": "ValueError"},
        unknown={"d": "OSError"},
        failed_starts=["KeyError"],
    )


# Processes.


def test_a_writer_is_stopped_goes_on_and_is_killed(writer: CommandWriter) -> None:
    assert writer.signal(signal.SIGSTOP)
    until(writer.is_stopped, "the stop")
    assert writer.signal(signal.SIGCONT)
    until(lambda: not writer.is_stopped(), "that it goes on")
    assert writer.wait(0.0) is None
    writer.kill()
    assert writer.exit_code == writer.wait() == -signal.SIGKILL
    assert not writer.signal(signal.SIGCONT)
    assert not writer.is_stopped()


def test_what_a_writer_started_is_killed_with_its_group(tmp_path: Path) -> None:
    """Also when the writer itself has ended before."""
    path = tmp_path / "pid"
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait(600)'])\n"
        f"open({str(path)!r}, 'w').write(f'{{child.pid}}\\n')"
    )
    parent = CommandWriter([sys.executable, "-c", code], own_group=True)
    assert parent.wait(PATIENCE) == 0
    child = int(path.read_text())
    os.kill(child, 0)
    parent.kill()
    until(lambda: not _runs(child), "the end of what it started")


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _forked(path: str) -> None:
    with SyncedLog(Path(path)) as log:
        log.line(os.getpid())
    threading.Event().wait(PATIENCE)


def test_a_function_is_forked_into_a_process(tmp_path: Path) -> None:
    path = tmp_path / "log"
    forked = ForkedWriter(_forked, str(path), imported=["pyarrow"])
    until(lambda: whole_lines(path), "a line")
    assert whole_lines(path) == [str(forked.pid)]
    assert forked.wait(0.0) is None
    assert forked.signal(signal.SIGKILL)
    assert forked.wait(PATIENCE) == -signal.SIGKILL
    assert not forked.signal(signal.SIGKILL)
    forked.kill()


def test_a_program_answers_each_line() -> None:
    with PipeWriter(ECHO, {"first": 1}) as writer:
        assert writer.receive(PATIENCE) == {"first": 1}
        assert writer.ask([1, "two"]) == [1, "two"]
    assert writer.exit_code == 0


def test_a_program_that_is_silent_is_killed() -> None:
    with PipeWriter([sys.executable, "-c", "import threading; threading.Event().wait(600)"], {}) as writer:
        with pytest.raises(WriterFailed, match="no answer within 0 s"):
            writer.receive(0.1)
        assert writer.exit_code == -signal.SIGKILL


def test_a_program_that_has_ended_is_reported() -> None:
    with PipeWriter([sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)"], {}) as writer:
        with pytest.raises(WriterFailed, match="status 3"):
            writer.receive(PATIENCE)
        with pytest.raises(WriterFailed, match="status 3"):
            writer.send({})


# Fleets.


def test_a_slot_has_one_writer_at_a_time() -> None:
    started: list[CommandWriter] = []

    def start(slot: str) -> CommandWriter:
        started.append(CommandWriter(IDLE))
        return started[-1]

    fleet = Fleet[str, CommandWriter](start)
    fleet.start("a", "b")
    assert "a" in fleet
    assert "c" not in fleet
    assert fleet.running() == {"a": started[0], "b": started[1]}
    with pytest.raises(AssertionError, match="one writer at a time"):
        fleet.start("a")
    fleet.replace("a")
    assert [fleet["a"], fleet["b"]] == [started[2], started[1]]
    assert started[0].exit_code == -signal.SIGKILL
    started[1].kill()
    assert fleet.exit_codes() == {"a": None, "b": -signal.SIGKILL}
    assert fleet.stop() == ["a"]
    assert fleet.running() == {}


def test_a_fleet_waits_for_writers_that_end_by_themselves() -> None:
    fleet = Fleet[str, CommandWriter](lambda _: CommandWriter(IDLE))
    fleet.start("polite")
    assert fleet.stop(PATIENCE, signal.SIGTERM) == []
    assert fleet.exit_codes() == {"polite": -signal.SIGTERM}


def test_a_fleet_kills_writers_that_do_not_end_in_time(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch(); threading.Event().wait(600)"
    )
    fleet = Fleet[str, CommandWriter](lambda _: CommandWriter([sys.executable, "-c", code]))
    fleet.start("deaf")
    until(ready.exists, "a writer that ignores the signal")
    assert fleet.stop(0.1, signal.SIGTERM) == ["deaf"]
    assert fleet.exit_codes() == {"deaf": -signal.SIGKILL}


def test_a_wait_ends_with_its_time() -> None:
    turns = iter((False, False, True))
    assert holds_within(lambda: next(turns), PATIENCE, every_s=0.0)
    assert not holds_within(lambda: False, 0.0, every_s=0.0)
