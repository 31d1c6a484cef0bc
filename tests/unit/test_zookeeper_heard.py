"""What a client believes of its session against a leader that hears of it through followers alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from commit_coord.locks.zookeeper.session_age import Heard

RELAY = 1.0


@dataclass
class Ensemble:
    """A leader, and the follower that the client is connected with. Times only grow."""

    now: float = 0.0
    heard_at: float = 0.0
    """When the leader last heard of the session."""
    next_ping: float = 0.0
    touched: bool = False
    frozen: bool = False
    seen: list[float] = field(default_factory=list)

    def turn(self, seconds: float, ping_after: float) -> None:
        """Let time pass; the leader pings the follower whenever a ping is due."""
        end = self.now + seconds
        while self.next_ping <= end:
            self.now = max(self.now, self.next_ping)
            if self.touched and not self.frozen:
                self.heard_at, self.touched = self.now, False
            self.next_ping += ping_after
        self.now = end


class Client:
    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble, self.heard = ensemble, Heard()

    def connect(self, travel: float, ping_after: float) -> None:
        """To a follower, which asks the leader whether the session is alive."""
        self.heard.connecting(self.ensemble.now)
        self.ensemble.turn(travel, ping_after)
        self.ensemble.frozen = self.ensemble.touched = False
        self.ensemble.heard_at = self.ensemble.now
        self.ensemble.turn(travel, ping_after)
        self.heard.connected()

    def ask(self, travel: float, ping_after: float, *, leader: bool) -> None:
        """Send a packet and take the answer, unless the follower is frozen."""
        sent = self.ensemble.now
        self.ensemble.turn(travel, ping_after)
        if self.ensemble.frozen:
            return
        self.ensemble.touched = True
        self.ensemble.turn(travel, ping_after)
        self.heard.answered(sent, self.ensemble.now, relay=RELAY, by_leader=leader)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ping", "ask the leader", "ask the leader", "idle", "freeze", "connect"]),
        st.floats(0.0, 0.5),
        st.floats(0.05, RELAY),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_a_client_never_believes_that_the_leader_heard_of_it_later_than_it_did(
    steps: list[tuple[str, float, float]],
) -> None:
    ensemble = Ensemble()
    client = Client(ensemble)
    client.connect(0.01, RELAY)
    for what, seconds, ping_after in steps:
        match what:
            case "ping":
                client.ask(seconds / 10, ping_after, leader=False)
            case "ask the leader":
                client.ask(seconds / 10, ping_after, leader=True)
            case "idle":
                ensemble.turn(seconds * 4, ping_after)
            case "freeze":
                ensemble.frozen = True
            case _:
                client.connect(seconds, ping_after)
        assert client.heard.since <= ensemble.heard_at


def test_a_client_that_asks_the_leader_regularly_is_believed_to_be_heard_of() -> None:
    """At most two of its intervals and one relay ago."""
    ensemble = Ensemble()
    client = Client(ensemble)
    client.connect(0.01, RELAY)
    for _ in range(50):
        ensemble.turn(0.4, RELAY / 2)
        client.ask(0.01, RELAY / 2, leader=True)
        assert client.heard.since >= ensemble.now - RELAY - 2 * 0.45


def test_what_a_client_notes_does_not_grow_with_what_it_asks() -> None:
    heard = Heard()
    for number in range(10_000):
        heard.answered(number / 10_000, number / 10_000, relay=RELAY, by_leader=False)
    assert len(heard._packets) < 20


def test_a_packet_of_an_earlier_connection_is_nothing_to_go_by() -> None:
    """Its follower may have kept it to itself; the new one tells the leader of the new connection alone."""
    heard = Heard()
    heard.connecting(0.0)
    heard.connected()
    heard.answered(5.0, 5.1, relay=RELAY, by_leader=False)
    heard.connecting(4.0)  # a clock that a test turns: nothing rests on which of the two was sent first
    heard.connected()
    heard.answered(7.0, 7.1, relay=RELAY, by_leader=True)
    assert 4.0 == heard.since
