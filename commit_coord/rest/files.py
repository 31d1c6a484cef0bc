"""What is read from files, and read anew when they change: no restart for a new certificate or a revoked token."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value that is made of files. Thread safe.

    Args:
        paths: The files.
        make: Reads them; ValueError and OSError mean that they make no sense.

    Raises:
        ValueError: They make no sense now.
        OSError: Likewise.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], T]) -> None:
        self._paths, self._make = paths, make
        self._lock = threading.Lock()
        self._stamp = self._stamped()  # before it is read: what changes meanwhile is read again
        self._value = make()

    def get(self) -> T:
        """Return the value of the files as they are; what makes no sense is logged, and the last good one is kept."""
        stamp = self._stamped()
        if stamp != self._stamp:
            with self._lock:
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._reload()
        return self._value

    def _reload(self) -> None:
        shown = ", ".join(map(str, self._paths))
        try:
            self._value = self._make()
            logger.info("read anew: %s", shown)
        except (OSError, ValueError) as error:
            logger.error("what was read before stays in use, because these make no sense: %s: %s", shown, error)

    def _stamped(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
