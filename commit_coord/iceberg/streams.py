"""What the summaries of streams say of files that were committed before. Pure.

A stream that commits exactly once keeps its progress in the summaries of its snapshots, and reads it there before it
commits. Between that look and the commit another instance of it may commit the same rows, and the late one lands too:
its client looks at the summaries once, and tries the commit again without a look.

Flink
    1. A job is restarted; its old instance still commits checkpoint 7.   2. The new one finds 6 in the table and
    commits 7.   3. The old one's commit arrives. Its summary and that of an ancestor name one job, operator and
    checkpoint.

    Source: Iceberg Java ``DynamicCommitter.getMaxCommittedCheckpointId``.

Kafka Connect
    1. Two coordinators are alive for a while. Both read the offsets 50 in the table.   2. The one commits up to 100.
    3. The other one commits 50 to 120. Its summary has no trace of 50: only that the offsets have moved between the
    snapshot that it saw and the head.

    Source: Iceberg Java ``Coordinator.lastCommittedOffsetsForTable``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from commit_coord.iceberg.attempt import NO_SNAPSHOT
from commit_coord.iceberg.metadata import LazyModels

_JOB = "flink.job-id"
_OPERATOR = "flink.operator-id"
_CHECKPOINT = "flink.max-committed-checkpoint-id"
_OFFSETS = "kafka.connect.offsets."
"""How a property of Kafka Connect begins; behind it the control topic and the consumer group."""


def checkpoint_in_table(summary: Mapping[str, str], branch: str | None, head: TableMetadata) -> str | None:
    """Return why a snapshot with *summary* is late on *branch*: Flink's checkpoint is there; None where it is not.

    Args:
        summary: Of the snapshot to come.
        branch: Where it goes; None stages it on no branch.
        head: The table now.
    """
    job, checkpoint = summary.get(_JOB), _number(summary.get(_CHECKPOINT))
    if job is None or checkpoint is None or branch is None:
        return None
    for found in _lineage(head, _at(branch, head)):
        committed = _number(found.get(_CHECKPOINT))
        if committed is None or committed < checkpoint or found.get(_JOB) != job:
            continue
        if found.get(_OPERATOR) in (None, summary.get(_OPERATOR)):
            return (
                f"checkpoint {checkpoint} of the Flink job {job} is in the table already: "
                f"the branch {branch!r} has its checkpoint {committed}"
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
