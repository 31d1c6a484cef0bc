"""Simulated runs whose clients write through two REST servers: they keep every promise, and they are not blind."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from commit_coord.catalog import requested
from commit_coord.catalog.requested import RequestedCommit
from commit_coord.catalog.sent_before import SentBefore
from commit_coord.coordinator import outcome as outcome_module
from commit_coord.coordinator import services as services_module
from commit_coord.iceberg import rebase as rebase_module
from commit_coord.model import LockScope
from commit_coord.protocol.commit import SwapResult
from commit_coord.rest.answered import KeyedRequests
from tests.limits import some
from tests.proof.sim.plan import Job, Kind, Locks, Plan, Writer, draw_rest
from tests.proof.sim.run import Outcome
from tests.proof.sim.services import Client, Condition
from tests.proof.sim.serving import simulate_rest
from tests.proof.sim.world import CALM, Blow, Fault, Weather

Patch = Callable[[pytest.MonkeyPatch], None]

SEEDS = 25
"""Runs of one test. `make sim ARGS=--rest` runs thousands."""


def _is_locked_for_ever(outcome: Outcome) -> bool:
    """Return whether a writer that only locks has left its lock: people free it, so nothing can land.

    At the end of a run, the process ``next`` acquires everything once.
    """
    if outcome.plan.locks is not Locks.HMS or all(one.kind is not Kind.ONLY_LOCKS for one in outcome.plan.writers):
        return False
    return sum(event.who == "next" and event.what.startswith("holds ") for event in outcome.history) < len(LockScope)


def _seldom_done(outcomes: Iterable[Outcome]) -> dict[str, str]:
    """Return the kinds of jobs, and of locks, with which two of three commits or more were not answered with 200.

    Where next to nothing is done, no promise is broken. So these runs would prove nothing about their kind.
    """
    asked, done = Counter[str](), Counter[str]()
    for outcome in outcomes:
        if _is_locked_for_ever(outcome):
            continue
        answered = {event.what.split()[-1] for event in outcome.history if "answers 200 to" in event.what}
        for client in outcome.plan.writers:
            for number, job in enumerate(client.jobs if client.kind is Kind.CLIENT else ()):
                streams = {Job.CHECKPOINT: f"flink.{number + 1}", Job.OFFSETS: f"kafka.{number + 1}"}
                for kind in (job, outcome.plan.locks):
                    asked[kind] += 1
                    done[kind] += streams.get(job, f"{client.name}.{number}") in answered
    return {kind: f"{done[kind]} of {asked[kind]}" for kind in asked if 3 * done[kind] <= asked[kind]}


@pytest.mark.parametrize("first", some(range(1, 51, SEEDS), range(51, 101, SEEDS)))
def test_runs_keep_every_promise(first: int) -> None:
    outcomes = {seed: simulate_rest(draw_rest(seed)) for seed in range(first, first + SEEDS)}
    assert {seed: outcome.broken for seed, outcome in outcomes.items() if outcome.broken} == {}
    assert _seldom_done(outcomes.values()) == {}


def test_a_seed_repeats_its_history() -> None:
    plans = [draw_rest(seed) for seed in range(1, 11)]
    digests = [simulate_rest(plan).digest for plan in plans]
    assert digests == [simulate_rest(plan).digest for plan in reversed(plans)][::-1]
    assert len(set(digests)) == len(digests)
    told = "from tests.proof.sim.serving import *; from tests.proof.sim.plan import draw_rest; "
    told += "print(*[simulate_rest(draw_rest(seed)).digest for seed in range(1, 11)])"
    done = subprocess.run(
        [sys.executable, "-c", told], env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True
    )
    assert digests == done.stdout.split()


# -- guards that are taken away ------------------------------------------------------------------------------


def _looks_for_no_earlier_try(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SentBefore, "landed_in", lambda self, head, location: None)


def _looks_no_more_before_it_refuses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SentBefore, "landed_after", lambda self, refused: None)


def _has_every_append_follow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestedCommit, "_is_declared", lambda self, found, head: True)


def _compares_no_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebase_module, "checkpoint_in_table", lambda *_: None)
    patch.setattr(requested, "checkpoint_in_table", lambda *_: None)


def _compares_no_offsets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebase_module, "offsets_moved", lambda *_: None)
    patch.setattr(requested, "offsets_moved", lambda *_: None)


def _has_a_stream_try_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestedCommit, "refuse_late_streams", lambda self, refused: None)


def _knows_no_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commit_coord.coordinator.services.landed", lambda *_: None)


def _takes_a_lost_answer_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    real = Client.swap

    def swap(self: Client, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        result = real(self, table, base, location)
        return SwapResult.MOVED if result is SwapResult.LOST_REPLY else result

    patch.setattr(Client, "swap", swap)


def _knows_only_the_history(patch: pytest.MonkeyPatch) -> None:
    """The three guards of what a table forgets back each other up."""
    patch.setattr(KeyedRequests, "answer", lambda *_: None)
    patch.setattr(outcome_module, "_remember", lambda *_: None)
    patch.setattr(services_module, "shows_all_since", lambda *_: True)


def _takes_a_latch_that_was_not_granted_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcome_module, "doubt", lambda *_, **__: None)


# -- faults --------------------------------------------------------------------------------------------------


_CALM: dict[str, Any] = dict.fromkeys(("pointer_weather", "lock_weather", "file_weather"), CALM)


def _clients(plan: Plan, *jobs: Job, keyed: bool = True, tries: int = 5) -> tuple[Writer, ...]:
    """The servers, and two clients that do *jobs*."""
    servers = [replace(one, rate=1.0) for one in plan.writers if one.kind is Kind.SERVER]
    clients = [Writer(name=name, jobs=jobs, kind=Kind.CLIENT, keyed=keyed, tries=tries) for name in ("c1", "c2")]
    return (*servers, *clients)


def _with(plan: Plan, writers: tuple[Writer, ...], weather: Weather, *faults: Fault) -> Plan:
    return replace(
        plan,
        writers=writers,
        faults=faults,
        outages=(),
        net_weather=weather,
        locks=plan.locks if plan.locks in (Locks.HOST, Locks.SERVER, Locks.ZOOKEEPER) else Locks.HOST,
        log_length=100,
    )


def _with_doubles(plan: Plan) -> Plan:
    """Half of the requests are doubled, and many answers are lost."""
    jobs = (Job.REST_APPEND, Job.REST_BLIND, Job.REST_CHANGE)
    return _with(plan, _clients(plan, *jobs), Weather(unanswered=0.2, late=0.1, twice=0.4))


def _with_short_logs(plan: Plan) -> Plan:
    """A copy of a change comes when the log of the table does not name its key any more: only its answer is kept.

    The services answer at once. Otherwise an answer may not be kept, or a copy that has found none may take so long
    that the log forgets the other one; then such a change is carried out twice (``docs/rest.md``).
    """
    late = _with(plan, _clients(plan, *(Job.REST_CHANGE,) * 8), Weather(late=0.3, twice=0.3))
    return replace(late, **_CALM, log_length=4)


def _with_stopped_servers(plan: Plan) -> Plan:
    """One server is stopped for longer than the other one waits for the latch, which it may hold."""
    stop = Fault(process="s1", step=3 + plan.seed % 20, blow=Blow.PAUSE, seconds=8.0)
    doubled = _with(plan, _clients(plan, Job.REST_APPEND, Job.REST_BLIND), Weather(unanswered=0.1, twice=0.6), stop)
    return replace(doubled, acquire_timeout_ms=5_000)


def _with_twins(plan: Plan) -> Plan:
    """Commits without keys are doubled, and nothing but each other is in their way."""
    jobs = (Job.REST_APPEND, Job.REST_BLIND)
    clients = tuple(replace(one, doubled=True) for one in _clients(plan, *jobs, keyed=False, tries=1))
    doubled = _with(plan, clients, Weather(twice=0.9))
    return replace(doubled, **_CALM, locks=Locks.HOST, acquire_timeout_ms=600_000, condition=Condition.COMPARES)


def _with_killed_servers(plan: Plan) -> Plan:
    """Both servers die, each at another step each time."""
    deaths = [
        Fault(process=name, step=2 + plan.seed * times % 40, blow=Blow.CRASH) for name, times in (("s1", 3), ("s2", 7))
    ]
    jobs = [Job.REST_APPEND, Job.REST_BLIND, Job.REST_CHANGE]
    first = plan.seed % len(jobs)  # They die early, so each kind is the first one in some runs.
    return _with(plan, _clients(plan, *jobs[first:], *jobs[:first]), CALM, *deaths)


def _with_lost_swaps(plan: Plan) -> Plan:
    """The pointer store answers late or not at all."""
    jobs = (Job.REST_APPEND, Job.REST_BLIND)
    lost = _with(plan, _clients(plan, *jobs, keyed=False, tries=1), CALM)
    return replace(lost, pointer_weather=Weather(unanswered=0.1, late=0.3))


def _with_replaced_instances(job: Job) -> Callable[[Plan], Plan]:
    """An instance of a stream is replaced while its commits are under way."""

    def under(plan: Plan) -> Plan:
        servers = [one for one in plan.writers if one.kind is Kind.SERVER]
        instances = [
            Writer(name=name, jobs=(job, job), kind=Kind.CLIENT, begins=begins)
            for name, begins in (("old", 0.0), ("new", 0.02 * (plan.seed % 5)))
        ]
        other = Writer(name="c1", jobs=(Job.REST_APPEND,), kind=Kind.CLIENT)
        return _with(plan, (*servers, *instances, other), Weather(late=0.3, slow=0.3))

    return under


FAULTS = {
    "doubles": _with_doubles,
    "short logs": _with_short_logs,
    "stopped servers": _with_stopped_servers,
    "twins": _with_twins,
    "killed servers": _with_killed_servers,
    "lost swaps": _with_lost_swaps,
    "replaced Flink jobs": _with_replaced_instances(Job.CHECKPOINT),
    "replaced coordinators of Kafka Connect": _with_replaced_instances(Job.OFFSETS),
}


@pytest.mark.parametrize("under", FAULTS)
def test_runs_under_one_kind_of_fault_keep_every_promise(under: str) -> None:
    outcomes = {seed: simulate_rest(FAULTS[under](draw_rest(seed))) for seed in range(1, 51)}
    assert {seed: outcome.broken for seed, outcome in outcomes.items() if outcome.broken} == {}
    assert _seldom_done(outcomes.values()) == {}


@pytest.mark.parametrize(
    "remove, under, promise",
    [
        (_looks_for_no_earlier_try, "doubles", "RefusedNever"),
        (_looks_no_more_before_it_refuses, "twins", "RefusedNever"),
        (_has_every_append_follow, "doubles", "Unbroken"),
        (_knows_no_key, "doubles", "NoneTwice"),
        (_knows_no_key, "killed servers", "NoneTwice"),
        (_looks_for_no_earlier_try, "killed servers", "RefusedNever"),
        (_knows_only_the_history, "short logs", "NoneTwice"),
        (_takes_a_lost_answer_for_a_failure, "lost swaps", "RefusedNever"),
        (_takes_a_latch_that_was_not_granted_for_a_failure, "stopped servers", "RefusedNever"),
        (_compares_no_checkpoints, "replaced Flink jobs", "NoneTwice"),
        (_compares_no_offsets, "replaced coordinators of Kafka Connect", "NoneTwice"),
        (_has_a_stream_try_again, "replaced coordinators of Kafka Connect", "NoneTwice"),
    ],
)
def test_a_guard_that_is_gone_is_missed(
    remove: Patch, under: str, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within so many runs the promise is broken; with the guard it is kept in all of them. No kind of fault is idle."""
    plans = [FAULTS[under](draw_rest(seed)) for seed in range(1, 251)]  # the rarest: 24 of 1,500 runs break NoneTwice

    def breaks(plan: Plan) -> bool:
        return any(one.startswith(promise) for one in simulate_rest(plan).broken)

    remove(monkeypatch)
    broken = next(filter(breaks, plans), None)
    assert broken is not None
    monkeypatch.undo()
    assert simulate_rest(broken).broken == ()


