"""The writers of one cell: what ends is replaced, until all of them are stopped."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence

from commit_coord.testing.fleet import Fleet, ForkedWriter, Outcomes, read_outcomes
from tests.proof.faults.writers import IMPORTED, Place, write

_AGAIN_S = 0.2
"""Before a process that ended is replaced."""


class Crews:
    """Processes that write, each one or several slots.

    Args:
        place: Where they work.
        crews: The slots of each process, with their kinds.
    """

    def __init__(self, place: Place, crews: Sequence[Mapping[int, str]]) -> None:
        self.place = place
        self.ended: list[int] = []
        """Exit codes of processes that ended before they should have."""
        self.hung = 0
        """Processes that had to be killed in the end."""
        self._crew_of = {slot: number for number, crew in enumerate(crews) for slot in crew}
        self._fleet = Fleet[int, ForkedWriter](
            lambda number: ForkedWriter(write, place, dict(crews[number]), os.getpid(), imported=IMPORTED)
        )
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._replace, daemon=True)

    @property
    def slots(self) -> list[int]:
        """All of them."""
        return sorted(self._crew_of)

    def start(self) -> None:
        """Start them all."""
        self._fleet.start(*sorted(set(self._crew_of.values())))
        self._watch.start()

    def _replace(self) -> None:
        while not self._over.wait(0.05):
            for number, code in self._fleet.exit_codes().items():
                if code is not None and not self._over.is_set():
                    self.ended.append(code)
                    self._over.wait(_AGAIN_S)
                    self._fleet.start(number)

    def outcomes(self) -> list[Outcomes]:
        """Return what the logs of the slots say so far."""
        return [read_outcomes(self.place.log(slot)) for slot in self.slots]

    def signal(self, slot: int, number: signal.Signals) -> bool:
        """Send a signal to the process of *slot*; return whether there was one that had come to write."""
        process = self._process(slot)
        return self.place.pid(slot) == process.pid and process.signal(number)

    def is_stopped(self, slot: int) -> bool:
        """Return whether SIGSTOP has stopped the process of *slot*."""
        return self._process(slot).is_stopped()

    def _process(self, slot: int) -> ForkedWriter:
        return self._fleet[self._crew_of[slot]]

    def stop(self, patience_s: float) -> None:
        """Let every writer finish what it does, for so long; then kill what is left."""
        self._over.set()
        self._watch.join()
        self.place.stop.touch()
        self.hung = len(self._fleet.stop(patience_s, signal.SIGCONT))
