"""The parts of the demo that need no Spark: source, notes, pace, processes, board, picture."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from commit_coord.demo import proof, source
from commit_coord.demo.backend import CATALOG, Backend, plain, serving
from commit_coord.demo.board import Board, Kill, quantile
from commit_coord.demo.job import _histories
from commit_coord.demo.notes import Notebook, Tail, noted
from commit_coord.demo.picture import draw, timeline
from commit_coord.demo.processes import Writers, iceberg_runtime
from commit_coord.demo.run import (
    DRIVERS,
    FEEDS,
    MARK,
    PROCESSES,
    TABLES,
    WRITERS,
    Run,
    compaction_mark,
    epoch_mark,
    mark_of,
)
from commit_coord.events import CommitEnded, Events
from commit_coord.local import NotInstalled
from commit_coord.testing.fleet import holds_within
from tests.limits import PATIENCE
from tests.processes import until


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder, empty."""
    with serving(Backend.EMBEDDED, tmp_path) as services:
        properties = services.properties
        made = Run(folder=tmp_path, seed=1, run_id="one", backend=Backend.EMBEDDED, properties=properties)
    made.save()
    return made


def test_source_is_whole() -> None:
    """The data of the package, all of it, every day of the year."""
    flights = source.table("flights")
    assert flights.num_rows == 336_776
    assert len(source.sums(flights, ("month", "day"), ())) == 365
    assert flights["dep_delay"].null_count > 8_000
    assert not any("double" in str(field.type) for field in flights.schema)


@pytest.mark.parametrize("name", TABLES)
def test_sums_name_columns(name: str) -> None:
    """What is summed up is there, and adds up to the whole."""
    keys, measures = source.SUMS[name]
    found = source.sums(source.table(name), keys, measures)
    assert sum(values[0] for values in found.values()) == source.table(name).num_rows


def test_feeds_share_the_departures() -> None:
    """Each feed has as many rows, none has another's."""
    found = source.sums(source.table("departures"), ("feed",), ())
    assert sorted(found) == sorted(FEEDS)
    assert len({rows for (rows,) in found.values()}) == 1


def test_request_ids(run: Run) -> None:
    """The same work has the same request id in every process; another run has others."""
    again = Run.load(run.folder)
    assert run.request_id("flights-01") == again.request_id("flights-01")
    assert again == run
    other = replace(run, run_id="two")
    ids = {made.request_id(w, n, t) for made in (run, other) for w in WRITERS for n in range(3) for t in range(2)}
    assert len(ids) == 2 * len(WRITERS) * 3 * 2
    assert all(uuid.UUID(one) for one in ids)


def test_notes_are_read_back(run: Run) -> None:
    """Each kind on its own, of every start; a torn last line was never synced and does not count."""
    with Notebook(run, "feed-1", 0) as first, Notebook(run, "feed-1", 1) as second:
        first.acknowledged("feed-1", "departures", "a", 20)
        second.acknowledged("feed-1", "departures", "b", 20)
        second.refused("feed-1", "departures", "c", "too late")
    with (run.folder / "acknowledged" / "feed-1.1.log").open("a") as file:
        file.write("d depar")
    assert noted(run, "acknowledged") == [("a", "departures"), ("b", "departures")]
    assert noted(run, "refused") == [("c", "departures")]
    assert noted(run, "unknown") == []


def test_tail_takes_whole_lines(run: Run) -> None:
    """A line that is being written comes when it is whole, once, with what the catalog's events said."""
    events, tail = Events(), Tail(run)
    with Notebook(run, "weather", 0) as notes:
        notes.watch(events)
        events.emit(
            CommitEnded(
                table="nyc.weather", request_id="a", status="SUCCESS", waited_ms=2.5, held_ms=7, tries=2, rebased=True
            )
        )
        notes.acknowledged("weather", "weather", "a", 144)
    with (run.folder / "events" / "weather.0.jsonl").open("a") as file:
        file.write('{"kind": "end", ')
        file.flush()
        (record,) = tail.news()
        file.write(f'"t": {time.monotonic()}}}\n')
    assert (record["kind"], record["waited_ms"], record["tries"], record["rebased"]) == ("commit", 2.5, 2, True)
    assert [late["kind"] for late in tail.news()] == ["end"]
    assert list(tail.news()) == []


