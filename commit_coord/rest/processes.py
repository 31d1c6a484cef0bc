"""Several processes that serve one port.

A process that dies is started again. All of them end when this process ends.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from types import FrameType

logger = logging.getLogger(__name__)

NOT_STARTED = 3
"""uvicorn's exit code of a process that could not start. Another process could not start either."""

_LOOK_EVERY_S = 0.5


class ProcessesFailed(RuntimeError):
    """A process could not start; all processes have been ended."""


def run_processes(count: int, work: Callable[[], None], ended: Callable[[int], None] = lambda _: None) -> None:
    """Run *work* in *count* processes until SIGTERM or Ctrl-C; then end all of them with SIGTERM.

    Args:
        count: The number of processes.
        work: Can be pickled; returns on SIGTERM.
        ended: Called with the id of a process that has died, before its successor starts.

    Raises:
        ProcessesFailed: A process could not start.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    context = multiprocessing.get_context("spawn")
    alive, held = context.Pipe(duplex=False)
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        caught.append(number)

    before = {number: signal.signal(number, catch) for number in (signal.SIGTERM, signal.SIGINT)}

    def started() -> multiprocessing.process.BaseProcess:
        process = context.Process(target=_run, args=(work, alive))
        process.start()
        return process

    processes = [started() for _ in range(count)]
    try:
        while not caught:
            wait([process.sentinel for process in processes], timeout=_LOOK_EVERY_S)
            for index, process in enumerate(processes):
                if process.is_alive() or caught:
                    continue
                if process.exitcode == NOT_STARTED:
                    raise ProcessesFailed("a process could not start; its log says why")
                ended(process.pid or 0)
                logger.error("process %s ended with code %s and is started again", process.pid, process.exitcode)
                processes[index] = started()
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        held.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in caught:
        raise KeyboardInterrupt


def _run(work: Callable[[], None], alive: Connection) -> None:
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    work()


def _end_with_parent(alive: Connection) -> None:
    """End this process when the other end of the pipe *alive* is closed: its parent has ended, or was killed."""
    try:
        alive.recv_bytes()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
