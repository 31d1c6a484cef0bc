"""A simulated ZooKeeper, and what replaces kazoo's client of it; all that is above that is the real code.

What is copied is what ZooKeeper documents, and ``tests/sim/test_zookeeper.py`` holds the tree to a real server:

* Nodes with data, version, the transactions that made them and that changed their children, and an owner if they are
  ephemeral. A sequential node gets the number of children that its parent ever had. A multi is done as a whole or not.
* Three servers. One orders all changes, and each of them applies these in that order, sooner or later: so what is
  read may be old, until a sync. A server answers the requests of one connection in their order, and a change only once
  it has applied it itself. A watch fires once, before the connection sees anything that came later.
* A session of which nothing was heard for its timeout, by the servers' clock, is expired, and its ephemeral nodes
  vanish in one transaction. Its client hears of that when it comes back. Servers that were away give every session its
  timeout anew.
* A connection breaks as a whole: what was sent on it arrives or not, from some request on, and nothing is answered from
  some answer on. What arrives by a connection from which its session has moved is refused. A client does not
  connect to a server that has seen less than itself.

What kazoo does: requests that are not answered fail when the connection is found cut, and watches are called without a
path; it connects again, to any server, and a session that has expired is followed by another one.

Not copied: ACLs, quotas, elections, what takes place while a server can reach some of the others only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from kazoo import exceptions as kazoo_errors
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat

from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.base import HeartbeatSender, Lease, LockSettings
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.zookeeper.access import EnsembleAccess
from commit_coord.locks.zookeeper.connection import CLOSING, EnsembleConnection, SessionEvent
from commit_coord.locks.zookeeper.layout import LockNode
from commit_coord.locks.zookeeper.manager import ZooKeeperLockManager
from commit_coord.locks.zookeeper.session_age import Heard
from tests.proof.sim.locking import Signal, SimulatedHeartbeat, observe, simulated_threads
from tests.proof.sim.world import CALM, Process, Service

_SERVERS = 3
_TICK = 2.0
"""Seconds to which the end of a session is rounded up, at most; twice in it the leader asks who was heard of."""
_CONNECTING = 15.0
_OK, _BEHIND = kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency


@dataclass(frozen=True, slots=True)
class Znode:
    """A node, as it is after a transaction."""

    data: bytes
    czxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    born: int = 0
    """How many children it ever had."""
    children: frozenset[str] = frozenset()

    @property
    def stat(self) -> ZnodeStat:
        """What a client is notified of."""
        return ZnodeStat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            cversion=2 * self.born - len(self.children),
            aversion=0,
            ephemeralOwner=self.owner,
            dataLength=len(self.data),
            numChildren=len(self.children),
            pzxid=self.pzxid,
        )


Nodes = dict[str, Znode]
Changes = dict[str, Znode | None]


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a multi."""

    kind: str
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False
    sequential: bool = False


