"""A heartbeat that is believed to run runs, whatever happened to it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from commit_coord.locks.base import LockSettings
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.zookeeper.manager import ZooKeeperLockManager
from commit_coord.testing.contract import PATIENCE, Interrupt, until

IDLE = 0.02


def _exits() -> None:
    sys.exit("a listener of the test")


def _raises() -> None:
    raise OSError("a beat of the test")


@pytest.mark.parametrize("ends", [_exits, _raises])
def test_a_beat_that_fails_is_not_the_last(ends: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nothing can be logged. Nobody asks for it again: a lease that is held is renewed by this alone."""

    def fails(_: logging.LogRecord) -> bool:
        raise ValueError("a filter of the test")

    monkeypatch.setattr(logging.getLogger("commit_coord.locks.heartbeat"), "filters", [fails])
    beats: list[None] = []

    def beat() -> float:
        beats.append(None)
        if len(beats) == 1:
            ends()
        return IDLE

    heartbeat = Heartbeat(beat, idle=lambda: IDLE, name="heartbeat of a test")
    heartbeat.ensure_running()
    try:
        until(lambda: len(beats) > 2, "more beats")
    finally:
        heartbeat.stop()


def test_an_idle_heartbeat_asks_each_time_how_long_it_may_sleep() -> None:
    """ZooKeeper's servers may agree to a much shorter session than the one that was asked for when it was made."""
    beats, idle = list[None](), [PATIENCE * 10]

    def beat() -> None:
        beats.append(None)
        idle[0] = IDLE

    heartbeat = Heartbeat(beat, idle=lambda: idle[0], name="heartbeat of a test")
    heartbeat.ensure_running()
    try:
        until(lambda: len(beats) > 1, "another beat")
    finally:
        heartbeat.stop()


def test_zookeeper_s_heartbeat_sleeps_as_the_session_allows_that_the_servers_agreed_to() -> None:
    with ZooKeeperLockManager("127.0.0.1:1", settings=LockSettings(lease_ms=30_000)) as manager:
        heartbeat: Any = manager.heartbeat
        manager.session.connection.timeout_ms = 600
        assert heartbeat._idle() == pytest.approx(0.1)


def test_a_thread_that_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    beats, reported = list[None](), list[Any]()
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def beat() -> Any:
        beats.append(None)
        return "no number, which ends the thread" if len(beats) == 1 else IDLE

    name = "heartbeat that ends"
    heartbeat = Heartbeat(beat, idle=lambda: IDLE, name=name)
    heartbeat.ensure_running()
    try:
        until(lambda: reported and name not in {one.name for one in threading.enumerate()}, "the end of the thread")
        heartbeat.ensure_running()
        until(lambda: len(beats) > 2, "more beats")
    finally:
        heartbeat.stop()


def test_an_interrupted_stop_ends_the_thread_and_the_heartbeat_can_be_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A user who closes a client presses Ctrl-C while a beat is under way."""
    threads: list[threading.Thread] = []
    begun, goes_on = threading.Event(), threading.Event()

    def beat() -> float:
        threads.append(threading.current_thread())
        begun.set()
        goes_on.wait(PATIENCE)
        return IDLE

    def interrupted(*_: object) -> None:
        raise Interrupt

    heartbeat = Heartbeat(beat, idle=lambda: IDLE, name="heartbeat of a test")
    heartbeat.ensure_running()
    try:
        assert begun.wait(PATIENCE)
        with monkeypatch.context() as patched, pytest.raises(Interrupt):
            patched.setattr(threads[0], "join", interrupted)
            heartbeat.stop()
        heartbeat.ensure_running()
        until(lambda: threads[-1] is not threads[0], "a beat of another thread")
        goes_on.set()
        until(lambda: not threads[0].is_alive(), "the end of the first thread")
        until(lambda: len(threads) > 3, "more beats")
    finally:
        goes_on.set()
        heartbeat.stop()
