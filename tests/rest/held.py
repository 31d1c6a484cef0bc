"""Commits that are written now and sent later, as an engine's are that is slow, stalled, or sends twice."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID

from tests.rest.kit import Response, Server, path_of

BLIND = {"X-Commit-Coord-Append": "blind"}
"""The header of a client that declares all its appends."""


@dataclass(slots=True)
class Held:
    """A commit of a client that has not been sent yet.

    Args:
        table: Its name.
        document: Its body.
    """

    table: tuple[str, ...]
    document: dict[str, Any]

    @classmethod
    def append(
        cls,
        table: Table,
        rows: pa.Table,
        *,
        kind: str = "fast_append",
        branch: str | None = "main",
        properties: Mapping[str, str] | None = None,
        written_for: Table | None = None,
    ) -> Self:
        """Write what PyIceberg writes to append *rows* to *table*, as *table* shows itself.

        Args:
            table: Of PyIceberg's client.
            rows: To append.
            kind: The method of PyIceberg's that makes the snapshot.
            branch: Where it goes; None stages it.
            properties: Of the snapshot.
            written_for: *table* as it was when the files were written; None where it was the same.
        """
        shown = written_for or table
        transaction = table.transaction()
        producer = getattr(
            transaction.update_snapshot(snapshot_properties=dict(properties or {}), branch=branch), kind
        )()
        for file in _dataframe_to_data_files(shown.metadata, rows, table.io) if len(rows) else ():
            producer.append_data_file(file)
        updates, requirements = producer._commit()
        asked = (AssertTableUUID(uuid=table.metadata.table_uuid), *requirements)
        return cls(
            tuple(table.name()),
            {
                "requirements": [json.loads(requirement.model_dump_json()) for requirement in asked],
                "updates": [json.loads(update.model_dump_json()) for update in updates],
            },
        )

    @classmethod
    def replacement(cls, table: Table, rows: pa.Table) -> Self:
        """Write what Java writes to replace all rows of *table* (``CREATE OR REPLACE TABLE … AS SELECT``).

        The snapshot follows none, and nothing is required of main: only that no ids of columns were given meanwhile.
        """
        shown = copy.copy(table)
        shown.metadata = table.metadata.model_copy(update={"refs": {}, "current_snapshot_id": None})
        held, metadata = cls.append(shown, rows), table.metadata
        added, moved = held.document["updates"]
        removed = [{"action": "remove-snapshot-ref", "ref-name": "main"}] if "main" in metadata.refs else []
        held.document = {
            "requirements": [
                {"type": "assert-table-uuid", "uuid": str(metadata.table_uuid)},
                {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id},
                {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": metadata.last_partition_id},
            ],
            "updates": [added, *removed, moved],
        }
        return held

    @property
    def found_no_rows(self) -> bool:
        """Whether a replacement was written when main was empty: it removes no branch."""
        return all(update["action"] != "remove-snapshot-ref" for update in self.document["updates"])

    @property
    def snapshot(self) -> dict[str, Any]:
        """The snapshot that it adds."""
        found: dict[str, Any] = self.document["updates"][0]["snapshot"]
        return found

    @property
    def snapshot_id(self) -> int:
        """The id of the snapshot that it adds."""
        number: int = self.snapshot["snapshot-id"]
        return number

    def as_append(self) -> Self:
        """Label the snapshot an append, as Java does whatever added files and removed none."""
        self.snapshot["summary"]["operation"] = "append"
        return self

    def to_new_branch(self, name: str) -> Self:
        """Have the commit fork a branch from the snapshot that it follows, as Java does."""
        self.document["updates"][1]["ref-name"] = name
        self.document["requirements"][1] = {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": None}
        return self

    def send(self, server: Server, headers: Mapping[str, str] | None = None) -> Response:
        """Send it, and return the answer."""
        return server.ask("POST", path_of(*self.table), self.document, headers)
