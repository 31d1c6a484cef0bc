"""Views of a SQL catalog: where Java's JdbcCatalog keeps them, and coordinated as tables are."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table.update import AddSchemaUpdate, RemovePropertiesUpdate, SetLocationUpdate, SetPropertiesUpdate
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from commit_coord import CommitConflict, CommitNotApplied, CommitStateUnknown, ConfigError
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.view_metadata import AddViewVersion, InvalidView, SameView, SetCurrentViewVersion
from commit_coord.protocol.commit import SwapResult, TryLimits
from tests.catalog.kit import SCHEMA, Kit, files_in, kit, local
from tests.coordinator.test_lost_replies import NoWaiting

OTHER = Schema(NestedField(1, "other", LongType()))


@pytest.fixture(params=["memory", "lease", pytest.param("postgres", marks=pytest.mark.postgres)])
def store(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog of its own for each test, which must leave no lock."""
    on_postgres = request.param == "postgres"
    uri = request.getfixturevalue("postgres_url") if on_postgres else None
    with kit("lease" if on_postgres else request.param, uri) as made:
        yield made
        assert [] == made.held()


def version(*queries: str, dialect: str = "spark", number: int = 1, schema_id: int = 0) -> ViewVersion:
    """Return a version with *queries*, each in a dialect of its own, the first one in *dialect*."""
    dialects = [dialect, *(f"{dialect}{place}" for place in range(1, len(queries)))]
    return ViewVersion(
        version_id=number,
        schema_id=schema_id,
        timestamp_ms=1_700_000_000_000 + number,
        summary={},
        representations=[
            ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect=each))
            for sql, each in zip(queries, dialects, strict=False)
        ],
        default_namespace=("db",),
    )


def replacing(sql: str) -> list[Any]:
    """Return the updates that replace the query of a view."""
    return [
        AddViewVersion(view_version=version(sql, number=2)),
        SetCurrentViewVersion(view_version_id=-1),
    ]


def queries(view: Any) -> list[str]:
    """Return the query of each version."""
    return [each.representations[0].root.sql for each in view.versions]


def row(store: Kit, name: tuple[str, str]) -> dict[str, Any]:
    """Return the row that the database has of a name."""
    with store.catalog.engine.connect() as connection:
        found = connection.exec_driver_sql(f"SELECT * FROM iceberg_tables WHERE table_name = '{name[1]}'").mappings()
        return dict(found.one())


def break_swaps(store: Kit, swap: Callable[..., SwapResult]) -> None:
    """Have *swap* called instead of the swap of a view, with the real one."""
    catalog = store.catalog
    real = catalog.view_store.swap
    catalog.view_store.swap = lambda *arguments: swap(real, *arguments)
    catalog.coordinator.clock, catalog.coordinator.limits = NoWaiting(), TryLimits(status_checks=3)


# -- the store -----------------------------------------------------------------------------------------------


def test_a_view_is_kept_in_the_row_that_java_writes(store: Kit) -> None:
    name = store.identifier()
    store.catalog.create_view(name, SCHEMA, version("select 1"))
    found = row(store, name)
    first = store.catalog.view_location(name)
    assert (store.name, store.namespace, name[1]) == tuple(list(found.values())[:3])
    assert ("VIEW", first, None) == (
        found["iceberg_type"],
        found["metadata_location"],
        found["previous_metadata_location"],
    )
    committed = store.catalog.commit_view(name, [], replacing("select 2"))
    found = row(store, name)
    assert (committed.location, first) == (found["metadata_location"], found["previous_metadata_location"])


def test_the_file_has_what_java_writes(store: Kit) -> None:
    name = store.identifier()
    store.catalog.create_view(name, SCHEMA, version("select 1"), properties={"comment": "a view"})
    location = store.catalog.view_location(name)
    folder, file = location.rsplit("/", 1)
    written = json.loads(gzip.decompress(Path(local(location)).read_bytes()))
    assert f"{written['location']}/metadata" == folder
    assert (file[:6], file[-17:]) == ("00000-", ".gz.metadata.json"[-17:])
    assert {
        "view-uuid": written["view-uuid"],
        "format-version": 1,
        "location": written["location"],
        "properties": {"comment": "a view"},
        "schemas": [{**SCHEMA.model_dump(mode="json"), "schema-id": 0}],
        "current-version-id": 1,
        "versions": [
            {
                "version-id": 1,
                "timestamp-ms": 1_700_000_000_001,
                "schema-id": 0,
                "summary": {},
                "default-namespace": ["db"],
                "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
            }
        ],
        "version-log": [{"timestamp-ms": 1_700_000_000_001, "version-id": 1}],
    } == written


