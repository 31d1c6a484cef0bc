"""Locations that file stores cut off: a file there would be another file, perhaps one that a table lives by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

import commit_coord
from commit_coord.errors import CommitNotApplied
from commit_coord.iceberg.storage import cut_off
from tests.catalog.kit import SCHEMA, ids, row_ids

ENDS = ("#", "#x", "?", "?x=1", "/a#b", "/a?b", "\n", "\tx", "/x\ny")
"""What follows the location of a file that exists: the store takes each of them for a place at or below that file."""

PROPERTIES = ("write.metadata.path", "write.data.path")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """A catalog on SQLite with a table ``db.victim`` whose files must stay."""
    place = {"uri": f"coord+sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with commit_coord.load_catalog("shop", **place, **{"lock-impl": "memory"}) as made:
        made.create_namespace("db")
        made.create_table("db.victim", SCHEMA).append(ids(1, 2))
        yield made


def _new(name: str, **options: Any) -> Callable[[Any, str], Any]:
    def create(catalog: Any, place: str) -> Any:
        given = {key: place if value is None else {value: place} for key, value in options.items()}
        return getattr(catalog, name)("db.new", SCHEMA, **given)

    return create


def _created_with_rows(catalog: Any, place: str) -> None:
    with catalog.create_table_transaction("db.new", SCHEMA) as tx:
        tx.set_properties({"write.data.path": place})
        tx.append(ids(1))


def _moved(catalog: Any, place: str) -> None:
    table = catalog.load_table("db.mine")
    catalog.commit_table(table, (), (SetLocationUpdate(location=place),))


def _set(key: str) -> Callable[[Any, str], Any]:
    def change(catalog: Any, place: str) -> None:
        with catalog.load_table("db.mine").transaction() as tx:
            tx.set_properties({key: place})

    return change


def _with_rows(catalog: Any, place: str) -> None:
    with catalog.load_table("db.mine").transaction() as tx:
        tx.set_properties({"write.data.path": place})
        tx.append(ids(9))


def _view(catalog: Any, place: str) -> None:
    version = ViewVersion(
        version_id=1,
        schema_id=0,
        timestamp_ms=1,
        summary={},
        representations=[ViewRepresentation(SQLViewRepresentation(type="sql", sql="select 1", dialect="spark"))],
        default_namespace=("db",),
    )
    catalog.create_view("db.view", SCHEMA, version, location=place)


def _registered(catalog: Any, place: str) -> None:
    catalog.register_table("db.new", place)


WAYS: dict[str, Callable[[Any, str], Any]] = {
    "create_table": _new("create_table", location=None),
    **{f"create_table with {key}": _new("create_table", properties=key) for key in PROPERTIES},
    "create_table_transaction": _new("create_table_transaction", location=None),
    "created with rows": _created_with_rows,
    "moved": _moved,
    **{f"set {key}": _set(key) for key in PROPERTIES},
    "set with rows": _with_rows,
    "create_view": _view,
    "register_table": _registered,
}
"""The ways in which a place gets into a table or view."""


@pytest.mark.parametrize("end", ENDS, ids=repr)
@pytest.mark.parametrize("way", WAYS)
def test_a_place_that_a_store_cuts_off_is_refused_and_no_file_goes(catalog: Any, way: str, end: str) -> None:
    """It names each file of another table in turn: that one has all of its files and rows afterwards."""
    catalog.create_table("db.mine", SCHEMA).append(ids(3))
    warehouse = Path(catalog.properties["warehouse"].removeprefix("file://"))
    before = {path: path.read_bytes() for path in sorted(warehouse.rglob("*")) if path.is_file()}
    for path in before:
        with pytest.raises((ValueError, CommitNotApplied)):
            WAYS[way](catalog, f"file://{path}{end}")
        assert before == {path: path.read_bytes() for path in sorted(warehouse.rglob("*")) if path.is_file()}
    assert [1, 2] == row_ids(catalog.load_table("db.victim"))
    assert [3] == row_ids(catalog.load_table("db.mine"))
    assert not catalog.table_exists("db.new")
    assert not catalog.view_exists("db.view")


def test_a_table_with_such_a_place_is_read_and_mended_but_not_written(catalog: Any, tmp_path: Path) -> None:
    """Another program may have given it one."""
    stock = SqlCatalog("shop", **{key: catalog.properties[key] for key in ("uri", "warehouse")}, type="sql")
    place = f"file://{tmp_path}/data#e"
    (tmp_path / "data").write_text("of somebody else")
    with stock.load_table("db.victim").transaction() as tx:
        tx.set_properties({"write.data.path": place})
    table = catalog.load_table("db.victim")
    refusals: tuple[Callable[[], Any], ...] = (
        lambda: table.append(ids(3)),
        lambda: table.overwrite(ids(3)),
        lambda: table.delete("id = 1"),
    )
    for refused in refusals:
        with pytest.raises(CommitNotApplied, match=r"write\.data\.path|nothing was written"):
            refused()
    assert "of somebody else" == (tmp_path / "data").read_text()
    assert [1, 2] == row_ids(catalog.load_table("db.victim"))
    with table.transaction() as tx:
        tx.remove_properties("write.data.path")
    table.append(ids(3))
    assert [1, 2, 3] == row_ids(catalog.load_table("db.victim"))


@pytest.mark.parametrize(
    "location", ["file:///a/b c/d%23", "s3://bucket", "s3://bucket/a;b=c/d", "/a/b", "hdfs://h:1/a"]
)
def test_other_places_are_not_refused(location: str) -> None:
    assert cut_off(location) is None


@pytest.mark.parametrize("location", ["", "file://", "s3://[b/x", " s3://b/x", "\x00/a"])
def test_what_is_no_place_is_refused(location: str) -> None:
    assert cut_off(location) is not None


@pytest.mark.parametrize("suffix", [".metadata.json", ".avro", ".parquet"])
def test_a_file_that_was_there_before_is_not_deleted_by_the_commit_that_finds_it(
    catalog: Any, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """However two names come to mean one file: what a commit has not created is not its own."""
    victim = Path(catalog.load_table("db.victim").metadata_location.removeprefix("file://"))
    mine = catalog.create_table("db.mine", SCHEMA)
    content, usual, delete = victim.read_bytes(), PyArrowFileIO.new_output, PyArrowFileIO.delete

    def meant(location: Any) -> Any:
        return f"file://{victim}" if str(location).endswith(suffix) else location

    def collides(self: PyArrowFileIO, location: str) -> Any:
        made = usual(self, meant(location))
        plain, made._location = made.create, location
        made.create = lambda overwrite=False: plain(False)  # type: ignore[method-assign]
        return made

    monkeypatch.setattr(PyArrowFileIO, "new_output", collides)
    monkeypatch.setattr(PyArrowFileIO, "delete", lambda self, location: delete(self, meant(location)))
    for refused in (
        lambda: mine.append(ids(3)),
        lambda: catalog.create_table("db.new", SCHEMA),
        lambda: _view(catalog, f"{mine.location()}/view"),
    ):
        with suppress(FileExistsError, CommitNotApplied):
            refused()
        assert content == victim.read_bytes()
