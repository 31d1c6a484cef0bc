"""The faults, each as what is done to a cell; and the one table of where which makes sense."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commit_coord.local import LocalServer, ServerFailed
from commit_coord.testing.fleet import holds_within
from tests.proof.faults.crews import Crews
from tests.proof.faults.proxy import Proxy
from tests.proof.faults.rigs import CLIENT_TIMEOUT_S, CONFIGURATIONS, LEASE_S, Configuration, Rig
from tests.proof.faults.world import fill, forget_memory_groups, memory_group
from tests.proof.faults.writers import STEPS, Order

if TYPE_CHECKING:
    import psycopg

_OBEYED_S = 6.0
"""How long an order may wait: its slot may never come by its step."""


class Cell:
    """What an injury acts on.

    Args:
        rig: The servers.
        crews: The writers.
        proxies: By port, where the cell goes through proxies.
        seed: Of every choice.
        seconds: About how long the injury lasts.
    """

    def __init__(self, rig: Rig, crews: Crews, proxies: Mapping[int, Proxy], seed: int, seconds: float) -> None:
        self.rig = rig
        self.crews = crews
        self.proxies = proxies
        self.dice = random.Random(seed)
        self.seconds = seconds
        self.done: dict[str, int] = {}
        """What was done how often."""
        self.ends: list[float] = []
        """When the writers were free to go on."""

    def did(self, what: str) -> None:
        """Note that something was done."""
        self.done[what] = self.done.get(what, 0) + 1

    def over(self) -> None:
        """Note that from now on nothing keeps the others from going on."""
        self.ends.append(time.monotonic())

    def last(self, seconds: float) -> None:
        """Let it last: how long is a part of each fault."""
        time.sleep(seconds)  # the subject: how long a fault lasts

    def obeyed(self, slot: int, order: Order) -> bool:
        """Give *slot* an order; return whether it was carried out in time."""
        self.crews.place.give(slot, order)
        path = self.crews.place.order(slot)
        if not holds_within(lambda: not path.exists(), _OBEYED_S, every_s=0.01):
            path.unlink(missing_ok=True)
            return False
        self.did(f"{order.act} {order.step}")
        return True


def nothing(cell: Cell) -> None:
    """No fault: what the same load does by itself."""
    cell.last(cell.seconds)
    cell.over()


def kill_writers(cell: Cell) -> None:
    """SIGKILL of a random writer, again and again; a new process takes its place."""
    until = time.monotonic() + cell.seconds
    while time.monotonic() < until:
        cell.last(cell.dice.uniform(0.1, 1.0 if not cell.rig.configuration.threads else 3.0))
        if cell.crews.signal(cell.dice.choice(cell.crews.slots), signal.SIGKILL):
            cell.did("kill")
            cell.over()


def kill_at_steps(cell: Cell) -> None:
    """SIGKILL of a writer right before and right after each step of the protocol, and inside a database's swap."""
    if cell.rig.configuration.ours:
        points = [f"{when} {step}" for step in STEPS for when in ("before", "after")]
    else:
        points = ["before Acquire", "before Swap", "after Release"]
    if cell.rig.configuration.store != "hms":
        points.append("in Swap")
    cell.dice.shuffle(points)
    until = time.monotonic() + cell.seconds
    for point in points:
        if time.monotonic() > until:
            break
        if cell.obeyed(cell.dice.choice(cell.crews.slots), Order(step=point, act="kill")):
            cell.over()


def stop_holders(cell: Cell) -> None:
    """SIGSTOP of a holder for longer than the others may wait, then SIGCONT: before, inside and after its swap."""
    points = [("before Swap", 0)]  # an append
    if cell.rig.configuration.ours:
        points.append(("after Swap", 5))  # a replace under a partition lock
    if cell.rig.configuration.store == "postgres":
        # A file's lock has no server that ends it: SQLite's writer that is stopped right there keeps everybody waiting.
        points.append(("in Swap", 6))
    for point, slot in points:
        if not cell.obeyed(slot, Order(step=point, act="stop")):
            continue
        holds_within(lambda: cell.crews.is_stopped(slot), 2, every_s=0.01)  # noqa: B023 - called here
        cell.over()
        cell.last(LEASE_S + 7)
        cell.crews.signal(slot, signal.SIGCONT)
        cell.last(1)


def restart_servers(cell: Cell) -> None:
    """Each server in turn is stopped as its operator would, and started again."""
    for server in cell.rig.servers:
        server.restart()
        cell.did(f"restart {server.name}")
        cell.over()
        cell.last(1)


