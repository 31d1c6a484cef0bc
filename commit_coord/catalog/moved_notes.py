"""Moves the note of a table along when the table is renamed: the lock service keeps it under the table's name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pyiceberg.typedef import Identifier

from commit_coord.catalog.locking import before_a_change
from commit_coord.coordinator import Coordinator
from commit_coord.errors import CommitLockFailed
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.overwrites import joined
from commit_coord.locks.handover import HandoverLease
from commit_coord.process import raise_of_signal_handler

logger = logging.getLogger(__name__)

_FOLLOWS_MS = 5_000
"""How long a rename that has landed waits for each latch."""

_STAYS = "%s is renamed to %s, but what its last commits noted could not follow"


@contextmanager
def note_moves(
    coordinator: Coordinator, old: Identifier, new: Identifier, is_table: Callable[[Identifier], bool]
) -> Iterator[None]:
    """Rename the table *old* in the block; its note of what was committed and lost moves along.

    A latch shows the note only if it is for one table. So the note is copied before: a client that dies in or after
    the block leaves it where *new* is looked for. If the block fails, the copy does no harm: it names the table by its
    UUID. Then notes that commits left meanwhile are moved too, and *old* has no note any more.

    While a table moves from one lock manager to another, the service of its notes may be away and that of its locks
    not. Then it is renamed without its note.

    Args:
        coordinator: The catalog's.
        old: The table.
        new: Its new name.
        is_table: Returns whether a table has a name.

    Raises:
        CommitLockFailed, LockTimeout: The note could not be copied; the block did not run.
    """
    copied: str | None = None
    try:
        copied = _copied(coordinator, old, new, is_table)
    except CommitLockFailed:
        if coordinator.locks.guarantees.notes:
            raise  # the rename needs the same service
        logger.warning(_STAYS, table_name(old), table_name(new), exc_info=True)
    yield
    try:
        _move(coordinator, old, new, copied)
    except Exception as error:
        raise_of_signal_handler(error)
        logger.warning(_STAYS, table_name(old), table_name(new), exc_info=True)


def take_note(latch: HandoverLease) -> None:
    """Tell the next holder nothing of what was committed before: the table is gone."""
    if latch.handover_note:
        latch.set_handover_note("")


def _copied(
    coordinator: Coordinator, old: Identifier, new: Identifier, is_table: Callable[[Identifier], bool]
) -> str | None:
    """Copy the note of *old* to *new*, if there is no such table, and return it; None if nothing was copied."""
    with _latched(coordinator, old) as latch:
        note = None if latch is None else latch.handover_note
    if note is None or is_table(new):
        return None
    with _latched(coordinator, new) as latch:
        if latch is None or is_table(new):
            return None
        if latch.handover_note != note:
            latch.set_handover_note(note)
        return note


def _move(coordinator: Coordinator, old: Identifier, new: Identifier, copied: str | None) -> None:
    """Move the note of *old*, which was renamed, to *new*, unless it is the *copied* one.

    Raises:
        Exception: It is not known whether the note has moved.
    """
    with _latched(coordinator, old, within_ms=_FOLLOWS_MS) as latch:
        if latch is None or not (note := latch.handover_note):
            return
        if note == copied:
            _take_if_free(coordinator, old, latch)
            return
    with _latched(coordinator, new, within_ms=_FOLLOWS_MS) as latch:
        if latch is not None:
            uuid = str(coordinator.load(new)[0].table_uuid)
            latch.set_handover_note(joined(note, latch.handover_note or "", uuid).to_text())
    with _latched(coordinator, old, within_ms=_FOLLOWS_MS) as latch:
        if latch is not None and latch.handover_note == note:
            _take_if_free(coordinator, old, latch)


def _take_if_free(coordinator: Coordinator, name: Identifier, latch: HandoverLease) -> None:
    """Do :func:`take_note` unless another client has given *name* to a table."""
    if coordinator.store.pointer(name) is None:
        take_note(latch)


def _latched(
    coordinator: Coordinator, table: Identifier, within_ms: int | None = None
) -> AbstractContextManager[HandoverLease | None]:
    """Take the latch that shows the note of *table*; None if no notes are kept."""
    with before_a_change():
        latch = coordinator.note_latch(table, statement="rename", within_ms=within_ms)
        return nullcontext() if latch is None else latch
