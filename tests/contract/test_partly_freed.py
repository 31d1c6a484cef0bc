"""What a lock manager has freed by force, or may have freed, is reported when its service fails meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

import pytest

from commit_coord.errors import LockError, LockServiceUnavailable, PartlyFreed
from commit_coord.hms.connection import LostReply, NotSent
from commit_coord.locks.base import Interrupted
from commit_coord.locks.forcing import telling_what_was_freed
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.model import LockEntry
from commit_coord.testing.contract import TABLE, S, Service, request, soon

FREES_ONE: dict[str, tuple[str, str]] = {
    "lease": ("_requests", "remove"),
    "zookeeper": ("_view", "remove"),
    "hms": ("_metastore", "unlock"),
}
"""Of each lock manager, the part of its table that removes one request, and the method."""

SERVICES = [
    "lease-sqlite",
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    pytest.param("hms", marks=pytest.mark.hms),
]


class Carried(Enum):
    """When a call is carried out whose answer does not arrive."""

    BEFORE = auto()
    LATE = auto()
    """Before the next call."""
    NEVER = auto()


@dataclass(frozen=True)
class Fault:
    """What happens to one call.

    Args:
        carried: When it is carried out.
        lasts: No later call is carried out or answered.
        refuses: The service says so of the later calls.
        interrupts: Ctrl-C ends the call.
    """

    carried: Carried
    lasts: bool = False
    refuses: bool = False
    interrupts: bool = False

    def __str__(self) -> str:
        kinds = (name for name in ("lasts", "refuses", "interrupts") if getattr(self, name))
        return " ".join([self.carried.name.lower(), *kinds])


FAULTS = [
    *map(Fault, Carried),
    *(Fault(carried, lasts=True) for carried in (Carried.BEFORE, Carried.NEVER)),
    Fault(Carried.BEFORE, lasts=True, refuses=True),
    *(Fault(carried, interrupts=True) for carried in Carried),
]


@dataclass
class Calls:
    """The calls of a client to its service: the one with the number *fails* has a fault.

    Args:
        fault: Which.
        fails: The number of the call; None for no fault.
    """

    fault: Fault
    fails: int | None = None
    made: int = 0
    _late: list[Callable[[], object]] = field(default_factory=list)

    def of(self, operator: HandoverLockManager, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have every call of *operator* come here."""
        table: Any = operator.parts.table  # type: ignore[attr-defined]
        names: tuple[str, ...]
        lost: type[Exception] = Interrupted
        refused: type[Exception] = LockServiceUnavailable
        match operator.name:
            case "lease":
                owner, names = table._requests.store.connection, ("run", "ask")
            case "zookeeper":
                owner, names = table._session.connection, ("ask",)
            case _:
                owner, names, lost = table._metastore, ("unlock", "show_locks"), LostReply
                refused = NotSent
        for name in names:
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name), lost, refused))

    def _failing(self, call: Callable[..., Any], lost: type[Exception], refused: type[Exception]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            while self._late:
                self._late.pop()()
            number, self.made = self.made, self.made + 1
            later = self.fails is not None and number > self.fails and self.fault.lasts
            if number != self.fails and not later:
                return call(*arguments, **named)
            if not later and self.fault.carried is Carried.BEFORE:
                call(*arguments, **named)
            elif not later and self.fault.carried is Carried.LATE:
                self._late.append(lambda: call(*arguments, **named))
            if later and self.fault.refuses:
                raise refused("the service is away")
            raise KeyboardInterrupt if self.fault.interrupts else lost("no answer")

        return called


def free(operator: HandoverLockManager, each: Sequence[str]) -> Sequence[LockEntry]:
    """Release the requests *each* by force, one after the other; without any, those of the table."""
    if not each:
        return operator.unlock(resource=TABLE)
    with telling_what_was_freed() as freed:
        for some in operator.unlock_each(each):
            freed.extend(some)
    return freed


def reported_by(free: Callable[[], object]) -> tuple[set[str], set[str]]:
    """Return the requests that are freed by what *free* returns or raises, and those that may be."""

    def ids(entries: Any) -> set[str]:
        return {entry.request_id for entry in entries}

    try:
        freed: Any = free()
    except (LockError, KeyboardInterrupt) as error:
        return ids(getattr(error, "freed", ())), ids(getattr(error, "maybe_freed", ()))
    return ids(freed), set()


@pytest.mark.parametrize("how", ["unlock", "unlock each"])
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize(
    "service", [*SERVICES, pytest.param("lease-postgresql", marks=pytest.mark.postgres)], indirect=True
)
def test_whatever_a_release_by_force_meets_it_tells_what_is_free_and_what_may_be(
    service: Service, fault: Fault, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, *holders = (service.open() for _ in range(3))
    if fault.lasts:
        monkeypatch.setattr("commit_coord.locks.keeping.BRIEFLY", 0.0)  # no answer will come
    calls = Calls(fault)
    calls.of(operator, monkeypatch)
    for number in itertools.count():
        with ExitStack() as held:
            wanted = [request((S, TABLE), statement=f"reader {of}") for of in range(len(holders))]
            for holder, one in zip(holders, wanted, strict=True):
                held.enter_context(holder.acquire(one, deadline=soon()))
            ids = [one.request_id for one in wanted]

            calls.fails, calls.made = number, 0
            freed, maybe = reported_by(partial(free, operator, [] if how == "unlock" else ids))
            ended, calls.fails = calls.made <= number, None
            standing = {entry.request_id for entry in operator.locks()}
            assert not freed & standing, number
            assert {*ids} - standing <= freed | maybe, number
            with suppress(LockError):
                operator.unlock(resource=TABLE)
        if ended:
            assert {*ids} == freed
            return


@pytest.mark.parametrize("freed_before", [0, 1, 2])
@pytest.mark.parametrize("service", SERVICES, indirect=True)
def test_a_release_by_force_that_fails_midway_tells_what_it_has_released(
    service: Service, freed_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would know, and no audit log would have it."""
    with ExitStack() as held:
        operator: Any = service.open()
        requests = [request((S, TABLE), statement=f"reader {number}") for number in range(3)]
        for one in requests:
            held.enter_context(service.open().acquire(one, deadline=soon()))
        part, method = FREES_ONE[operator.name]
        owner = getattr(operator.parts.table, part)
        frees = getattr(owner, method)
        done: list[Any] = []

        def frees_some(*arguments: Any, **named: Any) -> Any:
            if len(done) == freed_before:
                raise LockServiceUnavailable("no answer")
            done.append(arguments)
            return frees(*arguments, **named)

        with monkeypatch.context() as failing:
            failing.setattr(owner, method, frees_some)
            with pytest.raises(LockError) as told:
                operator.unlock(resource=TABLE)
        standing = {entry.request_id for entry in operator.locks()}
        assert 3 - freed_before == len(standing)
        gone = {entry.request_id for entry in told.value.freed} if isinstance(told.value, PartlyFreed) else set()
        assert {one.request_id for one in requests} - standing == gone
        operator.unlock(resource=TABLE)
