"""What the lock service knows, from a notebook."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession

import commit_coord
from commit_coord import LeaseObject, sql
from commit_coord.model import LockMode, Resource
from commit_coord.spark import register, write_table
from tests.spark.conftest import rows


def test_locks_are_rows(spark: SparkSession, catalog: Any, properties: dict[str, str]) -> None:
    """Who holds, who waits for whom, since when; joined and filtered like any DataFrame."""
    write_table(spark.range(1), (catalog, "db.t"), create=True)
    write_table(spark.range(1), (catalog, "db.u"), create=True)
    register(spark)
    options = {"catalog": "test", **{f"catalog.{key}": value for key, value in properties.items()}}
    reader = spark.read.format("commit_coord.locks").options(**options)
    assert [] == rows(reader.load())
    sql.run("LOCK TABLE u SHARED", catalog, database="db")
    part = Resource.table(("db", "t"), "id=1")
    other = commit_coord.load_catalog("test", **properties | {"lock.acquire-timeout-ms": "600000"})
    with catalog.lock_operation({part: LockMode.EXCLUSIVE}, statement="a nightly job"):
        waits = threading.Thread(target=lambda: other.lock_operation({part: LockMode.SHARED}).release())
        waits.start()
        while len(catalog.locks.locks()) < 5:
            pass
        found = reader.load()
        assert {"db/t": 2, "db/t/id=1": 2, "db/u": 1} == {
            row["resource"]: row["count"] for row in found.groupBy("resource").count().collect()
        }
        below = spark.read.format("commit_coord.locks").options(**options).load("db/t")
        assert 4 == below.count()
        (holder,) = below.filter("mode = 'EXCLUSIVE'").collect()
        (waiter,) = below.filter("state = 'WAITING' and `partition` is not null").collect()
        assert ("db", "t", "id=1", "ACQUIRED", "a nightly job", False) == (
            holder.db, holder.table, holder.partition, holder.state, holder.statement, holder.explicit
        )  # fmt: skip
        assert (holder.request_id, "SHARED", None) == (waiter.blocked_by, waiter.mode, holder.blocked_by)
        (entry,) = [e for e in catalog.locks.locks() if e.request_id == holder.request_id and e.resource == part]
        assert entry.requested_at_ms == round(holder.since.timestamp() * 1000)
        assert 0 < holder.expires_in_ms <= catalog.settings.lock_heartbeat_timeout_ms
    waits.join()
    other.close()
    assert [("db/u", True)] == rows(reader.load().select("resource", "explicit"))
    sql.run("UNLOCK TABLE u", catalog, database="db")


def test_leases_are_rows(spark: SparkSession, catalog: Any, properties: dict[str, str]) -> None:
    """One for each object of a lease, on a resource and below it, with times by the database's clock."""
    register(spark)
    options = {"catalog": "test", **{f"catalog.{key}": value for key, value in properties.items()}}
    day, raw = LeaseObject("db", "t", "day=2026-01-01"), LeaseObject("db", "raw", lease_type="s")
    lease_id = catalog.leases.grab_lease([day, raw], 3600, 1)
    reader = spark.read.format("commit_coord.leases").options(**options)
    found = reader.load()
    assert [("db", "raw", None, "s"), ("db", "t", "day=2026-01-01", "x")] == rows(
        found.select("db", "table", "partition", "lease_type")
    )
    (row,) = reader.load("db/t").collect()
    assert (lease_id, 3600) == (row.lease_id, round((row.end_utc - row.start_utc).total_seconds()))
    catalog.leases.drop_lease(lease_id)
    assert [] == rows(reader.load()), "a DataFrame keeps what it was planned with"


def test_what_can_not_be_listed_is_reported(spark: SparkSession, catalog: Any, properties: dict[str, str]) -> None:
    register(spark)
    options = {"catalog": "test", **{f"catalog.{key}": value for key, value in properties.items()}}
    with pytest.raises(Exception, match=r"unknown option.*colour"):
        spark.read.format("commit_coord.locks").options(**options, colour="red").load()
    memory = {"catalog": "mine", "catalog.uri": "sqlite:///:memory:", "catalog.warehouse": "file:///nowhere"}
    with pytest.raises(Exception, match="only its own process sees the locks"):
        spark.read.format("commit_coord.locks").options(**memory).load().collect()
    with pytest.raises(Exception, match="no level of a resource name may be empty"):
        spark.read.format("commit_coord.locks").options(**options).load("db//t").collect()
