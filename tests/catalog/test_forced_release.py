"""``catalog.unlock``: whose locks it releases, whose it spares, and what their owners learn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Self

import pytest

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.errors import LockError, LockRefused
from commit_coord.model import LockMode, Resource
from commit_coord.process import this_owner
from tests import limits
from tests.catalog.kit import EVERY_LOCK_MANAGER, Kit, kit_of
from tests.processes import until

X = LockMode.EXCLUSIVE


@pytest.fixture(params=EVERY_LOCK_MANAGER)
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog with each of the lock managers."""
    with kit_of(request) as found:
        yield found


@pytest.fixture
def operator(made: Kit) -> Iterator[CoordinatedCatalog]:
    """Another client of that catalog."""
    opened = made.open()
    yield opened
    opened.close()


class Waiter:
    """A thread that waits for X on a resource, and with *holds* holds it until the test has it released."""

    def __init__(self, catalog: CoordinatedCatalog, resource: Resource, *, holds: bool = False) -> None:
        self.granted, self.let_go = threading.Event(), threading.Event()
        if not holds:
            self.let_go.set()
        self.error: LockError | None = None
        self._catalog, self._resource = catalog, resource
        self._thread = threading.Thread(target=self._wait)
        before = len(catalog.show_locks())
        self._thread.start()
        until(lambda: len(catalog.show_locks()) > before, "a waiter")

    def _wait(self) -> None:
        try:
            with self._catalog.lock_operation({self._resource: X}, statement="waits"):
                self.granted.set()
                self.let_go.wait(limits.PATIENCE)
        except LockError as error:
            self.error = error

    def ended(self) -> Self:
        """Return itself once it waits no more."""
        self._thread.join()
        return self


def test_the_holder_is_released_and_the_waiter_gets_the_lock(made: Kit, operator: CoordinatedCatalog) -> None:
    table = Resource((made.namespace, "t"))
    held = made.catalog.lock_operation({table: X}, statement="holds")
    waiter = Waiter(made.catalog, table)
    assert ["holds"] == [one.owner.statement for one in operator.unlock(resource=table, dry_run=True)]
    assert ["holds"] == [one.owner.statement for one in operator.unlock(resource=table)]
    assert waiter.ended().error is None
    held.release()


def test_a_waiter_that_is_released_learns_by_whom(made: Kit, operator: CoordinatedCatalog) -> None:
    table = Resource((made.namespace, "t"))
    with made.catalog.lock_operation({table: X}, statement="holds") as held:
        waiter = Waiter(made.catalog, table)
        (waits,) = [one for one in operator.show_locks() if one.owner.statement == "waits"]
        assert [waits.request_id] == [
            one.request_id for one in operator.unlock(request_id=waits.request_id, why="late")
        ]
        error, me = waiter.ended().error, this_owner()
        held.ensure_active(0)
    assert isinstance(error, LockRefused)
    told = {"released_by": f"{me.user}@{me.host} pid {me.pid}", "why": "late"}
    assert told == {key: error.details[key] for key in ("released_by", "why") if key in error.details}
    assert not made.catalog.show_locks(Resource((made.namespace,)))


def test_what_has_changed_since_it_was_shown_is_left(made: Kit, operator: CoordinatedCatalog) -> None:
    """A person has agreed to the end of a waiter; by now it holds, and may be in the middle of its work."""
    table, other = Resource((made.namespace, "t")), Resource((made.namespace, "other"))
    held = made.catalog.lock_operation({table: X}, statement="holds")
    also = made.catalog.lock_operation({other: X}, statement="holds, too")
    waiter = Waiter(made.catalog, table, holds=True)
    shown = [
        *operator.unlock(resource=table, waiters=True, dry_run=True),
        *operator.unlock(resource=other, dry_run=True),
    ]
    assert {"holds", "waits", "holds, too"} == {one.owner.statement for one in shown}
    held.release()
    until(waiter.granted.is_set, "the waiter has its lock")
    assert {"holds, too"} == {one.owner.statement for one in operator.unlock(shown=shown)}
    assert {"waits"} == {one.owner.statement for one in operator.show_locks() if made.namespace in one.resource.path}
    waiter.let_go.set()
    assert waiter.ended().error is None
    also.release()


def test_waiters_are_released_when_that_is_asked_for(made: Kit, operator: CoordinatedCatalog) -> None:
    table = Resource((made.namespace, "t"))
    held = made.catalog.lock_operation({table: X}, statement="holds")
    waiter = Waiter(made.catalog, table)
    freed = operator.unlock(resource=table, waiters=True)
    assert {"holds", "waits"} == {one.owner.statement for one in freed}
    assert isinstance(waiter.ended().error, LockRefused)
    held.release()
