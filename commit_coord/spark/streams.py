"""Batches of streams, each written once however often Spark repeats it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyspark.sql import DataFrame

from commit_coord.errors import CommitNotApplied, ConfigError
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.spark.session import planned_at, run_of
from commit_coord.spark.tables import TableOrName, resolve
from commit_coord.spark.write import write_table

if TYPE_CHECKING:
    from commit_coord.table import CoordinatedTable

logger = logging.getLogger(__name__)

WRITER_PROPERTY = "commit-coord.stream."
"""Table property of a streaming writer: its last batch in ``main``. The writer's id follows the prefix.

Older versions read it, too, and write it for every branch. So versions may alternate, as in a rolling upgrade, where a
stream writes to ``main``.
"""

_BRANCH_PROPERTY = f"{WRITER_PROPERTY}of-branch."
"""The same for each branch. The quoted name of the branch, a slash, and the writer's id follow the prefix.

For ``main`` it tells that the mark that older versions read is of ``main``, too.
"""

_BRANCH = "commit-coord.batch-branch"
"""Property of the snapshot of a batch: its branch. The snapshots of older versions do not have it."""

QUERY_ID = "sql.streaming.queryId"
"""Property that Spark gives to the jobs of a streaming query."""

_OLDER = (
    "nothing was written: the checkpoint is older than the table, which has this batch with other rows or has later "
    "batches. Go on with the newest checkpoint; if it is lost, delete the rows of these batches from the table, and "
    "give the stream another writer id"
)
_ANOTHER = (
    "nothing was written: the table has later batches of this stream or batches of another checkpoint, and "
    "this batch is not known to have landed. If the stream has a new checkpoint, give it another writer id"
)
_AGAIN = (
    "nothing was written by this call: an earlier call in this run of the query has written this batch to this table "
    "and branch. A second call can't be distinguished from a repeat. Give each call a writer_id of its own"
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream.

    Args:
        writer_id: Names the stream.
        query_id: Of the streaming query. Spark keeps it in the checkpoint, so a checkpoint that was deleted has
            another one; empty when no query runs.
        number: Counts from 0 in each checkpoint.
        former_id: How older versions named the stream, where that was not *writer_id*.
        planned: When Spark planned it (:func:`~commit_coord.spark.session.planned_at`); empty when that is not known.
        branch: Where it goes.
    """

    writer_id: str
    query_id: str
    number: int
    former_id: str = ""
    planned: str = ""
    branch: str = MAIN_BRANCH

    @property
    def request_id(self) -> str:
        """The same for every replay of this batch."""
        return request_uuid(self._name if self.branch == MAIN_BRANCH else f"{self._name}/{self.branch}")

    @property
    def _name(self) -> str:
        """What the request id is made of: in ``main``, and by older versions in every branch."""
        return f"{self.writer_id}/{self.query_id}/{self.number}"

    @property
    def _shared_key(self) -> str:
        """The table property that older versions know."""
        return f"{WRITER_PROPERTY}{self.writer_id}"

    def _key(self, branch: str) -> str:
        return f"{_BRANCH_PROPERTY}{quote(branch, safe='')}/{self.writer_id}"

    @property
    def summary(self) -> dict[str, str]:
        """What the snapshot says of it."""
        return {
            "commit-coord.writer-id": self.writer_id,
            "commit-coord.batch-id": str(self.number),
            _BRANCH: self.branch,
        }

    @property
    def properties(self) -> dict[str, str]:
        """The mark: a table property that outlives the snapshot."""
        mark = f"{self.number} {self.query_id} {self.planned}".strip()
        return {self._key(self.branch): mark} | ({self._shared_key: mark} if self.branch == MAIN_BRANCH else {})

    def done(self, table: CoordinatedTable) -> bool:
        """Say whether *table* has this batch. Spark repeats a batch when it does not know that it was committed.

        Raises:
            CommitNotApplied: The table has later batches, or a batch of this number that was planned at another time:
                the checkpoint was deleted, or comes from a backup. The rows may be others than those that were written
                under this number, so they are neither dropped nor written twice.
        """
        own, shared = table.properties.get(self._key(self.branch)), table.properties.get(self._shared_key)
        if self.branch == MAIN_BRANCH:
            mark, is_of_any_branch = shared, False
        elif own is None and shared != table.properties.get(self._key(MAIN_BRANCH)):
            mark, is_of_any_branch = shared, True
        else:
            mark, is_of_any_branch = own, False
        former = table.properties.get(f"{WRITER_PROPERTY}{self.former_id}") if self.former_id else None
        if mark is None and former == str(self.number):
            mark = former  # of another number it is no replay: Spark repeats the last batch alone
        if mark is None:
            return table.find_commit(self.request_id) is not None
        last, query, planned = [*mark.split(), "", ""][:3]
        # A mark without a query is of an older version, or no query ran. A checkpoint that starts anew starts with 0.
        if query in ("", self.query_id) and int(last) < self.number:
            return self.branch != MAIN_BRANCH and self._has(table, self.branch)  # by an older version
        if int(last) == self.number and self._is_last(table, query) and planned in ("", self.planned):
            return not (is_of_any_branch and self._is_of_another_branch(table))
        is_older = bool(query) and query == self.query_id and (int(last) > self.number or bool(self.planned))
        raise CommitNotApplied(
            _OLDER if is_older else _ANOTHER,
            writer_id=self.writer_id,
            batch=self.number,
            query=self.query_id or None,
            mark=mark,
        )

    def _is_last(self, table: CoordinatedTable, query: str) -> bool:
        """Return whether the mark that *query* left with this number is known to be of this batch."""
        if any(table.find_commit(request) is not None for request in (self.request_id, request_uuid(self._name))):
            return True
        if known := query or (self.query_id if self.writer_id == self.query_id else ""):
            return known == self.query_id
        # 0 is also the first batch after the checkpoint was deleted, and an older version named both alike.
        former = request_uuid(f"{self.former_id or self.writer_id}/{self.number}")
        return self.number > 0 and table.find_commit(former) is not None

    def _is_of_another_branch(self, table: CoordinatedTable) -> bool:
        """Return whether the batch that left a mark for any branch is known to be in another branch, not in this one.

        It is in no branch after a rollback: its rows are not to come back.
        """
        branches = {n for n, ref in table.metadata.refs.items() if ref.snapshot_ref_type is SnapshotRefType.BRANCH}
        if self.branch == MAIN_BRANCH or self._has(table, self.branch):
            return False
        return any(self._has(table, other) for other in branches - {self.branch})

    def _has(self, table: CoordinatedTable, branch: str) -> bool:
        """Return whether *branch* is known to have the batch, by the request id of ``main`` and of older versions.

        1. This version writes a batch to ``main``.   2. The branch is made, from the head of ``main``.   3. The batch
        is to be written to the branch, too. Its history has the request id, but the snapshot is for ``main``.
        """
        entry = table.find_commit(request_uuid(self._name))
        if entry is None or not entry.snapshot_ids:
            return False
        head = table.metadata.snapshot_by_name(branch)
        written = {each.snapshot_id: each for each in ancestors_of(head, table.metadata)}
        return all(number in written and _branch_of(written[number]) in (None, branch) for number in entry.snapshot_ids)


