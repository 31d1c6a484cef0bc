"""ZooKeeper, as far as the lock manager needs it, over kazoo. ``Any`` stops here.

Everything is asked asynchronously and then waited for, so that what belongs together travels together: ZooKeeper
executes the requests of one session in their order, therefore a listing sent behind a multi sees what the multi did.

kazoo's sessions
    kazoo goes on by itself: a connection that was cut is made again, to any server, and a session that the servers
    declared dead is followed by a new one in the same client. So a session has a *number* here, which grows when one is
    lost: whoever kept the number of an earlier one holds nothing any more.

What kazoo 2.11 does not do, and is done here
    * It keeps the negotiated session timeout to itself, and when its pings were sent and answered.
    * It sends one request for each byte in a pipe. A signal handler that raises between the two leaves a request
      without its byte, and from then on each request waits for the next one: see ``_nudge``.
    * ``Transaction.commit`` returns errors among its results.
    * It says why it can't connect to its log alone.
    * It has no multiRead, many reads in one packet (ZooKeeper 3.6): each of them costs it a tenth of a millisecond.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import groupby
from math import ceil
from typing import Any

from commit_coord.clock import Clock
from commit_coord.errors import ConfigError, LockServiceUnavailable
from commit_coord.locks.base import BRIEFLY, Interrupted
from commit_coord.locks.zookeeper.access import Access
from commit_coord.locks.zookeeper.session_age import RELAY, Heard

try:
    from kazoo import exceptions as kazoo_errors
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.handlers.utils import fileobj_to_fd
    from kazoo.protocol import serialization
    from kazoo.protocol.paths import _prefix_root
    from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
    from kazoo.retry import KazooRetry
    from kazoo.security import ACL, Id
except ImportError as missing:
    raise ConfigError(
        "ZooKeeper's driver is not installed",
        key="lock-impl",
        value="zookeeper",
        accepted="pip install 'commit_coord[zookeeper]'",
    ) from missing

logger = logging.getLogger(__name__)

_WINDOW = 128
"""Requests under way at once: kazoo's pipe takes some 270 bytes, and would block behind a lost connection."""

_FAMILY = 32
"""Children of one node that are asked about one by one; of more, their parent is listed."""

_FEW = 16
"""Reads that are asked one by one."""

_BUNCH = 1000
"""Reads in one packet: some 100 kB of paths, well below what a server accepts."""

_CLOSING = 3.0
"""Seconds that closing waits for the server's word; the session ends without it too."""


def ancestors(path: str) -> list[str]:
    """Return every proper prefix of *path* that names a node, outermost first."""
    levels = path.split("/")[1:-1]
    return ["/" + "/".join(levels[:depth]) for depth in range(1, len(levels) + 1)]


