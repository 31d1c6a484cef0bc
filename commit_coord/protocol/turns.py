"""Decides whose turn it is to commit to a table: the retry of a writer that was refused goes first.

A writer of another engine builds its commit on the head that it sees, and is refused if the head has moved. It then
reads the table again, writes a new manifest list and tries again. With N writers, the head has usually moved again by
then. So a refusal is held back until the table can be reserved for the refused writer:

    1. A and B commit at the same time, and A lands.   2. B is refused. No other commit runs, so the refusal is sent,
    and the table is reserved for B.   3. C arrives and waits.   4. B retries on a head that has not moved, and lands.
    5. It is C's turn.

A writer is recognized by the ids of its snapshots, which Iceberg Java and PyIceberg keep when they retry a commit.

Fairness
    A reservation that is not used ends after a time. The more reservations in a row stay unused, the fewer refusals
    get one, so clients that do not retry cost a table less and less time. A commit waits for a limited time only. If a
    retry is refused again because another writer moved the head, it goes to the end of the queue.

This module knows no time, locks or threads: the caller passes the time, and :meth:`Turns.wakes_at` returns when the
caller must call again. Safety does not depend on it: a commit that runs out of turn lands or is refused.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import Enum, auto

_FEWEST = 6
"""However many reservations stay unused, at least one refusal in ``2 ** _FEWEST`` gets one."""


class Stage(Enum):
    """The stage of a commit."""

    WAITING = auto()
    """It waits for its turn."""
    RUNNING = auto()
    """It may run."""
    REFUSED = auto()
    """It has run and was refused; the refusal is held back."""
    ENDED = auto()
    """It is over: its outcome may be sent."""


@dataclass(slots=True, eq=False)
class Ticket:
    """The place of one commit in the queue of its table.

    Args:
        writer: The ids of its snapshots. Without any, its retry could not be recognized.
        number: Its place.
        deadline: When it stops waiting.
        stage: Its stage.
    """

    writer: frozenset[int]
    number: int
    deadline: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The table is reserved for *writer* until its retry arrives, or until *until*."""

    writer: frozenset[int]
    until: float


class Turns:
    """The queue of the commits to one table.

    Args:
        reserve_s: How long the table is reserved for a refused writer; with 0 it is never reserved.
        wait_s: How long a commit waits at most.
        most_waiting: How many commits may wait. Others run at once, and their refusals are sent at once.
    """

    def __init__(self, *, reserve_s: float, wait_s: float, most_waiting: int) -> None:
        self._reserve_s, self._wait_s = reserve_s, wait_s
        self._most_waiting = most_waiting if reserve_s > 0 else 0
        self._line: list[Ticket] = []
        """The commits that wait for their turn, or whose refusal is held back; ordered by number."""
        self._running: set[Ticket] = set()
        self._reserved: _Reservation | None = None
        self._in_turn: Ticket | None = None
        """The commit that runs under its reservation."""
        self._numbers = 0
        self._unused = self._without = 0
        """The number of unused reservations in a row; how many of the next refusals get no reservation."""

    @property
    def is_idle(self) -> bool:
        """Whether the queue has no state and may be deleted."""
        return not (self._line or self._running or self._reserved or self._unused)

    def enter(self, writer: frozenset[int], now: float) -> Ticket:
        """Return the ticket of a commit that arrives; it waits, or runs at once."""
        self.advance(now)
        self._numbers += 1
        ticket = Ticket(writer, self._numbers, now + self._wait_s, Stage.WAITING)
        if self._reserved is not None and self._reserved.writer & writer:
            self._reserved, self._in_turn, self._unused, self._without = None, ticket, 0, 0
            self._run(ticket)
        elif len(self._line) >= self._most_waiting:
            self._run(ticket)
        else:
            self._line.append(ticket)
            self.advance(now)
        return ticket

    def refuse(self, ticket: Ticket, now: float) -> None:
        """Note that the commit has run and was refused because the head had moved."""
        self._running.discard(ticket)
        if self._in_turn is ticket:
            self._in_turn = None
            self._numbers += 1
            ticket.number = self._numbers
        if ticket.writer and len(self._line) < self._most_waiting:
            ticket.stage = Stage.REFUSED
            insort(self._line, ticket, key=lambda each: each.number)
        else:
            ticket.stage = Stage.ENDED
        self.advance(now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """Note that the commit is over, with any outcome. A second call changes nothing."""
        self._running.discard(ticket)
        if self._in_turn is ticket:
            self._in_turn = None
        if ticket in self._line:
            self._line.remove(ticket)
        ticket.stage = Stage.ENDED
        self.advance(now)

    def advance(self, now: float) -> bool:
        """Let all commits continue whose time has come; return whether there was one."""
        waited = len(self._line)
        if self._reserved is not None and now >= self._reserved.until:
            self._reserved = None
            self._unused += 1
            self._without = 2 ** min(self._unused, _FEWEST) - 1
        for ticket in [each for each in self._line if now >= each.deadline]:
            self._line.remove(ticket)
            self._go(ticket)
        while self._line and self._reserved is None and self._in_turn is None:
            first = self._line[0]
            if first.stage is Stage.REFUSED and self._running:
                break  # a commit that runs may move the head on which the retry would be built
            del self._line[0]
            self._go(first)
            if first.stage is Stage.ENDED:
                self._reserve_for(first.writer, now)
        assert self._in_turn is None or self._in_turn in self._running, "the commit with the reserved turn runs"
        return len(self._line) < waited

    def wakes_at(self) -> float | None:
        """Return when the next time limit ends; None if there is none."""
        times = [ticket.deadline for ticket in self._line]
        if self._line and self._reserved is not None:
            times.append(self._reserved.until)
        return min(times, default=None)

    def _go(self, ticket: Ticket) -> None:
        if ticket.stage is Stage.WAITING:
            self._run(ticket)
        else:
            ticket.stage = Stage.ENDED

    def _run(self, ticket: Ticket) -> None:
        ticket.stage = Stage.RUNNING
        self._running.add(ticket)

    def _reserve_for(self, writer: frozenset[int], now: float) -> None:
        if self._without:
            self._without -= 1
        else:
            self._reserved = _Reservation(writer, now + self._reserve_s)
