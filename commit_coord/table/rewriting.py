"""Which files a change writes anew, each with every delete that applies to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import DataScan, FileScanTask, ManifestGroupPlanner


def files_to_rewrite(scan: DataScan) -> Iterable[FileScanTask]:
    """Return the files that may have rows that *scan* finds, each with every delete that applies to it.

    A plan of PyIceberg's leaves out a file of deletes whose bounds show that none of the deleted rows matches the
    filter. That is right for a reader. But a change writes the rest of a data file anew, behind the deletes:

    1. A file has the rows 1 and 2, and row 2 was deleted, by a file with its bounds.   2. A change deletes row 1.
    3. It plans with "id = 1", without that delete.   4. It writes the rest of the file anew: row 2 is back.

    Raises:
        ValueError: There are equality deletes, which PyIceberg can't apply.
    """
    snapshot = scan.snapshot()
    if snapshot is None:
        return []
    planner = _WithEveryDelete(scan.table_metadata, scan.io, scan.row_filter, scan.case_sensitive, scan.options)
    return planner.plan_files(snapshot.manifests(scan.io))


class _WithEveryDelete(ManifestGroupPlanner):
    def _build_metrics_evaluator(self) -> Callable[[DataFile], bool]:
        may_match = super()._build_metrics_evaluator()
        return lambda file: file.content != DataFileContent.DATA or may_match(file)
