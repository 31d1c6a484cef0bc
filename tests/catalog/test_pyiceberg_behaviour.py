"""What works on PyIceberg's own SQL catalog works on ours: the same tests run on both.

PyIceberg's own suites run on both in ``integration/test_pyiceberg_suites.py``, each deviation declared with its
reason; ``test_catalog_calls.py`` compares random programs of catalog calls.

After every test PyIceberg's own catalog must read every table as the catalog under test does, and no lock may be left.
"""

from __future__ import annotations

import pickle
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.events import CommitBegan, Event
from commit_coord.testing.contract import until
from tests.catalog.kit import ARROW, NO_MATCH, SCHEMA, Kit, files_in, frame, ids, kit, local, row_ids, rows

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))


def _spec(spec: PartitionSpec | None) -> dict[str, Any]:
    return {"partition_spec": spec} if spec else {}


@pytest.fixture(
    scope="module",
    params=[
        "stock",
        "memory",
        "lease",
        pytest.param("postgres", marks=pytest.mark.postgres),
        # PyIceberg's own HiveCatalog fails in nine of these tests (no purge, raw errors of the metastore).
        pytest.param("hms", marks=[pytest.mark.hms, pytest.mark.slow]),
    ],
)
def shared(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """One catalog of each kind for the whole module."""
    if request.param == "postgres":
        with kit("lease", request.getfixturevalue("postgres_url")) as made:
            yield made
    elif request.param == "hms":
        with kit("hms", request.getfixturevalue("hms").uri) as made:
            yield made
    else:
        with kit(request.param) as made:
            yield made


@pytest.fixture
def coord(shared: Kit) -> Iterator[Kit]:
    """The catalog under test in a namespace of its own, checked with PyIceberg's own when the test is over."""
    shared.namespace = f"n{id(object())}x{shared.identifier()[1]}"
    shared.catalog.create_namespace(shared.namespace)
    yield shared
    shared.check()
    for namespace in shared.catalog.list_namespaces():
        for identifier in shared.catalog.list_tables(namespace):
            shared.catalog.drop_table(identifier)


# Namespaces.


def test_a_created_namespace_exists_and_is_listed(coord: Kit) -> None:
    coord.catalog.create_namespace("made")
    assert coord.catalog.namespace_exists("made")
    assert ("made",) in coord.catalog.list_namespaces()
    coord.catalog.drop_namespace("made")
    assert not coord.catalog.namespace_exists("made")


def test_a_namespace_is_made_once(coord: Kit) -> None:
    with pytest.raises(NamespaceAlreadyExistsError):
        coord.catalog.create_namespace(coord.namespace)
    coord.catalog.create_namespace_if_not_exists(coord.namespace)


def test_nested_namespaces_are_listed_below_their_parent(coord: Kit) -> None:
    catalog = coord.catalog
    if coord.on_hive:
        with pytest.raises(ValueError, match="hierarchical namespaces are not supported"):
            catalog.create_namespace(("outer", "inner"))
        return
    catalog.create_namespace(("outer", "inner"))
    assert catalog.list_namespaces("outer") == [("outer", "inner")]
    assert catalog.namespace_exists("outer")
    table = catalog.create_table(("outer", "inner", "t"), SCHEMA)
    table.append(ids(1))
    assert catalog.list_tables(("outer", "inner")) == [("outer", "inner", "t")]
    assert row_ids(catalog.load_table("outer.inner.t")) == [1]
    catalog.drop_table(("outer", "inner", "t"))
    catalog.drop_namespace(("outer", "inner"))


def test_namespace_properties_are_set_replaced_and_removed(coord: Kit) -> None:
    catalog = coord.catalog
    catalog.create_namespace("props", {"a": "1", "b": "2"})
    summary = catalog.update_namespace_properties("props", {"b", "missing"}, {"a": "3", "c": "4"})
    assert (set(summary.removed), set(summary.updated), set(summary.missing)) == ({"b"}, {"a", "c"}, {"missing"})
    found = catalog.load_namespace_properties("props")
    assert coord.on_hive == (found.pop("location", None) is not None)
    assert found == {"a": "3", "c": "4"}
    with pytest.raises(ValueError, match="overlap"):
        catalog.update_namespace_properties("props", {"a"}, {"a": "5"})
    catalog.drop_namespace("props")


def test_a_namespace_with_tables_is_not_dropped(coord: Kit) -> None:
    table = coord.table()
    with pytest.raises(NamespaceNotEmptyError):
        coord.catalog.drop_namespace(coord.namespace)
    coord.catalog.drop_table(table.name())
    coord.catalog.drop_namespace(coord.namespace)


def test_a_missing_namespace_is_an_error_of_every_operation(coord: Kit) -> None:
    catalog = coord.catalog
    calls: list[Callable[[], object]] = [
        lambda: catalog.drop_namespace("nowhere"),
        lambda: catalog.load_namespace_properties("nowhere"),
        lambda: catalog.update_namespace_properties("nowhere", None, {"a": "1"}),
        lambda: catalog.list_tables("nowhere"),
        lambda: catalog.list_namespaces("nowhere"),
        lambda: catalog.create_table("nowhere.t", SCHEMA),
    ]
    for call in calls:
        with pytest.raises(NoSuchNamespaceError):
            call()


# Tables.


def test_a_created_table_has_what_was_asked_for(coord: Kit) -> None:
    order = SortOrder(SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST))
    location = f"{coord.warehouse}/elsewhere/{coord.identifier()[1]}"
    table = coord.table(partition_spec=BY_S, sort_order=order, properties={"k": "v"}, location=location)
    assert table.schema().as_struct() == SCHEMA.as_struct()
    assert [field.name for field in table.spec().fields] == ["s"]
    assert table.sort_order().fields == order.fields
    assert (table.properties["k"], table.location()) == ("v", location)
    assert table.current_snapshot() is None
    assert rows(table) == []
    assert table.metadata_location.startswith(location)


