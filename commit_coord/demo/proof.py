"""What has to hold at the end, as functions of what was read: nothing here knows how the run went.

What the tables' histories must be, :mod:`commit_coord.testing.history` says.

Each returns a :class:`Proof`; a proof that does not hold says what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.model import LockEntry
from commit_coord.testing.history import Answer, Append, Body, check_places, check_snapshots, places_of

_SHOWN = 5
"""Differences that are named; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One thing that had to be shown.

    Args:
        name: A short word for it.
        text: What was compared, with the numbers.
        differences: Why it does not hold; empty when it holds.
    """

    name: str
    text: str
    differences: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def same_rows(name: str, expected: pa.Table, found: pa.Table, by: str) -> Proof:
    """Show that two tables hold the same rows, each as often, in whatever order."""
    text = f"{name}: {found.num_rows:,} rows read by {by}, each equal to the source"
    differences = []
    if found.num_rows != expected.num_rows:
        differences.append(f"{expected.num_rows:,} rows in the source, {found.num_rows:,} in the table")
    missing_columns = set(expected.column_names) ^ set(found.column_names)
    if missing_columns:
        differences.append(f"columns differ: {', '.join(sorted(missing_columns))}")
    if not differences:
        order = [(column, "ascending") for column in expected.column_names]
        ours = expected.sort_by(order)
        theirs = found.select(expected.column_names).cast(expected.schema).sort_by(order)
        for column in expected.column_names:
            if not theirs[column].equals(ours[column]):
                same = pc.fill_null(pc.equal(ours[column], theirs[column]), False)
                both_null = pc.and_(pc.is_null(ours[column]), pc.is_null(theirs[column]))
                number = ours.num_rows - pc.sum(pc.or_(same, both_null)).as_py()
                differences.append(f"column {column} differs in {number:,} rows (rows sorted)")
    return Proof(name=f"rows-{name}", text=text, differences=_few(differences))


def same_sums(
    name: str,
    keys: Sequence[str],
    measures: Sequence[str],
    expected: Mapping[str, Sequence[int]],
    found: Mapping[str, Sequence[int]],
    by: str,
) -> Proof:
    """Show that rows and sums are equal for every value of *keys*."""
    groups = f"{len(expected):,} days" if tuple(keys) == ("month", "day") else f"{len(expected)} × {'/'.join(keys)}"
    text = f"{name}: sums of rows, {', '.join(measures)} over {groups}, computed by {by}, equal to the source"
    differences = []
    for key in sorted(expected.keys() | found.keys()):
        ours, theirs = expected.get(key), found.get(key)
        if ours is None or theirs is None:
            differences.append(f"{'/'.join(keys)} {key} is only in the {'table' if ours is None else 'source'}")
        elif list(ours) != list(theirs):
            pairs = zip(("rows", *measures), ours, theirs, strict=True)
            wrong = ", ".join(f"{what} {a:,} in the source, {b:,} in the table" for what, a, b in pairs if a != b)
            differences.append(f"{'/'.join(keys)} {key}: {wrong}")
    return Proof(name=f"sums-{name}", text=text, differences=_few(differences))


def exactly_once(
    tables: Mapping[str, Body], acknowledged: Iterable[tuple[str, str]], unknown: Iterable[tuple[str, str]] = ()
) -> Proof:
    """Show that every acknowledged request is in its table's history once, and no other request is.

    Args:
        tables: The metadata of each.
        acknowledged: (request id, table). A process that starts again may note one again.
        unknown: Requests of which it is not known whether they landed: they may be there, once.
    """
    answers = dict.fromkeys(unknown, Answer.UNKNOWN) | dict.fromkeys(acknowledged, Answer.ACKNOWLEDGED)
    differences = []
    for name in {**tables, **dict.fromkeys(name for _, name in answers)}:
        appends = [Append(mark=request_id, answer=answer) for (request_id, of), answer in answers.items() if of == name]
        places = places_of(tables[name], REQUEST_ID) if name in tables else {}
        differences += [f"{name}: {what}" for what in check_places(appends, places)]
    strangers = sum(REQUEST_ID not in one["summary"] for body in tables.values() for one in body["snapshots"])
    if strangers:
        differences.append(f"{strangers} snapshot{'s carry' if strangers > 1 else ' carries'} no request id")
    noted = sum(answer is Answer.ACKNOWLEDGED for answer in answers.values())
    text = f"{noted:,} acknowledged commits, each exactly once in the history"
    return Proof(name="exactly-once", text=text, differences=_few(differences))


def never(tables: Mapping[str, Body], refused: Iterable[tuple[str, str]], files: Iterable[str] = ()) -> Proof:
    """Show that no refused request is in any history, nor in the name of a metadata file that was left.

    Args:
        tables: The metadata of each.
        refused: (request id, table).
        files: Paths of all metadata files.
    """
    ids = {request_id for request_id, _ in refused}
    appends = [Append(mark=request_id, answer=Answer.REFUSED) for request_id in sorted(ids)]
    differences = []
    for name, body in tables.items():
        places = {mark: found for mark, found in places_of(body, REQUEST_ID).items() if mark in ids}
        differences += [f"{name}: {what}" for what in check_places(appends, places)]
    for path in files:
        name = path.rsplit("/", 1)[-1]
        differences += [f"refused {request_id} left the metadata file {name}" for request_id in _ids_in(name) & ids]
    text = f"{len(ids):,} refused commits, none of them in the history, no metadata file of these commits left"
    return Proof(name="refused-never", text=text, differences=_few(differences))


def unbroken(tables: Mapping[str, Body], broken: Iterable[str] = ()) -> Proof:
    """Show that each table's snapshots are one line from the first to the current, numbered without a gap.

    Args:
        tables: The metadata of each.
        broken: What is wrong with the lines of their metadata files.
    """
    differences = [f"{name}: {what}" for name, body in tables.items() for what in check_snapshots(body)]
    differences += broken
    total = sum(len(body["snapshots"]) for body in tables.values())
    text = f"{total:,} snapshots in {len(tables)} tables: each table's are one unbroken line, without a gap"
    return Proof(name="unbroken", text=text, differences=_few(differences))


def no_lock_left(entries: Sequence[LockEntry], waited_seconds: float) -> Proof:
    """Show that the lock manager lists nothing."""
    differences = [f"{entry.mode.letter} {entry.resource} is {entry.state} for {entry.owner}" for entry in entries]
    text = f"no lock held and none waited for, {waited_seconds:.1f} s after the last writer ended"
    return Proof(name="no-lock-left", text=text, differences=_few(differences))


def resumed(killed: str, before: int, commits: int, table: Body, requests: Mapping[str, str]) -> Proof:
    """Show that the killed driver had done a part of its work, and that all of it is there, once.

    Args:
        killed: The process.
        before: Its commits that were acknowledged when it was killed.
        commits: Commits that it had to make.
        table: The metadata of the table.
        requests: Name → request id, of its commits.
    """
    places = places_of(table, REQUEST_ID)
    times = {writer: len(places.get(request_id, ())) for writer, request_id in requests.items()}
    differences = [f"{writer} is {found} times in the history" for writer, found in times.items() if found != 1]
    if len(requests) != commits:
        differences.append(f"{len(requests)} of its {commits} commits were acknowledged")
    if not 0 < before < commits:
        differences.append(f"it was killed with {before} of {commits} commits acknowledged: not in the middle")
    text = f"{killed} was killed with {before} of {commits} commits acknowledged, started again, and doubled nothing"
    return Proof(name="resumed", text=text, differences=_few(differences))


def _ids_in(name: str) -> set[str]:
    """Return the request id in a metadata file's name, ``00001-<uuid>.metadata.json``."""
    stem = name.split(".", 1)[0].partition("-")[2]
    return {stem} if stem else set()


def _few(differences: Sequence[str]) -> tuple[str, ...]:
    shown = tuple(differences[:_SHOWN])
    return (*shown, f"… and {len(differences) - _SHOWN} more") if len(differences) > _SHOWN else shown