class Tree:
    """The nodes after the last transaction, and the log of what each transaction changed."""

    def __init__(self) -> None:
        self.zxid = 1 << 32
        self.nodes: Nodes = {"/": Znode(b"", 0, 0, 0, 0, 0)}
        self.log: list[tuple[int, Changes]] = []

    def multi(self, session: int, operations: Sequence[Op], now_ms: int) -> list[Any]:
        """Do all or none; return what kazoo's transaction does: a result for each, or errors."""
        self.zxid += 1  # also of what fails
        changes: Changes = {}
        results: list[Any] = []
        for operation in operations:
            try:
                results.append(self._do(operation, session, now_ms, changes))
            except kazoo_errors.KazooException as error:
                behind = len(operations) - len(results) - 1
                self.log.append((self.zxid, {}))
                return [*(_OK() for _ in results), error, *(_BEHIND() for _ in range(behind))]
        self._done(changes)
        return results

    def delete(self, path: str) -> Any:
        """Delete one node; return True.

        Raises:
            NoNodeError: It is not there.
            NotEmptyError: It has children.
        """
        (result,) = self.multi(0, [Op("delete", path)], 0)
        if isinstance(result, Exception):
            raise result
        return result

    def end(self, session: int) -> None:
        """Delete the ephemeral nodes of *session*, in one transaction."""
        self.zxid += 1
        changes: Changes = {}
        for path in sorted(path for path, node in self.nodes.items() if node.owner == session):
            self._do(Op("delete", path), session, 0, changes)
        self._done(changes)

    def _done(self, changes: Changes) -> None:
        apply(self.nodes, changes)
        self.log.append((self.zxid, changes))

    def _do(self, one: Op, session: int, now_ms: int, changes: Changes) -> Any:
        def find(path: str) -> Znode | None:
            return changes[path] if path in changes else self.nodes.get(path)

        node, above = find(one.path), parent_of(one.path)
        if one.kind == "create":
            parent = find(above)
            if parent is None:
                raise kazoo_errors.NoNodeError
            path = f"{one.path}{parent.born:010d}" if one.sequential else one.path
            if find(path) is not None:
                raise kazoo_errors.NodeExistsError
            if parent.owner:
                raise kazoo_errors.NoChildrenForEphemeralsError
            owner = session if one.ephemeral else 0
            changes[path] = Znode(one.data, self.zxid, self.zxid, self.zxid, now_ms, now_ms, owner)
            children = parent.children | {path.rpartition("/")[2]}
            changes[above] = replace(parent, born=parent.born + 1, pzxid=self.zxid, children=children)
            return path
        if node is None:
            raise kazoo_errors.NoNodeError
        if one.version not in (-1, node.version):
            raise kazoo_errors.BadVersionError
        if one.kind == "check":
            return True
        if one.kind == "set":
            changed = replace(node, data=one.data, version=node.version + 1, mzxid=self.zxid, mtime=now_ms)
            changes[one.path] = changed
            return changed.stat
        if node.children:
            raise kazoo_errors.NotEmptyError
        changes[one.path], parent = None, find(above)
        assert parent is not None
        children = parent.children - {one.path.rpartition("/")[2]}
        changes[above] = replace(parent, pzxid=self.zxid, children=children)
        return True


def apply(nodes: Nodes, changes: Changes) -> None:
    """Do what a transaction did to *nodes*."""
    for path, node in changes.items():
        if node is None:
            nodes.pop(path, None)
        else:
            nodes[path] = node


def parent_of(path: str) -> str:
    """Return what *path* lies below."""
    return path.rpartition("/")[0] or "/"


def touched(before: Nodes, changes: Changes) -> list[str]:
    """Return where a watch of the data fires: what is gone, and what has another version or is another node."""
    found = []
    for path, node in changes.items():
        was = before.get(path)
        if was is not None and (node is None or (node.czxid, node.version) != (was.czxid, was.version)):
            found.append(path)
    return found


@dataclass(slots=True, eq=False)
class _Life:
    """A session, as the servers know it."""

    timeout: float
    heard: float
    connection: _Connection | None = None


@dataclass(slots=True, eq=False)
class _Request:
    pending: Pending
    read: Callable[[Nodes], Any] | None = None
    write: Callable[[], Any] | None = None
    """Neither is a sync."""
    watch: Callable[[Any], None] | None = None
    path: str = ""
    unanswered: bool = False
    pinged: float | None = None
    """When it was sent, by the client's clock, if it is a ping."""


