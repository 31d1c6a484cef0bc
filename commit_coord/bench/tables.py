"""Creates tables with a history, for commit_coord and for PyIceberg, and checks them after the measurement.

A history is made once, by real appends. What a cell of the bench works on is a *placed* table: a metadata file of its
own, with its own location and UUID, whose snapshots point to the files of that one history. Those files never change,
and everything new is written to the placed table's own folder. So tables with the same past cost milliseconds each,
and PyIceberg gets exactly the same ones as we do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import fastavro
import orjson
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import commit_coord
from commit_coord.config import COORDINATED_URI_PREFIX
from commit_coord.testing.history import ancestry

Kind = Literal["commit_coord", "pyiceberg"]

KINDS: tuple[Kind, ...] = ("commit_coord", "pyiceberg")

NAMESPACE = "bench"

ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "name": pa.array([f"row {number}" for number in range(10)]),
        "value": pa.array([number * 1.5 for number in range(10)], pa.float64()),
    }
)
"""What every append of the bench appends."""

_SPARING = "write.metadata.delete-after-commit.enabled"


def sql_properties(kind: Kind, folder: Path, lock_impl: str = "lease") -> dict[str, str]:
    """Return a SQL catalog in *folder*, in a SQLite file of its own for each kind: neither waits for the other's."""
    found = {"uri": f"sqlite:///{folder}/{kind}.db", "warehouse": f"file://{folder}/{kind}"}
    if kind == "commit_coord":
        found |= {"uri": f"{COORDINATED_URI_PREFIX}{found['uri']}", "lock-impl": lock_impl}
    return found


def open_catalog(kind: Kind, folder: Path, lock_impl: str = "lease") -> Catalog:
    """Return the SQL catalog of *kind* in *folder*."""
    folder.mkdir(parents=True, exist_ok=True)
    return catalog_of(sql_properties(kind, folder, lock_impl))


def catalog_of(properties: Mapping[str, str]) -> Catalog:
    """Return the catalog that *properties* describe: ours where its URI says so, else PyIceberg's own."""
    uri = properties["uri"]
    if uri.startswith(COORDINATED_URI_PREFIX):
        catalog: Catalog = commit_coord.load_catalog("bench", **properties)
    elif uri.startswith("thrift:"):
        from pyiceberg.catalog.hive import HiveCatalog

        catalog = HiveCatalog("bench", **properties)
    else:
        catalog = SqlCatalog("bench", **properties)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    return catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The metadata of a table with *snapshots* snapshots, as its file holds it."""

    snapshots: int
    metadata: bytes

    def place(self, catalog: Catalog, folder: Path, name: str, properties: Mapping[str, str] | None = None) -> None:
        """Make the table *name* with this history and *properties* in *catalog*, its new files in *folder*."""
        location = folder / name
        (location / "metadata").mkdir(parents=True)
        body: dict[str, Any] = orjson.loads(self.metadata)
        body["location"] = f"file://{location}"
        body["table-uuid"] = str(uuid.uuid4())
        body["properties"].pop(_SPARING, None)
        body["properties"] |= properties or {}
        path = location / "metadata" / f"{self.snapshots:05d}-{uuid.uuid4()}.metadata.json"
        path.write_bytes(orjson.dumps(body))
        catalog.register_table((NAMESPACE, name), f"file://{path}")


def make_histories(folder: Path, lengths: Iterable[int]) -> dict[int, History]:
    """Return a history of each of *lengths*, made by appends of :data:`ROWS`, one after the other.

    Only the last hundred metadata files are kept on disk: that is what spares tens of gigabytes.
    """
    wanted = sorted(lengths)
    made: dict[int, History] = {}
    catalog = open_catalog("commit_coord", folder, lock_impl="none")
    table = catalog.create_table((NAMESPACE, "history"), ROWS.schema, properties={_SPARING: "true"})
    for length in range(1, wanted[-1] + 1):
        table.append(ROWS)
        if length in wanted:
            made[length] = History(snapshots=length, metadata=_path(table.metadata_location).read_bytes())
    catalog.close()
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a look at a table found, read from its metadata file alone, by neither library.

    Args:
        snapshots: How many there are.
        chain: How many are in the chain of parents back from the current one, with sequence numbers one apart.
        rows: ``total-records`` of the current snapshot.
        summaries: The summary of every snapshot.
    """

    snapshots: int
    chain: int
    rows: int
    summaries: tuple[dict[str, str], ...]

    @property
    def unbroken(self) -> bool:
        """Whether every snapshot is in the chain."""
        return self.chain == self.snapshots


def inspect(catalog: Catalog, name: str) -> Finding:
    """Return what the table *name* holds now."""
    return look(_metadata(catalog, name))


def missing_files(catalog: Catalog, name: str) -> int:
    """Return how many data files of the table *name* are not where its manifests say."""
    return sum(not _path(file).exists() for file in _data_files(_metadata(catalog, name)))


def _data_files(metadata: dict[str, Any]) -> Iterator[str]:
    (current,) = (s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    for manifest in _avro(current["manifest-list"]):
        for entry in _avro(manifest["manifest_path"]):
            yield entry["data_file"]["file_path"]


def _avro(location: str) -> list[dict[str, Any]]:
    with _path(location).open("rb") as file:
        return [record for record in fastavro.reader(file) if isinstance(record, dict)]


def _metadata(catalog: Catalog, name: str) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(_path(catalog.load_table((NAMESPACE, name)).metadata_location).read_bytes())
    return body


def _path(location: str) -> Path:
    # Java writes file:/…, Python file:///….
    return Path(urlsplit(location).path)


def look(metadata: dict[str, Any]) -> Finding:
    """Return what *metadata*, the parsed metadata file of a table, holds."""
    current = [one for one in metadata["snapshots"] if one["snapshot-id"] == metadata.get("current-snapshot-id")]
    return Finding(
        snapshots=len(metadata["snapshots"]),
        chain=len(ancestry(metadata)),
        rows=sum(int(one["summary"]["total-records"]) for one in current),
        summaries=tuple(snapshot.get("summary", {}) for snapshot in metadata["snapshots"]),
    )


def locks_left(catalog: Catalog) -> int:
    """Return how many locks *catalog* lists; none for a catalog that has no locks."""
    locks = getattr(catalog, "locks", None)
    return 0 if locks is None else len(locks.locks())
