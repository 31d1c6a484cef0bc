"""From when the leader of an ensemble counts a session. Pure.

Theory of operation
    The leader expires a session one session timeout after it last *heard* of it, rounded up to its ticks. It hears of
    the sessions of a follower with the answer to its ping alone, once in half a tick; what the follower passes on for a
    client, a write or a sync, counts for nothing. So an answer of the leader proves that the session is alive, but
    not that its timeout began again:

    1. A client sends a packet at 0, and a sync at 5. The leader answers both through a follower.
    2. The follower has told the leader of the packet at 0.3, and freezes at 5.1, before the next ping.
    3. The leader expires the session one timeout after 0.3, the client counted from 5.

    What a client can know: a packet that the follower has answered is told with the next ping, and so before whatever
    the follower passes on after that ping, since both go by one connection. If the leader answers a request that was
    sent at least one *relay* (the longest time between two pings) later, it had heard of the packet, and then
    at the earliest when the packet was sent. A connection that is made is told at once.

    The client does not learn the tick. A server accepts no session shorter than ``minSessionTimeout``, two ticks
    unless it is configured otherwise: so half a tick is at most a quarter of what was negotiated.

Source: ZooKeeper ``Leader.lead``, ``LearnerHandler``, ``Learner.ping``, ``LearnerHandler.revalidateSession``.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

RELAY = 1 / 4
"""The part of a session timeout within which a follower tells the leader of a session."""

_STEPS = 16
"""Packets that are noted in one relay: of thousands a second, all but a few say the same."""


@dataclass(frozen=True, slots=True)
class _Packet:
    sent: float
    answered: float


class Heard:
    """What the leader has certainly heard of one client's sessions. Times are seconds of the client's clock."""

    def __init__(self) -> None:
        self.since = -math.inf
        """The leader counts the session from here, or from later."""
        self._connecting = -math.inf
        self._packets: deque[_Packet] = deque()
        self._lock = threading.Lock()

    def connecting(self, now: float) -> None:
        """The client begins to connect."""
        self._connecting = now

    def connected(self) -> None:
        """The session was made, or moved to this connection: the leader did it."""
        with self._lock:
            # Another server may have been told of earlier packets, and have kept it to itself.
            self._packets.clear()
            self.since = max(self.since, self._connecting)

    def answered(self, sent: float, answered: float, *, relay: float, by_leader: bool) -> None:
        """A packet that was *sent* is *answered*; *by_leader*: after the leader was asked."""
        with self._lock:
            while by_leader and self._packets and self._packets[0].answered <= sent - relay:
                self.since = max(self.since, self._packets.popleft().sent)
            if not self._packets or sent >= self._packets[-1].sent + relay / _STEPS:
                self._packets.append(_Packet(sent, answered))
