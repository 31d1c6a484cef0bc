"""The exit codes of every command, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of every command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    FAILED = 3
    UNKNOWN = 4
    MISSING = 5
    BUG = 70
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "Success.",
    ExitCode.REFUSED: "Refused or not found: no such table, lock or request id; not confirmed; a proof does not hold; "
    "lost commits have to be made again; "
    "no servers are up, or they are up already.",
    ExitCode.USAGE: "The command line, a statement or the configuration is wrong, or the catalog's file no database.",
    ExitCode.FAILED: "A lock was not granted, a commit was refused, a file could not be deleted, the output of a "
    "script was closed before its end, a writer of the demo failed, a server did not start, or a service can't be "
    "reached or does not answer: a lock service, a metastore, the server of a database.",
    ExitCode.UNKNOWN: "Whether a commit landed is not known. Ask `commit-coord commits TABLE --request-id ID` later; "
    "repeat a `migrate`.",
    ExitCode.MISSING: "Something that the command needs is not installed (Java, an extra). The message says what.",
    ExitCode.BUG: "An unexpected error. Please report it with what `--debug` shows.",
    ExitCode.INTERRUPTED: "Interrupted by Ctrl-C, SIGTERM or SIGHUP. No process was left running.",
}
"""A line for each code, as the document prints it."""


class EndedBySignal(KeyboardInterrupt):
    """SIGTERM or SIGHUP came: the command ends, and so does a shell."""


class CommandFailed(Exception):
    """A command ends with an exit code and a line.

    Args:
        message: What happened and what to do.
        code: How to end.
        kind: A stable word for scripts.
    """

    def __init__(self, message: str, code: ExitCode, kind: str) -> None:
        super().__init__(message)
        self.code = code
        self.kind = kind


@contextmanager
def until_ctrl_c() -> Iterator[None]:
    """Do what is in the block until Ctrl-C, which is how a watch ends. Another signal ends the command."""
    try:
        yield
    except EndedBySignal:
        raise
    except KeyboardInterrupt:
        return
