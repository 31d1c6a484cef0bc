"""Locks and leases as DataFrames: ``spark.read.format("commit_coord.locks")`` and ``.leases``.

A listing is read when Spark plans the query, in a Python worker of the driver, as any other client of the service
would read it; the tasks only carry its rows, and the DataFrame keeps them: ``load()`` again for a new look. To add one:
a name, its columns, and a function that returns their rows (see :data:`LISTINGS`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.config import default_catalog_name
from commit_coord.errors import ConfigError
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.model import Reach, Resource
from commit_coord.spark.options import LISTING_OPTIONS, PREFIX, spark_properties

_ROWS_A_TASK = 20_000

ListingRow = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """One format.

    Args:
        name: Of the format.
        columns: In Spark's DDL.
        rows: Returns the rows of a catalog, on a resource and below it, or all.
    """

    name: str
    columns: str
    rows: Callable[[CoordinatedCatalog, Resource | None], Iterable[ListingRow]]


def _locks(catalog: CoordinatedCatalog, resource: Resource | None) -> Iterator[ListingRow]:
    for entry in catalog.show_locks(resource):
        database, *below = entry.resource.path
        yield (
            str(entry.resource),
            database,
            below[0] if below else None,
            "/".join(below[1:]) or None,
            entry.mode.value,
            entry.state.value,
            entry.blocked_by,
            entry.request_id,
            entry.scope.value,
            entry.explicit,
            entry.owner.user,
            entry.owner.host,
            entry.owner.pid,
            entry.owner.application,
            entry.owner.statement,
            datetime.fromtimestamp(entry.requested_at_ms / 1000, UTC),
            entry.expires_in_ms,
            entry.generation,
        )


def _leases(catalog: CoordinatedCatalog, resource: Resource | None) -> Iterator[ListingRow]:
    path = catalog.spelled(resource).path if resource is not None else ()
    for lease in catalog.leases.list_lease():
        leased = LeaseObject(lease.db_name, lease.table_name, lease.partition_name or None).resource
        if leased.path[: len(path)] == path:
            yield (
                lease.lease_id,
                lease.user,
                lease.db_name,
                lease.table_name,
                lease.partition_name or None,
                lease.lease_type,
                datetime.fromtimestamp(lease.start_utc / 1000, UTC),
                datetime.fromtimestamp(lease.end_utc / 1000, UTC),
            )


LISTINGS = (
    Listing(
        "commit_coord.locks",
        "resource string, db string, `table` string, `partition` string, mode string, state string, blocked_by string, "
        "request_id string, scope string, explicit boolean, user string, host string, pid bigint, application string, "
        "statement string, since timestamp, expires_in_ms bigint, generation bigint",
        _locks,
    ),
    Listing(
        "commit_coord.leases",
        "lease_id bigint, user string, db string, `table` string, `partition` string, lease_type string, "
        "start_utc timestamp, end_utc timestamp",
        _leases,
    ),
)
"""All there are."""


class ListingDataSource(DataSource):
    """A listing as a data source; :func:`register_listings` makes a class of each."""

    listing: ClassVar[Listing]
    settings: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = {key.lower(): value for key, value in options.items()}
        for key in self._given:
            if key not in LISTING_OPTIONS and not key.startswith(PREFIX):
                raise ConfigError("unknown option", key=key, accepted=", ".join(LISTING_OPTIONS))

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return cls.listing.name

    def schema(self) -> str:
        """Return the columns."""
        return self.listing.columns

    def reader(self, schema: StructType) -> ListingReader:
        """Return what reads the listing."""
        return ListingReader(self.listing, self._given, self.settings)


@dataclass
class ListingRows(InputPartition):
    """Rows of a listing."""

    rows: list[ListingRow]


class ListingReader(DataSourceReader):
    """Reads a listing: one answer of the service."""

    def __init__(self, listing: Listing, given: Mapping[str, str], settings: Mapping[str, str]) -> None:
        self._listing = listing
        self._given = given
        self._settings = dict(settings)

    def partitions(self) -> Sequence[InputPartition]:
        """Ask for the listing: all of it as of one moment.

        Raises:
            ConfigError: The lock manager is `memory`, whose locks only its own process sees.
            LockError: The service can't be reached.
        """
        given = self._given
        properties = {key.removeprefix(PREFIX): value for key, value in given.items() if key.startswith(PREFIX)}
        named = given.get("resource") or given.get("path")
        name = given.get("catalog") or default_catalog_name()
        catalog = commit_coord.load_catalog(name, **(spark_properties(self._settings, name) | properties))
        with closing(catalog):
            if catalog.locks.guarantees.reach == Reach.PROCESS:
                raise ConfigError(
                    "only its own process sees the locks of this lock manager: call catalog.show_locks() there",
                    key="lock-impl",
                    value=catalog.locks.name,
                )
            rows = list(self._listing.rows(catalog, Resource.parse(named) if named else None))
        return [ListingRows(rows[start : start + _ROWS_A_TASK]) for start in range(0, max(1, len(rows)), _ROWS_A_TASK)]

    def read(self, partition: InputPartition) -> Iterator[ListingRow]:
        """Yield the rows of one part."""
        assert isinstance(partition, ListingRows)
        return iter(partition.rows)


def register_listings(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Make the formats known to *spark*; *settings* are those of Spark about catalogs. May be called again."""
    for each in LISTINGS:
        # Made here, so that it is pickled by value, with its listing.
        given = {"listing": each, "settings": dict(settings)}
        spark.dataSource.register(type("RegisteredListing", (ListingDataSource,), given))
