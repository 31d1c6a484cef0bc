"""Writers that know nothing of us, and who tidies up after them.

PyIceberg's own ``HiveCatalog`` takes the metastore's lock without its name, and no server frees it by itself: a process
that dies with it stops everybody who takes that lock. An administrator has to free it. Here each process says its pid
as its user, and :class:`Tidier` is the administrator.
"""

from __future__ import annotations

import getpass
import math
import os
import time
from collections.abc import Collection
from contextlib import suppress

from pyiceberg.catalog.hive import HiveCatalog

from commit_coord.errors import CommitCoordError
from commit_coord.hms.client import MetastoreClient
from commit_coord.testing.fleet import holds_within

_USER = "plain-writer-"

_GRACE = 2.0
"""Seconds from the first sight of a dead writer's lock until it is freed: what it sent last is carried out without a
condition, and must have been by then."""

_EVERY = 0.5
"""Seconds between two looks."""


def open_plain(uri: str, **waits: str) -> HiveCatalog:
    """Return PyIceberg's own catalog; from now on this process is known to the metastore by its pid."""
    os.environ["LOGNAME"] = f"{_USER}{os.getpid()}"
    assert getpass.getuser() == os.environ["LOGNAME"]
    brief = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.1", "lock-check-retries": "20"}
    return HiveCatalog("plain", uri=uri, **{**brief, **waits})


class Tidier:
    """Frees what plain writers held, or waited for, that have ended.

    Args:
        uri: The metastore.
    """

    def __init__(self, uri: str) -> None:
        self._metastore = MetastoreClient.of(uri)
        self._seen: dict[int, float] = {}
        self._next = 0.0

    def tidy(self, alive: Collection[int | None]) -> None:
        """Look, if it is time to; *alive* are the pids of those that have not ended."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        living = {f"{_USER}{pid}" for pid in alive}
        with suppress(CommitCoordError):  # The metastore is away: the next look finds them.
            for listed in self._metastore.show_locks():
                is_dead = listed.user.startswith(_USER) and listed.user not in living
                if is_dead and now - self._seen.setdefault(listed.lock_id, now) >= _GRACE:
                    self._metastore.unlock(listed.lock_id)

    def close(self) -> None:
        """Free the rest: none of them lives any more."""

        def nothing_is_left() -> bool:
            self._next = 0.0
            self.tidy(())
            return not any(listed.user.startswith(_USER) for listed in self._metastore.show_locks())

        holds_within(nothing_is_left, math.inf, every_s=_EVERY)
        self._metastore.close()
