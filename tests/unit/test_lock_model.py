"""The pure half of the lock model: modes, contention, hierarchy, leases, waits."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commit_coord.config import configure
from commit_coord.errors import ConfigError
from commit_coord.locks.base import LockSettings
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import LeaseState, LockMode, LockRequest, LockScope, Resource
from commit_coord.process import this_owner
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.contention import nearest_blocker
from commit_coord.protocol.hierarchy import COMMANDS, Level, Operation, escalate, lock_target, operation_locks
from commit_coord.protocol.lease import TRANSITIONS, LeaseEvent, next_state
from commit_coord.protocol.modes import COMPATIBLE, compatible, stronger

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
TABLE = Resource(("db", "t"))
FINAL = (LeaseState.LOST, LeaseState.RELEASED)

Contenders = list[dict[Resource, LockMode]]
resources = st.sampled_from([TABLE, Resource(("db", "u")), Resource(("db", "t", "k=1"))])
contenders = st.lists(st.dictionaries(resources, st.sampled_from([S, X]), min_size=1), min_size=1, max_size=8)


def test_only_shared_locks_are_held_together() -> None:
    """The matrix has one yes, and is complete and symmetric."""
    assert [(S, S)] == [pair for pair, together in COMPATIBLE.items() if together]
    assert set(itertools.product(LockMode, repeat=2)) == set(COMPATIBLE)
    assert [S, X, X, X] == [stronger(one, other) for one, other in itertools.product([S, X], repeat=2)]


@given(contenders)
def test_the_nearest_blocker_is_the_last_conflict_before(queue: Contenders) -> None:
    """Looking it up in the queues finds what comparing with every predecessor finds."""
    queues: dict[Resource, dict[LockMode, list[int]]] = {}
    for place, locks in enumerate(queue, start=1):
        for resource, mode in locks.items():
            queues.setdefault(resource, {}).setdefault(mode, []).append(place)
    for place, locks in enumerate(queue, start=1):
        conflicts = [
            earlier
            for earlier, other in enumerate(queue[: place - 1], start=1)
            if any(r in other and not compatible(mode, other[r]) for r, mode in locks.items())
        ]
        assert max(conflicts, default=None) == nearest_blocker(place, locks.items(), queues)


@given(contenders)
def test_what_is_granted_together_may_be_held_together(queue: Contenders) -> None:
    """At every point of a run in which holders leave in any order, no two holders conflict, and all get their turn."""
    places = dict(enumerate(queue, start=1))
    while places:
        queues: dict[Resource, dict[LockMode, list[int]]] = {}
        for place, locks in places.items():
            for resource, mode in locks.items():
                queues.setdefault(resource, {}).setdefault(mode, []).append(place)
        holders = [p for p, locks in places.items() if nearest_blocker(p, locks.items(), queues) is None]
        assert holders, "somebody always holds"
        for one, other in itertools.combinations(holders, 2):
            shared = places[one].keys() & places[other].keys()
            assert all(compatible(places[one][r], places[other][r]) for r in shared)
        del places[holders[-1]]


def test_every_operation_has_a_rule() -> None:
    """No statement falls through the table."""
    assert set(Operation) == set(COMMANDS)


@pytest.mark.parametrize("operation", list(Operation))
def test_a_statement_names_partitions_where_its_rule_wants_them(operation: Operation) -> None:
    """Partitions for what works on a table, or none for what works on partitions, are a mistake of the caller."""
    match COMMANDS[operation].level:
        case Level.TABLE:
            with pytest.raises(ValueError, match="as a whole"):
                operation_locks(operation, TABLE, [["k=1"]])
        case Level.PARTITION:
            with pytest.raises(ValueError, match="names none"):
                operation_locks(operation, TABLE)
        case Level.TARGET:
            assert operation_locks(operation, TABLE) != operation_locks(operation, TABLE, [["k=1"]])


@pytest.mark.parametrize(
    "partition, target",
    [
        (["k=1", "h=2"], "db/t/k=1/h=2"),
        (["k=1", None], "db/t/k=1"),
        ([None, "h=2"], "db/t"),
        ([None, None], "db/t"),
        ([], "db/t"),
    ],
)
def test_dynamic_partitions_lock_what_is_known(partition: list[str | None], target: str) -> None:
    """The prefix before the first unknown value, else the table."""
    assert target == str(lock_target(TABLE, partition))


def test_a_table_with_two_live_specs_locks_as_a_whole() -> None:
    """A file may lie in partitions of either spec."""
    assert ((TABLE, X),) == operation_locks(Operation.INSERT, TABLE, [["k=1"]], live_specs=2)


def test_many_partitions_escalate_to_their_prefixes() -> None:
    """As far as needed and no further, in the strongest mode of what they replace."""
    hours = [["day=1", f"h={h}"] for h in range(3)] + [["day=2", "h=0"]]
    assert 4 == len(operation_locks(Operation.INSERT, TABLE, hours, escalate_above=4))
    days = operation_locks(Operation.INSERT, TABLE, hours, escalate_above=3)
    assert [("db/t/day=1", X), ("db/t/day=2", X)] == [(str(r), m) for r, m in days]
    assert ((TABLE, X),) == operation_locks(Operation.INSERT, TABLE, hours, escalate_above=1)
    other = Resource(("db", "u", "k=1"))
    mixed = [(Resource((*TABLE.path, "k=1")), S), (Resource((*TABLE.path, "k=2")), X), (other, S)]
    assert ((TABLE, X), (other, S)) == escalate(mixed, 1)


def test_a_name_that_is_no_text_is_refused_in_words() -> None:
    """Half of a surrogate pair: what comes of undecodable bytes, or is cut out of a longer text."""
    for name in ("k=a\ud800b", "k=\udcff"):
        with pytest.raises(ValueError, match="a name contains an unpaired surrogate, which no service can lock"):
            Resource((*TABLE.path, name))


def test_a_request_of_thousands_is_described_in_a_line() -> None:
    """Errors and logs carry it."""
    many = [(Resource((*TABLE.path, f"day={number:05d}")), X) for number in range(10_000)]
    wanted = LockRequest.of(LockScope.OPERATION, many, owner=this_owner(), request_id="r")
    text = str(wanted)
    assert text.startswith("S db/t, X db/t/day=00000, ")
    assert text.endswith(", and 9,951 more")
    assert len(text) < 2_000


def test_the_lease_table_is_complete() -> None:
    """Every state knows every event, and final states stay."""
    for state in LeaseState:
        assert set(LeaseEvent) == set(TRANSITIONS[state])
        if state in FINAL:
            assert {state} == set(TRANSITIONS[state].values())


@pytest.mark.parametrize(
    "event, age, state",
    [
        (LeaseEvent.TICK, 0.0, LeaseState.HELD),
        (LeaseEvent.TICK, 7.0, LeaseState.SUSPECT),
        (LeaseEvent.TICK, 10.0, LeaseState.LOST),
        (LeaseEvent.MISSED, 1.0, LeaseState.SUSPECT),
        (LeaseEvent.MISSED, 10.0, LeaseState.LOST),
        (LeaseEvent.DENIED, 0.0, LeaseState.LOST),
        (LeaseEvent.CONFIRMED, 0.0, LeaseState.HELD),
        (LeaseEvent.CONFIRMED, 10.0, LeaseState.LOST),
        (LeaseEvent.GIVEN_BACK, 99.0, LeaseState.RELEASED),
    ],
)
def test_a_lease_is_lost_by_the_holders_own_clock(event: LeaseEvent, age: float, state: LeaseState) -> None:
    """Counted from when the last confirmed renewal was sent, even if its confirmation comes too late."""
    assert state is next_state(LeaseState.SUSPECT if event is LeaseEvent.CONFIRMED else LeaseState.HELD, event,
                               now=100 + age, last_confirmed_at=100, lease=10)  # fmt: skip
    assert LeaseState.LOST is next_state(LeaseState.LOST, event, now=100, last_confirmed_at=100, lease=10)


def test_a_lease_without_end_ends_only_by_a_word() -> None:
    """Explicit locks are not lost by time."""
    assert LeaseState.HELD is next_state(LeaseState.HELD, LeaseEvent.TICK, now=1e9, last_confirmed_at=0, lease=None)


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_waits_grow_to_their_bound(attempt: int, draw: float) -> None:
    """Never above the maximum, never below what the jitter leaves, for any attempt."""
    policy = Backoff(initial_ms=10, maximum_ms=1000, factor=2, jitter=0.5)
    full = min(1000, 10 * 2 ** min(attempt, 10)) / 1000
    assert full / 2 <= next_wait(policy, attempt, draw) <= full


@pytest.mark.parametrize(
    "settings, key",
    [
        ({"lease_ms": 0}, "lock.heartbeat-timeout-ms"),
        ({"acquire_timeout_ms": -1}, "lock.acquire-timeout-ms"),
        ({"lease_ms": 1000, "heartbeat_interval_ms": 600}, "lock.heartbeat-interval-ms"),
    ],
)
def test_times_that_can_not_work_are_refused(settings: dict[str, int], key: str) -> None:
    """The error names the key."""
    with pytest.raises(ConfigError, match=key):
        LockSettings(**settings)


def test_a_manager_without_settings_beats_as_one_of_a_catalog_without_any() -> None:
    catalog = configure("t", {"uri": "sqlite://"}).settings
    times = LockSettings()
    assert (catalog.lock_heartbeat_timeout_ms, catalog.lock_heartbeat_interval_ms) == (
        times.lease_ms,
        times.heartbeat_interval_ms,
    )


@pytest.mark.parametrize(
    "name, uri, message",
    [
        ("zookeper", "", "accepted='none, memory, lease"),
        ("lease", "", "not a database URL"),
        ("lease", "sqlite://", "lock-impl=memory"),
        ("lease", "sqlite:///:memory:", "lock-impl=memory"),
        ("lease", "mysql://u:geheim@h/d", "mysql"),
    ],
)
def test_an_unknown_manager_or_database_is_refused(name: str, uri: str, message: str) -> None:
    """At once, with what is accepted, and without the password."""
    with pytest.raises(ConfigError, match=message) as refused:
        create_lock_manager(name, uri)
    assert "geheim" not in str(refused.value)
