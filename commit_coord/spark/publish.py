"""Commits the files of a job once, and deletes those that are in no table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile

from commit_coord.errors import CommitNotApplied, ConfigError, InvalidArguments, LockError, StatementError
from commit_coord.spark.files import Target, delete_folder, tidy_folder

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable

logger = logging.getLogger(__name__)


def publish(
    table: CoordinatedTable, files: Sequence[DataFile], target: Target, *, request_id: str | None, **arguments: Any
) -> None:
    """Commit *files*, which were written for *target*, and delete what is in its folder and in no table.

    When it is not known whether the commit landed, every file is kept.
    """
    try:
        landed = table.commit_files(
            files,
            written=target.written,  # the table was loaded anew, and ids may mean others by now
            request_id=request_id,
            check_duplicate_files=False,  # they were written for this call alone
            **arguments,
        )
    except (
        CommitNotApplied,
        CommitFailedException,
        ValidationException,
        ConfigError,
        InvalidArguments,
        StatementError,
        LockError,
    ):
        delete_folder(target)
        raise
    if landed:
        tidy_folder(target, files)
    else:
        assert request_id is not None
        drop_repeated(table, target, request_id)


def drop_repeated(table: CoordinatedTable, target: Target, request_id: str) -> None:
    """Delete the folder of a request that landed before, unless its files are those that landed, or may be.

    It raises nothing: the request has landed, and Spark would take an error for the failure of the job.

    1. ``commit()`` of a writer lands its files.   2. Its answer is lost, and the same writer commits again.   3. The
    request is found to have landed. Were its folder deleted now, the table would have lost its rows.
    """
    try:
        has_its_files = _has_files(table, target, request_id)
    except Exception:
        logger.warning("what request %s landed can't be read, its files are kept", request_id, exc_info=True)
        return
    if not has_its_files:
        delete_folder(target)


def _has_files(table: CoordinatedTable, target: Target, request_id: str) -> bool:
    """Return whether a request that has landed may have landed files of *target*."""
    entry = table.find_commit(request_id)
    table.refresh()
    snapshots = [table.metadata.snapshot_by_id(number) for number in entry.snapshot_ids] if entry is not None else []
    for snapshot in snapshots or [None]:
        if snapshot is None:
            logger.warning("what request %s landed is not known any more, its files are kept", request_id)
            return True
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                for written in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    if written.data_file.file_path.startswith(f"{target.folder}/"):
                        return True
    return False