class SessionEvent(StrEnum):
    """What a session goes through."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class MultiRefused(Exception):
    """A multi did nothing, because of its operation number *index*.

    *reason* is ``exists``, ``missing``, ``not-empty`` or ``version``.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"operation {index}: {reason}")
        self.index = index
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Create:
    """Create *path*; with *sequential* the server adds a number."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete *path* if it has no children, and *version* unless that is -1."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Do nothing, but refuse the multi if *path* is not there."""

    path: str


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the data of *path*, and of *version* alone unless that is -1."""

    path: str
    data: bytes
    version: int = -1


Operation = Create | Delete | Check | Change

_Request = Callable[[Any], Any]
"""Sends one request through kazoo's client and returns its asynchronous result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What the server knows of a node."""

    created: int
    """The transaction that created it (czxid): the ensemble's epoch in the upper half, a counter in the lower one."""
    created_ms: int
    changed_below: int
    """The last transaction that created or deleted a child (pzxid)."""
    version: int
    session: int
    """Whose ephemeral it is; 0 for a persistent node."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node's data."""

    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Listing:
    """A node's children."""

    names: list[str]
    stat: Stat


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """kazoo's threads and sockets.

    With a gate: while it is shut nothing is sent or received, as in a process that is stopped. With a TLS context
    of ours: kazoo's own reads the certificates again for each try, and leaves the socket of one that failed open. And
    with poll(2) instead of an epoll instance that is made and closed around each wait, five times for a request: that
    was a third of the processor time of its thread.
    """

    def __init__(self, access: Access) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self._tls = _tls_context(access) if access.tls else None

    def create_connection(self, address: Any, hostname: Any = None, timeout: Any = None, **_: Any) -> Any:
        plain = super().create_connection(address, timeout=timeout)
        if self._tls is None:
            return plain
        try:
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise

    def select(self, read: Sequence[Any], write: Sequence[Any], _: Sequence[Any], timeout: float | None = None) -> Any:
        self.gate.wait()
        poll, waiting = select.poll(), {fileobj_to_fd(one): one for one in (*read, *write)}
        for descriptor, one in waiting.items():
            poll.register(descriptor, select.POLLIN if one in read else select.POLLOUT)
        # Rounded up, lest a wait of less than a millisecond becomes a loop that burns the processor.
        ready = [waiting[one] for one, _ in poll.poll(None if timeout is None else ceil(timeout * 1000))]
        return [one for one in ready if one in read], [one for one in ready if one not in read], []


