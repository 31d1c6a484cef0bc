"""Plans for the data source and holds its operation locks, in the process of the driver.

Spark runs ``writer()``, ``commit()`` and ``abort()`` of a Python data source in worker processes that live for
one call each, so none of them can hold a lease for the length of the job. The driver's own process can:
``register`` starts a listener there, on a Unix socket in a private folder and with a secret key, and hands
address and key to the workers inside the pickled data source class. The steps of a plan are done there, too: a worker
would first import for seconds what the driver has.

A lease is held by one thread of the driver from grant to release (lock managers know holders by thread), and ends
when ``commit()`` or ``abort()`` says so, when the worker that asked for it is gone before the answer, when the Spark
context has stopped, or when the driver ends: then at its exit, or, after SIGKILL, by expiry like any lease.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import commit_coord
from commit_coord.errors import CommitCoordError, LockError
from commit_coord.model import LockMode, Resource

logger = logging.getLogger(__name__)

_LOOK_S = 5.0
_EXIT_S = 5.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Address:
    """Where the holder of a driver listens. Pickles into the workers.

    Args:
        path: The Unix socket.
        key: Shared secret.
    """

    path: str
    key: bytes = field(repr=False)

    def acquire(
        self,
        claim: str,
        catalog: str | None,
        properties: Mapping[str, str],
        locks: Mapping[Resource, LockMode],
        why: str,
    ) -> None:
        """Return once the driver holds *locks* under the name *claim*; at once when it holds that claim already.

        Raises:
            CommitLockFailed: The lock service could not be reached; nothing was changed.
            LockError: As the lock manager raised it, or the driver could not be reached.
        """
        pairs = [(str(resource), mode.value) for resource, mode in locks.items()]
        self._ask(("acquire", claim, catalog, dict(properties), pairs, why))

    def release(self, claim: str) -> None:
        """Give the locks of *claim* back; nothing happens when there are none. Never raises."""
        try:
            self._ask(("release", claim))
        except LockError:
            logger.warning("the locks of %s were not given back, they end with the driver", claim, exc_info=True)

    def plan(self, step: str, options: Mapping[str, str], settings: Mapping[str, str], *arguments: Any) -> Any:
        """Return what the driver plans for one *step* of a job.

        Raises:
            Exception: As the step raised it in the driver.
            LockError: The driver could not be reached.
        """
        return self._ask(("plan", step, dict(options), dict(settings), arguments))

    def _ask(self, question: tuple[Any, ...]) -> Any:
        try:
            with Client(self.path, "AF_UNIX", authkey=self.key) as connection:
                connection.send(question)
                answer = connection.recv()
        except (OSError, EOFError) as error:
            raise LockError(
                "the Spark driver, which plans and holds the operation locks, does not answer", question=question[0]
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """What was planned.

    Args:
        value: For the worker.
        undo: Called if the worker is gone: nobody will ever end what was begun for it.
    """

    value: Any
    undo: Callable[[], None] = lambda: None


PlanFunction = Callable[["Address", str, Mapping[str, str], Mapping[str, str], tuple[Any, ...]], PlanAnswer]
"""Does one step of a plan: with the address of the driver, the step, the options, Spark's settings, and arguments."""


class DriverService:
    """The listener in the driver, and the leases that it holds.

    Args:
        stopped: Says whether the Spark context has ended.
        planner: Does the steps of plans.
    """

    def __init__(self, stopped: Callable[[], bool], planner: PlanFunction) -> None:
        self._stopped = stopped
        self._planner = planner
        self._folder = tempfile.mkdtemp(prefix="commit-coord-")
        self.address = Address(str(Path(self._folder) / "locks"), os.urandom(32))
        self._listener = Listener(self.address.path, "AF_UNIX", authkey=self.address.key)
        self._claims: dict[str, _Claim] = {}
        self._guard = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="commit-coord-holder", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        """Whether the Spark context that it serves still runs."""
        return not self._stopped()

    def close(self) -> None:
        """Release every lease and stop listening; no thread, socket or folder is left. May be called again."""
        atexit.unregister(self.close)
        with self._guard:
            claims = list(self._claims.values())
        for claim in claims:
            claim.end.set()
        for claim in claims:
            claim.thread.join(_EXIT_S)
        self._closing.set()
        with suppress(OSError), socket.socket(socket.AF_UNIX) as waker:
            waker.connect(self.address.path)  # a thread in accept() does not notice that its socket is closed
        self._thread.join(_EXIT_S)
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> None:
        reported = ""
        while True:
            try:
                connection = self._listener.accept()
            except Exception as error:
                if self._closing.wait(_PAUSE_S):
                    return
                if reported != (reported := f"{type(error).__name__}: {error}"):  # a lasting error is reported once
                    logger.warning("the lock holder could not accept a connection: %s", reported, exc_info=True)
                continue
            reported = ""
            threading.Thread(target=self._answer, args=(connection,), name="commit-coord-claim", daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection:
            try:
                question = connection.recv()
            except (OSError, EOFError):
                return  # the worker is gone
            match question:
                case ("release", claim):
                    self._release(claim)
                    _tell(connection, None)
                case ("acquire", claim, catalog, properties, pairs, why):
                    self._hold(connection, claim, catalog, properties, pairs, why)
                case ("plan", step, options, settings, arguments):
                    self._plan(connection, step, options, settings, arguments)

    def _plan(
        self,
        connection: Connection,
        step: str,
        options: Mapping[str, str],
        settings: Mapping[str, str],
        arguments: tuple[Any, ...],
    ) -> None:
        try:
            answer = self._planner(self.address, step, options, settings, arguments)
        except Exception as error:
            logger.info("the step %r of a plan failed", step, exc_info=True)
            _tell(connection, _portable(error))
            return
        if not _tell(connection, answer.value):
            answer.undo()

    def _release(self, name: str) -> None:
        with self._guard:
            claim = self._claims.get(name)
        if claim is not None:
            claim.end.set()
            claim.thread.join(_EXIT_S)

    def _hold(
        self,
        connection: Connection,
        name: str,
        catalog: str | None,
        properties: Mapping[str, str],
        pairs: list[tuple[str, str]],
        why: str,
    ) -> None:
        """Take the lease in this thread and keep it until the claim ends."""
        mine = _Claim(threading.current_thread())
        with self._guard:
            other = self._claims.setdefault(name, mine)
        if other is not mine:
            other.granted.wait()
            _tell(connection, other.error)
            return
        try:
            locks = {Resource.parse(path): LockMode(mode) for path, mode in pairs}
            opened = commit_coord.load_catalog(catalog, **properties)
            try:
                with opened.lock_change(locks, statement=why):
                    mine.granted.set()
                    heard = _tell(connection, None)
                    while heard and not mine.end.wait(_LOOK_S) and not self._stopped():
                        pass
            finally:
                opened.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the worker has to hear of it
            mine.error = error if isinstance(error, CommitCoordError) else LockError(f"no lock: {error}")
            _tell(connection, mine.error)
        finally:
            with self._guard:
                self._claims.pop(name, None)
            mine.granted.set()


def _portable(error: Exception) -> Exception:
    """Return *error*, or its text where it can't be pickled."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled here # nosec B301
    except Exception:  # noqa: BLE001 - a pickle may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _tell(connection: Connection, answer: Any) -> bool:
    """Answer a worker; return False when it is gone: then nobody would ever release what it was granted."""
    try:
        connection.send(answer)
    except OSError:
        logger.info("a worker that asked for operation locks is gone")
        return False
    return True


@dataclass(slots=True)
class _Claim:
    thread: threading.Thread
    granted: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)
    error: CommitCoordError | None = None
