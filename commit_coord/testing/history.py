"""Decides whether what was observed, in a simulation or on real servers, keeps the promises.

Evidence is plain values: what was asked and answered, what is in the table, who held which locks. Each ``check_…``
returns what does not hold, in words; nothing is the proof. Each begins with a name that is in bold in
``docs/guarantees.md``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.modes import compatible


class Answer(StrEnum):
    """The answer that the caller got."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """In doubt, or nothing at all: the writer died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One append: its mark is in the summary of its snapshot."""

    mark: str
    answer: Answer
    snapshot_id: int | None = None
    """As it was acknowledged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A change of rows that have keys; one writer alone changes the rows of a key.

    Args:
        answer: The answer that the writer got.
        values: Key → its new value; None where its row is deleted.
    """

    answer: Answer
    values: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of the pointer that was carried out: from *before* to *location*, asked for as from *base*."""

    by: str
    base: str
    before: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A client held *locks*, as it believed, from *begins* until *ends*."""

    who: str
    locks: tuple[tuple[Resource, LockMode], ...]
    begins: float
    ends: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call on a register: read it (*wrote* is None), or set it from *saw* to *wrote*.

    Args:
        saw: What a read returned, or what a write demanded.
        wrote: What a write put there.
        begins: When it was sent.
        ends: When it was answered; infinite when it never was.
    """

    saw: str
    wrote: str | None = None
    begins: float
    ends: float = math.inf


Body = Mapping[str, Any]
"""A metadata file as JSON."""


def places_of(body: Body, mark: str) -> dict[str, list[int]]:
    """Return the snapshots of a table by their marks; *mark* is the summary property that holds them."""
    places: dict[str, list[int]] = {}
    for snapshot in body["snapshots"]:
        if mark in snapshot["summary"]:
            places.setdefault(snapshot["summary"][mark], []).append(snapshot["snapshot-id"])
    return places


def check_appends(appends: Iterable[Append], body: Body, mark: str) -> list[str]:
    """Each acknowledged append is in the table once, a refused one never, any other one at most once.

    Args:
        appends: All that were tried.
        body: The table.
        mark: The summary property that holds the mark. Snapshots without it are nobody's.
    """
    return check_places(appends, places_of(body, mark))


def check_places(appends: Iterable[Append], places: Mapping[str, Sequence[int]]) -> list[str]:
    """As :func:`check_appends`, of marks and the snapshots in which each was found, once for each time."""
    broken, known = list[str](), set[str]()
    for append in appends:
        known.add(append.mark)
        found = places.get(append.mark, ())
        if append.answer is Answer.ACKNOWLEDGED and not found:
            broken.append(f"AcknowledgedStays: {append.mark} is not there")
        elif len(found) > 1:
            broken.append(f"NoneTwice: {append.answer} {append.mark} is there {len(found)} times")
        elif append.answer is Answer.REFUSED and found:
            broken.append(f"RefusedNever: {append.mark} is there")
        elif append.snapshot_id is not None and append.snapshot_id not in found:
            broken.append(f"AcknowledgedStays: {append.mark} is there as another snapshot than was answered")
    return broken + [f"NoneTwice: {each} is there and nobody wrote it" for each in places if each not in known]


def check_values(writes: Iterable[Write], rows: Sequence[tuple[str, int]]) -> list[str]:
    """Each key has the value of its last acknowledged write; or one of an unknown write after that; and one row.

    Args:
        writes: In the order of each key's.
        rows: All of the table.
    """
    allowed: dict[str, set[int | None]] = {}
    for write in writes:
        for key, value in write.values.items():
            before = allowed.get(key, {None})
            match write.answer:
                case Answer.ACKNOWLEDGED:
                    allowed[key] = {value}
                case Answer.REFUSED:
                    allowed[key] = before
                case Answer.UNKNOWN:
                    allowed[key] = {*before, value}
    there = dict(rows)
    counted = Counter(key for key, _ in rows)
    broken = [f"NoneTwice: {key} is there {times} times" for key, times in counted.items() if times > 1]
    broken += [f"NoneTwice: {key} is there and nobody wrote it" for key in there.keys() - allowed.keys()]
    return broken + [
        f"AcknowledgedStays: {key} is {there.get(key)} instead of {' or '.join(map(str, values))}"
        for key, values in allowed.items()
        if there.get(key) not in values
    ]


