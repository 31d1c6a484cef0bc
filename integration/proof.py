"""What the journals of the writers and the table say together.

Theory of operation
    There must be one row for each key, with the value of the last acknowledged change; where a writer got neither,
    the row as it was before will do too.

    Compaction and the expiry of snapshots change no row, but take files and snapshots away: a snapshot that was
    acknowledged need not be there in the end. It must have been there once, so the history is proved from the metadata
    files, which nobody deletes: each names the one before it, and all of them must be one chain, in which the snapshots
    are one chain, too. A watcher notes what the metastore points to all the while: a location that it saw and that the
    chain does not have was overwritten.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from commit_coord.testing.history import Answer, Write, check_answers, check_line, check_seen, check_values
from integration.writers import Answered, read


@dataclass(slots=True)
class Proof:
    """What was found.

    Args:
        answers: The answers that each writer got, by writer.
        swaps: Metadata files after the first.
        broken: What does not hold, in words.
    """

    answers: dict[str, list[Answered]]
    swaps: int = 0
    broken: list[str] = field(default_factory=list)

    def count(self, end: str, writer: str = "") -> int:
        """Return how many changes ended so, of the writers whose names begin so."""
        return sum(one.end == end for name, all_ in self.answers.items() if name.startswith(writer) for one in all_)

    def __str__(self) -> str:
        """Return the counts, by writer."""
        ends = ", ".join(
            f"{name}: {dict(Counter(f'{one.step} {one.end}' for one in all_))}" for name, all_ in self.answers.items()
        )
        return f"{self.swaps} swaps; {ends}; broken: {self.broken}"


def prove(journals: Sequence[Path], seen: Sequence[str], head: str, rows: Sequence[tuple[str, int]]) -> Proof:
    """Hold the answers of the writers against the table.

    Args:
        journals: Of the writers.
        seen: What the watcher saw.
        head: The metadata location in the end.
        rows: All rows in the end.
    """
    proof = Proof({path.stem: read(path) for path in journals})
    answers = [one for all_ in proof.answers.values() for one in all_]
    line, broken = check_line(head, _body, expiring=True)
    proof.swaps = len(line) - 1
    broken += check_seen(seen, line)
    broken += check_values((Write(answer=Answer(one.end), values=one.change) for one in answers), rows)
    known = {snapshot["snapshot-id"] for location in line for snapshot in _body(location)["snapshots"]}
    # Not one for each swap: with ZooKeeper's lock, one of ours carries out what others wait to append.
    acknowledged = [one.snapshot_id for one in answers if one.end == "acknowledged" and one.change]
    proof.broken = broken + check_answers(acknowledged, known)
    return proof


@dataclass(frozen=True, slots=True, order=True)
class Pause:
    """The time between two acknowledgements, of whatever writers.

    Args:
        seconds: How long.
        phase: In which the table was; ``hms to both`` where it changed meanwhile.
        after: What ended it: a step and whose.
        since: Seconds from when each writer had been acknowledged once until it began.
    """

    seconds: float
    phase: str
    after: str
    since: float

    def __str__(self) -> str:
        """Return ``0.51 s in both, after 12 s, until insert of pinned-0``."""
        return f"{self.seconds:.2f} s in {self.phase}, after {self.since:.0f} s, until {self.after}"


def pauses(answers: Mapping[str, Sequence[Answered]], head: str) -> list[Pause]:
    """Return the pauses from when each writer has been acknowledged once, the longest first.

    Before that processes start, and wait for the processor rather than for the table.

    Args:
        answers: The answers that each writer got.
        head: The metadata location in the end.
    """
    acknowledged = {
        name: [one for one in all_ if one.end == "acknowledged" and one.change] for name, all_ in answers.items()
    }
    start = max(all_[0].ended for all_ in acknowledged.values() if all_)
    done = sorted(
        (one.ended, f"{one.step} of {name}")
        for name, all_ in acknowledged.items()
        for one in all_
        if one.ended >= start
    )
    phases = [
        (body["last-updated-ms"] / 1000, body["properties"].get("commit-coord.lock-phase", "hms"))
        for body in map(_body, reversed(check_line(head, _body, expiring=True)[0]))
    ]
    found = []
    for (before, _), (end, after) in pairwise(done):
        here = [phase for at, phase in phases if at <= before][-1:] + [p for at, p in phases if before < at <= end]
        found.append(Pause(end - before, " to ".join(dict.fromkeys(here)), after, before - start))
    return sorted(found, reverse=True)


def longest_pauses(answers: Mapping[str, Sequence[Answered]], head: str) -> str:
    """Return the longest pause in each phase and of each change, and how many there were."""
    by_phase: dict[str, list[Pause]] = {}
    for pause in pauses(answers, head):
        by_phase.setdefault(pause.phase, []).append(pause)
    return "\n".join(f"{all_[0]}, the longest of {len(all_)}" for all_ in by_phase.values())


def _body(location: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(Path(urlsplit(location).path).read_bytes())
    return body
