"""The request ids of landed commits in a table: in summaries of snapshots and in names of metadata files."""

from __future__ import annotations

import re
import uuid
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Beginning, table_name
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.model import JournalEntry
from commit_coord.process import Host

_IN_NAMES = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""Matches a request id in a metadata file's name. The last match counts; see :func:`file_name`."""


def named_in(location: str) -> str | None:
    """Return the request id in the name of a metadata file, None if there is none.

    Other writers may use a UUID there that is not a request id.
    """
    found = _IN_NAMES.findall(location.rsplit("/", 1)[-1])
    return str(uuid.UUID(found[-1])) if found else None


def landed(metadata: TableMetadata, location: str, table: tuple[str, ...], request_id: str) -> JournalEntry | None:
    """Return the entry of *request_id* if a snapshot's summary or a file name in the metadata log contains it."""
    snapshots: fast_metadata.LazyModels[Any] = metadata.__dict__["snapshots"]
    ids = tuple(snapshots.ids_with_summary(REQUEST_ID, request_id))
    log = [entry.metadata_file for entry in metadata.metadata_log] + [location]
    published = next((path for path in log if _contains(path, request_id)), None)
    if not ids and published is None:
        return None
    return JournalEntry(
        key=request_id,
        table=table_name(table),
        table_uuid=str(metadata.table_uuid),
        metadata_location=published or location,
        snapshot_ids=ids,
    )


def shows_all_since(metadata: TableMetadata, location: str, begun: Beginning) -> bool:
    """Return whether *metadata* shows all commits since *begun*.

    If so, a commit that :func:`landed` does not find has not landed.

    It may not show all:
    1. A commit lands, and no journal keeps its request id.   2. Its snapshot expires, and its metadata file leaves the
    log.   3. No trace of its request id is left.

    The metadata log alone is no proof: a file's name contains only the request id of the latch holder, not those of the
    appends that it published for others. Nor are snapshots of version 1: without sequence numbers, a missing one is not
    noticed. So a table of version 1 shows all only if its pointer has not moved since.
    """
    if location == begun.location:
        return True
    snapshots: fast_metadata.LazyModels[Any] = metadata.__dict__["snapshots"]
    since = range(begun.sequence_number + 1, fast_metadata.sequence_number(metadata) + 1)
    in_log = any(entry.metadata_file == begun.location for entry in metadata.metadata_log)
    return in_log and metadata.format_version > 1 and snapshots.sequence_numbers().issuperset(since)


def file_name(request_id: str, host: Host, *, fresh: bool) -> str:
    """Return the part of a metadata file's name with *request_id*; it starts with a UUID, as PyIceberg requires.

    If two tries had the same name, this could happen:

    1. A and B repeat one request at the same time, without a latch or after the latch was lost.
    2. Both write the file; A swaps.   3. B's swap finds that the pointer has moved. B deletes its file, which is A's.

    So the name is the id alone only if *fresh*: this is the first try, and no other client can know the id.
    """
    return request_id if fresh else f"{host.new_id()}.{uuid.UUID(request_id).hex}"


def _contains(location: str, request_id: str) -> bool:
    name = location.rsplit("/", 1)[-1]
    return request_id in name or uuid.UUID(request_id).hex in name


def version_of(location: str | None) -> int:
    """Return the version number in a metadata file's name, -1 if there is none.

    Source: the names that PyIceberg, Java's ``BaseMetastoreTableOperations.parseVersion`` and HadoopTables write.
    """
    if location is None:
        return -1
    digits = location.rsplit("/", 1)[-1].lstrip("v").split("-", 1)[0].split(".", 1)[0]
    return int(digits) if digits.isdigit() else -1
