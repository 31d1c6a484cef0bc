"""The requirements of a commit, with Java's messages.

PyIceberg's models check the same, but Java's clients do not know their messages. And one of PyIceberg's models refuses
what Java allows: the first snapshot of a table on another branch than main.

Source: Iceberg Java ``UpdateRequirement``.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AssertCreate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
)

from commit_coord.errors import CommitStateUnknown


class NotThere(AssertCreate):
    """There is no such table."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        if base_metadata is not None:
            raise _failed("table already exists")


class SameTable(AssertTableUUID):
    """It is still the same table, not another one that was created under its name."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        found = _there(base_metadata).table_uuid
        if self.uuid != found:
            raise _failed(f"UUID does not match: expected {found} != {self.uuid}")


class MadeBefore(AssertTableUUID):
    """An earlier copy of the request has created the table. The coordinator checks it only if there is none."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        if base_metadata is None:
            raise CommitStateUnknown(
                "the table does not exist; an earlier copy of the request may have created it, and it was renamed or "
                "dropped since: look for it before you create it with another Idempotency-Key"
            )


class SameRef(AssertRefSnapshotId):
    """A branch or tag still names the same snapshot, or still does not exist."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        ref = _there(base_metadata).refs.get(self.ref)
        if ref is None:
            if self.snapshot_id is not None:
                raise _failed(f"branch or tag {self.ref} is missing, expected {self.snapshot_id}")
            return
        kind = ref.snapshot_ref_type.value
        if self.snapshot_id is None:
            raise _failed(f"{kind} {self.ref} was created concurrently")
        if self.snapshot_id != ref.snapshot_id:
            raise _failed(f"{kind} {self.ref} has changed: expected id {self.snapshot_id} != {ref.snapshot_id}")


class SameLastFieldId(AssertLastAssignedFieldId):
    """No column was added."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        _compare("last assigned field id", self.last_assigned_field_id, _there(base_metadata).last_column_id)


class SameSchema(AssertCurrentSchemaId):
    """The schema is the same."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        _compare("current schema", self.current_schema_id, _there(base_metadata).current_schema_id)


class SameLastPartitionId(AssertLastAssignedPartitionId):
    """No partition field was added. A table of format version 1 may lack the id; clients then send null or nothing."""

    last_assigned_partition_id: int | None = Field(default=None, alias="last-assigned-partition-id")

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        found = _there(base_metadata).last_partition_id
        _compare("last assigned partition id", self.last_assigned_partition_id, found)


class SameSpec(AssertDefaultSpecId):
    """The partition spec is the same."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        _compare("default partition spec", self.default_spec_id, _there(base_metadata).default_spec_id)


class SameSortOrder(AssertDefaultSortOrderId):
    """The sort order is the same."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        """Return if the requirement is met."""
        _compare("default sort order", self.default_sort_order_id, _there(base_metadata).default_sort_order_id)


Requirement = Annotated[
    NotThere | SameTable | SameRef | SameLastFieldId | SameSchema | SameLastPartitionId | SameSpec | SameSortOrder,
    Field(discriminator="type"),
]
"""PyIceberg's ``TableRequirement``, read from the same JSON."""


def _there(metadata: TableMetadata | None) -> TableMetadata:
    if metadata is None:
        raise _failed("the table does not exist")
    return metadata


def _compare(what: str, expected: int | None, found: int | None) -> None:
    if expected != found:
        raise _failed(f"{what} changed: expected id {expected} != {found}")


def _failed(reason: str) -> CommitFailedException:
    return CommitFailedException(f"Requirement failed: {reason}")
