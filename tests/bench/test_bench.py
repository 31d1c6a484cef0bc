"""The bench measures what it says: counts and proofs, never times."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from commit_coord import bench
from commit_coord.bench import (
    against,
    cells,
    commits,
    counting,
    groups,
    hive,
    jvm,
    large,
    locking,
    machine,
    plots,
    report,
    tables,
)
from commit_coord.bench.fleet import WarmWorkers, Worker
from commit_coord.errors import ConfigError
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.local.maven import maven_jar
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import Resource
from commit_coord.testing.fleet import WriterFailed


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tables.History:
    """A history of three snapshots."""
    return tables.make_histories(tmp_path_factory.mktemp("history"), [1, 3])[3]


@pytest.mark.parametrize("kind", tables.KINDS)
def test_placed_table_has_the_history_and_grows(kind: tables.Kind, history: tables.History, tmp_path: Path) -> None:
    """Two tables placed from one history are read in full, and an append to one leaves the other alone."""
    catalog = tables.open_catalog(kind, tmp_path)
    for name in ("a", "b"):
        history.place(catalog, tmp_path / "tables", name)
    catalog.load_table((tables.NAMESPACE, "a")).append(tables.ROWS)

    assert (4, 4, 40) == _counts(tables.inspect(catalog, "a"))
    assert (3, 3, 30) == _counts(tables.inspect(catalog, "b"))
    assert 40 == catalog.load_table((tables.NAMESPACE, "a")).scan().to_arrow().num_rows
    assert 0 == tables.locks_left(catalog)
    catalog.close()


def _counts(finding: tables.Finding) -> tuple[int, int, int]:
    return finding.snapshots, finding.chain, finding.rows


def _snapshot(number: int, parent: int | None, sequence: int) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        "parent-snapshot-id": parent,
        "sequence-number": sequence,
        "summary": {"total-records": "10"},
    }


@pytest.mark.parametrize(
    "snapshots",
    [
        [_snapshot(1, None, 1), _snapshot(2, 1, 2), _snapshot(3, 1, 3)],
        [_snapshot(1, None, 1), _snapshot(2, 1, 3), _snapshot(3, 2, 4)],
    ],
    ids=["two children of one parent", "a sequence number is missing"],
)
def test_broken_chain_is_noticed(snapshots: list[dict[str, Any]]) -> None:
    """A snapshot outside of the chain, and a gap in it, are no unbroken chain."""
    assert not tables.look({"current-snapshot-id": 3, "snapshots": snapshots}).unbroken


def test_cell_counts_what_was_acknowledged(history: tables.History, tmp_path: Path) -> None:
    """As many snapshots as acknowledgements, by two processes on one table."""
    cell = commits.measure(tmp_path / "cell", history, "commit_coord", "one table", 2, 0.5)

    assert cell["proved"]
    assert cell["acknowledged"] == cell["snapshots_added"]
    assert 2 <= cell["least_by_one_writer"] + cell["most_by_one_writer"] == cell["acknowledged"]
    assert 0 == cell["failed"]


def test_missing_data_file_is_noticed(history: tables.History, tmp_path: Path) -> None:
    """The rows that a summary counts may be gone from the disk."""
    catalog = tables.open_catalog("pyiceberg", tmp_path)
    history.place(catalog, tmp_path / "tables", "t")
    table = catalog.load_table((tables.NAMESPACE, "t"))
    table.append(tables.ROWS)
    before = tables.missing_files(catalog, "t")
    (data,) = (tmp_path / "tables" / "t" / "data").glob("*.parquet")
    data.unlink()

    assert (0, 1) == (before, tables.missing_files(catalog, "t"))
    catalog.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hive_suite_proves_and_shows_every_catalog(
    hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path: Path
) -> None:
    """Ours and PyIceberg's on one metastore: each acknowledgement is a snapshot, and all are in table and picture."""
    with (
        create_lock_manager("hms", hms.uri) as first,
        create_lock_manager("zookeeper", zookeeper.connect_string) as other,
    ):
        found = hive.compare(
            tmp_path,
            hive.contenders(hms, zookeeper, None),
            seconds=0.5,
            writers=[1],
            snapshots=3,
            locks=(first, other),
            say=print,
        )
        for guard in first.locks(Resource((tables.NAMESPACE,))):  # The metastore is everybody's.
            first.unlock(request_id=guard.request_id)
    ours = [cell for cell in found["cells"] if cell["kind"] in hive.OURS]

    assert [*hive.OURS, *hive.PYICEBERG] == [cell["kind"] for cell in found["cells"]]
    assert all(cell["proved"] for cell in found["cells"])
    assert all(cell["acknowledged"] and not cell["failed"] and cell["attempts_each"] <= 1 for cell in ours)
    assert 0 == found["bars"]["failed commits of ours (0)"]
    _shown(tmp_path, "hive", {**found, "missing": list(hive.JAVA)})
    assert "NOT measured: java, lock, java" in (tmp_path / "results.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_groups_suite_proves_and_shows_both_ways(tmp_path: Path) -> None:
    """Several appends a swap where writers wait and one where they may not, among the others; a quick run."""
    code = bench.main(["--only", "groups,steady", "--quick", "--results", str(tmp_path), "--folder", str(tmp_path)])
    found = report.load(tmp_path)

    assert 0 == code
    measured = found["groups"]["cells"]
    assert {groups.HIVE, groups.SQLITE} == {cell["where"] for cell in measured}
    assert all(1 == cell["attempts_per_swap"] for cell in measured if cell["kind"] == groups.SINGLE)
    assert any(1 < cell["attempts_per_swap"] for cell in measured if cell["kind"] == groups.QUEUE)
    assert 100 >= found["steady"]["bars"]["5: most manifests (at most 100)"]
    assert (tmp_path / "groups.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_migration_suite_counts_what_each_phase_asks_of_the_metastore(tmp_path: Path) -> None:
    """In phase zookeeper nobody asks it for a lock; a quick run."""
    code = bench.main(["--only", "migration", "--quick", "--results", str(tmp_path), "--folder", str(tmp_path)])
    found = report.load(tmp_path)["migration"]
    asked = {(cell["kind"], cell["writers"]): cell for cell in found["cells"]}

    assert 0 == code
    assert 0 == found["bars"]["5: calls of lock, check_lock and unlock in phase zookeeper (0)"]
    for count in (1, 4):
        assert asked["hms", count]["requests"]["lock"] > 0 < asked["both", count]["lock_statements_per_second"]
        assert asked["zookeeper", count]["requests"]["alter_table_with_environment_context"] > 0
    assert ["hms", "both", "zookeeper"] == [cell["kind"] for cell in found["idle"]]
    assert (tmp_path / "migration.png").stat().st_size > 1000


def test_a_large_table_is_one_that_every_reader_reads(tmp_path: Path) -> None:
    """As many files, manifests and partitions as were asked for; the rows of the partition whose files exist."""
    shape = large.Shape(manifests=3, files_each=4, columns=5)
    made = large.make_history(tmp_path / "made", shape)
    catalog = tables.open_catalog("pyiceberg", tmp_path)
    made.place(catalog, tmp_path / "tables", "t")
    table = catalog.load_table((tables.NAMESPACE, "t"))
    files = [task.file for task in table.scan().plan_files()]

    assert "24 files in 3 manifests, 6 partitions, 5 columns" == str(shape)
    assert 24 == len({file.file_path for file in files})
    assert 6 == len({file.partition[0] for file in files})
    assert all({1, 2, 3, 4, 5} == set(file.lower_bounds) for file in files)
    assert 3 == table.inspect.manifests().num_rows
    assert 4 == len(list(table.scan("part = 5").plan_files()))
    assert 40 == table.scan("part = 0").to_arrow().num_rows
    assert [] == list(table.scan("part = 0 and id > 9").plan_files())
    catalog.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_large_suite_shows_what_grows_with_the_table(tmp_path: Path) -> None:
    """All libraries see the same files; what an append and the plan of a partition read grows with no table."""
    code = bench.main(["--only", "large", "--quick", "--results", str(tmp_path), "--folder", str(tmp_path)])
    found = report.load(tmp_path)["large"]
    rows = {(row["operation"], row["kind"]): row for row in found["cases"][0]["rows"]}
    counts = {operation: row["files"] for (operation, kind), row in rows.items() if kind == "commit_coord"}

    assert 0 == code
    assert {
        "append": [201, 2_001],
        "overwrite": [151, 1_951],
        "plan_partition": [50, 50],
        "plan": [200, 2_000],
        "compact": [151, 1_951],
        "append_files": [1_200, 3_000],
    } == counts
    for operation in ("append", "plan_partition"):
        assert 1.5 > rows[operation, "commit_coord"]["grows"]["read_kib"]
    assert {"commit_coord", "pyiceberg"} <= {kind for _, kind in rows}
    assert "Large tables" in (tmp_path / "results.md").read_text()


def test_libraries_that_disagree_on_the_files_are_noticed() -> None:
    rows = [{"operation": "append", "kind": kind, "files": [1, files]} for kind, files in (("a", 2), ("b", 3))]
    found = {"cases": [{"name": "files", "rows": rows}]}
    assert ["large: files, append: {'a': [1, 2], 'b': [1, 3]}"] == large.disagreements(found)


@pytest.mark.slow
def test_a_fleet_serves_many_runs(history: tables.History, tmp_path: Path) -> None:
    """Its processes are started once; one of them may be many writers, and two tables may share them."""
    with WarmWorkers("append_on_request", 2) as fleet:
        for number, (writers, threads, count) in enumerate([(2, 1, 1), (4, 4, 2)]):
            catalog = tables.sql_properties("commit_coord", tmp_path)
            contender = cells.Contender(kind="ours", catalog=catalog)
            cell = cells.measure(
                tmp_path / f"{number}",
                history,
                contender,
                "some tables",
                writers,
                0.2,
                prefix=f"c{number}_",
                tables=count,
                threads=threads,
                fleet=fleet,
            )

            assert cell["proved"]
            assert writers <= cell["acknowledged"]


def _shown(folder: Path, suite: str, found: dict[str, Any]) -> None:
    results = {suite: {**found, "command": "c", "machine": {"cores": 2}}}
    report.save(folder, results)
    (drawn,) = plots.draw(folder, results)
    assert drawn.stat().st_size > 1000


@pytest.mark.jvm
@pytest.mark.timeout(300)
def test_java_writer_is_counted_and_proved(hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """Java's acknowledgements are snapshots too, with its lock and without it, and it says how often it tried."""
    history = tables.make_histories(tmp_path / "history", [3])[3]
    command = jvm.java_worker(tmp_path / "java", maven_jar(bench.ICEBERG_RUNTIME))
    for contender in hive.contenders(hms, zookeeper, command):
        if "tuned" in contender.kind and contender.kind in hive.JAVA:
            prefix = f"j{hive.KINDS.index(contender.kind)}_"
            cell = cells.measure(tmp_path / prefix, history, contender, cells.LAYOUTS[0], 2, 2.0, prefix=prefix)

            assert cell["proved"]
            assert 2 <= cell["acknowledged"]
            assert 1 <= cell["attempts_each"]


@pytest.mark.jvm
@pytest.mark.timeout(300)
def test_locks_of_java_are_measured(hms: HiveMetastore, zookeeper: ZooKeeperEnsemble, tmp_path: Path) -> None:
    """Curator's, and that of Iceberg's HiveCatalog: cycles, turns and hand-overs."""
    command = jvm.java_worker(tmp_path / "java", maven_jar(bench.ICEBERG_RUNTIME))
    for locks in (
        locking.Locks("Curator's mutex", zookeeper.connect_string, command=command),
        locking.Locks("Iceberg Java's HMS lock", hms.uri, command=command),
    ):
        found = locking.measure(locks, seconds=1.0, contenders=2, hand_overs=2)

        assert 0 < found["alone_per_second"]
        assert 0 < found["wake_p50_ms"]


def test_waiting_for_a_lock_in_zookeeper_costs_no_request(zookeeper: ZooKeeperEnsemble) -> None:
    """A waiter is notified; it never asks. What keeps its session is counted apart."""
    port = zookeeper.servers[0].port
    locks = locking.Locks("zookeeper", zookeeper.connect_string, port, counting.zookeeper_requests)

    assert {} == locking.idle(locks, seconds=2.0)["idle_requests"]


@pytest.mark.slow
def test_waiting_for_a_lock_in_a_metastore_is_counted(hms: HiveMetastore) -> None:
    """No waiter is notified there: it asks, and the calls are counted by name."""
    found = locking.idle(locking.Locks("hms", hms.uri, hms.port, counting.metastore_requests), seconds=3.0)

    assert 0 < found["idle_per_second"]
    assert found["idle_requests"].keys() <= {"check_lock", "show_locks", "heartbeat"}


def test_many_locks_are_listed(tmp_path: Path) -> None:
    """All of them, of several requests."""
    locks = locking.Locks("lease, SQLite", f"sqlite:///{tmp_path}/locks.db")

    assert 3 * 5 <= locking.list_locks(locks, 5, 3)["all"]


def test_percentile_is_a_value_that_occurred() -> None:
    """Nearest rank: the p99 of two values is the larger one; of none there is none."""
    assert 2.0 == cells.percentile([2.0, 1.0], 0.99)
    assert cells.percentile([], 0.5) is None


@pytest.mark.slow
def test_lock_cycles_are_counted(tmp_path: Path) -> None:
    """Contenders all get their turns, and a waiter is granted after the release."""
    found = locking.measure(locking.Locks("memory", f"{tmp_path}"), seconds=0.3, contenders=3, hand_overs=3)

    assert 0 < found["contended_least"] <= found["contended_most"]
    assert 0 < found["wake_p50_ms"] <= found["wake_p99_ms"]


def test_worker_that_does_not_answer_is_given_up() -> None:
    """A request that takes too long ends in an error, not in a wait for ever."""
    with Worker("cycle_locks", {"manager": "none", "uri": "", "seconds": 60.0}) as worker:
        assert "ready" == worker.receive(60)
        with pytest.raises(WriterFailed, match="no answer"):
            worker.ask({"start": time.monotonic()}, timeout_s=0.2)


def test_machine_says_no_names() -> None:
    """No host name among what is published about the machine."""
    import socket

    assert socket.gethostname() not in str(machine.describe().values())


def test_results_of_other_suites_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one suite replaces its own figures and no others, and draws its picture."""
    cell = {"manager": "lease, SQLite", "remark": "r", "contended_least": 1, "contended_most": 2}
    cell |= {"alone_per_second": 3.0, "contended_per_second": 4.0, "wake_p50_ms": 5.0, "wake_p99_ms": 6.0}
    figures = {"contenders": 8, "cells": [cell], "missing": ["memory"]}
    monkeypatch.setitem(bench._RUN, "locks", lambda folder, given: figures)
    other = {"figure": 1, "command": "before", "machine": {"cores": 2}}
    report.save(tmp_path, {"spark": other})
    code = bench.main(["--only", "locks", "--results", str(tmp_path)])

    assert 0 == code
    assert {"spark": other}.items() <= report.load(tmp_path).items()
    assert figures.items() <= report.load(tmp_path)["locks"].items()
    assert "NOT measured: memory" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "locks.png").stat().st_size > 1000


def test_seconds_with_a_unit_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--seconds", "5s"])
    assert "'5s': a number of seconds without a unit" in capsys.readouterr().err


def test_unknown_lock_manager_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--only", "locks", "--managers", "lease,zookeper"])
    assert ended.value.code == 2
    assert "no such lock manager: zookeper; there are" in capsys.readouterr().err


def test_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the suites that there are."""
    with pytest.raises(SystemExit):
        bench.main(["--only", "comits"])
    assert "commits" in capsys.readouterr().err


@pytest.mark.parametrize("writers", ["two", "1,,4", "0", "-1"])
def test_what_is_no_number_of_writers_is_refused(writers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--only", "migration", f"--writers={writers}"])
    assert ended.value.code == 2
    assert "numbers from 1 on" in capsys.readouterr().err


def test_two_checkouts_are_compared_by_the_pairs_of_their_runs() -> None:
    """A rate counts as its inverse; what one run lacks is left out; both pairs show the spread."""
    runs = [
        against.figures(
            "commits", {"cells": [{"kind": "commit_coord", "writers": 1, "per_second": rate, "p50_ms": ms}]}
        )
        for rate, ms in ((100.0, 8.0), (50.0, 16.0), (100.0, 10.0), (100.0, 0.0))
    ]
    rate, ms = compared = against.compared([runs[0], runs[2]], [runs[1], runs[2]])
    assert rate["figure"] == "commit_coord, 1, per_second"
    assert (rate["least"], rate["most"]) == pytest.approx((0.5, 1.0))
    assert ms["ratio"] == pytest.approx((0.5 * 1.0) ** 0.5)
    assert ["commit_coord, 1, per_second"] == [row["figure"] for row in against.compared(runs[:1], runs[3:])]
    assert "| commits | commit_coord, 1, p50_ms | 0.707 | 0.500 | 1.000 |" in against.render(
        {"other": "x", "rows": [{"suite": "commits", **row} for row in compared]}
    )


def test_the_former_name_of_the_option_still_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for option in ("--against", "--beside"):
        with pytest.raises(SystemExit):
            bench.main([option, str(tmp_path / "nowhere"), "--only", "commits"])
        answers.append(capsys.readouterr().err)
    assert "folder not found" in answers[0]
    assert answers[0] == answers[1]


def test_a_folder_without_the_package_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a checkout"):
        against.run(tmp_path, ["commits"], [], [], print)


def test_a_folder_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="folder not found"):
        against.run(tmp_path / "nowhere", ["commits"], [], [], print)
