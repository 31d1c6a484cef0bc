"""The oracle of rows on real servers, with clients in processes of their own, and its tables read by other engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from integration.row_programs import apart, on_spark, read_by_all
from tests.proof.rows import far
from tests.proof.rows.findings import ALONE

pytestmark = pytest.mark.timeout(1800)


def _findings(folder: Path, place: far.Place, seeds: range, *, apart: bool) -> tuple[int, str]:
    reports: list[str] = []
    return far.run_programs(folder / "clients", seeds, place, apart=apart, say=reports.append), "\n".join(reports)


@pytest.mark.hms
@pytest.mark.parametrize("locks", ["hms", "zookeeper"])
@pytest.mark.parametrize("apart", [False, True], ids=["one process", "a process each"])
def test_rows_are_right_on_a_metastore(tmp_path: Path, locks: str, apart: bool, request: pytest.FixtureRequest) -> None:
    metastore = HiveMetastore(tmp_path / "hms")  # of its own: the programs' namespace has one name
    request.addfinalizer(metastore.close)
    metastore.start()
    ensemble = ""
    if locks == "zookeeper":
        keepers: ZooKeeperEnsemble = request.getfixturevalue("zookeeper")
        ensemble = keepers.connect_string
    place = far.hive(metastore.uri, tmp_path, locks, ensemble)
    findings, reports = _findings(tmp_path, place, range(900, 906), apart=apart)

    assert not findings, reports


def test_rows_are_right_with_clients_in_processes(tmp_path: Path) -> None:
    """Leases on SQLite; the same seeds with clients in one process are run by ``make rows``."""
    findings, reports = _findings(tmp_path, far.sqlite(tmp_path), range(900, 908), apart=True)

    assert not findings, reports


@pytest.mark.spark
def test_rows_are_right_with_a_client_on_spark() -> None:
    """``make rows ARGS=--spark``: DataFrames and streams, by the functions and the format, raced by other clients."""
    kinds, counts, reports = apart(on_spark, range(202611240000, 202611240000 + 20))

    assert all(kind.startswith(ALONE) for kind in kinds), "\n\n".join(reports)
    assert min(counts[f"{kind} landed"] for kind in ("SparkWrite", "SparkSelect")) > 2
    assert min(counts[f"read by Spark's {way}"] for way in ("read_table", "row_filter", "filter", "format")) > 2


@pytest.mark.jvm
@pytest.mark.spark
def test_engines_agree_on_the_tables_that_programs_leave(tmp_path: Path) -> None:
    """PyIceberg, DuckDB, Iceberg's JVM reader and Spark."""
    made, findings, differences = apart(read_by_all, tmp_path / "kept", range(20271123, 20271123 + 30))

    assert not findings
    assert made > 20
    assert not differences, "\n".join(differences)
