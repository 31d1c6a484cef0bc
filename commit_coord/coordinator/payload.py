"""What one swap publishes: the attempt of its commit, then the offered attempts of waiting writers."""

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
    """An attempt that a waiting writer offered and this commit took."""

    lock_request_id: str
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """This commit's attempt and the taken offers that share its snapshot; or only taken offers, with another snapshot.

    Args:
        attempt: The attempt; several appends joined into one if they share a snapshot.
        head: The table metadata before this part; None if the part creates the table.
        location: The metadata file of *head*; None if *head* is the result of another part of this swap.
        rebased: The table metadata after this part.
        members: The taken offers in this part; this commit's attempt is none of them.
    """

    attempt: Attempt
    head: TableMetadata | None
    location: str | None
    rebased: Rebased
    members: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The data of a planned swap. The protocol passes it on and does not read it."""

    parts: list[Part]
    """The first part has this commit's attempt. The attempts of others follow, in the order in which they waited."""
    alone: Part
    """A part with only this commit's attempt."""
    io: FileIO
    base: TableMetadata | None
    written: list[str]
    unused: list[str]
    """Merged manifests that no manifest list uses: the head has moved or the table was upgraded since the merge."""

    @property
    def own(self) -> Rebased:
        """The result of this commit's attempt."""
        return self.parts[0].rebased

    @property
    def carried(self) -> list[tuple[Member, Rebased]]:
        """The taken offers and their results."""
        return [(member, part.rebased) for part in self.parts for member in part.members]

    @property
    def unused_of_members(self) -> list[str]:
        """Merged manifests that writers of a shared snapshot had prepared and that no part uses."""
        prepared = dict.fromkeys(_merged(member.attempt) for part in self.parts for member in part.members)
        used = {_merged(part.attempt) for part in self.parts}
        return [path for path in prepared if path is not None and path not in used]

    @property
    def metadata(self) -> TableMetadata:
        """The table metadata that the swap publishes."""
        return self.parts[-1].rebased.metadata


def carried(verdict: Verdict) -> list[tuple[Member, Rebased]]:
    """Return the taken offers that were published together with this commit's own attempt, and their results."""
    if verdict.status is not CommitStatus.SUCCESS or verdict.plan is None:
        return []
    payload: Payload = verdict.plan.payload
    return payload.carried


def journal_entry(attempt: Attempt, rebased: Rebased, verdict: Verdict, request_id: str) -> JournalEntry:
    """Return the journal entry of *attempt*, which landed as *rebased*.

    Args:
        attempt: This commit's own attempt, or one of a taken offer.
        rebased: The table metadata with the attempt.
        verdict: The verdict on the commit that published it.
        request_id: The key of the entry.
    """
    assert verdict.plan is not None, "what was published had a plan"
    return JournalEntry(
        key=request_id,
        table=table_name(attempt.table),
        table_uuid=str(rebased.metadata.table_uuid),
        metadata_location=verdict.plan.location,
        snapshot_ids=rebased.snapshot_ids,
    )


def _merged(attempt: Attempt) -> str | None:
    return attempt.append.merge.merged.manifest_path if attempt.append and attempt.append.merge else None