def _services(cell: Cell) -> list[list[LocalServer]]:
    """Return the servers of each service: those of ZooKeeper are one."""
    ensemble: list[LocalServer] = [] if cell.rig.zookeeper is None else list(cell.rig.zookeeper.servers)
    others = [[server] for server in cell.rig.servers if server not in ensemble]
    return [ensemble, *others] if ensemble else others


def kill_servers(cell: Cell) -> None:
    """Each service in turn is ended by kill -9, all its servers at once, and started again."""
    for service in _services(cell):
        for server in service:
            server.kill()
            cell.did(f"kill -9 {server.name}")
        cell.last(1)
        for server in service:
            server.launch()
        for server in service:
            server.await_ready()
        cell.over()
        cell.last(1)


def lose_follower(cell: Cell) -> None:
    """One of three ZooKeeper servers, a follower, is killed and stays away."""
    _lose(cell, cell.rig.follower())


def lose_leader(cell: Cell) -> None:
    """The leader of three ZooKeeper servers is killed and stays away."""
    _lose(cell, cell.rig.leader())


def _lose(cell: Cell, server: LocalServer) -> None:
    server.kill()
    cell.did(f"kill -9 {server.name}")
    cell.over()
    cell.last(cell.seconds)
    server.start()
    cell.over()


def cut_to_server(cell: Cell) -> None:
    """Packets to a server are dropped, one service after the other, for longer than a lease."""
    _cut(cell, to_server=True, to_client=False)


def cut_to_client(cell: Cell) -> None:
    """Packets from a server are dropped: it executes requests, and no client gets an answer."""
    _cut(cell, to_server=False, to_client=True)


def cut_both(cell: Cell) -> None:
    """Packets in both directions are dropped."""
    _cut(cell, to_server=True, to_client=True)


def _cut(cell: Cell, *, to_server: bool, to_client: bool) -> None:
    for service in _services(cell):
        for server in service:
            cell.rig.world.drop(server.port, to_server=to_server, to_client=to_client)
        try:
            cell.did(f"cut {service[0].name}")
            cell.last(LEASE_S + 2)
        finally:
            cell.rig.world.mend()
        cell.over()
        cell.last(2)


def slow_to_server(cell: Cell) -> None:
    """Each packet to a server takes 100 ms longer."""
    _slow(cell, 0.1, 0.0)


def slow_both(cell: Cell) -> None:
    """Each packet takes 100 ms longer, in both directions."""
    _slow(cell, 0.1, 0.1)


def _slow(cell: Cell, there_s: float, back_s: float) -> None:
    for proxy in cell.proxies.values():
        proxy.there_s, proxy.back_s = there_s, back_s
    cell.last(cell.seconds)
    for proxy in cell.proxies.values():
        proxy.heal()
    cell.did("slow network")
    cell.over()


def lose_answers(cell: Cell) -> None:
    """One answer in 30 never comes: what was asked for is done, and the connection is cut."""
    for proxy in cell.proxies.values():
        proxy.loses = 1 / 30
    cell.last(cell.seconds)
    for proxy in cell.proxies.values():
        proxy.heal()
        cell.done["answers lost"] = cell.done.get("answers lost", 0) + proxy.lost
    cell.over()


def lose_replies(cell: Cell) -> None:
    """A fifth of the REST servers' replies is lost, while each service in turn is killed with -9 and started again."""
    for proxy in cell.proxies.values():
        proxy.loses = 1 / 5
    kill_servers(cell)
    cell.last(cell.seconds)
    for proxy in cell.proxies.values():
        proxy.heal()
        cell.done["replies lost"] = proxy.lost
    cell.over()


def answer_late(cell: Cell) -> None:
    """The metastore does what it is asked, and answers when its client has given up."""
    assert cell.rig.metastore is not None
    proxy = cell.proxies[cell.rig.metastore.port]
    for _ in range(2):
        proxy.back_s = CLIENT_TIMEOUT_S + 2
        cell.last(CLIENT_TIMEOUT_S + 1)
        proxy.heal()
        cell.did("late answers")
        cell.last(1)
        cell.over()
        cell.last(CLIENT_TIMEOUT_S)


def fill_warehouse(cell: Cell) -> None:
    """The disk with the tables is full."""
    ballast = fill(cell.rig.warehouse)
    cell.did("fill disk")
    cell.last(cell.seconds)
    ballast.unlink()
    cell.over()