def check_answers(answered: Sequence[int | None], known: Collection[int]) -> list[str]:
    """Each acknowledged operation has a snapshot of its own that was once in the table.

    Args:
        answered: The snapshot that each was answered; None where its writer does not know.
        known: All that were ever in the table: some may have been expired.
    """
    given = Counter(one for one in answered if one is not None)
    broken = [f"AcknowledgedStays: snapshot {one} was never in the table" for one in given if one not in known]
    broken += [f"NoneTwice: snapshot {one} was answered {times} times" for one, times in given.items() if times > 1]
    if len(known) < len(answered):
        broken.append(f"AcknowledgedStays: {len(known)} snapshots for {len(answered)} acknowledged operations")
    return broken


def ancestry(body: Body) -> list[int]:
    """Return the current snapshot and its ancestors, as far back as their sequence numbers are one apart."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in body["snapshots"]}
    found: list[int] = []
    current, younger = snapshots.get(body.get("current-snapshot-id")), None
    while current is not None and (younger is None or current["sequence-number"] == younger["sequence-number"] - 1):
        found.append(current["snapshot-id"])
        current, younger = snapshots.get(current.get("parent-snapshot-id")), current
    return found


def check_snapshots(body: Body) -> list[str]:
    """The snapshots are one line: each has the number after its parent's, the current one is the last, times grow.

    Those of PyIceberg's own catalog need not: it dates a snapshot, and the metadata file with it, before it waits for
    the lock.
    """
    broken = []
    parent, number = None, 0
    for snapshot in body["snapshots"]:
        number += 1
        if snapshot.get("parent-snapshot-id") != parent:
            broken.append(f"Unbroken: snapshot {number} has the parent {snapshot.get('parent-snapshot-id')}")
        if snapshot["sequence-number"] != number:
            broken.append(f"Unbroken: snapshot {number} has the sequence number {snapshot['sequence-number']}")
        parent = snapshot["snapshot-id"]
    if body["last-sequence-number"] != number:
        broken.append(f"Unbroken: the last sequence number is {body['last-sequence-number']} of {number}")
    if (body.get("current-snapshot-id") or None) != parent:
        broken.append("Unbroken: the current snapshot is not the last one")
    foreign = {each["timestamp-ms"] for each in body["snapshots"] if REQUEST_ID not in each.get("summary", {})}
    for name in ("snapshots", "snapshot-log", "metadata-log"):
        times = [entry["timestamp-ms"] for entry in body[name] if entry["timestamp-ms"] not in foreign]
        if times != sorted(times):
            broken.append(f"Unbroken: the times of the {name} step back")
    logged = [entry["snapshot-id"] for entry in body["snapshot-log"]]
    if logged != [snapshot["snapshot-id"] for snapshot in body["snapshots"]]:
        broken.append("Unbroken: the snapshot log is another line")
    return broken


def check_line(
    location: str, read: Callable[[str], Body], *, files: float = math.inf, expiring: bool = False
) -> tuple[list[str], list[str]]:
    """Each metadata file names the one before it, and tells the same of what was before.

    What the log of the newest names must be there. Older files may be gone where the table says that they are deleted.

    Args:
        location: The newest.
        read: Reads one; raises OSError where it is not there.
        files: As many are read.
        expiring: Snapshots may have been expired.

    Returns:
        The files, newest first, as far back as their logs lead; and what is broken.
    """
    line, broken = [location], list[str]()
    body = read(location)
    named = {entry["metadata-file"] for entry in body["metadata-log"]}
    may_be_gone = body.get("properties", {}).get("write.metadata.delete-after-commit.enabled") == "true"
    while len(line) < files and (log := body["metadata-log"]):
        before = log[-1]["metadata-file"]
        if before in line:
            return line, [*broken, f"Unbroken: {before} comes after itself"]
        try:
            older = read(before)
        except OSError:
            if may_be_gone and before not in named:
                break
            return [*line, before], [*broken, f"Unbroken: {before} is in the log, and is not there"]
        line.append(before)
        # A log has a bounded length: the end of the older one, and the older one itself.
        logged = [entry["metadata-file"] for entry in log[:-1]]
        known = [entry["metadata-file"] for entry in older["metadata-log"]]
        if logged and known[-len(logged) :] != logged:
            broken.append(f"Unbroken: {line[-2]} and {before} tell different lines")
        names = {snapshot["snapshot-id"] for snapshot in body["snapshots"]}
        if not expiring and any(snapshot["snapshot-id"] not in names for snapshot in older["snapshots"]):
            broken.append(f"AcknowledgedStays: {line[-2]} lacks snapshots of {before}")
        if expiring and not _goes_on(older, body):
            broken.append(f"Unbroken: the snapshots of {line[-2]} do not go on from those of {before}")
        body = older
    return line, broken


def _goes_on(older: Body, newer: Body) -> bool:
    """Return whether the current snapshot of *newer* is that of *older*, or leads back to it."""
    before, current = older.get("current-snapshot-id"), newer.get("current-snapshot-id")
    if before in (None, -1):
        return True
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in newer["snapshots"]}
    while current != before and current in snapshots:
        current = snapshots[current].get("parent-snapshot-id")
    return bool(current == before and newer["last-sequence-number"] >= older["last-sequence-number"])


def check_seen(seen: Sequence[str], line: Sequence[str]) -> list[str]:
    """Each metadata file that once was the table is in its line, and the table never went back.

    Args:
        seen: What the pointer was, in the order of time.
        line: The metadata files, newest first.
    """
    places = {location: place for place, location in enumerate(reversed(line))}
    broken = [f"Unbroken: {one} was the table, and is not in its line" for one in seen if one not in places]
    order = [places[location] for location in seen if location in places]
    if order != sorted(order):
        broken.append("Unbroken: the table went back in its line")
    return broken


def check_changes(changes: Sequence[Change], line: Sequence[str], *, heedless: Collection[str] = ()) -> list[str]:
    """Each change of the pointer was made to the head that it was built on, and is in the line.

    Args:
        changes: In their order.
        line: The metadata files.
        heedless: Writers that set without a condition, under a lock alone. What they put theirs over is lost, and must
            not have been acknowledged.
    """
    broken, lost = list[str](), set[str]()
    for change in changes:
        if change.before in (change.base, change.location):
            continue
        lost.add(change.before)
        if change.by not in heedless:
            broken.append(
                f"Unbroken: {change.location} of {change.by} was built on {change.base} and put over {change.before}"
            )
    return broken + [
        f"Unbroken: {change.location} of {change.by} is not in the line"
        for change in changes
        if change.location not in line and not (heedless and change.location in lost)
    ]


def check_files(paths: Iterable[str], exists: Callable[[str], bool]) -> list[str]:
    """Every file that the table refers to is there."""
    return [f"RefusedNever: {path} is referred to, and is gone" for path in paths if not exists(path)]


def check_holds(holds: Sequence[Hold]) -> list[str]:
    """Nobody believes to hold what another one has in conflict."""
    broken: list[str] = []
    ordered = sorted(holds, key=lambda hold: hold.begins)
    for position, younger in enumerate(ordered):
        wanted = dict(younger.locks)
        broken += [
            f"BeliefIsTrue: {older.who} still believed in its lease when {younger.who} was granted, "
            f"at {younger.begins:.3f} s of {older.ends:.3f} s"
            for older in ordered[:position]
            if older.ends > younger.begins
            and any(name in wanted and not compatible(wanted[name], mode) for name, mode in older.locks)
        ]
    return broken


def check_register(calls: Sequence[Call], initial: str) -> list[str]:
    """Is there an order of *calls*, each somewhere between its begin and its end, that one register would answer so?

    A write whose answer never came (*ends* is infinite) may have been carried out at any time, or never. One that was
    refused must not be among *calls*.

    Source: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); states that were tried before are not
    tried again (Lowe, 2017).
    """
    ordered = tuple(sorted(calls, key=lambda call: (call.begins, call.ends)))
    tried: set[tuple[int, str]] = set()
    stack = [(0, initial)]
    must = sum(1 << i for i, call in enumerate(ordered) if call.ends < math.inf)
    while stack:
        done, value = stack.pop()
        if done & must == must:
            return []
        if (done, value) in tried:
            continue
        tried.add((done, value))
        open_calls = [i for i in range(len(ordered)) if not done >> i & 1]
        first_end = min(ordered[i].ends for i in open_calls)
        for i in open_calls:
            call = ordered[i]
            if call.begins <= first_end and call.saw == value:
                stack.append((done | 1 << i, value if call.wrote is None else call.wrote))
    return ["Unbroken: no order of these calls explains what they were answered: " + "; ".join(map(str, ordered))]
