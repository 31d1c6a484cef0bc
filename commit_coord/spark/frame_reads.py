"""What a DataFrame was read from, and when: as far as its plan shows it.

Rows that were computed from a table may replace rows of it only as long as what they were read from is unchanged. So
each way to read is recognized in the plan, with the snapshot that was read:

* ``read_table`` leaves an alias in the plan (:func:`tag_of`).
* ``format("commit_coord")`` reads one snapshot for all queries on what ``load()`` returned: the one at the first of
  them. A cache may have been filled then. Its partitions say which one; they are asked for here, and Spark keeps them.
* Iceberg's JVM runtime reads the snapshot that it has loaded the table with, or a later one: Spark 4.1 loads it again
  before a query runs.

If the plan has a read of the table and does not say when it was, an overwrite is refused unless its caller says it.
What was collected or checkpointed, and what another program has read, is not in the plan.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.protocol import Py4JError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, Or
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame, SparkSession

from commit_coord.errors import StaleRead
from commit_coord.spark.session import plan_text, relations
from commit_coord.table.isolation import NO_SNAPSHOT, NOTHING

FORMAT = "commit_coord"
"""The name of the data source."""


@dataclass(frozen=True, slots=True)
class FrameRead:
    """Rows of a branch that a DataFrame was made of.

    Args:
        snapshot_id: As of when; ``NO_SNAPSHOT`` when the branch was empty.
        condition: Which rows.
    """

    snapshot_id: int
    condition: BooleanExpression


@dataclass(frozen=True, slots=True)
class BranchRead:
    """A read of a branch of some table, which travels with the partitions of the data source.

    Args:
        name: Of the table, as :func:`_digest_of_name`.
        table: Its UUID in hexadecimal digits.
        branch: Of which branch.
        read: What was read.
    """

    name: str
    table: str
    branch: str
    read: FrameRead

    @classmethod
    def of(cls, found: Table, branch: str, snapshot: Snapshot | None, condition: BooleanExpression) -> BranchRead:
        """Return a read of the rows in *snapshot* that match *condition*; None: the branch is empty."""
        at = snapshot.snapshot_id if snapshot is not None else NO_SNAPSHOT
        return cls(_digest_of_name(found), found.metadata.table_uuid.hex, branch, FrameRead(at, condition))

    def is_of(self, table: Table, branch: str) -> bool:
        """Say whether *branch* of *table* was read, or that of a dropped table which had the name of *table*."""
        same = self.name == _digest_of_name(table) or self.table == table.metadata.table_uuid.hex
        return same and self.branch == branch


def depends_on(
    spark: SparkSession | None,
    plans: Sequence[Any],
    table: Table,
    branch: str,
    *,
    reads: BooleanExpression | str | None,
    read_at: int | None,
    seen: int,
) -> dict[str, Any]:
    """Return what the rows of *plans* depend on, as arguments of ``commit_files``.

    Args:
        spark: The session of the plans; None if there are none.
        plans: They compute the rows that are written; None for one that is not known.
        table: Where to.
        branch: Of which branch.
        reads: Which rows the caller says were read; None: what the plans read.
        read_at: When the caller says that it was; None: what the plans say.
        seen: The snapshot that the caller saw, if the caller says which rows were read and not when.

    Raises:
        StaleRead: The plans read the branch, and nothing says when they did.
    """
    if reads is not None and (read_at is not None or reads == NOTHING):
        return {"reads": reads, "read_at": read_at}
    found: list[FrameRead] = []
    for plan in plans:
        for read in _reads_in(spark, plan, table, branch):
            if read is not None:
                found.append(read)
            elif read_at is None:
                raise StaleRead(
                    "the commit did not land: its rows were read from the table, but from which snapshot is not known",
                    table=".".join(table.name()),
                    accepted="read_at: the snapshot that was read (the option 'read-at' of the format); "
                    "reads=NOTHING, if the rows do not depend on the table (the option 'reads', 'nothing')",
                )
            else:
                found.append(FrameRead(read_at, AlwaysTrue()))
    if read_at is None:
        known = {read.snapshot_id for read in found}
        # The rows that are named may have been collected, so that the plan shows nothing of them.
        if reads is not None or not found:
            known.add(seen)
        read_at = oldest(table.metadata, branch, known)
    if reads is None:
        reads = reduce(Or, [read.condition for read in found]) if found else NOTHING
    return {"reads": reads, "read_at": read_at}


def reads_of(df: DataFrame, table: Table, branch: str) -> FrameRead | None:
    """Return which rows of a branch of *table* the plan of *df* reads, as of the oldest of its snapshots.

    None when it reads none.

    Raises:
        StaleRead: It reads some, and does not say when.
    """
    plans = [df._jdf.queryExecution().analyzed()]
    read = depends_on(df.sparkSession, plans, table, branch, reads=None, read_at=None, seen=NO_SNAPSHOT)
    return FrameRead(read["read_at"], read["reads"]) if read["reads"] != NOTHING else None


def _reads_in(spark: SparkSession | None, plan: Any, table: Table, branch: str) -> Iterator[FrameRead | None]:
    """Yield the reads of a branch of *table* in *plan*; None for one that does not say when it was.

    A *plan* of None is not known, so neither is what it reads.
    """
    if spark is None or plan is None:
        yield None
        return
    text = plan_text(spark, plan)
    for tag in _TAGS.finditer(text):
        at = int(tag["snapshot"]) if tag["snapshot"] != "none" else NO_SNAPSHOT
        same = tag["name"] == _digest_of_name(table) or tag["table"] == table.metadata.table_uuid.hex
        if same and tag["branch"] == _digest(branch):
            yield FrameRead(at, _conditions.get(tag[0], AlwaysTrue()))
    if "RelationV2" not in text:
        return
    for relation in relations(plan):
        source = relation.table()
        kind = str(source.getClass().getName())
        if kind.endswith(".python.PythonTable") and str(source.name()).lower() == FORMAT:
            found = _planned(relation)
            if found is not None and found.is_of(table, branch):
                yield found.read
        elif kind.startswith("org.apache.iceberg."):
            try:
                yield from _by_java(relation, table, branch)
            except Py4JError:  # another version of the runtime, or a table that shows another one
                yield None


def _planned(relation: Any) -> BranchRead | None:
    """Return what *relation*, of our data source, reads in all of its queries; None if its caller chose a snapshot.

    Source: ``PythonDataSourceV2.getOrCreateReadInfo`` of Spark 4.1.
    """
    batch = relation.table().newScanBuilder(relation.options()).build().toBatch()
    partition = pickle.loads(batch.planInputPartitions()[0].pickedPartition())  # noqa: S301 - of our worker # nosec B301
    read: BranchRead | None = pickle.loads(partition.pickled).read  # noqa: S301 - pickled by this process # nosec B301
    return read


def _by_java(relation: Any, table: Table, branch: str) -> Iterator[FrameRead | None]:
    """Yield what *relation*, of Iceberg's JVM runtime, reads of a branch of *table*; nothing for another table.

    Nothing either if the caller has chosen a snapshot, and so means that one.
    """
    source = relation.table()
    key = source.id() or source.table().uuid().toString()
    if key != str(table.metadata.table_uuid):
        return
    if relation.timeTravelSpec().isDefined():
        return
    if (source.branch() or MAIN_BRANCH) != branch:
        return
    at, current = source.snapshotId(), source.table().currentSnapshot()
    if at is None and current is not None:
        yield None
    else:
        yield FrameRead(int(at) if at is not None else NO_SNAPSHOT, AlwaysTrue())


_TAG = "commit_coord_read_{read}_{name}_{table}_{branch}_{snapshot}"
_TAGS = re.compile(
    _TAG.format(
        read="[0-9a-f]{32}",
        name="(?P<name>[0-9a-f]{32}|pinned)",
        table="(?P<table>[0-9a-f]{32}|pinned)",
        branch="(?P<branch>[0-9a-f]{32})",
        snapshot=r"(?P<snapshot>\d+|none)",
    )
)
_REMEMBERED = 10_000
_conditions: OrderedDict[str, BooleanExpression] = OrderedDict()
"""What a tag has no place for. A tag that was forgotten has read every row."""


def tag_of(found: Table, branch: str, snapshot: Snapshot | None, condition: BooleanExpression, *, pinned: bool) -> str:
    """Return an alias for the plan of a DataFrame, by which :func:`reads_of` knows what it was read from.

    Args:
        found: The table.
        branch: Of which branch.
        snapshot: What is read; None: the branch is empty.
        condition: Which rows.
        pinned: Whether the caller chose the snapshot, and so means that one, whatever the table has by now.
    """
    tag = _TAG.format(
        read=uuid.uuid4().hex,
        name="pinned" if pinned else _digest_of_name(found),
        table="pinned" if pinned else found.metadata.table_uuid.hex,
        branch=_digest(branch),
        snapshot=snapshot.snapshot_id if snapshot is not None else "none",
    )
    _conditions[tag] = condition
    while len(_conditions) > _REMEMBERED:
        _conditions.popitem(last=False)
    return tag


def head_of(metadata: TableMetadata, branch: str) -> int:
    """Return the snapshot at the head of *branch*, ``NO_SNAPSHOT`` when it is empty."""
    snapshot = metadata.snapshot_by_name(branch)
    return snapshot.snapshot_id if snapshot is not None else NO_SNAPSHOT


def oldest(metadata: TableMetadata, branch: str, snapshot_ids: Collection[int]) -> int:
    """Return which of *snapshot_ids* was at the head of *branch* first; one that its history lacks, where one does.

    Sequence numbers do not tell: all those of format version 1 are 0.
    """
    left = set(snapshot_ids)
    snapshot = metadata.snapshot_by_name(branch)
    while snapshot is not None and len(left) > 1:
        left.discard(snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        snapshot = metadata.snapshot_by_id(parent) if parent is not None else None
    return max(left)


def _digest(name: str) -> str:
    """Return *name* as a word of an alias."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _digest_of_name(table: Table) -> str:
    # Catalogs of two databases may have one name, and one database may hold several catalogs.
    uri = table.catalog.properties.get("uri", "").removeprefix("coord+")
    return _digest("\0".join((uri, table.catalog.name, *table.name())))
