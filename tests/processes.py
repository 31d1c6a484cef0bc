"""Processes of their own that work with a catalog, for tests that watch, interrupt and kill them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Self

from commit_coord.testing.contract import PATIENCE
from commit_coord.testing.fleet import holds_within

_PREAMBLE = """
import json, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background ignore it
import commit_coord
from commit_coord.model import LockMode, Resource
from commit_coord.testing.fleet import holds_within
properties = json.loads(sys.argv[1])
S, X = LockMode.SHARED, LockMode.EXCLUSIVE
def opened():
    return commit_coord.load_catalog("shop", **properties)
def say(word):
    os.write(1, f"{word}\\n".encode())  # in one piece: print would mix the words of two threads
def locked(mode, *path, catalog=None, statement=""):
    return (catalog or main).lock_operation({Resource(path): mode}, statement=statement)
def hang():
    threading.Event().wait(600)
main = opened()
say("up")
"""


def until(condition: Callable[[], Any], what: str, *, seconds: float = PATIENCE) -> None:
    """Return as soon as *condition* holds."""
    assert holds_within(condition, seconds, every_s=0.01), f"{what} did not come true"


async def until_async(condition: Callable[[], Any], what: str) -> None:
    """Return as soon as *condition* holds; the event loop goes on meanwhile."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, f"{what} did not come true"
        await asyncio.sleep(0.01)


class Process:
    """A fresh interpreter with a catalog open; it is killed in the end.

    Args:
        properties: Of the catalog ``shop``.
        code: Run with ``main``, that catalog; ``opened()``, another client of it; ``locked(mode, *path)``, which takes
            operation locks; ``hang()``; and ``say(word)``, which :meth:`heard` waits for.
    """

    def __init__(self, properties: Mapping[str, str], code: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", _PREAMBLE + code, json.dumps(dict(properties))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self.popen.pid
        self.stderr = ""
        self._printed: Queue[str] = Queue()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._listen, self._keep_errors)]
        for reader in self._readers:
            reader.start()

    def heard(self, word: str) -> Self:
        """Return once the process has said *word*."""
        give_up, heard = time.monotonic() + PATIENCE, list[str]()
        while True:
            try:
                heard.append(self._printed.get(timeout=max(0.01, give_up - time.monotonic())))
            except Empty:
                heard.append("nothing")
            if heard[-1] == word:
                return self
            assert heard[-1] not in ("nothing", "the end"), f"waiting for {word!r}, heard {heard}: {self.stderr}"

    def signal(self, number: int) -> Self:
        """Send a signal."""
        os.kill(self.pid, number)
        return self

    def ended(self) -> int:
        """Return the exit code, once there is one."""
        code = self.popen.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return code

    def __enter__(self) -> Self:
        """Return the process itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Kill it."""
        self.popen.kill()
        self.ended()
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._printed.put(line.strip())
        self._printed.put("the end")

    def _keep_errors(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.stderr += line
