"""What the threads of one process share."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import uuid
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commit_coord.errors import LockLost, LockRefused
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.memory_space import ExpiringEntries
from commit_coord.model import JournalEntry, LockRequest
from commit_coord.testing.carrying import answer, in_line, takes
from commit_coord.testing.contract import (
    TABLE,
    Contender,
    Interrupt,
    Service,
    X,
    blocked,
    interrupted_at,
    latch,
    request,
    soon,
    standing,
)


def _entry(request_id: str) -> JournalEntry:
    return JournalEntry(key=request_id, table="db.t", table_uuid="u", metadata_location="m")


def test_an_answer_is_left_while_another_holder_leaves_one() -> None:
    """The collector may come at any line, and what it ends lets other threads go on."""
    journal = ExpiringEntries()
    for number in range(5_000):
        journal.put(_entry(f"{number}"), 0.0, 900_000)
    others: list[threading.Thread] = []

    def come(phase: str, info: object) -> None:
        if len(others) < 20:
            others.append(threading.Thread(target=journal.put, args=(_entry(f"other-{len(others)}"), 0.0, 900_000)))
            others[-1].start()
            others[-1].join(0.05)  # the subject: it comes in between, as far as it is let

    before = gc.get_threshold()
    gc.callbacks.append(come)
    gc.set_threshold(1)
    try:
        journal.put(_entry("mine"), 0.0, 900_000)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(come)
    for other in others:
        other.join()
    assert journal.get("mine", 1.0) is not None
    assert journal.get("other-0", 1.0) is not None


def test_what_is_noted_of_a_lease_keeps_no_client_alive() -> None:
    """It stays until the next request in the process comes, which may be never."""
    space = uuid.uuid4().hex
    with MemoryLockManager(space=space):
        manager = MemoryLockManager(space=space)
        for ends in (True, False):
            lease = manager.acquire(latch(), deadline=soon())
            if ends:
                lease.release()
            del lease
        client = weakref.ref(manager.parts.queue)
        del manager
        gc.collect()
        assert client() is None


def test_a_lock_of_a_lock_statement_that_is_interrupted_on_its_way_is_given_back() -> None:
    """Nobody has its lease, and it outlives that: only UNLOCK would end it."""
    files = ("locks/acquiring.py", "locks/queue_manager.py")
    with MemoryLockManager(space=uuid.uuid4().hex) as manager:
        for step in itertools.count(1):
            wanted = request((X, TABLE), explicit=True)
            if not interrupted_at(step, partial(manager.acquire, wanted, deadline=soon()), files):
                break
            assert list(standing(manager)) == [], f"nothing left after an interrupt at line {step}"
        assert step > 20
        manager.unlock(request_id=wanted.request_id)


def test_interrupts_while_a_request_leaves_the_queue_leave_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with MemoryLockManager(space=uuid.uuid4().hex) as manager:
        holder = Contender(manager, request((X, TABLE))).ended()
        queue, left = manager.parts.queue, list[None]()
        leave = queue.leave

        def interrupted(*_: object) -> Any:
            raise Interrupt

        def interrupted_twice(wanted: LockRequest, *, for_good: bool) -> None:
            left.append(None)
            if len(left) < 3:
                raise Interrupt
            leave(wanted, for_good=for_good)

        monkeypatch.setattr(queue, "wait", interrupted)
        monkeypatch.setattr(queue, "leave", interrupted_twice)
        with pytest.raises(Interrupt):
            manager.acquire(request((X, TABLE)), deadline=soon())
        assert list(standing(manager)) == [holder.request.request_id]
        monkeypatch.undo()
        holder.release()


def test_a_holder_that_is_freed_and_does_not_know_it_yet_ends_nobody() -> None:
    """It settles after its place is gone, and before it learns that."""
    space = uuid.uuid4().hex
    with MemoryLockManager(space=space) as manager, MemoryLockManager(space=space) as other:
        holder = manager.acquire(latch(), deadline=soon())
        b, c = in_line(other, "b", "c")
        (taken,) = takes(holder, 1, 1)
        ticket = manager.parts.queue.space.find(holder.request.request_id)
        assert ticket is not None
        tell = ticket.lost

        def settle_first() -> None:
            holder.settle([answer(taken.request_id)], [])
            holder.set_handover_note("late")
            holder.release()
            tell()

        ticket.lost = settle_first
        other.unlock(request_id=holder.request.request_id)
        lease = b.lease()
        assert {b.request.request_id, c.request.request_id} == set(standing(manager))
        assert c.waits
        assert "" == lease.handover_note
        lease.release()
        c.lease().release()


@pytest.mark.parametrize(
    "spelling",
    [
        "sqlite:///{folder}/./c.db",
        "sqlite:///{folder}/../{name}/c.db",
        "sqlite:////{folder}/c.db",
        "sqlite+pysqlite:///{folder}/c.db",
        "sqlite:///{folder}/c.db?timeout=5",
        "sqlite:///file:{folder}/c.db?uri=true",
        "sqlite:///link.db",
    ],
)
def test_every_spelling_of_a_file_names_the_same_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link.db").symlink_to(tmp_path / "c.db")
    one = MemoryLockManager(f"sqlite:///{tmp_path}/c.db")
    other = MemoryLockManager(spelling.format(folder=tmp_path, name=tmp_path.name))
    with one.acquire(request((X, TABLE)), deadline=soon()):
        assert blocked(other, request((X, TABLE)))
        assert not blocked(MemoryLockManager(f"sqlite:///{tmp_path}/another.db"), request((X, TABLE)))


def test_databases_in_memory_are_not_files(tmp_path: Path) -> None:
    for uri in ("", "sqlite://", "sqlite:///:memory:", "any text", "thrift://h:1"):
        with MemoryLockManager(uri).acquire(request((X, TABLE)), deadline=soon()):
            assert blocked(MemoryLockManager(uri), request((X, TABLE))), uri


def test_a_forked_child_is_refused_what_its_parent_may_hold() -> None:
    manager = MemoryLockManager(uuid.uuid4().hex)
    with manager.acquire(request((X, TABLE)), deadline=soon()) as lease:

        def asks(_: HandoverLockManager) -> None:
            with pytest.raises(LockRefused, match="forked"):
                manager.acquire(request((X, TABLE)), deadline=soon())
            with pytest.raises(LockRefused, match="forked"):
                manager.submit(latch(), deadline=soon())
            with pytest.raises(LockLost, match="belongs to the process that acquired it"):
                lease.ensure_active()
            lease.release()
            manager.close()
            MemoryLockManager("its own").acquire(request((X, TABLE)), deadline=soon()).release()

        child = Service("memory", "").fork(asks)
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lease.ensure_active()
