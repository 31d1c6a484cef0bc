"""The writers' processes of one cell: started, watched, replaced, stopped."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.proof.faults.writers import IMPORTED, Log, Place, read_log, write

_AGAIN_S = 0.2
"""Before a process that ended is replaced."""


class Fleet:
    """Processes that write, each one or several slots; what ends is replaced until :meth:`stop`.

    Args:
        place: Where they work.
        crews: The slots of each process, with their kinds.
    """

    def __init__(self, place: Place, crews: Sequence[Mapping[int, str]]) -> None:
        self.place = place
        self.crews = crews
        self.ended: list[int] = []
        """Exit codes of processes that ended before they should have."""
        self.hung = 0
        """Processes that had to be killed in the end."""
        self._processes: dict[int, ForkServerProcess] = {}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._replace, daemon=True)

    @property
    def slots(self) -> list[int]:
        """All of them."""
        return sorted(slot for crew in self.crews for slot in crew)

    def start(self) -> None:
        """Start them all."""
        for number in range(len(self.crews)):
            self._start(number)
        self._watch.start()

    def _start(self, number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        process = context.Process(target=write, args=(self.place, dict(self.crews[number]), os.getpid()), daemon=True)
        process.start()
        self._processes[number] = process

    def _replace(self) -> None:
        while not self._over.wait(0.05):
            for number, process in list(self._processes.items()):
                code = process.exitcode
                if code is not None and not self._over.is_set():
                    self.ended.append(code)
                    time.sleep(_AGAIN_S)
                    self._start(number)

    def logs(self) -> list[Log]:
        """What the slots wrote down so far."""
        return [read_log(self.place.log(slot)) for slot in self.slots]

    def signal(self, slot: int, number: signal.Signals) -> bool:
        """Send a signal to the process of *slot*; return whether there was one."""
        pid = self.place.pid(slot)
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)
                return True
        return False

    def is_stopped(self, slot: int) -> bool:
        """Whether the process of *slot* stands still."""
        pid = self.place.pid(slot)
        with suppress(OSError, IndexError):
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        return False

    def stop(self, patience_s: float) -> None:
        """Let every writer finish what it does, for so long; then kill what is left."""
        self._over.set()
        self._watch.join()
        self.place.stop.touch()
        until = time.monotonic() + patience_s
        for slot in self.slots:
            self.signal(slot, signal.SIGCONT)
        for process in self._processes.values():
            process.join(max(0.1, until - time.monotonic()))
        for process in self._processes.values():
            if process.exitcode is None:
                self.hung += 1
                process.kill()
                process.join()
