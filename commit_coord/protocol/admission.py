"""Decides which requests get a thread: one object gets only so many that others find some, however long it is stuck.

A request may block for minutes, because another client holds the latch of its table, or a lock. So a request waits in a
line, without a thread, and gets one if

* a thread is free,
* for each object that it changes, fewer requests run than threads are free, and
* no request before it in the line waits for one of these objects.

So the first object that is stuck gets half of the threads, the second one half of the rest, and so on. Where several
objects are busy, each gets as many threads as stay free. The requests for one object start in the order in which they
came. A request for several objects waits for all of them at once, and has none while it waits for another one: two
such requests cannot wait for each other.

This module knows no threads: the caller starts what :meth:`Admission.start` returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Name = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Place:
    """The place of one request.

    Args:
        objects: What it changes; a request that changes nothing waits only until a thread is free.
        runs: Whether it has a thread.
    """

    objects: frozenset[Name]
    runs: bool = False


class Admission:
    """The line of the requests for some threads.

    Args:
        threads: How many there are.
    """

    def __init__(self, threads: int) -> None:
        assert threads > 0, "without a thread nobody would ever run"
        self._threads = self._free = threads
        self._line: dict[Place, None] = {}
        """The places that wait, in their order."""
        self._running: Counter[Name] = Counter()

    def enter(self, objects: Iterable[Name]) -> Place:
        """Return the place of a request that arrives: at the end of the line."""
        place = Place(frozenset(objects))
        self._line[place] = None
        return place

    def start(self) -> Sequence[Place]:
        """Give threads to the places that may have one now, and return them in their order."""
        started: list[Place] = []
        behind: set[Name] = set()
        for place in tuple(self._line):
            if not self._free:
                break
            if behind.isdisjoint(place.objects) and all(self._running[name] < self._free for name in place.objects):
                del self._line[place]
                place.runs = True
                self._free -= 1
                self._running.update(place.objects)
                started.append(place)
                assert all(2 * self._running[name] <= self._threads + 1 for name in place.objects), (
                    "one object has at most half of the threads, rounded up"
                )
            else:
                behind |= place.objects
        return started

    def leave(self, place: Place) -> None:
        """Note that the request is over, or waits no longer."""
        if place.runs:
            assert self._free < self._threads, "each running request has a thread"
            assert all(self._running[name] > 0 for name in place.objects), "each running request is counted"
            place.runs = False
            self._free += 1
            for name in place.objects:
                self._running[name] -= 1
                if not self._running[name]:
                    del self._running[name]
        else:
            self._line.pop(place, None)
