"""Values that are read from files, and read again when the files change.

So a new certificate or a revoked token needs no restart.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value that is read from files. Thread safe.

    Args:
        paths: The files.
        make: Reads the files and returns the value; raises ValueError or OSError if they are not valid.

    Raises:
        ValueError: The files are not valid now.
        OSError: As ValueError.
    """

    def __init__(self, paths: Sequence[Path], make: Callable[[], T]) -> None:
        self._paths, self._make = paths, make
        self._lock = threading.Lock()
        self._stamp = self._stamped()  # before the files are read, so a change in between is noticed
        self._value = make()

    @property
    def value(self) -> T:
        """The value that was read last, without a look at the files: a disk or a network file system may be slow."""
        return self._value

    def get(self) -> T:
        """Return the value of the files as they are now. If they are not valid, log that and return the last value."""
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
            logger.info("read again: %s", shown)
        except (OSError, ValueError) as error:
            logger.error("the last valid content stays in use, because these files are not valid: %s: %s", shown, error)

    def _stamped(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
