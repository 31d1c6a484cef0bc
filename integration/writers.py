"""Writers of three kinds on one table, what each of them was told, and the proof of what became of the table.

Theory of operation
    A writer owns the rows whose keys begin with its name, and changes no others. After each change it writes to a
    journal of its own what it was told: that the change is acknowledged, that it was refused, or neither; before it,
    that it was killed, which stays there if it was. So what must be in the table follows from the journals alone: one
    row for each key, with the value of the last acknowledged change; where a writer was told neither, the row as it was
    before will do too.

    Compaction and the expiry of snapshots change no row, but take files and snapshots away: a snapshot that was
    acknowledged need not be there in the end. It must have been there once, so the history is proved from the metadata
    files, which nobody deletes: each names the one before it, and all of them must be one chain, in which the snapshots
    are one chain, too. A watcher notes what the metastore points to all the while: a location that it saw and that the
    chain does not have was overwritten.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal, TextIO
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

import commit_coord
from commit_coord.errors import MetastoreUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.table.table import CoordinatedTable
from commit_coord.testing.plain import open_plain
from integration.conftest import Java

Kind = Literal["commit_coord", "pyiceberg", "java"]

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])

PROPERTIES = {
    # Whoever meets another commit tries again, all of them equally often.
    "commit.retry.num-retries": "50",
    "commit.retry.max-wait-ms": "200",
    # A MERGE joins, so by default any new file is a conflict: here no two writers change the same rows.
    "write.merge.isolation-level": "snapshot",
}
"""Of the table."""

PYTHON = ("insert", "insert", "update", "insert", "delete")
INSERTS = ("insert",)
JAVA = ("insert", "merge", "compact", "insert", "delete", "insert", "expire")
"""What writers do, over and over."""

_TUNED = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.2", "lock-check-retries": "1000"}
"""Seconds. With PyIceberg's own times one of four writers waits for half a minute."""

_LEAD = 5
"""Acknowledgements that a writer may be ahead of any other one."""

KILLED = "killed"
"""What a writer was told of a change that it did not live to see."""

ENOUGH = "enough"
"""The file beside the journals that ends the writers."""

Change = dict[str, int | None]
"""Key → the new value; None where the row is deleted."""

Apply = Callable[[str, Change], int | None]
"""Carries out one step and returns the id of the snapshot that it made, None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a writer was told of its change of that number."""

    number: int
    step: str
    change: Change
    end: Literal["acknowledged", "refused", "unknown"]
    error: str = ""
    snapshot_id: int | None = None
    began: float = 0.0
    """When, in seconds on this machine's clock."""
    ended: float = 0.0


# Write.


def write(
    journal: Path, steps: Sequence[str], apply: Apply, *, rest_s: float | None = None, gives_up: bool = False
) -> None:
    """Do *steps* over and over until there is :data:`ENOUGH`; note in *journal* what became of each.

    A writer ends alone when there is a file of its own, ``<name>.enough``.

    Whoever is far ahead of another writer waits for it: one that reads the table before it locks it gets nowhere
    beside those that lock it first and never pause. With *rest_s* it waits for nobody, and rests so long instead.
    One that *gives_up* ends when it can't tell what became of a change, and with it what it may have left.
    """
    name, rows, number = journal.stem, dict[str, int](), 0
    all_ = sorted(journal.parent.glob("*.jsonl"))
    place = all_.index(journal)
    with journal.open("a") as log:
        while not journal.with_name(ENOUGH).exists() and not _ended(journal):
            if (
                rest_s is None
                and _acknowledged(journal) > min(_acknowledged(one) for one in all_ if not _ended(one)) + _LEAD
            ):
                time.sleep(0.05)
                continue
            step = steps[(number + place) % len(steps)]  # else all would begin alike and, waiting, stay together
            change = _next(name, number, step, rows)
            began = Told(number=number, step=step, change=change, end="unknown", error=KILLED, began=time.time())
            number += 1
            _note(log, began)
            told = replace(_told(apply, began), ended=time.time())
            _note(log, told)
            if told.end != "refused":
                for key, value in change.items():
                    rows.pop(key, None)
                    if told.end == "acknowledged" and value is not None:
                        rows[key] = value
            if gives_up and told.end == "unknown":
                return
            time.sleep(rest_s or 0.0)