def test_a_table_is_created_from_an_arrow_schema(coord: Kit) -> None:
    table = coord.table(frame((1, "a")), schema=ARROW)
    assert rows(table) == [(1, "a")]


def test_a_table_is_created_once(coord: Kit) -> None:
    table = coord.table(ids(1))
    before = files_in(coord.warehouse)
    with pytest.raises(TableAlreadyExistsError):
        coord.catalog.create_table(table.name(), SCHEMA)
    assert row_ids(coord.catalog.create_table_if_not_exists(table.name(), SCHEMA)) == [1]
    if coord.coordinated:
        assert files_in(coord.warehouse) == before


def test_a_create_transaction_makes_the_table_with_its_data_in_one_step(coord: Kit) -> None:
    identifier = coord.identifier()
    with coord.catalog.create_table_transaction(identifier, SCHEMA, partition_spec=BY_S, properties={"k": "v"}) as tx:
        tx.append(ids(1))
        with tx.update_schema() as changes:
            changes.add_column("more", LongType())
        assert not coord.catalog.table_exists(identifier)
    table = coord.catalog.load_table(identifier)
    assert rows(table) == [(1, "1", None)]
    assert table.properties["k"] == "v"
    assert [field.name for field in table.spec().fields] == ["s"]
    table.append(frame((2, "2")))
    assert row_ids(table) == [1, 2]


def test_of_two_create_transactions_the_second_is_refused(coord: Kit) -> None:
    identifier = coord.identifier()
    first = coord.catalog.create_table_transaction(identifier, SCHEMA)
    second = coord.catalog.create_table_transaction(identifier, SCHEMA)
    first.commit_transaction()
    with pytest.raises(CommitFailedException):
        second.commit_transaction()


def test_every_operation_reports_a_missing_table(coord: Kit) -> None:
    catalog, missing = coord.catalog, (coord.namespace, "missing")
    assert not catalog.table_exists(missing)
    for call in (catalog.load_table, catalog.drop_table, catalog.purge_table):
        with pytest.raises(NoSuchTableError):
            call(missing)
    with pytest.raises(NoSuchTableError):
        catalog.rename_table(missing, (coord.namespace, "other"))


def test_names_without_a_namespace_are_refused_alike(coord: Kit) -> None:
    table = coord.table()

    def refusals(catalog: Any) -> list[type[Exception]]:
        """What PyIceberg's own raises is the measure."""
        raised = []
        calls: list[Callable[[], object]] = [
            lambda: catalog.load_table("bare"),
            lambda: catalog.drop_table("bare"),
            lambda: catalog.purge_table("bare"),
            lambda: catalog.create_table("bare", SCHEMA),
            lambda: catalog.rename_table("bare", (coord.namespace, "other")),
            lambda: catalog.rename_table(table.name(), "bare"),
            lambda: catalog.register_table("bare", table.metadata_location),
            lambda: catalog.table_exists("bare"),
            lambda: catalog.load_table(()),
            lambda: catalog.load_table(""),
        ]
        if coord.on_hive:
            # There PyIceberg's own says False, and leaves purging out.
            assert not catalog.table_exists("bare")
            calls = [call for number, call in enumerate(calls) if number not in (2, 7)]
        for call in calls:
            with pytest.raises(Exception) as error:  # noqa: PT011 - compared below
                call()
            raised.append(error.type)
        return raised

    for mine, theirs in zip(refusals(coord.catalog), refusals(coord.stock), strict=True):
        assert issubclass(mine, theirs)


def test_a_namespace_is_found_however_its_levels_are_written(coord: Kit) -> None:
    """PyIceberg joins them with dots and strips the blanks around them."""
    if coord.on_hive:
        pytest.skip("the metastore has one level of namespaces")
    coord.catalog.create_namespace(("up", "down"))
    table = coord.catalog.create_table((" up ", "down", "t"), SCHEMA)
    table.append(ids(1))
    for name in (("up.down", "t"), "up.down.t", ("up", " down", "t")):
        assert row_ids(coord.catalog.load_table(name)) == [1]
        assert coord.catalog.table_exists(name)
    assert table.name() == ("up", "down", "t")
    coord.catalog.purge_table(("up.down", "t"))
    coord.catalog.drop_namespace("up.down")


def test_tables_are_listed_by_namespace(coord: Kit) -> None:
    made = {coord.table().name() for _ in range(3)}
    assert set(coord.catalog.list_tables(coord.namespace)) == made
    assert all(coord.catalog.table_exists(name) for name in made)


def test_a_dropped_table_is_registered_again_by_its_metadata(coord: Kit) -> None:
    table = coord.table(ids(1, 2))
    coord.catalog.drop_table(table.name())
    assert not coord.catalog.table_exists(table.name())
    again = coord.catalog.register_table(coord.identifier(), table.metadata_location)
    assert row_ids(again) == [1, 2]
    again.append(ids(3))
    assert row_ids(coord.again(again)) == [1, 2, 3]


def test_registering_is_refused_for_names_and_namespaces_that_do_not_fit(coord: Kit) -> None:
    table = coord.table()
    with pytest.raises(TableAlreadyExistsError):
        coord.catalog.register_table(table.name(), table.metadata_location)
    with pytest.raises(NoSuchNamespaceError):
        coord.catalog.register_table("nowhere.t", table.metadata_location)


def test_a_table_is_registered_over_another_one(coord: Kit) -> None:
    table, other = coord.table(ids(1)), coord.table(ids(2))
    if not coord.coordinated:  # PyIceberg's own does not
        with pytest.raises(NotImplementedError):
            coord.catalog.register_table(other.name(), table.metadata_location, overwrite=True)
        return
    assert [1] == row_ids(coord.catalog.register_table(other.name(), table.metadata_location, overwrite=True))
    coord.again(other).append(ids(3))
    assert [1, 3] == row_ids(coord.again(other))
    assert [1] == row_ids(coord.catalog.register_table(coord.identifier(), table.metadata_location, overwrite=True))


