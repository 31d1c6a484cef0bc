"""Sizes beyond what most people have: nothing breaks, nothing is lost, and what is counted stays in proportion."""

from __future__ import annotations

import resource
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyiceberg.manifest import write_manifest_list

from commit_coord.iceberg import manifest_list
from commit_coord.model import LockState
from commit_coord.testing.contract import Service, latch, soon
from tests.catalog.kit import SCHEMA, Kit, coordinated, ids, kit, local, row_ids
from tests.catalog.test_overwritten import put
from tests.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def made() -> Iterator[Kit]:
    with kit("lease") as made:
        yield made


def long_history(made: Kit, table: Any, snapshots: int, padding: int) -> Path:
    """Give *table* a metadata file with so many snapshots; return it."""
    path = Path(local(table.metadata_location))
    document = orjson.loads(path.read_bytes())
    (one,) = document["snapshots"]
    (logged,) = document["snapshot-log"]
    summary = {**one["summary"], "padding": "x" * padding}
    last = one["snapshot-id"]
    document["snapshots"] = [
        {
            **one,
            "snapshot-id": number if number < snapshots else last,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
            "sequence-number": number,
            "summary": {**summary, "commit-coord.request-id": str(uuid.UUID(int=number))},
        }
        for number in range(1, snapshots + 1)
    ]
    document["snapshot-log"] = [
        {**logged, "snapshot-id": snapshot["snapshot-id"]} for snapshot in document["snapshots"]
    ]
    document["last-sequence-number"] = snapshots
    document["metadata-log"].append(
        {"metadata-file": table.metadata_location, "timestamp-ms": document["last-updated-ms"]}
    )
    made_path = path.with_name(f"00002-{uuid.uuid4()}.metadata.json")
    made_path.write_bytes(orjson.dumps(document))
    put(made, table, f"file://{made_path}")
    return made_path


def test_a_table_with_20_000_snapshots_and_a_metadata_file_of_50_mb(made: Kit) -> None:
    table = made.table(ids(1))
    assert long_history(made, table, 20_000, 2_200).stat().st_size > 50_000_000
    one, other = made.again(table), made.again(table)
    one.append(ids(2))
    other.append(ids(3))
    assert one.find_commit(str(uuid.UUID(int=5))) is not None
    found = made.again(table)
    assert len(found.metadata.snapshots) == 20_002
    assert row_ids(found) == [1, 2, 3]
    found.maintenance.expire_snapshots().by_ids(list(range(1, 19_990))).commit()
    table = made.again(table)
    assert len(table.metadata.snapshots) == 20_002 - 19_989
    assert row_ids(table) == [1, 2, 3]
    assert made.catalog.find_lost(table.name()).commits == ()
    assert coordinated(made.catalog).find_orphans(table.name()).files == ()
    made.check()


def test_a_manifest_list_of_10_000_entries(made: Kit) -> None:
    table = made.table(ids(1))
    snapshot = table.current_snapshot()
    (entry,) = manifest_list.read(table.io, snapshot.manifest_list)
    Path(local(snapshot.manifest_list)).unlink()
    with write_manifest_list(
        2, table.io.new_output(snapshot.manifest_list), snapshot.snapshot_id, None, 1, "deflate"
    ) as writer:
        writer.add_manifests([entry] * 10_000)
    for number in range(3):
        made.again(table).append(ids(number))
    listed = manifest_list.read(table.io, made.again(table).current_snapshot().manifest_list)
    assert len(listed) == 10_003
    assert [one.added_snapshot_id for one in listed].count(snapshot.snapshot_id) == 10_000


def test_5_000_tables_of_one_catalog(made: Kit) -> None:
    """A table costs a row in the lock database for its queue, and one for its note once it was written to."""
    catalog, count = coordinated(made.catalog), 5_000
    identifiers = [made.identifier() for _ in range(count)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, identifier in enumerate(identifiers):
        table = catalog.create_table(identifier, SCHEMA)
        if number % 50 == 0:
            table.append(ids(number))
    assert len(catalog.list_tables(made.namespace)) == count
    table = catalog.load_table(identifiers[-1])
    table.append(ids(7))
    assert row_ids(catalog.load_table(identifiers[-1])) == [7]
    assert coordinated(made.catalog).find_orphans(identifiers[0]).files == ()
    with sqlite3.connect(made.folder / "catalog.db") as db:
        counts = {
            name: db.execute(f"SELECT count(*) FROM commit_coord_{name}").fetchone()[0]
            for name in ("places", "notes", "requests", "locks", "journal")
        }
    db.close()
    assert counts == {"places": count, "notes": count // 50 + 1, "requests": 0, "locks": 0, "journal": 0}
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < 500


@pytest.mark.parametrize(
    "manager, count",
    [
        ("memory", 1_000),
        # Every waiter on SQLite looks for itself, ten times a second: some hundreds keep two busy cores busy.
        ("lease", 300),
        pytest.param("zookeeper", 1_000, marks=pytest.mark.zookeeper),
    ],
)
def test_a_thousand_requests_wait_for_one_latch(
    request: pytest.FixtureRequest, tmp_path: Path, manager: str, count: int
) -> None:
    uri = {"lease": f"sqlite:///{tmp_path}/locks.db"}.get(manager, "")
    if manager == "zookeeper":
        uri = request.getfixturevalue("zookeeper").connect_string
    with Service(manager, uri, opens_sessions=manager == "zookeeper") as service:
        clients = [service.open(lease_ms=120_000, heartbeat_interval_ms=20_000) for _ in range(4)]
        threads = threading.active_count()
        held = clients[0].acquire(latch(), deadline=soon())
        granted: list[int] = []

        def wait(number: int) -> None:
            with clients[number % 4].acquire(latch(), deadline=soon(600)):
                granted.append(number)

        waiting = [threading.Thread(target=wait, args=(number,)) for number in range(count)]
        for thread in waiting:
            thread.start()
        until(lambda: len(clients[0].locks()) == count + 1, "all in the queue", seconds=300)
        states = [entry.state for entry in clients[1].locks()]
        assert (states.count(LockState.ACQUIRED), states.count(LockState.WAITING)) == (1, count)
        held.release()
        for thread in waiting:
            thread.join(600)
        assert sorted(granted) == list(range(count))
        assert all(client.locks() == [] for client in clients)
        until(lambda: threading.active_count() <= threads + 8, "the end of their threads")
