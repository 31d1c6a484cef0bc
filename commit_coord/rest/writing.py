"""A thread that writes lines to a place that may be slow, so that no request waits for a disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundWriter(Generic[T]):
    """Writes items in the order in which they are put; never blocks who puts them. Thread safe.

    Args:
        name: Of the thread.
        write: Writes one item; may block, for ever if the place never answers.
        most: How many items may wait. The others are counted, and dropped.
        dropped: Called in the thread, once a second at most, with the number of items dropped since its last call.
    """

    _TELL_EVERY_S = 1.0

    def __init__(self, name: str, write: Callable[[T], None], most: int, dropped: Callable[[int], None]) -> None:
        self._name, self._write, self._most, self._dropped = name, write, most, dropped
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._lost = 0
        self._is_writing = self._is_started = False

    def put(self, item: T) -> None:
        """Have *item* written, or dropped if too many wait."""
        with self._changed:
            if not self._is_started:
                self._is_started = True
                # A daemon: nobody waits at the end for a place that never answers.
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            if len(self._items) >= self._most:
                self._lost += 1
            else:
                self._items.append(item)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Return True once everything is written that was put so far, False after *timeout_s* seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._items or self._lost or self._is_writing), timeout_s)

    def _run(self) -> None:
        logged_at = float("-inf")
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._items or self._lost)
                self._is_writing = True
                lost = 0
                # While many are dropped, a line for each time would be as many as they.
                if self._lost and (not self._items or time.monotonic() - logged_at > self._TELL_EVERY_S):
                    lost, self._lost = self._lost, 0
                    logged_at = time.monotonic()
                item = self._items.popleft() if self._items else None
            try:
                if item is not None:
                    self._write(item)
                if lost:
                    self._dropped(lost)
            except Exception:
                logger.exception("%s failed", self._name)
