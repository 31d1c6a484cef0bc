"""Catalogs and tables go to other processes, as Ray and Dask send them, and are another client there."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import commit_coord
from commit_coord.errors import LockTimeout
from commit_coord.model import LockMode, Resource
from commit_coord.process import this_owner
from commit_coord.table import CoordinatedTable
from tests.catalog.kit import ids, row_ids

SCHEMA = ids(1).schema
X = LockMode.EXCLUSIVE


@pytest.fixture(params=["lease", "zookeeper", "hms"])
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Of a catalog that other processes can reach."""
    common = {"warehouse": tmp_path.joinpath("warehouse").as_uri(), "operation-locks": "hive"}
    sqlite = f"coord+sqlite:///{tmp_path}/catalog.db"
    match request.param:
        case "zookeeper":
            servers = request.getfixturevalue("zookeeper").connect_string
            return common | {"uri": sqlite, "lock-impl": "zookeeper", "lock.uri": servers}
        case "hms":
            return common | {"uri": f"coord+{request.getfixturevalue('hms').uri}"}
    return common | {"uri": sqlite}


@pytest.fixture
def catalog(properties: dict[str, str], tmp_path: Path) -> Iterator[Any]:
    """One client of it, with a namespace of the test's own."""
    catalog: Any = commit_coord.load_catalog(f"c{tmp_path.name}".replace("_", "-"), **properties)
    catalog.create_namespace(namespace(tmp_path))
    yield catalog
    catalog.close()


@pytest.fixture
def table(catalog: Any, tmp_path: Path) -> CoordinatedTable:
    """A table with one row."""
    made: CoordinatedTable = catalog.create_table((namespace(tmp_path), "t"), SCHEMA)
    made.append(ids(1))
    return made


def namespace(tmp_path: Path) -> str:
    return "pickling_" + "".join(c for c in tmp_path.name if c.isalnum()).lower()


def elsewhere(work: Any, *arguments: Any) -> Any:
    """Return what *work* returns in a process that was not forked from this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["commit_coord"])
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)


def test_a_table_that_was_sent_to_another_process_appends_there(table: CoordinatedTable) -> None:
    elsewhere(CoordinatedTable.append, table, ids(2))
    table.append(ids(3))
    assert [1, 2, 3] == row_ids(table.refresh())


def test_a_table_that_was_sent_does_not_claim_the_locks_of_its_sender(
    properties: dict[str, str], catalog: Any, table: CoordinatedTable
) -> None:
    """It waits for them, as any other client does, and does not release them."""
    impatient = commit_coord.load_catalog(catalog.name, **properties, **{"lock.acquire-timeout-ms": "1500"})
    name = Resource.table(table.name())
    with impatient, catalog.lock_operation({name: X}, statement="sender"):
        with pytest.raises(LockTimeout) as timeout:
            elsewhere(CoordinatedTable.append, impatient.load_table(table.name()), ids(2))
        assert (str(os.getpid()), "sender") == (timeout.value.details["pid"], timeout.value.details["statement"])
        assert catalog.locks.holds(name, X)
    elsewhere(CoordinatedTable.append, table, ids(2))
    assert [1, 2] == row_ids(table.refresh())


def test_functions_that_refer_to_a_table_can_be_sent(table: CoordinatedTable) -> None:
    """As Spark, Ray and Dask send them."""
    cloudpickle: Any = import_module("pyspark.cloudpickle")

    rows = ids(2)
    elsewhere(_call, cloudpickle.dumps(lambda: table.append(rows)))
    assert [1, 2] == row_ids(table.refresh())


def _call(pickled: bytes) -> Any:
    return pickle.loads(pickled)()


def test_a_loaded_catalog_is_another_client_of_the_same_tables(catalog: Any, table: CoordinatedTable) -> None:
    loaded = pickle.loads(pickle.dumps(catalog))
    with loaded:
        loaded.load_table(table.name()).append(ids(2))
        assert (type(catalog), catalog.name, catalog.settings) == (type(loaded), loaded.name, loaded.settings)
    assert loaded.locks is not catalog.locks
    assert [1, 2] == row_ids(table.refresh())


def test_what_is_set_in_the_environment_travels_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process may have another one."""
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__LOCK__POLICY", "deny")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"coord+sqlite:///{tmp_path}/catalog.db")
    with commit_coord.load_catalog("shop") as catalog:
        pickled = pickle.dumps(catalog)
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__LOCK__POLICY", "wait")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__URI", f"coord+sqlite:///{tmp_path}/other.db")
    with pickle.loads(pickled) as loaded:
        assert ("deny", str(tmp_path / "catalog.db")) == (loaded.settings.lock_policy, loaded.engine.url.database)


def test_a_catalog_in_memory_says_that_it_can_not_be_sent() -> None:
    with (
        commit_coord.load_catalog("here", uri="sqlite://") as catalog,
        pytest.raises(TypeError, match="in the memory of this process"),
    ):
        pickle.dumps(catalog)


def test_a_deep_copy_of_a_table_commits_through_the_same_client(tmp_path: Path) -> None:
    with commit_coord.load_catalog("here", uri="sqlite://", warehouse=tmp_path.as_uri()) as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", SCHEMA)
        copied = copy.deepcopy(table)
        copied.append(ids(1))
        assert copied.catalog is copy.copy(catalog) is catalog
        assert ([], [1]) == (row_ids(table), row_ids(table.refresh()))


def test_leases_and_lock_managers_say_that_they_can_not_be_sent(catalog: Any, table: CoordinatedTable) -> None:
    with catalog.lock_operation({Resource.table(table.name()): X}) as lease:
        for one in (lease, catalog.locks):
            with pytest.raises(TypeError, match="can't be pickled or copied"):
                pickle.dumps(one)


def test_the_owner_of_a_lock_can_be_sent() -> None:
    owner = this_owner("a statement")
    assert owner == pickle.loads(pickle.dumps(owner)) == copy.deepcopy(owner)