def test_properties_say_where_the_file_goes_and_whether_it_is_gzipped(store: Kit, tmp_path: Path) -> None:
    name = store.identifier()
    properties = {"write.metadata.path": f"file://{tmp_path}/elsewhere/", "write.metadata.compression-codec": "none"}
    store.catalog.create_view(name, SCHEMA, version("select 1"), properties=properties)
    location = store.catalog.view_location(name)
    assert location.startswith(f"file://{tmp_path}/elsewhere/00000-")
    assert "select 1" in Path(local(location)).read_text()


def test_an_arrow_schema_is_taken(store: Kit) -> None:
    name = store.identifier()
    fields = [pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})]
    store.catalog.create_view(name, pa.schema(fields), version("select 1"))
    assert ["id"] == store.catalog.load_view(name).schema().column_names


def test_unmodified_catalogs_do_not_take_a_view_for_a_table(store: Kit) -> None:
    name = store.identifier()
    store.catalog.create_view(name, SCHEMA, version("select 1"))
    for catalog in (store.catalog, store.stock):
        assert name not in catalog.list_tables(store.namespace)
        with pytest.raises(NoSuchTableError):
            catalog.load_table(name)
        with pytest.raises(NoSuchTableError):
            catalog.drop_table(name)
    assert store.catalog.view_exists(name)


def test_a_catalog_of_the_old_schema_keeps_no_views(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/c.db"
    with SqlCatalog("c0", uri=uri).engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    with kit("memory", uri) as store:
        name = store.identifier()
        with pytest.raises(ConfigError, match="schema_version"):
            store.catalog.create_view(name, SCHEMA, version("select 1"))
        assert [] == store.catalog.list_views(store.namespace)
        assert not store.catalog.view_exists(name)
        store.table()
        with pytest.raises(NamespaceNotEmptyError):
            store.catalog.drop_namespace(store.namespace)
    with kit("memory", uri, schema_version="v1") as store:
        name = store.identifier()
        store.catalog.create_view(name, SCHEMA, version("select 1"))
        assert [name] == store.catalog.list_views(store.namespace)


# -- names ---------------------------------------------------------------------------------------------------


def test_a_name_is_used_once(store: Kit) -> None:
    view, table = store.identifier(), store.table().name()
    store.catalog.create_view(view, SCHEMA, version("select 1"))
    with pytest.raises(ViewAlreadyExistsError, match="View already exists"):
        store.catalog.create_view(view, SCHEMA, version("select 1"))
    with pytest.raises(ViewAlreadyExistsError, match="Table with same name already exists"):
        store.catalog.create_view(table, SCHEMA, version("select 1"))
    with pytest.raises(TableAlreadyExistsError, match="View with same name already exists"):
        store.catalog.create_table(view, SCHEMA)
    with pytest.raises(CommitNotApplied, match="View with same name already exists"):
        store.catalog.create_table_transaction(view, SCHEMA).commit_transaction()
    with pytest.raises(TableAlreadyExistsError, match="View already exists"):
        store.catalog.rename_table(table, view)
    with pytest.raises(ViewAlreadyExistsError, match="Table already exists"):
        store.catalog.rename_view(view, table)


def test_of_a_table_and_a_view_that_are_made_at_the_same_time_one_is(store: Kit) -> None:
    for _ in range(5):
        name, barrier = store.identifier(), threading.Barrier(2)

        def table(name: Any = name, barrier: Any = barrier) -> None:
            barrier.wait()
            store.catalog.create_table(name, SCHEMA)

        def view(name: Any = name, barrier: Any = barrier) -> None:
            barrier.wait()
            store.catalog.create_view(name, SCHEMA, version("select 1"))

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(work) for work in (table, view)]
            ended = [future.exception() for future in futures]
        assert 1 == sum(error is None for error in ended), ended
        assert [store.catalog.table_exists(name), store.catalog.view_exists(name)] == [e is None for e in ended]


