"""What the logs and the table's files say together. It decides, and asks no server and no library of ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pyarrow.parquet as pq

from commit_coord.testing.fleet import Outcomes
from commit_coord.testing.table_files.metadata import faults_of_head
from commit_coord.testing.table_files.observed import Files, Observed
from tests.proof.faults.writers import MARK, ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A snapshot of the table.

    Args:
        id: Its own.
        mark: Of the operation that made it.
        operation: Iceberg's word for it.
        adds: Whether it adds files.
    """

    id: int
    mark: str
    operation: str
    adds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What the table's files say.

    Args:
        chain: The current snapshot's history, oldest first.
        off_chain: Snapshots that are not in it.
        rows: Of the current snapshot, by mark.
        named: Files that the table refers to, by any of its snapshots.
        present: Files that are there.
        faults: What the metadata of the current snapshot says and its files do not bear out, in words.
    """

    chain: Sequence[Snapshot]
    off_chain: Sequence[Snapshot]
    rows: Mapping[str, int]
    named: frozenset[str]
    present: frozenset[str]
    faults: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What was found; what is not 0 below ``unanswered`` breaks a promise.

    Args:
        acknowledged: Operations that were.
        unanswered: Tried, and nobody knows: the process died, or the error says that it is unknown.
        unanswered_landed: How many of these are in the table.
        orphans: Files that no snapshot and no metadata log names.
        lost: Acknowledged and not in the table's history.
        doubled: In it more than once.
        refused_present: Refused for certain, and in it.
        foreign: In it, and nobody tried it.
        leaked: Locks that exist after everybody ended and a lease went by.
        missing: Files that a snapshot names and that are not there.
        wrong_rows: Marks whose rows are not those that the history says, in number or in what they hold.
        broken: All that in words.
        errors: What the writers met, by name.
    """

    acknowledged: int
    unanswered: int
    unanswered_landed: int
    orphans: int
    lost: int
    doubled: int
    refused_present: int
    foreign: int
    leaked: int
    missing: int
    wrong_rows: int
    broken: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)


def judge(logs: Sequence[Outcomes], image: Image, leaked: Sequence[str]) -> Findings:
    """Return what does not hold.

    Args:
        logs: Of all slots.
        image: The table.
        leaked: Locks that are left, in words.
    """
    tried = {mark for log in logs for mark in log.tried}
    acked = {mark: ack for log in logs for mark, ack in log.acknowledged.items()}
    refused = {mark: error for log in logs for mark, error in log.refused.items()}
    unanswered = tried - acked.keys() - refused.keys()
    history = [*image.chain, *image.off_chain]
    # One operation may be several snapshots (delete, then append), but not the same one twice.
    times = Counter((snapshot.mark, snapshot.operation) for snapshot in history)
    there = {snapshot.mark for snapshot in image.chain}
    ids = {snapshot.id: snapshot.mark for snapshot in image.chain}
    lost = [
        mark
        for mark, ack in acked.items()
        if (ids.get(ack.snapshot_id) != mark if ack.snapshot_id is not None else not mark.startswith("delete"))
    ]
    doubled = [f"{mark} ({operation})" for (mark, operation), count in times.items() if count > 1]
    present = [f"{mark} ({error})" for mark, error in refused.items() if mark in {one.mark for one in history}]
    foreign = sorted({snapshot.mark for snapshot in history} - tried)
    missing = sorted(image.named - image.present)
    expected = replay(image.chain)
    wrong = sorted(mark for mark in expected.keys() | image.rows.keys() if expected.get(mark) != image.rows.get(mark))
    found = (
        ("acknowledged and not there", lost),
        ("there twice", doubled),
        ("refused and there", present),
        ("there and nobody tried it", foreign),
        ("a lock is left", leaked),
        ("a file is missing", missing),
        ("other rows than the history says", wrong),
        ("the metadata", image.faults),
    )
    return Findings(
        acknowledged=len(acked),
        unanswered=len(unanswered),
        unanswered_landed=len(unanswered & there),
        orphans=len(image.present - image.named),
        lost=len(lost),
        doubled=len(doubled),
        refused_present=len(present),
        foreign=len(foreign),
        leaked=len(leaked),
        missing=len(missing),
        wrong_rows=len(wrong),
        broken=[f"{what}: {one}" for what, each in found for one in each],
        errors=dict(
            Counter(
                error for log in logs for error in (*log.refused.values(), *log.unknown.values(), *log.failed_starts)
            )
        ),
    )


def replay(chain: Sequence[Snapshot]) -> dict[str, int]:
    """Return the rows by mark that *chain* leads to. Each slot has a partition; whatever is no append empties it."""
    parts: dict[str, dict[str, int]] = {}
    for snapshot in chain:
        part = parts.setdefault(snapshot.mark.split(".")[1] if "." in snapshot.mark else "", {})
        if snapshot.operation != "append":
            part.clear()
        if snapshot.adds:
            part[snapshot.mark] = part.get(snapshot.mark, 0) + ROWS
    return {mark: count for part in parts.values() for mark, count in part.items()}


