"""Writers in processes of their own: started, given work, watched, stopped and killed, and what they wrote down.

Theory of operation
    A *writer* is a process that works on a table. It is a function in a process that is forked from a warm server
    (:class:`ForkedWriter`), a program in a process group of its own (:class:`CommandWriter`), or a program that answers
    each line of its input with a line (:class:`PipeWriter`). A *slot* has one writer at a time; a :class:`Fleet` starts
    the writers of its slots, replaces those that ended or were killed, and ends all of them.

    A writer that may be killed notes what it does in a log that survives it: :class:`SyncedLog` has each line on disk
    before the writer goes on, and :func:`whole_lines` reads back what was written to the end. :class:`OutcomeLog` has
    lines for each try of a writer and its outcome, so the log says what must be in the table.

The package uses the standard library alone: what is measured or killed does not pay for its imports.
"""

from __future__ import annotations

from commit_coord.testing.fleet.logs import (
    Acknowledgement,
    OutcomeLog,
    Outcomes,
    SyncedLog,
    read_outcomes,
    whole_lines,
)
from commit_coord.testing.fleet.processes import (
    CommandWriter,
    Fleet,
    ForkedWriter,
    PipeWriter,
    WriterFailed,
    WriterProcess,
)
from commit_coord.testing.fleet.waiting import holds_within

__all__ = [
    "Acknowledgement",
    "CommandWriter",
    "Fleet",
    "ForkedWriter",
    "OutcomeLog",
    "Outcomes",
    "PipeWriter",
    "SyncedLog",
    "WriterFailed",
    "WriterProcess",
    "holds_within",
    "read_outcomes",
    "whole_lines",
]
