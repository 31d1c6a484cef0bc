"""A client's connection to the ensemble. If its session is lost, it opens a new one.

Requests are sent asynchronously, and then the client waits for the answers, so that requests that belong together are
sent together. ZooKeeper executes the requests of one session in order; therefore a listing sent after a multi shows the
effect of the multi.

kazoo's sessions
    kazoo reconnects by itself to any server, and after the servers have expired a session it opens a new one in the
    same client. So each session has a *number* here, which grows when a session ends: a request with the number of
    an earlier session holds nothing any more.

    A client that was closed or dropped may report events long after this: its connection hangs, and a new client works
    already. So each event names its *opening*, and only those of the present one count.

Calls and closes
    A call in another thread may be stuck when the connection is closed. Such a call must not open a new session, which
    nobody would close: only a call that began after the close does.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import StrEnum
from functools import partial
from typing import Any

from commit_coord.clock import Clock
from commit_coord.locks.zookeeper import queries
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.driver import ACL, Id, KazooState, KeeperState, kazoo_errors
from commit_coord.locks.zookeeper.layout import SHARED
from commit_coord.locks.zookeeper.opening import Opening
from commit_coord.locks.zookeeper.refusals import Refusals
from commit_coord.locks.zookeeper.session_age import RELAY, Heard

_WINDOW = 128
"""Maximum number of unanswered requests: kazoo's pipe has room for about 270 bytes, one for each request, and a full
pipe would block while the connection is broken."""

_NEVER = -1
"""In place of the number of closes at its beginning, for a call that opens no session after any close."""

CLOSING = 3.0
"""Seconds that closing waits for the server's answer; the session ends without it too."""