def test_registering_a_bad_location_fails(coord: Kit) -> None:
    identifier = coord.identifier()
    with pytest.raises(FileNotFoundError):
        coord.catalog.register_table(identifier, f"{coord.warehouse}/missing.metadata.json")
    if coord.coordinated:  # PyIceberg's own leaves a table that can't be loaded
        assert not coord.catalog.table_exists(identifier)
    else:
        coord.catalog.drop_table(identifier)


def test_a_renamed_table_keeps_its_rows_and_takes_more(coord: Kit) -> None:
    table, new = coord.table(ids(1)), coord.identifier()
    renamed = coord.catalog.rename_table(table.name(), new)
    assert renamed.name() == new
    assert not coord.catalog.table_exists(table.name())
    renamed.append(ids(2))
    assert row_ids(coord.catalog.load_table(new)) == [1, 2]


def test_renaming_is_refused_for_targets_that_do_not_fit(coord: Kit) -> None:
    one, two = coord.table(ids(1)), coord.table(ids(2))
    with pytest.raises(TableAlreadyExistsError):
        coord.catalog.rename_table(one.name(), two.name())
    with pytest.raises(NoSuchNamespaceError):
        coord.catalog.rename_table(one.name(), ("nowhere", "t"))
    assert (row_ids(coord.again(one)), row_ids(coord.again(two))) == ([1], [2])


def test_dropping_keeps_the_files_and_purging_deletes_them(coord: Kit) -> None:
    kept, purged = coord.table(ids(1)), coord.table(ids(2), ids(3), partition_spec=BY_S)
    purged.delete("id = 2")
    coord.catalog.drop_table(kept.name())
    coord.catalog.purge_table(purged.name())
    assert files_in(kept.location())
    assert files_in(purged.location()) == set()


def test_a_view_that_does_not_exist_is_named_in_the_error_although_pyiceberg_has_no_views_here(coord: Kit) -> None:
    name = (coord.namespace, "view")
    if not isinstance(coord.catalog, CoordinatedCatalog):
        with pytest.raises(NotImplementedError):
            coord.catalog.view_exists(name)
        return
    assert not coord.catalog.view_exists(name)
    assert [] == coord.catalog.list_views(coord.namespace)
    for call in (coord.catalog.drop_view, coord.catalog.load_view):
        with pytest.raises(NoSuchViewError, match="view"):
            call(name)


# Rows.


def test_appends_of_tables_and_of_record_batches_add_up(coord: Kit) -> None:
    table = coord.table(ids(1))
    table.append(pa.RecordBatchReader.from_batches(ARROW, ids(2, 3).to_batches()))
    assert row_ids(table) == [1, 2, 3]
    assert [snapshot.summary.operation for snapshot in table.snapshots()] == [Operation.APPEND] * 2
    assert table.current_snapshot().summary["total-records"] == "3"
    assert table.current_snapshot().summary["added-records"] == "2"


def test_an_empty_append_makes_an_empty_snapshot(coord: Kit) -> None:
    table = coord.table(ids(1))
    table.append(ids())
    assert row_ids(table) == [1]
    assert len(table.snapshots()) == 2
    assert table.current_snapshot().summary["total-records"] == "1"


@pytest.mark.parametrize("spec", [None, BY_S], ids=["flat", "partitioned"])
def test_an_overwrite_replaces_what_its_filter_hits(coord: Kit, spec: PartitionSpec | None) -> None:
    table = coord.table(ids(1, 2, 3), **_spec(spec))
    table.overwrite(frame((2, "new")), "id = 2")
    assert rows(table) == [(1, "1"), (2, "new"), (3, "3")]
    table.overwrite(ids(9))
    assert row_ids(table) == [9]
    with pytest.warns(UserWarning, match=NO_MATCH):
        table.overwrite(ids(8), "id = 77")
    assert row_ids(table) == [8, 9]


def test_a_delete_removes_rows_or_warns(coord: Kit) -> None:
    table = coord.table(ids(1, 2), ids(3))
    table.delete("id = 1")
    table.delete("id = 3")
    assert row_ids(table) == [2]
    with pytest.warns(UserWarning, match=NO_MATCH):
        table.delete("id = 77")
    assert len(table.snapshots()) == 4


