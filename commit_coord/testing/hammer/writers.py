"""The writers: processes that append, with our catalog or PyIceberg's own, and one that changes the table."""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.config import COALESCE
from commit_coord.errors import CommitStateUnknown, LockError
from commit_coord.testing.fleet import ForkedWriter, OutcomeLog, Outcomes, read_outcomes
from commit_coord.testing.plain import open_plain

TABLE = ("hammer", "t")
ROWS = 10
MARK = "hammer-id"
_IMPORTED = [
    "commit_coord.catalog.sql",
    "commit_coord.catalog.hive",
    "commit_coord.locks.zookeeper.manager",
    "pyiceberg.io.pyarrow",
    "pandas",
    "pyarrow.pandas_compat",
    "sqlite3",
    "rich.console",
    "rich.table",
]
"""What a writer would import with its first append."""
_SCHEMA = pa.schema([("id", pa.int64()), ("mark", pa.string()), ("value", pa.float64())])
COLUMNS = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "mark", StringType()), NestedField(3, "value", DoubleType())
)
SPEC = PartitionSpec(PartitionField(2, 1000, TruncateTransform(1), "slot"))
"""All rows of an append are in one partition, whatever fields are added: an append is a file."""


def open_catalog(folder: Path, properties: Mapping[str, str]) -> CoordinatedCatalog:
    """Open the catalog of a run in *folder*."""
    place = {"uri": f"coord+sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return commit_coord.load_catalog("hammer", **{**place, **properties})


# One slot.


def _log(folder: Path, slot: int) -> Path:
    return folder / f"slot-{slot}.log"


def outcomes(folder: Path, slot: int) -> Outcomes:
    """Return what the log of *slot* says."""
    return read_outcomes(_log(folder, slot))


def count_acknowledged(folder: Path, writers: int) -> int:
    """Return how many appends the logs of all slots say are acknowledged."""
    return sum(len(outcomes(folder, slot).acknowledged) for slot in range(writers))


def forked(target: Callable[..., None], *arguments: Any) -> ForkedWriter:
    """Start *target* in a process that has imported what a writer needs."""
    return ForkedWriter(target, *arguments, imported=_IMPORTED)


def write(folder: Path, slot: int, appends: int, properties: Mapping[str, str], rest_s: float) -> None:
    """Be the writer of *slot* until it has *appends* acknowledgements."""
    catalog = open_catalog(folder, properties)
    table = catalog.load_table(TABLE)
    marked = table.properties[COALESCE] == "false"  # what says different things can't share a snapshot
    dice = random.Random()  # noqa: S311 - dice, no secret
    with _Diary(folder, slot) as diary:
        while diary.done < appends:
            mark = diary.next()
            try:
                table.append(rows_of(mark), snapshot_properties={MARK: mark} if marked else {})
            except Exception as error:
                logging.getLogger(__name__).exception("append %s", mark)
                diary.failed(mark, error)
                with suppress(Exception):  # the next append says whether it lasts
                    table.refresh()
                continue
            diary.landed(mark, table)
            time.sleep(2 * rest_s * dice.random())  # the subject: the pace of a writer
    catalog.close()


def write_plain(folder: Path, slot: int, properties: Mapping[str, str]) -> None:
    """Be the uncoordinated writer of *slot*, until the outcome of an append is unknown."""
    table = open_plain(properties["uri"]).load_table(TABLE)
    with _Diary(folder, slot) as diary:
        while True:
            mark = diary.next()
            try:
                table.append(rows_of(mark), snapshot_properties={MARK: mark})
            except CommitFailedException as error:
                diary.failed(mark, error)
                table.refresh()
                continue
            diary.landed(mark, table)


def evolve_table(folder: Path, stop: Path, properties: Mapping[str, str]) -> None:
    """Change the table's columns and partitions, one change after the other, until *stop* is there."""
    with closing(open_catalog(folder, properties)) as catalog:
        for change in itertools.cycle(_CHANGES):
            if stop.exists():
                return
            # It competes with the writers, and may lose: then the next one is tried.
            with suppress(CommitFailedException, CommitStateUnknown, LockError, ValidationError, ValueError):
                change(catalog.load_table(TABLE))
            time.sleep(_CHANGE_EVERY_S)  # the subject: the pace of the changes


def _add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("more", StringType())


def _drop_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("more")


def _add_field(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("value", IdentityTransform(), "append")


def _drop_field(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("append")


_CHANGES = (_add_column, _add_field, _drop_column, _drop_field)
_CHANGE_EVERY_S = 0.2


class _Diary(OutcomeLog):
    """What a writer of *slot* writes to its log: it goes on where the slot's last writer ended."""

    def __init__(self, folder: Path, slot: int) -> None:
        before = outcomes(folder, slot)
        self.done, self._number, self._slot = len(before.acknowledged), len(before.tried), slot
        super().__init__(_log(folder, slot))

    def next(self) -> str:
        """Note that an append begins, and return its mark."""
        mark = f"{self._slot}-{os.getpid()}-{self._number}"
        self._number += 1
        self.tries(mark)
        return mark

    def landed(self, mark: str, table: Table) -> None:
        """Note that the append of that mark was acknowledged."""
        snapshot = table.current_snapshot()
        assert snapshot is not None
        self.acknowledged(mark, snapshot.snapshot_id)
        self.done += 1

    def failed(self, mark: str, error: Exception) -> None:
        """Note that it was not."""
        (self.unknown if "Unknown" in type(error).__name__ else self.refused)(mark, error)


def rows_of(mark: str) -> pa.Table:
    """Return the rows of an append; they follow from its mark, so the proof knows them."""
    value = float(mark.rpartition("-")[2])
    return pa.table({"id": list(range(ROWS)), "mark": [mark] * ROWS, "value": [value] * ROWS}, schema=_SCHEMA)
