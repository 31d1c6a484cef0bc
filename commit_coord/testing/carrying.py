"""The part of the lock contract that concerns offers: what waits may be carried out by the holder before it.

A test class inherits it together with :class:`~commit_coord.testing.contract.LockContract`, with the same fixture
``service``: the one contract for what carries, the other for the rest.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from commit_coord.errors import LockRefused, LockTimeout, OfferLost
from commit_coord.locks.handover import HandoverLease, HandoverLockManager
from commit_coord.model import JournalEntry, LockMode, LockRequest, LockScope, Offer, Reach, Resource
from commit_coord.process import this_owner
from commit_coord.testing.contract import (
    EACH_LINE,
    OFFERS,
    PATIENCE,
    TABLE,
    Service,
    blocked,
    freed,
    interrupted_at,
    latch,
    soon,
    standing,
    until,
)
from commit_coord.testing.fleet import holds_within

_TOOK, _TOOK_NOTHING = 0, 3
"""Exit codes of a holder: whether it took offers before it died. An error is 1."""


def offering(text: str, table: Resource = TABLE) -> LockRequest:
    """Return a request for the commit latch of *table* that offers *text*."""
    request = LockRequest.of(
        LockScope.COMMIT,
        {table: LockMode.EXCLUSIVE},
        owner=this_owner("offers", application="contract"),
        request_id=uuid.uuid4().hex,
        offer=text,
    )
    return replace(request, offers_at=OFFERS)


def answer(request_id: str) -> JournalEntry:
    """Return what a holder says that carried out the offer of *request_id*."""
    return JournalEntry(key=request_id, table="db.t", table_uuid="u", metadata_location="s3://m", snapshot_ids=(7,))


class Submitter:
    """A thread that submits a request and keeps what it got."""

    def __init__(self, manager: HandoverLockManager, wanted: LockRequest, *, seconds: float = 20.0) -> None:
        self.request = wanted
        self.got: HandoverLease | JournalEntry | None = None
        self.error: BaseException | None = None
        self._manager, self._deadline = manager, soon(seconds)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.got = self._manager.submit(self.request, deadline=self._deadline)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    @property
    def waits(self) -> bool:
        """Whether nothing has come yet: no answer, no lease, no error."""
        return self._thread.is_alive()

    def queued(self) -> Submitter:
        """Return once the request is in the queue."""
        until(lambda: self.request.request_id in standing(self._manager), "a place in the queue")
        return self

    def lease(self) -> HandoverLease:
        """Wait for the grant."""
        self._end()
        assert isinstance(self.got, HandoverLease), self.error or self.got
        return self.got

    def answer(self) -> JournalEntry:
        """Wait for the answer of a holder."""
        self._end()
        assert isinstance(self.got, JournalEntry), self.error or self.got
        return self.got

    def failed(self) -> BaseException:
        """Wait for an error."""
        self._end()
        assert self.error is not None, self.got
        return self.error

    def _end(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"still waiting: {self.request}"


def in_line(manager: HandoverLockManager, *texts: str) -> list[Submitter]:
    """Return submitters that wait in the queue in this order; an empty text offers nothing."""
    return [Submitter(manager, offering(text)).queued() for text in texts]


def takes(holder: HandoverLease, limit: int, count: int) -> Sequence[Offer]:
    """Take offers until there are *count*: a request may be listed before its offer can be read."""
    found: Sequence[Offer] = ()

    def is_complete() -> bool:
        nonlocal found
        found = holder.take(limit)
        return len(found) == count

    until(is_complete, f"{count} offers")
    return found


def _took_or_ended(holder: HandoverLease, taken: list[Offer], waiter: Submitter) -> bool:
    taken.extend(holder.take(10))
    return bool(taken) or not waiter.waits


def texts(holder: HandoverLease, limit: int, count: int) -> list[str]:
    """Take offers as :func:`takes`, and return what they say."""
    return [offer.text for offer in takes(holder, limit, count)]


class OffersIn:
    """The files of offers, in a folder of this machine; see :class:`~commit_coord.locks.hms.offers.OfferFiles`."""

    allowed = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, locations: Sequence[str]) -> Sequence[bytes | Exception | None]:
        """Return the content of each file, None if there is no such file."""
        return [self._read(self.folder / location) for location in locations]

    def write(self, files: Mapping[str, bytes]) -> None:
        """Create files."""
        for location, data in files.items():
            path = self.folder / location
            path.parent.mkdir(exist_ok=True)
            assert self._read(path) in (None, data), f"a file was changed: {location}"
            path.write_bytes(data)

    def delete(self, locations: Sequence[str]) -> None:
        """Delete files, if they are there."""
        for location in locations:
            (self.folder / location).unlink(missing_ok=True)

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


class _TwoClients:
    @pytest.fixture
    def manager(self, service: Service) -> HandoverLockManager:
        """One client."""
        return service.open()

    @pytest.fixture
    def other(self, service: Service) -> HandoverLockManager:
        """Another client."""
        return service.open()


class NotCarryingContract(_TwoClients):
    """What every lock manager keeps that carries no offers."""

    def test_an_offer_is_no_more_than_a_request(self, manager: HandoverLockManager) -> None:
        """Nobody takes it, and settling one is an error."""
        assert manager.guarantees.carries == Reach.NOBODY
        with manager.acquire(latch(), deadline=soon()) as lease:
            assert [] == list(lease.take(10))
            with pytest.raises(LockRefused, match="offers"):
                lease.settle([], [])
        granted = manager.submit(offering("a"), deadline=soon())
        assert isinstance(granted, HandoverLease)
        assert granted.retract()
        granted.release()


class CarryingContract(_TwoClients):
    """What every lock manager keeps that carries offers."""

    def test_nobody_takes_the_offer_of_who_did_not_wait(self, manager: HandoverLockManager) -> None:
        """It is the holder's own, and nobody else's to take."""
        assert manager.guarantees.carries != Reach.NOBODY
        granted = manager.submit(offering("a"), deadline=soon())
        assert isinstance(granted, HandoverLease)
        assert [] == list(granted.take(10))
        assert granted.retract()
        granted.release()

    def test_a_holder_carries_what_waits_right_behind_it(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """In the order in which they wait, up to the first that offers nothing: nobody is overtaken."""
        holder = manager.acquire(latch(), deadline=soon())
        a, b, c, d = in_line(other, "a", "b", "", "d")
        assert ["a", "b"] == texts(holder, 10, 2)
        holder.settle([answer(a.request.request_id)], [b.request.request_id])
        assert a.waits
        holder.release()
        assert a.answer() == answer(a.request.request_id)
        next_lease = b.lease()
        assert (c.waits, d.waits) == (True, True)
        assert [] == list(next_lease.take(10))
        assert next_lease.retract()
        next_lease.release()
        c.lease().release()
        d.lease().release()
        until(lambda: not manager.locks(), "an empty queue")

    def test_a_group_has_a_bound(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """Only so many are taken; the next holder takes the rest."""
        holder = manager.acquire(latch(), deadline=soon())
        waiters = in_line(other, "a", "b", "c")
        assert ["a"] == texts(holder, 1, 1)
        holder.settle([answer(waiters[0].request.request_id)], [])
        holder.release()
        second = waiters[1].lease()
        assert ["c"] == texts(second, 1, 1)
        second.settle([answer(waiters[2].request.request_id)], [])
        second.release()
        waiters[2].answer()

    def test_an_offer_that_was_returned_may_be_taken_again(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """By the next holder: what hindered the one before need not hinder it."""
        holder = manager.acquire(latch(), deadline=soon())
        a, b = in_line(other, "a", "b")
        assert 2 == len(takes(holder, 10, 2))
        holder.settle([], [a.request.request_id, b.request.request_id])
        holder.release()
        lease = a.lease()
        assert lease.retract()
        assert ["b"] == texts(lease, 10, 1)
        lease.settle([answer(b.request.request_id)], [])
        lease.release()
        assert answer(b.request.request_id) == b.answer()

    def test_an_offer_that_was_not_taken_goes_with_its_request(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """After a timeout nobody can carry it out any more."""
        with manager.acquire(latch(), deadline=soon()) as holder:
            waiter = Submitter(other, offering("a"), seconds=0.2)
            assert isinstance(waiter.failed(), LockTimeout)
            assert [] == list(holder.take(10))

    def test_an_offer_that_was_taken_waits_for_its_answer(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Beyond its own deadline: whether it is carried out is out of its hands."""
        with manager.acquire(latch(), deadline=soon()) as holder:
            seconds, taken = 0.4, list[Offer]()
            while not taken:  # on a busy machine the first waiters may give up before their offers are seen
                deadline, waiter = soon(seconds), Submitter(other, offering("a"), seconds=seconds)
                until(partial(_took_or_ended, holder, taken, waiter), "an offer")
                seconds *= 2
            (offer,) = taken
            until(lambda: soon(0) > deadline + 0.2, "the deadline")
            assert waiter.waits
            holder.settle([answer(offer.request_id)], [])
        assert waiter.answer() == answer(offer.request_id)

    def test_a_holder_that_settles_nothing_leaves_doubt(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """The owner is granted in its turn and knows that its offer is out of its hands; nobody takes it again."""
        holder = manager.acquire(latch(), deadline=soon())
        a, b, c = in_line(other, "a", "b", "c")
        assert 2 == len(takes(holder, 2, 2))
        holder.release()
        first = a.lease()
        assert [] == list(first.take(10))
        assert not first.retract()
        first.release()
        second = b.lease()
        assert ["c"] == texts(second, 10, 1)
        second.release()
        c.lease().release()

    def test_a_lease_that_nobody_keeps_is_given_back_when_it_has_settled_too(self, service: Service) -> None:
        """An interrupt came before its release. The owner of the offer is answered, or granted and in doubt."""
        times = {"lease_ms": 1000, "heartbeat_interval_ms": 200}
        manager, other = service.open(**times), service.open(**times)
        holder = manager.acquire(latch(), deadline=soon())
        waiter = Submitter(other, offering("a")).queued()
        holder.settle([answer(offer.request_id) for offer in takes(holder, 10, 1)], [])
        del holder
        until(lambda: not waiter.waits, "the end of the wait")
        if isinstance(waiter.got, HandoverLease):
            assert not waiter.got.retract()
            waiter.got.release()
        else:
            assert answer(waiter.request.request_id) == waiter.answer()

    def test_a_waiter_that_is_freed_by_force_does_not_know(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Its offer may have been taken before."""
        with manager.acquire(latch(), deadline=soon()) as holder:
            (waiter,) = in_line(other, "a")
            assert ["a"] == texts(holder, 10, 1)
            manager.unlock(request_id=waiter.request.request_id)
            assert isinstance(waiter.failed(), OfferLost)

    def test_a_waiter_that_is_freed_by_force_before_it_is_taken_is_refused_only_if_it_knows_that(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Whatever it says, no holder takes its offer afterwards."""
        with manager.acquire(latch(), deadline=soon()) as holder:
            (waiter,) = in_line(other, "a")
            freed(manager, waiter)
            assert isinstance(error := waiter.failed(), (OfferLost, LockRefused)), error
            assert [] == list(holder.take(10))

    def test_a_holder_that_was_freed_takes_nothing(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """Its place is gone, and with it the requests behind it."""
        holder = manager.acquire(latch(), deadline=soon())
        with other.acquire(latch(Resource(("db", "another"))), deadline=soon()):
            (waiter,) = in_line(other, "a")
            other.unlock(request_id=holder.request.request_id)
            assert [] == list(holder.take(10))
            lease = waiter.lease()
            assert lease.retract()
            lease.release()

    def test_a_lease_that_ended_takes_nothing(self, manager: HandoverLockManager, other: HandoverLockManager) -> None:
        """What waits is behind the next holder now."""
        holder = manager.acquire(latch(), deadline=soon())
        a, b = in_line(other, "a", "b")
        holder.release()
        lease = a.lease()
        assert [] == list(holder.take(10))
        lease.release()
        b.lease().release()

    def test_a_holder_that_was_freed_ends_nobody(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """What it took may be held by its owner by now, who must not lose it to a late answer.

        1. A takes the offers of B and C, does them, and is stopped.   2. It is freed; B is granted.
        3. A goes on, and settles what it took.   4. If that ended B's request, a fourth one would be granted, too.
        """
        holder = manager.acquire(latch(), deadline=soon())
        b, c = in_line(other, "b", "c")
        taken = takes(holder, 2, 2)
        other.unlock(request_id=holder.request.request_id)
        lease = b.lease()
        holder.settle([answer(offer.request_id) for offer in taken], [])
        holder.release()
        lease.ensure_active(0)
        assert {b.request.request_id, c.request.request_id} == set(standing(manager))
        lease.release()
        c.lease().release()

    def test_the_offers_of_a_holder_that_died_are_left_to_their_owners(
        self, service: Service, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """After kill -9 with offers in hand each owner is granted in turn, in doubt.

        If the manager promises to carry within a process alone, the holder may get no offers: then there is no doubt.
        """
        crosses = manager.guarantees.carries != Reach.PROCESS
        excludes = manager.guarantees.reach != Reach.PROCESS

        def work(client: HandoverLockManager) -> None:
            lease = client.acquire(latch(), deadline=soon())
            if excludes:
                until(lambda: len(standing(client)) == 2, "a waiter")
            patience = PATIENCE if crosses else 0.0
            os._exit(_TOOK if holds_within(lambda: lease.take(10), patience, every_s=0.002) else _TOOK_NOTHING)

        child = service.fork(work)
        if excludes:
            until(lambda: standing(manager), "a holder")
        waiter = Submitter(other, offering("a"))
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in ((_TOOK,) if crosses else (_TOOK, _TOOK_NOTHING))
        lease = waiter.lease()
        assert lease.retract() is (ended == _TOOK_NOTHING)
        lease.release()

    @EACH_LINE
    def test_an_interrupt_at_any_line_leaves_no_offer(
        self, manager: HandoverLockManager, other: HandoverLockManager, stride: int
    ) -> None:
        """Whatever line of a submit is interrupted, nothing stays that a later holder could take."""
        holder = other.acquire(latch(), deadline=soon())
        files = (f"{os.sep}commit_coord{os.sep}locks{os.sep}",)

        def action() -> None:
            try:
                manager.submit(offering("a"), deadline=soon(0.01))
            except LockTimeout:
                return

        for step in range(1, 5000, stride):
            reached = interrupted_at(step, action, files)
            until(lambda: set(standing(other)) == {holder.request.request_id}, f"nothing left after line {step}")
            assert [] == list(holder.take(10))
            if not reached:
                break
        else:
            pytest.fail("submit has no end")
        holder.release()
        assert not blocked(manager, latch())

    def test_many_threads_are_answered_or_granted(
        self, manager: HandoverLockManager, other: HandoverLockManager
    ) -> None:
        """The holder carries the others: each offer is carried out exactly once, by itself or by a holder."""
        clients = [manager, other]
        done: list[str] = []
        errors: list[BaseException] = []

        def execute(lease: HandoverLease, own: str) -> None:
            taken = lease.take(5)
            done.extend([own, *(offer.text for offer in taken)])
            lease.settle([answer(offer.request_id) for offer in taken], [])

        def work(number: int) -> None:
            try:
                for turn in range(10):
                    text = f"{number}-{turn}"
                    granted = clients[number % 2].submit(offering(text), deadline=soon())
                    if isinstance(granted, HandoverLease):
                        with granted:
                            execute(granted, text)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                errors.append(error)

        threads: Sequence[threading.Thread] = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        if errors:
            raise errors[0]
        assert sorted(done) == sorted(f"{number}-{turn}" for number in range(8) for turn in range(10))
        until(lambda: not clients[0].locks(), "an empty queue")
