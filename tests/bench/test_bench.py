"""The bench measures what it says: counts and proofs, never times."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from commit_coord import bench
from commit_coord.bench import cells, commits, locking, machine, report, tables
from commit_coord.bench.fleet import Worker, WorkerFailed


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
    """A snapshot beside the chain, and a gap in it, are no unbroken chain."""
    assert not tables.look({"current-snapshot-id": 3, "snapshots": snapshots}).unbroken


def test_cell_counts_what_was_acknowledged(history: tables.History, tmp_path: Path) -> None:
    """As many snapshots as acknowledgements, by two processes on one table."""
    cell = commits.measure(tmp_path / "cell", history, "commit_coord", "one table", 2, 0.5)

    assert cell["proved"]
    assert cell["acknowledged"] == cell["snapshots_added"]
    assert 2 <= cell["least_by_one_writer"] + cell["most_by_one_writer"] == cell["acknowledged"]
    assert 0 == cell["failed"]


def test_percentile_is_a_value_that_occurred() -> None:
    """Nearest rank: the p99 of two values is the larger one; of none there is none."""
    assert 2.0 == cells.percentile([2.0, 1.0], 0.99)
    assert cells.percentile([], 0.5) is None


def test_lock_cycles_are_counted(tmp_path: Path) -> None:
    """Contenders all get their turns, and a waiter is granted after the release."""
    found = locking.measure(locking.Locks("memory", f"{tmp_path}"), seconds=0.3, contenders=3, hand_overs=3)

    assert 0 < found["contended_least"] <= found["contended_most"]
    assert 0 < found["wake_p50_ms"] <= found["wake_p99_ms"]


def test_worker_that_does_not_answer_is_given_up() -> None:
    """A request that takes too long ends in an error, not in a wait for ever."""
    with Worker("cycle_locks", {"manager": "none", "uri": "", "seconds": 60.0}) as worker:
        assert "ready" == worker.receive(60)
        with pytest.raises(WorkerFailed, match="no answer"):
            worker.ask({"start": time.monotonic()}, timeout=0.2)


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


def test_unknown_suite_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the suites that there are."""
    with pytest.raises(SystemExit):
        bench.main(["--only", "comits"])
    assert "commits" in capsys.readouterr().err
