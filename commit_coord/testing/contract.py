"""One contract for every lock manager, as a class of tests to inherit.

A subclass gives the fixture ``service``, and every promise in the manager's
:class:`~commit_coord.model.Guarantees` is tested; what is not promised is asserted to be absent, so that a
manager that does nothing (``none``) passes only because it promises nothing::

    class TestMyLocks(LockContract):
        @pytest.fixture
        def service(self):
            with Service("my-locks", "my://uri") as service:
                yield service
"""

from __future__ import annotations

import base64
import gc
import inspect
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, Self

import pytest

from commit_coord.clock import SYSTEM_CLOCK, SystemClock
from commit_coord.errors import (
    ClientStops,
    LockDeadlock,
    LockError,
    LockLost,
    LockReentered,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
)
from commit_coord.events import Event, Events, LockAcquired, LockEnded, LockLeaseLost
from commit_coord.local.server import by_load
from commit_coord.locks.base import DenyPolicy, Interrupted, Lease, LockSettings, Policy
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import (
    JournalEntry,
    LeaseState,
    LockEntry,
    LockMode,
    LockRequest,
    LockScope,
    LockState,
    Owner,
    Reach,
    Resource,
)
from commit_coord.process import on_behalf_of, process_name, this_owner
from commit_coord.protocol.modes import compatible
from commit_coord.testing.fleet import holds_within

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
OPERATION, COMMIT = LockScope.OPERATION, LockScope.COMMIT
OFFERS = "offers"
"""The folder for the files of offers."""

TABLE = Resource(("db", "t"))
PART_A = Resource(("db", "t", "day=1"))
PART_B = Resource(("db", "t", "day=2"))

PATIENCE = 120.0
"""Seconds until a test says that something hangs; nothing here takes that long, on whatever machine."""


EACH_LINE = pytest.mark.parametrize(
    "stride", [3, pytest.param(1, marks=pytest.mark.slow)], ids=["every third line", "every line"]
)
"""Which lines are interrupted. All of them take minutes."""


NAMES = (
    "it's",
    'a"b',
    "back\\slash",
    "x', null, 'w', 'e', 0, 'u', 'h', null), (0, 1, 0, 'db', 't', null, 'a', 'e', 0, 'mallory', 'h', null) --",
    "a\x00b",
    "line\nfeed",
    "\x7f",
    "\x85",
    "na\u00efve",
    "\u540d\u524d",
    "\U0001f600",
    "a/b",
    "a%2Fb",
    "a.b",
    "..",
    " ",
    "{[^$",
    "k=v=w",
    "LOCK-EXCLUSIVE-0000000000",
    "__HIVE_DEFAULT_PARTITION__",
    "x" * 120,
    "x" * 300,
    base64.b64encode(random.Random(7).randbytes(3_600)).decode(),  # noqa: S311 - what no index can compress
    "\u540d" * 900,
)
"""Names that break careless SQL, paths, indexes or columns."""

TEXTS = (*NAMES, "\x00", "a\ud800b", "\udcff\udcfe", "\ude00\x00\ud83d", "%", "%s %(a)s :b ?", "a:b:c", "\x00" * 300)
"""What a user, a program or a statement may say of itself: any bytes, half of a surrogate pair too."""


class ContractClock(SystemClock):
    """The machine's clocks, as every client of a :class:`Service` is given them."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        """For how long clients slept."""
        self.is_frozen = False
        """Whether a client that sleeps fails: it has nothing to wait for."""

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        assert not self.is_frozen, f"slept for {seconds} s"
        self.slept.append(seconds)
        super().sleep(seconds)  # the subject: a client that sleeps, on the machine's clock


class Service:
    """A lock service for one test: opens clients of it and closes them.

    Args:
        name: The manager's name in the registry.
        uri: Where the service is.
        space: Separates this test from others at the same service.
        opens_sessions: Whether a new client needs a session first, for longer than a test gives it for its first lock.
        ends_sessions: Whether the service itself removes what its clients extend no more, so that nothing is left to
            reap.
        has_spaces: Whether the service keeps spaces apart. Else each test begins by freeing what an earlier one left.
        options: Arguments that this manager takes beyond those of all.
    """

    def __init__(
        self,
        name: str,
        uri: str,
        space: str = "",
        *,
        opens_sessions: bool = False,
        ends_sessions: bool = False,
        has_spaces: bool = True,
        **options: Any,
    ) -> None:
        self.name, self.uri, self.space, self.options = name, uri, space or uuid.uuid4().hex, options
        self.opens_sessions, self.ends_sessions, self.has_spaces = opens_sessions, ends_sessions, has_spaces
        self.clock = ContractClock()
        self.seen: list[Event] = []
        self._events = Events()
        self._events.subscribe(self.seen.append)
        self._clients: list[HandoverLockManager] = []

    def open(self, **settings: int) -> HandoverLockManager:
        """Return another client."""
        manager = create_lock_manager(
            self.name,
            self.uri,
            LockSettings(**settings),
            self.clock,
            self._events,
            space=self.space,
            options=self.options,
        )
        self._clients.append(manager)
        if self.opens_sessions:
            # The deadlines of the tests do not include the time that a new session takes.
            until(lambda: answers(manager), "a session")
        return manager

    def fork(self, work: Callable[[HandoverLockManager], object]) -> int:
        """Run *work* with a client of its own in another process and return its process id.

        Forked, because a fresh interpreter would import for longer than a test runs. The process ends with *work*, with
        status 1 if that raised; what it still holds it leaves behind.
        """
        with warnings.catch_warnings():
            # Python 3.12 warns of threads: ours hold no lock that the child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            return child
        try:
            work(self.open())
            os._exit(0)
        finally:
            os._exit(1)

    def __enter__(self) -> Self:
        """Return the service itself, with no lock left of another test.

        A lock call whose client has died is carried out nevertheless, and a metastore, for example, knows no spaces.
        """
        if not self.has_spaces:
            self._free(self.open())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Free everything and close all clients."""
        for manager in self._clients:
            self._free(manager)
            manager.close()

    @staticmethod
    def _free(manager: HandoverLockManager) -> None:
        for entry in manager.locks():
            manager.unlock(request_id=entry.request_id)


def answers(manager: HandoverLockManager) -> bool:
    """Return whether the service of *manager* answers."""
    try:
        manager.locks()
    except LockServiceUnavailable:
        return False
    return True


def request(
    *locks: tuple[LockMode, Resource],
    scope: LockScope = OPERATION,
    statement: str = "",
    owner: Owner | None = None,
    explicit: bool = False,
) -> LockRequest:
    """Return a request with an id of its own."""
    pairs = [(resource, mode) for mode, resource in locks]
    owner = owner or this_owner(statement, application="contract")
    return LockRequest.of(scope, pairs, owner=owner, request_id=uuid.uuid4().hex, explicit=explicit)


def latch(table: Resource = TABLE, statement: str = "") -> LockRequest:
    """Return a request for the commit latch of *table*."""
    return replace(request((X, table), scope=COMMIT, statement=statement), offers_at=OFFERS)


def soon(seconds: float = PATIENCE) -> float:
    """Return a deadline."""
    return SYSTEM_CLOCK.now() + seconds


