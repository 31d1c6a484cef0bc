"""Decides whose turn it is to commit: the retry of a writer that was refused goes first.

A writer of another engine builds its commit on the head that it sees, and is refused if the head has moved. It then
reads the table again, writes a new manifest list and tries again. With N writers, the head has usually moved again by
then. So a refusal is held back until the table can be reserved for the refused writer:

    1. A and B commit at the same time, and A lands.   2. B is refused. No other commit runs, so the refusal is sent,
    and the table is reserved for B.   3. C arrives and waits.   4. B retries on a head that has not moved, and lands.
    5. It is C's turn.

A writer is recognized by the ids of its snapshots, which Iceberg Java and PyIceberg keep when they retry a commit.

Commits to different tables do not wait for each other. A commit to several tables waits until it may run in all of
them. Its refusal is sent when all of them can be reserved together. If it waited in one table while it had its turn in
another one, two such commits could wait for each other.

Fairness
    A reservation that is not used ends after a time. The more reservations in a row stay unused, the fewer refusals
    get one, so clients that do not retry cost a table less and less time. A commit waits for a limited time only. If a
    retry is refused again because another writer moved the head, it goes to the end of the queue.

This module knows no time, locks or threads: the caller passes the time, and :meth:`Turns.wakes_at` returns when the
caller must call again. Safety does not depend on it: a commit that runs out of turn lands or is refused.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise

from commit_coord.protocol.admission import Name

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
class CommitTurn:
    """The place of one commit in the queue.

    Args:
        tables: The tables to which it commits.
        writer: The ids of its snapshots. Without any, its retry could not be recognized.
        number: Its place.
        deadline: When it stops waiting.
        stage: Its stage.
    """

    tables: frozenset[Name]
    writer: frozenset[int]
    number: int
    deadline: float
    stage: Stage


@dataclass(frozen=True, slots=True)
class _Reservation:
    """The tables are reserved for *writer* until its retry arrives, or until *until*."""

    tables: frozenset[Name]
    writer: frozenset[int]
    until: float


class Turns:
    """The queue of the commits to the tables of a catalog.

    Args:
        reserve_s: How long a table is reserved for a refused writer; with 0 it is never reserved.
        wait_s: How long a commit waits at most.
        most_waiting: How many commits may wait for one table. Others run at once, and their refusals are sent at once.
    """

    def __init__(self, *, reserve_s: float, wait_s: float, most_waiting: int) -> None:
        assert min(reserve_s, wait_s, most_waiting) >= 0, "nobody waits for less than nothing"
        self._reserve_s, self._wait_s = reserve_s, wait_s
        self._most_waiting = most_waiting if reserve_s > 0 else 0
        self._line: list[CommitTurn] = []
        """The commits that wait for their turn, or whose refusal is held back; ordered by number."""
        self._running: set[CommitTurn] = set()
        self._reserved: list[_Reservation] = []
        """Of different tables."""
        self._in_turn: set[CommitTurn] = set()
        """The commits that run under their reservations."""
        self._numbers = 0
        self._unused: dict[Name, int] = {}
        """The number of unused reservations in a row."""
        self._without: dict[Name, int] = {}
        """How many of the next refusals get no reservation."""

    def enter(self, tables: Iterable[Name], writer: frozenset[int], now: float) -> CommitTurn:
        """Return the ticket of a commit that arrives; it waits, or runs at once."""
        self.advance(now)
        self._numbers += 1
        ticket = CommitTurn(frozenset(tables), writer, self._numbers, now + self._wait_s, Stage.WAITING)
        reserved = self._reservation(ticket.tables, writer)
        if reserved is not None:
            self._reserved.remove(reserved)
            self._in_turn.add(ticket)
            for table in reserved.tables:
                self._unused.pop(table, None)
                self._without.pop(table, None)
            self._run(ticket)
        elif self._is_full(ticket.tables):
            self._run(ticket)
        else:
            self._line.append(ticket)
        self.advance(now)
        return ticket

    def are_reserved(self, tables: frozenset[Name], writer: frozenset[int]) -> bool:
        """Return whether *tables* are reserved for *writer*: its next commit to them runs at once."""
        return self._reservation(tables, writer) is not None

    def refuse(self, ticket: CommitTurn, now: float) -> None:
        """Note that the commit has run and was refused because a head had moved."""
        assert ticket.stage is Stage.RUNNING, "only what runs is refused"
        self._running.discard(ticket)
        if ticket in self._in_turn:
            self._in_turn.remove(ticket)
            self._numbers += 1
            ticket.number = self._numbers
        if ticket.writer and not self._is_full(ticket.tables):
            ticket.stage = Stage.REFUSED
            insort(self._line, ticket, key=lambda each: each.number)
        else:
            ticket.stage = Stage.ENDED
        self.advance(now)

    def leave(self, ticket: CommitTurn, now: float) -> None:
        """Note that the commit is over, with any outcome. A second call changes nothing."""
        self._running.discard(ticket)
        self._in_turn.discard(ticket)
        if ticket in self._line:
            self._line.remove(ticket)
        ticket.stage = Stage.ENDED
        self.advance(now)

    def advance(self, now: float) -> bool:
        """Let all commits continue whose time has come; return whether there was one."""
        waited = len(self._line)
        for reserved in [each for each in self._reserved if now >= each.until]:
            self._reserved.remove(reserved)
            for table in reserved.tables:
                self._unused[table] = self._unused.get(table, 0) + 1
                self._without[table] = 2 ** min(self._unused[table], _FEWEST) - 1
        for ticket in [each for each in self._line if now >= each.deadline]:
            self._line.remove(ticket)
            self._go(ticket)
        taken = {table for reserved in self._reserved for table in reserved.tables}
        taken |= {table for ticket in self._in_turn for table in ticket.tables}
        for ticket in tuple(self._line):
            # A refusal waits for the commits that run: they may move the head on which the retry would be built.
            held_back = ticket.stage is Stage.REFUSED and any(each.tables & ticket.tables for each in self._running)
            if held_back or ticket.tables & taken:
                taken |= ticket.tables
                continue
            self._line.remove(ticket)
            self._go(ticket)
            if ticket.stage is Stage.ENDED and self._reserve_for(ticket, now):
                taken |= ticket.tables
        assert self._in_turn <= self._running, "the commits with reserved turns run"
        assert self._running.isdisjoint(self._line), "what waits does not run"
        assert all(one.number < other.number for one, other in pairwise(self._line)), "the line is in its order"
        return len(self._line) < waited

    def wakes_at(self) -> float | None:
        """Return when the next time limit ends; None if no commit waits for one."""
        times = [ticket.deadline for ticket in self._line]
        if self._line:
            times += [reserved.until for reserved in self._reserved]
        return min(times, default=None)

    def _reservation(self, tables: frozenset[Name], writer: frozenset[int]) -> _Reservation | None:
        return next((each for each in self._reserved if each.writer & writer and tables <= each.tables), None)

    def _is_full(self, tables: frozenset[Name]) -> bool:
        return any(sum(table in each.tables for each in self._line) >= self._most_waiting for table in tables)

    def _go(self, ticket: CommitTurn) -> None:
        if ticket.stage is Stage.WAITING:
            self._run(ticket)
        else:
            ticket.stage = Stage.ENDED

    def _run(self, ticket: CommitTurn) -> None:
        assert ticket.stage is Stage.WAITING, "a commit runs once"
        ticket.stage = Stage.RUNNING
        self._running.add(ticket)

    def _reserve_for(self, ticket: CommitTurn, now: float) -> bool:
        """Reserve the tables of *ticket*; return False if too many reservations of one of them stayed unused."""
        assert ticket.writer, "its retry is recognized by its snapshots"
        assert all(ticket.tables.isdisjoint(each.tables) for each in self._reserved), "a table has one reservation"
        assert all(ticket.tables.isdisjoint(each.tables) for each in self._in_turn), "a table has one turn at a time"
        if without := [table for table in ticket.tables if self._without.get(table)]:
            for table in without:
                self._without[table] -= 1
            return False
        self._reserved.append(_Reservation(ticket.tables, ticket.writer, now + self._reserve_s))
        return True