def test_a_view_is_renamed_and_dropped(store: Kit) -> None:
    old, new = store.identifier(), store.identifier()
    store.catalog.create_namespace("elsewhere")
    made = store.catalog.create_view(old, SCHEMA, version("select 1"))
    store.catalog.rename_view(old, new)
    store.catalog.rename_view(new, ("elsewhere", "v"))
    assert made.metadata == store.catalog.load_view("elsewhere.v").metadata
    for missing in (old, new):
        with pytest.raises(NoSuchViewError):
            store.catalog.rename_view(missing, store.identifier())
    with pytest.raises(NoSuchNamespaceError):
        store.catalog.rename_view("elsewhere.v", ("nowhere", "v"))
    with pytest.raises(NamespaceNotEmptyError):
        store.catalog.drop_namespace("elsewhere")
    files = files_in(made.location())
    store.catalog.drop_view("elsewhere.v")
    with pytest.raises(NoSuchViewError):
        store.catalog.drop_view("elsewhere.v")
    assert files == files_in(made.location()), "the files of a view that is dropped stay"
    store.catalog.drop_namespace("elsewhere")


def test_a_view_is_registered(store: Kit, tmp_path: Path) -> None:
    name = store.identifier()
    made = store.catalog.create_view(name, SCHEMA, version("select 1"))
    location = store.catalog.view_location(name)
    store.catalog.drop_view(name)
    assert made.metadata == store.catalog.register_view(name, location).metadata
    assert location == store.catalog.view_location(name)
    with pytest.raises(ViewAlreadyExistsError):
        store.catalog.register_view(name, location)
    (tmp_path / "x.metadata.json").write_text('{"format-version": 2}')
    with pytest.raises(InvalidView, match="no metadata of a view"):
        store.catalog.register_view(store.identifier(), f"file://{tmp_path}/x.metadata.json")
    with pytest.raises(FileNotFoundError):
        store.catalog.register_view(store.identifier(), f"file://{tmp_path}/gone.metadata.json")
    assert Path(local(location)).exists()


def test_a_view_needs_a_namespace(store: Kit) -> None:
    with pytest.raises(NoSuchNamespaceError):
        store.catalog.create_view(("nowhere", "v"), SCHEMA, version("select 1"))
    with pytest.raises(NoSuchNamespaceError):
        store.catalog.list_views("nowhere")


def test_views_are_listed_by_their_namespace_and_apart_from_tables(store: Kit) -> None:
    catalog, view, table = store.catalog, store.identifier(), store.table().name()
    catalog.create_namespace("outer")
    catalog.create_namespace("outer.inner")
    for name in (view, ("outer", "v"), ("outer", "inner", "v"), ("outer", "inner", "w")):
        catalog.create_view(name, SCHEMA, version("select 1"))
    assert {view: True, table: False} == {name: name in catalog.list_views(view[:-1]) for name in (view, table)}
    assert {view: False, table: True} == {name: name in catalog.list_tables(view[:-1]) for name in (view, table)}
    assert [("outer", "v")] == catalog.list_views("outer")
    assert [("outer", "inner", "v"), ("outer", "inner", "w")] == sorted(catalog.list_views("outer.inner"))
    assert [] == catalog.list_tables("outer.inner")
    other = SqlCatalog("other", uri=store.uri.removeprefix("coord+"), warehouse="file:///tmp")  # in the same database
    other.create_namespace("outer")
    other.close()
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_views("outer.nowhere")


# -- commits -------------------------------------------------------------------------------------------------