def fill_servers(cell: Cell) -> None:
    """The disk below the servers is full; when there is room again, those that ended are started."""
    ballast = fill(cell.rig.disk)
    cell.did("fill disk")
    until = time.monotonic() + cell.seconds
    while time.monotonic() < until:
        _use_up_what_was_allocated(cell)
        cell.last(0.5)
    ballast.unlink()
    cell.rig.heal()
    cell.over()


def _use_up_what_was_allocated(cell: Cell) -> None:
    """Databases have room in the log files that they have; without this a full disk is felt much later."""
    if cell.rig.postgres is not None:
        with suppress(ServerFailed):
            cell.rig.postgres.psql("SELECT pg_switch_wal()")
            cell.did("switch log file")
    elif cell.rig.configuration.store == "sqlite":
        with suppress(sqlite3.Error), closing(sqlite3.connect(cell.rig.disk / "catalog.db", timeout=0.5)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            cell.did("truncate log file")


def step_forward(cell: Cell) -> None:
    """The clocks of half of the writers step forward by an hour, later back."""
    _step(cell, 3600)


def step_back(cell: Cell) -> None:
    """The clocks of half of the writers step back by an hour, later forward."""
    _step(cell, -3600)


def _step(cell: Cell, seconds: int) -> None:
    for slot in cell.crews.slots[::2]:
        cell.crews.place.clock(slot).write_text(str(seconds))
    cell.did("clock step")
    cell.over()
    cell.last(cell.seconds)
    for slot in cell.crews.slots[::2]:
        cell.crews.place.clock(slot).write_text("0")
    cell.over()


def exhaust_connections(cell: Cell) -> None:
    """Another client has all connections that the server allows, and the writers' own are cut."""
    with ExitStack() as ends:
        if cell.rig.postgres is not None:
            _hog_postgres(cell, ends)
        else:
            _hog_zookeeper(cell, ends)
    cell.over()


def _hog_postgres(cell: Cell, ends: ExitStack) -> None:
    import psycopg

    assert cell.rig.postgres is not None
    url = cell.rig.postgres.url.replace("+psycopg", "")
    own: list[psycopg.Connection[tuple[object, ...]]] = []
    until = time.monotonic() + cell.seconds
    while time.monotonic() < until:
        try:
            own.append(ends.enter_context(psycopg.connect(url, application_name="hog", connect_timeout=2)))
        except psycopg.OperationalError:
            cell.did("connection refused")
            for connection in own[:1]:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND application_name <> 'hog'"
                )
                connection.commit()
            cell.last(0.02 if len(own) < 50 else 0.2)
    for connection in own:
        connection.close()


def _hog_zookeeper(cell: Cell, ends: ExitStack) -> None:
    import socket

    from tests.proof.faults.rigs import CONNECTIONS_MAX

    assert cell.rig.zookeeper is not None
    until = time.monotonic() + cell.seconds
    while time.monotonic() < until:
        for server in cell.rig.zookeeper.servers:
            for _ in range(CONNECTIONS_MAX):
                with suppress(OSError):
                    ends.callback(socket.create_connection(("127.0.0.1", server.port)).close)
        for server in cell.rig.zookeeper.servers:
            cell.proxies[server.port].cut()
        cell.did("connections taken")
        cell.last(2)


def run_out_of_memory(cell: Cell) -> None:
    """The kernel's out-of-memory killer ends a writer that takes too much, under its latch and elsewhere."""
    points = ["after EnsureActive", "before Swap", "before Acquire"] if cell.rig.configuration.ours else ["before Swap"]
    for point in points:
        if cell.obeyed(cell.dice.choice(cell.crews.slots), Order(step=point, act="hoard")):
            cell.over()
            cell.last(1)
    forget_memory_groups()


