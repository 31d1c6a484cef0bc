"""The proofs hold on what is right, and fail on doctored data. A proof that can't fail proves nothing."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from commit_coord.demo import proof
from commit_coord.demo.proof import Proof
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.model import LockEntry, LockMode, LockScope, LockState, Owner, Resource

SOURCE = pa.table(
    {
        "month": pa.array([1, 1, 2, 2], pa.int32()),
        "carrier": ["UA", "AA", "UA", None],
        "delay": pa.array([5, None, -3, 7], pa.int32()),
    }
)
IDS = [str(uuid.UUID(int=number)) for number in range(5)]


def snapshot(number: int, request_id: str) -> dict[str, Any]:
    return {
        "snapshot-id": 10 + number,
        "parent-snapshot-id": 9 + number if number > 1 else None,
        "sequence-number": number,
        "timestamp-ms": 1000 * number,
        "summary": {"operation": "append", REQUEST_ID: request_id},
    }


def body(snapshots: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metadata of a table of three snapshots, of which it has these."""
    return {
        "snapshots": snapshots,
        "snapshot-log": [{"snapshot-id": 10 + number, "timestamp-ms": 1000 * number} for number in (1, 2, 3)],
        "last-sequence-number": 3,
        "current-snapshot-id": 13,
        "metadata-log": [],
    }


SNAPSHOTS = [snapshot(number, IDS[number - 1]) for number in (1, 2, 3)]
HISTORY = {"flights": body(SNAPSHOTS)}
NOTES = [(request_id, "flights") for request_id in IDS[:3]]
OWNER = Owner(user="ann", host="mill", pid=7, application="job.py", statement="commit")


def names_all(one: Proof, *words: str) -> bool:
    """Return whether the proof fails and its differences name all of *words*."""
    text = "\n".join(one.differences)
    return not one.holds and all(word in text for word in words)


def doctored(position: int, **changes: object) -> dict[str, dict[str, Any]]:
    """Return the history with one snapshot changed."""
    snapshots = list(SNAPSHOTS)
    snapshots[position] = {**snapshots[position], **{key.replace("_", "-"): value for key, value in changes.items()}}
    return {"flights": body(snapshots)}


def marked(position: int, **summary: str) -> dict[str, dict[str, Any]]:
    """Return the history with another summary of one snapshot."""
    return doctored(position, summary=summary)


def test_same_rows_in_another_order() -> None:
    """The order of rows and columns does not count."""
    found = SOURCE.take([2, 0, 3, 1]).select(["delay", "month", "carrier"])
    assert proof.same_rows("flights", SOURCE, found, "somebody").holds


@pytest.mark.parametrize(
    "found, words",
    [
        pytest.param(SOURCE.slice(1), ["4 rows", "3 in the table"], id="a lost row"),
        pytest.param(pa.concat_tables([SOURCE, SOURCE.slice(0, 1)]), ["5 in the table"], id="a doubled row"),
        pytest.param(
            pa.concat_tables([SOURCE.slice(0, 3), SOURCE.slice(0, 1)]), ["column"], id="a row doubled for a lost one"
        ),
        pytest.param(SOURCE.drop_columns(["delay"]), ["columns differ", "delay"], id="a lost column"),
        pytest.param(
            SOURCE.set_column(2, "delay", pa.array([5, 0, -3, 7], pa.int32())), ["column delay"], id="a null made zero"
        ),
    ],
)
def test_rows_that_differ(found: pa.Table, words: list[str]) -> None:
    """Whatever differs in the rows is noticed."""
    assert names_all(proof.same_rows("flights", SOURCE, found, "somebody"), *words)


def test_equal_sums() -> None:
    """Equal sums of equal groups hold."""
    assert proof.same_sums("t", ("month",), ("delay",), {"1": [2, 5]}, {"1": [2, 5]}, "Spark").holds


@pytest.mark.parametrize(
    "found, words",
    [
        pytest.param({"1": [1, 5]}, ["month 1", "rows 2 in the source, 1 in the table"], id="a row less"),
        pytest.param({"1": [2, 6]}, ["delay 5 in the source, 6 in the table"], id="another sum"),
        pytest.param({}, ["only in the source"], id="a lost group"),
        pytest.param({"1": [2, 5], "2": [1, 1]}, ["only in the table"], id="a group too many"),
    ],
)
def test_sums_that_differ(found: dict[str, list[int]], words: list[str]) -> None:
    """Whatever differs in the sums is noticed."""
    assert names_all(proof.same_sums("t", ("month",), ("delay",), {"1": [2, 5]}, found, "Spark"), *words)