def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Return as soon as *condition* holds. A service that a busy machine keeps from answering is asked again."""

    def holds() -> Any:
        with suppress(Interrupted):
            return condition()
        return False

    assert holds_within(holds, PATIENCE, every_s=0.002), f"{what} did not come true"


def throughout(seconds: float, holds: Callable[[], Any], what: str) -> None:
    """Look at *holds* again and again until *seconds* have passed since it held first; it never ceases to."""
    until(holds, what)
    over = soon(seconds)

    def is_over() -> bool:
        assert holds(), f"no more: {what}"
        return SYSTEM_CLOCK.now() >= over

    assert holds_within(is_over, seconds + PATIENCE)


def standing(manager: HandoverLockManager) -> dict[str, LockState]:
    """Return the state of every request that *manager* lists."""
    return {entry.request_id: entry.state for entry in manager.locks()}


def blocked(manager: HandoverLockManager, wanted: LockRequest) -> bool:
    """Return whether *wanted* is refused at this moment (in a thread of its own: re-entrancy is another matter)."""

    def attempt() -> bool:
        try:
            manager.acquire(wanted, deadline=soon(0)).release()
        except LockTimeout:
            return True
        return False

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(attempt).result(PATIENCE)


class Contender:
    """A thread that asks for a lock and holds it until :meth:`release`."""

    def __init__(
        self,
        manager: HandoverLockManager,
        wanted: LockRequest,
        *,
        seconds: float = PATIENCE,
        policy: Policy | None = None,
    ) -> None:
        self.request = wanted
        self.lease: HandoverLease | None = None
        self.error: BaseException | None = None
        self.granted = threading.Event()
        self._manager, self._deadline, self._policy = manager, soon(seconds), policy
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.lease = self._manager.acquire(self.request, deadline=self._deadline, policy=self._policy)
            self.granted.set()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def waits(self) -> bool:
        """Whether neither a lease nor an error has come."""
        return self._thread.is_alive()

    def queued(self) -> Self:
        """Return once the request is in the queue."""
        until(lambda: self.request.request_id in standing(self._manager), "a place in the queue")
        return self

    def release(self) -> None:
        """Wait for the grant, and give back."""
        self.ended()
        assert self.lease is not None, self.error
        self.lease.release()

    def ended(self) -> Self:
        """Return once the acquire has ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"still waiting: {self.request}"
        return self


class _Waits(Protocol):
    request: LockRequest

    @property
    def waits(self) -> bool: ...


def freed(manager: HandoverLockManager, waiter: _Waits) -> None:
    """Free *waiter* by force; again after a while, if the service was still adding it."""

    def has_ended() -> bool:
        return not waiter.waits

    def ends() -> bool:
        if waiter.waits:
            manager.unlock(request_id=waiter.request.request_id)
        return holds_within(has_ended, 2.0, every_s=0.002)

    until(ends, "the end of the wait")


def refuses_or_grants(manager: HandoverLockManager, other: HandoverLockManager) -> None:
    """Assert that a manager that promises nothing of the waits of a client that stops refuses or grants them."""
    held = other.acquire(request((X, TABLE)), deadline=soon())
    waiter = Contender(manager, request((X, TABLE))).queued()
    manager.refuse_waits()
    held.release()
    if not isinstance(waiter.ended().error, ClientStops):
        waiter.release()
    assert {} == standing(other)


def excludes_nothing(manager: HandoverLockManager, other: HandoverLockManager) -> None:
    """Assert that a manager that promises no exclusion grants what conflicts, at once, and lists nothing."""
    held = request((X, TABLE))
    with manager.acquire(held, deadline=soon()):
        assert not blocked(other, request((X, TABLE)))
        assert held.request_id not in standing(other)


def expires_never(manager: HandoverLockManager) -> None:
    """Assert that a manager that promises no expiry ends no lease by itself, and reaps none of a living process."""
    with manager.acquire(request((X, TABLE)), deadline=soon()) as lease:
        assert all(entry.expires_in_ms is None for entry in manager.locks())
        assert [] == list(manager.reap())
        lease.ensure_active(0)


def grants_in_some_order(manager: HandoverLockManager, other: HandoverLockManager) -> None:
    """Assert that a manager that promises no order grants every request in the end."""
    reader = Contender(manager, request((S, TABLE))).ended()
    waiters = [Contender(client, request((mode, TABLE))) for client, mode in ((other, X), (manager, S))]
    reader.release()
    with ThreadPoolExecutor(len(waiters)) as pool:
        for released in [pool.submit(waiter.release) for waiter in waiters]:
            released.result(PATIENCE)


def keeps_out_its_own_process_alone(service: Service) -> None:
    """Assert that a manager that promises no more than its process keeps no other process out."""
    with service.open().acquire(request((X, TABLE)), deadline=soon()):
        child = service.fork(lambda client: client.acquire(request((X, TABLE)), deadline=soon(0)).release())
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Interrupt(BaseException):
    """Comes at any line, as Ctrl-C does."""


