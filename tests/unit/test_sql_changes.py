"""A change in the database of a SQL catalog: what follows its COMMIT proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, exc

from commit_coord.catalog.sql_changes import send_once
from commit_coord.protocol.commit import SwapResult

FAILURES: list[Exception] = [
    exc.OperationalError("COMMIT", None, Exception("the connection broke")),
    exc.TimeoutError("no connection of the pool was free"),
    exc.IntegrityError("INSERT", None, Exception("a constraint refuses it")),
    RuntimeError("a listener of the pool failed"),
]


def changed(change: Callable[[Connection], bool], *, after: Exception | None = None, tries: int = 1) -> SwapResult:
    """Send *change*; then *after* is raised, or the change is tried as many times."""

    def connected(work: Callable[[Connection], Any]) -> Any:
        with create_engine("sqlite://").connect() as connection:
            results = [work(connection) for _ in range(tries)]
        if after is not None:
            raise after
        return results[-1]

    return send_once(connected, change, "it")


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failure_after_the_commit_is_a_lost_reply(failure: Exception) -> None:
    assert changed(lambda _: True, after=failure) is SwapResult.LOST_REPLY


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failure_of_the_commit_is_a_lost_reply(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: Connection) -> None:
        raise failure

    monkeypatch.setattr(Connection, "commit", commit)
    assert changed(lambda _: True) is SwapResult.LOST_REPLY


@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failure_before_the_commit_is_raised(failure: Exception) -> None:
    def change(_: Connection) -> bool:
        raise failure

    with pytest.raises(type(failure)):
        changed(change)


def test_a_change_that_is_sent_is_not_sent_again() -> None:
    sent: list[int] = []

    def change(_: Connection) -> bool:
        sent.append(1)
        return True

    assert changed(change, tries=2) is SwapResult.LOST_REPLY
    assert sent == [1]


def test_another_base_is_no_change() -> None:
    assert changed(lambda _: False) is SwapResult.MOVED
