"""Several processes that serve one port.

A process that dies is started again. All of them end when this process ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import FrameType

from commit_coord.errors import ConfigError
from commit_coord.protocol.backoff import Backoff, next_wait

logger = logging.getLogger(__name__)

NOT_STARTED = 3
"""uvicorn's exit code of a process that could not start. Another process could not start either."""

_LOOK_EVERY_S = 0.5
_STABLE_S = 60
"""A process that ran for longer has not failed because of the way in which it starts."""
_RESTARTS = Backoff(initial_ms=500, maximum_ms=30_000)
"""Between the deaths of a process and the starts of its successors."""
_CONTEXT = multiprocessing.get_context("spawn")


class ProcessesFailed(ConfigError):
    """A process could not start; all processes have been ended."""


def run_processes(
    count: int, work: Callable[[], None], *, patience_s: float, ended: Callable[[int], None] = lambda _: None
) -> None:
    """Run *work* in *count* processes until SIGTERM or Ctrl-C; then end all of them with SIGTERM.

    A process that ends before is started again. The more often it has ended in a row, the longer that takes.

    Args:
        count: The number of processes.
        work: Can be pickled; returns on SIGTERM.
        patience_s: How long *work* may take to return. Then its process is killed.
        ended: Called with the id of a process that has died, before its successor starts.

    Raises:
        ProcessesFailed: A process could not start.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    alive, held = _CONTEXT.Pipe(duplex=False)
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT)}
    places = [_Place(work, alive) for _ in range(count)]
    try:
        while not caught:
            wait([place.process.sentinel for place in places if place.process.is_alive()], timeout=_LOOK_EVERY_S)
            for place in places:
                if not caught:
                    place.look(ended)
    finally:
        for place in places:
            place.process.terminate()
        until = time.monotonic() + patience_s
        for place in places:
            place.process.join(max(until - time.monotonic(), 0))
            if place.process.is_alive():
                logger.error("process %s did not end in %s s and is killed", place.process.pid, patience_s)
                place.process.kill()
                place.process.join()
        held.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in caught:
        raise KeyboardInterrupt


class _Place:
    """The place of one process, which its successors take.

    Args:
        work: See :func:`run_processes`.
        alive: See :func:`_end_with_parent`.
    """

    def __init__(self, work: Callable[[], None], alive: Connection) -> None:
        self._work, self._alive = work, alive
        self._deaths = 0
        self._again_at: float | None = None
        """When the successor starts; None if the process has not been seen to be dead."""
        self.process = self._start()

    def look(self, ended: Callable[[int], None]) -> None:
        """Start a successor if the process has died and the time for it has come.

        Raises:
            ProcessesFailed: The process could not start.
        """
        if self.process.is_alive():
            return
        now = time.monotonic()
        if self._again_at is None:
            if self.process.exitcode == NOT_STARTED:
                raise ProcessesFailed("a process of the server could not start; its log says why")
            ended(self.process.pid or 0)
            self._deaths = 0 if now - self._started_at > _STABLE_S else self._deaths + 1
            pause_s = next_wait(_RESTARTS, self._deaths - 1, random.random()) if self._deaths else 0.0  # noqa: S311
            self._again_at = now + pause_s
            logger.error(
                "process %s ended with code %s and is started again in %.1f s",
                self.process.pid,
                self.process.exitcode,
                pause_s,
            )
        if now >= self._again_at:
            self._again_at = None
            self.process = self._start()

    def _start(self) -> multiprocessing.process.BaseProcess:
        self._started_at = time.monotonic()
        process = _CONTEXT.Process(target=_run, args=(self._work, self._alive))
        process.start()
        return process


def _run(work: Callable[[], None], alive: Connection) -> None:
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    work()


def _end_with_parent(alive: Connection) -> None:
    """End this process when the other end of the pipe *alive* is closed: its parent has ended, or was killed."""
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