class SessionEvent(StrEnum):
    """A change of the state of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class EnsembleConnection:
    """The connection of a client. It opens at the first use, and again after it broke.

    Args:
        access: Addresses and authentication.
        timeout_ms: The session timeout that the client requests.
        clock: The clock.
        listener: Called with every :class:`SessionEvent` in kazoo's thread; must not block.
    """

    def __init__(
        self, access: EnsembleAccess, timeout_ms: int, clock: Clock, listener: Callable[[SessionEvent], None]
    ) -> None:
        self._access = access
        self._clock = clock
        self._listener = listener
        self._lock = threading.Lock()
        self.opening: Opening | None = None
        """The session with its client; None before the first use and after it has been closed."""
        self._closings = 0
        """How often the connection was closed."""
        self.is_closed = False
        """Whether it was closed, and no call has opened it since."""
        self._call: ContextVar[int | None] = ContextVar("call", default=None)
        """How often the connection had been closed when this thread's call began; None outside of calls."""
        self.multi_read: bool | None = None
        """Whether the servers support multiRead; None before this was tried."""
        self.refusals = Refusals(access)
        self._rights, self._shared_rights = (
            [ACL(right.permissions, Id(right.scheme, right.id)) for right in rights]
            for rights in (access.rights, access.shared_rights)
        )
        self.asked_ms = timeout_ms
        self.number = 0
        """The number of the present session; grows when a session ends."""
        self.timeout_ms = timeout_ms
        """The negotiated session timeout."""
        self.silent_since: float | None = None
        """The time when the connection broke; None while there is one."""

    @property
    def heard(self) -> Heard:
        """The time from which the servers count the present session."""
        opening = self.opening
        return opening.heard if opening is not None else Heard()

    @property
    def id(self) -> int:
        """The server's id of the present session, 0 when there is none."""
        opening = self.opening
        client = opening.client if opening is not None else None
        found: int | None = client._session_id if client is not None else None
        return found or 0

    def rights(self, path: str) -> list[ACL]:
        """Return the ACL of a new node."""
        return self._shared_rights if path == SHARED else self._rights

    def hold(self) -> None:
        """Send and receive nothing until :meth:`go_on`, as if the process were stopped; for tests."""
        if (opening := self.opening) is not None and opening.handler is not None:
            opening.handler.gate.clear()

    def go_on(self) -> None:
        """End what :meth:`hold` began."""
        if (opening := self.opening) is not None:
            opening.go_on()

    def abandon(self) -> None:
        """Keep this process, a forked child, from touching the session of its parent when it exits."""
        if (opening := self.opening) is not None and opening.handler is not None:
            atexit.unregister(opening.handler.stop)

    @contextmanager
    def call(self, *, opens: bool = True) -> Iterator[None]:
        """Note that a call begins in this thread. If the connection is closed meanwhile, the call opens no new session.

        Args:
            opens: Whether the call opens a session if the connection was closed before it.
        """
        if self._call.get() is not None:
            yield  # part of another call
            return
        token = self._call.set(self._closings if opens else _NEVER)
        try:
            yield
        finally:
            self._call.reset(token)

    @property
    def is_over(self) -> bool:
        """Whether the connection was closed, and the present call of this thread may not open it again."""
        return self.is_closed and self._call.get() not in (None, self._closings)

    def close(self) -> None:
        """End the session, and with it every ephemeral node. A later call begins another one."""
        with self._lock:
            self._closings += 1
            self.is_closed = True
            # An interrupt may have ended a call of this thread before its end was noted.
            self._call.set(None)
            opening = self._detached()
        if opening is None:
            return
        # Not in this thread: a Ctrl-C in the middle would leave kazoo's threads half stopped.
        closing = threading.Thread(target=opening.close, name="commit-coord-zookeeper-close", daemon=True)
        closing.start()
        closing.join(CLOSING)

    def probe(self) -> Opening:
        """Open a temporary client, whose session the caller closes soon."""
        return Opening(self._access, self.asked_ms, self._clock, None)

    def ask(
        self, requests: Sequence[queries.Query], patience: float, *, of_leader: bool = False
    ) -> list[Callable[[], Any]]:
        """Send *requests* in batches and wait for all answers.

        Return a function for each request, which returns the answer or raises the error of the answer.

        Args:
            requests: The requests, in order.
            patience: Time limit for each batch of answers; seconds.
            of_leader: Whether the answer to the first request needs the leader: it is a write or a sync.
        """
        answers: list[Callable[[], Any]] = []
        for start in range(0, len(requests), _WINDOW):
            sent = self._clock.now()
            until = sent + patience
            client = self.connected(until)
            opening = self.opening
            try:
                window = [(request, request(client)) for request in requests[start : start + _WINDOW]]
            finally:
                self._nudge(client)
            if opening is not None and opening.client is not client:
                opening = None  # The session ended, and another one began.
            answers += [self._answer(client, opening, request, pending, until) for request, pending in window]
            if opening is not None:
                self.note_answer(opening, sent, by_leader=of_leader and start == 0)
        return answers

    def note_answer(self, opening: Opening, sent: float, *, by_leader: bool = False) -> None:
        """Record that a packet of *opening* sent at *sent* was answered; *by_leader*: the answer needed the leader."""
        relay = self.timeout_ms / 1000 * RELAY
        opening.heard.answered(sent, self._clock.now(), relay=relay, by_leader=by_leader)

    def _answer(
        self, client: Any, opening: Opening | None, request: queries.Query, pending: Any, until: float
    ) -> Callable[[], Any]:
        # NoNodeError and NotEmptyError are regular answers, which the caller of the returned function handles.
        with self.refusals.translated(client, queries.path_of(request)):
            try:
                pending.get(timeout=max(0.001, until - self._clock.now()))
            except (kazoo_errors.NoNodeError, kazoo_errors.NotEmptyError) as answer:
                # kazoo keeps the exception. Its traceback would keep our callers' frames alive, and the leases in them.
                answer.__traceback__ = None
            except kazoo_errors.AuthFailedError:
                if opening is not None:
                    self._drop(opening)
                raise
        return partial(queries.taken, pending)

    def _nudge(self, client: Any) -> None:
        """Write a byte into kazoo's pipe, in case a request has none; one byte too many does no harm.

        kazoo sends one queued request for each byte in its pipe:

        1. kazoo queues a request.   2. A signal handler raises before kazoo has written the byte for this request, or
        while it writes the byte; kazoo may swallow the exception.   3. The byte of the next request sends this one, and
        the next request waits for another byte.

        Signal handlers run only in the main thread.
        """
        pipe = client._connection._write_sock
        if pipe is not None and threading.current_thread() is threading.main_thread():
            with suppress(OSError):  # The pipe is closed: then no request waits.
                pipe.send(b"\0")

    def connected(self, until: float) -> Any:
        """Return the client when it has a connection.

        Raises:
            LockServiceUnavailable: There is none; or the connection was closed since this thread's call began.
        """
        opening = self.opening
        if opening is None:
            with self._lock:
                if self.is_over:
                    raise self.refusals.ended()
                self.is_closed = False
                if self.opening is None:
                    self.opening = self._opened()
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
        # Without a connection, kazoo would queue a request and send it later, when its caller has given up already.
        if (
            not client.connected
            and client.client_state != KeeperState.AUTH_FAILED
            and not client._live.wait(max(0.0, until - self._clock.now()))
        ):
            raise self.refusals.unanswered(opening.log)
        return client

    def _opened(self) -> Opening:
        opening = Opening(self._access, self.asked_ms, self._clock, self)
        opening.ends_with(self)
        return opening

    def _drop(self, opening: Opening) -> None:
        """Close *opening*; the next use opens a new one."""
        with self._lock:
            if self.opening is not opening:
                return  # another thread has dropped it
            self._detached()
        if opening.client is not None:
            self._listener(SessionEvent.LOST)
        threading.Thread(target=opening.close, name="commit-coord-zookeeper-close", daemon=True).start()

    def _detached(self) -> Opening | None:
        """Give up the present session; return its opening, which the caller closes."""
        opening, self.opening = self.opening, None
        if opening is not None:
            self._lost()
        return opening

    def _lost(self) -> None:
        self.silent_since = self.silent_since or self._clock.now()
        self.number += 1

    def changed(self, opening: Opening, state: str) -> None:
        """Handle a change of the state of *opening*'s session; called in kazoo's thread."""
        with self._lock:
            if opening is not self.opening:
                return
            match state:
                case KazooState.CONNECTED:
                    event, self.silent_since = SessionEvent.CONNECTED, None
                    opening.heard.connected()
                case KazooState.SUSPENDED:
                    event, self.silent_since = SessionEvent.SUSPENDED, self._clock.now()
                case _:
                    event = SessionEvent.LOST
                    self._lost()
        self._listener(event)

    def agreed(self, opening: Opening, timeout_ms: int) -> None:
        """Record the session timeout to which the servers agreed for *opening*'s session."""
        with self._lock:  # Without it: 1. `connected` has made the opening.   2. This runs.   3. It stores the opening.
            if opening is self.opening:
                self.timeout_ms = timeout_ms
