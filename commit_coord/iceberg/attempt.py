"""The attempt: the content of one commit, as a value that can be serialized and executed by another process."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from pydantic import TypeAdapter
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import (
    ADDED_DATA_FILES,
    ADDED_DELETE_FILES,
    ADDED_EQUALITY_DELETE_FILES,
    ADDED_EQUALITY_DELETES,
    ADDED_FILE_SIZE,
    ADDED_POSITION_DELETE_FILES,
    ADDED_POSITION_DELETES,
    ADDED_RECORDS,
    CHANGED_PARTITION_COUNT_PROP,
    CHANGED_PARTITION_PREFIX,
    PARTITION_SUMMARY_PROP,
    TOTAL_DATA_FILES,
    TOTAL_DELETE_FILES,
    TOTAL_EQUALITY_DELETES,
    TOTAL_FILE_SIZE,
    TOTAL_POSITION_DELETES,
    TOTAL_RECORDS,
)
from pyiceberg.table.update import TableRequirement, TableUpdate

from commit_coord.errors import InvalidArguments
from commit_coord.iceberg import manifest_list

_REQUIREMENTS: TypeAdapter[tuple[TableRequirement, ...]] = TypeAdapter(tuple[TableRequirement, ...])
_UPDATES: TypeAdapter[tuple[TableUpdate, ...]] = TypeAdapter(tuple[TableUpdate, ...])


TOTALS = frozenset(
    {
        TOTAL_DATA_FILES,
        TOTAL_DELETE_FILES,
        TOTAL_EQUALITY_DELETES,
        TOTAL_FILE_SIZE,
        TOTAL_POSITION_DELETES,
        TOTAL_RECORDS,
    }
)
"""What a summary says of the whole table: known when the head is."""

_NAMESPACE = uuid.UUID("9d0c6b57-2d0b-5a9e-9a51-0f6c6f1f4c5e")


def request_uuid(text: str) -> str:
    """Return the request id that *text* means: itself when it is a UUID, else one made of it, always the same.

    Raises:
        InvalidArguments: It is no text.
    """
    if not isinstance(text, str):
        raise InvalidArguments("a request id must be a text", value=repr(text))
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return str(uuid.uuid5(_NAMESPACE, text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A pure append: files that depend on nothing that was read, so they may follow any head.

    Args:
        snapshot_id: Of the snapshot to come.
        branch: Where it goes; None stages it on no branch.
        manifests: What was added and nothing else; entries ADDED, sequence numbers not assigned yet.
        summary: ``added-*`` counts and the user's properties; totals are set when the head is known.
        schema_id: The schema that the files were written with.
        schema: Its digest; "" when only its id is known.
        specs: The digests of the partition specs that the files were written under, by id, as far as they are known.
        merge: Manifests of the head that ``commit.manifest.*`` asks to be merged, prepared beforehand;
            used only if all of them are still in the head's list.
        inherits: The entries of its manifests leave the snapshot's id open: others may share the snapshot.
        makes_branch: Whether *branch* may be missing in the head; not so when its caller saw it.
        follows: The snapshot of *branch* that its writer has seen, ``NO_SNAPSHOT`` where there was none; None when that
            is not known. Matters to streams alone, which tell by it what they have committed (``iceberg/streams``).
    """

    snapshot_id: int
    branch: str | None
    manifests: tuple[ManifestFile, ...]
    summary: dict[str, str]
    schema_id: int
    schema: str = ""
    specs: dict[int, str] = field(default_factory=dict)
    merge: Merge | None = None
    inherits: bool = False
    makes_branch: bool = True
    follows: int | None = None


