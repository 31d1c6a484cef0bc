"""Workers that are warm before the clock runs, and then do what they are asked at one moment.

A worker is ``python -m commit_coord.bench.worker``, or a program that speaks as it does (``java/Worker.java``). Its
first line of input names a task of ``tasks.py`` and says what it works on; it answers when it is ready. Every further
line is a request and is answered by one line. So imports, opened catalogs and the first use of everything lie outside
of what is measured, for us and for the peer alike.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from commit_coord.testing.fleet import PipeWriter, WriterFailed

PYTHON = (sys.executable, "-m", "commit_coord.bench.worker")
"""The command of a worker that carries out the tasks of ``tasks.py``."""

_READY_S = 300.0
"""For the slowest of 16 JVMs that start together on two cores."""

_LEAD_S = 0.3
"""Between the sending of the start time and the start: every worker has read it by then."""


class Worker(PipeWriter):
    """One process that carries out one task.

    Args:
        task: A function in ``commit_coord.bench.tasks``, or in another module of the bench: ``large_tasks.operate``.
        spec: Its arguments.
        command: What is run; another program than :data:`PYTHON` may know one task only.
    """

    def __init__(self, task: str, spec: Mapping[str, Any], command: Sequence[str] = PYTHON) -> None:
        self._began = time.monotonic()
        self.lasted_s = 0.0
        """From the start of the process to its end, once it is closed."""
        super().__init__(command, {"task": task, "spec": spec})

    def close(self) -> None:
        """Let it end, and wait for that."""
        super().close()
        self.lasted_s = self.lasted_s or time.monotonic() - self._began


class WarmWorkers:
    """Workers that are started once and serve many runs: to import everything takes a process seconds.

    Args:
        task: Takes a ``spec``, and then the moment of its start.
        size: How many.
    """

    def __init__(self, task: str, size: int) -> None:
        self._task = task
        self._size = size
        self._workers: list[Worker] = []

    def run(
        self,
        specs: Sequence[Mapping[str, Any]],
        *,
        timeout_s: float,
        meanwhile: Callable[[float], None] = lambda _: None,
    ) -> list[Any]:
        """Have one worker prepare each of *specs*, start them at one moment, return their answers.

        Meanwhile *meanwhile* is called, with the moment of the start.
        """
        workers = self._workers[: len(specs)]
        try:
            for worker, spec in zip(workers, specs, strict=True):
                worker.send({"spec": spec})
            for worker in workers:
                worker.receive(_READY_S)
            return _at_one_moment(workers, timeout_s, meanwhile)
        except WriterFailed:
            # A worker that has not answered yet would answer the next run.
            self._end()
            self._begin()
            raise

    def _begin(self) -> None:
        self._workers = [Worker(self._task, {}) for _ in range(self._size)]
        for worker in self._workers:
            worker.receive(_READY_S)

    def _end(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []

    def __enter__(self) -> Self:
        """Return once all are ready."""
        self._begin()
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._end()


def run_together(
    task: str,
    specs: Sequence[Mapping[str, Any]],
    *,
    timeout_s: float,
    command: Sequence[str] = PYTHON,
    meanwhile: Callable[[float], None] = lambda _: None,
) -> list[Any]:
    """Do as :meth:`WarmWorkers.run`, with a new worker for each of *specs*."""
    workers: list[Worker] = []
    try:
        workers += [Worker(task, spec, command) for spec in specs]
        for worker in workers:
            worker.receive(_READY_S)
        return _at_one_moment(workers, timeout_s, meanwhile)
    finally:
        for worker in workers:
            worker.close()


def _at_one_moment(workers: Sequence[Worker], timeout_s: float, meanwhile: Callable[[float], None]) -> list[Any]:
    start = time.monotonic() + _LEAD_S
    for worker in workers:
        worker.send({"start": start})
    meanwhile(start)
    return [worker.receive(timeout_s) for worker in workers]


def wait_until(moment: float) -> None:
    """Sleep until *moment* on the monotonic clock, which all processes of a machine share."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