def _tls_context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=access.tls_ca or None)
        if access.tls_cert:
            context.load_cert_chain(access.tls_cert, access.tls_key or None, access.tls_key_password or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise LockServiceUnavailable("the TLS settings can't be used", reason=error, key="lock.zk.tls-*") from error
    if not access.tls_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class _Log(logging.Logger):
    """Keeps the last warning, which is where kazoo says what went wrong."""

    def __init__(self) -> None:
        super().__init__(f"{logger.name}.kazoo")
        self.parent = logger
        self.last = ""

    def handle(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            error = record.exc_info[1] if record.exc_info else None
            self.last = str(error or record.getMessage())
        # What matters of it is in our errors; a client that waits for a server logs a line for each try.
        record.levelno, record.levelname = min(record.levelno, logging.INFO), "INFO"
        if logger.isEnabledFor(record.levelno):
            super().handle(record)


class Session:
    """A client of the ensemble, with one session after the other.

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
        self._opening: _Opening | None = None
        self._closed = False
        """Whether its user has closed it, and not used it since: what kazoo still says is of no interest to him."""
        self._handler: _Handler | None = None
        self._multi_read: bool | None = None
        self._rights = [ACL(right.permissions, Id(right.scheme, right.id)) for right in access.rights]
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
        opening = self._opening
        client = opening.client if opening is not None else None
        found: int | None = client._session_id if client is not None else None
        return found or 0

    # Verbs. ``patience`` is how many seconds each bunch of answers may take.

    def reach(self, patience: float = BRIEFLY) -> None:
        """Return once there is a connection. Nothing is sent.

        Raises:
            LockServiceUnavailable: There is none.
        """
        self._connected(self._clock.now() + patience)

    def multi(
        self,
        operations: Sequence[Operation],
        patience: float = BRIEFLY,
        *,
        then_list: Sequence[str] = (),
        then_get: Sequence[str] = (),
    ) -> tuple[list[str], list[Listing | None], list[Node | None]]:
        """Do all *operations* or none; return the paths of the created nodes, and what is there after it.

        That are the listings of *then_list* and the contents of *then_get*, which travel along.

        Parents that are missing are created in the same step: nobody finds one that is about to be used empty.

        Raises:
            MultiRefused: Nothing was done, because of one of them.
            Interrupted: No answer: it may have happened, also later within this session.
            LockServiceUnavailable: The servers refuse it.
        """
        parents: list[str] = []
        until = self._clock.now() + patience
        while True:
            try:
                every = [*map(Create, parents), *operations]
                created, listings, nodes = self._multi_once(every, patience, then_list, then_get)
                return created[len(parents) :], listings, nodes
            except MultiRefused as refused:
                index = refused.index - len(parents)
                if index >= 0 and not (refused.reason == "missing" and isinstance(operations[index], Create)):
                    raise MultiRefused(index, refused.reason) from None
                # A parent is missing, or somebody made or removed one since we looked: look which there are now.
                if self._clock.now() >= until:
                    raise Interrupted("parents came and went", path=operations[max(0, index)].path) from None
            new = [one.path for one in operations if isinstance(one, Create)]
            wanted = {parent for path in new for parent in ancestors(path)}.difference(new)
            parents = self._missing(wanted, patience)

    def _missing(self, paths: Iterable[str], patience: float) -> list[str]:
        """Return those of *paths* that are not there, parents first."""
        missing: dict[str, None] = {}
        for _, level in groupby(sorted(paths, key=lambda path: (_depth(path), path)), key=_depth):
            siblings: dict[str, list[str]] = {}
            for path in level:
                siblings.setdefault(path.rpartition("/")[0], []).append(path)
            # What lies below nothing is not asked about, and thousands of partitions of one table are one question.
            known = {parent: group for parent, group in siblings.items() if parent not in missing}
            many = [parent for parent, group in known.items() if len(group) > _FAMILY]
            few = [path for group in known.values() if len(group) <= _FAMILY for path in group]
            there = {path for path, stat in zip(few, self.exists(few, patience), strict=True) if stat is not None}
            for parent, listing in zip(many, self.children(many, patience), strict=True):
                there.update(f"{parent}/{name}" for name in (listing.names if listing is not None else ()))
            missing.update(dict.fromkeys(path for group in siblings.values() for path in group if path not in there))
        return list(missing)

    def _multi_once(
        self, operations: Sequence[Operation], patience: float, then_list: Sequence[str], then_get: Sequence[str]
    ) -> tuple[list[str], list[Listing | None], list[Node | None]]:
        number = self.number

        def commit(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                match operation:
                    case Create(path, data, ephemeral, sequential):
                        transaction.create(path, data, self._rights, ephemeral, sequential)
                    case Delete(path, version):
                        transaction.delete(path, version)
                    case Check(path):
                        transaction.check(path, -1)
                    case Change(path, data, version):
                        transaction.set_data(path, data, version)
            return transaction.commit_async()

        reads = [*map(_children_of, then_list), *(_data_of(path, None) for path in then_get)]
        done, *answers = self._ask([commit, *reads], patience, of_leader=True)
        results = _found(done)
        for index, result in enumerate(results or ()):
            if isinstance(result, Exception) and not isinstance(
                result, kazoo_errors.RolledBackError | kazoo_errors.RuntimeInconsistency
            ):
                raise self._refused(index, operations[index], result)
        if number != self.number:
            raise Interrupted("the session was lost while it was being used")
        created = [result for result in results if isinstance(result, str)]
        found = [_found(answer) for answer in answers]
        return created, [*map(_listing, found[: len(then_list)])], [*map(_node, found[len(then_list) :])]

    def delete_each(self, paths: Sequence[str], patience: float = BRIEFLY) -> None:
        """Delete those of *paths* that are there and have no children, children before parents."""
        for start in range(0, len(paths), _BUNCH):
            left = self._not_deleted(paths[start : start + _BUNCH], patience)
            self._ask([_deletion_of(path) for path in left], patience, of_leader=True)

    def _not_deleted(self, paths: Sequence[str], patience: float) -> list[str]:
        """Delete *paths* in one step, without the first few that stand in the way; return what is left to try."""
        left = list(paths)
        refused = _FEW if len(left) > _FEW else 0
        while refused and left:
            try:
                self.multi([*map(Delete, left)], patience)
                return []
            except MultiRefused as stopped:
                del left[stopped.index]
                refused -= 1
        return left

    def children(self, paths: Sequence[str], patience: float = BRIEFLY, *, sync: bool = False) -> list[Listing | None]:
        """Return the children of each path, None where there is no such node; *sync* as in :meth:`exists`."""
        if len(paths) > _FEW:
            self._ask([_sync] if sync else [], patience, of_leader=sync)
            return self._children_of_many(paths, patience)
        answers = self._ask([*([_sync] if sync else []), *map(_children_of, paths)], patience, of_leader=sync)
        return [_listing(_found(answer)) for answer in answers[int(sync) :]]

    def queue(self, path: str, note: str, patience: float = BRIEFLY) -> tuple[Listing | None, Node | None]:
        """Return the children of *path* and what *note* holds, of one moment behind a word of the leader."""
        _, listing, node = self._ask([_sync, _children_of(path), _data_of(note, None)], patience, of_leader=True)
        return _listing(_found(listing)), _node(_found(node))

    def _children_of_many(self, paths: Sequence[str], patience: float) -> list[Listing | None]:
        # A multiRead can't tell names and node together. Where no child came or went between two looks at the node,
        # the names between the two are those of that very transaction.
        asked = [
            read
            for path in paths
            for read in (
                serialization.GetData(path, None),
                serialization.GetChildren(path, None),
                serialization.GetData(path, None),
            )
        ]
        answers = self._read_many(asked, patience)
        listings: list[Listing | None] = []
        for path, before, names, after in zip(paths, answers[::3], answers[1::3], answers[2::3], strict=True):
            if before and after and names is not None and before[1].pzxid == after[1].pzxid:
                listings.append(Listing(names, _stat(after[1])))
            else:
                listings += self.children([path], patience)
        return listings

    def get(
        self, paths: Sequence[str], patience: float = BRIEFLY, *, watch: Callable[[str | None], None] | None = None
    ) -> list[Node | None]:
        """Return what each path holds, None where there is no such node.

        *watch* is called once for each that was found, with its path when it changes or goes, and with None when the
        connection is cut.
        """
        if watch is None and len(paths) > _FEW:
            answers = self._read_many([serialization.GetData(path, None) for path in paths], patience)
        else:
            answers = [_found(answer) for answer in self._ask([_data_of(path, watch) for path in paths], patience)]
        return [*map(_node, answers)]

    def exists(self, paths: Sequence[str], patience: float = BRIEFLY, *, sync: bool = False) -> list[Stat | None]:
        """Return what is known of each path, None where there is no such node.

        With *sync* the leader was asked: a follower that was cut off from it would go on answering from what it has,
        also after the leader has declared our session dead.
        """
        if len(paths) > _FEW:
            self._ask([_sync] if sync else [], patience, of_leader=sync)
            return [None if node is None else node.stat for node in self.get(paths, patience)]
        asked = [*([_sync] if sync else []), *map(_stat_of, paths)]
        answers = [_found(answer) for answer in self._ask(asked, patience, of_leader=sync)]
        return [None if answer is None else _stat(answer) for answer in answers[int(sync) :]]

    def names(self, paths: Sequence[str], patience: float = BRIEFLY) -> list[list[str] | None]:
        """Return the names of the children of each path, None where there is no such node."""
        if len(paths) > _FEW:
            return self._read_many([serialization.GetChildren(path, None) for path in paths], patience)
        return [None if listing is None else listing.names for listing in self.children(paths, patience)]

    def _read_many(self, reads: Sequence[Any], patience: float) -> list[Any]:
        """Return the answer to each of *reads*, None where there is no such node; many in one packet."""
        found: list[Any] = []
        for start in range(0, len(reads), _BUNCH):
            bunch = reads[start : start + _BUNCH]
            if self._has_multi_read():
                (answer,) = self._ask([_MultiRead(bunch).send], patience)
                found += answer()
            else:
                found += [_found(answer) for answer in self._ask([_alone(read) for read in bunch], patience)]
        for read, result in zip(reads, found, strict=True):
            if isinstance(result, kazoo_errors.NoAuthError):
                raise self._denied(read.path)
            if isinstance(result, Exception):
                raise self._refused(0, Check(read.path), result)
        return found

    def _has_multi_read(self) -> bool:
        """Return whether the servers know multiRead. Those before 3.6 close the session of whoever sends it.

        So the first time it is tried in a session that is thrown away.
        """
        if self._multi_read is None:
            probe = _Opening(self, probe=True)
            probe.done.wait()
            if probe.client is not None:
                with suppress(kazoo_errors.KazooException, KazooTimeoutError):
                    self._multi_read = False
                    _MultiRead([serialization.GetChildren("/", None)]).send(probe.client).get(timeout=BRIEFLY)
                    self._multi_read = True
            threading.Thread(target=probe.close, name="commit-coord-zookeeper-close", daemon=True).start()
        return self._multi_read or False

    # The session's life.

    def hold(self) -> None:
        """Send and receive nothing until :meth:`go_on`, as if the process was stopped."""
        if self._handler is not None:
            self._handler.gate.clear()

    def go_on(self) -> None:
        """End what :meth:`hold` began."""
        if self._handler is not None:
            self._handler.gate.set()

    def abandon(self) -> None:
        """Keep this process, a forked child, from touching the session of its parent when it exits."""
        if self._handler is not None:
            atexit.unregister(self._handler.stop)

    def close(self) -> None:
        """End the session, and with it every ephemeral node. A later use begins another one."""
        self._closed = True
        with self._lock:
            opening, self._opening = self._opening, None
        if opening is None:
            return
        self.go_on()
        # Not in this thread: a Ctrl-C in the middle would leave kazoo's threads half stopped.
        closing = threading.Thread(target=opening.close, name="commit-coord-zookeeper-close", daemon=True)
        closing.start()
        closing.join(_CLOSING)

    def _ask(
        self, requests: Sequence[_Request], patience: float, *, of_leader: bool = False
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
            client = self._connected(until)
            try:
                window = [request(client) for request in requests[start : start + _WINDOW]]
            finally:
                self._nudge(client)
            answers += [self._answer(client, pending, until) for pending in window]
            self._note_answer(sent, by_leader=of_leader and start == 0)
        return answers

    def _note_answer(self, sent: float, *, by_leader: bool = False) -> None:
        relay = self.timeout_ms / 1000 * RELAY
        self.heard.answered(sent, self._clock.now(), relay=relay, by_leader=by_leader)

    def _answer(self, client: Any, pending: Any, until: float) -> Callable[[], Any]:
        # Two of the errors are answers, which the caller takes again and judges.
        with self._translated(client):
            try:
                pending.get(timeout=max(0.001, until - self._clock.now()))
            except (kazoo_errors.NoNodeError, kazoo_errors.NotEmptyError) as answer:
                # kazoo keeps it, and it would keep the frames of all our callers, with the leases in them.
                answer.__traceback__ = None
        return partial(_taken, pending)

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

    @contextmanager
    def _translated(self, client: Any) -> Iterator[None]:
        """Turn kazoo's errors into ours, here and in :meth:`_refused` and nowhere else."""
        try:
            yield
        except kazoo_errors.ConnectionClosedError as error:
            # Also what kazoo makes of a signal handler that raised while it wrote into its pipe.
            raise Interrupted("the connection to ZooKeeper was closed", servers=self._access.hosts) from error
        except (
            KazooTimeoutError,
            kazoo_errors.ConnectionLoss,
            kazoo_errors.OperationTimeoutError,
            kazoo_errors.SessionExpiredError,
            kazoo_errors.SessionMovedError,
        ) as error:
            raise Interrupted(
                "ZooKeeper did not answer",
                servers=self._access.hosts,
                reason=type(error).__name__,
                last_word=client.logger.last or None,
            ) from error
        except kazoo_errors.AuthFailedError as error:
            self._drop()
            raise LockServiceUnavailable(
                "ZooKeeper refused to authenticate us",
                servers=self._access.hosts,
                auth=self._access.auth,
                reason=client.logger.last or error,
                accepted="lock.zk.user and lock.zk.password as the servers know them",
            ) from error
        except kazoo_errors.NoAuthError as error:
            raise self._denied(None) from error
        except kazoo_errors.KazooException as error:
            raise LockServiceUnavailable(
                "ZooKeeper refused a request",
                servers=self._access.hosts,
                reason=f"{type(error).__name__} {error}".strip(),
            ) from error

    def _refused(self, index: int, operation: Operation, error: Exception) -> Exception:
        match error:
            case kazoo_errors.NodeExistsError():
                return MultiRefused(index, "exists")
            case kazoo_errors.NoNodeError():
                return MultiRefused(index, "missing")
            case kazoo_errors.NotEmptyError():
                return MultiRefused(index, "not-empty")
            case kazoo_errors.BadVersionError():
                return MultiRefused(index, "version")
            case kazoo_errors.NoAuthError():
                return self._denied(operation.path)
            case _:
                return LockServiceUnavailable(
                    "ZooKeeper refused a request",
                    servers=self._access.hosts,
                    path=operation.path,
                    reason=f"{type(error).__name__} {error}".strip(),
                )

    def _denied(self, path: str | None) -> LockServiceUnavailable:
        return LockServiceUnavailable(
            "ZooKeeper denies access: the ACL of a node does not name us",
            servers=self._access.hosts,
            path=path,
            auth=self._access.auth,
            user=self._access.user or None,
            accepted="the lock.zk.auth of whoever created the nodes, or a lock.zk.acl there that names us",
        )

    def _connected(self, until: float) -> Any:
        """Return the client once it has a connection."""
        self._closed = False
        opening = self._opening
        if opening is None:
            with self._lock:
                if self._opening is None:
                    self._opening = _Opening(self)
                    self._opening.ends_with(self)
                opening = self._opening
        if not opening.done.wait(max(0.0, until - self._clock.now())):
            raise Interrupted(
                "ZooKeeper did not answer", servers=self._access.hosts, last_word=opening.log.last or None
            )
        client = opening.client
        if client is None:
            self._drop(opening)
            raise opening.problem()
        if client.client_state == KeeperState.CLOSED:
            self._drop(opening)
            raise Interrupted("the connection to ZooKeeper was closed", servers=self._access.hosts)
        # What is sent without a connection would be kept, and done when nobody wants it any more.
        if (
            not client.connected
            and client.client_state != KeeperState.AUTH_FAILED
            and not client._live.wait(max(0.0, until - self._clock.now()))
        ):
            raise Interrupted(
                "ZooKeeper did not answer", servers=self._access.hosts, last_word=opening.log.last or None
            )
        return client

    def _drop(self, opening: _Opening | None = None) -> None:
        """Begin anew with the next use."""
        with self._lock:
            if opening is None or self._opening is opening:
                opening, self._opening = self._opening, None
        if opening is not None:
            threading.Thread(target=opening.close, name="commit-coord-zookeeper-close", daemon=True).start()

    def _changed(self, state: str) -> None:
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


class _Opening:
    """The making of a client, in a thread of its own: no signal interrupts it half way.

    ``done`` is set when ``client`` is there and connected, or None and ``problem`` says why.

    kazoo's threads refer to it as long as they run. So it knows its session weakly: one that nobody uses any more, or
    closed, goes to the collector, and takes the client and its threads with it.
    """

    _UNREACHED = "ZooKeeper can't be reached", "lock.uri=host:port,host:port/chroot"
    _UNTRUSTED = "ZooKeeper's certificate is not trusted", "lock.zk.tls-ca with the authority that signed it"
    _STRANGER = "ZooKeeper refused to authenticate us", "lock.zk.user and lock.zk.password as the servers know them"

    def __init__(self, session: Session, *, probe: bool = False) -> None:
        self.done = threading.Event()
        self._probe = probe
        self.client: Any = None
        self._problem = self._UNREACHED
        self.log = _Log()
        self._session = weakref.ref(session)
        self._access, self._asked_ms, self._clock = session._access, session.asked_ms, session._clock
        self._made: Any = None
        self._pid = os.getpid()
        self._ending: Any = None
        self._settled = threading.Event()
        threading.Thread(target=self._run, name="commit-coord-zookeeper-open", daemon=True).start()

    def _run(self) -> None:
        try:
            self._made = client = self._make()
            client.start_async()
            # Not kazoo's own event: it is set before the authentication, and may be cleared before we look.
            if self._settled.wait(self._access.connection_timeout_ms / 1000) and self._chroot_is_there(client):
                self.client = client
        except Exception as error:  # noqa: BLE001 - told to whoever asked for the client
            if self._problem is not self._STRANGER:
                self.log.last = str(error)
        finally:
            self.done.set()

    def problem(self) -> LockServiceUnavailable:
        """Return what keeps us from having a client."""
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
        access, handler = self._access, _Handler(self._access)
        sasl = None
        if access.auth == "sasl":
            sasl = {"mechanism": "DIGEST-MD5", "username": access.user, "password": access.password}
        elif access.auth == "kerberos":
            sasl = {"mechanism": "GSSAPI", "service": access.service}
        client = KazooClient(
            hosts=access.addresses,
            timeout=self._asked_ms / 1000,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0, sleep_func=handler.sleep_func),
            auth_data=[("digest", f"{access.user}:{access.password}")] if access.auth == "digest" else None,
            sasl_options=sasl,
            logger=self.log,
        )
        connect = client._connection._connect

        def connected(*args: Any) -> Any:
            if not self._probe and (session := self._session()) is not None:
                session.heard.connecting(self._clock.now())
            try:
                read_timeout, connect_timeout = connect(*args)
            except (kazoo_errors.ConnectionDropped, kazoo_errors.SessionExpiredError):
                raise
            except kazoo_errors.KazooException as error:
                # 1. kazoo says that it is connected, and then authenticates.   2. It is refused, and closes.   3. We
                # ask for the chroot, and hear of a closed connection alone. So the refusal is noted here, at 2.
                self._problem = self._STRANGER
                # A server that refuses SASL says so in several ways, most of which end kazoo's thread.
                raise kazoo_errors.AuthFailedError(str(error) or type(error).__name__) from error
            if (session := self._session()) is not None:
                # Two thirds of what was negotiated, in milliseconds.
                session.timeout_ms = round(read_timeout * 1.5)
            return read_timeout, connect_timeout

        client._connection._connect = connected
        client.add_listener(self._settle)
        session = self._session()
        if not self._probe and session is not None:
            client._connection.ping_outstanding = _Pings(self._session, self._clock)
            client.add_listener(self._tell)
            session._handler = handler
        return client

    def _tell(self, state: str) -> None:
        session = self._session()
        if session is not None:
            session._changed(state)

    def ends_with(self, session: Session) -> None:
        """Close when the collector has *session*; not in its thread, which may be kazoo's own."""
        self._ending = weakref.finalize(session, self._collected)
        self._ending.atexit = False

    def _collected(self) -> None:
        # A forked child that drops what it has of its parent's must not end it.
        if self._pid == os.getpid():
            threading.Thread(target=self.close, name="commit-coord-zookeeper-close", daemon=True).start()

    def close(self) -> None:
        """End the session, or the attempt to get one."""
        if self._ending is not None:
            self._ending.detach()
        self.done.wait()
        if self._made is not None:
            try:
                self._made.stop()
                self._made.close()
            except Exception as error:  # noqa: BLE001 - nothing is left to do about it, the session expires
                logger.debug("closing a ZooKeeper client failed: %s", error)


class _Pings:
    """What kazoo sets when it sends a ping, and clears when the answer has come, or the connection is cut."""

    def __init__(self, session: weakref.ref[Session], clock: Clock) -> None:
        self._session, self._clock = session, clock
        self._sent: float | None = None

    def set(self) -> None:
        # 1. A ping is slow.   2. The next one is sent.   3. The answer that comes is that of the first.
        if self._sent is None:
            self._sent = self._clock.now()

    def clear(self) -> None:
        sent, self._sent = self._sent, None
        # A ping whose connection was cut is forgotten with it: see Heard.connected.
        if sent is not None and (session := self._session()) is not None:
            session._note_answer(sent)

    def is_set(self) -> bool:
        return self._sent is not None


class _MultiRead:
    """Many reads in one packet, as kazoo's own requests are made.

    Source: ZooKeeper ``MultiOperationRecord``, ``MultiResponse``.
    """

    type = 22

    def __init__(self, reads: Sequence[Any]) -> None:
        self._reads = reads
        self._chroot = ""

    def send(self, client: Any) -> Any:
        self._chroot, result = client.chroot, client.handler.async_result()
        client._call(self, result)
        return result

    def serialize(self) -> bytes:
        packet = bytearray()
        for read in self._reads:
            packet += serialization.MultiHeader(read.type, False, -1).serialize()
            packet += read._replace(path=_prefix_root(self._chroot, read.path)).serialize()
        return bytes(packet + serialization.MultiHeader(-1, True, -1).serialize())

    @staticmethod
    def deserialize(packet: bytes, offset: int) -> list[Any]:
        """Return for each read what kazoo's own request returns; None for a node that is not there, or its error."""
        results: list[Any] = []
        header, offset = serialization.MultiHeader.deserialize(packet, offset)
        while not header.done:
            if header.type == serialization.GetData.type:
                data, offset = serialization.read_buffer(packet, offset)
                stat = ZnodeStat._make(serialization.stat_struct.unpack_from(packet, offset))
                offset += serialization.stat_struct.size
                results.append((data, stat))
            elif header.type == serialization.GetChildren.type:
                (count,) = serialization.int_struct.unpack_from(packet, offset)
                offset += serialization.int_struct.size
                names = []
                for _ in range(count):
                    name, offset = serialization.read_string(packet, offset)
                    names.append(name)
                results.append(names)
            else:
                (code,) = serialization.int_struct.unpack_from(packet, offset)
                offset += serialization.int_struct.size
                gone = code == kazoo_errors.NoNodeError.code
                results.append(None if gone else kazoo_errors.EXCEPTIONS[code]())
            header, offset = serialization.MultiHeader.deserialize(packet, offset)
        return results


def _alone(read: Any) -> _Request:
    get_children = isinstance(read, serialization.GetChildren)
    return lambda client: client.get_children_async(read.path) if get_children else client.get_async(read.path)


def _depth(path: str) -> int:
    return path.count("/")


def _children_of(path: str) -> _Request:
    return lambda client: client.get_children_async(path, include_data=True)


def _data_of(path: str, watch: Callable[[str | None], None] | None) -> _Request:
    watcher = None if watch is None else lambda event: watch(event.path)
    return lambda client: client.get_async(path, watch=watcher)


def _stat_of(path: str) -> _Request:
    return lambda client: client.exists_async(path)


def _deletion_of(path: str) -> _Request:
    return lambda client: client.delete_async(path)


def _sync(client: Any) -> Any:
    return client.sync_async("/")


def _found(answer: Callable[[], Any]) -> Any:
    """Return an answer, None for a node that is not there."""
    try:
        return answer()
    except kazoo_errors.NoNodeError:
        return None


def _listing(answer: Any) -> Listing | None:
    return None if answer is None else Listing(answer[0], _stat(answer[1]))


def _node(answer: Any) -> Node | None:
    return None if answer is None else Node(answer[0], _stat(answer[1]))


def _stat(stat: Any) -> Stat:
    return Stat(
        created=stat.czxid,
        created_ms=stat.ctime,
        changed_below=stat.pzxid,
        version=stat.version,
        session=stat.ephemeralOwner,
    )


def _taken(pending: Any) -> Any:
    """Return what was answered, or raise the error that was: another one, since kazoo keeps its own."""
    if pending.exception is not None:
        raise type(pending.exception)(*pending.exception.args)
    return pending.value
