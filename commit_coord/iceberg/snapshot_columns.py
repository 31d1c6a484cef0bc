"""A scan of a snapshot names, in its filter, the columns that it shows: those of the snapshot.

Known mistake of PyIceberg: a scan of a snapshot, tag or branch shows the columns that the table had when the snapshot
was written, and reads the filter with those that it has now. After two columns have swapped their names, the scan of a
tag finds the rows of the other one; after a column was dropped, it refuses a filter on it.

Scans by PyIceberg's transactions keep the table's present columns, because their filters name these.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.table import BaseScan, DataScan, Transaction

from commit_coord.iceberg.mends import Mends

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata


def mend(mends: Mends, tables: ModuleType) -> None:
    """Have PyIceberg plan and read scans so, in *tables*, its module for tables."""
    # All plans go through it: those of files, of manifest entries (``inspect.partitions``), and ``partition_filters``.
    mends.wrap(vars(DataScan)["_manifest_planner"], "func", _as_shown)
    mends.wrap(Transaction, "_scan", _of_the_table)
    for name in ("_to_arrow_via_file_scan_tasks", "_to_arrow_batch_reader_via_file_scan_tasks"):
        mends.wrap(tables, name, _as_shown)


def shown_by(scan: BaseScan) -> TableMetadata:
    """Return the metadata of the table of *scan*, with the columns that *scan* shows as its current ones."""
    metadata, snapshot_id = scan.table_metadata, getattr(scan, "snapshot_id", None)
    if isinstance(scan, _OfTheTable):
        return metadata
    snapshot = metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    schema_id = snapshot.schema_id if snapshot is not None else None
    if schema_id in (None, metadata.current_schema_id) or schema_id not in {s.schema_id for s in metadata.schemas}:
        return metadata
    return metadata.model_copy(update={"current_schema_id": schema_id})


class _OfTheTable(DataScan):
    """A scan of a branch that shows the columns of the table."""

    def projection(self) -> Schema:
        """Return them."""
        return self.update(snapshot_id=None).projection() if self.snapshot_id is not None else super().projection()


def _of_the_table(real: Callable[..., DataScan]) -> Callable[..., DataScan]:
    def scan(*args: Any, **kwargs: Any) -> DataScan:
        made = real(*args, **kwargs)
        return _OfTheTable(made.table_metadata, made.io, made.row_filter, case_sensitive=made.case_sensitive)

    return scan


def _as_shown(real: Callable[..., Any]) -> Callable[..., Any]:
    def called(scan: BaseScan, *args: Any, **kwargs: Any) -> Any:
        if (metadata := shown_by(scan)) is not scan.table_metadata:
            scan = copy.copy(scan)
            scan.table_metadata = metadata
        return real(scan, *args, **kwargs)

    return called