def test_exactly_once() -> None:
    """Every note once, a note made twice is still one commit, an unknown outcome may have landed or not."""
    assert proof.exactly_once(HISTORY, NOTES).holds
    assert proof.exactly_once(HISTORY, [*NOTES, NOTES[0]]).holds
    assert proof.exactly_once(HISTORY, NOTES[:2], [(IDS[2], "flights"), (IDS[4], "flights")]).holds


def test_lost_commit() -> None:
    """An acknowledged commit that is not in the history is noticed."""
    assert names_all(proof.exactly_once(HISTORY, [*NOTES, (IDS[3], "flights")]), IDS[3], "is not there")


def test_doubled_commit() -> None:
    """A commit that is twice in the history is noticed."""
    assert names_all(proof.exactly_once(marked(2, **{REQUEST_ID: IDS[1]}), NOTES[:2]), IDS[1], "2 times")


def test_commit_in_the_wrong_table() -> None:
    """A commit that landed elsewhere is noticed."""
    assert names_all(proof.exactly_once(HISTORY, [*NOTES[:2], (IDS[2], "planes")]), IDS[2], "planes")


def test_commit_that_no_writer_was_acknowledged() -> None:
    """A commit without an acknowledgement is noticed."""
    assert names_all(proof.exactly_once(HISTORY, NOTES[:2]), IDS[2], "nobody wrote it")


def test_uncoordinated_commit() -> None:
    """A snapshot without a request id is noticed."""
    assert names_all(proof.exactly_once(marked(2), NOTES[:2]), "1 snapshot carries no request id")


def test_refused_never() -> None:
    """A refused request is in no history and left no metadata file; what did is noticed."""
    refused = [(IDS[4], "flights")]
    mine = [f"warehouse/flights/metadata/00003-{IDS[2]}.metadata.json"]
    assert proof.never(HISTORY, refused, mine).holds
    assert names_all(proof.never(marked(0, **{REQUEST_ID: IDS[4]}), refused), IDS[4], "is there")
    left = [*mine, f"warehouse/flights/metadata/00004-{IDS[4]}.gz.metadata.json"]
    assert names_all(proof.never(HISTORY, refused, left), IDS[4], "metadata file")


def test_unbroken() -> None:
    """One line from the first snapshot to the current one."""
    assert proof.unbroken(HISTORY).holds


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(doctored(2, parent_snapshot_id=11), id="a fork: the middle one is outside of the line"),
        pytest.param(doctored(0, parent_snapshot_id=10), id="the beginning is missing"),
        pytest.param(doctored(2, sequence_number=5), id="a gap in the numbers"),
        pytest.param({"flights": body(SNAPSHOTS[:2])}, id="the current one is missing"),
    ],
)
def test_broken(history: dict[str, dict[str, Any]]) -> None:
    """Whatever is no unbroken line is noticed."""
    assert names_all(proof.unbroken(history), "flights")


def test_no_lock_left() -> None:
    """A lock that stayed is noticed, with its owner."""
    entry = LockEntry(
        resource=Resource(("nyc", "flights")),
        mode=LockMode.EXCLUSIVE,
        scope=LockScope.COMMIT,
        state=LockState.ACQUIRED,
        owner=OWNER,
        request_id=IDS[0],
        generation=None,
        requested_at_ms=0,
    )
    assert proof.no_lock_left([], 1.0).holds
    assert names_all(proof.no_lock_left([entry], 1.0), "X nyc/flights", "ann@mill")


def test_resumed() -> None:
    """A driver that was killed in the middle has all of its months once; else it is noticed."""
    requests = {"flights-01": IDS[0], "flights-02": IDS[1]}
    assert proof.resumed("spark-1", 1, 2, HISTORY["flights"], requests).holds
    assert names_all(proof.resumed("spark-1", 2, 2, HISTORY["flights"], requests), "not in the middle")
    assert names_all(proof.resumed("spark-1", 1, 2, body(SNAPSHOTS[:1]), requests), "flights-02 is 0 times")


def test_many_differences_are_counted() -> None:
    """A disaster does not print a thousand lines."""
    found = proof.same_sums("t", ("day",), (), {str(day): [1] for day in range(100)}, {}, "Spark")
    assert len(found.differences) == 6
    assert "95 more" in found.differences[-1]
