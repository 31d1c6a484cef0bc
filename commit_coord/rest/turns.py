"""The queue in which the commits of one process to the tables of a catalog wait for their turns.

:mod:`commit_coord.protocol.turns` decides; this module blocks and wakes the threads. Each process has a queue of its
own: a client returns to the same process as long as its connection stays open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from pyiceberg.typedef import Identifier

from commit_coord.clock import Clock
from commit_coord.errors import CheckpointInTable, ClientStops, CommitConflict, StaleRead, UpdatesDoNotFit
from commit_coord.protocol.turns import Stage, Turns

T = TypeVar("T")

_WAITS = 10
"""A commit waits no longer than this number of unused turns takes."""

_FINAL = (CheckpointInTable, StaleRead, UpdatesDoNotFit)
"""A retry of a commit that was refused with one of these is refused, too."""


class Lines:
    """Lets the commits to each table run in turn.

    Args:
        clock: Time.
        reserved_ms: How long a table is reserved for a writer that was refused; with 0 it is never reserved.
        most_waiting: How many threads may wait for one table.
    """

    def __init__(self, clock: Clock, *, reserved_ms: int, most_waiting: int) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._is_stopping = False
        reserve_s = reserved_ms / 1000
        self._turns = Turns(reserve_s=reserve_s, wait_s=reserve_s * _WAITS, most_waiting=most_waiting)

    def commit(self, tables: Iterable[Identifier], writer: frozenset[int], land: Callable[[], T]) -> T:
        """Call *land* when the turn of the commit has come, and return its result.

        If the commit is refused because the head moved, the refusal is raised only when the tables can be reserved for
        this writer: its retry then runs next.

        Args:
            tables: The tables to which it commits.
            writer: The ids of the snapshots that the commit adds.
            land: Commits.

        Raises:
            ClientStops: The server stops, and the commit has not begun. Nothing was done.
            Exception: Whatever *land* raises.
        """
        turns = self._turns
        with self._changed:
            ticket = turns.enter(tables, writer, self._clock.now())
            while ticket.stage is Stage.WAITING and not self._is_stopping:
                self._wait()
            if self._is_stopping:
                turns.leave(ticket, self._clock.now())
                raise ClientStops("the server is stopping; ask another one, or this one when it is back")
        try:
            return land()
        except CommitConflict as refused:
            if not isinstance(refused, _FINAL):
                with self._changed:
                    turns.refuse(ticket, self._clock.now())
                    self._changed.notify_all()
                    while ticket.stage is Stage.REFUSED and not self._is_stopping:
                        self._wait()
            raise
        finally:
            with self._changed:
                turns.leave(ticket, self._clock.now())
                self._changed.notify_all()

    def stop(self) -> None:
        """Refuse the commits that wait for their turn, and hold no refusal back."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()

    def _wait(self) -> None:
        """Block until something may have changed."""
        now, at = self._clock.now(), self._turns.wakes_at()
        self._changed.wait(None if at is None else max(at - now, 0.001))
        if self._turns.advance(self._clock.now()):
            self._changed.notify_all()
