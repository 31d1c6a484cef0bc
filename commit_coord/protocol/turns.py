"""Whose turn it is to commit to a table: a writer that was refused and comes back goes first. Decides and does nothing.

A writer of another engine builds its commit on the head that it sees, and is refused when the head has moved. It reads
the table again, writes a new manifest list, and comes back: with N writers the head has moved again by then, most of
the time. So a refusal is not told before the table can be kept free for the one that is refused:

    1. A and B commit at the same time, and A lands.   2. B is refused; nobody runs, so B is told, and the table is kept
    free for it.   3. C comes and waits.   4. B comes back, on a head that nobody has moved, and lands.   5. C's turn.

A writer is known by the ids of its snapshots, which Iceberg Java and PyIceberg keep when they try a commit again.

Nobody starves
    A turn that nobody uses ends by itself. Where several go unused in a row, ever fewer refusals get one: clients that
    do not come back cost a table less and less of its time. What waits does not wait for longer than a bound. What
    comes back and is refused once more, since somebody else moved the head, goes to the end of the line.

Not here
    No time, locks or threads: everything is told what time it is, and :meth:`Turns.wakes_at` says when to tell it
    again. Nothing here is needed for safety. A commit that runs out of turn is refused, or lands.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from enum import Enum, auto

_FEWEST = 6
"""Of the refusals behind many unused turns at least one in ``2 ** _FEWEST`` gets one."""


class Stage(Enum):
    """How far a commit has come."""

    WAITING = auto()
    """It waits to run."""
    RUNNING = auto()
    """It may run."""
    REFUSED = auto()
    """It has run and was refused, and waits to be told."""
    ENDED = auto()
    """It is over: its client may be told what became of it."""


@dataclass(slots=True, eq=False)
class Ticket:
    """The place of one commit in the line of its table.

    Args:
        writer: The ids of its snapshots; none where it adds none, and then it would not be known again.
        number: Its place.
        deadline: When it waits no longer.
        stage: How far it has come.
    """

    writer: frozenset[int]
    number: int
    deadline: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The table is kept free for a writer, until it comes back, for so long at most."""

    writer: frozenset[int]
    until: float


class Turns:
    """The line in front of one table.

    Args:
        reserve_s: How long the table is kept free for a writer that was refused; 0 keeps it free for nobody.
        wait_s: How long a commit waits at most.
        most_waiting: How many may wait; more run at once, and are refused at once.
    """

    def __init__(self, *, reserve_s: float, wait_s: float, most_waiting: int) -> None:
        self._reserve_s, self._wait_s = reserve_s, wait_s
        self._most_waiting = most_waiting if reserve_s > 0 else 0
        self._line: list[Ticket] = []
        """By number: those that wait to run or to be told."""
        self._running: set[Ticket] = set()
        self._reserved: _Reservation | None = None
        self._in_turn: Ticket | None = None
        """Runs in the turn that was reserved for it."""
        self._numbers = 0
        self._unused = self._without = 0
        """Turns in a row that nobody used; refusals to come that get none."""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to remember."""
        return not (self._line or self._running or self._reserved or self._unused)

    def enter(self, writer: frozenset[int], now: float) -> Ticket:
        """Return the ticket of a commit that arrives, waiting or running."""
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
        """Note that the commit is over, whatever became of it. To leave twice changes nothing."""
        self._running.discard(ticket)
        if self._in_turn is ticket:
            self._in_turn = None
        if ticket in self._line:
            self._line.remove(ticket)
        ticket.stage = Stage.ENDED
        self.advance(now)

    def advance(self, now: float) -> bool:
        """Let everybody go on whose time has come; return whether there was anybody."""
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
                break  # they may move the head that it would come back on
            del self._line[0]
            self._go(first)
            if first.stage is Stage.ENDED:
                self._reserve_for(first.writer, now)
        assert self._in_turn is None or self._in_turn in self._running, "who has a turn uses it"
        return len(self._line) < waited

    def wakes_at(self) -> float | None:
        """Return when something changes by itself; None where nothing does."""
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
