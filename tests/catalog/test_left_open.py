"""What a client of each kind leaves open: after ``close`` nothing, and the same when nobody refers to it any more."""

from __future__ import annotations

import gc
import importlib
import os
import threading
import uuid
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.model import LockMode, Resource
from tests.processes import until

ROWS = pa.table({"id": [1]})


@pytest.fixture(params=["sqlite", "postgres", "sqlite-zookeeper", "hive", "hive-zookeeper", "hive-to-zookeeper"])
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a catalog, with one place for tables and locks after the other; in the end its tables and their guards go."""
    store, _, locks = request.param.partition("-")
    found = {"warehouse": tmp_path.joinpath("warehouse").as_uri(), "uri": f"coord+sqlite:///{tmp_path}/catalog.db"}
    if store == "postgres":
        found["uri"] = "coord+" + request.getfixturevalue("postgres_url")
    if store == "hive":
        found |= {"uri": f"coord+{request.getfixturevalue('hms').uri}", "lock-impl": "hms"}
    if locks:
        found["lock-impl"] = "hms-to-zookeeper" if locks == "to-zookeeper" else "zookeeper"
        found["lock.uri"] = request.getfixturevalue("zookeeper").connect_string
    yield found
    with closing(commit_coord.load_catalog("shop", **found)) as catalog:
        for table in catalog.list_tables("sockets"):
            catalog.drop_table(table)


def opened() -> set[str]:
    """Return the sockets and the database files that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the folder itself
        if target.startswith("socket:") or ".db" in target:
            found.add(target)
    return found


def threads_of_ours() -> set[threading.Thread]:
    """Return all threads but those in which PyIceberg reads files: they stay for the next table."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("ThreadPoolExecutor")}


def kept_by_guards(properties: dict[str, str]) -> bool:
    """Return whether a catalog of *properties* has tables guarded for as long as the process lives."""
    return properties["uri"].startswith("coord+thrift:") and properties["lock-impl"] == "zookeeper"


def used(properties: dict[str, str]) -> CoordinatedCatalog:
    """Return a catalog that was used from two threads: tables, commits, locks, listings."""
    name = f"t{uuid.uuid4().hex}"
    catalog = commit_coord.load_catalog("shop", **properties)
    catalog.create_namespace_if_not_exists("sockets")
    table = catalog.create_table(f"sockets.{name}", schema=ROWS.schema)
    table.append(ROWS)

    def elsewhere() -> None:
        catalog.load_table(f"sockets.{name}").append(ROWS)
        with catalog.lock_operation({Resource(("sockets", name)): LockMode.SHARED}):
            catalog.show_locks()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(elsewhere).result()
    return catalog


@pytest.fixture
def before() -> Iterator[set[str]]:
    """What is open before, while nothing is collected by chance."""
    gc.collect()
    gc.freeze()  # Each collection of the test looks at what the test made, and not at all that pytest holds.
    gc.disable()
    try:
        yield opened()
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_closed_catalog_leaves_nothing_open(properties: dict[str, str], before: set[str]) -> None:
    threads = threads_of_ours()
    catalog = used(properties)
    assert opened() - before  # of before, what another test left may close meanwhile
    catalog.close()
    assert opened() <= before
    assert threads_of_ours() <= threads


def test_a_lock_manager_that_fails_to_close_leaves_nothing_else_open(
    properties: dict[str, str], before: set[str]
) -> None:
    catalog = used(properties)
    gone = OSError("the lock service is gone")
    with patch.object(catalog.locks, "close", side_effect=gone), pytest.raises(OSError, match="is gone"):
        catalog.close()
    of_locks = opened() - before
    catalog.locks.close()
    assert opened() <= before, of_locks


def test_a_catalog_that_nobody_closed_is_closed_when_it_is_collected(
    properties: dict[str, str], before: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one that guards tables: the guards keep out writers that know only the metastore's lock."""
    # The heartbeat thread refers to the client until it has removed the parents that nobody uses.
    # By its module: a test that imports the package anew leaves it without the attribute.
    monkeypatch.setattr(importlib.import_module("commit_coord.locks.zookeeper.service"), "_UNUSED", 1.0)
    threads = threads_of_ours()
    kept = weakref.ref(used(properties))
    if kept_by_guards(properties):
        gc.collect()
        catalog = kept()
        assert catalog is not None
        catalog.close()
        del catalog

    def collected() -> bool:
        gc.collect()
        return opened() <= before and threads_of_ours() <= threads

    until(collected, "the end of what it had open")