# -- bugs ----------------------------------------------------------------------------------------------------


def _raises(*_: object) -> None:
    raise AttributeError("a bug")


def _cannot_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commit_coord.rest.commits.refuse_classes_in", _raises)


def _cannot_look_into_tables(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("commit_coord.coordinator.services.landed", _raises)


def _cannot_keep_answers(patch: pytest.MonkeyPatch) -> None:
    remember = KeyedRequests._remember

    def remember_starts(self: KeyedRequests, entry_id: str, *kept: Any) -> None:
        return _raises() if entry_id.endswith(":answer") else remember(self, entry_id, *kept)

    patch.setattr(KeyedRequests, "_remember", remember_starts)


@pytest.mark.parametrize("has", [_cannot_check, _cannot_look_into_tables, _cannot_keep_answers])
def test_a_bug_breaks_runs_although_it_ends_in_an_answer_or_in_the_log(
    has: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch)
    broken = [one for seed in range(1, 6) for one in simulate_rest(_with_doubles(draw_rest(seed))).broken]
    assert {one.partition(":")[0] for one in broken} == {"NoBugs"}


# -- turns ---------------------------------------------------------------------------------------------------


def _refusals(outcome: Outcome) -> dict[str, int]:
    told = [event.what for event in outcome.history if "answers 409" in event.what]
    marks = [what.split(" to ")[1].split(":")[0] for what in told]
    return {mark: marks.count(mark) for mark in marks}


@pytest.mark.parametrize("seed", range(5))
def test_a_server_refuses_a_client_once_where_nothing_goes_wrong(seed: int) -> None:
    clients = [
        Writer(name=f"c{n}", jobs=(Job.REST_APPEND,) * 3, kind=Kind.CLIENT, begins=0.003 * n * seed)
        for n in range(1, 9)
    ]
    plan = replace(
        draw_rest(1),
        seed=seed,
        locks=Locks.HOST,
        writers=(Writer(name="s1", jobs=(), kind=Kind.SERVER), *clients),
        faults=(),
        outages=(),
        net_weather=CALM,
        reserved_ms=5_000,
        **_CALM,
    )
    outcome = simulate_rest(plan)
    assert () == outcome.broken
    assert len(clients) * 3 == outcome.acknowledged
    assert {1} == set(_refusals(outcome).values())
    without = simulate_rest(replace(plan, reserved_ms=0))
    assert max(_refusals(without).values()) > 1
