"""Adds and replaces data files that are already written, in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import DataScan
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import EMPTY_DICT

from commit_coord.errors import FileInTable
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.partitions import partition_key
from commit_coord.iceberg.written import Written, has_partitions, mark
from commit_coord.protocol.hierarchy import Operation as Operates
from commit_coord.table import partition_filters
from commit_coord.table.append import CoordinatedUpdateSnapshot, PureAppend
from commit_coord.table.calls import Calls
from commit_coord.table.commit_request import CommitRequest
from commit_coord.table.isolation import has_deletes_after, seen_from
from commit_coord.table.live_files import canonical, live_among
from commit_coord.table.ports import host_of
from commit_coord.table.producers import head_of
from commit_coord.table.replaced import replaced
from commit_coord.table.rewriting import files_to_rewrite
from commit_coord.table.staged import StagingTransaction

_FILTERED = 200
"""Partitions for which a plan is filtered: each manifest is compared with each of them."""

F = TypeVar("F", bound=Callable[..., Any])


def _replayable(method: F) -> F:
    """Record outermost calls of *method*, to be made again on a newer head."""

    @wraps(method)
    def call(self: WrittenFiles, *args: Any, **kwargs: Any) -> Any:
        calls, request = self._calls, self._request
        args, kwargs = calls.kept((args, kwargs))

        def again(transaction: StagingTransaction) -> None:
            method(WrittenFiles(transaction, calls, request), *args, **kwargs)

        with calls.call(self._transaction, again):
            return method(self, *args, **kwargs)

    return cast(F, call)


class WrittenFiles:
    """Stages data files in one transaction.

    Args:
        transaction: Where they are staged.
        calls: Runs the calls on it.
        request: The commit, which conflicts name.
    """

    def __init__(self, transaction: StagingTransaction, calls: Calls, request: CommitRequest) -> None:
        self._transaction = transaction
        self._table = calls.draft.table
        self._calls = calls
        self._request = request

    def written(self, data_files: Sequence[DataFile], schema_id: int | None, given: Written | None = None) -> Written:
        """Return what *data_files* were written for: what nothing else says is what the transaction shows now.

        Args:
            data_files: Each of the partition spec that it says.
            schema_id: Their schema's.
            given: What their writer kept: ids may mean another schema and other specs by now.

        Raises:
            CommitConflict: The table does not have that schema or a spec any more, or *given* does not fit it.
            ValueError: A file is given twice, or does not say which of the specs in *given* is its own.
        """
        if len({canonical(data_file.file_path) for data_file in data_files}) < len(data_files):
            raise ValueError("a data file is given twice")
        shown = self._transaction.table_metadata
        if given:
            given.mark(data_files)
        mark(shown, data_files)
        schema_id = shown.current_schema_id if schema_id is None else schema_id
        known = not given.misfit(shown) if given else Written.known(shown, data_files, schema_id)
        try:
            if not self._calls.stack.begun and not known:
                # They may have been written for what others have changed meanwhile.
                self._calls.basis.see_the_head()
            now = self._transaction.table_metadata
            written = Written.of(now, data_files, schema_id, shown=shown, given=given)
        except ValueError as error:
            raise self._request.conflict(str(error)) from error
        if given and data_files and (reason := written.misfit(now)):
            raise self._request.conflict(reason)
        return written

    def append(
        self,
        data_files: Sequence[DataFile],
        snapshot_properties: dict[str, str],
        branch: str | None,
        schema_id: int | None = None,
        *,
        reads: BooleanExpression | str | None = None,
    ) -> None:
        """Append files whose metrics are known.

        Args:
            data_files: Each of the partition spec that it says (``DataFile.spec_id``).
            snapshot_properties: Go into the snapshot's summary.
            branch: Where the snapshot goes.
            schema_id: The schema that the files were written with; None means the current one, as of this call.
            reads: As for :meth:`CoordinatedTransaction.append`.

        Raises:
            CommitConflict: The table does not have that schema or a spec any more, or requires a value that the files
                may lack. Nothing was committed.
        """
        self.append_written(data_files, self.written(data_files, schema_id), snapshot_properties, branch, reads=reads)

    @_replayable
    def append_written(
        self,
        data_files: Sequence[DataFile],
        written: Written,
        snapshot_properties: dict[str, str],
        branch: str | None,
        *,
        reads: BooleanExpression | str | None = None,
        check_duplicate_files: bool = False,
    ) -> None:
        """Append files that were *written* for a schema and specs that the table still has, by :meth:`written`.

        With *check_duplicate_files* the commit depends on what the table holds: none of them must be in it.
        """
        self._calls.dependencies.brings_rows(reads, branch)
        if check_duplicate_files and data_files:
            self.refuse_live([data_file.file_path for data_file in data_files], branch)
        with self._transaction._append_snapshot_producer(snapshot_properties, branch=branch) as producer:
            cast(PureAppend, producer).written = written
            for data_file in data_files:
                producer.append_data_file(data_file)

    @_replayable
    def delete_partitions(
        self, data_files: Iterable[DataFile], snapshot_properties: dict[str, str], branch: str | None
    ) -> None:
        """Delete the rows that lie in a partition of one of *data_files*, whatever its transforms.

        Rows that are stored under other partition specs are replaced too: what else their files hold is written anew.
        """
        transaction = self._transaction
        self._calls.lock_operation(transaction, Operates.OVERWRITE)
        self._calls.draft.update(reads=True)
        metadata, files = transaction.table_metadata, list(data_files)
        specs = metadata.specs()
        if not files and has_partitions(metadata.spec()):
            return
        if not files or not all(has_partitions(specs[data_file.spec_id]) for data_file in files):
            overwrites = Operation.OVERWRITE
            transaction.delete(AlwaysTrue(), snapshot_properties, branch=branch, _isolation_operation=overwrites)
            return
        snapshot = head_of(transaction, branch)
        if snapshot is None:
            return
        partitions = {(data_file.spec_id, partition_key(data_file.partition)): data_file for data_file in files}
        few = len(partitions) <= _FILTERED
        filters = partition_filters.of_files(metadata, list(partitions.values())) if few else AlwaysTrue()
        scan = DataScan(seen_from(metadata, snapshot), self._table.io, filters)
        found = replaced(metadata, self._table.io, files_to_rewrite(scan), files, host_of(self._table))
        if found.gone:
            with transaction.update_snapshot(snapshot_properties, branch).overwrite() as producer:
                for data_file in found.gone:
                    producer.delete_data_file(data_file)
                for data_file in found.rest:
                    producer.append_data_file(data_file)

    @_replayable
    def rewrite(
        self,
        old: Sequence[DataFile],
        new: Sequence[DataFile],
        written: Written,
        read_at: int,
        snapshot_properties: dict[str, str] = EMPTY_DICT,
        branch: str | None = MAIN_BRANCH,
    ) -> None:
        """Put *new* in the place of *old*, which held the same rows at the sequence number *read_at*.

        *new* were *written* for a schema and specs that the table still has, by :meth:`written`.

        On another head than the one that *old* was read from it is tried again, as long as they are all there and
        nobody has deleted rows meanwhile: such a delete would not reach *new*.

        Raises:
            ValidationException: One of *old* is gone, or rows may have been deleted from them, or *new* do not fit the
                table any more. Nothing was committed.
        """
        self._calls.draft.update(reads=True)
        if has_deletes_after(head_of(self._transaction, branch), read_at, self._table.io):
            raise ValidationException("rows were deleted while files were being rewritten")
        builder = CoordinatedUpdateSnapshot(
            self._transaction, io=self._table.io, branch=branch, snapshot_properties=snapshot_properties
        )
        with builder.rewrite() as producer:
            producer.written = written
            for data_file in old:
                producer.delete_data_file(data_file)
            for data_file in new:
                producer.append_data_file(data_file)

    def refuse_live(self, paths: Sequence[str], branch: str | None) -> None:
        """Return if *branch* has none of the files at *paths*; the commit depends on that.

        Raises:
            FileInTable: It has one. Nothing was committed.
        """
        there = self._live_among(paths, branch)
        # 1. The coordinator looks at the head, and has this planned again on it.   2. Another commit lands.
        # 3. A look from here would plan on that one, and the coordinator swaps the first. So only a first plan looks.
        if there and not self._calls.stack.repeating and not self._calls.stack.begun:
            self._calls.basis.see_the_head()
            there = self._live_among(paths, branch)
        self._calls.draft.update(reads=True)
        if there:
            # No CommitNotApplied: after one of these the files may be deleted.
            raise FileInTable(
                "a file is already referenced by the table, so nothing was committed: keep the file",
                table=table_name(self._request.table),
                file=", ".join(there),
            )

    def _live_among(self, paths: Sequence[str], branch: str | None) -> list[str]:
        snapshot = head_of(self._transaction, branch)
        return live_among(paths, self._table.io, [snapshot] if snapshot is not None else [])
