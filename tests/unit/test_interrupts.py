"""An interrupt waits for what was begun."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commit_coord.interrupts import to_its_end
from commit_coord.process import is_of_signal_handler
from commit_coord.testing.contract import interrupted_at
from tests import limits
from tests.threads import interrupts


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
    is_put_off, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    with interrupts() as (interrupt, _):

        def work() -> None:
            interrupt()
            assert is_put_off.wait(limits.PATIENCE)
            interrupt()
            may_end.wait()
            ended.set()

        with pytest.raises(KeyboardInterrupt):
            to_its_end(work, on_interrupt=is_put_off.set)
        assert not ended.is_set()
        may_end.set()
        assert ended.wait(limits.PATIENCE)


def test_an_interrupt_at_any_line_is_that_interrupt_and_no_other_error() -> None:
    """Also at the lines of ``threading``, whose conditions fail with a RuntimeError if they are interrupted."""
    for step in itertools.count(1):
        begun, ended, told = threading.Event(), threading.Event(), threading.Event()

        def work(begun: threading.Event = begun, ended: threading.Event = ended) -> None:
            begun.set()
            ended.set()

        def interrupted(work: Callable[[], None] = work, told: threading.Event = told) -> None:
            to_its_end(work, on_interrupt=told.set)

        if not interrupted_at(step, interrupted, ("interrupts.py", "threading.py")):
            break
        assert begun.is_set() == ended.is_set(), f"at step {step} the work goes on"
    assert step > 10, "so many lines has the call"
    assert ended.is_set()
    assert not told.is_set()


def test_an_interrupt_while_the_thread_starts_is_no_error_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: threading.Thread) -> None:
        try:
            raise KeyboardInterrupt
        finally:  # as a condition does whose wait is interrupted
            raise RuntimeError("cannot release un-acquired lock")

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        to_its_end(lambda: None)


def test_an_interrupt_waits_no_longer_than_its_patience() -> None:
    may_end, ended = threading.Event(), threading.Event()
    with interrupts() as (interrupt, _):

        def work() -> None:
            interrupt()
            may_end.wait(limits.PATIENCE)
            ended.set()

        with pytest.raises(KeyboardInterrupt):
            to_its_end(work, patience_s=0.1)
        assert not ended.is_set()
        may_end.set()
        assert ended.wait(limits.PATIENCE)


def test_the_work_has_the_context_of_its_caller() -> None:
    name: ContextVar[str] = ContextVar("name")
    name.set("caller")
    assert "caller" == to_its_end(name.get)


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


class Striking:
    """A handler that is an object."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def __call__(self, number: int, _: object) -> None:
        """Raise the error."""
        raise self.kind

    def strike(self, number: int, _: object) -> None:
        """Raise the error."""
        raise self.kind


def striking(kind: type[Exception], number: int, _: object) -> None:
    """Raise the error."""
    raise kind


HANDLERS: list[Callable[[type[Exception]], Any]] = [
    Striking,
    lambda kind: Striking(kind).strike,
    lambda kind: partial(striking, kind),
    lambda kind: lambda number, frame: striking(kind, number, frame),
]


@pytest.mark.parametrize("handler", HANDLERS, ids=["object", "method", "partial", "function"])
@pytest.mark.parametrize("kind", [TimeoutError, OSError, ValueError])
def test_an_error_of_a_signal_handler_is_recognized(
    kind: type[Exception], handler: Callable[[type[Exception]], Any]
) -> None:
    earlier = signal.signal(signal.SIGUSR1, handler(kind))
    try:
        with pytest.raises(kind) as raised:
            signal.raise_signal(signal.SIGUSR1)
        assert is_of_signal_handler(raised.value)
        with pytest.raises(FileNotFoundError) as other:
            Path("/no/such/file").stat()
        assert not is_of_signal_handler(other.value)
    finally:
        signal.signal(signal.SIGUSR1, earlier)
