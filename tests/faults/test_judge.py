"""The judge of the faults sees what is wrong: a log or a table with one thing wrong each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import commit_coord
from commit_coord.testing.fleet import Acknowledgement as Ack
from commit_coord.testing.fleet import Outcomes, read_outcomes
from tests.proof.faults.judge import Findings, Image, Snapshot, image_of, judge, recovered_s, replay, stalled_s
from tests.proof.faults.writers import MARK, ROWS, SCHEMA, Place

A, B = "append.0.100.0", "append.1.101.0"


def snapshot(number: int, mark: str, operation: str = "append", *, adds: bool = True) -> Snapshot:
    return Snapshot(id=number, mark=mark, operation=operation, adds=adds)


def log(*tried: str, acked: dict[str, Ack] | None = None, refused: dict[str, str] | None = None) -> Outcomes:
    return Outcomes(list(tried), acked or {}, refused or {}, {}, [])


RIGHT = Image(
    chain=[snapshot(1, A), snapshot(2, B)],
    off_chain=[],
    rows={A: ROWS, B: ROWS},
    named=frozenset({"data", "list"}),
    present=frozenset({"data", "list"}),
)
LOGS = [log(A, acked={A: Ack(1, 1.0)}), log(B, acked={B: Ack(2, 2.0)})]


def found(image: Image = RIGHT, logs: Sequence[Outcomes] = LOGS, leaked: Sequence[str] = ()) -> Findings:
    return judge(logs, image, leaked)


def test_what_is_right_is_found_right() -> None:
    assert found() == Findings(
        acknowledged=2,
        unanswered=0,
        unanswered_landed=0,
        orphans=0,
        lost=0,
        doubled=0,
        refused_present=0,
        foreign=0,
        leaked=0,
        missing=0,
        wrong_rows=0,
    )


def test_a_lost_commit_is_reported() -> None:
    gone = found(replace(RIGHT, chain=[snapshot(1, A)], rows={A: ROWS}))
    assert (1, [f"acknowledged and not there: {B}"]) == (gone.lost, gone.broken)


def test_an_acknowledged_commit_outside_of_the_history_is_lost() -> None:
    assert found(replace(RIGHT, chain=[snapshot(1, A)], off_chain=[snapshot(2, B)], rows={A: ROWS})).lost == 1


def test_an_acknowledgement_with_the_snapshot_of_another_writer_is_lost() -> None:
    assert found(logs=[log(A, acked={A: Ack(2, 1.0)}), LOGS[1]]).lost == 1


def test_an_append_without_a_snapshot_is_lost() -> None:
    assert found(logs=[log(A, acked={A: Ack(None, 1.0)}), LOGS[1]]).lost == 1
    nothing_to_delete = log("delete.0.100.1", acked={"delete.0.100.1": Ack(None, 1.0)})
    assert found(logs=[*LOGS, nothing_to_delete]).lost == 0


def test_a_commit_that_is_there_twice_is_reported() -> None:
    twice = found(replace(RIGHT, chain=[*RIGHT.chain, snapshot(3, B)], rows={A: ROWS, B: 2 * ROWS}))
    assert (1, [f"there twice: {B} (append)"]) == (twice.doubled, twice.broken)


def test_a_refused_commit_that_is_there_is_reported() -> None:
    assert found(logs=[LOGS[0], log(B, refused={B: "CommitConflict"})]).refused_present == 1


def test_an_unknown_one_may_be_there_once() -> None:
    unknown = found(logs=[LOGS[0], log(B)])
    assert (1, 1, []) == (unknown.unanswered, unknown.unanswered_landed, unknown.broken)


def test_what_nobody_tried_is_reported() -> None:
    assert found(logs=LOGS[:1]).foreign == 1


def test_a_leaked_lock_is_reported() -> None:
    assert found(leaked=["X on faults/t of somebody"]).broken == ["a lock is left: X on faults/t of somebody"]


def test_a_missing_file_is_reported_and_one_too_many_counted() -> None:
    assert found(replace(RIGHT, present=frozenset({"list"}))).broken == ["a file is missing: data"]
    more = found(replace(RIGHT, present=frozenset({"data", "list", "more"})))
    assert (1, []) == (more.orphans, more.broken)


@pytest.mark.parametrize("rows", [{A: ROWS}, {A: ROWS, B: 2 * ROWS}, {A: ROWS, B: ROWS, "x": 1}])
def test_rows_that_the_history_does_not_say_are_reported(rows: dict[str, int]) -> None:
    assert found(replace(RIGHT, rows=rows)).wrong_rows == 1


def test_an_overwrite_and_a_delete_empty_their_partition_alone() -> None:
    chain = [
        snapshot(1, A),
        snapshot(2, "replace.5.1.0"),
        snapshot(3, "replace.5.1.1", "delete", adds=False),
        snapshot(4, "replace.5.1.1"),
        snapshot(5, "append.7.1.0"),
        snapshot(6, "delete.7.1.1", "delete", adds=False),
    ]
    assert {A: ROWS, "replace.5.1.1": ROWS} == replay(chain)


def test_pauses_and_recoveries_are_those_of_all_writers_together() -> None:
    logs = [log(A, acked={A: Ack(1, 12.0)}), log(B, acked={B: Ack(2, 15.0)})]
    assert stalled_s(logs, 10.0, 20.0) == 5.0
    assert recovered_s(logs, [11.0, 12.5]) == 2.5
    assert recovered_s(logs, [11.0, 16.0]) is None


def test_a_log_is_read_up_to_what_a_kill_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("try a\nack a 7 1.5\ntry b\nrefused b CommitConflict\ntry c\nunknown c OSError\nstart X\nack c 9")
    assert read_outcomes(path) == Outcomes(
        ["a", "b", "c"], {"a": Ack(7, 1.5)}, {"b": "CommitConflict"}, {"c": "OSError"}, ["X"]
    )


def test_the_image_is_read_from_the_files(tmp_path: Path) -> None:
    """Of a real table; and a file that goes, comes, or is another's is seen."""
    place = Place(
        folder=tmp_path,
        catalog="judged",
        properties={
            "uri": f"coord+sqlite:///{tmp_path}/catalog.db",
            "warehouse": (tmp_path / "warehouse").as_uri(),
            "lock-impl": "memory",
        },
        ours=True,
    )
    with commit_coord.load_catalog(place.catalog, **place.properties) as catalog:
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", SCHEMA)
        for mark, part in ((A, "p0"), (B, "p1")):
            rows = SCHEMA.empty_table().from_pylist([{"part": part, "mark": mark, "value": 1}] * ROWS, schema=SCHEMA)
            table.append(rows, snapshot_properties={MARK: mark})
        location = catalog.load_table("n.t").metadata_location
    image = image_of(location)
    assert [A, B] == [one.mark for one in image.chain]
    assert {A: ROWS, B: ROWS} == image.rows
    assert () == image.faults
    assert image.named == image.present
    altered = found(replace(image, rows={A: ROWS, B: ROWS - 1, f"{B} as it was not written": 1}))
    assert 2 == altered.wrong_rows
    data = next(Path(path) for path in image.named if path.endswith(".parquet"))
    (data.parent / "unknown.parquet").write_bytes(b"")
    data.unlink()
    changed = found(replace(image_of(location), rows=image.rows), [log(A, B)])
    assert (1, 1) == (changed.missing, changed.orphans)
