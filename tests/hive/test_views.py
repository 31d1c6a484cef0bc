"""Views on a Hive Metastore, kept as Java's HiveCatalog keeps them; commits to several tables, which it can't do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import NoSuchTableError, NoSuchViewError, TableAlreadyExistsError, ViewAlreadyExistsError
from pyiceberg.table.update import RemovePropertiesUpdate

import commit_coord
from commit_coord import ConfigError
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.hms.connection import LostReply
from commit_coord.iceberg.view_metadata import AddViewVersion, SetCurrentViewVersion
from commit_coord.local import HiveMetastore
from commit_coord.model import Resource
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.routes import TRANSACTIONS, VIEWS, served
from commit_coord.rest.transactions import commit_transaction
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import Request, UnsupportedRequest
from tests.catalog.kit import SCHEMA
from tests.catalog.test_views import queries, replacing, version

_numbers = itertools.count(1)
_DB = "views"


@pytest.fixture(params=["hms", "lease"])
def catalog(request: pytest.FixtureRequest, hms: HiveMetastore, tmp_path: Path) -> Iterator[Any]:
    """A catalog whose latches are the metastore's locks, and one whose latches are elsewhere; none is left."""
    uri = {"lock.uri": f"sqlite:///{tmp_path}/locks.db"} if request.param == "lease" else {}
    arguments = {"uri": f"coord+{hms.uri}", "warehouse": hms.warehouse, "lock-impl": request.param, **uri}
    made = commit_coord.load_catalog("t", **arguments)
    if not made.namespace_exists(_DB):
        made.create_namespace(_DB)
    yield made
    assert [] == [str(entry) for entry in made.show_locks(Resource((_DB,))) if not entry.guard]
    made.close()


@pytest.fixture
def name() -> tuple[str, str]:
    """A name that nothing has."""
    return (_DB, f"v{next(_numbers)}")


def test_a_view_is_what_java_makes_of_it(catalog: Any, name: tuple[str, str]) -> None:
    properties = {"comment": "mine", "hive.metastore.table.owner": "anna"}
    catalog.create_view(name, SCHEMA, version("select 1", "select 2", dialect="trino"), properties=properties)
    found = catalog.metastore.get_table(*name)
    location = catalog.view_location(name)
    assert ("VIRTUAL_VIEW", "anna", "select 1", "select 1") == (
        found.tableType,
        found.owner,
        found.viewOriginalText,
        found.viewExpandedText,
    )
    assert ["id", "s"] == [column.name for column in found.sd.cols]
    expected = {"table_type": "ICEBERG-VIEW", "metadata_location": location, "comment": "mine"}
    assert expected.items() <= found.parameters.items()
    assert str(catalog.load_view(name).uuid()) == found.parameters["uuid"]
    assert '"name":"id"' in found.parameters["current-schema"]
    assert not {"EXTERNAL", "hive.metastore.table.owner"} & found.parameters.keys()


def test_the_query_in_hive_s_dialect_is_the_one_that_hive_is_shown(catalog: Any, name: tuple[str, str]) -> None:
    catalog.create_view(name, SCHEMA, version("select 1"), properties={"gone": "1", "stays": "2"})
    new = version("select 2", "select 3", dialect="spark", number=2).model_dump()
    new["representations"][1]["dialect"] = "Hive"
    updates = [AddViewVersion(view_version=new), SetCurrentViewVersion(view_version_id=-1)]
    catalog.commit_view(name, [], updates)
    found = catalog.metastore.get_table(*name)
    assert "select 3" == found.viewExpandedText
    assert found.parameters["metadata_location"] == catalog.view_location(name)
    assert found.parameters["previous_metadata_location"].rsplit("/", 1)[-1].startswith("00000-")
    catalog.commit_view(name, [], [RemovePropertiesUpdate(removals=["gone"])])
    parameters = catalog.metastore.get_table(*name).parameters
    assert ("2", None) == (parameters.get("stays"), parameters.get("gone"))


