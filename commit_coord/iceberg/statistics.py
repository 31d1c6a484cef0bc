"""Statistics files with blobs of any type. PyIceberg's models know two types, and refuse a table that has another one.

The specification leaves the types open; Presto, for example, has its own.
"""

from __future__ import annotations

from pydantic import Field
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate


class AnyBlob(BlobMetadata):
    """The metadata of a blob of any type."""

    type: str  # type: ignore[assignment]


class AnyStatisticsFile(StatisticsFile):
    """A statistics file with blobs of any types."""

    blob_metadata: list[AnyBlob] = Field(alias="blob-metadata")  # type: ignore[assignment]


class SetAnyStatistics(SetStatisticsUpdate):
    """Sets such a file."""

    statistics: AnyStatisticsFile
