"""Processes that are started and warm before the clock runs, and then do what they are asked.

A worker is ``python -m commit_coord.bench.worker``, or a program that speaks as it does (``java/Appender.java``). Its
first line of input names a task of ``tasks.py`` and says what it works on; it answers when it is ready. Every further
line is a request and is answered by one line. So imports, opened catalogs and the first use of everything lie outside
of what is measured, for us and for the peer alike.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

PYTHON = (sys.executable, "-m", "commit_coord.bench.worker")
"""The command of a worker that carries out the tasks of ``tasks.py``."""

_READY_S = 300.0
"""For the slowest of 16 JVMs that start together on two cores."""

_LEAD_S = 0.3
"""Between the sending of the start time and the start: every worker has read it by then."""


class WorkerFailed(RuntimeError):
    """A worker ended or did not answer in time."""


class Worker:
    """One process that carries out one task.

    Args:
        task: A function in ``commit_coord.bench.tasks``.
        spec: Its arguments.
        command: What is run; another program than :data:`PYTHON` may know one task only.
    """

    def __init__(self, task: str, spec: Mapping[str, Any], command: Sequence[str] = PYTHON) -> None:
        self._began = time.monotonic()
        self.lasted_s = 0.0
        """From the start of the process to its end, once it is closed."""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.send({"task": task, "spec": spec})

    def send(self, request: Mapping[str, Any]) -> None:
        """Ask without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerFailed(f"a worker ended with status {self._process.wait()}") from error

    def receive(self, timeout: float) -> Any:
        """Return the answer to the oldest request that has none yet.

        Raises:
            WorkerFailed: It did not come within *timeout* seconds; the worker is killed.
        """
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + timeout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._process.kill()
                    raise WorkerFailed(f"no answer within {timeout:.0f} s")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise WorkerFailed(f"a worker ended with status {self._process.wait()}")
                line += part
        return json.loads(line)

    def ask(self, request: Mapping[str, Any], timeout: float = 120.0) -> Any:
        """Return the answer to *request*."""
        self.send(request)
        return self.receive(timeout)

    def close(self) -> None:
        """Let it end, and wait for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.lasted_s = self.lasted_s or time.monotonic() - self._began
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.close()


class Fleet:
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
        timeout: float,
        beside: Callable[[float], None] = lambda _: None,
    ) -> list[Any]:
        """Have one worker prepare each of *specs*, start them at one moment, return their answers.

        Meanwhile *beside* is called, with the moment of the start.
        """
        workers = self._workers[: len(specs)]
        try:
            for worker, spec in zip(workers, specs, strict=True):
                worker.send({"spec": spec})
            for worker in workers:
                worker.receive(_READY_S)
            return _at_one_moment(workers, timeout, beside)
        except WorkerFailed:
            # Whoever has not answered yet would answer the next run.
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
    timeout: float,
    command: Sequence[str] = PYTHON,
    beside: Callable[[float], None] = lambda _: None,
) -> list[Any]:
    """Do as :meth:`Fleet.run`, with a new worker for each of *specs*."""
    workers: list[Worker] = []
    try:
        workers += [Worker(task, spec, command) for spec in specs]
        for worker in workers:
            worker.receive(_READY_S)
        return _at_one_moment(workers, timeout, beside)
    finally:
        for worker in workers:
            worker.close()


def _at_one_moment(workers: Sequence[Worker], timeout: float, beside: Callable[[float], None]) -> list[Any]:
    start = time.monotonic() + _LEAD_S
    for worker in workers:
        worker.send({"start": start})
    beside(start)
    return [worker.receive(timeout) for worker in workers]


def wait_until(moment: float) -> None:
    """Sleep until *moment* on the monotonic clock, which all processes of a machine share."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
