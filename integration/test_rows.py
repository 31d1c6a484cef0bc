"""The oracle of rows on real servers, with clients in processes of their own, and its tables read by other engines."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.testing.rows import far, kept, many
from commit_coord.testing.rows.run import ALONE

pytestmark = pytest.mark.timeout(1800)


def _findings(folder: Path, place: far.Place, seeds: range, *, apart: bool) -> tuple[int, str]:
    said: list[str] = []
    return far.run_programs(folder / "clients", seeds, place, apart=apart, say=said.append), "\n".join(said)


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
    findings, said = _findings(tmp_path, place, range(900, 906), apart=apart)

    assert not findings, said


def test_rows_are_right_with_clients_in_processes(tmp_path: Path) -> None:
    """Leases on SQLite; the same seeds with clients in one process are run by ``make rows``."""
    findings, said = _findings(tmp_path, far.sqlite(tmp_path), range(900, 908), apart=True)

    assert not findings, said


@pytest.mark.spark
def test_rows_are_right_with_a_client_on_spark() -> None:
    """``make rows ARGS=--spark``: DataFrames and streams, by the functions and the format, raced by other clients."""
    from commit_coord.testing.rows.spark_client import SparkRig

    with ExitStack() as stack:
        said: list[str] = []
        seeds = range(202611240000, 202611240000 + 20)
        done = many.run_many(
            seeds, 1, lambda one: said.append(f"{one.seed} {one.text}\n{one.program}"), SparkRig(stack)
        )

    assert all(kind.startswith(ALONE) for kind in done.kinds), "\n\n".join(said)
    assert min(done.counts[f"{kind} landed"] for kind in ("SparkWrite", "SparkSelect")) > 2
    assert min(done.counts[f"read by Spark's {way}"] for way in ("read_table", "row_filter", "filter", "format")) > 2


@pytest.mark.jvm
@pytest.mark.spark
def test_engines_agree_on_the_tables_that_programs_leave(tmp_path: Path) -> None:
    """PyIceberg, DuckDB, Iceberg's JVM reader and Spark."""
    said: list[str] = []
    made, findings = kept.run_and_keep(tmp_path / "kept", range(20271123, 20271123 + 30))

    assert not findings
    assert made > 20
    assert not kept.read_all(tmp_path / "kept", list(kept.ENGINES), said.append), "\n".join(said)
