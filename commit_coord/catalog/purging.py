"""Which tables are not dropped or purged, and which files a purge deletes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pyiceberg.exceptions import NoSuchTableError, ValidationException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from commit_coord.coordinator import Coordinator
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.rebase import says_shared, shares_files
from commit_coord.iceberg.table_properties import GC_ENABLED

logger = logging.getLogger(__name__)

T = TypeVar("T")


def files_of(table: Table) -> set[str]:
    """Return the files of a dropped table, each manifest read once.

    What can't be read is passed over, as in Java: the table is gone, so the other files are not to stay for it.
    """
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    manifests: dict[str, ManifestFile] = {}
    for path in lists:
        listed = _if_readable(path, partial(manifest_list.read, table.io, path))
        manifests.update((manifest.manifest_path, manifest) for manifest in listed)
    files = lists | manifests.keys()
    for path, manifest in manifests.items():
        entries = _if_readable(path, partial(manifest.fetch_manifest_entry, table.io, discard_deleted=False))
        files |= {entry.data_file.file_path for entry in entries}
    files |= {entry.metadata_file for entry in table.metadata.metadata_log} | {table.metadata_location}
    files |= {each.statistics_path for each in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    return files


def _if_readable(path: str, read: Callable[[], list[T]]) -> list[T]:
    try:
        return read()
    except Exception:
        logger.warning("a file of a purged table can't be read, so what only it names stays: %s", path, exc_info=True)
        return []


def refuse_another(coordinator: Coordinator, table: Identifier, expected: str | None) -> None:
    """Return if *table*, whose latch is held, is still the one that the caller has seen.

    1. Server A sees the table, and is paused.   2. Server B drops it.   3. The client creates another one of the same
    name.   4. A goes on.

    Args:
        coordinator: Reads the table.
        table: The name.
        expected: The UUID or the metadata location of the table that was seen; None allows any.

    Raises:
        NoSuchTableError: There is another table, or none.
    """
    if expected is None or coordinator.store.pointer(table) == expected:
        return
    if str(coordinator.load(table)[0].table_uuid) != expected:
        raise NoSuchTableError(
            f"Table does not exist: {table_name(table)} was dropped or renamed, and another table has its name; "
            "nothing was done"
        )


def refuse_shared_files(table: Table) -> None:
    """Refuse to delete the files of a table that says that they are not its own alone."""
    if shares_files(table.metadata):
        raise ValidationException(
            f"{'.'.join(table.name())} was not purged, and is still there: {says_shared(table.metadata)} says that "
            f"other tables may need its files. drop_table() drops it and keeps them; set {GC_ENABLED}=true to purge it"
        )
