"""What was released by force is reported although the lock service fails halfway."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from commit_coord.errors import LockRefused, LockServiceUnavailable, PartlyFreed
from commit_coord.hms.connection import LockOfTransaction
from commit_coord.locks.base import Interrupted
from commit_coord.locks.forcing import FreedLocks, NotRemoved, telling_what_was_freed
from commit_coord.locks.hms.table import HmsLockTable
from commit_coord.locks.migration.sides import Sides
from commit_coord.locks.zookeeper.nodes import DeleteNode
from commit_coord.locks.zookeeper.view import LockView
from commit_coord.model import Generation, LockEntry, LockMode, LockScope, LockState, Owner, Resource


def entry(request_id: str) -> LockEntry:
    return LockEntry(
        resource=Resource(("db", "t")),
        mode=LockMode.EXCLUSIVE,
        scope=LockScope.OPERATION,
        state=LockState.ACQUIRED,
        owner=Owner(user="ann", host="far", pid=7, application="job"),
        request_id=request_id,
        generation=None,
        requested_at_ms=0,
    )


class Side:
    """A lock manager that frees whatever it is asked for, or fails."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def unlock(self, *, request_id: str | None = None, resource: Resource | None = None) -> Sequence[LockEntry]:
        if self._fails:
            raise LockServiceUnavailable("no answer", server="zk:2181")
        return [entry(request_id or "of-the-resource")]

    def unlock_each(self, request_ids: Sequence[str]) -> Iterator[Sequence[LockEntry]]:
        return (self.unlock(request_id=one) for one in request_ids)

    def reap(self, *, dry_run: bool = False) -> Sequence[LockEntry]:
        return self.unlock(request_id="dead")


def sides(*, hms: bool = False, zookeeper: bool = False) -> Sides:
    nobody: Any = None
    of_hms: Any = Side(fails=hms)
    of_zookeeper: Any = Side(fails=zookeeper)
    return Sides(of_hms, of_zookeeper, nobody)


def test_an_error_that_comes_first_stays_as_it_is() -> None:
    with pytest.raises(LockServiceUnavailable), telling_what_was_freed():
        raise LockServiceUnavailable("no answer")


def test_an_error_that_comes_later_names_the_requests_that_were_freed_and_its_cause() -> None:
    cause = LockServiceUnavailable("no answer", server="zk:2181")
    with pytest.raises(PartlyFreed) as told, telling_what_was_freed() as outer:
        outer.append(entry("a"))
        with telling_what_was_freed() as inner:
            inner.extend(map(entry, "bcde"))
            raise cause
    assert list("abcde") == [one.request_id for one in told.value.freed] == [one.request_id for one in outer]
    assert {"requests": "a, b, c, 2 more", "cause": str(cause)} == told.value.details
    assert cause is told.value.__cause__
    assert str(told.value) == str(pickle.loads(pickle.dumps(told.value)))


@pytest.mark.parametrize("how", ["unlock", "unlock each", "reap"])
def test_what_one_side_has_freed_is_reported_when_the_other_side_fails(how: str) -> None:
    def free(of: Sides) -> list[str]:
        if how == "unlock each":
            return [one.request_id for some in of.unlock_each(["a"]) for one in some]
        return [one.request_id for one in (of.unlock(request_id="a") if how == "unlock" else of.reap())]

    freed = "dead" if how == "reap" else "a"
    assert [freed] == free(sides())
    with pytest.raises(PartlyFreed) as told:
        free(sides(zookeeper=True))
    assert [freed] == [one.request_id for one in told.value.freed]
    with pytest.raises(LockServiceUnavailable):
        free(sides(hms=True))


class Answers:
    """Removes a request as often as it is asked, with an answer each time."""

    def __init__(self, *answers: bool | BaseException) -> None:
        self._answers = [*answers]

    def __call__(self) -> bool:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def repeated(attempt: Callable[[], bool]) -> bool:
    with suppress(Interrupted):
        return attempt()
    return attempt()


@pytest.mark.parametrize(
    "answers, freed, maybe",
    [
        ((True,), True, False),
        ((False,), False, False),
        ((Interrupted("no answer"), True), True, False),
        ((Interrupted("no answer"), False), True, False),
        ((Interrupted("no answer"), LockServiceUnavailable("denied")), False, True),
        ((LockServiceUnavailable("denied"),), False, False),
        ((KeyboardInterrupt(),), False, True),
    ],
    ids=str,
)
def test_a_request_is_freed_or_may_be_or_is_there(
    answers: tuple[bool | BaseException, ...], freed: bool, maybe: bool
) -> None:
    found = FreedLocks()
    with suppress(LockServiceUnavailable, KeyboardInterrupt):
        assert freed is found.free([entry("a")], Answers(*answers), repeat=repeated)
    assert (freed, maybe) == (bool(found), bool(found.maybe))