def _branch_of(snapshot: Snapshot) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(_BRANCH)


_calls: dict[Hashable, tuple[Hashable, weakref.ref[DataFrame], Mapping[str, Any]]] = {}
"""Stream and branch of a table → the last run and batch for which they were written, the rows, and the arguments."""

_guard = threading.Lock()


@contextmanager
def _once(
    where: Hashable, call: Hashable, df: DataFrame, arguments: Mapping[str, Any], **named: object
) -> Iterator[None]:
    """Refuse a second *call* that differs, for the same batch in one run of a query. One that failed may come again.

    A second one with the same object as *df*, and the same *arguments*, writes the same rows: the function of the user
    was repeated as a whole.

    Raises:
        CommitNotApplied: It is the second one. After a restart of the query, each may come again.
    """
    with _guard:
        known, rows, before = _calls.get(where, (None, None, None))
        again = known == call
        if again and (rows is None or rows() is not df or before != arguments):
            raise CommitNotApplied(_AGAIN, **named)
        if not again:
            _calls[where] = call, weakref.ref(df), arguments
    try:
        yield
    except BaseException:
        if not again:  # else the first one may have landed
            with _guard:
                _calls.pop(where, None)
        raise


def foreach_batch(
    table: TableOrName, *, writer_id: str | None = None, **arguments: Any
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``writeStream.foreachBatch`` that writes every batch exactly once, replays included.

    Args:
        table: As for :func:`write_table`.
        writer_id: Names the stream. None takes the id of the streaming query, which its checkpoint keeps. One name
            must not be used by two streams, nor again after the checkpoint was deleted: such batches are refused.
        arguments: Of :func:`write_table`, without ``request_id``.

    Call it once for a batch. Another call, for the same table and branch, is refused with ``CommitNotApplied``: its
    rows would be taken for a repeat of the first one. Give each of several writes of a batch a *writer_id* of its own.
    A call with the same DataFrame object and the same arguments is a repeat: it writes nothing if the batch has landed.

    The function raises what :func:`write_table` raises; Spark then fails the query, and a restart repeats the batch.
    """

    def write(df: DataFrame, batch_id: int) -> None:
        query = df.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        name = writer_id or query
        if not name:
            raise ConfigError("set writer_id: no streaming query runs this function, so there is no id of a query")
        given = dict(arguments)
        source = df.schema if given.pop("create", False) else None
        found = resolve(
            df.sparkSession,
            table,
            source,
            given.pop("partition_by", ()),
            given.pop("properties", None) or {},
            given.get("mode", "append"),
        )
        planned = planned_at(df.sparkSession, query, batch_id) if query else ""
        run = run_of(df.sparkSession, query) if query else ""
        batch = Batch(name, query or "", batch_id, planned=planned, branch=given.get("branch", MAIN_BRANCH))
        where = (found.metadata.table_uuid, batch.branch, name, query)
        place = {"table": ".".join(found.name()), "branch": batch.branch, "batch": batch_id}
        with _once(where, (run, batch_id), df, arguments, **place) if run else nullcontext():
            if batch.done(found):
                logger.info("batch %d of %s was written before", batch_id, name)
                return
            given["snapshot_properties"] = (given.get("snapshot_properties") or {}) | batch.summary
            given["table_properties"] = (given.get("table_properties") or {}) | batch.properties
            write_table(df, found, **given, request_id=batch.request_id)

    return write
