"""What was released by force is reported although the lock service fails halfway."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from commit_coord.errors import LockServiceUnavailable, PartlyFreed
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.locks.migration.sides import Sides
from commit_coord.model import LockEntry, LockMode, LockScope, LockState, Owner, Resource


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


def test_what_would_be_freed_is_not_told_as_freed() -> None:
    with pytest.raises(LockServiceUnavailable):
        sides(zookeeper=True).reap(dry_run=True)
