"""What a lock manager has freed by force is reported when its service fails before the rest is freed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from commit_coord.errors import LockError, LockServiceUnavailable, PartlyFreed
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
