"""Appends of many clients on the metastore's own locks: one swap publishes all that wait."""

from __future__ import annotations

import multiprocessing
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.events import CommitEnded
from commit_coord.hms.locks import LockPart, LockType
from commit_coord.local import HiveMetastore
from commit_coord.locks.hms.manager import HmsLockManager
from commit_coord.locks.hms.offers import Found
from commit_coord.locks.memory_space import SPACES
from commit_coord.model import Offer, Resource
from commit_coord.testing.carrying import OffersIn, Submitter, answer, offering, takes, texts
from commit_coord.testing.contract import OFFERS, TABLE, latch, soon, standing, until
from tests.catalog.kit import SCHEMA, ids, row_ids
from tests.hive.test_catalog import calls, opened

pytestmark = pytest.mark.hms

WRITERS = 16
APPENDS = 5
QUIET = 3
"""Seconds within which they are done where nothing else runs."""


@pytest.fixture
def table(hms: HiveMetastore) -> Iterator[tuple[str, str]]:
    """The name of a table that is empty."""
    name = f"db{uuid.uuid4().hex}", "t"
    with closing(opened(hms.uri)) as catalog:
        catalog.create_namespace(name[0])
        catalog.create_table(name, SCHEMA)
        yield name


def apart(hms: HiveMetastore, **properties: str) -> CoordinatedHiveCatalog:
    """Return a catalog whose threads share no queue with those of other catalogs, as in a process of its own."""
    catalog = opened(hms.uri, **properties)
    for key in [key for key in SPACES if key[0].startswith("hms ")]:
        del SPACES[key]
    return catalog


def expected(writers: int, appends: int) -> list[int]:
    """Return the rows that :func:`crowd` appends."""
    return sorted(number * 1000 + turn for number in range(writers) for turn in range(appends))


def files_of_offers(catalog: CoordinatedHiveCatalog, table: tuple[str, str]) -> list[str]:
    """Return the files of offers that are left in the folder of the table's metadata."""
    folder = Path(urlparse(catalog.load_table(table).metadata_location).path).parent
    return [path.name for path in folder.iterdir() if not path.name.endswith((".metadata.json", ".avro"))]