def test_an_upsert_updates_and_inserts(coord: Kit) -> None:
    table = coord.table(ids(1, 2))
    result = table.upsert(frame((2, "new"), (3, "3")), ["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert rows(table) == [(1, "1"), (2, "new"), (3, "3")]
    result = table.upsert(frame((4, "4")), ["id"])
    assert (result.rows_updated, result.rows_inserted) == (0, 1)
    result = table.upsert(frame((4, "x"), (5, "5")), ["id"], when_matched_update_all=False)
    assert (result.rows_updated, result.rows_inserted) == (0, 1)
    assert rows(table)[-2:] == [(4, "4"), (5, "5")]


def test_a_dynamic_overwrite_replaces_the_partitions_it_brings(coord: Kit) -> None:
    table = coord.table(frame((1, "a"), (2, "b"), (3, None)), partition_spec=BY_S)
    table.dynamic_partition_overwrite(frame((10, "a"), (30, None)))
    assert rows(table) == [(10, "a"), (2, "b"), (30, None)]
    table.dynamic_partition_overwrite(ids())
    assert len(rows(table)) == 3
    with pytest.raises(ValueError, match="unpartitioned"):
        coord.table(ids(1)).dynamic_partition_overwrite(ids(2))


def test_existing_files_are_added_once(coord: Kit) -> None:
    table = coord.table(ids(1))
    path = f"{coord.folder}/{coord.identifier()[1]}.parquet"
    pq.write_table(ids(2, 3), path)
    table.add_files([path])
    assert row_ids(table) == [1, 2, 3]
    with pytest.raises(ValueError, match="already referenced"):
        table.add_files([path])
    with pytest.raises(ValueError, match="unique"):
        table.add_files([path, path])
    table.add_files([path], check_duplicate_files=False)
    assert row_ids(table) == [1, 2, 2, 3, 3]
    with pytest.raises(FileNotFoundError):
        table.add_files([f"{path}.missing"])


def test_a_transaction_lands_its_operations_together(coord: Kit) -> None:
    table = coord.table(ids(1, 2))
    with table.transaction() as tx:
        tx.append(ids(3))
        tx.delete("id = 1")
        with tx.update_schema() as changes:
            changes.add_column("more", StringType())
        tx.append(frame((4, "4")))
        tx.set_properties({"a": "1"})
        with tx.update_spec() as spec:
            spec.add_identity("s")
        tx.overwrite(pa.table({"id": [5], "s": ["5"], "more": ["m"]}), "id = 2")
        assert row_ids(coord.again(table)) == [1, 2]
    again = coord.again(table)
    assert rows(again) == [(3, "3", None), (4, "4", None), (5, "5", "m")]
    assert again.properties["a"] == "1"
    assert len(again.metadata.metadata_log) == 2
    assert table == again


def test_a_transaction_that_fails_changes_nothing(coord: Kit) -> None:
    table = coord.table(ids(1))
    before = coord.again(table).metadata_location
    with pytest.raises(ZeroDivisionError), table.transaction() as tx:
        tx.append(ids(2))
        tx.set_properties({"a": "1"})
        raise ZeroDivisionError
    assert coord.again(table).metadata_location == before
    if coord.coordinated:
        assert len(files_in(table.location())) == 5  # two metadata files, a list, a manifest, a data file


def test_snapshot_properties_are_kept(coord: Kit) -> None:
    table = coord.table(ids(1))
    table.append(ids(2), snapshot_properties={"who": "me"})
    table.delete("id = 1", snapshot_properties={"who": "you"})
    assert [s.summary["who"] for s in table.snapshots()[1:]] == ["me", "you"]


# Schema, partitions, order, properties.

NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "i", IntegerType()),
    NestedField(3, "f", FloatType()),
    NestedField(4, "st", StructType(NestedField(5, "x", IntegerType()), NestedField(6, "y", StringType()))),
    NestedField(7, "li", ListType(8, StructType(NestedField(9, "e", IntegerType())), element_required=False)),
    NestedField(10, "ma", MapType(11, StringType(), 12, IntegerType(), value_required=False)),
    identifier_field_ids=[1],
)


def test_a_schema_evolves_in_every_way(coord: Kit) -> None:
    table = coord.table(schema=NESTED)
    row: dict[str, Any] = {"id": 1, "i": 2, "f": 0.5, "st": {"x": 1, "y": "y"}, "li": [{"e": 1}], "ma": [("k", 1)]}
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    with table.update_schema() as changes:
        changes.add_column("new", DoubleType(), doc="fresh")
        changes.add_column(("st", "z"), DateType())
        changes.add_column(("li", "g"), StringType())
        changes.update_column("i", LongType(), doc="wide")
        changes.update_column(("st", "x"), LongType())
        changes.update_column("f", DoubleType())
        changes.rename_column("f", "double")
        changes.rename_column(("st", "y"), "why")
        changes.move_first("new")
        changes.move_after("i", "st")
        changes.move_before(("st", "z"), ("st", "x"))
    with table.update_schema() as changes:
        changes.delete_column("ma")
        changes.set_identifier_fields("id")
    assert [field.name for field in table.schema().fields] == ["new", "id", "double", "st", "i", "li"]
    assert [field.name for field in table.schema().find_type("st").fields] == ["z", "x", "why"]
    (read,) = table.scan().to_arrow().to_pylist()
    assert read == {
        "new": None,
        "id": 1,
        "double": 0.5,
        "st": {"z": None, "x": 1, "why": "y"},
        "i": 2,
        "li": [{"e": 1, "g": None}],
    }
    assert len(table.schemas()) == 3


def test_a_schema_takes_columns_by_name_and_incompatible_changes_on_demand(coord: Kit) -> None:
    table = coord.table(ids(1))
    with table.update_schema() as changes:
        changes.union_by_name(pa.schema([pa.field("id", pa.int64()), pa.field("extra", pa.date32())]))
    assert [field.name for field in table.schema().fields] == ["id", "s", "extra"]
    with pytest.raises(ValueError, match=r"(?i)required"):
        table.update_schema().add_column("must", LongType(), required=True)
    with table.update_schema(allow_incompatible_changes=True) as changes:
        changes.add_column("must", LongType(), required=True)
    assert table.schema().find_field("must").required
    with table.update_schema() as changes:
        changes.make_column_optional("must")
    with pytest.raises(ValueError, match="not"):
        table.update_schema().delete_column("nowhere").commit()


def test_a_schema_change_that_changes_nothing_keeps_the_schema(coord: Kit) -> None:
    table = coord.table(ids(1))
    with table.update_schema():
        pass
    assert len(table.schemas()) == 1


def test_partitions_evolve_and_old_files_stay_readable(coord: Kit) -> None:
    schema = Schema(*SCHEMA.fields, NestedField(3, "at", TimestampType()))
    arrow = schema.as_arrow()
    moment = datetime(2020, 1, 2, 3)  # noqa: DTZ001 - a timestamp without zone

    def one(number: int) -> pa.Table:
        return pa.Table.from_pylist([{"id": number, "s": "abc", "at": moment}], schema=arrow)

    table = coord.table(schema=schema)
    table.append(one(1))
    with table.update_spec() as spec:
        spec.add_field("at", IdentityTransform(), "year")
        spec.add_identity("s")
    table.append(one(2))
    with table.update_spec() as spec:
        spec.rename_field("year", "y")
        spec.remove_field("s")
        spec.add_field("id", IdentityTransform(), "number")
    table.append(one(3))
    assert [field.name for field in table.spec().fields] == ["y", "number"]
    assert row_ids(table) == [1, 2, 3]
    assert row_ids(coord.again(table)) == [1, 2, 3]
    table.overwrite(one(9), "id = 2")
    assert row_ids(table) == [1, 3, 9]
    assert len(table.specs()) == 3
    table.delete("at < '2021-01-01T00:00:00'")
    assert row_ids(table) == []


