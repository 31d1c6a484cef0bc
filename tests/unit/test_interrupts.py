"""An interrupt waits for what was begun."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from commit_coord.interrupts import to_its_end
from commit_coord.testing.contract import until
from tests import limits


@contextmanager
def interrupts() -> Iterator[tuple[Callable[[], None], list[int]]]:
    """Give what interrupts the main thread, and returns when that has noticed; and a list of the interrupts that came.

    1. The main thread looks for signals, and finds none.   2. The signal comes.   3. The thread blocks, and sleeps on.
    So another signal, which does nothing else, wakes it until it has noticed.
    """
    came: list[int] = []

    def interrupt() -> None:
        main, before = threading.main_thread().ident or 0, len(came)
        signal.pthread_kill(main, signal.SIGINT)

        def noticed() -> bool:
            signal.pthread_kill(main, signal.SIGUSR2)
            return len(came) > before

        until(noticed, "the interrupt")

    def handle(number: int, _: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    handlers = {signal.SIGINT: handle, signal.SIGUSR2: lambda *_: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield interrupt, came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_the_work_returns_or_raises_is_the_caller_s() -> None:
    assert 3 == to_its_end(lambda: 3)
    with pytest.raises(ZeroDivisionError):
        to_its_end(lambda: 1 // 0)


def test_an_interrupt_comes_when_the_work_has_ended() -> None:
    ended: list[bool] = []
    with interrupts() as (interrupt, _):

        def work() -> None:
            interrupt()
            ended.append(True)

        with pytest.raises(KeyboardInterrupt):
            to_its_end(work)
        assert [True] == ended


def test_a_second_interrupt_does_not_wait() -> None:
    """Once the first one is being put off: two in one moment are one."""
    may_end, ended = threading.Event(), threading.Event()
    with interrupts() as (interrupt, _):

        def work() -> None:
            interrupt()
            until(lambda: "exception" in functions_of_the_main_thread(), "the wait for the end")
            interrupt()
            may_end.wait()
            ended.set()

        with pytest.raises(KeyboardInterrupt):
            to_its_end(work)
        assert not ended.is_set()
        may_end.set()
        assert ended.wait(limits.PATIENCE)


def functions_of_the_main_thread() -> set[str]:
    """Return the names of the functions that it is in."""
    names, frame = set(), sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_work_whose_thread_did_not_start_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bool] = []
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        to_its_end(lambda: begun.append(True))
    (thread,) = started
    thread.join(limits.PATIENCE)
    assert not thread.is_alive()
    assert [] == begun
