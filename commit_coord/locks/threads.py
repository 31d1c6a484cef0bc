"""Waiting, heartbeats and thread-local data of a process's threads; the simulator replaces them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from commit_coord.locks.base import HeartbeatSender
from commit_coord.locks.heartbeat import Heartbeat

_THREADS: dict[int, threading.local] = {}
"""Process id → what each thread holds through any client. A forked child inherits this, and holds none of it."""


class Turn(Protocol):
    """As :class:`threading.Event`."""

    def is_set(self) -> bool:
        """Return whether it was given."""
        ...

    def set(self) -> None:
        """Give it, and wake those that wait."""
        ...

    def clear(self) -> None:
        """Take it back."""
        ...

    def wait(self, timeout: float) -> bool:
        """Return whether it is given, after *timeout* seconds at the latest."""
        ...


class HeartbeatMaker(Protocol):
    """Makes the heartbeat of one client; as :class:`Heartbeat`."""

    def __call__(
        self,
        beat: Callable[[], float | None],
        *,
        idle: Callable[[], float],
        name: str,
        also: HeartbeatSender | None = None,
    ) -> Heartbeat:
        """Return it; it does not run yet."""
        ...


def _of_this_process() -> Any:
    return _THREADS.setdefault(os.getpid(), threading.local())


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The thread functions that a lock manager uses.

    Args:
        turn: Makes a :class:`Turn`: one thread waits for it, and another one gives it.
        heartbeat: Makes a heartbeat.
        noted: Makes an object with thread-local attributes.
        noted_anywhere: Returns the object with thread-local attributes that all clients of this process share.
    """

    turn: Callable[[], Turn] = threading.Event
    heartbeat: HeartbeatMaker = Heartbeat
    noted: Callable[[], Any] = threading.local
    noted_anywhere: Callable[[], Any] = _of_this_process


THREADS = Threads()
"""The threads of the interpreter."""
