"""The journal of the ``zookeeper`` lock manager: what became of request ids, until each entry's time is over.

ZooKeeper's own time-to-live is off unless the servers were told otherwise. So each entry stands once more, below the
hour in which it expires, and whoever writes looks now and then for hours that are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from commit_coord.locks.base import Interrupted
from commit_coord.locks.zookeeper_client import Change, Create, Delete, MultiRefused, Operation, Session
from commit_coord.locks.zookeeper_layout import Layout, journal_data, parse_journal, unescape
from commit_coord.model import JournalEntry

HOUR_MS = 3_600_000


class Journal:
    """The journal of one namespace. Every method may be repeated after :class:`Interrupted`."""

    def __init__(self, session: Session, layout: Layout) -> None:
        self._session = session
        self._layout = layout

    def remember(self, entry: JournalEntry, expires_at_ms: int) -> None:
        """Keep *entry*; one of the same id is replaced."""
        path, data = self._layout.entry(entry.request_id), journal_data(entry, expires_at_ms)
        expiry = Create(self._layout.expiry(expires_at_ms // HOUR_MS, entry.request_id))
        # There already: the same id again, in another hour or in the same one.
        tries: tuple[list[Operation], ...] = (
            [Create(path, data), expiry],
            [Change(path, data), expiry],
            [Change(path, data)],
        )
        for operations in tries:
            with suppress(MultiRefused):
                self._session.multi(operations)
                return
        raise Interrupted("the entry was removed while it was being written", request_id=entry.request_id)

    def remember_all(self, entries: Sequence[JournalEntry], expires_at_ms: int) -> None:
        """Keep *entries*, in one step where none of them is there."""
        hour = expires_at_ms // HOUR_MS
        new: list[Operation] = [
            operation
            for entry in entries
            for operation in (
                Create(self._layout.entry(entry.request_id), journal_data(entry, expires_at_ms)),
                Create(self._layout.expiry(hour, entry.request_id)),
            )
        ]
        try:
            self._session.multi(new)
        except MultiRefused:
            for entry in entries:
                self.remember(entry, expires_at_ms)

    def recall(self, request_id: str, now_ms: int) -> JournalEntry | None:
        """Return the entry of *request_id* unless it has expired."""
        (node,) = self._session.get([self._layout.entry(request_id)])
        if node is None:
            return None
        entry, expires_at_ms = parse_journal(node.data)
        return entry if expires_at_ms > now_ms else None

    def forget_expired(self, now_ms: int) -> None:
        """Delete the entries whose hour is over."""
        (hours,) = self._session.children([self._layout.expiries])
        for hour in hours.names if hours is not None else ():
            if int(hour) < now_ms // HOUR_MS:
                self._forget(f"{self._layout.expiries}/{hour}", now_ms)

    def _forget(self, folder: str, now_ms: int) -> None:
        (listing,) = self._session.children([folder])
        for name in listing.names if listing is not None else ():
            path = self._layout.entry(unescape(name))
            (node,) = self._session.get([path])
            ended: list[Operation] = [Delete(f"{folder}/{name}")]
            # An entry that was written again lives on under a later hour.
            if node is not None and parse_journal(node.data)[1] <= now_ms:
                ended.append(Delete(path, node.stat.version))
            with suppress(MultiRefused):  # Another client cleans up too, or writes it again.
                self._session.multi(ended)
        self._session.delete_each([folder])
