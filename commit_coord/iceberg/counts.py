"""How many rows a scan finds, by what is recorded of the files.

Known mistake of PyIceberg, mended here: its count adds up what the entries of files say, also -1, which some writers
say for a file whose rows they did not count.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import DataScan, FileScanTask

from commit_coord.iceberg.mends import Mends
from commit_coord.iceberg.snapshot_columns import shown_by


def mend(mends: Mends) -> None:
    """Have PyIceberg count the rows of files that do not say how many they have."""
    mends.wrap(DataScan, "count", _exact)


def rows_that_match(task: FileScanTask) -> int | None:
    """Return how many rows of a file a scan finds; None if some may not match, or be deleted, or were not counted."""
    if task.file.record_count < 0 or task.delete_files or not isinstance(task.residual, AlwaysTrue):
        return None
    return task.file.record_count


def _exact(_: Any) -> Any:
    def count(self: DataScan) -> int:
        from pyiceberg.io.pyarrow import ArrowScan

        scan = ArrowScan(shown_by(self), self.io, self.projection(), self.row_filter, self.case_sensitive)
        known = ((rows_that_match(task), task) for task in self.plan_files())
        return sum(scan.to_table([task]).num_rows if rows is None else rows for rows, task in known)

    return count
