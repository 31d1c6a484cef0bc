"""What the library logs while a command runs: one line on stderr for each warning, and no traceback."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from commit_coord.redaction import printable, without_passwords


def one_line(text: str) -> str:
    """Return *text* in one line, without passwords and without the numbers of the operating system's errors."""
    line = re.sub(r"\s*\n\s*", "; ", text.strip())
    return without_passwords(re.sub(r"\[errno -?\d+\] ?", "", line, flags=re.IGNORECASE))


class _OneLine(logging.Formatter):
    """The message, and the message of the error that it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*."""
        error = record.exc_info[1] if record.exc_info else None
        return printable(one_line(record.getMessage() + (f": {error}" if error is not None else "")))


class _Whole(logging.Formatter):
    """The message in one line, and behind it the traceback, whose lines are indented: no name in it begins a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in the base class
        """Return the line of *record*."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name in the base class
        """Return the traceback."""
        return "\n".join(f"  {printable(line)}" for line in super().formatException(ei).splitlines())


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: while a screen is drawn again and again, that is another stream."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of *record*."""
        self.stream = sys.stderr
        super().emit(record)


@contextmanager
def warnings_with_tracebacks() -> Iterator[None]:
    """Print warnings with their tracebacks, unless the program that runs the command has set up its own logging."""
    handler = logging.lastResort
    if handler is None:
        yield
        return
    before = handler.formatter
    handler.setFormatter(_Whole())
    try:
        yield
    finally:
        handler.setFormatter(before)


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print warnings in one line each, unless the program that runs the command has set up its own logging."""
    root = logging.getLogger()
    if root.handlers:
        yield
        return
    handler = _ToStderr()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
