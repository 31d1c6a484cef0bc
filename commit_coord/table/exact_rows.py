"""Row operations of a transaction for which PyIceberg's own code would lose or duplicate rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan, Transaction, UpsertResult
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import UpdateSnapshot, _FastAppendFiles
from pyiceberg.typedef import EMPTY_DICT, Record

from commit_coord.iceberg.nulls import empty
from commit_coord.iceberg.plain_rows import in_microseconds, plain
from commit_coord.iceberg.required import complete
from commit_coord.iceberg.written import mark
from commit_coord.table import matching, partition_filters
from commit_coord.table.append import CoordinatedUpdateSnapshot
from commit_coord.table.arguments import arrow_table
from commit_coord.table.data_files import data_files
from commit_coord.table.deletion import delete_rows
from commit_coord.table.foreign_files import foreign_files
from commit_coord.table.isolation import seen_from
from commit_coord.table.ports import host_of
from commit_coord.table.producers import head_of

if TYPE_CHECKING:
    import pyarrow as pa


class ExactRows(Transaction):
    """A transaction whose calls write each row once, into its partition. It goes in front of one of PyIceberg's.

    PyIceberg splits rows by partition itself: it doubles those of 0.0 and -0.0, and loses those of NaN.
    """

    _unwritten: pa.Table | pa.RecordBatchReader | None = None
    """Rows that the next append adds."""

    def append(
        self,
        df: pa.Table | pa.RecordBatchReader,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Append rows."""
        with self._splitting(df) as checked:
            super().append(checked, snapshot_properties, branch)

    def overwrite(
        self,
        df: pa.Table | pa.RecordBatchReader,
        overwrite_filter: BooleanExpression | str = AlwaysTrue(),
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Replace the rows that match *overwrite_filter* with *df*."""
        with self._splitting(df) as checked:
            super().overwrite(checked, overwrite_filter, snapshot_properties, case_sensitive, branch)

    def dynamic_partition_overwrite(
        self, df: pa.Table, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> None:
        """Replace the partitions that *df* falls in."""
        super().dynamic_partition_overwrite(_no_row_of(df), snapshot_properties, branch)  # only checks
        if not df.num_rows:
            return
        files = list(data_files(self.table_metadata, df, self._table.io, host=host_of(self._table)))
        self.delete(
            self.partitions_of(files), snapshot_properties, branch=branch, _isolation_operation=Operation.OVERWRITE
        )
        with self._append_snapshot_producer(snapshot_properties, branch=branch) as producer:
            for data_file in files:
                producer.append_data_file(data_file)

    def delete(
        self,
        delete_filter: str | BooleanExpression,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        _isolation_operation: Operation | None = None,
    ) -> None:
        """Delete the rows that match *delete_filter*."""
        row_filter = parse(delete_filter) if isinstance(delete_filter, str) else delete_filter
        delete_rows(
            self,
            row_filter,
            snapshot_properties,
            case_sensitive=case_sensitive,
            branch=branch,
            isolation_operation=_isolation_operation,
        )

    def upsert(
        self,
        df: pa.Table,
        join_cols: list[str] | None = None,
        when_matched_update_all: bool = True,
        when_not_matched_insert_all: bool = True,
        case_sensitive: bool = True,
        branch: str | None = MAIN_BRANCH,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
    ) -> UpsertResult:
        """Replace the rows of the table that have the key of a row of *df*, and add the rows whose key it lacks.

        Keys are compared as SQL's MERGE compares them; see :mod:`commit_coord.table.matching`.

        Raises:
            InvalidArguments: *df* is no Arrow table.
            ValueError: *df* does not fit the table, a key is there twice, or there is nothing to match or to do.
        """
        metadata = seen_from(self.table_metadata, head_of(self, branch))
        columns = metadata.schema().as_struct()
        df = complete(plain(in_microseconds(arrow_table(df)), columns), columns)
        named = sorted(metadata.schema().identifier_field_names()) if join_cols is None else join_cols
        if not named:
            raise ValueError("Join columns could not be found, please set identifier-field-ids or pass in explicitly.")
        if not when_matched_update_all and not when_not_matched_insert_all:
            raise ValueError("no upsert options selected...exiting")
        keys = matching.key_columns(named, df, metadata.schema(), case_sensitive=case_sensitive)
        matching.number_of_each(
            df, keys, "Duplicate rows found in source dataset based on the key columns. No upsert executed"
        )
        found = DataScan(metadata, self._table.io, matching.matches(df, keys)).to_arrow()
        changed = matching.changed(df, found, keys) if when_matched_update_all else df.slice(0, 0)
        new = matching.new(df, found, keys) if when_not_matched_insert_all else df.slice(0, 0)
        if changed.num_rows:
            self.overwrite(changed, matching.matches(changed, keys), snapshot_properties, branch=branch)
        if new.num_rows:
            self.append(new, snapshot_properties, branch)
        return UpsertResult(rows_updated=changed.num_rows, rows_inserted=new.num_rows)

    def update_snapshot(
        self, snapshot_properties: dict[str, str] = EMPTY_DICT, branch: str | None = MAIN_BRANCH
    ) -> UpdateSnapshot:
        """Return a builder of snapshots, whose manifests are each of the spec that their files were written under."""
        return CoordinatedUpdateSnapshot(
            self, io=self._table.io, branch=branch, snapshot_properties=snapshot_properties
        )

    def _append_foreign(self, paths: Iterable[str], snapshot_properties: dict[str, str], branch: str | None) -> None:
        """Append files that another writer made, each to the partition that its rows lie in."""
        with self._append_snapshot_producer(snapshot_properties, branch=branch) as producer:
            for data_file in foreign_files(self.table_metadata, self._table.io, paths):
                producer.append_data_file(data_file)

    @contextmanager
    def _splitting(self, df: Any) -> Iterator[Any]:
        """Yield what PyIceberg writes of *df*: no row of it, as its next producer adds them."""
        rowless = empty(df.schema) if hasattr(df, "read_next_batch") else _no_row_of(df)
        if rowless is df:
            yield df
            return
        self._unwritten = df
        try:
            yield rowless
        finally:
            self._unwritten = None

    def _append_snapshot_producer(
        self, snapshot_properties: dict[str, str], branch: str | None = MAIN_BRANCH
    ) -> _FastAppendFiles:
        producer = super()._append_snapshot_producer(snapshot_properties, branch)
        rows, self._unwritten = self._unwritten, None
        if rows is not None and (hasattr(rows, "read_next_batch") or rows.num_rows):
            for data_file in data_files(self.table_metadata, rows, self._table.io, producer.commit_uuid):
                producer.append_data_file(data_file)
        return producer

    def partitions_of(self, data_files: Sequence[DataFile]) -> BooleanExpression:
        """Return a filter that all rows of the partitions of *data_files* match.

        One that does not say its spec is of the one that this transaction shows.
        """
        mark(self.table_metadata, data_files)
        return partition_filters.of_files(self.table_metadata, data_files)

    def _build_partition_predicate(
        self, partition_records: set[Record], partition_fields: list[str]
    ) -> BooleanExpression:
        """Return which rows lie in the partitions. To PyIceberg no partition is NaN, which equals nothing."""
        values = [[record[position] for position in range(len(partition_fields))] for record in partition_records]
        return partition_filters.of_values(partition_fields, values)


def _no_row_of(df: Any) -> Any:
    """Return *df* with its columns and no row; what is no Arrow table as it is, for PyIceberg to refuse."""
    import pyarrow as pa

    return df.slice(0, 0) if isinstance(df, pa.Table) else df