def test_a_sort_order_is_replaced(coord: Kit) -> None:
    table = coord.table(ids(1))
    with table.update_sort_order() as order:
        order.desc("id", IdentityTransform(), NullOrder.NULLS_LAST).asc("s", IdentityTransform())
    assert [(f.source_id, f.direction) for f in table.sort_order().fields] == [
        (1, SortDirection.DESC),
        (2, SortDirection.ASC),
    ]
    table.append(ids(2))
    assert coord.again(table).sort_order().order_id == table.sort_order().order_id


def test_properties_are_set_and_removed(coord: Kit) -> None:
    table = coord.table(properties={"a": "1", "b": "2"})
    table.transaction().set_properties(c="3").set_properties({"d": "4"}).commit_transaction()
    with table.transaction() as tx:
        tx.remove_properties("a", "b")
    assert {k: v for k, v in coord.again(table).properties.items() if len(k) == 1} == {"c": "3", "d": "4"}
    with pytest.raises(ValueError, match="both"):
        table.transaction().set_properties({"a": "1"}, b="2")


def test_removing_a_property_that_is_not_set_fails_alike(coord: Kit) -> None:
    table = coord.table()
    before = table.metadata_location
    with pytest.raises((KeyError, CommitFailedException), match="never"), table.transaction() as tx:
        tx.remove_properties("never")
    assert coord.again(table).metadata_location == before


def test_statistics_are_set_and_removed(coord: Kit) -> None:
    table = coord.table(ids(1))
    snapshot_id = table.current_snapshot().snapshot_id
    file = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=f"{coord.warehouse}/stats.puffin",
        file_size_in_bytes=1,
        file_footer_size_in_bytes=1,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(file)
    assert [s.snapshot_id for s in coord.again(table).metadata.statistics] == [snapshot_id]
    with table.update_statistics() as update:
        update.remove_statistics(snapshot_id)
    assert coord.again(table).metadata.statistics == []


# History.


def test_a_call_that_names_no_snapshot_is_a_mistake_and_no_conflict(coord: Kit) -> None:
    table = coord.table(ids(1))
    began: list[Event] = []
    if coord.coordinated:
        coord.catalog.events.subscribe(lambda event: began.append(event) if isinstance(event, CommitBegan) else None)
    calls: list[Callable[[], object]] = [
        lambda: table.manage_snapshots().create_tag(42, "v1").commit(),
        lambda: table.manage_snapshots().create_branch(42, "dev").commit(),
        lambda: table.update_statistics().remove_statistics(42).commit(),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="42"):
            call()
    assert [] == began, "a mistake was found under a latch only"
    assert {"main"} == coord.again(table).refs().keys()


def test_branches_and_tags_are_made_and_removed(coord: Kit) -> None:
    table = coord.table(ids(1), ids(2))
    first = table.snapshots()[0].snapshot_id
    with table.manage_snapshots() as manage:
        manage.create_tag(first, "v1", max_ref_age_ms=10**12).create_branch(
            first, "dev", max_ref_age_ms=10**12, max_snapshot_age_ms=10**11, min_snapshots_to_keep=3
        )
    assert row_ids(table, "v1") == [1]
    table.append(ids(10), branch="dev")
    table.delete("id = 1", branch="dev")
    table.overwrite(ids(11), "id = 10", branch="dev")
    assert row_ids(table, "dev") == [11]
    assert row_ids(table) == [1, 2]
    if coord.coordinated:  # PyIceberg's own forgets the retention at the first append
        kept = coord.again(table).refs()["dev"]
        assert (kept.max_ref_age_ms, kept.max_snapshot_age_ms, kept.min_snapshots_to_keep) == (10**12, 10**11, 3)
    table.manage_snapshots().remove_tag("v1").remove_branch("dev").commit()
    assert set(coord.again(table).refs()) == {"main"}


def test_a_branch_is_made_by_writing_to_it(coord: Kit) -> None:
    table = coord.table(ids(1))
    table.append(ids(2), branch="fresh")
    assert row_ids(table) == [1]
    assert row_ids(coord.again(table), "fresh") == [2]
    with pytest.raises(ValueError, match="tag"):
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "t").commit()
        table.append(ids(3), branch="t")


def test_a_table_is_rolled_back_and_set_to_any_snapshot(coord: Kit) -> None:
    table = coord.table(ids(1), ids(2), ids(3))
    first, second, third = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert row_ids(table) == [1]
    with pytest.raises(ValueError, match="ancestor"):
        table.manage_snapshots().rollback_to_snapshot(second)
    table.manage_snapshots().set_current_snapshot(snapshot_id=third).commit()
    assert row_ids(coord.again(table)) == [1, 2, 3]
    table.manage_snapshots().create_tag(second, "two").set_current_snapshot(ref_name="two").commit()
    assert row_ids(coord.again(table)) == [1, 2]
    table.append(ids(9))
    assert row_ids(coord.again(table)) == [1, 2, 9]
    assert [entry.snapshot_id for entry in table.history()][:5] == [first, second, third, first, third]


def test_snapshots_expire_by_id_and_by_age_but_never_those_in_use(coord: Kit) -> None:
    table = coord.table(ids(1), ids(2), ids(3), ids(4))
    first, second, third, fourth = (snapshot.snapshot_id for snapshot in table.snapshots())
    table.manage_snapshots().create_tag(second, "keep").commit()
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert {s.snapshot_id for s in coord.again(table).snapshots()} == {second, third, fourth}
    with pytest.raises(ValueError, match="protected"):
        table.maintenance.expire_snapshots().by_id(second)
    with pytest.raises(ValueError, match="not exist"):
        table.maintenance.expire_snapshots().by_id(first)
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    again = coord.again(table)
    assert {s.snapshot_id for s in again.snapshots()} == {second, fourth}
    assert row_ids(again) == [1, 2, 3, 4]
    # What came before an expired snapshot is no answer for its time: our log has no gap.
    assert {entry.snapshot_id for entry in again.history()} == ({second, fourth} if coord.impl == "stock" else {fourth})


