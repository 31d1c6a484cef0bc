"""Puts an interrupt off until what was begun has ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event, Thread
from typing import TypeVar

T = TypeVar("T")


def to_its_end(work: Callable[[], T]) -> T:
    """Return what *work* returns, or raise what it raises; an interrupt of the caller waits until one of them happens.

    *work* runs in a thread of its own, which no signal interrupts.

    Raises:
        BaseException: The interrupt. *work* has ended, or never began; only after a second interrupt it may go on.
    """
    ended: Future[T] = Future()
    permitted = Event()
    withdrawn = False

    def run() -> None:
        permitted.wait()
        if withdrawn:
            return
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            ended.set_exception(error)

    try:
        # An interrupt while the thread starts does not tell whether it did. So it begins only on a signal.
        Thread(target=run, name="uninterrupted", daemon=True).start()
        permitted.set()
        return ended.result()
    except BaseException:
        withdrawn = not permitted.is_set()
        permitted.set()  # once more, if it was in there that we were interrupted
        if not withdrawn:
            ended.exception()
        raise