def test_views_are_replaced_by_many_at_once_and_no_version_is_lost(store: Kit) -> None:
    name = store.identifier()
    store.catalog.create_view(name, SCHEMA, version("select 0"), properties={"version.history.num-entries": "100"})

    def replace(number: int) -> None:
        store.catalog.commit_view(name, [], replacing(f"select {number}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replace, range(1, 13)))
    found = store.catalog.load_view(name)
    assert sorted(f"select {number}" for number in range(13)) == sorted(queries(found))
    assert list(range(1, 14)) == [each.version_id for each in found.versions]
    assert list(range(1, 14)) == [entry.version_id for entry in found.history()]


def test_clients_of_their_own_replace_a_view_and_one_drops_it(store: Kit) -> None:
    """What was replaced is there once until the drop; what comes behind the drop finds no view."""
    name, clients = store.identifier(), [store.catalog, store.open()]
    store.catalog.create_view(name, SCHEMA, version("select 0"), properties={"version.history.num-entries": "100"})

    def replace(number: int) -> list[str] | None:
        try:
            return [
                each.representations[0].root.sql
                for each in clients[number % 2].commit_view(name, [], replacing(f"select {number}")).metadata.versions
            ]
        except NoSuchViewError:
            return None

    def drop() -> None:
        clients[1].drop_view(name)

    with ThreadPoolExecutor(5) as pool:
        replaced = [pool.submit(replace, number) for number in range(1, 7)]
        dropped = pool.submit(drop)
        replaced += [pool.submit(replace, number) for number in range(7, 10)]
    dropped.result()
    seen = sorted((found for each in replaced if (found := each.result()) is not None), key=len)
    for before, after in zip([["select 0"], *seen], seen, strict=False):
        assert sorted([*before, after[-1]]) == sorted(after), "each commit follows the one before"
    assert not store.catalog.view_exists(name)
    clients[1].close()


@pytest.mark.parametrize("landed", [False, True], ids=["before its swap", "behind it"])
def test_a_create_that_is_interrupted_has_landed_or_can_be_made_again(store: Kit, landed: bool) -> None:
    name, real = store.identifier(), store.catalog.view_store.swap

    def swap(*arguments: Any) -> SwapResult:
        if landed:
            real(*arguments)
        raise KeyboardInterrupt

    store.catalog.view_store.swap = swap
    with pytest.raises(KeyboardInterrupt):
        store.catalog.create_view(name, SCHEMA, version("select 1"))
    store.catalog.view_store.swap = real
    assert [] == store.held()
    if not landed:
        with pytest.raises(NoSuchViewError):
            store.catalog.load_view(name)
        store.catalog.create_view(name, SCHEMA, version("select 1"))
    assert ["select 1"] == queries(store.catalog.load_view(name))


def test_a_create_that_is_interrupted_while_it_writes_leaves_nothing(
    store: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dump(*_: Any) -> bytes:
        raise KeyboardInterrupt

    name = store.identifier()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(view_metadata, "dump", dump)
        store.catalog.create_view(name, SCHEMA, version("select 1"), location=f"file://{tmp_path}/v")
    assert ([], []) == (store.held(), [path for path in tmp_path.rglob("*") if path.is_file()])
    assert not store.catalog.view_exists(name)


def test_what_changes_nothing_writes_no_file(store: Kit) -> None:
    name = store.identifier()
    made = store.catalog.create_view(name, SCHEMA, version("select 1"), properties={"a": "1"})
    before = files_in(made.location())
    same = [SetPropertiesUpdate(updates={"a": "1"}), RemovePropertiesUpdate(removals=["b"])]
    assert store.catalog.view_location(name) == store.catalog.commit_view(name, [], same).location
    assert before == files_in(made.location())


def test_a_requirement_that_fails_is_a_conflict_and_leaves_no_file(store: Kit) -> None:
    name = store.identifier()
    made = store.catalog.create_view(name, SCHEMA, version("select 1"))
    before = files_in(made.location())
    with pytest.raises(CommitConflict, match="Requirement failed: view UUID does not match"):
        store.catalog.commit_view(name, [SameView(uuid="other")], replacing("select 2"))
    with pytest.raises(NoSuchViewError):
        store.catalog.commit_view(store.identifier(), [], replacing("select 2"))
    assert before == files_in(made.location())


def test_a_reply_that_is_lost_after_the_swap_is_a_success(store: Kit) -> None:
    name = store.identifier()

    def swap(real: Any, *arguments: Any) -> SwapResult:
        real(*arguments)
        return SwapResult.LOST_REPLY

    break_swaps(store, swap)
    store.catalog.create_view(name, SCHEMA, version("select 1"))
    store.catalog.commit_view(name, [], replacing("select 2"))
    assert ["select 1", "select 2"] == queries(store.catalog.load_view(name))


def test_a_swap_that_is_lost_on_its_way_is_sent_again(store: Kit) -> None:
    name, calls = store.identifier(), []

    def swap(real: Any, *arguments: Any) -> SwapResult:
        calls.append(arguments)
        return SwapResult.LOST_REPLY if len(calls) % 2 else real(*arguments)

    break_swaps(store, swap)
    store.catalog.create_view(name, SCHEMA, version("select 1"))
    store.catalog.commit_view(name, [], replacing("select 2"))
    assert ["select 1", "select 2"] == queries(store.catalog.load_view(name))
    assert [calls[0], calls[2]] == [calls[1], calls[3]]


def stranger(store: Kit, name: tuple[str, str], sql: str) -> None:
    """Replace a view as Java's JdbcCatalog does it: without a latch, by a comparison."""
    base = row(store, name)["metadata_location"]
    io = store.catalog.file_io(base)
    made = view_metadata.changed(view_metadata.read(io, base), replacing(sql), 1_700_000_000_099)
    location = view_metadata.file_location(made, 7, f"stranger-{sql[-1]}")
    with io.new_output(location).create() as output:
        output.write(view_metadata.dump(made, location))
    with store.catalog.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE iceberg_tables SET metadata_location = '{location}', previous_metadata_location = '{base}' "
            f"WHERE table_name = '{name[1]}' AND metadata_location = '{base}' AND iceberg_type = 'VIEW'"
        )


def test_a_stranger_s_commit_before_the_swap_is_followed(store: Kit) -> None:
    name, calls = store.identifier(), []
    store.catalog.create_view(name, SCHEMA, version("select 1"))

    def swap(real: Any, *arguments: Any) -> SwapResult:
        calls.append(arguments)
        if len(calls) == 1:
            stranger(store, name, "select 5")
        found: SwapResult = real(*arguments)
        return found

    break_swaps(store, swap)
    made = store.catalog.commit_view(name, [], replacing("select 2"))
    assert ["select 1", "select 5", "select 2"] == queries(store.catalog.load_view(name))
    assert 3 == len(files_in(made.metadata.location)), "the file of the swap that failed is gone"


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
def test_a_lost_swap_that_a_stranger_has_followed_is_found_out(store: Kit, landed: bool) -> None:
    name, calls = store.identifier(), []
    store.catalog.create_view(name, SCHEMA, version("select 1"))

    def swap(real: Any, *arguments: Any) -> SwapResult:
        calls.append(arguments)
        if len(calls) > 1:
            found: SwapResult = real(*arguments)
            return found
        if landed:
            real(*arguments)
        stranger(store, name, "select 5")
        return SwapResult.LOST_REPLY

    break_swaps(store, swap)
    store.catalog.commit_view(name, [], replacing("select 2"))
    order = ["select 2", "select 5"] if landed else ["select 5", "select 2"]
    assert ["select 1", *order] == queries(store.catalog.load_view(name))


def test_an_outcome_that_nobody_can_find_out_keeps_the_file(store: Kit) -> None:
    name = store.identifier()
    made = store.catalog.create_view(name, SCHEMA, version("select 1"))

    def swap(real: Any, *arguments: Any) -> SwapResult:
        return SwapResult.LOST_REPLY

    break_swaps(store, swap)
    with pytest.raises(CommitStateUnknown):
        store.catalog.commit_view(name, [], replacing("select 2"))
    assert 2 == len(files_in(made.location()))


def test_a_drop_whose_reply_is_lost_is_done_once(store: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = store.identifier(), store.identifier()
    store.catalog.create_view(old, SCHEMA, version("select 1"))
    views = store.catalog.view_store
    real = views._change

    def lost(*arguments: Any) -> SwapResult:
        real(*arguments)
        return SwapResult.LOST_REPLY

    monkeypatch.setattr(views, "_change", lost)
    store.catalog.rename_view(old, new)
    assert [False, True] == [store.catalog.view_exists(name) for name in (old, new)]
    store.catalog.drop_view(new)
    assert not store.catalog.view_exists(new)


# -- what metadata becomes -----------------------------------------------------------------------------------


def made(*updates: Any, properties: dict[str, str] | None = None) -> Any:
    """Return a view with *updates*."""
    base = view_metadata.created(SCHEMA, version("select 1"), "file:///v", properties or {}, 5, "1-2-3")
    return view_metadata.changed(base, updates, 6)


def test_schemas_and_versions_that_are_there_are_used_again() -> None:
    again = AddViewVersion(view_version=version("select 1", number=7))
    assert [1] == [each.version_id for each in made(again).versions]
    both = (AddSchemaUpdate(schema_=OTHER), AddSchemaUpdate(schema_=SCHEMA), AddSchemaUpdate(schema_=OTHER))
    assert [0, 1] == [each.schema_id for each in made(*both).schemas]
    last = AddViewVersion(view_version=version("select 2", schema_id=-1))
    assert [0, 1] == [each.schema_id for each in made(AddSchemaUpdate(schema_=OTHER), last).versions]
    assert [0, 0] == [each.schema_id for each in made(*both[:2], last).versions]


def test_an_older_version_becomes_the_current_one_again_at_the_time_of_the_commit() -> None:
    two = made(*replacing("select 2"))
    back = view_metadata.changed(two, [SetCurrentViewVersion(view_version_id=1)], 99)
    assert (1, [1, 2, 1]) == (back.current_version_id, [entry.version_id for entry in back.version_log])
    assert 99 == back.version_log[-1].timestamp_ms


def test_old_versions_go_and_with_them_the_log_up_to_them() -> None:
    view = made(properties={"version.history.num-entries": "2"})
    for number in range(2, 5):
        view = view_metadata.changed(view, replacing(f"select {number}"), 6)
    assert [4, 3] == [each.version_id for each in view.versions]
    assert [3, 4] == [entry.version_id for entry in view.version_log]
    back = view_metadata.changed(view, [SetCurrentViewVersion(view_version_id=3)], 7)
    kept = view_metadata.changed(back, [AddViewVersion(view_version=version("select 9"))], 8)
    assert {3, 5} == {each.version_id for each in kept.versions}, "the current version stays"
    assert [3] == [entry.version_id for entry in kept.version_log]


@pytest.mark.parametrize(
    "updates, words",
    [
        ([AddViewVersion(view_version=version("select 2", schema_id=9))], "unknown schema: 9"),
        ([AddViewVersion(view_version=version("select 2", schema_id=-1))], "no schema has been added"),
        ([SetCurrentViewVersion(view_version_id=-1)], "no current version id has been set"),
        ([SetCurrentViewVersion(view_version_id=4)], "unknown version: 4"),
        ([AddViewVersion(view_version=version())], "it has no query"),
        ([SetPropertiesUpdate(updates={"version.history.num-entries": "0"})], "must be positive but was 0"),
        ([SetPropertiesUpdate(updates={"version.history.num-entries": "many"})], "many"),
        ([SetPropertiesUpdate(updates={"replace.drop-dialect.allowed": "maybe"})], "true or false but was maybe"),
    ],
)
def test_what_does_not_fit_is_refused(updates: Any, words: str) -> None:
    with pytest.raises(InvalidView, match=words):
        made(*updates)


@pytest.mark.parametrize("key", ["version.history.num-entries", "replace.drop-dialect.allowed"])
def test_a_new_view_has_no_property_that_can_not_be_read(key: str) -> None:
    with pytest.raises(InvalidView, match="unreadable"):
        made(properties={key: "unreadable"})


def test_a_dialect_is_dropped_only_where_a_property_allows_it() -> None:
    other: Any = [
        AddViewVersion(view_version=version("select 2", dialect="trino")),
        SetCurrentViewVersion(view_version_id=-1),
    ]
    with pytest.raises(InvalidView, match="loss of view dialects"):
        made(*other)
    maybe = made().model_copy(update={"properties": {"replace.drop-dialect.allowed": "maybe"}})
    with pytest.raises(InvalidView, match="loss of view dialects"):
        view_metadata.changed(maybe, other, 6)
    assert 2 == len(view_metadata.changed(maybe, replacing("select 2"), 6).versions)
    allowed = made(*other, properties={"replace.drop-dialect.allowed": "true"})
    assert 2 == allowed.current_version_id
    assert "file:///w" == made(SetLocationUpdate(location="file:///w")).location
