"""The time from which the leader of an ensemble counts the timeout of a session. Pure.

Theory of operation
    The leader expires a session one session timeout after the leader last *heard* of the session, rounded up to the
    leader's ticks. It hears of the sessions of a follower only when the follower answers the leader's ping, once in
    half a tick. A write or a sync that the follower forwards for a client does not count. So an answer of the leader
    proves that the session is alive, but not that its timeout has started again:

    1. A client sends a packet at 0, and a sync at 5. The leader answers both through a follower.
    2. The follower reports the session to the leader at 0.3. The follower freezes at 5.1, before the next ping.
    3. The leader expires the session one timeout after 0.3, while the client has counted from 5.

    What a client can know: after a follower has answered a packet of a session, the follower reports the session in its
    reply to the leader's next ping. It sends this reply and the client's later requests on the same connection, so the
    leader receives the report first if the request was sent at least one *relay* (the longest time between two pings)
    after that answer. If the leader answers such a request, it has heard of the session at or after the time when the
    packet was sent. The leader hears of a new connection at once.

    The client does not know the tick. A server accepts no session timeout below ``minSessionTimeout``, two ticks
    by default: so half a tick is at most a quarter of the negotiated timeout.

Source: ZooKeeper ``Leader.lead``, ``LearnerHandler``, ``Learner.ping``, ``LearnerHandler.revalidateSession``.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

RELAY = 1 / 4
"""A follower reports a session to the leader within this fraction of the session timeout."""

_STEPS = 16
"""Maximum number of packets recorded in one relay; more of them would add no information."""


@dataclass(frozen=True, slots=True)
class _Packet:
    sent: float
    answered: float


class Heard:
    """When the leader has last heard of a client's session, as far as it is certain. Seconds of the client's clock."""

    def __init__(self) -> None:
        self.since = -math.inf
        """The leader counts the session timeout from this time or a later one."""
        self._connecting = -math.inf
        self._packets: deque[_Packet] = deque()
        self._lock = threading.Lock()

    def connecting(self, now: float) -> None:
        """The client begins to connect."""
        self._connecting = now

    def connected(self) -> None:
        """The session was created, or moved to this connection; the leader has executed this."""
        with self._lock:
            # Earlier packets went to another server, which may not have reported them to the leader.
            self._packets.clear()
            self.since = max(self.since, self._connecting)

    def answered(self, sent: float, answered: float, *, relay: float, by_leader: bool) -> None:
        """A packet that was sent at *sent* was answered at *answered*; *by_leader*: the answer needed the leader."""
        with self._lock:
            while by_leader and self._packets and self._packets[0].answered <= sent - relay:
                self.since = max(self.since, self._packets.popleft().sent)
            if not self._packets or sent >= self._packets[-1].sent + relay / _STEPS:
                self._packets.append(_Packet(sent, answered))