def board_of_a_run() -> Board:
    """Return a board after a small run with a kill."""
    board = Board(dict.fromkeys(WRITERS, 1))
    for process in PROCESSES:
        board.take({"kind": "ready", "process": process, "t": 0.0})
    for at, writer in enumerate(WRITERS):
        board.take({"kind": "begin", "process": "x", "writer": writer, "t": 0.1})
        facts = {"request_id": writer, "rows": 10, "waited_ms": float(at), "tries": 1, "rebased": False}
        board.take({"kind": "refused", "process": "x", "writer": writer, "t": 1.0 + at, "waited_ms": 4.0})
        board.take({"kind": "commit", "process": "x", "writer": writer, "t": 2.0 + at, "answered": False, **facts})
        board.take({"kind": "end", "process": "x", "writer": writer, "t": 2.0 + at})
    board.kill = Kill(process="spark-1", pid=1, at=2.5, acknowledged=1, of=4, started_again=4.0)
    board.take({"kind": "begin", "process": "x", "writer": "flights-02", "t": 4.1})
    return board


def test_board_counts_an_acknowledgement_once() -> None:
    """A writer that was started again and is answered has not committed twice."""
    board = board_of_a_run()
    before = board.commits
    board.take(
        {"kind": "commit", "writer": "flights-01", "t": 9.0, "request_id": "flights-01", "rows": 10, "answered": True}
    )
    assert board.commits == before == len(WRITERS)
    assert board.months_done("spark-1") == len(DRIVERS["spark-1"])
    assert board.refused == len(WRITERS)


def test_pictures(tmp_path: Path) -> None:
    """The picture and its data are written, whatever happened or did not."""
    empty = Board(dict.fromkeys(WRITERS, 1))
    for board in (board_of_a_run(), empty):
        draw(board, tmp_path / "demo.png", title="a run")
        assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
        assert json.loads(json.dumps(timeline(board)))["writers"].keys() == set(WRITERS)


def test_quantile() -> None:
    """The nearest rank: always a value that was seen."""
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([float(value) for value in range(1, 101)], 0.99) == 99.0


def test_histories_have_expired_snapshots(run: Run) -> None:
    """They are in the metadata files that came before; and a commit is called what its writer calls it."""
    with run.catalog() as catalog:
        catalog.create_namespace("nyc")
        table = catalog.create_table("nyc.airports", schema=source.table("airports").schema)
        rows = source.table("airports").slice(0, 3)
        for number in range(3):
            table.append(rows.slice(number, 1), snapshot_properties={MARK: f"commit-{number}"})
        first = table.snapshots()[0].snapshot_id
        table.maintenance.expire_snapshots().by_id(first).commit()
        reader = plain(CATALOG, run.properties)
        histories, broken = _histories({"airports": reader.load_table("nyc.airports")})
        reader.close()
    assert broken == []
    assert proof.unbroken(histories).holds
    assert proof.exactly_once(histories, [(f"commit-{number}", "airports") for number in range(3)]).holds


def test_marks_of_spark() -> None:
    """Spark's streams and procedures take no properties for each commit."""
    stream = {"operation": "append", "spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "7"}
    assert mark_of({"snapshot-id": 1, "summary": stream}) == epoch_mark("q", 7)
    assert mark_of({"snapshot-id": 2, "summary": {"operation": "replace"}}) == compaction_mark(2)
    assert mark_of({"snapshot-id": 3, "summary": {"operation": "append", MARK: "one"}}) == "one"
    assert mark_of({"snapshot-id": 4, "summary": {"operation": "append"}}) is None


def test_without_maven_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("commit_coord.local.maven.shutil.which", lambda _: None)
    with pytest.raises(NotInstalled, match="iceberg-spark-runtime.*sudo apt-get install maven") as said:
        iceberg_runtime()
    assert "\n" not in str(said.value)


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent death signal is Linux's")
@pytest.mark.parametrize("end", ["politely", "kill -9 of the parent"])
def test_no_process_stays(run: Run, end: str) -> None:
    """A writer ends with its parent, however that ends."""
    with run.catalog() as catalog:
        catalog.create_namespace("nyc")
        catalog.create_table("nyc.airports", schema=source.table("airports").schema)
    pq.write_table(source.table("airports"), run.source("airports"))
    if end == "politely":
        writers = Writers(run)
        writers.start("airports")
        pid = writers["airports"].pid
        _until_ready(run)
        writers.end()
    else:
        code = (
            "import sys; from pathlib import Path; from commit_coord.demo.processes import Writer\n"
            "from commit_coord.demo.run import Run\n"
            "print(Writer(Run.load(Path(sys.argv[1])), 'airports').pid, flush=True); sys.stdin.read()"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", code, str(run.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        _until_ready(run)
        assert _is_running(pid)
        parent.kill()
        parent.communicate()
    until(lambda: not _is_running(pid), "the end of the child")


def _until_ready(run: Run) -> None:
    tail = Tail(run)
    ready = holds_within(lambda: any(record["kind"] == "ready" for record in tail.news()), PATIENCE)
    assert ready, (run.folder / "logs" / "airports.0.log").read_text()
