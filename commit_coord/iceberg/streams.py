"""What the summaries of streams say of files that were committed before. Pure.

A stream that commits exactly once keeps its progress in the summaries of its snapshots, and reads it there before it
commits. Between that look and the commit another instance of it may commit the same rows, and the late one lands too:
its client looks at the summaries once, and tries the commit again without a look.

Flink, and Spark's streams
    1. A job is restarted; its old instance still commits checkpoint 7.   2. The new one finds 6 in the table and
    commits 7.   3. The old one's commit arrives. Its summary and that of an ancestor name one job, operator and
    checkpoint. Spark names a query and an epoch.

    Source: Iceberg Java ``DynamicCommitter.getMaxCommittedCheckpointId``, ``SparkWrite.findLastCommittedEpochId``.

Kafka Connect
    1. Two coordinators are alive for a while. Both read the offsets 50 in the table.   2. The one commits up to 100.
    3. The other one commits 50 to 120. Its summary has no trace of 50: only that the offsets have moved between the
    snapshot that it saw and the head.

    Source: Iceberg Java ``Coordinator.lastCommittedOffsetsForTable``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from commit_coord.iceberg.attempt import NO_SNAPSHOT
from commit_coord.iceberg.metadata import LazyModels


class _Marks(NamedTuple):
    """The summary properties by which a kind of stream says what it has committed."""

    stream: str
    """Which stream it is."""
    part: str | None
    """Which part of it, where it has several; one that is not named may be any."""
    progress: str
    """How far it has come: a number that grows."""
    words: str


_MARKS = (
    _Marks(
        "flink.job-id", "flink.operator-id", "flink.max-committed-checkpoint-id", "checkpoint {} of the Flink job {}"
    ),
    _Marks("spark.sql.streaming.queryId", None, "spark.sql.streaming.epochId", "epoch {} of the Spark query {}"),
)

_OFFSETS = "kafka.connect.offsets."
"""How a property of Kafka Connect begins; behind it the control topic and the consumer group."""


def checkpoint_in_table(summary: Mapping[str, str], branch: str | None, head: TableMetadata) -> str | None:
    """Return why a snapshot with *summary* is late on *branch*: its stream has committed as much before; else None.

    Args:
        summary: Of the snapshot to come.
        branch: Where it goes; None stages it on no branch.
        head: The table now.
    """
    for marks in _MARKS:
        stream, progress = summary.get(marks.stream), _number(summary.get(marks.progress))
        if stream is None or progress is None or branch is None:
            continue
        for found in _lineage(head, _at(branch, head)):
            committed = _number(found.get(marks.progress))
            if committed is None or committed < progress or found.get(marks.stream) != stream:
                continue
            if marks.part is None or found.get(marks.part) in (None, summary.get(marks.part)):
                return (
                    f"{marks.words.format(progress, stream)} is in the table already: "
                    f"the branch {branch!r} has what it committed as {committed}"
                )
    return None


def offsets_moved(
    summary: Mapping[str, str], branch: str | None, head: TableMetadata, follows: int | None
) -> str | None:
    """Return which offsets of Kafka Connect have moved since its coordinator read them; None where none has.

    Args:
        summary: Of the snapshot to come.
        branch: Where it goes; None stages it on no branch.
        head: The table now.
        follows: The snapshot that the coordinator has seen, as :attr:`~commit_coord.iceberg.attempt.Append.follows`.
    """
    if follows is None or branch is None or follows == _at(branch, head):
        return None
    for key in summary:
        if key.startswith(_OFFSETS):
            seen = _last(key, head, None if follows == NO_SNAPSHOT else follows)
            now = _last(key, head, _at(branch, head))
            if seen != now:
                return f"the offsets of {key} were {seen or 'none'} when they were read, and are {now or 'none'} now"
    return None


def _last(key: str, head: TableMetadata, snapshot_id: int | None) -> str | None:
    return next((value for found in _lineage(head, snapshot_id) if (value := found.get(key)) is not None), None)


def _lineage(head: TableMetadata, snapshot_id: int | None) -> Iterator[Mapping[str, str]]:
    snapshots: LazyModels[Snapshot] = head.__dict__["snapshots"]
    return snapshots.lineage(snapshot_id)


def _at(branch: str, head: TableMetadata) -> int | None:
    """Return the snapshot that *branch* is at; where there is none yet, it will be forked from main."""
    ref = head.refs.get(branch) or head.refs.get(MAIN_BRANCH)
    return ref.snapshot_id if ref is not None else None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
