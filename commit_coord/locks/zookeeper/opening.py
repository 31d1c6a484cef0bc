"""Opens a kazoo client."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from commit_coord.clock import Clock
from commit_coord.config import ZooKeeperAuth
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.driver import KazooClient, KazooHandler, KazooRetry, LastWarning, kazoo_errors
from commit_coord.locks.zookeeper.session_age import Heard

logger = logging.getLogger(__name__)


class SessionUser(Protocol):
    """The user of a session; it is notified of the session's events."""

    def changed(self, opening: Opening, state: str) -> None:
        """Handle a change of the state of *opening*'s session; called in kazoo's thread."""

    def agreed(self, opening: Opening, timeout_ms: int) -> None:
        """Record the session timeout to which the servers agreed for *opening*'s session."""

    def note_answer(self, opening: Opening, sent: float) -> None:
        """Record that a packet of *opening*, sent at *sent*, was answered."""


class Opening:
    """Opens a client in a separate thread, so that no signal interrupts it half way.

    ``done`` is set when ``client`` is connected; if opening failed, ``client`` is None and ``problem`` has the reason.

    kazoo's threads refer to this object as long as they run. So it has only a weak reference to its owner: an unused or
    closed owner is garbage-collected, and then the client and its threads end.

    Args:
        access: The servers and the authentication.
        asked_ms: The session timeout that is asked for.
        clock: The clock.
        owner: Is notified of the session's events; None for a temporary session.
    """

    _UNREACHED = "ZooKeeper can't be reached", "lock.uri=host:port,host:port/chroot"
    _UNTRUSTED = "ZooKeeper's certificate is not trusted", "lock.zk.tls-ca with the authority that signed it"

    def __init__(self, access: EnsembleAccess, asked_ms: int, clock: Clock, owner: SessionUser | None) -> None:
        self.done = threading.Event()
        self.client: Any = None
        self.handler: KazooHandler | None = None
        """kazoo's threads and sockets."""
        self.heard = Heard()
        """The time from which the servers count the session."""
        self._problem = self._UNREACHED
        self._unauthenticated = "ZooKeeper authentication failed", access.accepted_login
        self.log = LastWarning()
        self._owner: Callable[[], SessionUser | None] = (lambda: None) if owner is None else weakref.ref(owner)
        self._access, self._asked_ms, self._clock = access, asked_ms, clock
        self._made: Any = None
        self._pid = os.getpid()
        self._ending: Any = None
        self._settled = threading.Event()
        threading.Thread(target=self._run, name="commit-coord-zookeeper-open", daemon=True).start()

    def _run(self) -> None:
        try:
            self._made = client = self._make()
            client.start_async()
            # Not kazoo's own event: kazoo sets it before the authentication, and may clear it before we read it.
            if self._settled.wait(self._access.connection_timeout_ms / 1000) and self._chroot_is_there(client):
                self.client = client
        except Exception as error:  # noqa: BLE001 - raised where the client was asked for
            if self._problem != self._unauthenticated:
                self.log.last = str(error)
        finally:
            self.done.set()

    def problem(self) -> LockServiceUnavailable:
        """Return the reason why there is no client."""
        untrusted = self._access.tls and "certificate verify failed" in self.log.last.lower()
        message, accepted = self._UNTRUSTED if untrusted else self._problem
        return LockServiceUnavailable(
            message,
            servers=self._access.hosts,
            auth=self._access.auth,
            reason=self.log.last or None,
            accepted=accepted,
        )

    def _settle(self, _: str) -> None:
        self._settled.set()

    def _chroot_is_there(self, client: Any) -> bool:
        try:
            found = client.exists_async("/").get(timeout=self._access.connection_timeout_ms / 1000)
        except kazoo_errors.NoAuthError:
            found = True
        if not found:
            self._problem = (
                f"the chroot {client.chroot} does not exist on the servers",
                "another lock.uri, or create it",
            )
        return bool(found)

    def _make(self) -> Any:
        access, handler = self._access, KazooHandler(self._access)
        sasl = None
        if access.auth == ZooKeeperAuth.SASL:
            sasl = {"mechanism": "DIGEST-MD5", "username": access.user, "password": access.password}
        elif access.auth == ZooKeeperAuth.KERBEROS:
            sasl = {"mechanism": "GSSAPI", "service": access.service}
        client = KazooClient(
            hosts=access.addresses,
            timeout=self._asked_ms / 1000,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, sleep_func=handler.sleep_func),
            auth_data=[("digest", f"{access.user}:{access.password}")] if access.auth == ZooKeeperAuth.DIGEST else None,
            sasl_options=sasl,
            logger=self.log,
        )
        connect = client._connection._connect

        def connected(*args: Any) -> Any:
            self.heard.connecting(self._clock.now())
            try:
                read_timeout, connect_timeout = connect(*args)
            except (kazoo_errors.ConnectionDropped, kazoo_errors.SessionExpiredError):
                raise
            except kazoo_errors.KazooException as error:
                # 1. kazoo reports that it is connected, and then authenticates.   2. The server refuses, and kazoo
                # closes.   3. We ask for the chroot, and get only an error about a closed connection. So record the
                # refusal here, at 2.
                self._problem = self._unauthenticated
                # A server refuses SASL with one of several errors, most of which would end kazoo's thread. Without a
                # ticket nothing is sent, and only the cause says so.
                reason = str(error.__cause__ or error) or type(error).__name__
                raise kazoo_errors.AuthFailedError(reason) from error
            if (owner := self._owner()) is not None:
                # kazoo's read timeout is two thirds of the negotiated timeout, in milliseconds.
                owner.agreed(self, round(read_timeout * 1.5))
            return read_timeout, connect_timeout

        client._connection._connect = connected
        client.add_listener(self._settle)
        client._connection.ping_outstanding = _Pings(self._note_ping, self._clock)
        client.add_listener(self._tell)
        self.handler = handler
        return client

    def _tell(self, state: str) -> None:
        if (owner := self._owner()) is not None:
            owner.changed(self, state)

    def _note_ping(self, sent: float) -> None:
        if (owner := self._owner()) is not None:
            owner.note_answer(self, sent)

    def go_on(self) -> None:
        """End a pause of kazoo's thread, if there is one."""
        if self.handler is not None:
            self.handler.gate.set()

    def ends_with(self, owner: SessionUser) -> None:
        """Close when *owner* is garbage-collected; in a new thread, as the collector may run in kazoo's own."""
        self._ending = weakref.finalize(owner, self._collected)
        self._ending.atexit = False

    def _collected(self) -> None:
        # A forked child that drops its copy of the parent's client must not close the parent's session.
        if self._pid == os.getpid():
            threading.Thread(target=self.close, name="commit-coord-zookeeper-close", daemon=True).start()

    def close(self) -> None:
        """End the session, or the attempt to get one."""
        if self._ending is not None:
            self._ending.detach()
        self.go_on()
        self.done.wait()
        if self._made is not None:
            try:
                self._made.stop()
                self._made.close()
            except Exception as error:  # noqa: BLE001 - the session will expire
                logger.debug("closing a ZooKeeper client failed: %s", error)


class _Pings:
    """A flag that kazoo sets when it sends a ping, and clears when the answer arrives or the connection breaks."""

    def __init__(self, note: Callable[[float], None], clock: Clock) -> None:
        self._note, self._clock = note, clock
        self._sent: float | None = None

    def set(self) -> None:
        # 1. A ping is slow.   2. The next ping is sent.   3. The answer that arrives is for the first ping.
        if self._sent is None:
            self._sent = self._clock.now()

    def clear(self) -> None:
        sent, self._sent = self._sent, None
        # If the connection broke, Heard.connected forgets this ping.
        if sent is not None:
            self._note(sent)

    def is_set(self) -> bool:
        return self._sent is not None
