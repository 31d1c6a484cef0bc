"""What is known of the run while it goes on, and how that looks: a live table, plain lines, a closing table."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commit_coord.demo.notes import Record
from commit_coord.demo.run import DRIVERS, FEEDS, IMPATIENT, PROCESSES, WRITERS, table_of, writers_of

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_BAR = 18
_RATE_SECONDS = 3.0


@dataclass(slots=True, kw_only=True)
class WriterState:
    """One writer, according to its reports.

    Args:
        name: The writer.
        expected: How many commits it will make.
        commits: Acknowledged ones, at (seconds, wait in ms); those that were answered have no wait.
        rows: Acknowledged.
        retries: Swaps that had to be repeated.
        rebased: Commits that found a head that had moved.
        refused: Refusals, at (seconds, wait in ms).
        answered: Commits that had landed before the writer was started again.
        begun: When it began, each time.
        ended: When it had done all.
    """

    name: str
    expected: int
    commits: list[tuple[float, float | None]] = field(default_factory=list)
    rows: int = 0
    retries: int = 0
    rebased: int = 0
    refused: list[tuple[float, float | None]] = field(default_factory=list)
    answered: int = 0
    begun: list[float] = field(default_factory=list)
    ended: float | None = None
    seen: set[str] = field(default_factory=set)

    @property
    def is_done(self) -> bool:
        """Whether all its commits are acknowledged."""
        return len(self.commits) >= self.expected

    @property
    def waits(self) -> list[float]:
        """How long each commit waited for its latch, in ms."""
        return [wait for _, wait in self.commits if wait is not None]


@dataclass(slots=True, kw_only=True)
class Kill:
    """The SIGKILL.

    Args:
        process: Whom.
        pid: Its process id.
        at: When, in seconds.
        acknowledged: How many of its commits were acknowledged, by its synced notes.
        of: How many it had to make.
        started_again: When it was ready again.
    """

    process: str
    pid: int
    at: float
    acknowledged: int
    of: int
    started_again: float | None = None


class Board:
    """The state of the run.

    Args:
        expected: Commits that each writer will make.
    """

    def __init__(self, expected: dict[str, int]) -> None:
        self.writers = {name: WriterState(name=name, expected=expected[name]) for name in WRITERS}
        self.ready: set[str] = set()
        self.kill: Kill | None = None
        self.held = self.waiting = 0
        self.queue: list[tuple[float, int]] = []
        self.origin = 0.0
        self._recent: deque[float] = deque()

    def take(self, record: Record) -> None:
        """Take a line of the events."""
        at = record["t"] - self.origin
        if record["kind"] == "ready":
            self.ready.add(record["process"])
            if self.kill is not None and record["process"] == self.kill.process and self.kill.started_again is None:
                self.kill.started_again = at
        writer = self.writers.get(record.get("writer", ""))
        if writer is None:
            return
        match record["kind"]:
            case "begin":
                writer.begun.append(at)
            case "end":
                writer.ended = at
            case "refused":
                writer.refused.append((at, record.get("waited_ms")))
            case "commit" if record["request_id"] not in writer.seen:
                writer.seen.add(record["request_id"])
                writer.commits.append((at, record.get("waited_ms")))
                writer.rows += record["rows"]
                writer.retries += max(0, record.get("tries", 1) - 1)
                writer.rebased += bool(record.get("rebased"))
                writer.answered += bool(record["answered"])
                self._recent.append(at)
            case "commit":
                writer.answered += 1

    @property
    def commits(self) -> int:
        """Acknowledged commits."""
        return sum(len(writer.commits) for writer in self.writers.values())

    @property
    def rows(self) -> int:
        """Acknowledged rows."""
        return sum(writer.rows for writer in self.writers.values())

    @property
    def refused(self) -> int:
        """Refused commits."""
        return sum(len(writer.refused) for writer in self.writers.values())

    def months_done(self, process: str) -> int:
        """Return how many of the months of a driver are acknowledged."""
        return sum(self.writers[name].is_done for name in writers_of(process))

    def rate(self, now: float) -> float:
        """Return commits a second of late."""
        while self._recent and self._recent[0] < now - _RATE_SECONDS:
            self._recent.popleft()
        return len(self._recent) / min(_RATE_SECONDS, max(now, 0.5))

    # How it looks.

    def live(self, now: float, phase: str) -> RenderableType:
        """Return the table that is shown while it goes on."""
        made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        made.add_column("process", min_width=8, no_wrap=True)
        made.add_column("", min_width=_BAR + 5, no_wrap=True)
        for column in ("commits", "rows", "p50 ms", "max ms", "refused"):
            made.add_column(column, justify="right", min_width=7, no_wrap=True)
        for process in PROCESSES:
            states = [self.writers[name] for name in writers_of(process)]
            waits = [wait for state in states for wait in state.waits]
            refused = sum(len(state.refused) for state in states)
            made.add_row(
                process,
                self._months(process, states) if process in DRIVERS else self._bar(states[0]),
                f"{sum(len(state.commits) for state in states):,}",
                f"{sum(state.rows for state in states):,}",
                _ms(quantile(waits, 0.5)),
                _ms(max(waits, default=None)),
                Text(str(refused), style="yellow") if refused else "",
            )
        head = Text.assemble(
            (phase, "bold"),
            f"  {now:.1f} s   {self.commits:,} commits, {self.rate(now):.0f}/s   {self.rows:,} rows   "
            f"locks: {self.held} held, {self.waiting} waiting",
        )
        return Group(head, "", made, *([Text(""), self._kill_text()] if self.kill else []))

    def line(self, now: float) -> str:
        """Return one plain line of progress, for logs and pipes."""
        months = sum(state.is_done for name, state in self.writers.items() if table_of(name) == "flights")
        return (
            f"{now:6.1f} s  {self.commits:5,} commits ({self.rate(now):.0f}/s)  {self.rows:7,} rows  "
            f"months {months}/12  locks {self.held} held, {self.waiting} waiting  refused {self.refused}"
        )

    def kill_line(self) -> str:
        """Return what there is to say of the kill."""
        assert self.kill is not None
        kill = self.kill
        text = (
            f"SIGKILL to {kill.process} (pid {kill.pid}) at {kill.at:.1f} s, with {kill.acknowledged} of "
            f"{kill.of} commits acknowledged"
        )
        again = f"running again at {kill.started_again:.1f} s" if kill.started_again else "starting it again"
        return f"{text}; {again}"

    def _kill_text(self) -> Text:
        return Text.assemble(("✖ ", "bold red"), (self.kill_line(), "red"))

    def _months(self, process: str, states: Sequence[WriterState]) -> Text:
        text = Text()
        restarting = self.kill is not None and self.kill.process == process and self.kill.started_again is None
        for month, state in zip(DRIVERS[process], states, strict=True):
            name = _MONTHS[month - 1]
            if state.is_done:
                text.append(f"✔{name}  ", "green")
            elif restarting:
                text.append(f"✖{name}  ", "red")
            elif state.begun:
                text.append(f"▶{name}  ", "cyan")
            else:
                text.append(f"·{name}  ", "dim")
        return text

    def _bar(self, state: WriterState) -> Text:
        share = len(state.commits) / state.expected
        full = math.floor(share * _BAR)
        style = "green" if share >= 1 else "cyan"
        return Text.assemble(("━" * full, style), ("─" * (_BAR - full), "dim"), f" {share:4.0%}")

    def closing(self, *, wide: bool) -> Table:
        """Return the table at the end: every writer, with its table where there is room."""
        made = Table(
            title="What the writers reported", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
        )
        made.add_column("writer", no_wrap=True)
        if wide:
            made.add_column("table", no_wrap=True)
        for column in ("commits", "rows", "re-based", "retries", "refused", "wait p50", "wait p99"):
            made.add_column(column, justify="right", no_wrap=True)
        for record in self.records():
            made.add_row(
                f"{record['writer']}{' ✖' if record['killed'] else ''}",
                *([record["table"]] if wide else []),
                f"{record['commits']:,}",
                f"{record['rows']:,}",
                str(record["rebased"]),
                str(record["retries"]),
                str(record["refused"]),
                _ms(record["wait_p50_ms"]),
                _ms(record["wait_p99_ms"]),
            )
        waits = [wait for state in self.writers.values() for wait in state.waits]
        made.add_section()
        states = self.writers.values()
        made.add_row(
            "all",
            *([""] if wide else []),
            f"{self.commits:,}",
            f"{self.rows:,}",
            str(sum(state.rebased for state in states)),
            str(sum(state.retries for state in states)),
            str(self.refused),
            _ms(quantile(waits, 0.5)),
            _ms(quantile(waits, 0.99)),
            style="bold",
        )
        notes = "Waits are for the commit latch, in milliseconds. "
        notes += f"{IMPATIENT} gives up after a few, is refused, and asks again."
        if self.kill is not None:
            notes += f" ✖: a month that {self.kill.process} was killed in the middle of."
        made.caption, made.caption_justify, made.caption_style = notes, "left", "dim"
        return made

    def records(self) -> list[dict[str, Any]]:
        """Return every writer's figures."""
        found = []
        for name, state in self.writers.items():
            found.append(
                {
                    "writer": name,
                    "table": table_of(name),
                    "commits": len(state.commits),
                    "rows": state.rows,
                    "rebased": state.rebased,
                    "retries": state.retries,
                    "refused": len(state.refused),
                    "answered": state.answered,
                    "killed": len(state.begun) > 1 and not state.answered,
                    "wait_p50_ms": quantile(state.waits, 0.5),
                    "wait_p99_ms": quantile(state.waits, 0.99),
                }
            )
        return found


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that *share* of *values* do not exceed; None of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


assert all(feed in WRITERS for feed in FEEDS)