def _note(log: TextIO, told: Told) -> None:
    log.write(json.dumps({slot: getattr(told, slot) for slot in Told.__slots__}) + "\n")
    log.flush()
    os.fsync(log.fileno())


def end(journal: Path) -> None:
    """Have the writer of *journal* end."""
    journal.with_suffix(".enough").touch()


def _ended(journal: Path) -> bool:
    return journal.with_suffix(".enough").exists()


def _next(name: str, number: int, step: str, rows: Mapping[str, int]) -> Change:
    """Return the change of a step; the oldest of the own *rows* is what is changed."""
    new: Change = {f"{name}-{number}-{row}": 0 for row in range(3)}
    old = next(iter(rows), None)
    match step:
        case "update" if old is not None:
            return {old: rows[old] + 1}
        case "delete" if old is not None:
            return {old: None}
        case "merge" if old is not None:
            return {**new, old: rows[old] + 1}
        case "compact" | "expire":
            return {}
        case _:
            return new


def _told(apply: Apply, began: Told) -> Told:
    try:
        return replace(began, end="acknowledged", error="", snapshot_id=apply(began.step, began.change))
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the journal
        # Java's errors come as text.
        text = f"{type(error).__name__}: {error}"
        refusals = (CommitFailedException, ValidationException)
        refused = isinstance(error, refusals) or any(f".exceptions.{kind.__name__}" in text for kind in refusals)
        refused &= CommitStateUnknownException.__name__ not in text
        return replace(began, end="refused" if refused else "unknown", error=text[:2000])


def start_python(
    kind: Kind,
    journal: Path,
    table: str,
    properties: Mapping[str, str],
    *,
    steps: Sequence[str] = PYTHON,
    rest_s: float | None = None,
    gives_up: bool = False,
) -> ForkServerProcess:
    """Start a process that writes with our catalog or PyIceberg's own; see :func:`write`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["integration.writers", "commit_coord.catalog.hive", "pyiceberg.io.pyarrow"])
    process = context.Process(
        target=_write_python, args=(kind, journal, table, dict(properties), steps, rest_s, gives_up), daemon=True
    )
    process.start()
    return process


def _write_python(
    kind: Kind,
    journal: Path,
    name: str,
    properties: Mapping[str, str],
    steps: Sequence[str],
    rest_s: float | None,
    gives_up: bool,
) -> None:
    if kind == "commit_coord":
        catalog: Any = commit_coord.load_catalog(journal.stem, **properties)
    else:
        catalog = open_plain(properties["uri"], **_TUNED)
    table = catalog.load_table(name)

    def apply(step: str, change: Change) -> int | None:
        try:
            _change(table, change)
        except BaseException:
            with suppress(Exception):
                table.refresh()
            raise
        snapshot = table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    write(journal, steps, apply, rest_s=rest_s, gives_up=gives_up)
    catalog.close()


def _change(table: Any, change: Change) -> None:
    rows = pa.table({"key": list(change), "value": list(change.values())}, schema=SCHEMA)
    match list(change.items()):
        case [(key, None)]:
            table.delete(f"key = '{key}'")
        case [(key, _)]:
            # What is written comes from the writer's own journal: nobody else changes these keys.
            own = {"reads": commit_coord.NOTHING} if isinstance(table, CoordinatedTable) else {}
            table.overwrite(rows, f"key = '{key}'", **own)
        case _:
            table.append(rows)


def write_java(
    java: Java,
    journal: Path,
    catalog: str,
    table: str,
    steps: Sequence[str] = JAVA,
    *,
    rest_s: float | None = None,
    turn: AbstractContextManager[object] | None = None,
) -> None:
    """Write with Java's HiveCatalog through Spark SQL, in this thread; each step within *turn*."""
    full = f"{catalog}.{table}"

    def apply(step: str, change: Change) -> None:
        with turn or nullcontext():
            carry_out(step, change)

    def carry_out(step: str, change: Change) -> None:
        rows = ", ".join(f"('{key}', {value})" for key, value in change.items())
        keys = ", ".join(f"'{key}'" for key in change)
        match step:
            case "compact":
                options = "map('min-input-files', '2')"
                java.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => {options})")
            case "expire":
                now = f"TIMESTAMP '{datetime.now(UTC).isoformat(sep=' ', timespec='milliseconds')}'"
                options = f"older_than => {now}, retain_last => 20"
                java.sql(f"CALL {catalog}.system.expire_snapshots(table => '{table}', {options})")
            case "delete" if list(change.values()) == [None]:
                java.sql(f"DELETE FROM {full} WHERE key IN ({keys})")
            case "merge":
                java.sql(
                    f"MERGE INTO {full} t USING (SELECT * FROM VALUES {rows} AS s(key, value)) s "
                    f"ON t.key = s.key AND t.key IN ({keys}) "
                    "WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT *"
                )
            case _:
                java.sql(f"INSERT INTO {full} VALUES {rows}")

    write(journal, steps, apply, rest_s=rest_s)


