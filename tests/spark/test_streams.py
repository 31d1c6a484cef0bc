"""Streaming queries and appenders on one table of a metastore, locks in ZooKeeper: the small version."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import commit_coord
from commit_coord.demo import streams
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble


@pytest.mark.timeout(300)
def test_streams_that_break_and_appenders_land_once(
    spark: SparkSession, hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    properties = {
        "uri": f"coord+{hms.uri}",
        "warehouse": f"file://{tmp_path}/warehouse",
        "lock-impl": "zookeeper",
        "lock.uri": zookeeper.connect_string,
    }
    found = streams.run(
        spark, "streams", properties, "streams.small", tmp_path / "in", queries=2, appenders=2, batches=1
    )

    with contextlib.closing(commit_coord.load_catalog("streams", **properties)) as catalog:
        catalog.drop_table("streams.small")  # and its guard in the metastore, which other tests list
    assert () == found.broken
    assert (40, 4, 4, 2) == (found.rows, found.sources, found.snapshots, found.restarts)
