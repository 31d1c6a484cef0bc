"""What a metastore does not answer is tried again; the first attempt counts like the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from commit_coord.hms import calls
from commit_coord.hms.calls import FailedOver, MetastoreCaller
from commit_coord.hms.connection import LostReply, MetaError, MetastoreAccess, MetastoreServerFailed, NotSent


class _Pool:
    """Connections whose calls end in turn as they are told to."""

    reached = True
    address = "thrift://one:9083"

    def __init__(self, ends: Sequence[Exception | str], takes_s: float = 0.0) -> None:
        self.ends, self.calls, self._takes_s = list(ends), 0, takes_s

    @contextmanager
    def connection(self) -> Iterator[Any]:
        yield self

    def call(self, name: str, *arguments: Any, **options: Any) -> str:
        time.sleep(self._takes_s)  # the subject: a server that takes its time
        self.calls += 1
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def _caller(pool: _Pool, *, timeout_ms: int = 30_000, uris: str = "thrift://one:9083") -> MetastoreCaller:
    made: Any = MetastoreCaller(uris, MetastoreAccess(timeout_ms=timeout_ms))
    made.pool = pool
    caller: MetastoreCaller = made
    return caller


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "wait_random_exponential", lambda **_: lambda _: 0.0)


def test_a_call_that_is_answered_is_made_once_and_never_meets_tenacity(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = _Pool(["here", "there"])
    monkeypatch.setattr(calls, "Retrying", None)
    assert (_caller(pool).repeat("get"), _caller(pool).send("set")) == ("here", "there")


@pytest.mark.parametrize("error", [NotSent("away"), LostReply("lost"), MetastoreServerFailed("failed")])
def test_what_changes_nothing_is_tried_again(error: Exception) -> None:
    pool = _Pool([error, error, "here"])
    caller = _caller(pool)
    assert caller.repeat("get") == "here"
    assert pool.calls == 3 == caller.sent["get"]


@pytest.mark.parametrize("error", [LostReply("lost"), MetastoreServerFailed("failed"), MetaError("no")])
def test_what_may_have_been_carried_out_is_sent_once(error: Exception) -> None:
    pool = _Pool([error, "never"])
    with pytest.raises(type(error)):
        _caller(pool).send("set")
    assert pool.calls == 1


@pytest.mark.parametrize("ask", [MetastoreCaller.repeat, MetastoreCaller.send])
def test_a_caller_that_fails_over_decides_itself(ask: Callable[..., Any]) -> None:
    pool = _Pool([FailedOver("another one"), "never"])
    with pytest.raises(FailedOver):
        ask(_caller(pool), "get")
    assert pool.calls == 1


def test_a_server_fails_four_times() -> None:
    pool = _Pool([MetastoreServerFailed("failed")] * 9)
    with pytest.raises(MetastoreServerFailed):
        _caller(pool).repeat("get")
    assert pool.calls == 4


@pytest.mark.parametrize("servers, most", [(1, 1), (3, 3)])
def test_the_time_and_the_server_of_the_first_attempt_count(servers: int, most: int) -> None:
    """A first attempt that took the whole timeout leaves no time for more than each server's own chance."""
    pool = _Pool([LostReply("lost")] * 9, takes_s=0.05)
    uris = ",".join(f"thrift://host{number}:9083" for number in range(servers))
    with pytest.raises(LostReply):
        _caller(pool, timeout_ms=40, uris=uris).repeat("get")
    assert pool.calls == most


def test_no_call_is_tried_again_when_its_time_is_over() -> None:
    pool = _Pool([LostReply("lost")] * 9, takes_s=0.05)
    caller = _caller(pool)
    with caller.within(0.04), pytest.raises(LostReply):
        caller.repeat("get")
    assert pool.calls == 1
