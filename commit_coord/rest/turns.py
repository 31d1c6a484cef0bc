"""The queue in which the commits of one process to the tables of a catalog wait for their turns.

:mod:`commit_coord.protocol.turns` decides; this module wakes those who wait. They are futures of the event loop, so
they occupy no thread. Each process has a queue of its own: a client returns to the same process as long as its
connection stays open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from commit_coord.clock import Clock
from commit_coord.protocol.admission import Name
from commit_coord.protocol.turns import CommitTurn, Stage, Turns
from commit_coord.rest.lanes import wake
from commit_coord.rest.wire import HttpAnswer

WAITS = 10
"""A commit waits no longer than this number of unused turns takes."""


class Lines:
    """Lets the commits to each table run in turn; used on one event loop.

    Args:
        clock: Time.
        reserved_ms: How long a table is reserved for a writer that was refused; with 0 it is never reserved.
        most_waiting: How many commits may wait for one table.
    """

    def __init__(self, clock: Clock, *, reserved_ms: int, most_waiting: int) -> None:
        self._clock = clock
        reserve_s = reserved_ms / 1000
        self._turns = Turns(reserve_s=reserve_s, wait_s=reserve_s * WAITS, most_waiting=most_waiting)
        self._waiting: dict[CommitTurn, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    async def commit(
        self, tables: Iterable[Name], writer: frozenset[int], land: Callable[[], Awaitable[HttpAnswer]]
    ) -> HttpAnswer:
        """Call *land* when the turn of the commit has come, and return its answer.

        If the commit is refused because the head moved, this returns only when the tables can be reserved for this
        writer: its retry then runs next.

        Args:
            tables: The tables to which it commits.
            writer: The ids of the snapshots that the commit adds.
            land: Commits.

        Raises:
            Exception: Whatever *land* raises.
        """
        turns = self._turns
        ticket = turns.enter(tables, writer, self._clock.now())
        try:
            await self._until_it_leaves(ticket, Stage.WAITING)
            answer = await land()
            if answer.head_moved:
                turns.refuse(ticket, self._clock.now())
                await self._until_it_leaves(ticket, Stage.REFUSED)
            return answer
        finally:
            turns.leave(ticket, self._clock.now())
            self._go_on()

    def are_reserved(self, tables: Iterable[Name], writer: frozenset[int]) -> bool:
        """Return whether *tables* are reserved for *writer* now."""
        return self._turns.are_reserved(frozenset(tables), writer)

    def stop(self) -> None:
        """Let nobody wait any more: what has not begun finds no thread, and no refusal is held back."""
        self._stopping = True
        for future in tuple(self._waiting.values()):
            future.get_loop().call_soon_threadsafe(wake, future)

    async def _until_it_leaves(self, ticket: CommitTurn, stage: Stage) -> None:
        self._go_on()
        if ticket.stage is stage and not self._stopping:
            self._waiting[ticket] = asyncio.get_running_loop().create_future()
            try:
                await self._waiting[ticket]
            finally:
                del self._waiting[ticket]

    def _go_on(self) -> None:
        """Wake those whose time has come, and come back when the next time limit ends."""
        self._turns.advance(self._clock.now())
        for ticket, future in self._waiting.items():
            if ticket.stage not in (Stage.WAITING, Stage.REFUSED):
                wake(future)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (at := self._turns.wakes_at()) is not None:
            delay_s = max(at - self._clock.now(), 0.001)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._go_on)
