"""What a table's properties may say about where its files are, and what opens them: no code, and no other host."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.transforms import IdentityTransform

from commit_coord.iceberg.storage import CLASSES, unserved
from tests.catalog.kit import ARROW, SCHEMA, Kit, files_in, ids, kit, local, row_ids
from tests.tripwires import HOSTS, Tripwire, tripwire

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
_LOCATION_PROVIDER, _FILE_IO, _ = CLASSES


class Elsewhere(SimpleLocationProvider):
    """Puts data files where nobody else does."""

    def new_data_location(self, data_file_name: str, partition_key: Any = None) -> str:
        """Return where."""
        return f"{self.table_location}/elsewhere/{data_file_name}"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tripwire]:
    """What a table may name, and nobody may touch."""
    with tripwire(tmp_path, monkeypatch) as made:
        yield made


def stream(*numbers: int) -> pa.RecordBatchReader:
    """Return rows as a stream."""
    return pa.RecordBatchReader.from_batches(ARROW, ids(*numbers).to_batches())


@pytest.mark.parametrize("spec", [None, BY_S], ids=["flat", "partitioned"])
def test_no_call_of_the_library_runs_what_a_table_names(memory: Kit, trap: Tripwire, spec: Any) -> None:
    options = {"partition_spec": spec} if spec is not None else {}
    table = memory.table(ids(1, 2), properties=trap.properties, **options)
    assert trap.properties.items() <= memory.again(table).properties.items(), "the table has them nevertheless"
    table.append(ids(3))
    if spec is None:
        table.append(stream(4))
        table.overwrite(stream(5), "id = 4")
    else:
        table.append(ids(5))
        table.dynamic_partition_overwrite(ids(5))
    table.overwrite(ids(6), "id = 3")
    table.delete("id = 1")
    table.upsert(ids(6, 7), join_cols=["id"])
    with table.transaction() as transaction:
        transaction.set_properties(trap.properties)
        transaction.append(ids(8))
    with memory.catalog.create_table_transaction(memory.identifier(), SCHEMA, properties=trap.properties) as made:
        made.set_properties(trap.properties)
        made.append(ids(1))
    with memory.catalog.transaction() as several:
        several.table(table.name()).append(ids(9))
    table.refresh()
    table.update_schema().add_column("more", SCHEMA.find_field("s").field_type).commit()
    table.compact()
    assert [2, 5, 6, 7, 8, 9] == row_ids(memory.again(table))
    assert not memory.catalog.find_orphans(table.name(), force=True).files
    renamed = memory.catalog.rename_table(table.name(), memory.identifier())
    memory.catalog.drop_table(renamed.name())
    registered = memory.catalog.register_table(memory.identifier(), renamed.metadata_location)
    memory.catalog.purge_table(registered.name())
    assert set() == {path for path in files_in(registered.location()) if path.endswith((".parquet", ".avro"))}


def test_a_repair_runs_nothing_that_the_table_names(memory: Kit, trap: Tripwire) -> None:
    table = memory.table(ids(1), properties=trap.properties)
    base = table.metadata_location
    table.append(ids(2))
    with sqlite3.connect(f"{memory.folder}/catalog.db") as db:
        db.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (base, table.name()[-1]))
    db.close()
    memory.again(table).append(ids(3))
    found = memory.catalog.find_lost(table.name())
    assert found.restorable
    memory.catalog.repair(found)
    assert [1, 2, 3] == row_ids(memory.again(table))


def test_a_file_store_has_the_properties_of_the_catalog_alone(memory: Kit, trap: Tripwire) -> None:
    plain, named = memory.table(ids(1)), memory.table(ids(1), properties={**trap.properties, "s3.access-key-id": "x"})
    staged = memory.catalog.stage_table(memory.identifier(), SCHEMA, properties=trap.properties)
    for io in (plain.io, named.io, memory.again(named).io, staged.io):
        assert memory.catalog.properties == io.properties
    assert not {*HOSTS, *CLASSES} & memory.catalog.properties.keys()


def test_neither_properties_nor_locations_add_file_stores(memory: Kit) -> None:
    """A pipeline that sets a property at each load opens no connection of its own; nor does a made-up scheme."""
    table = memory.table()
    stores = set()
    for number in range(5):
        table.transaction().set_properties({"last-run": str(number)}).commit_transaction()
        stores.add(id(memory.again(table).io))
    assert 1 == len(stores)
    odd = {id(memory.catalog.file_io(f"x{number}://there")) for number in range(100)}
    odd |= {id(memory.catalog.file_io(f"/tmp/{number}")) for number in range(100)}
    assert 1 == len(odd)


class _Strange(PyArrowFileIO):
    """Knows one more scheme."""

    def new_output(self, location: str) -> Any:
        """Return a file to write."""
        return None if location.startswith("strange:") else super().new_output(location)


class _Broken(PyArrowFileIO):
    """Is not configured well."""

    def new_output(self, location: str) -> Any:
        """Fail."""
        raise ValueError("no such region")


@pytest.mark.parametrize(
    "io, location, expected",
    [
        (PyArrowFileIO(), "strange://there/x", "strange"),
        (_Strange(), "strange://there/x", None),
        (PyArrowFileIO(), "/tmp/x", None),
        (_Broken(), "s3://there/x", None),
        (PyArrowFileIO(), "gcs://there/x", None),
    ],
)
def test_a_place_is_refused_whose_scheme_nobody_serves(io: FileIO, location: str, expected: str | None) -> None:
    """What is configured badly may be mended, and a try again is not in vain."""
    reason = unserved(io, location)
    assert reason is None if expected is None else expected in str(reason)


@pytest.mark.parametrize("allowed", [True, False])
def test_a_class_places_data_files_if_the_catalog_and_the_table_name_it(allowed: bool) -> None:
    name = f"{__name__}.{Elsewhere.__name__}"
    with kit("memory", **({_LOCATION_PROVIDER: name} if allowed else {})) as made:
        named, plain = made.table(ids(1), properties={_LOCATION_PROVIDER: name}), made.table(ids(1))
        for table, expected in ((named, "elsewhere" if allowed else "data"), (plain, "data")):
            (path,) = [task.file.file_path for task in table.scan().plan_files()]
            assert path.startswith(f"{table.location()}/{expected}/")
            assert f"{table.location()}/metadata/" in table.current_snapshot().manifest_list


def test_the_file_store_of_a_catalog_is_the_class_that_the_catalog_names(trap: Tripwire) -> None:
    """And then that of every table."""
    chosen = "pyiceberg.io.fsspec.FsspecFileIO"
    with kit("memory", **{_FILE_IO: chosen}) as made:
        table = made.table(ids(1), properties=trap.properties)
        assert "FsspecFileIO" == type(table.io).__name__


def test_the_places_that_a_table_may_choose_are_obeyed(memory: Kit, tmp_path: Path) -> None:
    properties = {"write.object-storage.enabled": "true", "write.metadata.path": f"file://{tmp_path}/m"}
    table = memory.table(ids(1), properties=properties)
    assert {str(tmp_path / "m")} == {str(Path(path).parent) for path in files_in(tmp_path)}
    (path,) = [task.file.file_path for task in table.scan().plan_files()]
    folders = Path(local(path)).relative_to(Path(local(table.location())) / "data").parts
    assert 4 < len(folders), "hashed folders"


def test_what_is_ignored_is_logged_once_for_each_table(
    memory: Kit, trap: Tripwire, caplog: pytest.LogCaptureFixture
) -> None:
    table = memory.table(properties={_LOCATION_PROVIDER: f"{trap.module}.Trap"})
    with caplog.at_level(logging.WARNING):
        table.append(ids(1))
        table.append(ids(2))
    (line,) = [record.getMessage() for record in caplog.records if "names a class" in record.getMessage()]
    assert f"{_LOCATION_PROVIDER}={trap.module}.Trap" in line
    assert table.location() in line
