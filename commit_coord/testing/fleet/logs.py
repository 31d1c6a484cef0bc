"""Logs that survive their writers, and what they say of the operations on a table."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self


class SyncedLog:
    """A file of lines. Thread safe.

    Guarantee: when :meth:`line` returns, the line is on disk.

    Args:
        path: The file; it may have lines of an earlier writer that was killed.
    """

    def __init__(self, path: Path) -> None:
        self._mutex = threading.Lock()
        self._file = path.open("a", encoding="utf-8")
        if self._file.tell():
            self.line()  # ends a line that a kill cut off

    def line(self, *words: object) -> None:
        """Write a line of *words*."""
        with self._mutex:
            self._file.write(" ".join(map(str, words)) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a log that were written to the end; none where there is no log.

    A last line that a kill cut off says nothing: it was not on disk when its writer went on.
    """
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").split("\n")[:-1] if line]


# Operations.


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """An operation was acknowledged.

    Args:
        snapshot_id: Its snapshot; None where the operation had nothing to do.
        at: When, on the monotonic clock.
    """

    snapshot_id: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a log says of operations, by their marks.

    Args:
        tried: All, in their order.
        acknowledged: These were.
        refused: Refused for certain, with the name of the error.
        unknown: Nobody can tell, with the name of the error.
        failed_starts: Names of the errors of writers that did not come to write.
    """

    tried: list[str] = field(default_factory=list)
    acknowledged: dict[str, Acknowledgement] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    failed_starts: list[str] = field(default_factory=list)


class OutcomeLog(SyncedLog):
    """Each try of a writer, written before it, and its outcome, written after it."""

    def tries(self, mark: str) -> None:
        """Note that the operation of *mark* begins."""
        self.line("try", mark)

    def acknowledged(self, mark: str, snapshot_id: int | None) -> None:
        """Note that it was acknowledged now."""
        self.line("ack", mark, "none" if snapshot_id is None else snapshot_id, time.monotonic())

    def refused(self, mark: str, error: Exception) -> None:
        """Note that it was refused for certain."""
        self.line("refused", mark, type(error).__name__)

    def unknown(self, mark: str, error: Exception) -> None:
        """Note that the outcome is unknown."""
        self.line("unknown", mark, type(error).__name__)

    def failed_start(self, error: Exception) -> None:
        """Note that the writer did not come to write."""
        self.line("start", type(error).__name__)


def read_outcomes(path: Path) -> Outcomes:
    """Return what the log at *path* says."""
    found = Outcomes()
    for line in whole_lines(path):
        match line.split():
            case ["try", mark]:
                found.tried.append(mark)
            case ["ack", mark, snapshot_id, at]:
                found.acknowledged[mark] = Acknowledgement(
                    None if snapshot_id == "none" else int(snapshot_id), float(at)
                )
            case ["refused", mark, error]:
                found.refused[mark] = error
            case ["unknown", mark, error]:
                found.unknown[mark] = error
            case ["start", error]:
                found.failed_starts.append(error)
    return found