def test_an_expiry_of_nothing_keeps_the_table(coord: Kit) -> None:
    table = coord.table(ids(1))
    table.maintenance.expire_snapshots().older_than(datetime(2000, 1, 1, tzinfo=UTC)).commit()
    assert len(coord.again(table).snapshots()) == 1


def test_time_travel_finds_every_snapshot(coord: Kit) -> None:
    table = coord.table(ids(1), ids(2))
    first, second = table.snapshots()
    assert len(rows(table, snapshot_id=first.snapshot_id)) == 1
    assert table.snapshot_as_of_timestamp(second.timestamp_ms).snapshot_id == second.snapshot_id
    assert table.snapshot_as_of_timestamp(first.timestamp_ms - 1) is None
    assert table.snapshot_by_id(first.snapshot_id).snapshot_id == first.snapshot_id
    assert table.snapshot_by_name("main").snapshot_id == second.snapshot_id
    assert second.parent_snapshot_id == first.snapshot_id
    assert second.sequence_number == first.sequence_number + 1
    assert table.snapshot_by_id(1) is None


def test_the_tables_metadata_can_be_inspected(coord: Kit) -> None:
    table = coord.table(ids(1), ids(2), partition_spec=BY_S)
    table.delete("id = 1")
    inspect = coord.again(table).inspect
    assert len(inspect.snapshots()) == 3
    assert len(inspect.history()) == 3
    assert len(inspect.metadata_log_entries()) == 4
    assert inspect.partitions()["record_count"].to_pylist() == [1]
    assert inspect.files()["record_count"].to_pylist() == [1]
    assert len(inspect.entries()) >= 1
    assert inspect.refs()["name"].to_pylist() == ["main"]
    assert len(inspect.manifests()) >= 1
    assert len(inspect.all_manifests()) >= 3
    assert len(inspect.all_files()) >= 2
    assert len(inspect.all_data_files()) >= 2
    assert len(inspect.delete_files()) == 0


def test_scans_filter_project_limit_and_count(coord: Kit) -> None:
    table = coord.table(ids(1, 2, 3), ids(4))
    assert table.scan("id > 2", ("s",)).to_arrow().sort_by("s").to_pylist() == [{"s": "3"}, {"s": "4"}]
    assert len(table.scan(limit=2).to_arrow()) == 2
    assert table.scan("id = 4").count() == 1
    assert len(list(table.scan("id = 4").plan_files())) == 1
    assert table.scan().to_arrow_batch_reader().read_all().num_rows == 4
    first, second = table.snapshots()
    scan = table.incremental_append_scan().from_snapshot_id_exclusive(first.snapshot_id)
    assert scan.to_snapshot_id_inclusive(second.snapshot_id).to_arrow()["id"].to_pylist() == [4]


# Format versions and files.


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("spec", [None, BY_S], ids=["flat", "partitioned"])
def test_both_format_versions_take_every_kind_of_write(coord: Kit, version: str, spec: PartitionSpec | None) -> None:
    table = coord.table(ids(1, 2), properties={"format-version": version}, **_spec(spec))
    table.append(ids(3))
    table.overwrite(ids(4), "id = 1")
    table.delete("id = 2")
    table.upsert(frame((3, "new"), (5, "5")), ["id"])
    assert table.format_version == int(version)
    assert rows(coord.again(table)) == [(3, "new"), (4, "4"), (5, "5")]
    if version == "1":
        assert "sequence-number" not in table.metadata.model_dump_json()


def test_a_table_is_upgraded_once_and_never_back(coord: Kit) -> None:
    table = coord.table(ids(1), properties={"format-version": "1"})
    with table.transaction() as tx:
        tx.upgrade_table_version(2)
    table.append(ids(2))
    table.delete("id = 1")
    assert (coord.again(table).format_version, row_ids(coord.again(table))) == (2, [2])
    with pytest.raises(ValueError, match="downgrade"):
        table.transaction().upgrade_table_version(1)
    with pytest.raises(ValueError, match="Unsupported"):
        table.transaction().upgrade_table_version(9)


def test_gzipped_metadata_is_read_by_everybody(coord: Kit) -> None:
    table = coord.table(properties={"write.metadata.compression-codec": "gzip"})
    for number in range(3):
        table.append(ids(number))
    if coord.coordinated:
        assert ".gz." in table.metadata_location
    assert row_ids(coord.stock.load_table(table.name())) == [0, 1, 2]
    with table.transaction() as tx:
        tx.set_properties({"write.metadata.compression-codec": "none"})
    assert ".gz." not in table.metadata_location
    table.append(ids(3))
    assert row_ids(coord.again(table)) == [0, 1, 2, 3]


