"""A client's connection to the ensemble, with one session after the other.

Everything is asked asynchronously and then waited for, so that what belongs together travels together: ZooKeeper
executes the requests of one session in their order, therefore a listing sent behind a multi sees what the multi did.

kazoo's sessions
    kazoo goes on by itself: a connection that was cut is made again, to any server, and a session that the servers
    declared dead is followed by a new one in the same client. So a session has a *number* here, which grows when one is
    lost: a client that kept the number of an earlier one holds nothing any more.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any

from commit_coord.clock import Clock
from commit_coord.locks.zookeeper import queries
from commit_coord.locks.zookeeper.access import Access
from commit_coord.locks.zookeeper.driver import ACL, Handler, Id, KazooState, KeeperState, kazoo_errors
from commit_coord.locks.zookeeper.opening import Opening
from commit_coord.locks.zookeeper.refusals import Refusals
from commit_coord.locks.zookeeper.session_age import RELAY, Heard

_WINDOW = 128
"""Requests under way at once: kazoo's pipe takes some 270 bytes, and would block behind a lost connection."""

CLOSING = 3.0
"""Seconds that closing waits for the server's answer; the session ends without it too."""


class SessionEvent(StrEnum):
    """What a session goes through."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Connection:
    """One connection of a client, made when it is used, and again when it was cut.

    Args:
        access: Where and who.
        timeout_ms: The session timeout that is asked for.
        clock: Where time comes from.
        listener: Told of every :class:`SessionEvent`, in kazoo's thread; must not block.
    """

    def __init__(self, access: Access, timeout_ms: int, clock: Clock, listener: Callable[[SessionEvent], None]) -> None:
        self._access = access
        self._clock = clock
        self._listener = listener
        self._lock = threading.Lock()
        self.opening: Opening | None = None
        """The session with its client; None before the first use and after it has been closed."""
        self._closed = False
        """Whether its user has closed it, and not used it since: what kazoo still says is of no interest to him."""
        self.handler: Handler | None = None
        self.multi_read: bool | None = None
        """Whether the servers know multiRead; None while that was not tried."""
        self.refusals = Refusals(access)
        self.rights = [ACL(right.permissions, Id(right.scheme, right.id)) for right in access.rights]
        self.asked_ms = timeout_ms
        self.number = 0
        """Which session this is; grows when one is lost."""
        self.timeout_ms = timeout_ms
        """What the servers agreed to."""
        self.silent_since: float | None = None
        """Since when there is no connection; None while there is one."""
        self.heard = Heard()
        """From when the servers count the present session."""

    @property
    def id(self) -> int:
        """The server's id of the present session, 0 when there is none."""
        opening = self.opening
        client = opening.client if opening is not None else None
        found: int | None = client._session_id if client is not None else None
        return found or 0

    def hold(self) -> None:
        """Send and receive nothing until :meth:`go_on`, as if the process was stopped."""
        if self.handler is not None:
            self.handler.gate.clear()

    def go_on(self) -> None:
        """End what :meth:`hold` began."""
        if self.handler is not None:
            self.handler.gate.set()

    def abandon(self) -> None:
        """Keep this process, a forked child, from touching the session of its parent when it exits."""
        if self.handler is not None:
            atexit.unregister(self.handler.stop)

    def close(self) -> None:
        """End the session, and with it every ephemeral node. A later use begins another one."""
        self._closed = True
        with self._lock:
            opening, self.opening = self.opening, None
        if opening is None:
            return
        self.go_on()
        # Not in this thread: a Ctrl-C in the middle would leave kazoo's threads half stopped.
        closing = threading.Thread(target=opening.close, name="commit-coord-zookeeper-close", daemon=True)
        closing.start()
        closing.join(CLOSING)

    def probe(self) -> Opening:
        """Return the making of a client whose session will be thrown away."""
        return Opening(self._access, self.asked_ms, self._clock, None)

    def ask(
        self, requests: Sequence[queries.Request], patience: float, *, of_leader: bool = False
    ) -> list[Callable[[], Any]]:
        """Send *requests*, some at a time, wait for all answers, and return them to be taken or raised one by one.

        Args:
            requests: What is asked.
            patience: Seconds for each bunch.
            of_leader: Whether the first of them is for the leader to answer: a write, or a sync.
        """
        answers: list[Callable[[], Any]] = []
        for start in range(0, len(requests), _WINDOW):
            sent = self._clock.now()
            until = sent + patience
            client = self.connected(until)
            try:
                window = [request(client) for request in requests[start : start + _WINDOW]]
            finally:
                self._nudge(client)
            answers += [self._answer(client, pending, until) for pending in window]
            self.note_answer(sent, by_leader=of_leader and start == 0)
        return answers

    def note_answer(self, sent: float, *, by_leader: bool = False) -> None:
        """Note that what was *sent* is answered; *by_leader*: after the leader was asked."""
        relay = self.timeout_ms / 1000 * RELAY
        self.heard.answered(sent, self._clock.now(), relay=relay, by_leader=by_leader)

    def _answer(self, client: Any, pending: Any, until: float) -> Callable[[], Any]:
        # Two of the errors are answers, which the caller takes again and judges.
        with self.refusals.translated(client):
            try:
                pending.get(timeout=max(0.001, until - self._clock.now()))
            except (kazoo_errors.NoNodeError, kazoo_errors.NotEmptyError) as answer:
                # kazoo keeps it, and it would keep the frames of all our callers, with the leases in them.
                answer.__traceback__ = None
            except kazoo_errors.AuthFailedError:
                self._drop()
                raise
        return partial(queries.taken, pending)

    def _nudge(self, client: Any) -> None:
        """Put a byte into kazoo's pipe for a request that may have been left without; one too many does nothing.

        1. kazoo queues a request.   2. A signal handler raises before its byte is in the pipe, or within; kazoo may
        swallow that.   3. The next byte sends this request, and the one that the byte belongs to waits for another.
        Signal handlers run in the main thread alone.
        """
        pipe = client._connection._write_sock
        if pipe is not None and threading.current_thread() is threading.main_thread():
            with suppress(OSError):  # Closed: then there is no request either.
                pipe.send(b"\0")

    def connected(self, until: float) -> Any:
        """Return the client once it has a connection."""
        self._closed = False
        opening = self.opening
        if opening is None:
            with self._lock:
                if self.opening is None:
                    self.opening = Opening(self._access, self.asked_ms, self._clock, self)
                    self.opening.ends_with(self)
                opening = self.opening
        if not opening.done.wait(max(0.0, until - self._clock.now())):
            raise self.refusals.unanswered(opening.log)
        client = opening.client
        if client is None:
            self._drop(opening)
            raise opening.problem()
        if client.client_state == KeeperState.CLOSED:
            self._drop(opening)
            raise self.refusals.closed()
        # What is sent without a connection would be kept, and done when nobody wants it any more.
        if (
            not client.connected
            and client.client_state != KeeperState.AUTH_FAILED
            and not client._live.wait(max(0.0, until - self._clock.now()))
        ):
            raise self.refusals.unanswered(opening.log)
        return client

    def _drop(self, opening: Opening | None = None) -> None:
        """Begin anew with the next use."""
        with self._lock:
            if opening is None or self.opening is opening:
                opening, self.opening = self.opening, None
        if opening is not None:
            threading.Thread(target=opening.close, name="commit-coord-zookeeper-close", daemon=True).start()

    def changed(self, state: str) -> None:
        """Note what kazoo says of the session; in its thread."""
        match state:
            case KazooState.CONNECTED:
                event, self.silent_since = SessionEvent.CONNECTED, None
                self.heard.connected()
            case KazooState.SUSPENDED:
                event, self.silent_since = SessionEvent.SUSPENDED, self._clock.now()
            case _:
                event, self.silent_since = SessionEvent.LOST, self.silent_since or self._clock.now()
                self.number += 1
        if not self._closed:
            self._listener(event)
