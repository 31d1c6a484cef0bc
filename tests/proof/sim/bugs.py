"""Errors that come from a bug, of the product or of what replaces a part of it. Each of them breaks a run.

Without this, a bug may hide what the runs are for:

1. Every request of one kind ends in an AttributeError.   2. The server answers 500, which says that the outcome is not
known. So each outcome is right.   3. No promise is broken, whatever else is wrong, because nothing is done any more.
"""

from __future__ import annotations

import logging

_BUGS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError)
"""No simulated service raises one of these, and the product raises none of them on purpose during a commit."""


def bug_in(error: BaseException | None) -> str | None:
    """Return how *error* breaks a run because it comes from a bug; None if it does not."""
    cause = error
    while cause is not None and not isinstance(cause, _BUGS):
        cause = cause.__cause__
    return None if cause is None else f"NoBugs: {error!r} comes from {cause!r}"


class LoggedBugs(logging.Handler):
    """Finds bugs in the log: the product logs each error that it does not raise, and each unexpected one.

    Args:
        broken: Where it adds how the run is broken.
    """

    def __init__(self, broken: list[str]) -> None:
        super().__init__()
        self._broken = broken

    def emit(self, record: logging.LogRecord) -> None:
        """See :meth:`logging.Handler.emit`."""
        if record.exc_info and (bug := bug_in(record.exc_info[1])) is not None:
            self._broken.append(f"{bug}, logged: {record.getMessage()}")