def stalled_s(logs: Sequence[Outcomes], since: float, until: float) -> float:
    """Return the longest time between *since* and *until* in which nothing was acknowledged."""
    times = sorted(ack.at for log in logs for ack in log.acknowledged.values() if since < ack.at < until)
    return max((b - a for a, b in pairwise([since, *times, until])), default=0.0)


def recovered_s(logs: Sequence[Outcomes], ends: Sequence[float]) -> float | None:
    """Return the longest time from the end of an injury until something was acknowledged; None if nothing was."""
    times = sorted(ack.at for log in logs for ack in log.acknowledged.values())
    waits = [next((at - end for at in times if at > end), None) for end in ends]
    return None if any(wait is None for wait in waits) else max((wait for wait in waits if wait is not None), default=0)


# The image.


def image_of(metadata_location: str) -> Image:
    """Read the table whose metadata file is at *metadata_location*."""
    body = _metadata(metadata_location)
    snapshots = {one["snapshot-id"]: one for one in body.get("snapshots", [])}
    order: list[int] = []
    current = snapshots.get(body.get("current-snapshot-id", -1))
    while current is not None:
        order.append(current["snapshot-id"])
        current = snapshots.get(current.get("parent-snapshot-id", -1))
    order.reverse()
    manifests: set[str] = set()
    previous = None
    for number, key in enumerate(order):
        # What an append lists its child lists too, if that is one: then its list is not read.
        pair = [snapshots[one]["summary"]["operation"] for one in order[number : number + 2]]
        if pair != ["append", "append"]:
            manifests |= _listed(snapshots[key]["manifest-list"])
        previous = key
    for key in snapshots.keys() - set(order):
        manifests |= _listed(snapshots[key]["manifest-list"])
    lists = {one["manifest-list"] for one in snapshots.values()}
    data, alive = _data_files(manifests, _listed(snapshots[previous]["manifest-list"]) if previous is not None else ())
    root = Path(urlsplit(body["location"]).path)
    return Image(
        chain=[_snapshot(snapshots[key]) for key in order],
        off_chain=[_snapshot(snapshots[key]) for key in snapshots.keys() - set(order)],
        rows=_rows(alive),
        named=frozenset(map(_path, {*lists, *manifests, *data, *_metadata_files(metadata_location)})),
        faults=_faults(metadata_location),
        present=frozenset(str(path) for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")),
    )


def _snapshot(body: dict[str, Any]) -> Snapshot:
    summary = body["summary"]
    return Snapshot(
        id=body["snapshot-id"],
        mark=summary.get(MARK, ""),
        operation=summary["operation"],
        adds=int(summary.get("added-data-files", "0")) > 0,
    )


def _path(location: str) -> str:
    return urlsplit(location).path


def _metadata(location: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(Path(_path(location)).read_bytes())
    return body


def _metadata_files(location: str) -> set[str]:
    """Return the metadata files of the whole history: a log is trimmed, and the oldest file in it has its own."""
    found = {location}
    while True:
        log = [entry["metadata-file"] for entry in _metadata(location).get("metadata-log", [])]
        found |= set(log)
        if not log or not Path(_path(log[0])).exists():
            return found
        location = log[0]


def _listed(location: str) -> set[str]:
    try:
        with Path(_path(location)).open("rb") as file:
            return {entry["manifest_path"] for entry in _records(file)}
    except FileNotFoundError:
        return set()


def _data_files(manifests: set[str], current: Any) -> tuple[set[str], set[str]]:
    """Return the data files that *manifests* name, and those of them that are alive in *current* ones."""
    named: set[str] = set()
    alive: set[str] = set()
    for manifest in manifests:
        try:
            with Path(_path(manifest)).open("rb") as file:
                for entry in _records(file):
                    if entry["status"] != 2:
                        named.add(entry["data_file"]["file_path"])
                        if manifest in current:
                            alive.add(entry["data_file"]["file_path"])
        except FileNotFoundError:
            continue  # it is named, and will be found missing
    return named, alive


def _records(file: Any) -> Any:
    return fastavro.reader(file)


def _faults(location: str) -> Sequence[str]:
    """Return what the metadata of the current snapshot says wrongly; a file that is missing is found elsewhere."""
    try:
        return tuple(faults_of_head(Observed(location, Files())))
    except FileNotFoundError:
        return ()


def _rows(files: set[str]) -> dict[str, int]:
    """Return how many rows there are of each mark; those that hold something else than the writer wrote, by what."""
    rows: Counter[str] = Counter()
    for file in files:
        path = Path(_path(file))
        if path.exists():
            read = pq.read_table(path, columns=["part", "mark", "value"], partitioning=None)
            rows.update(map(_marked, read.to_pylist()))
    return dict(rows)


def _marked(row: dict[str, Any]) -> str:
    """Return the mark of a row, and how the row differs from what the writer of that mark wrote."""
    mark: str = row["mark"]
    _, slot, _, number = mark.split(".")
    written = {"part": f"p{slot}", "mark": mark, "value": int(number) + 1}
    return mark if row == written else f"{mark} as {row}"
