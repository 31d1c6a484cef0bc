"""A metastore that ignores conditions, and a holder that is paused for longer than its lease."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commit_coord
from commit_coord.events import CommitOverwritten
from commit_coord.hms.probe import CompareAndSet
from commit_coord.local import HiveMetastore, NotInstalled, PostgresServer
from commit_coord.model import Resource
from tests.catalog.kit import SCHEMA, ids, row_ids
from tests.processes import Process

pytestmark = [pytest.mark.hms, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture(scope="module")
def ignoring(postgres: PostgresServer) -> Iterator[HiveMetastore]:
    """A metastore 3.1.3, which ignores conditions."""
    try:
        metastore = HiveMetastore(None, "3.1.3", postgres=postgres)
        metastore.start()
    except NotInstalled as missing:
        pytest.skip(str(missing))
    try:
        yield metastore
    finally:
        metastore.close()


PAUSED = """
import os
import pyarrow as pa
alter = main.metastore.alter_table
def paused(db, table, *arguments, **more):
    if table != "t":
        return alter(db, table, *arguments, **more)  # the probe's
    main.metastore.alter_table = alter
    say("about to alter")
    os.kill(os.getpid(), signal.SIGSTOP)
    return alter(db, table, *arguments, **more)
table = main.load_table(tuple(properties["test.table"].split(".")))
main.metastore.alter_table = paused
table.append(pa.table({"id": [2], "s": ["2"]}))
say("acknowledged")
hang()
"""

WRITER = """
import pyarrow as pa
table = main.load_table(tuple(properties["test.table"].split(".")))
for number in (3, 4):
    table.append(pa.table({"id": [number], "s": [str(number)]}))
say("acknowledged")
hang()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("impl", ["lease", "hms"])
def test_what_a_paused_holder_overwrote_is_found_by_the_next_commit_and_comes_back(
    ignoring: HiveMetastore, impl: str, tmp_path: Path
) -> None:
    """Both were acknowledged; what no client could prevent is mended.

    1. A has asked whether its locks are its own, and stops before it sends its alter.   2. Its locks run out.
    3. B commits twice.   4. A goes on: its alter carries no condition that the server heeds.

    With `lease` the next commit of a client that knew nothing finds out. `hms` carries no notes: there one that had
    loaded the table finds out, and says what to repair from.
    """
    db = f"db{uuid.uuid4().hex[:8]}"
    properties = {
        "uri": f"coord+{ignoring.uri}",
        "warehouse": tmp_path.joinpath("warehouse").as_uri(),
        "lock-impl": impl,
        "lock.heartbeat-timeout-ms": "3000",
        "lock.heartbeat-interval-ms": "1000",
        **({"lock.uri": f"sqlite:///{tmp_path}/locks.db"} if impl == "lease" else {}),
    }
    catalog: Any = commit_coord.load_catalog("shop", **properties)
    assert catalog.capabilities().compare_and_set is CompareAndSet.IGNORED
    catalog.create_namespace(db)
    catalog.create_table((db, "t"), SCHEMA).append(ids(1))
    told = {**properties, "test.table": f"{db}.t"}
    knew: Any = commit_coord.load_catalog("shop", **properties)
    with Process(told, PAUSED) as paused:
        paused.heard("about to alter")
        with Process(told, WRITER) as writer:
            writer.heard("acknowledged")
        lost = knew.load_table((db, "t"))
        assert row_ids(lost) == [1, 3, 4]
        paused.signal(signal.SIGCONT).heard("acknowledged")
    assert row_ids(catalog.load_table((db, "t"))) == [1, 2]

    client = catalog if impl == "lease" else knew
    seen: list[CommitOverwritten] = []
    client.events.subscribe(lambda event: seen.append(event) if isinstance(event, CommitOverwritten) else None)
    client.load_table((db, "t")).append(ids(5))
    (found,) = seen
    assert (found.location, len(found.lost)) == (lost.metadata_location, 2)
    if impl == "lease":
        assert found.request_id == lost.current_snapshot().summary["commit-coord.request-id"]
        assert f"pid {writer.pid} " in found.by
    known = client.find_lost((db, "t"), since=[] if impl == "lease" else [found.location])
    assert [(one.operation, one.rows, one.restorable) for one in known.commits] == [("append", 1, True)] * 2
    for _ in range(2):
        client.repair(known)
        assert row_ids(client.load_table((db, "t"))) == [1, 2, 3, 4, 5]
    catalog.load_table((db, "t")).append(ids(6))
    assert len(seen) == 1
    for one in (catalog, knew):
        assert one.show_locks(Resource((db,))) == []
        one.close()
