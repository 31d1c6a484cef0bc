"""The vocabulary of the tests in this folder: catalogs, rows, and what must be left when a test is over."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.types import DecimalType, LongType, NestedField, StringType
from pyiceberg.utils.decimal import decimal_to_bytes

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from tests import neighbour

NO_MATCH = "Delete operation did not match any records"
"""What PyIceberg warns of when a filter hits nothing."""

ARROW = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.string())])
UNEXPECTED = "an unexpected error came after the change was sent"
"""What is told of an error that no code expects; see :func:`commit_coord.doubt.deciding`."""
SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))

_numbers = itertools.count(1)


def frame(*pairs: tuple[int | None, str | None], schema: pa.Schema = ARROW) -> pa.Table:
    """Return an Arrow table of (id, s) rows."""
    return pa.Table.from_pylist([dict(zip(schema.names, pair, strict=True)) for pair in pairs], schema=schema)


def ids(*numbers: int) -> pa.Table:
    """Return rows with these ids, each with its id as text."""
    return frame(*((number, str(number)) for number in numbers))


def rows(table: Table, branch: str | None = None, snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
    """Return the rows of *table*, sorted, as tuples."""
    scan = table.scan(snapshot_id=snapshot_id)
    if branch is not None:
        scan = scan.use_ref(branch)
    return sorted((tuple(row.values()) for row in scan.to_arrow().to_pylist()), key=repr)


def row_ids(table: Table, branch: str | None = None) -> list[Any]:
    """Return the ids in *table*, sorted."""
    return sorted(row[0] for row in rows(table, branch))


def refs(table: Table) -> dict[str, tuple[str, int]]:
    """Return name → (kind, snapshot) of the branches and tags."""
    return {name: (ref.snapshot_ref_type.value, ref.snapshot_id) for name, ref in table.metadata.refs.items()}


def files_of(table: Table) -> set[str]:
    """Return every file that any metadata version of *table* refers to, read with PyIceberg's own code."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    snapshots = {
        snapshot.snapshot_id: snapshot
        for path in found
        for snapshot in FromInputFile.table_metadata(table.io.new_input(path)).snapshots
    }
    manifests = {}
    for snapshot in snapshots.values():
        found.add(snapshot.manifest_list)
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
    for path, manifest in manifests.items():
        found.add(path)
        found |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=False)}
    return {local(path) for path in found}


def files_in(folder: str | Path) -> set[str]:
    """Return every file under *folder*."""
    return {str(path) for path in Path(local(str(folder))).rglob("*") if path.is_file()}


def local(location: str) -> str:
    """Return the path in *location*; Hadoop writes ``file:/path``."""
    return re.sub("^file:(//)?", "", location)


def orphans(table: Table) -> set[str]:
    """Return the files in the folder of *table* that nothing refers to."""
    return files_in(table.location()) - files_of(table)


def names(paths: Iterable[str]) -> list[str]:
    """Return the file names alone, for a readable failure."""
    return sorted(path.rsplit("/", 1)[-1] for path in paths)


@contextmanager
def unchecked_decimals() -> Iterator[None]:
    """Have PyIceberg write a decimal as a partition whatever the number of its digits, as other libraries may."""

    def stored(kind: Any, value: Any) -> bytes:
        return decimal_to_bytes(value) if isinstance(kind, DecimalType) else to_bytes(kind, value)

    with patch("pyiceberg.manifest.to_bytes", stored):
        yield