class _Server:
    """One of the servers: what it has applied so far."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.nodes: Nodes = dict(ensemble.tree.nodes)
        self.zxid = ensemble.tree.zxid
        self.applied = 0
        self.connections: dict[_Connection, None] = {}
        self._due = 0.0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def hear(self) -> None:
        """The leader tells of a transaction."""
        world = self.ensemble.service.world
        self._due = max(self._due, world.now + self.ensemble.lag())
        world.at(self._due, self._apply_next)

    def once_applied(self, count: int, then: Callable[[], None]) -> None:
        """Do *then* when the first *count* transactions are applied."""
        if self.applied >= count:
            then()
        else:
            self._waiting.append((count, then))

    def _apply_next(self) -> None:
        self.zxid, changes = self.ensemble.tree.log[self.applied]
        fired = touched(self.nodes, changes)
        apply(self.nodes, changes)
        self.applied += 1
        for connection in list(self.connections):
            for path in fired:
                connection.fire(path)
        ready = [then for count, then in self._waiting if count <= self.applied]
        self._waiting = deque(one for one in self._waiting if one[0] > self.applied)
        for then in ready:
            then()


class Ensemble:
    """The servers, and every session.

    Args:
        service: How they are reached.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.tree = Tree()
        self.lives: dict[int, _Life] = {}
        self.servers = [_Server(self) for _ in range(_SERVERS)]

    def lag(self) -> float:
        """Return how long until a server applies a transaction."""
        dice = self.service.world.random.random
        return 2.0 * dice() if dice() < self.service.weather.slow else 0.001 + 0.003 * dice()

    @property
    def now_ms(self) -> int:
        """The servers' wall clock."""
        return int(self.service.world.now * 1000)

    def open(self, timeout: float) -> int:
        """Begin a session."""
        session = self.service.world.random.getrandbits(48)
        self.lives[session] = _Life(timeout, self.service.world.now)
        self._look_later(session)
        return session

    def commit(self, work: Callable[[], Any]) -> Any:
        """Have the leader do *work*, and tell the servers."""
        before = len(self.tree.log)
        try:
            return work()
        finally:
            for server in self.servers if len(self.tree.log) > before else ():
                server.hear()

    def end(self, session: int) -> None:
        """End a session, and all that is ephemeral in it."""
        del self.lives[session]
        self.tree.end(session)

    def leave(self) -> None:
        """All servers stop."""
        for life in self.lives.values():
            if life.connection is not None:
                life.connection.close()

    def come_back(self) -> None:
        """They are back, under a new leader, who gives everybody time."""
        self.tree.zxid = ((self.tree.zxid >> 32) + 1) << 32
        for life in self.lives.values():
            life.heard = self.service.world.now

    def _look_later(self, session: int) -> None:
        life, world = self.lives[session], self.service.world

        def look() -> None:
            if self.lives.get(session) is not life:
                return
            if self.service.away:
                world.at(world.now + life.timeout, look)
            elif world.now < life.heard + life.timeout:
                self._look_later(session)
            else:
                world.note(self.service.name, f"session {session:x} expires")
                self.commit(partial(self.end, session))
                if life.connection is not None:
                    life.connection.close()

        world.at(life.heard + life.timeout + _TICK * world.random.random(), look)

    def left(self, places: Sequence[str]) -> list[str]:
        """Return what nobody should have left: ephemeral nodes, locks, and what lies below *places*."""
        return [
            path
            for path, node in sorted(self.tree.nodes.items())
            if node.owner or LockNode.parse(path.rpartition("/")[2]) is not None or parent_of(path) in places
        ]


class Pending:
    """An answer that is awaited; one of kazoo's."""

    def __init__(self, process: Process) -> None:
        self._done = Signal(process)
        self.value: Any = None
        self.exception: Exception | None = None

    def set(self, value: Any) -> None:
        """It is there; None of those later counts."""
        if self._done.is_set():
            return
        if isinstance(value, Exception):
            self.exception = value
        else:
            self.value = value
        self._done.set()

    def get(self, timeout: float) -> Any:
        """Return it, or raise what it is."""
        if not self._done.wait(timeout):
            raise KazooTimeoutError
        if self.exception is not None:
            raise self.exception
        return self.value


