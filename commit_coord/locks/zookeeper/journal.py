"""The journal of the ``zookeeper`` lock manager: the landed commits by request id, until each entry expires.

ZooKeeper's own time-to-live is off unless the servers are configured otherwise. So for each entry there is a second
node, without data, below the span of time in which the entry expires. Clients look regularly for spans that have ended,
and delete their entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from commit_coord.clock import Clock
from commit_coord.locks.base import Interrupted
from commit_coord.locks.keeping import Retries
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.locks.zookeeper.layout import NodeLayout, journal_data, parse_journal, unescape
from commit_coord.locks.zookeeper.nodes import ChangeNode, CreateNode, DeleteNode, MultiRefused, NodeOperation
from commit_coord.model import JournalEntry

SPAN_MS = 300_000
"""Length of a span. Entries that expire within the same span are listed together."""

_TOGETHER = 50
"""Entries that one multi deletes."""


class ZooKeeperJournal:
    """The journal of one namespace. Every method may be repeated after :class:`Interrupted`."""

    def __init__(self, session: ZooKeeperSession, layout: NodeLayout) -> None:
        self._session = session
        self._layout = layout

    def remember(self, entry: JournalEntry, expires_at_ms: int) -> None:
        """Store *entry*; it replaces an entry with the same id."""
        path, data = self._layout.entry(entry.key), journal_data(entry, expires_at_ms)
        expiry = CreateNode(self._layout.expiry(expires_at_ms // SPAN_MS, entry.key))
        # The second and third try are for an existing entry with the same id, in another span or in the same one.
        tries: tuple[list[NodeOperation], ...] = (
            [CreateNode(path, data), expiry],
            [ChangeNode(path, data), expiry],
            [ChangeNode(path, data)],
        )
        for operations in tries:
            with suppress(MultiRefused):
                self._session.multi(operations)
                return
        raise Interrupted("another client removed the journal entry during its write", request_id=entry.key)

    def remembering(self, entries: Sequence[JournalEntry], expires_at_ms: int) -> list[NodeOperation]:
        """Return the operations that store *entries*; none of them may exist yet."""
        span = expires_at_ms // SPAN_MS
        return [
            operation
            for entry in entries
            for operation in (
                CreateNode(self._layout.entry(entry.key), journal_data(entry, expires_at_ms)),
                CreateNode(self._layout.expiry(span, entry.key)),
            )
        ]

    def recall(self, key: str, now_ms: int) -> JournalEntry | None:
        """Return the entry of *key* unless it has expired."""
        (node,) = self._session.get([self._layout.entry(key)])
        if node is None:
            return None
        entry, expires_at_ms = parse_journal(node.data)
        return entry if expires_at_ms > now_ms else None

    def forget_expired(self, now_ms: int, at_most: int) -> bool:
        """Delete up to *at_most* entries whose span is over; return whether there are more."""
        (spans,) = self._session.children([self._layout.expiries])
        over = [name for name in (spans.names if spans is not None else ()) if int(name) < now_ms // SPAN_MS]
        for span in sorted(over, key=int):
            folder = f"{self._layout.expiries}/{span}"
            (listing,) = self._session.children([folder])
            names = listing.names if listing is not None else ()
            for first in range(0, min(len(names), at_most), _TOGETHER):
                self._forget(folder, names[first : min(first + _TOGETHER, at_most)], now_ms)
            at_most -= len(names)
            if at_most < 0:
                return True
            self._session.delete_each([folder])
        return False

    def _forget(self, folder: str, names: Sequence[str], now_ms: int) -> None:
        paths = [self._layout.entry(unescape(name)) for name in names]
        deletes: list[list[NodeOperation]] = []
        for name, path, node in zip(names, paths, self._session.get(paths), strict=True):
            deletes.append([DeleteNode(f"{folder}/{name}")])
            # An entry that was written again has a later end time and stays.
            if node is not None and parse_journal(node.data)[1] <= now_ms:
                deletes[-1].append(DeleteNode(path, node.stat.version))
        try:
            self._session.multi([operation for each in deletes for operation in each])
        except MultiRefused:  # Another client deletes entries too, or writes one of them again.
            for each in deletes:
                with suppress(MultiRefused):
                    self._session.multi(each)


class ClientJournal:
    """The journal, as one client uses it.

    Args:
        entries: The journal.
        retries: Repeats interrupted calls.
        clock: The clock.
    """

    def __init__(self, entries: ZooKeeperJournal, retries: Retries, clock: Clock) -> None:
        self.entries = entries
        self.was_written = False
        """Whether this client has written entries; if so, it deletes expired entries when it closes."""
        self._retries = retries
        self._clock = clock

    def remember(self, entry: JournalEntry, *, lifetime_ms: int) -> None:
        """See :meth:`HandoverLockManager.remember`."""
        expires_at_ms = self._clock.wall_ms() + lifetime_ms
        self._retries.briefly(lambda: self.entries.remember(entry, expires_at_ms))
        self.was_written = True

    def recall(self, key: str) -> JournalEntry | None:
        """See :meth:`HandoverLockManager.recall`."""
        now_ms = self._clock.wall_ms()
        return self._retries.briefly(lambda: self.entries.recall(key, now_ms))
