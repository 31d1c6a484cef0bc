"""kazoo's own lock recipe, to be compared with ours. ``Any`` stops here."""

from __future__ import annotations

from typing import Any


class KazooLock:
    """A client of ``kazoo.recipe.lock.Lock`` on one path. Not a lock manager: exclusive, without lease or owner."""

    def __init__(self, servers: str) -> None:
        from kazoo.client import KazooClient

        client = KazooClient(hosts=servers)
        client.start()
        self._lock: Any = client.Lock("/commit-coord-bench/lock")

    def acquire(self) -> KazooLock:
        """Block until it is held."""
        self._lock.acquire()
        return self

    def release(self) -> None:
        """Give it back."""
        self._lock.release()
