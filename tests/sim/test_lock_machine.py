"""The lock model as a state machine: what the real managers grant is what one queue of requests says."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from commit_coord.errors import LockError, LockLost, LockReentered, LockRefused, LockTimeout
from commit_coord.locks import memory_space
from commit_coord.locks.base import DenyPolicy, Lease, LockManager, LockSettings, Policy
from commit_coord.model import LockMode, LockRequest, LockScope, LockState, Owner, Resource
from commit_coord.protocol.modes import compatible
from tests.proof.sim.locking import LockDatabase, SimulatedLeaseManager, SimulatedMemoryManager
from tests.proof.sim.world import Process, Service, Thread, World

SETTINGS = LockSettings(lease_ms=600_000, heartbeat_interval_ms=200_000)
MOMENT = 0.1
"""Seconds in which whatever happens by itself has happened; all of them together are far less than a lease."""

NAMES = ["db/t", "db/u", "db/t/k=1", "db/t/k=2", "db/t/k=1/h=1"]
locks = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(LockMode), min_size=1, max_size=3)


class Client:
    """A process that asks for locks once, and gives them back on demand."""

    def __init__(self, machine: LockMachine, wanted: dict[str, LockMode], *, explicit: bool) -> None:
        self.request = LockRequest.of(
            LockScope.OPERATION,
            {Resource.parse(name): mode for name, mode in wanted.items()},
            owner=Owner(user="u", host="h", pid=1, application="a", process=""),
            request_id=str(uuid.uuid4()),
            explicit=explicit,
        )
        self.process = Process(machine.world, self.request.request_id[:8], {})
        self.manager = machine.manager(self.process)
        self.lease: Lease | None = None
        self.error: LockError | None = None
        self._waits: tuple[Thread, int] | None = None

    def ask(self, policy: Policy | None, seconds: float) -> None:
        """Be a thread that asks, and holds until :meth:`let_go`."""
        world = self.process.world

        def work() -> None:
            try:
                deadline = self.process.clock.now() + seconds
                self.lease = self.manager.acquire(self.request, deadline=deadline, policy=policy)
                with pytest.raises(LockReentered):
                    again = LockRequest.of(
                        LockScope.OPERATION, self.request.locks, owner=self.request.owner, request_id=str(uuid.uuid4())
                    )
                    if self.request.explicit and all(mode is LockMode.SHARED for _, mode in again.locks):
                        raise LockReentered("S together with a LOCK statement's S is allowed")
                    self.manager.acquire(again, deadline=deadline)
                self._waits = world.expected()
                world.block(1e9)
                self.lease.release()
            except LockError as error:
                self.error = error

        world.start(self.process, work)

    def let_go(self) -> None:
        """Give back what was granted."""
        assert self._waits is not None
        thread, turn = self._waits
        self.process.world.resume(thread, turn, None)


class LockMachine(RuleBasedStateMachine):
    """The model is the queue: a request holds when no conflicting one is before it."""

    clients: Bundle[Client] = Bundle("clients")
    expires = True

    def __init__(self) -> None:
        super().__init__()
        self.quiet = logging.root.manager.disable
        logging.disable()
        self.world = self.make_world()
        self.queue: list[Client] = []
        self.dead: list[Client] = []

    def make_world(self) -> World:
        """Make where it all happens."""
        return World(1)

    def manager(self, process: Process) -> LockManager:
        """Make the manager of a process."""
        raise NotImplementedError

    def settle(self, seconds: float = MOMENT) -> None:
        """Let happen what happens by itself."""
        self.world.run(until=self.world.now + seconds)
        assert self.world.escaped == []

    def observe(self, work: Callable[[LockManager], Any]) -> Any:
        """Have the observer do something; it is a process like the others."""
        found: list[Any] = []
        process = Process(self.world, "observer", {})
        self.world.start(process, lambda: found.append(work(self.manager(process))))
        self.settle()
        return found[0]

    def blocked(self, client: Client) -> bool:
        """Answer from the model."""
        wanted = dict(client.request.locks)
        before = self.queue[: self.queue.index(client)] if client in self.queue else self.queue
        return any(
            name in wanted and not compatible(wanted[name], mode)
            for other in before
            for name, mode in other.request.locks
        )

    @rule(target=clients, wanted=locks, explicit=st.booleans())
    def ask(self, wanted: dict[str, LockMode], explicit: bool) -> Client:
        """Ask, and wait for as long as it takes."""
        client = Client(self, wanted, explicit=explicit)
        client.ask(None, 1e6)
        self.queue.append(client)
        self.settle()
        return client

    @rule(wanted=locks, policy=st.sampled_from([DenyPolicy(numretries=0), None]))
    def ask_briefly(self, wanted: dict[str, LockMode], policy: Policy | None) -> None:
        """Ask by the deny policy, or with hardly any time; nothing stays of what was not granted."""
        client = Client(self, wanted, explicit=False)
        refused = self.blocked(client)
        client.ask(policy, 0.02)
        self.settle()
        if refused:
            assert isinstance(client.error, LockTimeout if policy is None else LockRefused)
            assert client.lease is None
        else:
            assert client.lease is not None
            client.let_go()
            self.settle()

    @rule(client=consumes(clients))
    def let_go(self, client: Client) -> None:
        """Release what is held; a waiter is freed by force."""
        if client not in self.queue or client in self.dead:
            return
        if self.blocked(client):
            self.unlock(client)
        else:
            client.let_go()
            self.queue.remove(client)
            self.settle()

    def unlock(self, client: Client) -> None:
        freed = self.observe(lambda manager: manager.unlock(request_id=client.request.request_id))
        assert {entry.request_id for entry in freed} == {client.request.request_id}
        held = not self.blocked(client)
        self.queue.remove(client)
        self.settle(1.5)  # a waiter looks again within a second
        if client in self.dead:
            self.dead.remove(client)
        elif held:
            assert client.lease is not None
            with pytest.raises(LockLost):
                self.ensure(client)
        else:
            assert isinstance(client.error, LockRefused)

    def ensure(self, client: Client) -> None:
        raised: list[LockLost] = []

        def work() -> None:
            assert client.lease is not None
            try:
                client.lease.ensure_active(0)
            except LockLost as error:
                raised.append(error)

        self.world.start(client.process, work)
        self.settle()
        for error in raised:
            raise error

    @rule(client=consumes(clients))
    def free_by_force(self, client: Client) -> None:
        """UNLOCK: its owner, holder or waiter, learns it."""
        if client in self.queue:
            self.unlock(client)

    @precondition(lambda self: self.expires)
    @rule(client=consumes(clients))
    def die(self, client: Client) -> None:
        """The process ends without a word; what it has stays until its lease is over."""
        if client in self.queue and client not in self.dead:
            client.process.alive = False
            self.dead.append(client)

    @precondition(lambda self: self.dead)
    @rule()
    def expire(self) -> None:
        """A lease passes: of the dead, granted LOCK statements are left; the living have all that they had."""
        self.settle(SETTINGS.lease_ms / 1000 + 5)
        self.observe(lambda manager: manager.reap())
        gone = [client for client in self.dead if not client.request.explicit or client.lease is None]
        self.queue = [client for client in self.queue if client not in gone]
        self.dead = [client for client in self.dead if client not in gone]
        self.settle(1.5)

    @invariant()
    def granted_is_who_is_not_blocked(self) -> None:
        """So no two in conflict, in the order of their coming, and all or none."""
        present = [client for client in self.queue if client not in self.dead]
        assert [client.lease is not None for client in present] == [not self.blocked(client) for client in present]
        assert all(client.error is None for client in present)

    @invariant()
    def the_listing_says_so(self) -> None:
        """Every lock of every request, each ACQUIRED or all WAITING."""
        found = self.observe(lambda manager: manager.locks())
        assert {(entry.request_id, entry.resource, entry.mode, entry.state) for entry in found} == {
            (client.request.request_id, name, mode, LockState.WAITING if self.blocked(client) else LockState.ACQUIRED)
            for client in self.queue
            for name, mode in client.request.locks
        }

    def teardown(self) -> None:
        """When everybody is gone nothing is left."""
        try:
            while self.queue:
                self.unlock(self.queue[0])
            assert self.observe(lambda manager: manager.locks()) == []
        finally:
            with self.world.ending():
                pass
            logging.disable(self.quiet)


class MemoryMachine(LockMachine):
    """``memory``: its process is one, so nobody dies alone."""

    expires = False

    def manager(self, process: Process) -> LockManager:
        return SimulatedMemoryManager(process, "machine", SETTINGS, lambda lease: None)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            memory_space.SPACES.pop(("machine", ""), None)


class LeaseMachine(LockMachine):
    """``lease``, with all of its SQL."""

    def make_world(self) -> World:
        world = super().make_world()
        self.database = LockDatabase(Service(world, "locks"), lambda: world.now, remote=False)
        return world

    def manager(self, process: Process) -> LockManager:
        return SimulatedLeaseManager(process, self.database, SETTINGS, lambda lease: None, prompt=False)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.database.db.close()


@pytest.mark.parametrize("machine", [MemoryMachine, LeaseMachine])
def test_what_is_granted_is_what_the_queue_says(machine: type[LockMachine]) -> None:
    """Any order of asking, releasing, dying, expiring, LOCK and UNLOCK, with S and X on tables and partitions."""
    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=20, deadline=None))


def test_a_lease_is_believed_in_no_longer_than_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes seconds on its way back; the holder counts from when it asked."""
    world = World(1)
    database = LockDatabase(Service(world, "locks"), lambda: world.now, remote=True)
    monkeypatch.setattr(database.service, "_travel", lambda *, prompt: 1.5)
    process = Process(world, "holder", {})
    manager = SimulatedLeaseManager(process, database, LockSettings(), lambda lease: None, prompt=False)
    request = LockRequest.of(
        LockScope.COMMIT,
        {Resource(("db", "t")): LockMode.EXCLUSIVE},
        owner=Owner(user="u", host="h", pid=1, application="a"),
        request_id="r",
    )
    kept: list[Lease] = []
    world.start(process, lambda: kept.append(manager.acquire(request, deadline=process.clock.now() + 60)))
    began = process.clock.now()
    lasts: set[float] = set()
    with world.ending():
        for second in range(5, 60):
            world.run(until=second)
            (expires_at,) = database.db.execute("SELECT expires_at FROM commit_coord_requests").fetchone()
            lasts.add(expires_at)
            believed = manager.parts.queue.tickets["r"].last_confirmed_at - began + LockSettings().lease_ms / 1000
            assert believed <= expires_at / 1000
        assert len(lasts) > 5, "it was renewed"
        kept.clear()
    database.db.close()
