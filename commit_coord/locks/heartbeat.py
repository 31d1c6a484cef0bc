"""One background thread a lock manager, for all its leases together."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from commit_coord.locks.base import HeartbeatSender

logger = logging.getLogger(__name__)


class Heartbeat(HeartbeatSender):
    """Calls *beat* again and again in a daemon thread while there is something to do.

    The thread starts with the first :meth:`ensure_running`, ends by itself when two beats in a row had nothing to do,
    and starts again when it is needed. So a manager that nobody closed leaves no thread behind, and a latch
    that is taken a thousand times a second does not start a thousand threads.

    Fork: threads do not survive into a child, and locks may be copied locked. A child finds another pid and starts
    over with fresh ones.

    Args:
        beat: Does what is due; returns the seconds until the next beat, None when nothing is left. What it
            raises is logged, SystemExit too, and it is called again after *idle*.
        idle: Returns the seconds between beats that have nothing to do. Asked each time: the service may have agreed to
            shorter leases since.
        name: The thread's name.
        also: What else extends the leases; paused and resumed together with this.
    """

    def __init__(
        self,
        beat: Callable[[], float | None],
        *,
        idle: Callable[[], float],
        name: str,
        also: HeartbeatSender | None = None,
    ) -> None:
        self._beat = beat
        self._also = also or HeartbeatSender()
        self._idle = idle
        self._name = name
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._paused = False

    def ensure_running(self, *, now: bool = False) -> None:
        """See to it that *beat* is called within its time from now on; at once if *now*. Costs next to nothing."""
        if self._pid != os.getpid():
            self._start_over()
        # Closes the race with the end of the thread, which does the same two steps the other way round:
        # 1. The thread finds nothing to do.   2. We register something and find the thread alive.
        # 3. The thread ends, and nobody renews what we registered.
        # The second of the two sees what the other wrote first.
        self._wanted = True
        if self._thread is None:
            self._start()
        if now:
            self._wake.set()

    def stop(self) -> None:
        """End the thread and wait for a beat that is under way. The next :meth:`ensure_running` starts it again."""
        try:
            self.pause()
        finally:
            self._paused = False
            self._also.resume()

    def pause(self) -> None:
        """As :meth:`stop`, and stay ended until :meth:`resume`: to see what becomes of leases that nobody extends."""
        if self._pid != os.getpid():
            self._start_over()
        self._paused = True
        with self._lock:
            # The thread ends as soon as its event is not this one any more, even if the join below is interrupted.
            thread, wake = self._thread, self._wake
            self._thread, self._wake = None, threading.Event()
        wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._also.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        self._also.resume()
        self._paused = False
        self.ensure_running()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._paused:
                self._wake = threading.Event()
                thread = threading.Thread(target=self._run, args=(self._wake,), name=self._name, daemon=True)
                # Noted only once it runs: a Ctrl-C between the two may lead to a second thread, which renews what is
                # renewed anyway, but never to one that is believed to run and does not.
                thread.start()
                self._thread = thread

    def _run(self, wake: threading.Event) -> None:
        try:
            self._beat_while_due(wake)
        finally:
            # Whatever ended it: the next ensure_running starts another one.
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _beat_while_due(self, wake: threading.Event) -> None:
        idle_beats = 0
        while self._wake is wake:
            self._wanted = False
            try:
                delay = self._beat()
            except BaseException:
                # One beat that failed must not leave all later ones undone: neither one whose listener calls sys.exit,
                # nor one whose logger fails.
                with suppress(BaseException):
                    logger.exception("a heartbeat failed")
                delay = self._idle()
            idle_beats = 0 if delay is not None else idle_beats + 1
            if idle_beats > 1 and self._ends(wake):
                return
            wake.wait(self._idle() if delay is None else delay)
            wake.clear()

    def _ends(self, wake: threading.Event) -> bool:
        """End this thread unless it is wanted after all; see :meth:`ensure_running`."""
        with self._lock:
            if self._wake is not wake:
                return True  # It was stopped, and another one may run by now.
            self._thread = None
            if self._wanted:
                self._thread = threading.current_thread()
            return self._thread is None
