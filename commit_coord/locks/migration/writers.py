"""The registry of writers that support a migration: one ephemeral node in ZooKeeper for each client.

It is for people and for ``commit-coord migrate``: no commit depends on it. So it is written in the background, and
where ZooKeeper is away, as it may be while all tables are in phase ``hms``, a commit does not notice.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol, Self

from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.heartbeat import Heartbeat
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.layout import NodeLayout
from commit_coord.locks.zookeeper.manager import ZooKeeperLockManager
from commit_coord.locks.zookeeper.nodes import ChangeNode, CreateNode, MultiRefused, NodeOperation
from commit_coord.model import Owner, Resource
from commit_coord.process import SYSTEM_HOST, Host
from commit_coord.protocol.migration import Phase
from commit_coord.version import __version__

logger = logging.getLogger(__name__)

_EVERY = 1.0
"""Seconds between two checks whether there is something new to tell."""

_TABLES = 200
"""Tables of which one writer tells; of more, those that it wrote to last. A node has room for 1 MiB."""


@dataclass(slots=True, kw_only=True)
class Counted:
    """Statistics of one writer on one table in one phase, since the writer started."""

    latches: int = 0
    """Commit latches that it was granted: one for each commit that it made itself."""
    waited_ms: float = 0.0
    """The total time that it waited for these latches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One client in a migration.

    Args:
        client: Its name, which its locks in the metastore carry too.
        version: Of this package.
        owner: Where it runs.
        phases: Those that it understands.
        tables: Table → phase in which it wrote last.
        counted: Table → phase → what it did.
    """

    client: str
    version: str
    owner: Owner
    phases: tuple[str, ...] = tuple(Phase)
    tables: Mapping[str, str] = field(default_factory=dict)
    counted: Mapping[str, Mapping[str, Counted]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Return what its node holds."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Writer:
        """Return what a node says, as far as this version understands it: a later one may add fields."""
        found = _fields_of(cls, json.loads(data))
        counted = {
            table: {phase: Counted(**_fields_of(Counted, one)) for phase, one in phases.items()}
            for table, phases in found["counted"].items()
        }
        owner = Owner(**_fields_of(Owner, found["owner"]))
        return cls(**{**found, "owner": owner, "phases": tuple(found["phases"]), "counted": counted})


def _fields_of(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    known = {one.name for one in fields(kind)}
    return {key: value for key, value in found.items() if key in known}


class WriterRegistry(Protocol):
    """The registry as the lock manager and the operator of a migration use it."""

    @property
    def client(self) -> str:
        """The name by which this client's locks in the metastore are known."""
        ...

    def appear(self) -> None:
        """See to it that this client is in the registry soon."""
        ...

    def latched(self, table: Resource, phase: Phase, waited_ms: float) -> None:
        """Count a latch on *table*."""
        ...

    def all(self) -> Sequence[Writer]:
        """Return the writers in the registry.

        Raises:
            LockServiceUnavailable: It does not answer.
        """
        ...

    def close(self) -> None:
        """Tell no more."""
        ...


class Writers:
    """The registry, and this client's place in it.

    Args:
        session: Returns ZooKeeper's session of this client.
        layout: Where the nodes lie.
        client: Returns the name by which this client's locks in the metastore are known.
        clock: Time.
        host: Names this process.
    """

    def __init__(
        self,
        session: Callable[[], ZooKeeperSession],
        layout: NodeLayout,
        client: Callable[[], str],
        clock: Clock,
        host: Host = SYSTEM_HOST,
    ) -> None:
        self._session, self._layout, self._client, self._clock, self._host = session, layout, client, clock, host
        self._counted: dict[str, dict[str, Counted]] = {}
        self._phases: dict[str, str] = {}
        self._lock = threading.Lock()
        self._announced: tuple[int, str] | None = None
        """The session and the client with which this client was announced last; None if there is something new."""
        self.heartbeat = Heartbeat(self._beat, idle=lambda: _EVERY, name="commit-coord-writers")

    @classmethod
    def of(cls, hms: HmsLockManager, zookeeper: ZooKeeperLockManager, clock: Clock) -> Self:
        """Return the registry in ZooKeeper for a client with these lock managers."""
        return cls(lambda: zookeeper.session, zookeeper.layout, lambda: hms.client, clock)

    @property
    def client(self) -> str:
        """See :attr:`WriterRegistry.client`."""
        return self._client()

    def appear(self) -> None:
        """See to it that this client is in the registry soon."""
        if self._announced is None:
            self.heartbeat.ensure_running()

    def latched(self, table: Resource, phase: Phase, waited_ms: float) -> None:
        """Count a latch on *table*."""
        name = ".".join(table.path)
        with self._lock:
            self._phases.pop(name, None)
            self._phases[name] = phase.value
            one = self._counted.setdefault(name, {}).setdefault(phase.value, Counted())
            one.latches += 1
            one.waited_ms += waited_ms
            self._announced = None
        self.heartbeat.ensure_running()

    def all(self) -> list[Writer]:
        """Return the writers in the registry.

        Raises:
            LockServiceUnavailable: ZooKeeper does not answer.
        """
        (names,) = self._session().names([self._layout.writers])
        nodes = self._session().get([f"{self._layout.writers}/{name}" for name in names or ()])
        return [Writer.from_json(node.data) for node in nodes if node is not None]

    def close(self) -> None:
        """Tell no more. The node goes with the session."""
        self.heartbeat.stop()

    def _beat(self) -> float | None:
        session, client = self._session(), self._client()
        if self._announced == (session.number, client):
            return None
        with self._lock:
            named = list(self._phases)[-_TABLES:]
            data = replace(
                _this(client, self._host),
                tables={name: self._phases[name] for name in named},
                counted={name: self._counted[name] for name in named},
            ).to_json()
            self._announced = session.number, client
        try:
            self._write(session, self._layout.writer(client), data)
        except LockServiceUnavailable as error:
            self._announced = None
            logger.warning("the registry of writers could not be written: %s", error)
        return _EVERY

    @staticmethod
    def _write(session: ZooKeeperSession, path: str, data: bytes) -> None:
        ways: list[NodeOperation] = [ChangeNode(path, data), CreateNode(path, data, ephemeral=True)]
        for way in ways:
            with suppress(MultiRefused):  # It is not there yet, or a reply was lost and it is.
                session.multi([way])
                return


def _this(client: str, host: Host) -> Writer:
    return Writer(client=client, version=__version__, owner=host.owner())
