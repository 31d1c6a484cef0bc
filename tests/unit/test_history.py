"""The history checker: what it accepts, and that it finds each kind of damage."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.model import LockMode, Resource
from commit_coord.testing.history import (
    Answer,
    Append,
    Call,
    Change,
    Hold,
    Write,
    ancestry,
    check_answers,
    check_appends,
    check_changes,
    check_files,
    check_holds,
    check_line,
    check_register,
    check_seen,
    check_snapshots,
    check_values,
)

MARK = "mark"


def snapshot(number: int, mark: str) -> dict[str, Any]:
    return {
        "snapshot-id": 10 * number,
        "parent-snapshot-id": 10 * (number - 1) or None,
        "sequence-number": number,
        "timestamp-ms": 1000 * number,
        "summary": {"operation": "append", MARK: mark, REQUEST_ID: mark},
    }


def body(*marks: str, log: tuple[str, ...] = ()) -> dict[str, Any]:
    snapshots = [snapshot(number, mark) for number, mark in enumerate(marks, 1)]
    return {
        "snapshots": snapshots,
        "snapshot-log": [{key: one[key] for key in ("snapshot-id", "timestamp-ms")} for one in snapshots],
        "last-sequence-number": len(marks),
        "current-snapshot-id": 10 * len(marks) or None,
        "metadata-log": [{"metadata-file": file, "timestamp-ms": 1} for file in log],
    }


def append(mark: str, answer: Answer, snapshot_id: int | None = None) -> Append:
    return Append(mark=mark, answer=answer, snapshot_id=snapshot_id)


ACKNOWLEDGED, REFUSED, UNKNOWN = Answer


@pytest.mark.parametrize(
    "appends, found",
    [
        ([append("a", ACKNOWLEDGED, 10), append("b", UNKNOWN), append("c", REFUSED), append("d", UNKNOWN)], None),
        ([append("a", ACKNOWLEDGED), append("b", REFUSED)], "RefusedNever: b is there"),
        ([append("a", ACKNOWLEDGED), append("b", UNKNOWN), append("c", ACKNOWLEDGED)], "AcknowledgedStays: c"),
        ([append("a", ACKNOWLEDGED, 20), append("b", ACKNOWLEDGED, 20)], "AcknowledgedStays: a is there as another"),
        ([append("a", ACKNOWLEDGED)], "NoneTwice: b is there and nobody wrote it"),
    ],
)
def test_each_append_is_there_as_it_was_answered(appends: list[Append], found: str | None) -> None:
    broken = check_appends(appends, body("a", "b"), MARK)
    assert len(broken) == (found is not None)
    assert "".join(broken).startswith(found or "")


@pytest.mark.parametrize("answer", Answer)
def test_nothing_is_there_twice(answer: Answer) -> None:
    (broken,) = check_appends([append("a", answer)], body("a", "a"), MARK)
    assert broken == f"NoneTwice: {answer} a is there 2 times"


def test_snapshots_are_one_line() -> None:
    assert check_snapshots(body()) == check_snapshots(body("a", "b", "c")) == []
    for damage in (
        {"sequence-number": 7},
        {"parent-snapshot-id": 77},
        {"snapshot-id": 77},
        {"timestamp-ms": 7000},
    ):
        damaged = copy.deepcopy(body("a", "b", "c"))
        damaged["snapshots"][1] |= damage
        assert check_snapshots(damaged) != []
    assert check_snapshots(body("a", "b") | {"current-snapshot-id": 10}) != []
    assert check_snapshots(body("a", "b") | {"last-sequence-number": 3}) != []


def test_only_a_snapshot_of_pyiceberg_alone_may_be_dated_before_the_last_one() -> None:
    late = body("a", "b", "c")
    late["snapshots"][1]["timestamp-ms"] = 500
    late["metadata-log"] = [{"metadata-file": "m", "timestamp-ms": time} for time in (1000, 500)]
    assert 2 == len(check_snapshots(late))
    del late["snapshots"][1]["summary"][REQUEST_ID]
    assert [] == check_snapshots(late)


def test_metadata_files_are_one_line_also_where_the_logs_are_cut() -> None:
    files = {
        "0": body(),
        "1": body("a", log=("0",)),
        "2": body("a", "b", log=("1",)),
        "3": body(*"abc", log=("1", "2")),
    }
    assert check_line("3", files.__getitem__) == (["3", "2", "1", "0"], [])
    assert check_line("3", files.__getitem__, files=2) == (["3", "2"], [])
    assert check_line("3", {**files, "3": body("a", log=("1", "2"))}.__getitem__)[1] == [
        "AcknowledgedStays: 3 lacks snapshots of 2"
    ]
    assert check_line("3", {**files, "3": body(*"abc", log=("x", "2"))}.__getitem__)[1] == [
        "Unbroken: 3 and 2 tell different lines"
    ]

    def read(path: str) -> dict[str, Any]:
        if path == "1":
            raise FileNotFoundError(path)
        return files[path]

    gone = (["3", "2", "1"], ["Unbroken: 1 is in the log, and is not there"])
    assert check_line("3", read) == gone
    deleted = {"properties": {"write.metadata.delete-after-commit.enabled": "true"}}
    files["3"] |= deleted
    assert check_line("3", read) == gone, "the newest names it still"
    files["3"] = body(*"abc", log=("2",)) | deleted
    assert check_line("3", read) == (["3", "2"], [])


def test_a_line_with_expired_snapshots_still_goes_on_from_the_one_before() -> None:
    expired = body("a", "b", "c", log=("1", "2"))
    expired["snapshots"] = expired["snapshots"][1:]
    files = {"1": body("a"), "2": body("a", "b", log=("1",)), "3": expired}
    assert check_line("3", files.__getitem__, expiring=True) == (["3", "2", "1"], [])
    lost = "Unbroken: the snapshots of 3 do not go on from those of 2"
    assert check_line("3", {**files, "3": body("a", log=("1", "2"))}.__getitem__, expiring=True)[1] == [lost]
    back = body(*"abc", log=("1", "2")) | {"last-sequence-number": 1}
    assert check_line("3", {**files, "3": back}.__getitem__, expiring=True)[1] == [lost]
    assert check_line("1", {"1": body()}.__getitem__, expiring=True) == (["1"], [])


def test_what_was_the_table_is_in_its_line_in_that_order() -> None:
    assert check_seen(["0", "2"], ["2", "1", "0"]) == []
    assert check_seen(["0", "x", "2"], ["2", "1", "0"]) == ["Unbroken: x was the table, and is not in its line"]
    assert check_seen(["2", "0"], ["2", "1", "0"]) == ["Unbroken: the table went back in its line"]


def test_the_ancestry_ends_where_the_numbers_do() -> None:
    assert ancestry(body(*"abc")) == [30, 20, 10]
    assert ancestry(body()) == []
    broken = body(*"abc")
    broken["snapshots"][1]["sequence-number"] = 1
    assert ancestry(broken) == [30]


def write(answer: Answer, **values: int | None) -> Write:
    return Write(answer=answer, values=values)


@pytest.mark.parametrize(
    "writes, rows, found",
    [
        ([write(ACKNOWLEDGED, a=1), write(ACKNOWLEDGED, a=2)], [("a", 2)], ""),
        ([write(ACKNOWLEDGED, a=1), write(REFUSED, a=2)], [("a", 1)], ""),
        ([write(ACKNOWLEDGED, a=1), write(UNKNOWN, a=2)], [("a", 1)], ""),
        ([write(ACKNOWLEDGED, a=1), write(UNKNOWN, a=2)], [("a", 2)], ""),
        ([write(ACKNOWLEDGED, a=1), write(ACKNOWLEDGED, a=None), write(UNKNOWN, b=1)], [], ""),
        ([write(ACKNOWLEDGED, a=1), write(ACKNOWLEDGED, a=2)], [("a", 1)], "AcknowledgedStays: a is 1 instead of 2"),
        ([write(ACKNOWLEDGED, a=1)], [], "AcknowledgedStays: a is None instead of 1"),
        ([write(ACKNOWLEDGED, a=1), write(ACKNOWLEDGED, a=None)], [("a", 1)], "AcknowledgedStays: a is 1 instead"),
        ([write(REFUSED, a=1)], [("a", 1)], "AcknowledgedStays: a is 1 instead of None"),
        ([write(ACKNOWLEDGED, a=1)], [("a", 1), ("a", 1)], "NoneTwice: a is there 2 times"),
        ([], [("a", 1)], "NoneTwice: a is there and nobody wrote it"),
    ],
)
def test_each_key_has_the_value_that_was_acknowledged_last(
    writes: list[Write], rows: list[tuple[str, int]], found: str
) -> None:
    broken = check_values(writes, rows)
    assert len(broken) == bool(found)
    assert "".join(broken).startswith(found)


def test_each_answer_is_a_snapshot_of_its_own_that_was_in_the_table() -> None:
    assert check_answers([1, None, 2], {1, 2, 3}) == []
    assert check_answers([1, 4], {1, 2}) == ["AcknowledgedStays: snapshot 4 was never in the table"]
    assert check_answers([1, 1], {1, 2}) == ["NoneTwice: snapshot 1 was answered 2 times"]
    assert check_answers([1, None], {1}) == ["AcknowledgedStays: 1 snapshots for 2 acknowledged operations"]


def test_a_change_is_made_to_the_head_that_it_was_built_on() -> None:
    fine = Change(by="a", base="0", before="0", location="1")
    again = Change(by="a", base="0", before="1", location="1")  # the same message twice, where nobody compares
    over = Change(by="b", base="0", before="1", location="2")
    assert check_changes([fine, again], ["1", "0"]) == []
    assert check_changes([fine, over], ["2", "0"]) == [
        "Unbroken: 2 of b was built on 0 and put over 1",
        "Unbroken: 1 of a is not in the line",
    ]
    assert check_changes([fine, over], ["2", "0"], heedless={"b"}) == []
    assert check_changes([fine, over, fine], ["3", "0"], heedless={"b"}) == ["Unbroken: 2 of b is not in the line"]


def test_a_file_that_is_gone_is_named() -> None:
    assert check_files(["a", "b"], {"a"}.__contains__) == ["RefusedNever: b is referred to, and is gone"]


def test_conflicting_holds_do_not_overlap() -> None:
    s, x = LockMode.SHARED, LockMode.EXCLUSIVE
    table, other = Resource(("db", "t")), Resource(("db", "u"))

    def hold(who: str, on: Resource, mode: LockMode, begins: float, ends: float) -> Hold:
        return Hold(who=who, locks=((on, mode),), begins=begins, ends=ends)

    assert check_holds([hold("a", table, x, 0, 2), hold("b", table, x, 2, 3), hold("c", other, x, 1, 3)]) == []
    assert check_holds([hold("a", table, s, 0, 2), hold("b", table, s, 1, 3)]) == []
    (broken,) = check_holds([hold("b", table, x, 1, 3), hold("a", table, s, 0, 2)])
    assert broken.startswith("BeliefIsTrue: a still believed in its lease when b was granted, at 1.000 s of 2.000 s")


values = st.sampled_from(["0", "1", "2"])
times = st.integers(0, 8)


@st.composite
def calls(draw: st.DrawFn) -> list[Call]:
    made = []
    for _ in range(draw(st.integers(0, 6))):
        begins = draw(times)
        ends = draw(st.one_of(st.just(math.inf), st.integers(begins, 9)))
        made.append(Call(saw=draw(values), wrote=draw(st.one_of(st.none(), values)), begins=begins, ends=ends))
    return made


def explained(history: Sequence[Call], initial: str) -> bool:
    """Try every order of every choice of the calls that were not answered."""
    sure = [call for call in history if call.ends < math.inf]
    unsure = [call for call in history if call.ends == math.inf]
    for count in range(len(unsure) + 1):
        for chosen in itertools.combinations(unsure, count):
            for order in itertools.permutations([*sure, *chosen]):
                value = initial
                for position, call in enumerate(order):
                    if call.saw != value or any(later.ends < call.begins for later in order[position + 1 :]):
                        break
                    value = value if call.wrote is None else call.wrote
                else:
                    return True
    return False


@given(calls())
def test_a_register_is_judged_as_by_trying_every_order(history: list[Call]) -> None:
    assert (check_register(history, "0") == []) == explained(history, "0")


def test_a_stale_read_is_found() -> None:
    write = Call(saw="0", wrote="1", begins=0, ends=1)
    assert check_register([write, Call(saw="1", begins=2, ends=3)], "0") == []
    assert check_register([write, Call(saw="0", begins=0.5, ends=3)], "0") == []
    (broken,) = check_register([write, Call(saw="0", begins=2, ends=3)], "0")
    assert broken.startswith("Unbroken: no order")


def test_a_write_that_was_not_answered_may_land_at_any_time_or_never() -> None:
    write = Call(saw="0", wrote="1", begins=0)
    for saw in "01":
        assert check_register([write, Call(saw=saw, begins=5, ends=6)], "0") == []
    assert check_register([write, Call(saw="1", begins=5, ends=6), Call(saw="0", begins=7, ends=8)], "0") != []