def test_the_metadata_log_has_its_configured_length_and_old_files_go(coord: Kit) -> None:
    properties = {
        "write.metadata.previous-versions-max": "3",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    table = coord.table(properties=properties)
    for number in range(6):
        table.append(ids(number))
    assert len(table.metadata.metadata_log) == 3
    if coord.coordinated:
        # The deletion is under way when the append returns.
        until(lambda: 4 == sum(path.endswith(".metadata.json") for path in files_in(table.location())))
    assert row_ids(coord.again(table)) == list(range(6))


def test_small_manifests_are_merged_over_three_hundred_appends(coord: Kit) -> None:
    if coord.impl in ("stock", "lease"):
        pytest.skip("takes long and shows nothing about this catalog")
    properties = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "10"}
    table = coord.table(properties=properties)
    other = coord.again(table)
    failures: list[BaseException] = []

    def writer(mine: Any, offset: int) -> None:
        try:
            for number in range(offset, offset + 75):
                mine.append(ids(number))
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    for number in range(150):
        table.append(ids(number))
    threads = [threading.Thread(target=writer, args=pair) for pair in ((table, 150), (other, 225))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    again = coord.again(table)
    assert row_ids(again) == list(range(300))
    snapshots = again.snapshots()
    assert [snapshot.sequence_number for snapshot in snapshots] == list(range(1, 301))
    assert len(again.current_snapshot().manifests(again.io)) < 25
    entries = again.inspect.entries()
    by_snapshot = {snapshot.snapshot_id: snapshot.sequence_number for snapshot in snapshots}
    found = list(zip(entries["snapshot_id"].to_pylist(), entries["sequence_number"].to_pylist(), strict=True))
    assert len(found) == 300
    assert [by_snapshot[snapshot_id] for snapshot_id, _ in found] == [number for _, number in found]
    assert again.current_snapshot().summary["total-data-files"] == "300"


# Objects.


def test_a_table_object_follows_what_others_commit(coord: Kit) -> None:
    table = coord.table(ids(1))
    other = coord.again(table)
    other.append(ids(2))
    assert table != other
    assert row_ids(table) == [1]
    assert table.refresh() == other
    assert row_ids(table) == [1, 2]
    assert repr(table) == repr(other)


def test_the_parts_of_a_table_can_be_pickled(coord: Kit) -> None:
    """Engines ship these to their workers; the table itself holds a database connection."""
    table = coord.table(ids(1, 2), partition_spec=BY_S)
    metadata = pickle.loads(pickle.dumps(table.metadata))
    assert metadata == table.metadata
    assert metadata.model_dump_json() == table.metadata.model_dump_json()
    io = pickle.loads(pickle.dumps(table.io))
    assert io.new_input(table.metadata_location).exists()


def test_a_table_made_again_under_the_same_name_is_another_table(coord: Kit) -> None:
    table = coord.table(ids(1))
    coord.catalog.drop_table(table.name())
    coord.catalog.create_table(table.name(), SCHEMA)
    with pytest.raises((ValueError, CommitFailedException)):
        table.append(ids(2))
    with pytest.raises(ValueError, match="UUID"):
        table.refresh()
    assert row_ids(coord.again(table)) == []


def test_plain_commits_through_the_catalog_are_checked(coord: Kit) -> None:
    table = coord.table(ids(1))
    uuid = table.metadata.table_uuid
    response = coord.catalog.commit_table(
        table, (AssertTableUUID(uuid=uuid),), (SetPropertiesUpdate(updates={"direct": "1"}),)
    )
    assert response.metadata.properties["direct"] == "1"
    assert coord.again(table).metadata_location == response.metadata_location
    wrong = AssertTableUUID(uuid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(CommitFailedException):
        coord.catalog.commit_table(table, (wrong,), (SetPropertiesUpdate(updates={"direct": "2"}),))
    assert coord.again(table).properties["direct"] == "1"


def test_an_empty_transaction_leaves_the_pointer_alone(coord: Kit) -> None:
    table = coord.table(ids(1))
    before = table.metadata_location
    with table.transaction() as tx:
        tx.set_properties({})
    with table.transaction():
        pass
    assert coord.again(table).metadata_location == before


def test_changing_a_tables_properties_in_memory_changes_no_table(coord: Kit) -> None:
    table = coord.table(ids(1))
    table.metadata.properties["mine"] = "1"
    assert "mine" not in coord.again(table).properties
    coord.again(table).append(ids(2))
    assert "mine" not in coord.again(table).properties


def test_plain_writers_and_ours_take_turns(coord: Kit) -> None:
    mine = coord.table(ids(0), partition_spec=BY_S)
    for turn in range(1, 9, 4):
        theirs = coord.stock.load_table(mine.name())
        theirs.append(ids(turn))
        mine.append(ids(turn + 1))
        theirs = coord.stock.load_table(mine.name())
        theirs.overwrite(ids(turn + 2), f"id = {turn}")
        mine.refresh().delete(f"id = {turn + 1}")
        mine.append(ids(turn + 3))
        with coord.stock.load_table(mine.name()).update_schema() as changes:
            changes.add_column(f"c{turn}", LongType())
        mine.refresh()
        coord.stock.load_table(mine.name()).append(ids(100 + turn))
    assert row_ids(coord.stock.load_table(mine.name())) == [0, 3, 4, 7, 8, 101, 105]
    parents = [snapshot.parent_snapshot_id for snapshot in coord.again(mine).snapshots()]
    assert parents[1:] == [snapshot.snapshot_id for snapshot in coord.again(mine).snapshots()][:-1]


def test_the_warehouse_has_no_file_that_no_table_refers_to(coord: Kit) -> None:
    """Every kind of write, one after the other, leaves nothing behind."""
    from tests.catalog.kit import names, orphans

    if not coord.coordinated:
        pytest.skip("PyIceberg's own leaves files")
    table = coord.table(ids(1, 2), partition_spec=BY_S)
    table.append(ids(3))
    table.overwrite(ids(4), "id = 1")
    table.delete("id = 2")
    table.upsert(frame((3, "new"), (5, "5")), ["id"])
    table.dynamic_partition_overwrite(ids(4))
    with table.transaction() as tx:
        tx.append(ids(6))
        tx.append(ids(7))
        tx.delete("id = 6")
    with pytest.warns(UserWarning, match=NO_MATCH):
        table.delete("id = 77")
    with pytest.raises(ValueError, match=r"(?i)mismatch|not|schema"):
        table.append(pa.table({"other": [1]}))
    assert names(orphans(coord.again(table))) == []
    assert Path(local(table.location())).exists()


def _rename(old: str, new: str) -> Any:
    def change(table: Any) -> None:
        with table.update_schema() as update:
            update.rename_column(old, new)

    return change


def _add(name: str) -> Any:
    def change(table: Any) -> None:
        with table.update_schema() as update:
            update.add_column(name, StringType())

    return change


def _partition(name: str) -> Any:
    def change(table: Any) -> None:
        with table.update_spec() as update:
            update.add_field("id", BucketTransform(4), name)

    return change


def _unpartition(name: str) -> Any:
    def change(table: Any) -> None:
        with table.update_spec() as update:
            update.remove_field(name)

    return change


THERE_AND_BACK = {
    "nothing": [],
    "rename": [_rename("s", "b")],
    "rename and back": [_rename("s", "b"), _rename("b", "s")],
    "add": [_add("n")],
    "add and drop": [_add("n"), lambda table: table.update_schema().delete_column("n").commit()],
    "partition": [_partition("p")],
    "partition and back": [_partition("p"), _unpartition("p")],
}
BY_STOCK = {"rename": _rename("s", "c"), "add": _add("m"), "partition": _partition("q"), "same spec": _partition("p")}


@pytest.mark.parametrize("change", BY_STOCK)
@pytest.mark.parametrize("since", THERE_AND_BACK)
def test_a_change_by_a_stale_table_object_of_pyicebergs_own_is_what_it_meant_or_refused(
    memory: Kit, since: str, change: str
) -> None:
    """It chose ids that may have been given meanwhile, also if the table looks as it did: what has an id keeps it."""
    ours = memory.table(ids(1))
    stale = Table(ours.name(), ours.metadata, ours.metadata_location, ours.io, memory.catalog)
    for step in THERE_AND_BACK[since]:
        step(ours)
    before, meant = ours.metadata, Table(ours.name(), ours.metadata, "", ours.io, memory.catalog).transaction()
    with suppress(ValueError):  # the table has no such column any more, or such a field
        BY_STOCK[change](meant)
    try:
        BY_STOCK[change](stale)
    except CommitFailedException:
        assert memory.again(ours).metadata == before
        assert since != "nothing"
        return
    after = memory.again(ours).metadata
    assert after.schema() == meant.table_metadata.schema()
    assert [str(field) for field in after.spec().fields] == [str(f) for f in meant.table_metadata.spec().fields]
    for before_it, now in ((before.schemas, after.schemas), (before.partition_specs, after.partition_specs)):
        assert list(now[: len(before_it)]) == list(before_it), "what had an id has it still"
    assert len({schema.schema_id for schema in after.schemas}) == len(after.schemas)
    assert len({spec.spec_id for spec in after.partition_specs}) == len(after.partition_specs)


# Sequences of calls, on a table of ours and on one of PyIceberg's own.

NULLS = frame((None, None), (None, None))

CALLS: dict[str, Callable[[Table], object]] = {
    "append rows": lambda table: table.append(ids(1, 2)),
    "append nulls": lambda table: table.append(NULLS),
    "append nothing": lambda table: table.append(ids()),
    "overwrite by rows": lambda table: table.overwrite(ids(3)),
    "overwrite by nulls": lambda table: table.overwrite(NULLS),
    "overwrite by nothing": lambda table: table.overwrite(ids()),
    "overwrite a row": lambda table: table.overwrite(ids(4), "id = 1"),
    "overwrite nulls by nothing": lambda table: table.overwrite(ids(), "id is null"),
    "delete all": lambda table: table.delete(),
    "delete nulls": lambda table: table.delete("id is null"),
    "delete a row": lambda table: table.delete("id = 2"),
    "delete what is not there": lambda table: table.delete("id = 77"),
    "append to a branch": lambda table: table.append(ids(5), branch="dev"),
    "overwrite a branch by nothing": lambda table: table.overwrite(ids(), branch="dev"),
}


def outcome_of(call: Callable[[Table], object], table: Table) -> list[str]:
    """Do *call* on *table*, and return of what it warned and PyIceberg's class of the error that it raised."""
    raised = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call(table)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
            known = (kind for kind in type(error).__mro__ if kind.__module__.startswith(("builtins", "pyiceberg")))
            raised.append(next(known).__name__)
    return [str(one.message) for one in caught if issubclass(one.category, UserWarning)] + raised


def snapshots_of(table: Table) -> list[tuple[int | None, dict[str, str]]]:
    """Return the parent of each snapshot, by its place, and what its summary says apart from our properties."""
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(table.snapshots())}
    found = []
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        said = {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
        parent = None if snapshot.parent_snapshot_id is None else places[snapshot.parent_snapshot_id]
        found.append((parent, {key: value for key, value in said.items() if not key.startswith("commit-coord.")}))
    return found


@settings(max_examples=20, deadline=None)
@given(
    calls=st.lists(st.sampled_from(list(CALLS)), min_size=1, max_size=5),
    version=st.sampled_from(["1", "2"]),
    spec=st.sampled_from([None, BY_S]),
)
@example(["append rows", "append nothing", "overwrite by nothing", "overwrite by rows"], "2", None)
@example(["append nothing", "append nulls", "overwrite by nothing"], "1", None)
@example(["append nulls", "overwrite by nulls", "delete all"], "1", BY_S)
@example(["append nothing", "overwrite by nulls", "delete nulls", "delete all"], "2", BY_S)
@example(["append to a branch", "append nulls", "append to a branch", "overwrite a branch by nothing"], "2", None)
def test_calls_warn_and_leave_snapshots_and_rows_as_pyicebergs_do(
    memory: Kit, calls: list[str], version: str, spec: PartitionSpec | None
) -> None:
    """Rows that are null in every column, and calls with no rows or that match none, count as with PyIceberg."""
    stores = memory.catalog, memory.stock
    ours, stock = (
        store.create_table(memory.identifier(), SCHEMA, properties={"format-version": version}, **_spec(spec))
        for store in stores
    )
    for call in calls:
        assert outcome_of(CALLS[call], stock) == outcome_of(CALLS[call], ours), call
        again = memory.again(ours)
        assert snapshots_of(stock) == snapshots_of(again) == snapshots_of(ours), call
        assert stock.refs().keys() == again.refs().keys()
        for branch in stock.refs() or [None]:
            assert rows(stock, branch) == rows(again, branch), call
        for limit in (0, 1, 2, 100):
            limited = again.scan(limit=limit).to_arrow()
            assert min(limit, len(rows(again))) == limited.num_rows
            some = Counter(tuple(row.values()) for row in limited.to_pylist())
            assert some <= Counter(rows(again)), "which of the rows these are is not said"
