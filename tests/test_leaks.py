"""Every way out of a lock, with a real process and a real signal: one lease later no lock is left, held or waited for.

How long a lease is after its owner's end is taken from the lock service, and what a living process does with its next
heartbeat is counted in heartbeats. So neither depends on how busy the machine is.

The two bugs of Hive that are repeated here: HIVE-15997, a query that is cancelled while it takes its locks leaves them
behind; HIVE-25663, one that is cancelled while it retries goes on retrying.

A notebook's kernel is restarted as Jupyter does it: it is asked to end by SIGTERM, then by SIGKILL, with its variables,
and the leases among them, still there.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.model import LockEntry, LockMode, LockState, Resource
from tests.processes import Process, until

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
LEASE_MS = 2000
_TICK_S = 0.2
"""Of the ZooKeeper server."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(
    params=[
        "lease",
        pytest.param("zookeeper", marks=pytest.mark.slow),
        pytest.param("hms", marks=pytest.mark.slow),
    ]
)
def properties(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Of a catalog, with one lock manager after the other."""
    common = {
        "lock.heartbeat-timeout-ms": str(LEASE_MS),
        "lock.heartbeat-interval-ms": "500",
        "warehouse": tmp_path.joinpath("warehouse").as_uri(),
    }
    if request.param == "hms":
        metastore: HiveMetastore = request.getfixturevalue("hms")
        return {**common, "uri": f"coord+{metastore.uri}", "lock-impl": "hms"}
    place = {**common, "uri": f"coord+sqlite:///{tmp_path}/catalog.db", "lock-impl": request.param}
    if request.param == "zookeeper":
        ensemble: ZooKeeperEnsemble = request.getfixturevalue("zookeeper")
        place["lock.uri"] = f"{ensemble.connect_string}/{tmp_path.name}"
        ensemble_path(ensemble, tmp_path.name)
    return place


def ensemble_path(ensemble: ZooKeeperEnsemble, name: str) -> None:
    """Make the node that the catalog's locks lie below."""
    from kazoo.client import KazooClient

    client = KazooClient(ensemble.connect_string)
    client.start()
    try:
        client.ensure_path(f"/{name}")
    finally:
        client.stop()
        client.close()


class Witness:
    """Another client, which lives on and sees what is left.

    Args:
        catalog: This client's.
        table: Whose locks it looks at.
        ensemble: Where ``zookeeper`` keeps them.
    """

    def __init__(self, catalog: CoordinatedCatalog, table: str, ensemble: ZooKeeperEnsemble | None) -> None:
        self.catalog, self.table, self.ensemble = catalog, Resource(("leaks", table)), ensemble
        # Another client works at the same time: it is the living who clear away what expired.
        self.own = catalog.lock_operation({Resource(("leaks", f"{table}-other")): S})

    def entries(self) -> Sequence[LockEntry]:
        """Return what is listed on the table and below it."""
        return self.catalog.show_locks(self.table)

    def sees(self, state: LockState, number: int = 1) -> None:
        """Return once so many locks are in *state*."""
        until(lambda: sum(entry.state is state for entry in self.entries()) >= number, f"{number} {state}")

    def nothing_is_left(self) -> None:
        """Return once the leases of an owner that has just ended are over; assert that nothing is left of it then."""
        self.outlives()
        with self.catalog.lock_operation({self.table: X}) as own:
            assert {own.request.request_id} == {entry.request_id for entry in self.entries()}
        assert not self.entries()

    def outlives(self) -> None:
        """Return once the leases of an owner that has just ended are over; assert that they were no longer than said.

        How long they are is what the lock service says, so it does not matter how soon this process looks.
        """
        getattr(self, f"_outlives_{self.catalog.settings.lock_impl}")()

    def _outlives_lease(self) -> None:
        """Each request is listed with the end of its lease, by the clock of its service, and nothing moves that end."""
        ends: dict[str, float] = {}

        def is_over() -> bool:
            nonlocal ends
            asked = time.monotonic()
            left = {entry.request_id: (entry.expires_in_ms or 0) / 1000 for entry in self.entries()}
            if not ends:
                assert all(seconds <= LEASE_MS / 1000 for seconds in left.values())
                # What is left is shown in whole milliseconds.
                ends = {one: time.monotonic() + seconds + 0.001 for one, seconds in left.items()}
            assert all(asked + seconds <= ends[one] for one, seconds in left.items() if seconds)
            return not any(left.values())  # Removed, or expired: the next request that it conflicts with removes it.

        until(is_over, "the end of the leases")

    def _outlives_zookeeper(self) -> None:
        """The server says when a session ends: one timeout after its last word, rounded up to a tick."""
        latest = time.time() + LEASE_MS / 1000 + _TICK_S

        def is_over() -> bool:
            assert all(end <= latest for end in self._session_ends())
            return not self.entries()

        until(is_over, "the end of the sessions")

    def _session_ends(self) -> list[float]:
        """Return when the sessions end that have locks on the table, in seconds since the epoch, rounded down."""
        assert self.ensemble is not None
        text = self.ensemble.servers[0].ask("dump")
        ends, owns = dict[str, float](), set[str]()
        end, session = 0.0, ""
        for line in text.partition("Connections dump:")[0].splitlines():
            if found := re.search(r"expire at \w+ (\w+ \d+ [\d:]+) \w+ (\d+):", line):
                end = time.mktime(time.strptime(" ".join(found.groups()), "%b %d %H:%M:%S %Y"))
            elif found := re.fullmatch(r"\t(0x\w+)", line):
                ends[found[1]] = end
            elif found := re.fullmatch(r"(0x\w+):", line):
                session = found[1]
            elif f"/leaks/{self.table.path[1]}/" in line:
                owns.add(session)
        return [ends[session] for session in owns & set(ends)]

    def _outlives_hms(self) -> None:
        """A metastore frees nothing by itself: reap does so. Whatever was there when it was called is gone after it.

        What a client had sent before it was killed may be carried out later: another look finds it, and another reap.
        """
        while stood := {entry.request_id for entry in self.entries()}:
            self.catalog.reap()
            assert not stood & {entry.request_id for entry in self.entries()}


@pytest.fixture
def witness(properties: dict[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Witness]:
    """That client."""
    ensemble = request.getfixturevalue("zookeeper") if properties["lock-impl"] == "zookeeper" else None
    catalog = commit_coord.load_catalog("shop", **properties)
    yield Witness(catalog, tmp_path.name.replace("_", "-"), ensemble)
    catalog.close()


HOLDS = """
lease = locked(X, "leaks", {table!r}, "day=1", statement="a job")
say("holds")
hang()
"""
HOLDS_IN_A_BLOCK = """
with locked(X, "leaks", {table!r}, "day=1"):
    say("holds")
    hang()
"""
HOLDS_AND_EXITS_ON_SIGTERM = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with locked(X, "leaks", {table!r}, "day=1"):
    say("holds")
    hang()
"""
FAILS = """
with locked(X, "leaks", {table!r}, "day=1"):
    say("holds")
    sys.stdout.flush()
    raise ValueError("a job that fails")
"""
BEATS = """
import weakref
def counted(beat=main.locks.heartbeat._beat):
    delay = beat()
    say("beat")
    return delay
main.locks.heartbeat._beat = counted
"""
FORGETS = (
    BEATS
    + """
locked(X, "leaks", {table!r}, "day=1").ensure_active(0)
say("holds")
hang()
"""
)
KERNEL = """
table, cells = {table!r}, [
    'lease = locked(X, "leaks", table, "day=1")',
    'another = threading.Thread(target=lambda: locked(S, "leaks", table, "day=1", catalog=opened()), daemon=True)',
    "another.start()",
]
for cell in cells:
    exec(cell, globals())
say("holds")
hang()
"""


@pytest.mark.parametrize(
    "code, number, exits",
    [
        pytest.param(FAILS, None, 1, id="an exception"),
        pytest.param(HOLDS_IN_A_BLOCK, signal.SIGINT, -signal.SIGINT, id="Ctrl-C"),
        pytest.param(
            HOLDS, signal.SIGINT, -signal.SIGINT, id="Ctrl-C and a lease in a variable", marks=pytest.mark.slow
        ),
        pytest.param(
            HOLDS_AND_EXITS_ON_SIGTERM, signal.SIGTERM, 7, id="SIGTERM with a handler", marks=pytest.mark.slow
        ),
        pytest.param(HOLDS, signal.SIGTERM, -signal.SIGTERM, id="SIGTERM"),
        pytest.param(HOLDS, signal.SIGKILL, -signal.SIGKILL, id="SIGKILL"),
        pytest.param(KERNEL, signal.SIGTERM, -signal.SIGTERM, id="a kernel that is restarted", marks=pytest.mark.slow),
        pytest.param(
            KERNEL,
            signal.SIGKILL,
            -signal.SIGKILL,
            id="a kernel that does not answer and is restarted",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_holder_that_ends(
    witness: Witness, properties: dict[str, str], code: str, number: int | None, exits: int
) -> None:
    """However a process ends that holds a lock: nothing is left."""
    with Process(properties, code.format(table=witness.table.path[1])) as process:
        process.heard("holds")
        if number is not None:
            witness.sees(LockState.ACQUIRED, 2)
            process.signal(number)
        assert exits == process.ended(), process.stderr
        witness.nothing_is_left()


@pytest.mark.slow
def test_a_lease_that_is_forgotten(witness: Witness, properties: dict[str, str]) -> None:
    """The process lives on, and nobody in it has the lease."""
    with Process(properties, FORGETS.format(table=witness.table.path[1])) as process:
        process.heard("holds").heard("beat").heard("beat")  # the first one may have been under way
        assert not witness.entries()
        assert process.popen.poll() is None


WAITS = """
say("about to wait")
locked(X, "leaks", {table!r}, "day=1")
say("granted")
"""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, id="SIGINT"),
        pytest.param(signal.SIGTERM, id="SIGTERM", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_a_waiter_that_ends(witness: Witness, properties: dict[str, str], number: signal.Signals) -> None:
    """Its place is free: at once where it can say so, one lease later in any case."""
    with (
        witness.catalog.lock_operation({witness.table: X}),
        Process(properties, WAITS.format(table=witness.table.path[1])) as process,
    ):
        process.heard("about to wait")
        witness.sees(LockState.WAITING)
        assert -number == process.signal(number).ended(), process.stderr
        if number == signal.SIGINT:
            assert not any(entry.state is LockState.WAITING for entry in witness.entries())
    witness.nothing_is_left()


JOB = (
    BEATS
    + """
def job():
    lease = locked(X, "leaks", {table!r}, "day=1")
    weakref.finalize(lease, say, "let go")
    return lease
"""
)
FUTURE = (
    JOB
    + """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
future = pool.submit(job)
assert holds_within(lambda: len(main.show_locks()) >= 4, 600)
queued = pool.submit(locked, X, "leaks", {table!r}, "day=2")
assert queued.cancel()
future.cancel()
pool.shutdown(wait=False, cancel_futures=True)
del future, queued, pool
say("cancelled")
hang()
"""
)
ASYNCIO = (
    JOB
    + """
import asyncio
async def cell():
    waiting = asyncio.to_thread(job)
    try:
        await asyncio.wait_for(waiting, 1)
    except TimeoutError:
        say("cancelled")
    del waiting
    await asyncio.Event().wait()
asyncio.run(cell())
"""
)


@pytest.mark.parametrize("code", [FUTURE, ASYNCIO], ids=["concurrent.futures", "asyncio"])
def test_a_future_that_is_cancelled(witness: Witness, properties: dict[str, str], code: str) -> None:
    """Its thread waits on and is granted the lock, for nobody: the lease is given back though the process lives."""
    with Process(properties, code.format(table=witness.table.path[1])) as process:
        with witness.catalog.lock_operation({witness.table: X}):
            process.heard("cancelled")
            witness.sees(LockState.WAITING)
        process.heard("let go").heard("beat").heard("beat")
        assert not witness.entries()
        assert process.popen.poll() is None


CANCELLED_WHILE_ACQUIRING = """
def query():
    try:
        main.lock_operation({{Resource(("leaks", {table!r}, f"day={{n}}")): X for n in range(200)}})
    except Exception as error:
        say(type(error).__name__)
threading.Thread(target=query).start()
assert holds_within(lambda: len(main.show_locks(Resource(("leaks", {table!r})))) >= 200, 600)
main.close()
say("closed")
hang()
"""


def test_hive_15997_a_query_that_is_cancelled_while_it_takes_its_locks(
    witness: Witness, properties: dict[str, str]
) -> None:
    """Its client is closed in another thread: the wait ends, and nothing of 200 locks is left or granted later."""
    with Process(properties, CANCELLED_WHILE_ACQUIRING.format(table=witness.table.path[1])) as process:
        with witness.catalog.lock_operation({Resource((*witness.table.path, "day=7")): X}):
            process.heard("LockRefused").heard("closed")
            assert {LockState.ACQUIRED} == {entry.state for entry in witness.entries()}
        assert not witness.entries()
        assert process.popen.poll() is None


RETRIES = """
properties.update({{"lock.policy": "deny", "lock.sleep-between-retries-ms": "20", "lock.num-retries": "100000"}})
denied = opened()
say("about to retry")
locked(X, "leaks", {table!r}, "day=1", catalog=denied)
say("granted")
"""


def test_hive_25663_a_query_that_is_cancelled_while_it_retries(witness: Witness, properties: dict[str, str]) -> None:
    """As Hive does it, by trying again and again: Ctrl-C ends the trying, whatever it was just doing."""
    with (
        witness.catalog.lock_operation({witness.table: X}),
        Process(properties, RETRIES.format(table=witness.table.path[1])) as process,
    ):
        process.heard("about to retry")
        witness.sees(LockState.WAITING)
        assert -signal.SIGINT == process.signal(signal.SIGINT).ended(), process.stderr
        assert "KeyboardInterrupt" in process.stderr
        if witness.catalog.settings.lock_impl != "hms":  # there the answer to a lock call may have been under way
            assert {LockState.ACQUIRED} == {entry.state for entry in witness.entries()}
    witness.nothing_is_left()


COMMITS = """
import pyarrow as pa
table = main.load_table("leaks.commits")
say("commits")
while True:
    table.append(pa.table({"id": [1]}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_writer_that_ends_while_it_commits(
    witness: Witness, properties: dict[str, str], number: signal.Signals
) -> None:
    """Three writers of one table; two of them are ended, and a lease later the third one writes to it."""
    catalog = witness.catalog
    catalog.create_namespace_if_not_exists("leaks")
    if catalog.table_exists("leaks.commits"):
        catalog.drop_table("leaks.commits")
    rows = pa.table({"id": [1]})
    table = catalog.create_table("leaks.commits", schema=rows.schema)
    with Process(properties, COMMITS) as first, Process(properties, COMMITS) as second:
        for process in (first, second):
            process.heard("commits")
        until(lambda: len(table.refresh().metadata.snapshots) > 5, "some commits")
        for process in (first, second):
            process.signal(number)
        for process in (first, second):
            process.ended()
        witness.table = Resource(("leaks", "commits"))
        witness.outlives()
        table.append(rows)
        assert not witness.entries()