class _Connection:
    """A client's connection with one server."""

    def __init__(self, client: SimulatedKazoo, server: _Server, session: int) -> None:
        self.client = client
        self.server = server
        self.session = session
        self.watched: set[str] = set()
        self.closed = False
        """By the server, or at its end of it."""
        self.arrives = self.returns = 0.0
        self.deaf = False
        """What is sent from now on does not arrive."""
        self._dumb = False
        """What is answered from now on does not arrive."""
        self._queue: deque[_Request] = deque()
        self._busy = False
        self._touched = False
        """The server was heard from, and has not told the leader yet."""
        server.connections[self] = None

    @property
    def _ensemble(self) -> Ensemble:
        return self.server.ensemble

    def send(self, request: _Request) -> None:
        """The client sends."""
        service, world = self._ensemble.service, self._ensemble.service.world
        main = self.client.process.main
        # A client that was interrupted and is done sends nothing but pings, to the end of the run.
        dice, weather = world.random.random, CALM if main is not None and main.ended else service.weather
        travel, draw = 0.0005 + 0.005 * dice() ** 2, dice()
        found_cut = world.now + 10.0 * dice() ** 2
        if draw < weather.lost:
            self.deaf = True
            self.client.process.note("its connection to ZooKeeper breaks")
            world.at(found_cut, partial(self.client.cut, self))
        elif (draw := draw - weather.lost) < weather.unanswered:
            request.unanswered = True
            self.client.process.note("its connection to ZooKeeper will break behind this")
            world.at(found_cut, partial(self.client.cut, self))
        elif (draw := draw - weather.unanswered) < weather.refused:
            self.deaf = True
            world.at(world.now + travel, partial(self.client.cut, self))
        elif (draw := draw - weather.refused) < weather.late:
            travel = 20.0 * dice()
            self.client.process.note(f"its connection to ZooKeeper is stuck for {travel:.1f} s")
        elif draw - weather.late < weather.slow:
            travel = 2.0 * dice()
        if not self.deaf:
            self.arrives = max(self.arrives, world.now + travel)
            world.at(self.arrives, partial(self._arrive, request))

    def end_session(self) -> None:
        """The client wants no more; for the leader to do."""
        self._ensemble.end(self.session)

    def ping(self) -> None:
        """The client is alive."""
        self.send(_Request(Pending(self.client.process), read=lambda _: None, pinged=self.client.process.clock.now()))

    @property
    def _life(self) -> _Life | None:
        """The session, if it is still this connection's."""
        life = self._ensemble.lives.get(self.session)
        away = self._ensemble.service.away
        return life if life is not None and life.connection is self and not self.closed and not away else None

    def _arrive(self, request: _Request) -> None:
        life = self._life
        if life is not None:
            self._touch(life)
            self._queue.append(request)
            self._pump()

    def _touch(self, life: _Life) -> None:
        """Have the leader told of the session at its next ping, unless the server is cut off until then."""
        world = self._ensemble.service.world

        def tell() -> None:
            self._touched = False
            if self._life is life and not self.deaf and not self._dumb:
                life.heard = world.now

        if not self._touched:
            self._touched = True
            world.at((world.now // (_TICK / 2) + 1) * _TICK / 2, tell)

    def _pump(self) -> None:
        world, tree = self._ensemble.service.world, self._ensemble.tree
        while self._queue and not self._busy:
            request = self._queue.popleft()
            if request.read is not None:
                self._answer(request, _tried(partial(request.read, self.server.nodes)))
                continue
            self._busy = True

            def lead(request: _Request = request) -> None:
                if self._life is None:
                    return  # The session has moved, or is over.
                result = _tried(partial(self._ensemble.commit, request.write)) if request.write else True
                self.server.once_applied(len(tree.log), partial(self._led, request, result))

            world.at(world.now + 0.0005 + 0.001 * world.random.random(), lead)

    def _led(self, request: _Request, result: Any) -> None:
        self._busy = False
        self._answer(request, result)
        self._pump()

    def _answer(self, request: _Request, result: Any) -> None:
        self._dumb |= request.unanswered
        if request.watch is not None and not isinstance(result, Exception):
            self.watched.add(request.path)
        self._return(partial(self.client.receive, self, request, result, self.server.zxid))

    def fire(self, path: str) -> None:
        """A watched node has changed or gone."""
        if path in self.watched:
            self.watched.discard(path)
            self._return(partial(self.client.fire, self, path))

    def _return(self, action: Callable[[], None]) -> None:
        if self._dumb or self.closed:
            return
        world = self._ensemble.service.world
        self.returns = max(self.returns, world.now + 0.0005 + 0.005 * world.random.random() ** 2)
        world.at(self.returns, action)

    def close(self) -> None:
        """The server ends it."""
        self.closed = True
        self.server.connections.pop(self, None)
        world = self._ensemble.service.world
        world.at(max(self.returns, world.now + 0.001), partial(self.client.cut, self))


def _jumbled(name: str) -> str:
    """Names come in no order."""
    return name[::-1]


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except kazoo_errors.KazooException as error:
        return error


class SimulatedKazoo:
    """What the product uses of kazoo's client, in a simulated process.

    Args:
        process: Whose.
        ensemble: Its servers.
        timeout: Of its session.
        changed: Told of the states of its connection.
        opening: What made it for a session of the product; None if a test uses it alone.
    """

    def __init__(
        self,
        process: Process,
        ensemble: Ensemble,
        timeout: float,
        changed: Callable[[str], None],
        opening: _SimulatedOpening | None = None,
    ) -> None:
        self.process = process
        self._opening = opening
        self.logger = SimpleNamespace(last="")
        self.client_state = KeeperState.CONNECTING
        self.connected = False
        self._session_id: int | None = None
        self._live = Signal(process)
        self._ensemble = ensemble
        self._timeout = timeout
        self._changed = changed
        self._connection: _Connection | None = None
        self._pending: dict[Pending, None] = {}
        self._watchers: dict[str, list[Callable[[Any], None]]] = {}
        self._seen = 0
        self._connect()

    # What the product asks.

    def transaction(self) -> SimulatedTransaction:
        """Return an empty multi."""
        return SimulatedTransaction(self)

    def get_children_async(self, path: str, *, include_data: bool) -> Pending:
        """Ask for the names below *path*, and what is known of it."""
        assert include_data
        return self._read(path, lambda node: (sorted(node.children, key=_jumbled), node.stat))

    def get_async(self, path: str, watch: Callable[[Any], None] | None = None) -> Pending:
        """Ask for the data of *path*."""
        return self._read(path, lambda node: (node.data, node.stat), watch)

    def exists_async(self, path: str) -> Pending:
        """Ask whether *path* is there."""
        return self._send(read=lambda nodes: nodes[path].stat if path in nodes else None)

    def delete_async(self, path: str) -> Pending:
        """Delete *path*."""
        return self._send(write=lambda: self._ensemble.tree.delete(path))

    def sync_async(self, _: str) -> Pending:
        """Have the server catch up."""
        return self._send()

    def commit(self, operations: Sequence[Op]) -> Pending:
        """Send a multi."""
        session = self._session_id or 0
        return self._send(write=lambda: self._ensemble.tree.multi(session, operations, self._ensemble.now_ms))

    def _read(self, path: str, found: Callable[[Znode], Any], watch: Callable[[Any], None] | None = None) -> Pending:
        def read(nodes: Nodes) -> Any:
            if path not in nodes:
                raise kazoo_errors.NoNodeError
            return found(nodes[path])

        return self._send(read=read, watch=watch, path=path)

    def _send(
        self,
        *,
        read: Callable[[Nodes], Any] | None = None,
        write: Callable[[], Any] | None = None,
        watch: Callable[[Any], None] | None = None,
        path: str = "",
    ) -> Pending:
        pending = Pending(self.process)
        if self._connection is None:
            pending.set(kazoo_errors.ConnectionLoss())
            return pending
        self._pending[pending] = None
        self._connection.send(_Request(pending, read, write, watch, path))
        return pending

    def stop(self) -> Pending:
        """End the session."""
        connection, pending = self._connection, Pending(self.process)
        if connection is None:
            pending.set(True)
        else:
            connection.send(_Request(pending, write=connection.end_session))
        self.client_state = KeeperState.CLOSED
        self._lose(KazooState.LOST)
        return pending

    # What comes back.

    def receive(self, connection: _Connection, request: _Request, result: Any, zxid: int) -> None:
        """An answer arrives."""

        def take() -> None:
            if self.client_state == KeeperState.CLOSED:
                request.pending.set(result)
            elif self._connection is connection:
                if request.pinged is not None and self._opening is not None:
                    self._opening.note_ping(request.pinged)
                self._seen = max(self._seen, zxid)
                self._pending.pop(request.pending, None)
                if request.watch is not None and not isinstance(result, Exception):
                    self._watchers.setdefault(request.path, []).append(request.watch)
                request.pending.set(result)

        self._in_process(take)

    def fire(self, connection: _Connection, path: str) -> None:
        """A watch fires."""

        def call() -> None:
            if self._connection is connection:
                for watch in self._watchers.pop(path, ()):
                    watch(SimpleNamespace(path=path))

        self._in_process(call)

    def cut(self, connection: _Connection) -> None:
        """A connection is found cut."""

        def lose() -> None:
            if self._connection is connection:
                self.process.note("its connection to ZooKeeper is cut")
                self._lose(KazooState.SUSPENDED)
                self._connect_later()

        self._in_process(lose)

    def _lose(self, state: str) -> None:
        self._live.clear()
        self.connected, self._connection = False, None
        pending, self._pending = self._pending, {}
        for one in pending:
            one.set(kazoo_errors.ConnectionLoss())
        watchers, self._watchers = self._watchers, {}
        self._changed(state)
        for watch in (watch for each in watchers.values() for watch in each):
            watch(SimpleNamespace(path=None))

    def _in_process(self, action: Callable[[], None]) -> None:
        """Do *action* in kazoo's thread: not while the process is stopped."""
        process = self.process
        if not process.alive:
            return
        if process.paused_until > process.world.now:
            process.world.at(process.paused_until, partial(self._in_process, action))
        else:
            action()

    def _connect_later(self) -> None:
        world = self.process.world
        world.at(world.now + 0.05 + 0.5 * world.random.random() ** 2, partial(self._in_process, self._connect))

    def _connect(self) -> None:
        if self.client_state == KeeperState.CLOSED:
            return
        ensemble, world = self._ensemble, self.process.world
        dice, weather = world.random.random, ensemble.service.weather
        travel, draw = 0.001 + 0.005 * dice(), dice()
        server = ensemble.servers[int(dice() * _SERVERS)]
        if self._opening is not None:
            self._opening.heard.connecting(self.process.clock.now())

        def arrive() -> None:
            if ensemble.service.away or server.zxid < self._seen or draw < weather.lost + weather.refused:
                return world.at(world.now + travel, partial(self._in_process, self._connect_later))
            session = self._session_id
            life = ensemble.lives.get(session) if session is not None else None
            if session is not None and life is None:
                return world.at(world.now + travel, partial(self._in_process, self._expire))
            if session is None or life is None:
                session = ensemble.open(self._timeout)
                life = ensemble.lives[session]
            if life.connection is not None:
                life.connection.close()
            life.connection, life.heard = _Connection(self, server, session), world.now
            if draw > 1 - weather.unanswered:
                return world.at(world.now + 5.0 * dice(), partial(self._in_process, self._connect))
            return world.at(world.now + travel, partial(self._in_process, partial(self._begin, life.connection)))

        world.at(world.now + travel, arrive)

    def _begin(self, connection: _Connection) -> None:
        if self.client_state == KeeperState.CLOSED:
            return
        if connection.closed:
            self._connect_later()
            return
        self._connection, self._session_id = connection, connection.session
        self.connected, self.client_state = True, KeeperState.CONNECTED
        self._live.set()
        self._changed(KazooState.CONNECTED)
        self._ping_later(connection)

    def _expire(self) -> None:
        if self.client_state == KeeperState.CLOSED:
            return
        self.process.note("its ZooKeeper session has expired")
        self._session_id, self._seen = None, 0
        self._lose(KazooState.LOST)
        self._connect()

    def _ping_later(self, connection: _Connection) -> None:
        world, interval = self.process.world, self._timeout / 3

        def ping() -> None:
            if self._connection is not connection:
                return
            if connection.arrives > world.now + interval:
                self.cut(connection)
            else:
                connection.ping()
                self._ping_later(connection)

        world.at(world.now + interval, partial(self._in_process, ping))


class SimulatedTransaction:
    """A multi, as kazoo has its parts told."""

    def __init__(self, client: SimulatedKazoo) -> None:
        self._client = client
        self._operations: list[Op] = []

    def create(self, path: str, data: bytes, _: Any, ephemeral: bool, sequence: bool) -> None:
        """Create a node."""
        self._operations.append(Op("create", path, data, ephemeral=ephemeral, sequential=sequence))

    def delete(self, path: str, version: int) -> None:
        """Delete one."""
        self._operations.append(Op("delete", path, version=version))

    def check(self, path: str, version: int) -> None:
        """Refuse the multi if it is not there."""
        self._operations.append(Op("check", path, version=version))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        """Replace its data."""
        self._operations.append(Op("set", path, data, version))

    def commit_async(self) -> Pending:
        """Send it."""
        return self._client.commit(self._operations)


class _SimulatedOpening:
    """The making of a client; as ``locks.zookeeper.opening.Opening``."""

    def __init__(self, session: SimulatedConnection) -> None:
        process = session.process
        self.done = Signal(process)
        self.log = SimpleNamespace(last="")
        self.client: SimulatedKazoo | None = None
        self.handler = None
        self.heard = Heard()
        self._session: Any = session
        self._made = SimulatedKazoo(process, session.ensemble, session.asked_ms / 1000, self._changed, self)
        process.world.at(process.world.now + _CONNECTING, self.done.set)

    def _changed(self, state: str) -> None:
        if state == KazooState.CONNECTED and not self.done.is_set():
            self.client = self._made
            self.done.set()
        self._session.changed(self, state)

    def note_ping(self, sent: float) -> None:
        """Record that a ping was answered."""
        self._session.note_answer(self, sent)

    def problem(self) -> LockServiceUnavailable:
        """Return that it can't be reached."""
        return LockServiceUnavailable("ZooKeeper can't be reached")

    def close(self) -> Pending:
        """End the session, or the attempt to get one."""
        return self._made.stop()


class SimulatedConnection(EnsembleConnection):
    """The real connection, above a simulated client."""

    def __init__(
        self, process: Process, ensemble: Ensemble, timeout_ms: int, listener: Callable[[SessionEvent], None]
    ) -> None:
        super().__init__(EnsembleAccess(hosts="simulated:1"), timeout_ms, process.clock, listener)
        self.multi_read = False
        self.process = process
        self.ensemble = ensemble

    def close(self) -> None:
        """See :meth:`EnsembleConnection.close`."""
        self._closings += 1
        self.is_closed = True
        opening: Any = self._detached()
        if opening is not None:
            opening.close()._done.wait(CLOSING)

    def connected(self, until: float) -> Any:
        """See :meth:`EnsembleConnection.connected`."""
        self.process.step()
        return super().connected(until)

    def _opened(self) -> Any:
        return _SimulatedOpening(self)

    def _close_later(self, opening: Any) -> None:
        opening.close()

    def _nudge(self, client: Any) -> None:
        """There is no pipe."""


class _SessionHeartbeat(SimulatedHeartbeat):
    """Ends when it is stopped: a beat would begin another session."""

    def __init__(self, process: Process, beat: Callable[[], float | None], *, idle: Callable[[], float]) -> None:
        super().__init__(process, self._beat_unless_stopped, idle=idle)
        self._real_beat = beat
        self._stopped = self._beating = False

    def ensure_running(self, *, now: bool = False) -> None:
        self._stopped = False
        super().ensure_running(now=now)

    def stop(self) -> None:
        self._stopped = True
        while self._beating:
            self._process.clock.sleep(0.005)

    def _beat_unless_stopped(self) -> float | None:
        if self._stopped:
            return None
        self._beating = True
        try:
            return self._real_beat()
        finally:
            self._beating = False


class SimulatedZooKeeperManager(ZooKeeperLockManager):
    """The real manager, in a simulated process.

    Args:
        process: Whose.
        ensemble: Its servers.
        settings: Times.
        granted: Told of each grant.
        prompt: Who has made sure of its lease is not stopped before its next change is sent.
        several_threads: Whether several threads of the process use it.
    """

    def __init__(
        self,
        process: Process,
        ensemble: Ensemble,
        settings: LockSettings,
        granted: Callable[[Lease], None],
        *,
        prompt: bool,
        several_threads: bool = False,
    ) -> None:
        def connect(
            _: EnsembleAccess, timeout_ms: int, clock: Clock, listener: Callable[[SessionEvent], None]
        ) -> SimulatedConnection:
            return SimulatedConnection(process, ensemble, timeout_ms, listener)

        def heartbeat(
            beat: Callable[[], float | None],
            *,
            idle: Callable[[], float],
            name: str,
            also: HeartbeatSender | None = None,
        ) -> Heartbeat:
            return _SessionHeartbeat(process, beat, idle=idle)

        super().__init__(
            "simulated:1",
            settings=settings,
            clock=process.clock,
            threads=replace(simulated_threads(process, several=several_threads), heartbeat=heartbeat),
            host=process.world.host,
            connect=connect,
        )
        observe(self, process, granted, prompt=prompt)
