"""Many writers on one table of a metastore, locks in ZooKeeper; and Java reads what came of it.

``COMMITS=10000 make integration ARGS="-k java_reads"`` has them make so many commits instead of a few hundred.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from commit_coord.demo import streams
from commit_coord.testing.hammer import hammer
from integration.conftest import Java, Metastore, Servers

WRITERS = 16
COMMITS = int(os.environ.get("COMMITS", "320")) // WRITERS * WRITERS
"""As many by each of them."""


@pytest.fixture(scope="module")
def baseline(servers: Servers) -> Metastore:
    """The metastore that PySpark carries."""
    made: Metastore = servers.metastore()
    return made


def coordinated(metastore: Metastore, ensemble: Any, folder: Path) -> dict[str, str]:
    return {
        "uri": f"coord+{metastore.uri}",
        "warehouse": f"file://{folder}/warehouse",
        "lock-impl": "zookeeper",
        "lock.uri": ensemble.connect_string,
    }


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("coalesce", [False, True], ids=["a snapshot each", "shared snapshots"])
def test_java_reads_every_hundredth_snapshot(
    baseline: Metastore, ensemble: Any, java: Java, tmp_path: Path, coalesce: bool
) -> None:
    """Its history, its snapshots, and the rows of each moment that it travels to."""
    properties = coordinated(baseline, ensemble, tmp_path)
    report = hammer(
        tmp_path, writers=WRITERS, appends=COMMITS // WRITERS, properties=properties, coalesce=coalesce, timeout_s=3000
    )
    assert () == report.broken
    name = f"{java.catalog(baseline)}.hammer.t"
    snapshots = java.sql(f"SELECT snapshot_id, summary['total-records'] FROM {name}.snapshots ORDER BY committed_at")
    history = java.sql(f"SELECT snapshot_id, is_current_ancestor FROM {name}.history")
    assert report.snapshots == len(snapshots) == len(history)
    assert all(ancestor for _, ancestor in history)
    assert [(COMMITS * 10, COMMITS)] == java.sql(f"SELECT count(*), count(DISTINCT mark) FROM {name}")
    assert [(COMMITS,)] == java.sql(f"SELECT count(DISTINCT file_path) FROM {name}.files")
    for snapshot_id, total in snapshots[::100]:
        assert [(int(total),)] == java.sql(f"SELECT count(*) FROM {name} VERSION AS OF {snapshot_id}")
    java.sql(f"DROP TABLE {name}")


@pytest.mark.timeout(1800)
def test_sixteen_streams_and_sixteen_appenders_land_once(
    baseline: Metastore, ensemble: Any, java: Java, tmp_path: Path
) -> None:
    """Each query is broken once between a commit and Spark's note of it."""
    found = streams.run(
        java.spark,
        "streams",
        coordinated(baseline, ensemble, tmp_path),
        "streams.many",
        tmp_path / "in",
        queries=16,
        appenders=16,
        batches=3,
    )
    assert () == found.broken
    assert (32 * 3 * 10, 32, 32 * 3, 16) == (found.rows, found.sources, found.snapshots, found.restarts)