def test_an_interrupt_stays_one_and_loses_nothing_that_was_freed() -> None:
    with pytest.raises(KeyboardInterrupt), telling_what_was_freed() as outer:
        outer.append(entry("a"))
        with telling_what_was_freed() as inner:
            inner.append(entry("b"))
            inner.free([entry("c")], Answers(KeyboardInterrupt()))
    assert (["a", "b"], ["c"]) == tuple([one.request_id for one in some] for some in (outer, outer.maybe))


class Nodes:
    """A ZooKeeper session that deletes one lock of a request, and denies the next."""

    def exists(self, paths: Sequence[str]) -> list[Any]:
        return [SimpleNamespace(created=number) for number, _ in enumerate(paths)]

    def multi(self, operations: Sequence[DeleteNode]) -> None:
        if operations[0].path.endswith("1"):
            raise LockServiceUnavailable("denied")


def test_a_request_that_zookeeper_has_deleted_in_part_may_be_free() -> None:
    session: Any = Nodes()
    layout: Any = SimpleNamespace(request=lambda request_id, part: f"{request_id}-{part}")
    listed: Any = [
        SimpleNamespace(path=f"lock-{part}", data=SimpleNamespace(request_id="a"), stat=SimpleNamespace(created=part))
        for part in range(2)
    ]
    with pytest.raises(Interrupted, match="denied"):
        LockView(session, layout).remove("a", listed)


class Turns:
    """Requests that wait in this process."""

    def __init__(self, *waiting: str) -> None:
        self.waiting = [*waiting]

    def look(self, *_: object) -> list[LockEntry]:
        return [*map(entry, self.waiting)]

    def free(self, request_id: str | None, _: object) -> list[LockEntry]:
        freed = [one for one in self.waiting if one == request_id]
        self.waiting = [one for one in self.waiting if one != request_id]
        return [*map(entry, freed)]


def test_what_waits_for_a_metastore_in_this_process_is_freed_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it has gone to the metastore since, but not when it has its locks there by now."""
    turns, unlocked, anything = Turns("a", "b", "c"), list[int](), cast("Any", SimpleNamespace())
    metastore = SimpleNamespace(unlock=unlocked.append)
    table = HmsLockTable(
        cast("Any", metastore), cast("Any", {}), anything, cast("Any", turns), anything, anything, anything
    )
    listed: list[LockEntry] = []
    monkeypatch.setattr(table, "_listed", lambda: [*listed])
    each = table.free_each(["c", "b", "a"])
    assert ["c"] == [one.request_id for one in next(each)]
    assert ["a", "b"] == turns.waiting
    turns.waiting.remove("b")
    listed.append(replace(entry("b"), generation=Generation(7), state=LockState.WAITING))
    assert ["b"] == [one.request_id for one in next(each)]
    turns.waiting.remove("a")
    listed.append(replace(entry("a"), generation=Generation(8), state=LockState.ACQUIRED))
    assert [] == next(each)
    assert [7] == unlocked


def test_a_lock_of_a_transaction_keeps_no_other_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    unlocked, anything = list[int](), cast("Any", SimpleNamespace())

    def unlock(lock_id: int) -> None:
        if lock_id == 7:
            raise LockOfTransaction("open")
        unlocked.append(lock_id)

    metastore = SimpleNamespace(unlock=unlock)
    table = HmsLockTable(
        cast("Any", metastore), cast("Any", {}), anything, cast("Any", Turns()), anything, anything, anything
    )
    listed = [replace(entry(f"hms-{number}"), generation=Generation(number)) for number in (7, 8, 9)]
    monkeypatch.setattr(table, "_listed", lambda: listed)
    with pytest.raises(PartlyFreed, match="a part of the locks was freed, and the release of another one was refused"):
        table.free(None, listed[0].resource)
    assert [8, 9] == unlocked
    monkeypatch.setattr(table, "_listed", lambda: listed[:1])
    with pytest.raises(LockRefused, match="belongs to a transaction"):
        table.free(None, listed[0].resource)


def test_what_would_be_freed_is_not_reported_as_freed() -> None:
    with pytest.raises(LockServiceUnavailable):
        sides(zookeeper=True).reap(dry_run=True)


@pytest.mark.parametrize(
    "last, is_freed", [(lambda: False, True), (lambda: True, True), (None, False)], ids=["gone", "removed", "there"]
)
def test_what_is_there_after_a_lost_reply_was_not_freed(last: Callable[[], bool] | None, is_freed: bool) -> None:
    """A request that is gone counts as freed; one that the service keeps, because its owner lives again, does not."""
    one, answers = entry("one"), iter([Interrupted("no answer"), last])

    def remove() -> bool:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise NotRemoved
        return answer()

    def repeat(call: Callable[[], bool]) -> bool:
        try:
            return call()
        except Interrupted:
            return call()

    freed = FreedLocks()
    assert freed.free([one], remove, repeat=repeat) is is_freed
    assert ([one] if is_freed else [], []) == (list(freed), list(freed.maybe))
