"""A change in the database of a SQL catalog: what follows its COMMIT proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, exc, text

from commit_coord import doubt
from commit_coord.catalog.sql_changes import send_once
from commit_coord.protocol.commit import SwapResult

FAILURES: list[Exception] = [
    exc.OperationalError("COMMIT", None, Exception("the connection broke")),
    exc.TimeoutError("no connection of the pool was free"),
    exc.IntegrityError("INSERT", None, Exception("a constraint refuses it")),
]
THE_CALLER_S = [RuntimeError("a time limit is over"), TimeoutError("so is this one"), KeyboardInterrupt()]


def changed(change: Callable[[Connection], bool], *, after: BaseException | None = None, tries: int = 1) -> SwapResult:
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


@pytest.mark.parametrize("failure", [*FAILURES, *THE_CALLER_S], ids=lambda error: type(error).__name__)
def test_a_failure_before_the_commit_is_raised(failure: BaseException) -> None:
    def change(_: Connection) -> bool:
        raise failure

    with doubt.watching():
        with pytest.raises(type(failure)):
            changed(change)
        assert not doubt.is_open()


@pytest.mark.parametrize("when", ["in the commit", "after it"])
@pytest.mark.parametrize("failure", THE_CALLER_S, ids=lambda error: type(error).__name__)
def test_an_error_of_the_caller_is_raised_and_leaves_the_change_in_doubt(
    failure: BaseException, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler of theirs has raised it, or a listener of the pool."""

    def commit(self: Connection) -> None:
        raise failure

    if when == "in the commit":
        monkeypatch.setattr(Connection, "commit", commit)
    with doubt.watching():
        with pytest.raises(type(failure)):
            changed(lambda _: True, after=failure if when == "after it" else None)
        assert doubt.is_open()


@pytest.mark.parametrize("failure", [*FAILURES, *THE_CALLER_S], ids=lambda error: type(error).__name__)
def test_what_a_failed_commit_left_is_seen_by_nobody(failure: BaseException, tmp_path: Path) -> None:
    """SQLAlchemy gives the connection back to its pool as it is, with its transaction."""
    engine = create_engine(f"sqlite:///{tmp_path}/c.db")
    with engine.begin() as made:
        made.execute(text("CREATE TABLE t (a)"))

    def connected(work: Callable[[Connection], Any]) -> Any:
        with engine.connect() as connection:
            return work(connection)

    def failing(_: Connection) -> None:
        raise failure

    event.listen(engine, "commit", failing, once=True)
    with doubt.watching():
        with pytest.raises(type(failure)):
            send_once(connected, lambda connection: bool(connection.execute(text("INSERT INTO t VALUES (1)"))), "it")
        assert not doubt.is_open(), "the driver still had the transaction"
    assert connected(lambda connection: connection.execute(text("SELECT a FROM t")).all()) == []
    engine.dispose()


def test_a_change_that_is_sent_is_not_sent_again() -> None:
    sent: list[int] = []

    def change(_: Connection) -> bool:
        sent.append(1)
        return True

    assert changed(change, tries=2) is SwapResult.LOST_REPLY
    assert sent == [1]


def test_another_base_is_no_change() -> None:
    assert changed(lambda _: False) is SwapResult.MOVED


@pytest.mark.parametrize("failure", THE_CALLER_S, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", ["before COMMIT", "behind COMMIT"])
def test_a_database_in_memory_outlives_an_error_of_the_caller(
    failure: BaseException, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone with its connection."""
    engine = create_engine("sqlite:///:memory:")
    with engine.begin() as made:
        made.execute(text("CREATE TABLE t (a)"))
    commit = Connection.commit

    def failing(self: Connection) -> None:
        if at == "behind COMMIT":
            commit(self)
        raise failure

    def connected(work: Callable[[Connection], Any]) -> Any:
        with engine.connect() as connection:
            return work(connection)

    with monkeypatch.context() as patched, doubt.watching(), pytest.raises(type(failure)):
        patched.setattr(Connection, "commit", failing)
        send_once(connected, lambda connection: bool(connection.execute(text("INSERT INTO t VALUES (1)"))), "it")
    assert connected(lambda connection: connection.execute(text("SELECT a FROM t")).all()) == (
        [(1,)] if at == "behind COMMIT" else []
    )
    engine.dispose()
