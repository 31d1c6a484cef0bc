"""A heartbeat that is believed to run runs, whatever happened to it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from commit_coord.locks.heartbeat import Heartbeat
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

    heartbeat = Heartbeat(beat, idle=IDLE, name="heartbeat of a test")
    heartbeat.ensure_running()
    try:
        until(lambda: len(beats) > 2, "more beats")
    finally:
        heartbeat.stop()


def test_a_thread_that_ended_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    beats, reported = list[None](), list[Any]()
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def beat() -> Any:
        beats.append(None)
        return "no number, which ends the thread" if len(beats) == 1 else IDLE

    name = "heartbeat that ends"
    heartbeat = Heartbeat(beat, idle=IDLE, name=name)
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

    heartbeat = Heartbeat(beat, idle=IDLE, name="heartbeat of a test")
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
