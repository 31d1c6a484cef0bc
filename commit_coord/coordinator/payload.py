"""What one swap publishes: our own attempt, and behind it those of others that were taken along."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.iceberg.rebase import Rebased
from commit_coord.model import CommitStatus, JournalEntry
from commit_coord.protocol.commit import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An attempt that a waiting writer offered and we took."""

    lock_id: str
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One snapshot of a swap, or whatever else our own attempt changes.

    Args:
        attempt: What it carries out; several appends together where they share a snapshot.
        head: The table that it follows; None where the table is created.
        location: The file of *head*; None where that is another part.
        rebased: The table with it.
        members: Those whose attempts it has, without us.
    """

    attempt: Attempt
    head: TableMetadata | None
    location: str | None
    rebased: Rebased
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What the plan of a swap carries through the protocol."""

    parts: list[Part]
    """The first has our own attempt. Behind it, in the order in which they waited, those of others."""
    alone: Part
    """Our own attempt and no other."""
    io: FileIO
    base: TableMetadata | None
    written: list[str]
    unused: list[str]
    """Manifests that were merged beforehand and are not in the list: another writer was faster."""

    @property
    def own(self) -> Rebased:
        """What became of our own attempt."""
        return self.parts[0].rebased

    @property
    def carried(self) -> list[tuple[Member, Rebased]]:
        """What became of those of others."""
        return [(member, part.rebased) for part in self.parts for member in part.members]

    @property
    def superfluous(self) -> list[str]:
        """Manifests that were merged beforehand by several who share a snapshot."""
        prepared = dict.fromkeys(_merged(member.attempt) for part in self.parts for member in part.members)
        used = {_merged(part.attempt) for part in self.parts}
        return [path for path in prepared if path is not None and path not in used]

    @property
    def metadata(self) -> TableMetadata:
        """What the swap publishes."""
        return self.parts[-1].rebased.metadata


def carried(verdict: Verdict) -> list[tuple[Member, Rebased]]:
    """Return what was published along with our own attempt."""
    if verdict.status is not CommitStatus.SUCCESS or verdict.plan is None:
        return []
    payload: Payload = verdict.plan.payload
    return payload.carried


def journal_entry(attempt: Attempt, rebased: Rebased, verdict: Verdict, request_id: str) -> JournalEntry:
    """Return what the journal remembers of *attempt*, which landed as *rebased*.

    Args:
        attempt: Our own, or one that was carried along.
        rebased: The table with it.
        verdict: Of the commit that published it.
        request_id: By which it is asked for.
    """
    assert verdict.plan is not None, "what was published had a plan"
    return JournalEntry(
        request_id=request_id,
        table=table_name(attempt.table),
        table_uuid=str(rebased.metadata.table_uuid),
        metadata_location=verdict.plan.location,
        snapshot_ids=rebased.snapshot_ids,
    )


def _merged(attempt: Attempt) -> str | None:
    return attempt.append.merge.merged.manifest_path if attempt.append and attempt.append.merge else None