def await_enough(journals: Sequence[Path], commits: int, *, alive: Callable[[], bool]) -> None:
    """Return when *commits* were acknowledged, or not all are *alive*; then the writers end, too."""
    try:
        await_acknowledged(journals, commits, alive=alive)
    finally:
        journals[0].with_name(ENOUGH).touch()


def await_acknowledged(journals: Sequence[Path], commits: int, *, alive: Callable[[], bool]) -> None:
    """Return when *commits* more than now were acknowledged, or not all are *alive*."""
    wanted = sum(map(_acknowledged, journals)) + commits
    while alive() and sum(map(_acknowledged, journals)) < wanted:
        time.sleep(0.2)


@contextmanager
def watched(metastore: str, table: str) -> Iterator[list[str]]:
    """Note every location that *table* is seen at, in their order, until the end."""
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        with MetastoreClient.of(metastore) as client:
            while not over.wait(0.1):
                with suppress(MetastoreUnavailable):
                    location = client.get_table(*table.split(".")).parameters["metadata_location"]
                    if location not in seen[-1:]:
                        seen.append(location)
            client.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


# Prove.


@dataclass(slots=True)
class Proof:
    """What was found.

    Args:
        told: What each writer was told, by writer.
        swaps: Metadata files after the first.
        broken: What does not hold, in words.
    """

    told: dict[str, list[Told]]
    swaps: int = 0
    broken: list[str] = field(default_factory=list)

    def count(self, end: str, writer: str = "") -> int:
        """Return how many changes ended so, of the writers whose names begin so."""
        return sum(told.end == end for name, all_ in self.told.items() if name.startswith(writer) for told in all_)

    def __str__(self) -> str:
        """Return the counts, by writer."""
        ends = ", ".join(
            f"{name}: {dict(Counter(f'{told.step} {told.end}' for told in all_))}" for name, all_ in self.told.items()
        )
        return f"{self.swaps} swaps; {ends}; broken: {self.broken}"


def prove(journals: Sequence[Path], seen: Sequence[str], head: str, rows: Sequence[tuple[str, int]]) -> Proof:
    """Hold what the writers were told against the table.

    Args:
        journals: Of the writers.
        seen: What the watcher saw.
        head: The metadata location in the end.
        rows: All rows in the end.
    """
    proof = Proof({path.stem: _read(path) for path in journals})
    chain = _chain(head)
    proof.swaps = len(chain) - 1
    broken = proof.broken

    broken += [f"{key} is there {times} times" for key, times in Counter(key for key, _ in rows).items() if times > 1]
    there = dict(rows)
    allowed = _allowed(proof.told)
    broken += [f"nobody wrote {key}" for key in there.keys() - allowed.keys()]
    broken += [
        f"{key} is {there.get(key)} instead of {' or '.join(map(str, values))}"
        for key, values in allowed.items()
        if there.get(key) not in values
    ]

    places = {location: place for place, location in enumerate(chain)}
    broken += [f"{location} was the table, and is not in its history" for location in seen if location not in places]
    order = [places[location] for location in seen if location in places]
    if order != sorted(order):
        broken.append("the table went back in its history")

    files = [json.loads(_path(location).read_bytes()) for location in chain]
    for place, (older, newer) in enumerate(pairwise(files)):
        broken += [f"{chain[place + 1]}: {what}" for what in _breaks(older, newer, chain[place])]
    known = {snapshot["snapshot-id"] for body in files for snapshot in body["snapshots"]}
    changes = [told for all_ in proof.told.values() for told in all_ if told.end == "acknowledged" and told.change]
    broken += [
        f"the snapshot of {told.change} was never in the table"
        for told in changes
        if told.snapshot_id is not None and told.snapshot_id not in known
    ]
    # Not the swaps: with ZooKeeper's lock, one of ours carries out what others wait to append, a snapshot for each.
    if len(known) < len(changes):
        broken.append(f"{len(known)} snapshots for {len(changes)} acknowledged changes")
    answered = Counter(told.snapshot_id for told in changes if told.snapshot_id is not None)
    broken += [f"the snapshot {one} was answered to {times} changes" for one, times in answered.items() if times > 1]
    return proof