class Kit:
    """One catalog under test, its database and warehouse, and PyIceberg's own catalog on the same database.

    Args:
        folder: Where everything is kept.
        impl: ``stock`` for PyIceberg's own catalog, else a ``lock-impl``.
        uri: The database or metastore; None for SQLite in *folder*.
        properties: Further catalog properties.
    """

    def __init__(self, folder: Path, impl: str, uri: str | None = None, **properties: str) -> None:
        self.folder = folder
        self.impl = impl
        self.name = f"c{next(_numbers)}"
        self.uri = uri or f"sqlite:///{folder}/catalog.db"
        self.warehouse = f"file://{folder}/warehouse"
        self.properties = properties
        # A metastore has one set of namespaces for every catalog on it.
        self.namespace = f"db{self.name}" if self.on_hive else "db"
        self.catalog: Any = self.open()
        self.catalog.create_namespace(self.namespace)
        self.stock: Any = self._stock()

    @property
    def coordinated(self) -> bool:
        """Whether the catalog under test is ours."""
        return self.impl != "stock"

    @property
    def on_hive(self) -> bool:
        """Whether the tables are in a Hive Metastore."""
        return self.uri.startswith("thrift:")

    def _stock(self) -> Any:
        if self.on_hive:
            from pyiceberg.catalog.hive import HiveCatalog

            return HiveCatalog(self.name, uri=self.uri, warehouse=self.warehouse)
        return SqlCatalog(self.name, uri=self.uri, warehouse=self.warehouse)

    def open(self) -> Any:
        """Return a new catalog object on the same database."""
        if not self.coordinated:
            return self._stock()
        arguments = {"lock-impl": self.impl, "lock.acquire-timeout-ms": "20000", **self.properties}
        return commit_coord.load_catalog(self.name, uri=f"coord+{self.uri}", warehouse=self.warehouse, **arguments)

    def identifier(self) -> tuple[str, str]:
        """Return a name that no table has."""
        return (self.namespace, f"t{next(_numbers)}")

    def table(self, *data: pa.Table, schema: Any = SCHEMA, properties: Mapping[str, str] = {}, **kwargs: Any) -> Any:
        """Return a new table with *data* appended."""
        table = self.catalog.create_table(self.identifier(), schema, properties=dict(properties), **kwargs)
        for df in data:
            table.append(df)
        return table

    def again(self, table: Table) -> Any:
        """Return *table*, loaded anew: another writer's view of it."""
        return self.catalog.load_table(table.name())

    def held(self) -> list[str]:
        """Return the locks that are held or waited for, without those of :mod:`tests.neighbour`."""
        found = self.catalog.locks.locks() if self.coordinated else ()
        return [str(entry) for entry in found if entry.resource.path[0] != neighbour.DATABASE]

    def check(self) -> None:
        """Assert that PyIceberg's own catalog reads every table as ours does, and that no lock is left."""
        for namespace in self.catalog.list_namespaces():
            for identifier in self.catalog.list_tables(namespace):
                mine, theirs = self.catalog.load_table(identifier), self.stock.load_table(identifier)
                assert mine.metadata_location == theirs.metadata_location
                assert theirs.metadata.model_dump_json() == mine.metadata.model_dump_json()
                if theirs.current_snapshot() is not None:
                    assert rows(mine) == rows(theirs)
        assert self.held() == []

    def close(self) -> None:
        """Close both catalogs."""
        self.stock.close()
        self.catalog.close()


@contextmanager
def kit(impl: str, uri: str | None = None, **properties: str) -> Iterator[Kit]:
    """Yield a kit in a temporary folder of its own."""
    with tempfile.TemporaryDirectory(prefix="coord-test-") as folder:
        made = Kit(Path(folder), impl, uri, **properties)
        try:
            yield made
        finally:
            made.close()


def of_version_three(kit: Kit, table: Table) -> Any:
    """Return *table* as another engine upgrades it."""
    path = Path(local(table.metadata_location)).with_name("00009-three.metadata.json")
    document = json.loads(Path(local(table.metadata_location)).read_text())
    path.write_text(json.dumps(document | {"format-version": 3, "next-row-id": 1}))
    kit.catalog.drop_table(table.name())
    return kit.catalog.register_table(table.name(), f"file://{path}")


def coordinated(catalog: Any) -> CoordinatedCatalog:
    """Return *catalog*, known to be ours."""
    assert isinstance(catalog, CoordinatedCatalog)
    return catalog


EVERY_LOCK_MANAGER = [
    "memory",
    "lease",
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    pytest.param("hms", marks=[pytest.mark.hms, pytest.mark.slow]),
]
"""Parameters of a fixture that is made with :func:`kit_of`."""


@contextmanager
def kit_of(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Yield the kit of the lock manager that the fixture was asked for, and assert that no lock is left."""
    properties, uri = {}, None
    if request.param == "zookeeper":
        properties["lock.uri"] = request.getfixturevalue("zookeeper").connect_string
    if request.param == "hms":
        uri = request.getfixturevalue("hms").uri
    with kit(request.param, uri, **properties) as made:
        yield made
        assert [] == made.held()
