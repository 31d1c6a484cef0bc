"""Recognizes the commits of streams that have already been committed, by the summaries of snapshots. Pure.

A stream that commits exactly once keeps its progress in the summaries of its snapshots, and reads it there before it
commits. Between this read and its commit, another instance of the stream may commit the same rows. Without a check,
the late commit would land too, because its client retries without reading the summaries again.

Flink, and Spark's streams
    1. A job is restarted while its old instance still commits checkpoint 7.   2. The new instance finds checkpoint 6 in
    the table and commits 7.   3. The commit of the old instance arrives. Its summary and the summary of an ancestor
    name the same job, operator and checkpoint. Spark names a query and an epoch.

    Source: Iceberg Java ``DynamicCommitter.getMaxCommittedCheckpointId``, ``SparkWrite.findLastCommittedEpochId``.

Kafka Connect
    1. For a while, two coordinators run. Both read the offset 50 in the table.   2. One commits up to offset 100.
    3. The other one commits the offsets 50 to 120. Its summary does not contain 50. The only trace is that the stored
    offset has moved between the snapshot that it read and the head.

    Source: Iceberg Java ``Coordinator.lastCommittedOffsetsForTable``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, Summary

from commit_coord.iceberg.attempt import NO_SNAPSHOT
from commit_coord.iceberg.metadata import LazyModels


class _Marks(NamedTuple):
    """The summary properties in which a kind of stream keeps its progress."""

    stream: str
    """The id of the stream."""
    part: str | None
    """The part of the stream, if it has several. A summary without this property may be of any part."""
    progress: str
    """The progress: a number that grows."""
    words: str


_MARKS = (
    _Marks(
        "flink.job-id", "flink.operator-id", "flink.max-committed-checkpoint-id", "checkpoint {} of the Flink job {}"
    ),
    _Marks("spark.sql.streaming.queryId", None, "spark.sql.streaming.epochId", "epoch {} of the Spark query {}"),
)

_OFFSETS = "kafka.connect.offsets."
"""Prefix of a property of Kafka Connect; the control topic and the consumer group follow."""


def checkpoint_in_table(summary: Mapping[str, str], branch: str | None, head: TableMetadata) -> str | None:
    """Return why a snapshot comes too late: its stream has already committed this progress. None if it has not.

    Args:
        summary: The summary of the new snapshot.
        branch: The branch of the new snapshot; None if it is staged outside of all branches.
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
                    f"{marks.words.format(progress, stream)} is already in the table: "
                    f"the branch {branch!r} contains its commit {committed}"
                )
    return None


def carries_offsets(summary: Summary | None) -> bool:
    """Return whether a snapshot with *summary* was made by Kafka Connect."""
    return summary is not None and any(key.startswith(_OFFSETS) for key in summary.additional_properties)


def offsets_moved(
    summary: Mapping[str, str], branch: str | None, head: TableMetadata, follows: int | None
) -> str | None:
    """Return which offsets of Kafka Connect have moved since its coordinator read them; None if none has moved.

    Args:
        summary: The summary of the new snapshot.
        branch: The branch of the new snapshot; None if it is staged outside of all branches.
        head: The table now.
        follows: The snapshot that the coordinator has read; see :attr:`~commit_coord.iceberg.attempt.Append.follows`.
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
    """Return the snapshot that *branch* names; a branch that does not exist yet will begin at that of main."""
    ref = head.refs.get(branch) or head.refs.get(MAIN_BRANCH)
    return ref.snapshot_id if ref is not None else None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
