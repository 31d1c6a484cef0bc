"""Puts an interrupt off until what was begun has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def to_its_end(
    work: Callable[[], T], *, on_interrupt: Callable[[], None] = lambda: None, patience_s: float | None = None
) -> T:
    """Return what *work* returns, or raise what it raises; an interrupt of the caller waits until one of them happens.

    *work* runs in a thread of its own, which no signal interrupts.

    Args:
        work: What to do.
        on_interrupt: Called after the first interrupt; it may tell *work* to end early.
        patience_s: How long the interrupt waits after that; None means for ever.

    Raises:
        BaseException: The interrupt. *work* has ended, or never began; only after a second interrupt, or after
            *patience_s*, it may go on.
    """
    # An interrupt inside of `threading.Condition` leaves its lock as nobody expects it. A queue like these has none.
    may_begin: SimpleQueue[bool] = SimpleQueue()
    has_ended: SimpleQueue[None] = SimpleQueue()
    outcome: Future[T] = Future()
    is_begun = False

    def run() -> None:
        if not may_begin.get():
            return
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            outcome.set_exception(error)
        finally:
            has_ended.put(None)

    try:
        # An interrupt while the thread starts does not tell whether it did. So it begins only on a signal.
        Thread(target=copy_context().run, args=(run,), name="uninterrupted", daemon=True).start()
        is_begun = True
        may_begin.put(True)
        has_ended.get()
    except BaseException as error:  # noqa: BLE001 - it is raised again below
        may_begin.put(is_begun)  # perhaps the second time: the interrupt came before or after the first
        if is_begun:
            on_interrupt()
            if not outcome.done():
                with suppress(Empty):
                    has_ended.get(timeout=patience_s)
        # A thread starts with the help of a condition, which fails with a RuntimeError if it is interrupted.
        cause = error.__context__
        raise (error if cause is None or isinstance(cause, Exception) else cause) from None
    return outcome.result()