def interrupted_at(step: int, action: Callable[[], object], files: tuple[str, ...]) -> bool:
    """Run *action* and raise :class:`Interrupt` at its line number *step*; return whether it got that far.

    Counts the lines of this thread in files whose path contains one of *files*. Lines that say ``with`` or ``try`` are
    left out: the interpreter traces them at points that no handler covers, and serves no real signal there.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if not any(name in frame.f_code.co_filename for name in files):
            return None
        if event == "line" and not _source_line(frame.f_code.co_filename, frame.f_lineno).startswith(("with ", "try:")):
            count += 1
            if count == step:
                raise Interrupt
        return trace

    gc.disable()  # the destructors of what other tests left are not part of the action
    sys.settrace(trace)
    try:
        action()
    except Interrupt:
        return True
    except LockError:
        return count >= step
    finally:
        sys.settrace(None)
        gc.enable()
    return count >= step


def _source_line(path: str, number: int) -> str:
    if path not in _SOURCES:
        _SOURCES[path] = Path(path).read_text().splitlines()
    return _SOURCES[path][number - 1].strip()


_SOURCES: dict[str, list[str]] = {}


def _ends(service: Service, ended: LockRequest) -> list[bool]:
    """Return what the events say of the ends of *ended*: whether it was lost."""
    return [e.lost for e in service.seen if isinstance(e, LockEnded) and e.request_id == ended.request_id]


def _plain(text: str) -> str:
    """Return *text* with one mark for each character that a service may show as another one."""
    return re.sub(r"[^ -~]|['\"\\/:?]", "?", text)


class LockContract:
    """What every lock manager keeps. See the module."""

    @pytest.fixture
    def manager(self, service: Service) -> HandoverLockManager:
        """One client."""
        return service.open()

    @pytest.fixture
    def other(self, service: Service) -> HandoverLockManager:
        """Another client of the same service."""
        return service.open()

    # Exclusion.

    @pytest.mark.parametrize("first", [S, X])
    @pytest.mark.parametrize("second", [S, X])
    def test_two_locks_stand_together_as_the_matrix_says(
        self, manager: HandoverLockManager, other: HandoverLockManager, first: LockMode, second: LockMode
    ) -> None:
        """S together with S is granted, everything else waits."""
        with manager.acquire(request((first, TABLE)), deadline=soon()):
            expected = manager.guarantees.mutual_exclusion and not compatible(second, first)
            assert expected == blocked(other, request((second, TABLE)))

    def test_a_partition_holds_its_parents_shared(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """While a partition is locked, nobody drops the table; another partition is free."""
        exclusive = manager.guarantees.mutual_exclusion
        with manager.acquire(request((X, PART_A)), deadline=soon()):
            assert exclusive == blocked(other, request((X, TABLE)))
            assert not blocked(other, request((S, TABLE)))
            assert not blocked(other, request((X, PART_B)))
            assert exclusive == blocked(other, request((S, PART_A)))

    def test_a_thread_does_not_wait_for_what_it_holds_by_another_client(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """It would wait for itself until the deadline: two catalogs of one service in one script."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        for wanted, again in ((request((X, TABLE)), request((X, TABLE))), (latch(), latch())):
            with manager.acquire(wanted, deadline=soon()):
                with pytest.raises(LockReentered):
                    other.acquire(again, deadline=soon())
                assert again.request_id not in standing(manager)
            other.acquire(again, deadline=soon()).release()

    def test_a_request_is_granted_all_or_none(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """A request that waits for one of its locks holds none of the others, for good."""
        with manager.acquire(request((X, PART_A)), deadline=soon()):
            both = Contender(other, request((X, PART_A), (X, PART_B)), seconds=0.05).ended()
            assert isinstance(both.error, LockTimeout) == manager.guarantees.mutual_exclusion, both.error
            if both.lease:
                both.release()
            assert not blocked(other, request((X, PART_B)))

    def test_scopes_do_not_see_each_other(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """A job that holds a table does not stop commits to it, and a commit stops no job."""
        with manager.acquire(request((X, TABLE)), deadline=soon()):
            assert not blocked(other, latch())
        with manager.acquire(latch(), deadline=soon()):
            assert not blocked(other, request((X, TABLE)))
            assert manager.guarantees.mutual_exclusion == blocked(other, latch())

    def test_latches_of_several_tables_are_taken_together(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """A rename latches both names in one step, whichever of them has the longer history."""
        second = Resource(("db", "t2"))
        for _ in range(3):
            manager.acquire(latch(second), deadline=soon()).release()
        with manager.acquire(request((X, TABLE), (X, second), scope=COMMIT), deadline=soon()) as both:
            exclusive = manager.guarantees.mutual_exclusion
            assert [exclusive, exclusive] == [blocked(other, latch(TABLE)), blocked(other, latch(second))]
        with manager.acquire(latch(TABLE), deadline=soon()) as later:
            assert both.generation is None or (later.generation or 0) > both.generation

    def test_names_may_hold_anything(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """Slashes, quotes, percent signs, blanks and letters of any script are names like others."""
        odd = Resource(("d/b", "tä'\"%b le", "k=a/b%2F", "ключ=值"))
        with manager.acquire(request((X, odd)), deadline=soon()):
            assert manager.guarantees.mutual_exclusion == blocked(other, request((S, odd)))
            listed = {entry.resource for entry in other.locks(Resource(odd.path[:2]))}
            if manager.guarantees.mutual_exclusion:
                assert {odd, odd.ancestors[-1], odd.ancestors[-2]} == listed

    def test_a_name_excludes_as_any_other_or_is_refused_in_words_before_anything_is_locked(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """No name ends a service's text and begins something else; none is repeated at it until the deadline."""
        exclusive = manager.guarantees.mutual_exclusion
        for name in NAMES:
            for wanted in (latch(Resource(("db", name))), request((X, Resource(("db", "t", f"k={name}"))))):
                started, lease, refusal = time.monotonic(), None, ""
                try:
                    lease = manager.acquire(wanted, deadline=soon())
                except LockRefused as refused:
                    refusal = refused.message
                if lease is None:
                    assert "can't lock this name" in refusal
                    assert time.monotonic() - started < PATIENCE / 2
                else:
                    pairs, owner = wanted.locks, wanted.owner
                    again = LockRequest.of(wanted.scope, pairs, owner=owner, request_id=uuid.uuid4().hex)
                    with lease:
                        assert exclusive == blocked(other, again), name
                    assert not blocked(other, again), "a server that is behind lists it no more"
                assert not other.locks(), name

    def test_an_owner_may_say_anything_of_itself(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """It is granted its lock as any other one, and is shown to others, where something can't be stored with a mark.

        Nothing that it says ends a service's text, or is taken for another field.
        """
        exclusive = manager.guarantees.mutual_exclusion
        for text in TEXTS:
            marked = f"<{text}>"
            owner = on_behalf_of(marked).owner(statement=marked, application=marked)
            operation = request((X, PART_A), owner=owner), request((S, PART_A))
            for wanted, again in (operation, (replace(latch(), owner=owner), latch())):
                with manager.acquire(wanted, deadline=soon()):
                    assert exclusive == blocked(other, again), marked
                    listed = [one for one in other.locks() if one.request_id == wanted.request_id and one.mode is X]
                assert exclusive == bool(listed), marked
                for entry in listed:
                    facts = entry.scope, entry.explicit, entry.owner.process, entry.owner.pid
                    assert facts == (wanted.scope, False, owner.process, owner.pid), marked
                    for shown in (entry.owner.user, entry.owner.application, entry.owner.statement):
                        assert shown, marked
                        assert _plain(marked).startswith(_plain(shown)[:8]), (marked, shown)

    def test_a_lock_is_listed_and_freed_by_a_name_of_any_length(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Services show a long name cut off. It is no other name's lock, however alike they begin."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        for length in (10, 300, 700, 1_600):
            name, alike = (Resource((*TABLE.path, f"k={'x' * length}{end}")) for end in "ab")
            with manager.acquire(request((X, name)), deadline=soon()) as lease:
                assert blocked(other, request((S, name))), "a server that is behind lists it by now"
                assert [X] == [entry.mode for entry in other.locks(name) if other.is_on(entry, name)], length
                assert [] == [entry for entry in other.locks() if other.is_on(entry, alike)], length
                assert [] == list(other.unlock(resource=alike)), length
                assert lease.request.request_id in {entry.request_id for entry in other.unlock(resource=name)}, length
            assert [] == list(other.locks()), length

    # Order.

    def test_requests_are_granted_in_their_order(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """An X behind a stream of S comes before the S that arrive later, and nobody else does."""
        if not manager.guarantees.fifo:
            grants_in_some_order(manager, other)
            return
        readers = [Contender(manager, request((S, TABLE))).ended() for _ in range(3)]
        writer = Contender(other, request((X, TABLE))).queued()
        late = Contender(manager, request((S, TABLE))).queued()
        for reader in readers:
            assert not writer.granted.is_set()
            reader.release()
        writer.ended()
        assert not late.granted.is_set()
        writer.release()
        late.release()

    def test_a_release_grants_all_readers_behind_it(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Readers that wait for one writer are granted together."""
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        readers = [Contender(client, request((S, TABLE))) for client in (manager, other, manager, other)]
        if manager.guarantees.fifo:
            for reader in readers:
                reader.queued()
        lease.release()
        for reader in readers:
            reader.ended()
        for reader in readers:
            reader.release()

    def test_a_waiter_that_leaves_lets_those_behind_it_pass(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """S, then X that gives up, then S: the second S is granted as soon as X has gone."""
        if not manager.guarantees.fifo:
            grants_in_some_order(manager, other)
            return
        with manager.acquire(request((S, TABLE)), deadline=soon()):
            writer = Contender(other, request((X, TABLE)), seconds=0.3).queued()
            reader = Contender(other, request((S, TABLE))).queued()
            assert isinstance(writer.ended().error, LockTimeout)
            reader.release()

    def test_generations_grow(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """Each grant of one resource has a larger generation than the one before, of any owner."""
        generations = []
        for client in (manager, other, manager, other):
            with client.acquire(latch(), deadline=soon()) as lease:
                generations.append(lease.generation)
        if manager.guarantees.mutual_exclusion:
            assert sorted({g for g in generations if g is not None}) == generations
        else:
            assert [None] * 4 == generations

    @pytest.mark.parametrize("clients", ["a client each", "two clients each"])
    def test_a_deadlock_ends_the_youngest_request(
        self, manager: HandoverLockManager, other: HandoverLockManager, clients: str
    ) -> None:
        """Two threads hold one each and want the other's: the later request is refused, the earlier one is granted.

        Also if each thread holds through one client and waits through another one.
        """
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        both = threading.Barrier(2)
        ended: dict[str, Lease | LockError] = {}

        def work(
            client: HandoverLockManager, name: str, held: Resource, wanted: LockRequest, first: LockRequest | None
        ) -> None:
            holds_by = client if clients == "a client each" else {manager: other, other: manager}[client]
            with holds_by.acquire(request((X, held), statement=f"{name} 1"), deadline=soon()):
                both.wait(PATIENCE)
                if first is not None:
                    until(lambda: first.request_id in standing(manager), "the earlier request")
                try:
                    ended[name] = client.acquire(wanted, deadline=soon(PATIENCE if client.guarantees.deadlocks else 1))
                except LockError as error:
                    ended[name] = error
            if isinstance(lease := ended[name], Lease):
                lease.release()

        elsewhere = Resource(("db", "t2", "day=1"))
        one, two = request((X, elsewhere), statement="ann 2"), request((X, PART_A), statement="bob 2")
        with ThreadPoolExecutor(2) as pool:
            for running in (
                pool.submit(work, manager, "ann", PART_A, one, None),
                pool.submit(work, other, "bob", elsewhere, two, one),
            ):
                running.result(3 * PATIENCE)
        if not manager.guarantees.deadlocks:
            assert {LockTimeout, LockDeadlock} & {type(end) for end in ended.values()}
            return
        assert isinstance(ended["ann"], Lease), ended
        error = ended["bob"]
        assert isinstance(error, LockDeadlock)
        for fact in (f"X on {PART_A}", f"X on {elsewhere}", "ann 2", "bob 2"):
            assert fact in error.details["cycle"]
        assert {} == standing(manager)

    def test_in_a_deadlock_of_processes_one_request_is_refused(
        self, service: Service, manager: HandoverLockManager, tmp_path: Path
    ) -> None:
        """Each process holds a lock and waits for that of the next one: one request is refused, the others granted."""
        if manager.guarantees.reach not in (Reach.HOST, Reach.NETWORK):
            keeps_out_its_own_process_alone(service)
            return
        finds_deadlocks = manager.guarantees.deadlocks
        count, outcomes = 3, tmp_path / "outcomes"
        outcomes.write_text("")
        parts = [Resource(("db", f"t{number}", "day=1")) for number in range(count)]

        def work(client: HandoverLockManager, number: int) -> None:
            end = "granted"
            with client.acquire(request((X, parts[number])), deadline=soon()):
                until(lambda: sum(entry.resource in parts for entry in client.locks()) >= count, "all of them")
                try:
                    wanted = request((X, parts[(number + 1) % count]))
                    client.acquire(wanted, deadline=soon(PATIENCE if finds_deadlocks else 2)).release()
                except LockDeadlock:
                    end = "refused"
                except LockTimeout:
                    end = "timed out"
            with outcomes.open("a") as file:
                file.write(f"{end}\n")

        children = [service.fork(partial(work, number=number)) for number in range(count)]
        assert [0] * count == [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        ends = sorted(outcomes.read_text().splitlines())
        if finds_deadlocks:
            assert ["granted"] * (count - 1) + ["refused"] == ends
        else:
            assert {"timed out", "refused"} & set(ends)  # without the promise it may find one, too

    # Waiting and giving up.

    def test_the_deadline_is_one_point_in_time(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """A timeout comes when the deadline passes, not earlier and not much later, and names the holder."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        with manager.acquire(request((X, TABLE), statement="ALTER TABLE t"), deadline=soon()):
            # Another waiter is between them: the message names the holder and not the next in the queue.
            between = Contender(other, request((X, TABLE), statement="waits too")).queued()
            started = time.monotonic()
            waiter = Contender(other, request((S, PART_A)), seconds=0.3).ended()
            elapsed = time.monotonic() - started
            assert 0.3 <= elapsed < PATIENCE / 4
            assert isinstance(waiter.error, LockTimeout)
            me = this_owner()
            facts = waiter.error.details
            assert (me.user, me.host, me.pid) == (facts["holder"], facts["host"], facts["pid"])
            assert ("contract", "ALTER TABLE t") == (facts["application"], facts["statement"])
            assert (TABLE, "EXCLUSIVE") == (facts["resource"], facts["mode"])
            assert 0 < float(facts["waited_ms"]) <= elapsed * 1_000
            assert facts["since"]
            assert waiter.request.request_id not in standing(manager)
        between.release()

    def test_deny_gives_up_after_its_tries(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """Hive's policy: refused, released, tried again; between two tries nothing is queued."""
        policy = DenyPolicy(numretries=2, sleep_between_retries_ms=40)
        with manager.acquire(request((X, TABLE)), deadline=soon()):
            denied = Contender(other, request((S, TABLE)), policy=policy).ended()
            if not manager.guarantees.mutual_exclusion:
                assert denied.lease is not None
                return
            assert isinstance(denied.error, LockRefused)
            assert 3 == denied.error.details["tries"]
            assert denied.request.request_id not in standing(manager)

    def test_deny_is_granted_when_the_lock_is_free_at_a_try(
        self, service: Service, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """A later try succeeds."""
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        policy = DenyPolicy(numretries=1000, sleep_between_retries_ms=100)
        denied = Contender(other, request((S, TABLE)), policy=policy)
        if manager.guarantees.mutual_exclusion:
            until(lambda: any(seconds >= 0.05 for seconds in service.clock.slept), "a pause after a try that failed")
        lease.release()
        denied.release()

    def test_the_same_thread_is_refused_what_it_holds(self, manager: HandoverLockManager) -> None:
        """To wait for oneself would never end; also S after S, since another request may be queued between."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, manager)
            return
        with manager.acquire(request((S, TABLE)), deadline=soon()):
            for again in (request((X, TABLE)), request((S, TABLE)), request((X, PART_A))):
                with pytest.raises(LockReentered, match="already holds a lock on the resource"):
                    manager.acquire(again, deadline=soon())
            assert manager.holds(TABLE, S)
            assert not manager.holds(TABLE, X)
            assert not manager.holds(PART_A, S)
            manager.acquire(latch(), deadline=soon()).release()
        with manager.acquire(request((X, TABLE)), deadline=soon()):
            assert manager.holds(PART_A, X)
        assert not manager.holds(TABLE, S)

    def test_a_request_id_is_used_once(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """The id names one request: a second one is refused, and the first stays."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        wanted = request((S, TABLE))
        with manager.acquire(wanted, deadline=soon()) as lease:
            for client in (manager, other):
                assert isinstance(Contender(client, wanted).ended().error, LockRefused)
            lease.ensure_active(0)

    @EACH_LINE
    @pytest.mark.parametrize("contended", [False, True])
    def test_an_interrupt_at_any_line_leaves_nothing(self, service: Service, contended: bool, stride: int) -> None:
        """Whatever line of acquire or release is interrupted, nothing stays queued and nothing held."""
        manager, other = service.open(), service.open()
        files = (f"{os.sep}commit_coord{os.sep}locks{os.sep}", inspect.getfile(type(manager)))
        lease = Contender(other, request((X, TABLE))).ended() if contended else None
        allowed = {lease.request.request_id} if lease else set()

        def action() -> None:
            lease = manager.acquire(request((X, TABLE)), deadline=soon(0.01 if contended else PATIENCE))
            try:
                lease.release()
            except Interrupt:
                lease.release()  # What was interrupted can be repeated.
                raise

        for step in range(1, 5000, stride):
            reached = interrupted_at(step, action, files)
            until(lambda: set(standing(other)) <= allowed, f"nothing left after an interrupt at line {step}")
            if not reached:
                break
        else:
            pytest.fail("acquire has no end")
        if lease:
            lease.release()
        assert not blocked(manager, request((X, TABLE)))

    @EACH_LINE
    def test_an_interrupt_at_any_line_of_a_release_leaves_nothing(self, service: Service, stride: int) -> None:
        """Nobody releases it again: a ``with`` block does not, and its lease is nobody's afterwards."""
        times = {"lease_ms": 1000, "heartbeat_interval_ms": 200}
        manager, other = service.open(**times), service.open(**times)
        files = (f"{os.sep}commit_coord{os.sep}locks{os.sep}", inspect.getfile(type(manager)))
        held: list[Lease] = []

        def action() -> None:
            with held.pop():
                pass

        for step in range(1, 5000, stride):
            held.append(manager.acquire(latch(), deadline=soon()))
            reached = interrupted_at(step, action, files)
            until(lambda: not standing(other), f"nothing left after an interrupt at line {step}")
            if not reached:
                break
        else:
            pytest.fail("release has no end")

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a driver's half-run generators
    def test_a_signal_at_any_moment_leaves_nothing(self, service: Service) -> None:
        """Real signals, inside the database driver too."""
        manager, other, dice = service.open(), service.open(), random.Random(7)  # noqa: S311 - dice of a test
        me = threading.main_thread()
        if threading.current_thread() is not me or me.ident is None:
            pytest.fail("signals are served in the main thread")

        struck: list[int] = []

        def strike(number: int, _: object) -> None:
            struck.append(number)
            raise Interrupt

        ident, earlier = me.ident, signal.signal(signal.SIGUSR1, strike)
        timer: threading.Timer | None = None
        try:
            for _ in range(60):
                timer = threading.Timer(dice.random() * 0.006, lambda: signal.pthread_kill(ident, signal.SIGUSR1))
                lease: Lease | None = None
                struck.clear()
                try:
                    timer.start()
                    # Until it struck: where Python runs a destructor it prints an exception and goes on.
                    while not struck:
                        lease = manager.acquire(latch(), deadline=soon())
                        lease.release()
                except Interrupt:
                    if lease is not None:
                        lease.release()
                timer.join()
                until(lambda: not other.locks(), "nothing left after a signal")
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()  # Struck after this it would end the process.
            signal.signal(signal.SIGUSR1, earlier)

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that was just opened
    @pytest.mark.parametrize("kind", [TimeoutError, ConnectionResetError])
    def test_an_error_of_a_signal_handler_ends_a_wait(
        self, manager: HandoverLockManager, other: HandoverLockManager, kind: type[OSError]
    ) -> None:
        """A handler of SIGALRM ends its program's work by an error; it is not one of the lock service's sockets."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return

        def strike(number: int, _: object) -> None:
            raise kind("the time is over")

        ident, earlier = threading.main_thread().ident, signal.signal(signal.SIGUSR1, strike)
        assert ident is not None
        held = Contender(other, request((X, TABLE))).ended()
        try:
            for _ in range(5):
                wanted = request((X, TABLE))

                def end_it(wanted: LockRequest = wanted) -> None:
                    until(lambda: wanted.request_id in standing(other), "a wait")
                    signal.pthread_kill(ident, signal.SIGUSR1)

                with ThreadPoolExecutor(1) as pool:
                    ends = pool.submit(end_it)
                    with pytest.raises(kind, match="the time is over"):
                        manager.acquire(wanted, deadline=soon())
                    ends.result()
                assert wanted.request_id not in standing(other)
        finally:
            signal.signal(signal.SIGUSR1, earlier)
            held.release()

    # Holding and giving back.

    def test_release_may_be_called_again(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """A second release does nothing, in particular not to the next holder."""
        lease = manager.acquire(latch(), deadline=soon())
        lease.release()
        with other.acquire(latch(), deadline=soon()) as next_lease:
            lease.release()
            next_lease.ensure_active(0)
        assert LeaseState.RELEASED is lease.state
        with pytest.raises(LockLost):
            lease.ensure_active()

    def test_a_lease_tells_its_listeners(self, manager: HandoverLockManager) -> None:
        """Every change of state is reported once; a listener that fails disturbs nobody."""
        states: list[LeaseState] = []
        lease = manager.acquire(latch(), deadline=soon())

        def fail(*_: object) -> None:
            raise ValueError("a listener of the test")

        lease.add_listener(fail)
        lease.add_listener(lambda _, state: states.append(state))
        lease.ensure_active()
        lease.release()
        lease.release()
        assert [LeaseState.RELEASED] == states

    def test_a_lost_lease_is_emitted_as_an_event_whatever_its_listeners_do(
        self, service: Service, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """A listener that ends its thread ends it after everything is noted."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        lease = manager.acquire(latch(), deadline=soon())
        lease.add_listener(lambda *_: sys.exit("a listener of the test"))
        with suppress(SystemExit, LockLost):
            other.unlock(request_id=lease.request.request_id)
            lease.ensure_active(0)
        assert LeaseState.LOST is lease.state
        until(lambda: any(isinstance(event, LockLeaseLost) for event in service.seen), "word of the loss")

    def test_an_acquire_is_emitted_as_an_event(self, service: Service, manager: HandoverLockManager) -> None:
        """Who watches sees what was granted."""
        with manager.acquire(latch(), deadline=soon()) as lease:
            events = [event for event in service.seen if isinstance(event, LockAcquired)]
            assert [(str(lease.request), "commit")] == [(event.request, event.scope) for event in events]

    def test_close_gives_everything_back(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """A closed client holds nothing, and may be closed again."""
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        if manager.guarantees.mutual_exclusion:
            manager.close()
            assert LeaseState.RELEASED is lease.state
        manager.close()
        assert not blocked(other, request((X, TABLE)))

    def test_close_ends_what_waits(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """Who waits when its client is closed is refused, and nothing of it stays: not queued, not granted later."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        with other.acquire(request((X, TABLE)), deadline=soon()) as held:
            waiters = [Contender(manager, request((mode, TABLE))).queued() for mode in (S, X)]
            started = time.monotonic()
            manager.close()
            for waiter in waiters:
                assert isinstance(waiter.ended().error, LockRefused), waiter.error
            assert time.monotonic() - started < PATIENCE
            assert {held.request.request_id} == standing(other).keys()
        assert not blocked(other, request((X, TABLE)))
        assert {} == standing(other)

    def test_close_ends_what_tries_again(
        self, service: Service, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Between two tries of the deny policy a request is in no queue, and is not granted later either."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        policy = DenyPolicy(numretries=1000, sleep_between_retries_ms=100)
        with other.acquire(request((X, TABLE)), deadline=soon()):
            denied = Contender(manager, request((X, TABLE)), policy=policy)
            until(lambda: any(seconds >= 0.05 for seconds in service.clock.slept), "a pause between two tries")
            manager.close()
        assert isinstance(denied.ended().error, LockRefused), denied.error
        assert {} == standing(other)

    @pytest.mark.parametrize("policy", [None, DenyPolicy(numretries=1000, sleep_between_retries_ms=600_000)])
    def test_a_client_that_stops_waits_for_nothing_and_keeps_what_it_holds(
        self, service: Service, manager: HandoverLockManager, other: HandoverLockManager, policy: DenyPolicy | None
    ) -> None:
        """Also between two tries of the deny policy. A manager may leave the waits of its clients alone, by default."""
        manager.refuse_waits()
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        if not manager.refuses_waits:
            refuses_or_grants(manager, other)
            return
        with (
            manager.acquire(request((S, Resource(("db", "other")))), deadline=soon()) as own,
            other.acquire(request((X, TABLE)), deadline=soon()),
        ):
            waiter = Contender(manager, request((X, TABLE)), policy=policy)
            if policy is None:
                waiter.queued()
            else:
                until(lambda: any(seconds >= 0.5 for seconds in service.clock.slept), "a pause between two tries")
            manager.refuse_waits()
            assert isinstance(waiter.ended().error, ClientStops), waiter.error
            own.ensure_active(0)
            assert own.request.request_id in standing(other)
        assert {} == standing(other)

    def test_close_at_any_moment_leaves_nothing(self, service: Service) -> None:
        """Close while other threads are about to enter, to be granted or to release."""
        dice, other = random.Random(11), service.open()  # noqa: S311 - dice of a test
        for _ in range(12):
            client = service.open()

            def work(client: HandoverLockManager = client) -> None:
                with suppress(LockRefused):
                    client.acquire(request((X, TABLE)), deadline=soon()).release()

            with ThreadPoolExecutor(3) as pool:
                working = [pool.submit(work) for _ in range(3)]
                time.sleep(dice.random() * 0.02)  # the subject: close comes at any moment
                client.close()
                for future in working:
                    future.result(PATIENCE)
            until(lambda: not standing(other), "nothing left after close")

    def test_a_lease_that_nobody_keeps_is_given_back(self, service: Service) -> None:
        """As of a future that was cancelled: its thread was granted the lock all the same, and nobody has the lease."""
        times = {"lease_ms": 1000, "heartbeat_interval_ms": 200}
        manager, other = service.open(**times), service.open(**times)
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        dropped = request((X, TABLE))
        gc.disable()  # nobody may rely on the collector: it seldom comes to a process that waits
        try:
            manager.acquire(dropped, deadline=soon())
        finally:
            gc.enable()
        other.acquire(request((X, TABLE)), deadline=soon()).release()
        until(lambda: not standing(other), "nothing left")
        until(lambda: [False] == _ends(service, dropped), "word of the end")

    def test_close_tells_of_a_lease_that_nobody_keeps(self, service: Service, manager: HandoverLockManager) -> None:
        """Who counts what is held counts it down."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, manager)
            return
        dropped = request((X, TABLE))
        manager.acquire(dropped, deadline=soon())
        manager.close()
        until(lambda: [False] == _ends(service, dropped), "word of the end")

    def test_a_stalled_holder_loses_its_lease(self, service: Service) -> None:
        """A holder that does not extend its lease loses it, learns of it, and another request is granted."""
        times = {"lease_ms": 1000, "heartbeat_interval_ms": 200}
        manager, other = service.open(**times), service.open(**times)
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        if not manager.guarantees.expiry:
            assert all(entry.expires_in_ms is None for entry in manager.locks())
            lease.release()
            return
        states: list[LeaseState] = []
        lease.add_listener(lambda _, state: states.append(state))
        heartbeat = manager.heartbeat
        # As long as it is extended, it is held: also when its first length is over.
        throughout(1.3, lambda: lease.request.request_id in standing(other), "a lease that is extended")
        assert [] == [state for state in states if state is not LeaseState.SUSPECT and state is not LeaseState.HELD]
        heartbeat.pause()
        next_lease = Contender(other, request((X, TABLE))).ended().lease
        assert next_lease is not None
        with next_lease:
            assert LeaseState.LOST is lease.state
            with pytest.raises(LockLost):
                lease.ensure_active()
            assert LeaseState.LOST is states[-1]
            assert any(isinstance(event, LockLeaseLost) for event in service.seen)
            heartbeat.resume()
            lease.release()
            next_lease.ensure_active(0)
            assert (next_lease.generation or 0) > (lease.generation or 0)

    def test_waits_that_are_shorter_than_a_lease_end_a_stalled_holder(self, service: Service) -> None:
        """Nobody waits for a whole lease, and between two waits nobody waits at all."""
        times = {"lease_ms": 1000, "heartbeat_interval_ms": 200}
        manager, other = service.open(**times), service.open(**times)
        if not manager.guarantees.expiry:
            expires_never(manager)
            return
        lease = manager.acquire(request((X, TABLE)), deadline=soon())
        manager.heartbeat.pause()

        def is_granted() -> bool:
            waiter = Contender(other, request((X, TABLE)), seconds=0.3).ended()
            if waiter.lease is None:
                time.sleep(0.3)  # the subject: longer than a beat, so the client has nothing to keep meanwhile
                return False
            waiter.lease.release()
            return True

        until(is_granted, "the lock of the stalled holder")
        assert LeaseState.LOST is lease.state
        manager.heartbeat.resume()
        lease.release()

    def test_a_waiter_is_kept_alive(self, service: Service) -> None:
        """Waiting for longer than a lease does not cost the place."""
        times = {"lease_ms": 1000, "heartbeat_interval_ms": 200}
        manager, other = service.open(**times), service.open(**times)
        with manager.acquire(request((X, TABLE)), deadline=soon()):
            waiter = Contender(other, request((X, TABLE)))
            if manager.guarantees.mutual_exclusion:
                place = waiter.queued().request.request_id
                # Also when the first length of its lease is over.
                throughout(1.3, lambda: standing(manager).get(place) is LockState.WAITING, "a place in the queue")
        waiter.release()

    def test_a_dead_process_frees_its_locks(self, service: Service, manager: HandoverLockManager) -> None:
        """After kill -9 a waiter on the same host is granted at once, not after a lease."""
        if not manager.guarantees.expiry:
            expires_never(manager)
            return

        def work(client: HandoverLockManager) -> None:
            lease = client.acquire(request((X, TABLE)), deadline=soon())
            threading.Event().wait(PATIENCE)
            lease.release()

        victim = service.fork(work)
        until(lambda: standing(manager), "a holder")
        waiter = Contender(manager, request((X, TABLE))).queued()
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        started = time.monotonic()
        waiter.release()
        assert time.monotonic() - started < min(by_load(3), manager.settings.lease_ms / 1000)

    def test_a_forked_child_leaves_its_parents_locks_alone(
        self, service: Service, manager: HandoverLockManager
    ) -> None:
        """A child that unwinds through the parent's with block releases nothing, and can take locks of its own.

        Nor does it hold what it inherited: the parent may release that, and the child would not learn of it.
        """
        if not manager.guarantees.expiry:
            expires_never(manager)
            return
        with manager.acquire(request((X, TABLE)), deadline=soon()) as lease:

            def work(_: HandoverLockManager) -> None:
                for max_age_ms in (None, 0):
                    with pytest.raises(LockLost, match="belongs to the process that acquired it"):
                        lease.ensure_active(max_age_ms)
                lease.release()
                assert blocked(manager, request((X, TABLE)))
                manager.acquire(latch(), deadline=soon()).release()
                manager.close()

            assert 0 == os.waitstatus_to_exitcode(os.waitpid(service.fork(work), 0)[1])
            lease.ensure_active(0)

    def test_a_fork_leaves_waiting_threads_alone(
        self, service: Service, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """A thread that waits while another one forks is granted, and the child waits for none of its parent's."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return

        def work(_: HandoverLockManager) -> None:
            service.clock.is_frozen = True
            other.close()

        for _ in range(5):
            held = manager.acquire(request((X, TABLE)), deadline=soon())
            waiter = Contender(other, request((X, TABLE))).queued()
            child = service.fork(work)
            held.release()
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            waiter.release()

    # The administrator's view.

    def test_locks_lists_holders_and_waiters(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """Who holds what, who waits and for whom; on a resource and below it."""
        holder = Contender(manager, request((X, PART_A), statement="INSERT")).ended()
        waiter = Contender(other, request((X, TABLE), statement="DROP"))
        if not manager.guarantees.mutual_exclusion:
            assert [] == list(manager.locks())
            return
        waiter.queued()
        held, wanted = holder.request.request_id, waiter.request.request_id
        expected = [
            (TABLE, S, LockState.ACQUIRED, held, None),
            (PART_A, X, LockState.ACQUIRED, held, None),
            (TABLE, X, LockState.WAITING, wanted, held),
        ]
        listed = manager.locks()
        assert expected == [(e.resource, e.mode, e.state, e.request_id, e.blocked_by) for e in listed]
        assert ["INSERT", "INSERT", "DROP"] == [entry.owner.statement for entry in listed]
        assert [PART_A] == [entry.resource for entry in manager.locks(PART_A)]
        assert [] == list(manager.locks(Resource(("db", "t2"))))
        assert [] == list(manager.locks(Resource(("db", "t", "day"))))
        assert [] == list(manager.locks(scope=COMMIT))
        assert abs(listed[0].requested_at_ms - time.time() * 1000) < 60_000
        if manager.guarantees.expiry:
            lease_ms = manager.settings.lease_ms
            assert all(e.expires_in_ms is not None and 0 < e.expires_in_ms <= lease_ms for e in listed)
        holder.release()
        waiter.release()

    def test_a_listing_comes_page_by_page(self, service: Service) -> None:
        """The pages hold what the listing holds, resource by resource; on a resource, and in one scope."""
        manager, other = service.open(page_size=3), service.open()
        days = [Resource(("db", "t", f"day={day}", f"h={hour}")) for day in range(5) for hour in range(2)]
        with (
            manager.acquire(request(*((X, day) for day in days)), deadline=soon()),
            manager.acquire(request((S, Resource(("db", "t2"))), (X, Resource(("d2", "t")))), deadline=soon()),
            manager.acquire(latch(), deadline=soon()),
        ):
            waiter = Contender(other, request((X, days[7])))
            if manager.guarantees.mutual_exclusion:
                waiter.queued()
            for choice in ({}, {"resource": TABLE}, {"resource": days[3].ancestors[-1]}, {"scope": COMMIT}):
                pages = list(manager.pages(**choice))
                listed = [entry for page in pages for entry in page]
                assert all(pages)
                assert sorted(_facts(manager.locks(**choice))) == sorted(_facts(listed))
                resources = [(entry.scope, entry.resource) for entry in listed]
                assert len(set(resources)) == sum(
                    one != other for one, other in zip(resources, [None, *resources], strict=False)
                )
            if manager.guarantees.mutual_exclusion:
                assert len(list(manager.pages())) > 3
                waits = [e for page in manager.pages() for e in page if e.state is LockState.WAITING]
                assert (days[7], waiter.request.request_id) in [(e.resource, e.request_id) for e in waits]
        waiter.release()

    @pytest.mark.parametrize("by", ["request", "resource"])
    def test_unlock_frees_by_force(self, manager: HandoverLockManager, other: HandoverLockManager, by: str) -> None:
        """An administrator frees a lock; its owner finds it LOST, a waiter is granted."""
        holder = manager.acquire(request((X, TABLE)), deadline=soon())
        wanted = {"request_id": holder.request.request_id} if by == "request" else {"resource": TABLE}
        if not manager.guarantees.mutual_exclusion:
            assert [] == list(other.unlock(**wanted))
            return
        freed = other.unlock(**wanted)
        assert [(TABLE, X, holder.request.request_id)] == [(e.resource, e.mode, e.request_id) for e in freed]
        with pytest.raises(LockLost):
            holder.ensure_active(0)
        assert LeaseState.LOST is holder.state
        assert [] == list(other.unlock(**wanted))
        assert not blocked(other, request((X, TABLE)))

    def test_unlock_each_frees_requests_in_the_given_order(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """The locks of each request are yielded before the next request is freed; an unknown request frees nothing."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        first = manager.acquire(request((X, PART_A)), deadline=soon())
        second = other.acquire(request((X, PART_B)), deadline=soon())
        ids = [second.request.request_id, str(uuid.uuid4()), first.request.request_id]
        freed = other.unlock_each(ids)
        assert {second.request.request_id} == {entry.request_id for entry in next(freed)}
        first.ensure_active(0)
        assert [] == list(next(freed))
        assert PART_A in [entry.resource for entry in next(freed)]
        assert [] == list(freed)
        assert [] == list(other.locks())

    def test_unlock_withdraws_a_waiter(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """A request that waits can be taken out too; it ends with a refusal."""
        if not manager.guarantees.mutual_exclusion:
            excludes_nothing(manager, other)
            return
        with manager.acquire(request((X, TABLE)), deadline=soon()):
            waiter = Contender(other, request((X, TABLE))).queued()
            freed(manager, waiter)
            assert isinstance(waiter.ended().error, LockRefused)

    def test_reap_frees_what_a_killed_process_held_and_waited_for(self, service: Service) -> None:
        """Locks and places in queues of dead processes go, in both scopes; those of living ones stay."""
        times = {"lease_ms": 6000, "heartbeat_interval_ms": 400}
        manager, other = service.open(**times), service.open(**times)
        if not manager.guarantees.expiry:
            assert [] == list(manager.reap())
            return
        kept = manager.acquire(request((X, PART_B)), deadline=soon())
        waiter = Contender(other, request((S, PART_B))).queued()

        def work(_: HandoverLockManager) -> None:
            client = service.open(**times)
            held = [client.acquire(wanted, deadline=soon()) for wanted in (request((X, PART_A)), latch())]
            Contender(client, request((X, PART_B), statement="waits")).ended()
            del held

        victim = service.fork(work)
        until(lambda: len(standing(manager)) == 5, "all places in the queues")
        assert [] == list(other.reap()), "all of them live"
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        living = {kept.request.request_id, waiter.request.request_id}
        dead = standing(manager).keys() - living

        found = other.reap(dry_run=True)
        assert (3, dead) == (len(dead), {entry.request_id for entry in found})
        assert living | dead == standing(manager).keys()
        freed = other.reap()
        assert dead == {entry.request_id for entry in freed}
        assert living == standing(manager).keys()
        assert [] == list(other.reap())
        kept.ensure_active(0)
        kept.release()
        waiter.release()

    def test_reap_frees_what_stopped_beating_and_nothing_that_beats(self, service: Service) -> None:
        """Of a process that lives, but does not extend its leases any more."""
        stalled = service.open(lease_ms=1000, heartbeat_interval_ms=200)
        manager = service.open(lease_ms=6000, heartbeat_interval_ms=200)  # its heartbeat may be late on a busy machine
        if not manager.guarantees.expiry:
            expires_never(manager)
            return
        held = manager.acquire(request((X, PART_B)), deadline=soon())
        lease = stalled.acquire(request((X, PART_A)), deadline=soon())
        freed, to_be_freed = set[str](), set() if service.ends_sessions else {lease.request.request_id}

        def is_over() -> bool:
            freed.update(entry.request_id for entry in manager.reap())
            return freed == to_be_freed and {held.request.request_id} == standing(manager).keys()

        stalled.heartbeat.pause()
        try:
            until(is_over, "an end")
            held.ensure_active(0)
            assert LeaseState.LOST is lease.state
        finally:
            stalled.heartbeat.resume()

    def test_explicit_locks_outlive_their_client(self, service: Service) -> None:
        """LOCK TABLE holds until UNLOCK, though its client has closed and its process may have ended."""
        manager, other = service.open(lease_ms=200, heartbeat_interval_ms=50), service.open()
        nobody = Owner(user="u", host="h", pid=1, application="cli", process=_ended_process())
        wanted = request((X, TABLE), explicit=True, owner=nobody)
        if not manager.guarantees.explicit_locks:
            with pytest.raises(LockRefused, match="explicit"):
                manager.acquire(wanted, deadline=soon())
            return
        manager.acquire(wanted, deadline=soon()).ensure_active(0)
        manager.close()
        # Also when the length of a lease is over.
        throughout(0.4, lambda: [] == list(other.reap()) == list(other.reap(dry_run=True)), "nothing to reap")
        assert blocked(other, request((S, TABLE)))
        (entry,) = other.locks(TABLE)
        assert (True, None) == (entry.explicit, entry.expires_in_ms)
        assert [wanted.request_id] == [e.request_id for e in other.unlock(resource=TABLE)]
        assert not blocked(other, request((S, TABLE)))

    @pytest.mark.parametrize("ended_by", ["a waiter", "reap"])
    def test_a_lock_statement_that_is_killed_while_it_waits_locks_nothing(
        self, service: Service, manager: HandoverLockManager, ended_by: str
    ) -> None:
        """Nobody knows of the lock that it would be granted, so it ends as the request of any dead process does."""
        if not manager.guarantees.explicit_locks or not manager.guarantees.expiry:
            expires_never(manager)
            return
        other = service.open()
        held = manager.acquire(request((X, TABLE)), deadline=soon())

        def work(client: HandoverLockManager) -> None:
            client.acquire(request((X, TABLE), explicit=True), deadline=soon())

        victim = service.fork(work)
        until(lambda: len(standing(manager)) == 2, "a LOCK statement that waits")
        assert [] == list(other.reap()), "it lives"
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        held.release()
        if ended_by == "reap":
            until(lambda: other.reap() or not other.locks(), "an end")
        else:
            other.acquire(request((X, TABLE)), deadline=soon()).release()
        assert {} == standing(manager)

    def test_the_journal_remembers_for_its_time(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """What one client remembers another one recalls, until it expires."""
        entry = JournalEntry(
            key=uuid.uuid4().hex, table="db.t", table_uuid="u", metadata_location="s3://m", snapshot_ids=(1, 2)
        )
        if not manager.guarantees.journal:
            with pytest.raises(LockRefused, match="journal"):
                manager.remember(entry, lifetime_ms=60_000)
            assert manager.recall(entry.key) is None
            return
        assert manager.recall(entry.key) is None
        manager.remember(entry, lifetime_ms=60_000)
        manager.remember(entry, lifetime_ms=60_000)
        assert entry == other.recall(entry.key)
        changed = replace(entry, metadata_location="s3://n", snapshot_ids=())
        manager.remember(changed, lifetime_ms=60_000)
        assert changed == other.recall(entry.key)
        brief = JournalEntry(key=uuid.uuid4().hex, table="t", table_uuid="u", metadata_location="m")
        manager.remember(brief, lifetime_ms=30)
        until(lambda: manager.recall(brief.key) is None, "the end of a short memory")

    def test_a_holder_finds_what_the_last_one_left(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """The note of a latch goes from release to grant, also to a waiter, and only from a holder.

        A manager that takes different locks for different tables has notes in some of them, and declares none.
        """
        with manager.acquire(latch(), deadline=soon()) as lease:
            if lease.handover_note is None:
                assert not manager.guarantees.notes
                with pytest.raises(LockRefused, match="does not support notes"):
                    lease.set_handover_note("x")
                return
        with manager.acquire(request((X, TABLE)), deadline=soon()) as operation:
            assert operation.handover_note is None
        first = manager.acquire(latch(), deadline=soon())
        assert "" == first.handover_note
        waiter = Contender(other, latch()).queued()
        first.set_handover_note("ä'1")
        first.release()
        waiter.release()
        assert waiter.lease is not None
        assert "ä'1" == waiter.lease.handover_note
        with manager.acquire(latch(), deadline=soon()) as nothing_left:
            assert "ä'1" == nothing_left.handover_note
        freed = manager.acquire(latch(), deadline=soon())
        freed.set_handover_note("by a holder that was freed by force")
        other.unlock(resource=TABLE)
        freed.release()
        with other.acquire(latch(), deadline=soon()) as lease:
            assert "ä'1" == lease.handover_note
            lease.set_handover_note("")
        with manager.acquire(latch(), deadline=soon()) as lease:
            assert "" == lease.handover_note
        with manager.acquire(latch(Resource(("db", "t2"))), deadline=soon()) as lease:
            assert "" == lease.handover_note

    def test_the_guarantees_make_sense(self, manager: HandoverLockManager) -> None:
        """Who promises order or expiry promises exclusion; a reach goes with it."""
        promised = manager.guarantees
        assert promised.mutual_exclusion == (promised.reach != "nobody")
        assert promised.mutual_exclusion or not (promised.fifo or promised.expiry or promised.explicit_locks)
        assert promised.expiry == (promised.clock != "none")

    # Stress.

    @pytest.mark.parametrize("seed", range(3))
    def test_many_threads_never_hold_what_conflicts(self, service: Service, seed: int) -> None:
        """Random requests from many threads and two clients: exclusion holds, and nobody waits for ever."""
        clients = [service.open(), service.open()]
        resources = [TABLE, PART_A, PART_B, Resource(("db", "t", "day=1", "h=1")), Resource(("db", "t2"))]
        mutex, holders, clashes = threading.Lock(), dict[str, Mapping[Resource, LockMode]](), []

        def work(number: int) -> None:
            dice = random.Random(seed * 1000 + number)  # noqa: S311 - dice of a test
            for _ in range(8):
                chosen = dice.sample(resources, dice.randint(1, 3))
                wanted = request(*((dice.choice([S, X]), resource) for resource in chosen))
                with clients[number % 2].acquire(wanted, deadline=soon()):
                    mine = dict(wanted.locks)
                    with mutex:
                        clashes.extend(clashing(mine, holders.values()))
                        holders[wanted.request_id] = mine
                    time.sleep(dice.random() * 0.002)  # the subject: locks that are held for a while
                    with mutex:
                        del holders[wanted.request_id]

        with ThreadPoolExecutor(10) as pool:
            for future in [pool.submit(work, number) for number in range(10)]:
                future.result(PATIENCE)
        assert bool(clashes) != clients[0].guarantees.mutual_exclusion
        until(lambda: not clients[0].locks(), "an empty queue")

    def test_processes_take_turns(self, service: Service, manager: HandoverLockManager, tmp_path: Path) -> None:
        """Processes that read, add and write a number under the latch lose no addition."""
        if manager.guarantees.reach not in (Reach.HOST, Reach.NETWORK):
            keeps_out_its_own_process_alone(service)
            return
        number = tmp_path / "number"
        number.write_text("0")

        def work(client: HandoverLockManager) -> None:
            for _ in range(40):
                with client.acquire(latch(), deadline=soon()):
                    number.write_text(str(int(number.read_text()) + 1))

        workers = [service.fork(work) for _ in range(4)]
        assert [0] * 4 == [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
        assert "160" == number.read_text()
        assert [] == list(manager.locks())


def clashing(mine: Mapping[Resource, LockMode], others: Iterable[Mapping[Resource, LockMode]]) -> list[Resource]:
    """Return the resources of *mine* that one of *others* has in a mode that conflicts."""
    return [
        resource
        for held in others
        for resource, mode in held.items()
        if resource in mine and not compatible(mine[resource], mode)
    ]


def _facts(entries: Iterable[LockEntry]) -> list[tuple[object, ...]]:
    return [(e.scope, e.resource, e.mode, e.request_id, e.owner, e.generation, e.explicit) for e in entries]


def _ended_process() -> str:
    """Return the name of a process that has ended."""
    child = subprocess.Popen(["sleep", "60"])
    name = process_name(child.pid)
    child.kill()
    child.wait()
    return name or ""
