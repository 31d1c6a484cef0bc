"""Appends of many clients on the metastore's own locks: one swap publishes all that wait."""

from __future__ import annotations

import multiprocessing
import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.events import CommitEnded
from commit_coord.local import HiveMetastore
from commit_coord.locks.memory_space import SPACES
from tests.catalog.kit import SCHEMA, ids, row_ids
from tests.hive.test_catalog import calls, opened

pytestmark = pytest.mark.hms

WRITERS = 16
APPENDS = 5


@pytest.fixture
def table(hms: HiveMetastore) -> Iterator[tuple[str, str]]:
    """The name of a table that is empty."""
    name = f"db{uuid.uuid4().hex}", "t"
    with opened(hms.uri) as catalog:
        catalog.create_namespace(name[0])
        catalog.create_table(name, SCHEMA)
        yield name


def apart(hms: HiveMetastore, **properties: str) -> CoordinatedHiveCatalog:
    """Return a catalog whose threads share no queue with those of other catalogs, as in a process of its own."""
    catalog = opened(hms.uri, **properties)
    for key in [key for key in SPACES if key[0].startswith("hms ")]:
        del SPACES[key]
    return catalog


def all_at_once(catalogs: Sequence[Any], table: tuple[str, str], appends: int) -> list[BaseException]:
    """Append with every catalog in a thread of its own; return what failed."""
    failed: list[BaseException] = []
    begin = threading.Barrier(len(catalogs))

    def work(number: int) -> None:
        try:
            own = catalogs[number].load_table(table)
            begin.wait()
            for turn in range(appends):
                own.append(ids(number * 1000 + turn))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(catalogs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def expected(writers: int, appends: int) -> list[int]:
    """Return the rows of :func:`all_at_once`."""
    return sorted(number * 1000 + turn for number in range(writers) for turn in range(appends))


def files_of_offers(catalog: CoordinatedHiveCatalog, table: tuple[str, str]) -> list[str]:
    """Return the files of offers that are left in the folder of the table's metadata."""
    from pathlib import Path
    from urllib.parse import urlparse

    folder = Path(urlparse(catalog.load_table(table).metadata_location).path).parent
    return [path.name for path in folder.iterdir() if path.suffix == ".taken" or ".offer." in path.name]


def crowd(hms: HiveMetastore, table: tuple[str, str], writers: int, appends: int) -> list[dict[str, Any]]:
    """Return what processes say that append at once: their calls of the metastore, and whom each commit carried."""
    context = multiprocessing.get_context("fork")
    begin, said = context.Barrier(writers), context.SimpleQueue()

    def work(number: int) -> None:
        catalog, groups = opened(hms.uri), list[int]()
        catalog.events.subscribe(lambda event: groups.append(event.carried) if type(event) is CommitEnded else None)
        own = catalog.load_table(table)
        own.append(ids(-1 - number))  # the first one finds out what the server can do
        begin.wait()
        before = Counter(calls(catalog))
        groups.clear()
        for turn in range(appends):
            own.append(ids(number * 1000 + turn))
        said.put({"calls": Counter(calls(catalog)) - before, "groups": groups})
        catalog.close()
        os._exit(0)

    processes = [context.Process(target=work, args=(number,), daemon=True) for number in range(writers)]
    for process in processes:
        process.start()
    found = [said.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def test_an_append_of_a_crowd_costs_the_metastore_at_most_four_calls(
    hms: HiveMetastore, table: tuple[str, str]
) -> None:
    """Each writer asks for its lock and gives it back; what else there is to ask, the holder asks for all of them."""
    found = crowd(hms, table, WRITERS, APPENDS)
    sent = sum((each["calls"] for each in found), Counter[str]())
    groups = [size for each in found for size in each["groups"]]
    with apart(hms) as catalog:
        assert {*expected(WRITERS, APPENDS)} <= {*row_ids(catalog.load_table(table))}
        assert [] == list(catalog.locks.locks())
        assert [] == files_of_offers(catalog, table)
    print(sent, sum(sent.values()) / (WRITERS * APPENDS), groups)
    assert sum(sent.values()) <= 4 * WRITERS * APPENDS, sent
