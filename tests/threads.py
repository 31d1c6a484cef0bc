"""Calls of another thread, as to the locks a thread is one client; and what interrupts the main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from commit_coord.testing.contract import until

P = ParamSpec("P")
T = TypeVar("T")


def elsewhere(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what *call* returns, or raise what it raises, in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *args, **kwargs).result()


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
