"""The data source in Spark's Python workers: a shell. The driver plans, the tasks read and write.

Spark has a worker process of its own for each step of a plan, and a fresh one takes seconds to import PyIceberg,
PyArrow and SQLAlchemy, which the driver has already. So a step is passed on to the driver
(:mod:`commit_coord.spark.holder`), and its answer stays pickled until a task or a commit needs it.

This module imports nothing of that size.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from commit_coord.errors import CommitCoordError
from commit_coord.spark.holder import Address

if TYPE_CHECKING:
    import pyarrow as pa


@contextmanager
def errors_first(shown: type[Exception]) -> Iterator[None]:
    """Have Spark begin its message with the error: the traceback of a worker is of no use to a user.

    Source: ``pyspark.util.handle_worker_exception``. The worker ends with the error, and the variable with it.

    Args:
        shown: Which errors.
    """
    try:
        yield
    except shown:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class RegisteredDataSource(DataSource):
    """``format("commit_coord")``. ``help(commit_coord.spark.register)`` lists its options."""

    driver: ClassVar[Address]
    settings: ClassVar[Mapping[str, str]]

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options.items())
        self._key = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "commit_coord"

    def schema(self) -> StructType:
        """Return the table's columns as of the snapshot that is asked for."""
        found: StructType = self._planned("schema")
        return found

    def reader(self, schema: StructType) -> PlannedReader:
        """Return a reader of the columns in *schema*."""
        return PlannedReader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> PlannedWriter:
        """Return a writer of one batch; the driver holds its operation locks."""
        return PlannedWriter(self._planned("writer", schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PlannedStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer of the next batch of a stream."""
        return PlannedStreamWriter(self._planned("streamWriter", schema, overwrite))

    def _planned(self, step: str, *arguments: Any) -> Any:
        with errors_first(Exception):
            return self.driver.plan(step, self._options, self.settings, *arguments)


@dataclass
class PlannedPartition(InputPartition):
    """What one task reads."""

    pickled: bytes


class PlannedReader(DataSourceReader):
    """Reads one snapshot, chosen when Spark plans the first query on what ``load()`` returned."""

    def __init__(self, source: RegisteredDataSource, schema: StructType) -> None:
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the files."""
        packs = self._source._planned("partitions", self._schema, self._source._key)
        return [PlannedPartition(pack) for pack in packs]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        assert isinstance(partition, PlannedPartition)
        pack = _unpickled(partition.pickled)
        rows: Iterator[pa.RecordBatch] = pack.reader.read(pack.tasks)
        return rows


class PlannedWriter(DataSourceArrowWriter):
    """Writes one batch in one commit."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task attempt."""
        written: WriterCommitMessage = _unpickled(self._pickled).write(iterator)
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish everything in one commit and give the locks back."""
        with errors_first(CommitCoordError):
            _unpickled(self._pickled).commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what was written, unless it has landed or may still land, and give the locks back."""
        _unpickled(self._pickled).abort(messages)


class PlannedStreamWriter(DataSourceStreamArrowWriter):
    """Writes batches of a stream, each exactly once."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task attempt."""
        written: WriterCommitMessage = _unpickled(self._pickled).write(iterator)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish one batch, or delete its files when it was published before."""
        with errors_first(CommitCoordError):
            _unpickled(self._pickled).commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Delete what was written for one batch, unless it has landed or may still land."""
        _unpickled(self._pickled).abort(messages, batchId)


def _unpickled(pickled: bytes) -> Any:
    """Return what the driver planned."""
    return pickle.loads(pickled)  # noqa: S301 - of the driver, through its authenticated socket # nosec B301
