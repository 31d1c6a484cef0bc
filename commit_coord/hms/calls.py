"""Sends calls to a metastore: time limits, fail-over, and repeats of idempotent calls."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tenacity import RetryCallState, Retrying, wait_random_exponential

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import ConfigError
from commit_coord.hms.connection import LostReply, MetastoreAccess, MetastoreConnection, MetastoreServerFailed, NotSent
from commit_coord.hms.pool import Pool

_SHORTEST = 0.5
"""Seconds that an answer has in any case."""

_FAILURES = 4
"""Times that a server may fail in a call that changes nothing: 4.0.1 lists its locks not always while they change."""


class FailedOver(NotSent):
    """Another server is in use than the one that the call was meant for; nothing was sent."""


class MetastoreCaller:
    """Calls one metastore, which may have several servers. Thread safe.

    Args:
        uris: ``thrift://host:port``, several separated by commas.
        access: How to talk to them.
        clock: Tells how much of a time limit is left.

    Raises:
        ConfigError: A URI is malformed.
    """

    def __init__(self, uris: str, access: MetastoreAccess, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self.addresses = tuple(_address(uri.strip()) for uri in uris.split(","))
        self.access = access
        self.sent: Counter[str] = Counter()
        """Round trips so far, by call."""
        self.failures = 0
        """Calls so far that were not answered: the servers were away, or seemed so."""
        # A limit is that of one acquire or heartbeat. The calls for it, and the connections that the pool opens for
        # these calls, are several modules away: only the thread connects them.
        self._limits = threading.local()
        self.pool = Pool(
            self.addresses, lambda address: MetastoreConnection(address, access, connect_ms=self._limit_ms())
        )
        # What is sent may be carried out, so only what was not sent is sent again…
        self._once = self._retrying(NotSent)
        # … and what changes nothing, or ends the same way when it is done twice.
        self._again = self._retrying(NotSent, LostReply, MetastoreServerFailed)

    def repeat(self, name: str, *arguments: Any) -> Any:
        """Make a call that may be made twice: it changes nothing, or ends the same way when it is done again."""
        return self._again(self._call, name, arguments, None, 0)

    def send(self, name: str, *arguments: Any, server: str | None = None, patience_ms: int = 0) -> Any:
        """Make a call that must not be made twice.

        Args:
            name: Of the call.
            arguments: Thrift's.
            server: Send it to this one and no other.
            patience_ms: The answer may take so much longer than others.

        Raises:
            FailedOver: *server* is not the one in use; nothing was sent.
            LostReply: It may have been carried out, or will be.
        """
        return self._once(self._call, name, arguments, server, patience_ms)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Have this thread's calls in the block fail after *seconds* in all, instead of a time limit each.

        Each server has an equal part of that for its answer: one that hangs leaves time to ask the next.
        """
        outer = self._until, self._each
        until, each = self._clock.now() + seconds, max(_SHORTEST, seconds / len(self.addresses))
        self._limits.until, self._limits.each = min(until, self._until), min(each, self._each)
        try:
            yield
        finally:
            self._limits.until, self._limits.each = outer

    @property
    def _until(self) -> float:
        return getattr(self._limits, "until", math.inf)

    @property
    def _each(self) -> float:
        return getattr(self._limits, "each", math.inf)

    def _limit_ms(self) -> int | None:
        """Return how long this thread may wait for the next answer; None where the timeout alone limits it."""
        seconds = min(self._each, max(_SHORTEST, self._until - self._clock.now()))
        return None if seconds == math.inf else math.ceil(seconds * 1000)

    def _call(self, name: str, arguments: tuple[Any, ...], server: str | None, patience_ms: int) -> Any:
        try:
            with self.pool.connection() as connection:
                if server not in (None, connection.address):
                    raise FailedOver(
                        "the client is connected to another metastore than the one the call is for; the call was not "
                        "sent",
                        uri=connection.address,
                        expected=server,
                    )
                self.sent[name] += 1
                limit_ms = self._limit_ms()
                limit = {} if limit_ms is None else {"limit_ms": limit_ms}
                return connection.call(name, *arguments, patience_ms=patience_ms, **limit)
        except (NotSent, LostReply):
            self.failures += 1
            raise

    def _passes(self, state: RetryCallState, errors: tuple[type[Exception], ...]) -> bool:
        """Return whether what failed is of *errors* and may be over soon."""
        error = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(error, errors) or isinstance(error, FailedOver):
            return False  # What fails over to another server is for the caller to decide.
        if isinstance(error, MetastoreServerFailed):
            return state.attempt_number < _FAILURES
        return self.pool.reached or isinstance(error, LostReply)

    def _retrying(self, *errors: type[Exception]) -> Any:
        """Return what calls a function again on *errors*, for one timeout, and until each server had its chance.

        A call that succeeds never meets tenacity, which takes longer than all else that is done for it here.
        """

        def call(function: Callable[..., Any], *arguments: Any) -> Any:
            began, first = self._clock.now(), list[Exception]()
            try:
                return function(*arguments)
            except errors as error:
                first.append(error)

            def again() -> Any:
                if first:
                    raise first.pop()  # as if tenacity had made the first attempt: it counts, and so does its time
                return function(*arguments)

            def is_over(state: RetryCallState) -> bool:
                now, each_had_its_chance = self._clock.now(), state.attempt_number >= len(self.addresses)
                return (now - began >= self.access.timeout_ms / 1000 and each_had_its_chance) or now >= self._until

            return Retrying(
                retry=lambda state: self._passes(state, errors),
                wait=wait_random_exponential(multiplier=0.1, max=1),
                stop=is_over,
                reraise=True,
            )(again)

        return call


def _address(uri: str) -> str:
    parts = urlsplit(uri)
    try:
        port = parts.port or 9083
    except ValueError:
        port = 0
    if parts.scheme != "thrift" or not parts.hostname or not port or parts.path.strip("/"):
        raise ConfigError("invalid metastore uri", key="uri", value=uri, accepted="thrift://host:port")
    return f"thrift://{parts.hostname}:{port}"
