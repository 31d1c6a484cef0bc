"""Writers as processes, and fleets of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import selectors
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

_KILLED_S = 30.0
"""A process that was sent SIGKILL ends within this time, on a machine under load, too."""


class WriterProcess(ABC):
    """A process that writes."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process id."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return how it ended, when it has; None when it has not within *timeout_s*."""

    def signal(self, number: int) -> bool:
        """Send a signal; return whether there was a process to get it."""
        if self.exit_code is not None:
            return False
        with suppress(ProcessLookupError, PermissionError):
            self._send(number)
            return True
        return False

    def is_stopped(self) -> bool:
        """Return whether SIGSTOP has stopped it."""
        with suppress(OSError, IndexError):
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
        return False

    def kill(self) -> None:
        """Kill it as ``kill -9`` does, and return when it has ended: nothing is given back or cleaned up."""
        with suppress(ProcessLookupError, PermissionError):
            self._send(signal.SIGKILL)
        self.wait(_KILLED_S)

    def _send(self, number: int) -> None:
        os.kill(self.pid, number)


class ForkedWriter(WriterProcess):
    """A function in a process of its own.

    The process is forked from a server that has imported everything and opened nothing: a start costs little compared
    with the work that the process is killed in. All of a program's writers share the server, and it imports what the
    first one names.

    Args:
        target: The function; it and its arguments travel as pickles.
        arguments: Its arguments.
        imported: Modules that the server imports.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any, imported: Sequence[str] = ()) -> None:
        context = multiprocessing.get_context("forkserver")
        if imported:
            context.set_forkserver_preload(list(imported))
        self._process = context.Process(target=target, args=arguments, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return how it ended, when it has; None when it has not within *timeout_s*."""
        self._process.join(timeout_s)
        return self._process.exitcode

    def _send(self, number: int) -> None:
        if self.exit_code is None:  # else its number may be another process's by now
            super()._send(number)


class CommandWriter(WriterProcess):
    """A program.

    Args:
        command: What is run.
        own_group: In a process group of its own: signals reach everything that it started, even when it has ended
            itself, and Ctrl-C reaches the parent alone.
        streams: Its streams, folder and environment, as :class:`subprocess.Popen` takes them.
    """

    def __init__(self, command: Sequence[str], *, own_group: bool = False, **streams: Any) -> None:
        self._own_group = own_group
        self._popen: subprocess.Popen[bytes] = subprocess.Popen(command, start_new_session=own_group, **streams)

    @property
    def pid(self) -> int:
        """The process id, which is the group's too, if it has its own."""
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Return how it ended, when it has; None when it has not within *timeout_s*."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout_s)
        return None

    def _send(self, number: int) -> None:
        if self._own_group:
            os.killpg(self.pid, number)
        else:
            self._popen.send_signal(number)


class WriterFailed(RuntimeError):
    """A writer ended or did not answer in time."""


class PipeWriter(CommandWriter):
    """A program that answers each line of its input with a line of output, both JSON; it ends with its input.

    Args:
        command: What is run.
        first: The first line of its input, without waiting for the answer.
        streams: As of :class:`CommandWriter`.
    """

    def __init__(self, command: Sequence[str], first: Any, **streams: Any) -> None:
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, **streams)
        self.send(first)

    def send(self, request: Any) -> None:
        """Ask without waiting for the answer.

        Raises:
            WriterFailed: It has ended.
        """
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError as error:
            raise WriterFailed(f"a writer ended with status {self.wait()}") from error

    def receive(self, timeout_s: float) -> Any:
        """Return the answer to the oldest request that has none yet.

        Raises:
            WriterFailed: It did not come within *timeout_s*, and the writer is killed; or the writer has ended.
        """
        assert self._popen.stdout is not None
        deadline, line = time.monotonic() + timeout_s, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.kill()
                    raise WriterFailed(f"no answer within {timeout_s:.0f} s")
                part = os.read(self._popen.stdout.fileno(), 1 << 16)
                if not part:
                    raise WriterFailed(f"a writer ended with status {self.wait()}")
                line += part
        return json.loads(line)

    def ask(self, request: Any, timeout_s: float = 120.0) -> Any:
        """Return the answer to *request*."""
        self.send(request)
        return self.receive(timeout_s)

    def close(self) -> None:
        """Let it end; what does not is killed."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        if self.wait(_KILLED_S) is None:
            self.kill()
        self._popen.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


# Many.

Slot = TypeVar("Slot", bound=Hashable)
Process = TypeVar("Process", bound=WriterProcess)


class Fleet(Generic[Slot, Process]):
    """Slots with one writer each, at a time.

    Args:
        start: Starts a writer of a slot.
    """

    def __init__(self, start: Callable[[Slot], Process]) -> None:
        self._start = start
        self._processes: dict[Slot, Process] = {}

    def start(self, *slots: Slot) -> None:
        """Start a writer of each of *slots*; one that was there before has ended."""
        for slot in slots:
            assert slot not in self._processes or self._processes[slot].exit_code is not None, "one writer at a time"
            self._processes[slot] = self._start(slot)

    def __getitem__(self, slot: Slot) -> Process:
        """Return the last writer of *slot*."""
        return self._processes[slot]

    def __contains__(self, slot: object) -> bool:
        """Return whether *slot* has had a writer."""
        return slot in self._processes

    def exit_codes(self) -> Mapping[Slot, int | None]:
        """Return how the last writer of each slot ended; None where it runs."""
        return {slot: process.exit_code for slot, process in list(self._processes.items())}

    def running(self) -> Mapping[Slot, Process]:
        """Return the writers that run."""
        return {slot: process for slot, process in list(self._processes.items()) if process.exit_code is None}

    def replace(self, slot: Slot) -> None:
        """Kill the writer of *slot*, and start another one."""
        self._processes[slot].kill()
        self.start(slot)

    def stop(self, patience_s: float = 0.0, number: int | None = None) -> list[Slot]:
        """End all writers.

        Args:
            patience_s: Wait for so long for those that end by themselves; then kill.
            number: Of a signal that they are sent before.

        Returns:
            The slots whose writers had to be killed.
        """
        asked, until = self.running(), time.monotonic() + patience_s
        if number is not None:
            for process in asked.values():
                process.signal(number)
        hung = [slot for slot, process in asked.items() if process.wait(max(0.0, until - time.monotonic())) is None]
        for process in asked.values():
            process.kill()  # also what it started, where that outlived it
        return hung