NO_SNAPSHOT = -1
"""Of :attr:`Append.follows`: the branch was empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """*merged* holds the live entries of *replaced* (paths), as existing ones.

    It belongs into a table of *format_version* alone. One of version 1 has no sequence numbers, and existing entries
    inherit none: in a table of version 2 no other engine can read it.
    """

    merged: ManifestFile
    replaced: frozenset[str]
    format_version: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """A table as the first copy of a request found it.

    Args:
        location: Of its metadata file.
        sequence_number: The last one.
    """

    location: str
    sequence_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """PyIceberg's (requirements, updates), and what they alone do not say.

    Args:
        request_id: A UUID. It is in the metadata file's name and in the summary of every added snapshot.
        table: Namespace and name.
        table_uuid: Iceberg's id of the table that was read; None when the commit creates the table.
        base_location: The pointer that was read; None when the commit creates the table.
        base_sequence_number: The last one that was seen there: a table that was committed along with others shows
            itself as of its own commit, which need not be the file's last.
        requirements: Checked against the head.
        updates: Applied to the head, behind them *append*.
        append: A pure append, or None.
        reads_data: Whether what is written depends on rows or files that were read: an overwrite or delete, but
            also an insert-only upsert and an overwrite whose filter matched nothing, which look like appends in
            their updates. Such an attempt is planned again when the head has moved, never re-based.
        properties_read: The value that each property had, which *updates* set or remove.
        repeatable: The request id was chosen by the caller, who may ask for it again: to be looked up first.
        since: For the repeat of a request, the table as the first copy found it, if that is known. It is refused as
            unknown if the table does not show every commit since. Never offered to others.
        joined: Request ids of further attempts that share the snapshot. Only the latch holder that publishes them sets
            it.
        changes_phase: A migration brings the table to another phase (``protocol/migration``). Never offered to others.
    """

    request_id: str
    table: tuple[str, ...]
    table_uuid: str | None
    base_location: str | None
    base_sequence_number: int = 0
    requirements: tuple[TableRequirement, ...] = ()
    updates: tuple[TableUpdate, ...] = ()
    append: Append | None = None
    reads_data: bool = False
    properties_read: dict[str, str | None] = field(default_factory=dict)
    repeatable: bool = False
    since: Beginning | None = None
    joined: tuple[str, ...] = ()
    changes_phase: bool = False

    @property
    def is_pure_append(self) -> bool:
        """Whether this is an append and nothing else, so that it can follow any other commit."""
        return self.append is not None and not self.updates and not self.reads_data

    def to_json(self) -> bytes:
        """Return the attempt as JSON; :meth:`from_json` reads it back in any process."""
        append = self.append and {
            "snapshot-id": self.append.snapshot_id,
            "branch": self.append.branch,
            "manifests": [manifest_list.to_json(manifest) for manifest in self.append.manifests],
            "summary": self.append.summary,
            "schema-id": self.append.schema_id,
            "schema": self.append.schema,
            "specs": {str(spec_id): spec_digest for spec_id, spec_digest in self.append.specs.items()},
            "merge": self.append.merge
            and {
                "merged": manifest_list.to_json(self.append.merge.merged),
                "replaced": sorted(self.append.merge.replaced),
                "format-version": self.append.merge.format_version,
            },
            "inherits": self.append.inherits,
            "makes-branch": self.append.makes_branch,
            "follows": self.append.follows,
        }
        return orjson.dumps(
            {
                "request-id": self.request_id,
                "table": self.table,
                "table-uuid": self.table_uuid,
                "base-location": self.base_location,
                "base-sequence-number": self.base_sequence_number,
                "requirements": [r.model_dump(mode="json") for r in self.requirements],
                "updates": [u.model_dump(mode="json") for u in self.updates],
                "append": append,
                "reads-data": self.reads_data,
                "properties-read": self.properties_read,
                "repeatable": self.repeatable,
            }
        )

    @classmethod
    def from_json(cls, data: bytes) -> Attempt:
        """Return the attempt that :meth:`to_json` wrote."""
        raw: dict[str, Any] = orjson.loads(data)
        append = raw["append"]
        merge = append and append["merge"]
        return cls(
            request_id=raw["request-id"],
            table=tuple(raw["table"]),
            table_uuid=raw["table-uuid"],
            base_location=raw["base-location"],
            base_sequence_number=raw["base-sequence-number"],
            requirements=_REQUIREMENTS.validate_python(raw["requirements"]),
            updates=_UPDATES.validate_python(raw["updates"]),
            append=append
            and Append(
                snapshot_id=append["snapshot-id"],
                branch=append["branch"],
                manifests=tuple(manifest_list.from_json(manifest) for manifest in append["manifests"]),
                summary=append["summary"],
                schema_id=append["schema-id"],
                schema=append.get("schema", ""),  # an older version of the writer does not say it
                specs={int(spec_id): spec_digest for spec_id, spec_digest in append.get("specs", {}).items()},
                merge=merge
                and Merge(
                    merged=manifest_list.from_json(merge["merged"]),
                    replaced=frozenset(merge["replaced"]),
                    format_version=merge.get("format-version", 0),  # an older version of the writer does not say it
                ),
                inherits=append["inherits"],
                makes_branch=append.get("makes-branch", True),  # an older version of the writer does not say it
                follows=append.get("follows"),  # an older version of the writer does not say it
            ),
            reads_data=raw["reads-data"],
            properties_read=raw["properties-read"],
            repeatable=raw["repeatable"],
        )


_COUNTS = {
    ADDED_DATA_FILES,
    ADDED_DELETE_FILES,
    ADDED_EQUALITY_DELETE_FILES,
    ADDED_EQUALITY_DELETES,
    ADDED_FILE_SIZE,
    ADDED_POSITION_DELETE_FILES,
    ADDED_POSITION_DELETES,
    ADDED_RECORDS,
}
_UNSUMMED = (CHANGED_PARTITION_COUNT_PROP, CHANGED_PARTITION_PREFIX, PARTITION_SUMMARY_PROP)
"""Of a summary what is known of each append alone: two may have changed the same partition."""


def together(first: Attempt, second: Attempt) -> Attempt | None:
    """Return one attempt that adds the files of both in one snapshot; None where each must have its own.

    Each must have when they go to different branches, when their files were written with different schemas, when a
    manifest names its snapshot, and when their summaries say different things: nothing that a writer put there gets
    lost.
    """
    one, other = first.append, second.append
    if one is None or other is None or not (one.inherits and other.inherits):
        return None
    if (one.branch, one.makes_branch) != (other.branch, other.makes_branch):
        return None
    specs = {**other.specs, **one.specs}
    if (one.schema_id, one.schema) != (other.schema_id, other.schema) or not other.specs.items() <= specs.items():
        return None
    counts, stated = _divided(one.summary)
    more, also_stated = _divided(other.summary)
    if stated != also_stated:
        return None
    added = {key: str(int(counts.get(key, 0)) + int(more.get(key, 0))) for key in counts | more}
    manifests = tuple(manifest_list.added_by(manifest, one.snapshot_id) for manifest in other.manifests)
    return replace(
        first,
        joined=(*first.joined, second.request_id),
        append=replace(
            one,
            manifests=(*one.manifests, *manifests),
            summary={**stated, **added},
            specs=specs,
            merge=one.merge or (other.merge and _of_snapshot(other.merge, one.snapshot_id)),
        ),
    )


def _of_snapshot(merge: Merge, snapshot_id: int) -> Merge:
    return replace(merge, merged=manifest_list.added_by(merge.merged, snapshot_id))


def _divided(summary: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what *summary* counts as added, and what else it says."""
    counts = {key: value for key, value in summary.items() if key in _COUNTS and value.isdigit()}
    return counts, {k: v for k, v in summary.items() if k not in counts and not k.startswith(_UNSUMMED)}


def table_name(table: Sequence[str]) -> str:
    """Return ``db.table``."""
    return ".".join(table)


def table_names(tables: Iterable[Sequence[str]]) -> str:
    """Return the names of several tables, with commas between them."""
    return ", ".join(map(table_name, tables))
