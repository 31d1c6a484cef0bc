"""The threads that carry requests out. Each kind of request has its own, so no kind takes them from another one.

A commit may block for as long as another client holds the latch of its table, a drop for as long as one holds a
lock, and a purge deletes files for hours. Reads and tokens go on meanwhile. Within a kind,
:mod:`commit_coord.protocol.admission` decides; who waits for a thread is a future of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from commit_coord.protocol.admission import Admission, Name, Place
from commit_coord.rest.errors import Overloaded, stopping

T = TypeVar("T")

_PURGES = 2
"""How many tables a process purges at once."""


class WorkKind(Enum):
    """The kind of a request, by what it may wait for."""

    READ = auto()
    """It takes no latch and no lock; also tokens."""
    COMMIT = auto()
    """It waits for the latches of its tables. Several commits to one table are published together."""
    CHANGE = auto()
    """It creates, drops, renames or registers something, or changes a view or a namespace."""
    PURGE = auto()
    """It deletes the files of a table."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a request needs before it can be carried out.

    Args:
        kind: Its kind.
        objects: The tables, views and namespaces that it changes, each with its catalog.
        writer: The ids of the snapshots that a commit adds.
        patience_s: How long it waits for a thread.
    """

    kind: WorkKind = WorkKind.READ
    objects: frozenset[Name] = frozenset()
    writer: frozenset[int] = frozenset()
    patience_s: float = 60.0


class Lanes:
    """All threads of a process.

    Args:
        threads: How many reads run at once, and how many commits.
    """

    def __init__(self, threads: int) -> None:
        self._lanes = {
            WorkKind.READ: _Lane("read", threads),
            WorkKind.COMMIT: _Lane("commit", threads),
            WorkKind.CHANGE: _Lane("change", max(threads // 4, 1)),
            WorkKind.PURGE: _Lane("purge", _PURGES),
        }

    async def run(self, work: Work, execute: Callable[[], T]) -> T:
        """Call *execute* in a thread for *work* as soon as there is one, and return its result.

        Raises:
            Overloaded: No thread was free in time, or the server is stopping. Nothing was done.
            Exception: Whatever *execute* raises.
        """
        return await self._lanes[work.kind].run(work, execute)

    def stop(self) -> None:
        """Refuse what waits for a thread, and what comes."""
        for lane in self._lanes.values():
            lane.stop()

    def end(self, *, wait: bool = True) -> None:
        """Wait for what runs; without *wait*, give it up."""
        for lane in self._lanes.values():
            lane.end(wait=wait)


class _Lane:
    """The threads of one kind of request; used on one event loop."""

    def __init__(self, name: str, threads: int) -> None:
        self._admission = Admission(threads)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._waiting: dict[Place, asyncio.Future[None]] = {}
        self._stopping = False

    async def run(self, work: Work, execute: Callable[[], T]) -> T:
        place = self._admission.enter(work.objects)
        try:
            await self._admitted(place, work)
            return await asyncio.get_running_loop().run_in_executor(self._pool, execute)
        finally:
            self._admission.leave(place)
            self._start()

    def stop(self) -> None:
        self._stopping = True
        for future in tuple(self._waiting.values()):
            future.get_loop().call_soon_threadsafe(wake, future)

    def end(self, *, wait: bool) -> None:
        self._pool.shutdown(wait=wait, cancel_futures=True)

    async def _admitted(self, place: Place, work: Work) -> None:
        self._start()
        if not place.runs and not self._stopping:
            self._waiting[place] = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(work.patience_s):
                    await self._waiting[place]
            except TimeoutError:
                raise Overloaded(f"no thread was free for {work.patience_s:g} s; try again") from None
            finally:
                del self._waiting[place]
        if self._stopping:
            raise stopping()

    def _start(self) -> None:
        for place in self._admission.start():
            if place in self._waiting:
                wake(self._waiting[place])


def wake(future: asyncio.Future[None]) -> None:
    """Let the task that waits for *future* go on."""
    if not future.done():
        future.set_result(None)
