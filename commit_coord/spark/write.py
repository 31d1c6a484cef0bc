"""The fast way in: rows through Spark's own Parquet writer, one commit from Python."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import Table
from pyspark.sql import DataFrame

from commit_coord.errors import ConfigError
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.model import WriteMode
from commit_coord.spark.files import Target, delete_folder
from commit_coord.spark.filters import parse
from commit_coord.spark.frame_reads import depends_on, head_of
from commit_coord.spark.jobs import run_jobs
from commit_coord.spark.locks import check_has_partitions, check_inside, holding
from commit_coord.spark.publish import publish
from commit_coord.spark.row_files import write_files
from commit_coord.spark.schema import check_fits
from commit_coord.spark.session import require_classic
from commit_coord.spark.tables import TableOrName, resolve
from commit_coord.table.isolation import NOTHING
from commit_coord.table.writable import refuse_unwritable

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from commit_coord.table import CoordinatedTable

logger = logging.getLogger(__name__)

MODES: tuple[WriteMode, ...] = get_args(WriteMode)


def write_table(
    df: DataFrame,
    table: TableOrName,
    mode: WriteMode = "append",
    *,
    overwrite_filter: BooleanExpression | str = AlwaysTrue(),
    branch: str = "main",
    create: bool = False,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    request_id: str | None = None,
    reads: BooleanExpression | str | None = None,
    read_at: int | None = None,
) -> CoordinatedTable:
    """Write the rows of *df* to *table* in one commit.

    Guarantee: when this returns, the rows are in the table exactly once, whatever became of task attempts, and
    every lock was given back. When it raises ``CommitStateUnknown``, they may be, and every file is kept: write
    again with the same *request_id*. When it raises anything else before the commit, or ``CommitNotApplied``,
    nothing is in the table and the files were deleted.

    Args:
        df: Columns are matched by name, like Spark's own ``spark.sql.caseSensitive`` says. Missing optional columns
            become null. Only lossless conversions are made.
        table: A table of our catalog; a name in the default catalog, such as ``"shop.sales"``; or
            ``(catalog, identifier)``, where the catalog may be a name, too.
        mode: ``append``; ``overwrite`` replaces the rows that match *overwrite_filter*; ``dynamic`` replaces the
            partitions that the rows fall in.
        overwrite_filter: PyIceberg's expression or its text; default is every row. With ``dynamic`` it promises in
            which partitions the rows lie, so that only those are locked; a row outside of it is refused.
        branch: Where to.
        create: Make the table when it is not there; needs a name. Where it can't be made for *df*, none is.
        partition_by: For *create*: column names or ``bucket(16, id)``, ``truncate(4, s)``, ``day(ts)`` and so on.
        properties: For *create*: the table's properties.
        snapshot_properties: Go into the snapshot's summary.
        table_properties: Set by the same commit.
        request_id: Names this write, a UUID or any text. A write that landed before under the same name is not
            repeated.
        reads: Which rows of *table* were read to compute *df*; these must not have changed since *read_at*. None: for
            an overwrite what the plan of *df* reads of it, by :func:`read_table`, ``format("commit_coord")`` or
            Iceberg's JVM runtime; no row when it reads none. Name them when *df* was collected or checkpointed in
            between.
        read_at: The snapshot that was read, ``NO_SNAPSHOT`` for an empty branch. Without *reads* all that the plan of
            *df* reads was read then; every row when it reads none. None: the one that the plan reads; for *reads* the
            one that *table* showed before this call (an empty branch counts too), if that is older. A name shows what
            the table has when this is called.

    Returns:
        The table as of this commit. If the request had landed before, and the table can't be loaded now: as it was.

    Raises:
        SchemaMismatch: *df* does not fit. No row was written.
        ConfigError: An argument has no meaning, or names what is not there. No row was written, and no table made.
        StaleRead: Rows that *df* was computed from have changed, or it is not known when they were read. Nothing
            landed. Read them again, or give *reads* and *read_at*.
        LockTimeout: A conflicting operation lock was not given back in time. No row was written.
        CommitNotApplied: Refused for good, nothing landed.
        CommitStateUnknown: See above.
    """
    if mode not in MODES:
        raise ConfigError("unknown write mode", mode=mode, accepted=", ".join(MODES))
    require_classic(df)
    bounds = parse(overwrite_filter)
    if mode == "append" and not isinstance(bounds, AlwaysTrue):
        raise ConfigError("overwrite_filter has no meaning for an append", overwrite_filter=bounds)
    # What the caller saw counts, not what is loaded below, nor what is there once the locks are held.
    shown = table.metadata if isinstance(table, Table) else None
    found = resolve(df.sparkSession, table, df.schema if create else None, partition_by, properties or {}, mode)
    seen = head_of(found.metadata if shown is None else shown, branch)
    request = None if request_id is None else request_uuid(request_id)
    if request is not None and found.find_commit(request) is not None:
        logger.info("request %s was committed before, nothing is written", request_id)
        try:
            found.refresh()
        except Exception:  # an error would look as if the request had failed
            logger.warning("table %s can't be loaded after it", ".".join(found.name()), exc_info=True)
        return found
    # The checks come after it: if the request has landed, its repeat succeeds, whatever has become of the table.
    refuse_unwritable(found)
    check_has_partitions(mode, found.spec())
    sensitive = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    check_fits(df.schema, found.schema(), case_sensitive=sensitive)
    name = ".".join(found.name())
    with holding(found, mode, bounds, f"write_table {mode} {name}"):
        # Once more: schema and partitions may have changed while we waited for the locks.
        check_has_partitions(mode, found.spec())
        check_fits(df.schema, found.schema(), case_sensitive=sensitive)
        target = Target.of(found)
        depends: dict[str, Any] = {}
        if mode != "append" or reads is not None or read_at is not None:
            depends = _depends(df, found, branch, reads, read_at, seen)

        def work() -> list[DataFile]:
            files = write_files(df, found, target, sensitive)
            if mode == "dynamic" and not isinstance(bounds, AlwaysTrue):
                check_inside(files, target.spec, target.schema, bounds)
            return files

        files = run_jobs(df.sparkSession, target, work)
        if files or mode == "overwrite":
            publish(
                found,
                files,
                target,
                mode=mode,
                overwrite_filter=bounds if mode == "overwrite" else AlwaysTrue(),
                branch=branch,
                snapshot_properties=dict(snapshot_properties or {}),
                properties=dict(table_properties or {}),
                request_id=request,
                **depends,
            )
        else:
            delete_folder(target)  # nothing to add and nothing to replace is no commit
    return found


def _depends(
    df: DataFrame,
    table: Table,
    branch: str,
    reads: BooleanExpression | str | None,
    read_at: int | None,
    seen: int,
) -> dict[str, Any]:
    """Return what a write of *df* depends on, as arguments of ``commit_files``; *seen* is what the caller saw."""
    plans = [df._jdf.queryExecution().analyzed()]
    found = depends_on(df.sparkSession, plans, table, branch, reads=reads, read_at=read_at, seen=seen)
    if reads is None and read_at is not None and found["reads"] == NOTHING:
        found["reads"] = AlwaysTrue()  # something was read then, and the plan does not show what
    return found
