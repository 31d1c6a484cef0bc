"""The queues in which the commits of one process wait for their turns, one for each table.

:mod:`commit_coord.protocol.turns` decides; this module blocks and wakes the threads. Each process has queues of its
own: a client returns to the same process as long as its connection stays open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pyiceberg.typedef import Identifier

from commit_coord.clock import Clock
from commit_coord.errors import CheckpointInTable, CommitConflict, StaleRead, UpdatesDoNotFit
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
        self._reserve_s = reserved_ms / 1000
        self._most_waiting = most_waiting
        self._changed = threading.Condition()
        self._tables: dict[Identifier, Turns] = {}

    def commit(self, table: Identifier, writer: frozenset[int], land: Callable[[], T]) -> T:
        """Call *land* when the turn of the commit has come, and return its result.

        If the commit is refused because the head moved, the refusal is raised only when the table can be reserved for
        this writer: its retry then runs next.

        Args:
            table: The table.
            writer: The ids of the snapshots that the commit adds.
            land: Commits.

        Raises:
            Exception: Whatever *land* raises.
        """
        with self._changed:
            turns = self._tables.get(table) or self._tables.setdefault(table, self._new())
            ticket = turns.enter(writer, self._clock.now())
            while ticket.stage is Stage.WAITING:
                self._wait(turns)
        try:
            return land()
        except CommitConflict as refused:
            if not isinstance(refused, _FINAL):
                with self._changed:
                    turns.refuse(ticket, self._clock.now())
                    self._changed.notify_all()
                    while ticket.stage is Stage.REFUSED:
                        self._wait(turns)
            raise
        finally:
            with self._changed:
                turns.leave(ticket, self._clock.now())
                self._changed.notify_all()
                if turns.is_idle:
                    self._tables.pop(table, None)

    def _new(self) -> Turns:
        return Turns(reserve_s=self._reserve_s, wait_s=self._reserve_s * _WAITS, most_waiting=self._most_waiting)

    def _wait(self, turns: Turns) -> None:
        """Block until something may have changed."""
        now, at = self._clock.now(), turns.wakes_at()
        self._changed.wait(None if at is None else max(at - now, 0.001))
        if turns.advance(self._clock.now()):
            self._changed.notify_all()