_NO_SERVER = "there is no server"
_ONE_PROCESS = "all writers are one process: nothing outlives it, and nobody waits for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injury:
    """A fault.

    Args:
        name: As in ``--only``.
        inflict: Does it.
        seconds: About how long it lasts, where that is free.
        proxied: Whether writers reach the servers through proxies.
        world: Whether it needs namespaces.
        spark: Whether one of the writers is a Spark application.
        crowd: How many times the usual number of writers.
        not_on: Configuration → why the cell makes no sense.
    """

    name: str
    inflict: Callable[[Cell], None]
    seconds: float = 8.0
    proxied: bool = False
    world: bool = False
    spark: bool = False
    crowd: int = 1
    not_on: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What it is, in words."""
        return (self.inflict.__doc__ or "").strip() + (" One writer is a Spark application." if self.spark else "")

    def why_not(self, configuration: Configuration) -> str:
        """Return why the cell makes no sense, "" where it does."""
        return self.not_on.get(configuration.name, "")


def _except(reason: str, names: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(names, reason)


_STEPS_OF_SERVERS = {"rest": "the steps are those of the servers, which lose-replies kills"}
_NO_CLIENT_OF_SERVERS = {"rest": "its writer is no client of the servers"}

_SERVERLESS = _except(_NO_SERVER, ["lease-sqlite", "memory"])
_ZOOKEEPER_ONLY = _except(
    "there is no ZooKeeper", ["lease-sqlite", "lease-postgres", "hms", "memory", "pyiceberg-hive", "pyiceberg-sql"]
)

INJURIES = {
    one.name: one
    for one in (
        Injury(name="none", inflict=nothing),
        Injury(name="none-with-spark", inflict=nothing, seconds=12, spark=True, not_on={
            "memory": "Spark's driver is another process",
            **_except("its writer in Spark uses `commit_coord`", ["pyiceberg-hive", "pyiceberg-sql"]),
            **_NO_CLIENT_OF_SERVERS,
        }),
        Injury(name="kill-writer", inflict=kill_writers, seconds=10),
        Injury(name="kill-at-step", inflict=kill_at_steps, seconds=60, not_on=_STEPS_OF_SERVERS),
        Injury(name="stop-holder", inflict=stop_holders, not_on={
            "memory": _ONE_PROCESS, **_STEPS_OF_SERVERS,
        }),
        Injury(name="restart-server", inflict=restart_servers, not_on=_SERVERLESS),
        Injury(name="kill-server", inflict=kill_servers, not_on=_SERVERLESS),
        Injury(name="kill-server-with-spark", inflict=kill_servers, spark=True, not_on={
            **_SERVERLESS,
            **_except("its writer in Spark uses `commit_coord`", ["pyiceberg-hive", "pyiceberg-sql"]),
            **_NO_CLIENT_OF_SERVERS,
        }),
        Injury(name="lose-follower", inflict=lose_follower, seconds=5, not_on=_ZOOKEEPER_ONLY),
        Injury(name="lose-leader", inflict=lose_leader, seconds=5, not_on=_ZOOKEEPER_ONLY),
        Injury(name="cut-to-server", inflict=cut_to_server, world=True, not_on=_SERVERLESS),
        Injury(name="cut-to-client", inflict=cut_to_client, world=True, not_on=_SERVERLESS),
        Injury(name="cut-both", inflict=cut_both, world=True, not_on=_SERVERLESS),
        Injury(name="slow-to-server", inflict=slow_to_server, proxied=True, not_on=_SERVERLESS),
        Injury(name="slow-both", inflict=slow_both, proxied=True, not_on=_SERVERLESS),
        Injury(name="lose-answers", inflict=lose_answers, seconds=10, proxied=True, not_on=_SERVERLESS),
        Injury(name="lose-replies", inflict=lose_replies, seconds=10, proxied=True, crowd=2, not_on=_except(
            "there is no REST server", [name for name in CONFIGURATIONS if name != "rest"]
        )),
        Injury(name="answer-late", inflict=answer_late, proxied=True, not_on=_except(
            "writers do not ask a metastore", ["lease-sqlite", "lease-postgres", "rest", "memory", "pyiceberg-sql"]
        )),
        Injury(name="full-warehouse", inflict=fill_warehouse, world=True, seconds=5),
        Injury(name="full-server-disk", inflict=fill_servers, world=True, seconds=5),
        Injury(name="clock-forward", inflict=step_forward, seconds=6),
        Injury(name="clock-back", inflict=step_back, seconds=6),
        Injury(name="connection-limit", inflict=exhaust_connections, seconds=6, proxied=True, not_on={
            **_SERVERLESS, **_except(
                "its limit is threads; a client beyond it waits, as for a late answer", ["hms", "pyiceberg-hive"]
            ),
            "rest": "writers have no connection to ZooKeeper",
        }),
        Injury(name="out-of-memory", inflict=run_out_of_memory, not_on=_STEPS_OF_SERVERS),
    )
}  # fmt: skip
"""All faults."""


def why_not_here(injury: Injury, rig_world: str) -> str:
    """Return why *injury* can't be done on this machine, "" where it can."""
    if injury.world and rig_world:
        return rig_world
    if injury.inflict is run_out_of_memory:
        return memory_group()
    return ""