def crowd(hms: HiveMetastore, table: tuple[str, str], writers: int, appends: int) -> list[dict[str, Any]]:
    """Return what processes say that append at once: their calls of the metastore, whom each commit carried, time."""
    context = multiprocessing.get_context("fork")
    begin, said = context.Barrier(writers), context.SimpleQueue()

    def work(number: int) -> None:
        catalog, groups = opened(hms.uri), list[int]()
        catalog.events.subscribe(lambda event: groups.append(event.carried) if type(event) is CommitEnded else None)
        own = catalog.load_table(table)
        own.append(ids(-1 - number))  # the first one finds out what the server can do
        begin.wait()
        before, began = Counter(calls(catalog)), time.monotonic()
        groups.clear()
        for turn in range(appends):
            own.append(ids(number * 1000 + turn))
        sent = Counter(calls(catalog)) - before
        said.put({"calls": sent, "groups": groups, "seconds": time.monotonic() - began})
        catalog.close()
        os._exit(0)

    processes = [context.Process(target=work, args=(number,), daemon=True) for number in range(writers)]
    for process in processes:
        process.start()
    found = [said.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def test_an_append_of_a_crowd_costs_the_metastore_at_most_four_calls(
    hms: HiveMetastore, table: tuple[str, str]
) -> None:
    """Each writer asks for its lock and gives it back; what else there is to ask, the holder asks for all of them.

    On a busy machine the holder is late: leases are extended more often, and waiters ask who is before them. So each
    writer may ask twice for each second after :data:`QUIET` seconds.
    """
    found = crowd(hms, table, WRITERS, APPENDS)
    sent = sum((each["calls"] for each in found), Counter[str]())
    assert any(size > WRITERS // 2 for each in found for size in each["groups"]), "hardly anybody was carried"
    with closing(apart(hms)) as catalog:
        assert {*expected(WRITERS, APPENDS)} <= {*row_ids(catalog.load_table(table))}
        assert [] == list(catalog.locks.locks(Resource(table)))
        assert [] == files_of_offers(catalog, table)
    late = sum(max(0.0, each["seconds"] - QUIET) for each in found)
    assert sum(sent.values()) <= 4 * WRITERS * APPENDS + 2 * late, (sent, late)


# A holder and an owner that meet: each of the two looks at what the other has written.


class Meeting(OffersIn):
    """Files between whose steps something else happens.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.before: dict[tuple[str, str], Callable[[], object]] = {}
        """By operation and end of the name: called once, before it is done."""
        self.after: dict[tuple[str, str], Callable[[], object]] = {}
        """Likewise, after it is done."""
        self.unreadable: tuple[str, ...] = ()
        """Ends of the names of files that can't be read now."""

    def _meet(
        self, planned: dict[tuple[str, str], Callable[[], object]], operation: str, locations: Sequence[str]
    ) -> None:
        for key in list(planned):
            if key[0] == operation and any(location.endswith(key[1]) for location in locations):
                planned.pop(key)()

    def read(self, locations: Sequence[str]) -> Sequence[Found]:
        """See :meth:`OffersIn.read`."""
        self._meet(self.before, "read", locations)
        found = super().read(locations)
        self._meet(self.after, "read", locations)
        pairs = zip(locations, found, strict=True)
        return [OSError(name) if name.endswith(self.unreadable) else one for name, one in pairs]

    def write(self, files: Mapping[str, bytes]) -> None:
        """See :meth:`OffersIn.write`."""
        self._meet(self.before, "write", list(files))
        super().write(files)
        self._meet(self.after, "write", list(files))


@pytest.fixture
def files(tmp_path: Path) -> Meeting:
    """The files of offers."""
    return Meeting(tmp_path)


@pytest.fixture
def clients(hms: HiveMetastore, files: Meeting) -> Iterator[Callable[[], HmsLockManager]]:
    """Opens lock managers that share no queue of threads."""
    with ExitStack() as stack:

        def opened_apart() -> HmsLockManager:
            manager = stack.enter_context(closing(HmsLockManager(hms.uri, files=files)))
            for key in [key for key in SPACES if key[0].startswith("hms ")]:
                del SPACES[key]
            return manager

        yield opened_apart


def retracted(owner: HmsLockManager, waiter: Submitter) -> bool:
    """Retract the offer of *waiter*, as at the end of its wait; return whether nobody has taken it or will."""
    return owner.parts.queue.retract(waiter.request)


def waiting(files: Meeting, owner: HmsLockManager, text: str = "a") -> Submitter:
    """Return a waiter whose offer can be read."""
    waiter = Submitter(owner, offering(text)).queued()
    until((files.folder / OFFERS / f"{waiter.request.request_id}.offer.json").exists, "an offer")
    return waiter


def test_an_offer_that_its_owner_takes_back_while_it_is_marked_is_not_taken(
    clients: Callable[[], HmsLockManager], files: Meeting
) -> None:
    """The owner finds no mark, so it may say that its commit did not land; the holder finds the offer gone."""
    first, second = clients(), clients()
    with first.acquire(latch(), deadline=soon()) as holder:
        waiter = waiting(files, second)
        said: list[bool] = []
        files.before["write", ".taken"] = lambda: said.append(retracted(second, waiter))
        assert [] == list(holder.take(10))
        assert [True] == said
    waiter.lease().release()


def test_an_offer_that_is_marked_while_its_owner_takes_it_back_is_in_doubt_or_not_taken(
    clients: Callable[[], HmsLockManager], files: Meeting
) -> None:
    """Whichever of the two is faster."""
    first, second = clients(), clients()
    with first.acquire(latch(), deadline=soon()) as holder:
        waiter = waiting(files, second)
        taken: list[Offer] = []
        files.after["read", ".taken"] = lambda: taken.extend(holder.take(10))
        assert retracted(second, waiter)
        assert [] == taken
    waiter.lease().release()


def test_an_offer_whose_writing_was_not_confirmed_is_in_doubt(
    clients: Callable[[], HmsLockManager], files: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    """The store may write it after its owner has given up."""

    def fails() -> None:
        raise OSError("no answer")

    first, second = clients(), clients()
    with first.acquire(latch(), deadline=soon()):
        files.after["write", ".offer.json"] = fails
        waiter = waiting(files, second)
        # Its own thread retracts an offer, so it has seen the failure first; the file is there before.
        until(lambda: "an offer could not be written" in caplog.text, "a failed writing")
        assert not retracted(second, waiter)
    lease = waiter.lease()
    assert not lease.retract(), "the doubt was forgotten with the grant"
    lease.release()


def test_an_offer_that_is_damaged_is_none(clients: Callable[[], HmsLockManager], files: Meeting) -> None:
    """The holder commits without it."""
    first, second = clients(), clients()
    with first.acquire(latch(), deadline=soon()) as holder:
        waiter = waiting(files, second)
        offer = files.folder / OFFERS / f"{waiter.request.request_id}.offer.json"
        for damaged in (b"", b"half of it", b"\xff\n"):
            offer.write_bytes(damaged)
            assert [] == list(holder.take(10))
        assert retracted(second, waiter)
    waiter.lease().release()


def test_a_mark_that_can_not_be_read_belongs_to_another_holder(
    clients: Callable[[], HmsLockManager], files: Meeting
) -> None:
    """An earlier holder may still publish the offer."""
    first, second, third = clients(), clients(), clients()
    dead = first.acquire(latch(), deadline=soon())
    before, behind = waiting(files, second, "before"), waiting(files, third, "behind")
    assert 2 == len(takes(dead, 10, 2))
    dead.release()
    lease = before.lease()
    files.unreadable = (".taken", ".outcome.json")
    assert [] == list(lease.take(10))
    files.unreadable = ()
    lease.release()
    lease = behind.lease()
    assert not lease.retract()
    lease.release()


def test_what_a_thread_of_the_own_process_has_taken_is_offered_to_nobody_else(
    clients: Callable[[], HmsLockManager], files: Meeting
) -> None:
    """Else its rows may be there twice.

    1. H takes the offer of R, another thread, swaps, and is interrupted.   2. R waits for the latch itself.
    3. K of another process has the latch, and takes R's offer, too.
    """
    ours, other = clients(), clients()
    holder = ours.acquire(latch(), deadline=soon())
    stranger = waiting(files, other, "k")
    thread = Submitter(ours, offering("r")).queued()
    assert ["r"] == texts(holder, 1, 1)
    holder.release()
    lease = stranger.lease()
    until(
        lambda: any(ticket.blocked_by is not None for ticket in list(ours.parts.queue.tickets.values())),
        "what the thread does after it would have offered",
    )
    assert thread.request.request_id in standing(other)
    assert [] == list(lease.take(10))
    lease.release()
    lease = thread.lease()
    assert not lease.retract()
    lease.release()


def test_a_request_that_offers_nothing_leaves_no_file(clients: Callable[[], HmsLockManager], files: Meeting) -> None:
    """A holder that looked for offers tells the next request only if it will look."""
    first, second = clients(), clients()
    holder = first.acquire(latch(), deadline=soon())
    waiter = Submitter(second, offering("")).queued()
    assert [] == list(holder.take(10))
    holder.release()
    waiter.lease().release()
    assert [] == [path for path in files.folder.rglob("*") if path.is_file()]


def test_a_waiter_that_is_granted_after_it_was_carried_takes_the_answer(
    clients: Callable[[], HmsLockManager], files: Meeting
) -> None:
    """It may ask the metastore before it looks for the outcome."""
    first, second = clients(), clients()
    holder = first.acquire(latch(), deadline=soon())
    waiter = waiting(files, second)
    (offer,) = holder.take(10)
    done = answer(offer.request_id)
    holder.settle([done], [])
    real, hidden = files.read, True

    def without_outcomes(locations: Sequence[str]) -> Sequence[Found]:
        pairs = zip(locations, real(locations), strict=True)
        return [None if hidden and name.endswith(".outcome.json") else found for name, found in pairs]

    files.read = without_outcomes  # type: ignore[method-assign]
    asked = second.metastore.check_lock

    def granted(lock_id: int) -> bool:
        nonlocal hidden
        found: bool = asked(lock_id)
        hidden = hidden and not found
        return found

    second.metastore.check_lock = granted  # type: ignore[method-assign]
    holder.release()
    assert done == waiter.answer()
    assert [] == list(first.locks(TABLE))


def test_no_offers_are_made_where_a_late_swap_overwrites(clients: Callable[[], HmsLockManager], files: Meeting) -> None:
    """A server that does not compare carries out the swap of a holder that was paused for longer than its lease."""
    files.allowed = False
    first, second = clients(), clients()
    with first.acquire(latch(), deadline=soon()) as holder:
        waiter = Submitter(second, offering("a")).queued()
        assert [] == list(holder.take(10))
        assert retracted(second, waiter)
    waiter.lease().release()
    assert [] == list(files.folder.iterdir())


def test_a_request_of_another_program_ends_a_group(clients: Callable[[], HmsLockManager], files: Meeting) -> None:
    """Nobody is overtaken who only locks."""
    first, second, third = clients(), clients(), clients()
    holder = first.acquire(latch(), deadline=soon())
    before = waiting(files, second, "before")
    part = LockPart(type=LockType.EXCLUSIVE, db=TABLE.path[0], table=TABLE.path[1])
    stranger, granted = first.metastore.lock([part], user="java", host="h", agent="Iceberg-1")
    assert not granted
    behind = waiting(files, third, "behind")
    (offer,) = holder.take(10)
    assert "before" == offer.text
    holder.settle([answer(offer.request_id)], [])
    holder.release()
    assert answer(offer.request_id) == before.answer()
    until(lambda: first.metastore.check_lock(stranger), "the other program's turn")
    assert behind.waits
    first.metastore.unlock(stranger)
    behind.lease().release()
