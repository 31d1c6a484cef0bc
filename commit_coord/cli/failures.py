"""What every error means to the shell: one line for the reader, one exit code for the script."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchIdentifierError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from sqlalchemy.exc import SQLAlchemyError

from commit_coord.cli.exit_codes import ExitCode
from commit_coord.errors import (
    CommitCoordError,
    CommitError,
    CommitStateUnknown,
    ConfigError,
    ErrorKind,
    InvalidArguments,
    LockError,
    MetastoreUnavailable,
    StatementError,
)
from commit_coord.extras import install_module
from commit_coord.local import NotInstalled, ServerFailed
from commit_coord.redaction import without_passwords

_ADVICE: dict[ErrorKind, str] = {
    ErrorKind.LOCK_TIMEOUT: "`commit-coord locks` shows who holds it",
    ErrorKind.LOCK_SERVICE_UNAVAILABLE: "check lock.uri, and that the service is up and may be written",
    ErrorKind.COMMIT_STATE_UNKNOWN: "ask `commit-coord commits TABLE --request-id ID` before anything is repeated",
    ErrorKind.INTERNAL: "please report this",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an error is shown."""

    code: ExitCode
    kind: str
    message: str


def explain(error: BaseException) -> Failure:
    """Return how *error* is shown: never more than one line, never a password."""
    code, kind, message = _classify(error)
    line = re.sub(r"\s*\n\s*", "; ", message.strip()) or type(error).__name__
    return Failure(code=code, kind=kind, message=without_passwords(line))


def _classify(error: BaseException) -> tuple[ExitCode, str, str]:
    match error:
        case CommandFailed():
            return error.code, error.kind, str(error)
        case CommitStateUnknown() | CommitStateUnknownException():
            return ExitCode.UNKNOWN, ErrorKind.COMMIT_STATE_UNKNOWN, _advised(error, ErrorKind.COMMIT_STATE_UNKNOWN)
        case ConfigError() | StatementError() | InvalidArguments():
            return ExitCode.USAGE, error.kind, str(error)
        case LockError() | CommitError():
            return ExitCode.FAILED, error.kind, _advised(error, error.kind)
        case MetastoreUnavailable():
            return ExitCode.USAGE, error.kind, f"{error}; check the uri, and that the metastore is up"
        case CommitCoordError():
            return ExitCode.BUG, error.kind, _advised(error, error.kind)
        case NoSuchTableError() | NoSuchNamespaceError() | NoSuchIdentifierError():
            return ExitCode.REFUSED, "not-found", f"{error}; check the catalog and the name (NAMESPACE.TABLE)"
        case TableAlreadyExistsError() | NamespaceAlreadyExistsError():
            return ExitCode.REFUSED, "exists", str(error)
        case CommitFailedException() | ValidationException():
            return ExitCode.FAILED, ErrorKind.COMMIT_NOT_APPLIED, str(error)
        case SQLAlchemyError():
            reason = getattr(error, "orig", None) or error
            return ExitCode.USAGE, "database", f"the catalog's database did not answer as a catalog does: {reason}"
        case ModuleNotFoundError():
            wanted = f"{error.name} is not installed" if error.name else str(error)
            return ExitCode.MISSING, "missing", f"{wanted}: {install_module(error.name)}"
        case NotInstalled():
            return ExitCode.MISSING, "missing", str(error)
        case ServerFailed():
            return (
                ExitCode.FAILED,
                "server-failed",
                f"{error.message}; see its log above" if error.log else str(error),
            )
        case OSError():
            return ExitCode.FAILED, "input-output", str(error)
    name = type(error).__name__
    return ExitCode.BUG, "unexpected", f"unexpected {name}: {error}; please report what --debug shows"


def _advised(error: BaseException, kind: ErrorKind) -> str:
    advice = _ADVICE.get(kind)
    return f"{error}; {advice}" if advice else str(error)