def _read(journal: Path) -> list[Told]:
    """Return what *journal* says last of each change; a line that is being written says nothing yet."""
    lines = journal.read_text().splitlines(keepends=True)
    told = [Told(**json.loads(line)) for line in lines if line.endswith("\n")]
    return list({one.number: one for one in told}.values())


@dataclass(frozen=True, slots=True, order=True)
class Pause:
    """The time between two acknowledgements, whoever got them.

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


def pauses(told: Mapping[str, Sequence[Told]], head: str) -> list[Pause]:
    """Return the pauses from when each writer has been acknowledged once, the longest first.

    Before that processes start, and wait for the processor rather than for the table.

    Args:
        told: What each writer was told.
        head: The metadata location in the end.
    """
    acknowledged = {
        name: [one for one in all_ if one.end == "acknowledged" and one.change] for name, all_ in told.items()
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
        for body in (json.loads(_path(location).read_bytes()) for location in _chain(head))
    ]
    found = []
    for (before, _), (end, after) in pairwise(done):
        here = [phase for at, phase in phases if at <= before][-1:] + [p for at, p in phases if before < at <= end]
        found.append(Pause(end - before, " to ".join(dict.fromkeys(here)), after, before - start))
    return sorted(found, reverse=True)


def longest_pauses(told: Mapping[str, Sequence[Told]], head: str) -> str:
    """Return the longest pause in each phase and of each change, and how many there were."""
    by_phase: dict[str, list[Pause]] = {}
    for pause in pauses(told, head):
        by_phase.setdefault(pause.phase, []).append(pause)
    return "\n".join(f"{all_[0]}, the longest of {len(all_)}" for all_ in by_phase.values())


def has_written(journal: Path) -> bool:
    """Return whether its writer was acknowledged something."""
    return _acknowledged(journal) > 0


def _acknowledged(journal: Path) -> int:
    return sum(told.end == "acknowledged" for told in _read(journal))


def _allowed(told: Mapping[str, Sequence[Told]]) -> dict[str, set[int | None]]:
    """Return what each key may have as its value; None where it may be absent."""
    allowed: dict[str, set[int | None]] = {}
    for one in (one for all_ in told.values() for one in all_):
        for key, value in one.change.items():
            before = allowed.get(key, {None})
            match one.end:
                case "acknowledged":
                    allowed[key] = {value}
                case "refused":
                    allowed[key] = before
                case "unknown":
                    allowed[key] = {*before, value}
    return allowed


def _chain(head: str) -> list[str]:
    """Return every metadata location back from *head*, the oldest first."""
    chain = [head]
    while log := json.loads(_path(chain[-1]).read_bytes())["metadata-log"]:
        chain.append(log[-1]["metadata-file"])
    return chain[::-1]


def _breaks(older: dict[str, Any], newer: dict[str, Any], older_location: str) -> Iterator[str]:
    """Yield what keeps *newer* from being the next version after *older*."""
    log = [entry["metadata-file"] for entry in newer["metadata-log"]]
    before = [entry["metadata-file"] for entry in older["metadata-log"]]
    if log != [*before, older_location][-len(log) :]:
        yield "its log does not continue the one before"
    # Its new snapshots lead back to what was current before.
    known, snapshots = older.get("current-snapshot-id"), {one["snapshot-id"]: one for one in newer["snapshots"]}
    current = newer.get("current-snapshot-id")
    while current not in (known, None) and current in snapshots:
        current = snapshots[current].get("parent-snapshot-id")
    if current != known and known not in (None, -1):
        yield "its snapshots do not continue those before"
    if newer["last-sequence-number"] < older["last-sequence-number"]:
        yield "its sequence numbers step back"


def _path(location: str) -> Path:
    return Path(urlsplit(location).path)
