"""Notices when a new PyIceberg drifts from what the fast path relies on: private names, signatures, and results."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyiceberg.table as pyiceberg_table
import pytest
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV1, TableMetadataV2, TableMetadataV3
from pyiceberg.table.update import schema as update_schema
from pyiceberg.table.update import sorting, spec, statistics
from pyiceberg.table.update.snapshot import (
    UpdateSnapshot,
    _FastAppendFiles,
    _ManifestMergeManager,
    _MergeAppendFiles,
    _SnapshotProducer,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.config import Config

from commit_coord.table import CoordinatedTransaction
from commit_coord.testing.fleet import holds_within
from tests.catalog.kit import SCHEMA, Kit, frame, ids
from tests.limits import PATIENCE

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))
ROOT = Path(__file__).parents[2] / "commit_coord"


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_every_name_that_is_imported_from_pyiceberg_is_there() -> None:
    """A developer who adds an import of a private name finds it listed here when PyIceberg moves it."""
    seen = 0
    for path in [*ROOT.glob("*.py"), *(ROOT / "iceberg").glob("*.py"), *(ROOT / "catalog").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyiceberg"):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
                    seen += 1
    assert seen > 50


@pytest.mark.parametrize(
    "function, expected",
    [
        (Transaction.__init__, ["self", "table", "autocommit"]),
        (Transaction._stage, ["self", "updates", "requirements"]),
        (Transaction._apply, ["self", "updates", "requirements"]),
        (Transaction._register_snapshot_producer, ["self", "producer"]),
        (Transaction._rebuild_snapshot_updates, ["self"]),
        (Transaction._cleanup_uncommitted_manifests, ["self"]),
        (Transaction._append_snapshot_producer, ["self", "snapshot_properties", "branch"]),
        (Transaction.append, ["self", "df", "snapshot_properties", "branch"]),
        (Transaction.overwrite, ["self", "df", "overwrite_filter", "snapshot_properties", "case_sensitive", "branch"]),
        (
            Transaction.delete,
            ["self", "delete_filter", "snapshot_properties", "case_sensitive", "branch", "_isolation_operation"],
        ),
        (Transaction.dynamic_partition_overwrite, ["self", "df", "snapshot_properties", "branch"]),
        (Transaction.add_files, ["self", "file_paths", "snapshot_properties", "check_duplicate_files", "branch"]),
        (Transaction.update_schema, ["self", "allow_incompatible_changes", "case_sensitive"]),
        (Transaction.update_snapshot, ["self", "snapshot_properties", "branch"]),
        (Transaction.update_sort_order, ["self", "case_sensitive"]),
        (Transaction.update_statistics, ["self"]),
        (Transaction.set_properties, ["self", "properties", "kwargs"]),
        (Transaction.remove_properties, ["self", "removals"]),
        (Transaction.upgrade_table_version, ["self", "format_version"]),
        (Transaction.commit_transaction, ["self"]),
        (Table.__init__, ["self", "identifier", "metadata", "metadata_location", "io", "catalog", "config"]),
        (Table.update_schema, ["self", "allow_incompatible_changes", "case_sensitive"]),
        (Table.update_spec, ["self", "case_sensitive"]),
        (UpdateSnapshot.__init__, ["self", "transaction", "io", "branch", "snapshot_properties"]),
        (
            _SnapshotProducer.__init__,
            ["self", "operation", "transaction", "io", "commit_uuid", "snapshot_properties", "branch"],
        ),
        (_SnapshotProducer._summary, ["self", "snapshot_properties"]),
        (_SnapshotProducer._commit, ["self"]),
        (_SnapshotProducer._current_branch_head_id, ["self"]),
        (_SnapshotProducer.new_manifest_writer, ["self", "spec"]),
        (
            _ManifestMergeManager.__init__,
            ["self", "target_size_bytes", "min_count_to_merge", "merge_enabled", "snapshot_producer"],
        ),
        (_ManifestMergeManager._group_by_spec, ["self", "manifests"]),
        (_ManifestMergeManager._create_manifest, ["self", "spec_id", "manifest_bin"]),
        (update_schema.UpdateSchema.__init__, None),
        (spec.UpdateSpec.__init__, ["self", "transaction", "case_sensitive"]),
        (sorting.UpdateSortOrder.__init__, ["self", "transaction", "case_sensitive"]),
        (statistics.UpdateStatistics.__init__, ["self", "transaction"]),
        (Table.location_provider, ["self"]),
        (MetastoreCatalog._load_file_io, ["self", "properties", "location"]),
        (MetastoreCatalog._write_metadata, ["metadata", "io", "metadata_path"]),
        (MetastoreCatalog._resolve_table_location, ["self", "location", "database_name", "table_name"]),
        (MetastoreCatalog._empty_table_metadata, []),
        (Catalog.namespace_to_string, ["identifier", "err"]),
        (SqlCatalog._init_catalog, ["self"]),
        (
            SqlCatalog.create_table,
            ["self", "identifier", "schema", "location", "partition_spec", "sort_order", "properties"],
        ),
        (SqlCatalog.register_table, ["self", "identifier", "metadata_location", "overwrite"]),
        (SqlCatalog.commit_table, ["self", "table", "requirements", "updates"]),
        (Config._from_configuration_files, []),
        (Config._from_environment_variables, ["config"]),
        (FileIO.new_output, ["self", "location"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_the_signatures_that_are_relied_on_are_unchanged(function: Any, expected: list[str] | None) -> None:
    assert callable(function)
    if expected is not None:
        assert parameters(function) == expected


def test_the_attributes_that_are_relied_on_are_set(memory: Kit) -> None:
    """On a stock transaction and producer: ours inherit them."""
    stock = memory.stock.load_table(memory.table(ids(1)).name())
    transaction = Transaction(stock)
    known = {"_table", "_autocommit", "_updates", "_requirements", "_snapshot_producers", "_failed"}
    assert known == vars(transaction).keys(), "a new attribute may need the same care as the old ones"
    producer = transaction.update_snapshot().merge_append()
    assert isinstance(producer, _FastAppendFiles)
    relied_on = {
        *("_transaction", "_io", "_snapshot_id", "_parent_snapshot_id", "_target_branch", "_added_data_files"),
        *("snapshot_properties", "_merge_enabled", "_min_count_to_merge", "_target_size_bytes"),
        *("_starting_snapshot_id", "_uncommitted_manifests", "_written_manifests", "_written_manifest_lists"),
    }
    assert relied_on <= vars(producer).keys()
    assert issubclass(_MergeAppendFiles, _FastAppendFiles)


def test_every_public_change_of_a_transaction_is_known_to_ours() -> None:
    """A new one would not be called again on a newer head, and its locks would not be taken."""
    public = {
        name
        for name, value in vars(Transaction).items()
        if inspect.isfunction(value) and not name.startswith("_") and name != "update_location"
    }
    assert public <= vars(CoordinatedTransaction).keys()


def test_a_manifest_in_memory_has_the_fields_that_are_copied(memory: Kit) -> None:
    table = memory.table(frame((1, "a")), partition_spec=BY_S)
    (manifest,) = table.current_snapshot().manifests(table.io)
    assert isinstance(manifest, ManifestFile)
    assert len(manifest._data) == 15
    assert manifest._data[0] == manifest.manifest_path
    assert manifest._data[3] == manifest.content
    assert manifest._data[4] == manifest.sequence_number
    (summary,) = manifest._data[13]
    assert isinstance(summary, PartitionFieldSummary)
    assert len(summary._data) == 4


@pytest.mark.parametrize("version", [TableMetadataV1, TableMetadataV2, TableMetadataV3])
def test_the_metadata_models_have_the_fields_that_are_known(version: Any) -> None:
    """A new list of history would be copied and parsed at every commit."""
    fields = {
        *("location", "table_uuid", "last_updated_ms", "last_column_id", "schemas", "current_schema_id"),
        *("partition_specs", "default_spec_id", "last_partition_id", "properties", "current_snapshot_id", "snapshots"),
        *("snapshot_log", "metadata_log", "sort_orders", "default_sort_order_id", "refs", "statistics"),
        *("partition_statistics", "format_version", "last_sequence_number", "next_row_id", "schema_", "partition_spec"),
    }
    assert version.model_fields.keys() <= fields


def test_conversions_of_metadata_go_both_ways(memory: Kit) -> None:
    table = memory.table(ids(1), partition_spec=BY_S)
    text = table.metadata.model_dump_json()
    assert TableMetadataUtil.parse_raw(text).model_dump_json() == text
    assert json.loads(Path(table.metadata_location.removeprefix("file://")).read_bytes()) == json.loads(text)


OWN_SUMMARY = re.compile(r"commit-coord\.")
VOLATILE = {"manifest-list", "snapshot-id", "timestamp-ms", "parent-snapshot-id", "metadata-file", "location"}
VOLATILE |= {"table-uuid", "last-updated-ms", "current-snapshot-id", "total-files-size", "added-files-size"}
VOLATILE |= {"removed-files-size"}


def comparable(value: Any) -> Any:
    """Return *value* without what differs between any two runs: ids, times, paths, sizes; and without our own marks."""
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if k not in VOLATILE and not OWN_SUMMARY.match(k)}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return value


def manifests(table: Any) -> list[Any]:
    """Return what the current manifest list says, without paths, sizes and ids."""
    found = [
        (
            *(m.content, m.partition_spec_id, m.sequence_number, m.min_sequence_number),
            *(m.added_files_count, m.existing_files_count, m.deleted_files_count),
            *(m.added_rows_count, m.existing_rows_count, m.deleted_rows_count, str(m.partitions)),
        )
        for m in table.current_snapshot().manifests(table.io)
    ]
    return sorted(found, key=repr)


def entries(table: Any, live: bool = False) -> list[str]:
    """Return what the manifests say of the data files, or of those that live, without paths, sizes and ids."""
    found = []
    for row in table.inspect.entries().to_pylist():
        file = {k: v for k, v in row["data_file"].items() if k not in ("file_path", "file_size_in_bytes")}
        file = {k: v for k, v in file.items() if k not in ("column_sizes", "split_offsets")}
        if live and row["status"] == 2:
            continue
        found.append(
            repr(
                (
                    None if live else row["status"],
                    row["sequence_number"],
                    row["file_sequence_number"],
                    sorted(file.items()),
                )
            )
        )
    return sorted(found)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("spec", [None, BY_S], ids=["flat", "partitioned"])
@pytest.mark.parametrize("merge", ["false", "true"], ids=["fast append", "merge append"])
def test_stock_writers_and_ours_leave_equal_metadata(
    memory: Kit, version: str, spec: PartitionSpec | None, merge: str
) -> None:
    properties = {
        "format-version": version,
        "commit.manifest-merge.enabled": merge,
        "commit.manifest.min-count-to-merge": "3",
        "write.summary.partition-limit": "5",
    }
    more: dict[str, Any] = {"partition_spec": spec} if spec else {}
    mine = memory.table(properties=properties, **more)
    theirs = memory.stock.create_table(memory.identifier(), SCHEMA, properties=properties, **more)
    steps: list[Callable[[Any], object]] = [
        lambda t: t.append(ids(1, 2), snapshot_properties={"who": "me"}),
        lambda t: t.append(ids(3)),
        lambda t: t.append(ids(4, 5)),
        lambda t: t.append(ids(6)),
        lambda t: t.append(ids()),
        lambda t: t.delete("id = 3"),
        lambda t: t.append(ids(7)),
        lambda t: t.overwrite(ids(8), "id = 1"),
        lambda t: t.append(ids(9)),
        lambda t: t.append(ids(10)),
    ]
    for step in steps:
        step(mine)
        step(theirs)
        left, right = (json.loads(t.metadata.model_dump_json()) for t in (mine, theirs))
        assert comparable(left) == comparable(right)
        if merge == "false":
            assert entries(mine) == entries(theirs)
            assert manifests(mine) == manifests(theirs)
        else:  # ours never merges what it adds, so what is merged when differs
            assert entries(mine, live=True) == entries(theirs, live=True)
    if merge == "true":
        assert len(manifests(mine)) <= len(manifests(theirs)) + 1
    assert pyiceberg_table.Table.scan(mine).count() == pyiceberg_table.Table.scan(theirs).count()


def test_a_commit_after_one_of_pyiceberg_s_that_steps_back_in_time_has_the_latest_time(memory: Kit) -> None:
    """PyIceberg gives a file the time at which it made the snapshot, which may be before the file that it follows."""
    table = memory.table(ids(1))
    transaction = memory.stock.load_table(table.name()).transaction()
    transaction.append(ids(2))
    written_ms = transaction.table_metadata.last_updated_ms
    assert holds_within(lambda: time.time_ns() // 1_000_000 > written_ms, PATIENCE)
    with memory.again(table).transaction() as other:
        other.set_properties({"a": "1"})
    transaction.commit_transaction()
    metadata: Any = memory.again(table).metadata
    assert metadata.last_updated_ms < metadata.metadata_log[-1].timestamp_ms, "PyIceberg steps back"
    latest = max(entry.timestamp_ms for entry in metadata.metadata_log)
    memory.again(table).append(ids(3))
    assert memory.again(table).metadata.last_updated_ms >= latest
