"""What the threads of one process share."""

from __future__ import annotations

import gc
import threading

from commit_coord.locks.memory_space import ExpiringEntries
from commit_coord.model import JournalEntry


def _entry(request_id: str) -> JournalEntry:
    return JournalEntry(request_id=request_id, table="db.t", table_uuid="u", metadata_location="m")


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
            others[-1].join(0.05)

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
