"""What the page shows of one table, and the list of all tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.coordinator.history import Record, group_sizes, newest
from commit_coord.iceberg import manifest_list, manifests
from commit_coord.table.compaction import small_below

MOST_COMMITS = 1000
"""Commits that the page looks at."""

_SHOWN_COMMITS = 50
_BARS = 48
_MOST_FILES = 20_000
"""Files whose sizes are read; reading them takes about a second."""
_LONGEST_MANIFEST = 64 * 1024 * 1024
"""Bytes of a manifest that is read for them; that of 20,000 files has few."""
_MOST_TABLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The number of commits between two moments."""

    from_ms: int
    until_ms: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The sizes of a table's data files.

    Args:
        counted: How many were looked at; of whole manifests, the newest first.
        all: Whether these are all.
        size: Bytes of those.
        small: How many of those ``compact`` puts together with others.
        small_below: The size below which it does.
    """

    counted: int
    all: bool
    size: int
    small: int
    small_below: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """The newest commits of a table.

    Args:
        total: Number of snapshots.
        shown: The newest ones.
        bars: The commits over time.
        considered: How many commits the bars and groups have.
        groups: Pairs of a group's size and the number of groups of this size, smallest first.
    """

    total: int
    shown: Sequence[Record]
    bars: Sequence[Bar]
    considered: int
    groups: Sequence[tuple[int, int]]

    @property
    def highest(self) -> int:
        """The largest number of commits of one bar."""
        return max((bar.count for bar in self.bars), default=0)


@dataclass(slots=True, kw_only=True)
class TableListing:
    """The tables of a catalog, by their namespaces."""

    total: int = 0
    hidden: int = 0
    """Tables that are too many to be shown."""
    namespaces: dict[Identifier, list[Identifier]] = field(default_factory=dict)


def commits(table: Table) -> Commits:
    """Return the newest commits of *table*."""
    records = newest(table.metadata, table.metadata_location, MOST_COMMITS)
    return Commits(
        total=len(table.metadata.snapshots),
        shown=records[:_SHOWN_COMMITS],
        bars=bars([record["timestamp_ms"] for record in records]),
        considered=len(records),
        groups=sorted(Counter(group_sizes(table.metadata, table.metadata_location, records)).items()),
    )


def bars(times: Sequence[int]) -> list[Bar]:
    """Return the number of *times* in each of equally long parts of the time that they take."""
    if not times:
        return []
    first, last = min(times), max(times)
    width = (last - first) // _BARS + 1
    counts = Counter((at - first) // width for at in times)
    return [
        Bar(from_ms=first + number * width, until_ms=first + (number + 1) * width, count=counts[number])
        for number in range((last - first) // width + 1)
    ]


def files(table: Table) -> Files:
    """Return the sizes of the data files of the current snapshot, read from its manifests, newest first.

    A manifest is decoded as a whole. So one that has too many files is left out.
    """
    limit = small_below(table)
    counted = size = small = 0
    complete = True
    snapshot = table.current_snapshot()
    for manifest in manifest_list.read(table.io, snapshot.manifest_list) if snapshot is not None else ():
        if manifest.content != ManifestContent.DATA:
            continue
        many = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        if counted + many > _MOST_FILES or manifest.manifest_length > _LONGEST_MANIFEST:
            complete = False
            continue
        entries = manifests.entries_of(table.io, manifest)
        sizes = [entry["data_file"]["file_size_in_bytes"] for entry in (*entries.added, *entries.existing)]
        counted, size = counted + len(sizes), size + sum(sizes)
        small += sum(one < limit for one in sizes)
    return Files(counted=counted, all=complete, size=size, small=small, small_below=limit)


def listing(catalog: CoordinatedCatalog, wanted: str, reads: Callable[[Identifier], bool]) -> TableListing:
    """Return the tables that the visitor may read.

    Args:
        catalog: Whose tables.
        wanted: A part of the names; "" for all.
        reads: Tells whether the visitor may read a namespace.
    """
    found = TableListing()
    for namespace in namespaces(catalog):
        if not reads(namespace):
            continue
        tables = [
            name for name in sorted(catalog.list_tables(namespace)) if wanted.casefold() in ".".join(name).casefold()
        ]
        shown = tables[: max(0, _MOST_TABLES - found.total)]
        found.total += len(tables)
        found.hidden += len(tables) - len(shown)
        if shown or not wanted:
            found.namespaces[namespace] = shown
    return found


def namespaces(catalog: CoordinatedCatalog, parent: Identifier = ()) -> Iterator[Identifier]:
    """Yield all namespaces, each before those in it."""
    for namespace in sorted(catalog.list_namespaces(parent)):
        if namespace != parent:
            yield namespace
            yield from namespaces(catalog, namespace) if len(namespace) > len(parent) else ()