def test_names_are_used_once_and_folded(catalog: Any, hms: HiveMetastore, name: tuple[str, str]) -> None:
    table = (_DB, f"t{next(_numbers)}")
    catalog.create_table(table, SCHEMA)
    catalog.create_view((name[0].upper(), name[1].upper()), SCHEMA, version("select 1"))
    assert name in catalog.list_views(_DB)
    assert name not in catalog.list_tables(_DB)
    assert table not in catalog.list_views(_DB)
    with pytest.raises(ViewAlreadyExistsError, match="Table with same name already exists"):
        catalog.create_view(table, SCHEMA, version("select 1"))
    with pytest.raises(TableAlreadyExistsError, match="View with same name already exists"):
        catalog.create_table(name, SCHEMA)
    with pytest.raises(TableAlreadyExistsError, match="View already exists"):
        catalog.rename_table(table, name)
    with pytest.raises(ViewAlreadyExistsError, match="Table already exists"):
        catalog.rename_view(name, table)
    for change in (catalog.load_table, catalog.drop_table):
        with pytest.raises(NoSuchTableError, match=f"Table does not exist: {_DB}.{name[1]} is a view"):
            change(name)
    with pytest.raises(NoSuchViewError):
        catalog.drop_view(table)
    stock = HiveCatalog("stock", uri=hms.uri)
    assert name not in stock.list_tables(_DB)
    assert table in stock.list_tables(_DB)


def test_views_are_renamed_registered_and_dropped(catalog: Any, name: tuple[str, str]) -> None:
    made = catalog.create_view(name, SCHEMA, version("select 1"))
    new, location = (_DB, f"n{next(_numbers)}"), catalog.view_location(name)
    catalog.rename_view(name, new)
    assert [False, True] == [catalog.view_exists(each) for each in (name, new)]
    catalog.drop_view(new)
    with pytest.raises(NoSuchViewError):
        catalog.drop_view(new)
    assert made.metadata == catalog.register_view(name, location).metadata


def test_views_are_replaced_by_many_at_once_and_no_version_is_lost(catalog: Any, name: tuple[str, str]) -> None:
    catalog.create_view(name, SCHEMA, version("select 0"), properties={"version.history.num-entries": "100"})
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: catalog.commit_view(name, [], replacing(f"select {n}")), range(1, 7)))
    assert sorted(f"select {n}" for n in range(7)) == sorted(queries(catalog.load_view(name)))


@pytest.mark.parametrize("carried_out", [True, False], ids=["carried out", "lost"])
@pytest.mark.parametrize("call", ["create_table", "alter_table"])
def test_a_lost_reply_is_found_out(
    catalog: Any, name: tuple[str, str], monkeypatch: pytest.MonkeyPatch, call: str, carried_out: bool
) -> None:
    if call == "alter_table":
        catalog.create_view(name, SCHEMA, version("select 1"))
    real: Callable[..., Any] = getattr(catalog.metastore, call)
    calls: list[Any] = []

    def lost(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        if carried_out or len(calls) > 1:
            real(*arguments, **named)
        if len(calls) == 1:
            raise LostReply("the reply was lost")

    monkeypatch.setattr(catalog.metastore, call, lost)
    if call == "create_table":
        catalog.create_view(name, SCHEMA, version("select 1"))
    else:
        catalog.commit_view(name, [], replacing("select 2"))
    monkeypatch.undo()
    expected = ["select 1"] if call == "create_table" else ["select 1", "select 2"]
    assert expected == queries(catalog.load_view(name))


def test_commits_to_several_tables_are_refused_in_words_and_not_advertised(catalog: Any) -> None:
    with pytest.raises(ConfigError, match="one table's pointer at a time"):
        catalog.transaction()
    with pytest.raises(ConfigError, match="one table's pointer at a time"):
        catalog.commit_requests([])
    answers = TableAnswers(catalog.file_io)
    warehouse = Warehouse(catalog, answers, Lines(SYSTEM_CLOCK, reserved_ms=0, most_waiting=0))
    routes = served(warehouse)
    assert not set(TRANSACTIONS) & set(routes)
    assert set(VIEWS) <= set(routes)
    with pytest.raises(UnsupportedRequest, match="a Hive Metastore swaps the pointer of one table at a time"):
        commit_transaction(warehouse, Request(method="POST", path="", body=b'{"table-changes": []}'))
