"""What every error means to the shell: one line for the reader, one exit code for the script."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from sqlite3 import Error as SQLiteError

from pydantic import ValidationError
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
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.logs import one_line
from commit_coord.errors import (
    CommitCoordError,
    CommitError,
    CommitStateUnknown,
    ConfigError,
    DatabaseUnavailable,
    ErrorKind,
    InvalidArguments,
    LockError,
    MetastoreUnavailable,
    PartlyDropped,
    PartlyFreed,
    PartlyRepaired,
    StatementError,
)
from commit_coord.extras import install_module
from commit_coord.local import NotInstalled, ServerFailed
from commit_coord.model import LockEntry
from commit_coord.redaction import without_passwords

_ADVICE: dict[ErrorKind, str] = {
    ErrorKind.LOCK_TIMEOUT: "wait longer (lock.acquire-timeout-ms), or see who holds it: `commit-coord locks`",
    ErrorKind.LOCK_REFUSED: "remove the reason, and repeat the command; `commit-coord locks` shows who holds what",
    ErrorKind.LOCK_REENTERED: "use the lock that you have, or release it first",
    ErrorKind.LOCK_DEADLOCK: "release the locks that you have, and start again; better take all of them at once",
    ErrorKind.LOCK_LOST: "look at the table, and start the operation again: its lock protects nothing any more",
    ErrorKind.LOCK_SERVICE_UNAVAILABLE: "check lock.uri or the catalog's uri, and that the service is up and writable",
    ErrorKind.LEASE_ALREADY_EXISTS: "wait longer, or look at the holder with SHOW LEASE, and drop a dead one's lease",
    ErrorKind.EXCEEDS_MAX_LEASE_TIME: "finish before the lease ends, or drop it and grab another one",
    ErrorKind.LEASE_ENDED: "grab another lease, and start the operation again",
    ErrorKind.CLIENT_STOPS: "ask another client, or this one when it is back",
    ErrorKind.OFFER_LOST: "look with `commit-coord commits TABLE` whether it has landed before you repeat it",
    ErrorKind.PARTLY_DROPPED: "remove the reason, and repeat the statement for the rest",
    ErrorKind.PARTLY_REPAIRED: "remove the reason, and repeat the command: each commit is brought back once",
    ErrorKind.PARTLY_FREED: "remove the reason, look at what is left with `commit-coord locks`, and free that",
    ErrorKind.COMMIT_NOT_APPLIED: "remove the reason, and repeat the command: nothing was changed",
    ErrorKind.COMMIT_LOCK_FAILED: "remove the reason, and repeat the command",
    ErrorKind.COMMIT_CONFLICT: "look at what the other commit has changed, and repeat the command",
    ErrorKind.STALE_READ: "read the table again, and write what you compute from that",
    ErrorKind.CHECKPOINT_IN_TABLE: "do not repeat it: look for another instance of the stream, and stop one of the two",
    ErrorKind.UPDATES_DO_NOT_FIT: "ask for something else, or remove the reason; the same is refused again",
    ErrorKind.NO_SUCH_PROPERTY: "check the name of the property, and whether it is still in the table",
    ErrorKind.COMMIT_STATE_UNKNOWN: "ask `commit-coord commits TABLE --request-id ID` before anything is repeated",
    ErrorKind.METASTORE_UNAVAILABLE: "check the uri, and that the metastore is up",
    ErrorKind.DATABASE_UNAVAILABLE: "check the uri, the user and the password, and that the server is up",
    ErrorKind.CONFIG: "correct the setting: an option, PYICEBERG_CATALOG__… or .pyiceberg.yaml has it",
    ErrorKind.STATEMENT: "correct the statement: `commit-coord sql help` lists what there is",
    ErrorKind.FILE_IN_TABLE: "keep the file: the table needs it",
    ErrorKind.INVALID_ARGUMENTS: "correct the arguments, and repeat the command",
    ErrorKind.INTERNAL: "please report this",
}
"""What to do about each kind of error. One that says what is ``accepted`` needs no more."""


_HINTS = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG), "check the path"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "check the permissions"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space on the disk, and try again"),
    errno.EROFS: "name another place, or have this one made writable",
    errno.ECONNREFUSED: "check the address, and that the service is up",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "close some files, or raise the limit: `ulimit -n`"),
}
"""What to do about an error of the operating system."""

_ANY_HINT = (
    "check the disks and the services that the command needs; before you repeat it, check what it has already done"
)

_EXCERPT, _BEFORE_CARET = 76, 50
"""Characters of a line of a statement that are shown, and how many of them at most before the place of the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an error is shown."""

    code: ExitCode
    kind: str
    message: str
    excerpt: str = ""
    """Of an error in a statement: the line, and a caret under the place."""
    freed: Sequence[LockEntry] = ()
    """Locks that were released by force before the error."""
    maybe_freed: Sequence[LockEntry] = ()
    """Locks of which that is not known."""

    @property
    def shown(self) -> str:
        """The text for people: the last line is the message."""
        return f"{self.excerpt}error: {self.message}"


def explain(error: BaseException) -> Failure:
    """Return how *error* is shown: its message is one line; no password is in it."""
    code, kind, message = _classify(error)
    excerpt = _excerpt(error) if isinstance(error, StatementError) else ""
    line = one_line(message) or type(error).__name__
    freed, maybe = (error.freed, error.maybe_freed) if isinstance(error, PartlyFreed) else ((), ())
    return Failure(
        code=code, kind=kind, message=line, excerpt=without_passwords(excerpt), freed=freed, maybe_freed=maybe
    )


def _excerpt(error: StatementError) -> str:
    """Return the line of the statement that *error* is about, and below it a caret; "" if it names no place."""
    if "position" not in error.details or "statement" not in error.details:
        return ""
    lines = str(error.details["statement"]).rstrip().splitlines() or [""]
    place = re.fullmatch(r"line (\d+), column (\d+)", str(error.details["position"]))
    line, column = (int(place[1]), int(place[2])) if place else (len(lines), len(lines[-1]) + 2)
    text = lines[line - 1].replace("\t", " ") if line <= len(lines) else ""
    first = max(0, column - 1 - _BEFORE_CARET)
    return f"  {text[first : first + _EXCERPT]}\n  {' ' * (column - 1 - first)}^\n"


def _classify(error: BaseException) -> tuple[ExitCode, str, str]:
    match error:
        case CommandFailed():
            return error.code, error.kind, str(error)
        case CommitStateUnknown() if "request_id" not in error.details:  # of a table's name, which no commit changes
            return ExitCode.UNKNOWN, ErrorKind.COMMIT_STATE_UNKNOWN, str(error)
        case CommitStateUnknown() | CommitStateUnknownException():
            return ExitCode.UNKNOWN, ErrorKind.COMMIT_STATE_UNKNOWN, _advised(error, ErrorKind.COMMIT_STATE_UNKNOWN)
        case ConfigError() if "pip install" in str(error.details.get("accepted")):
            return ExitCode.MISSING, "missing", str(error)
        case LockError() | CommitError() | MetastoreUnavailable() | DatabaseUnavailable():
            return ExitCode.FAILED, error.kind, _advised(error, error.kind)
        case PartlyDropped() | PartlyRepaired():
            return ExitCode.FAILED, error.kind, _advised(error, error.kind)
        case StatementError() | ConfigError() | InvalidArguments():
            return ExitCode.USAGE, error.kind, _advised(error, error.kind)
        case CommitCoordError():
            return ExitCode.BUG, error.kind, _advised(error, error.kind)
        case NoSuchTableError() | NoSuchNamespaceError() | NoSuchIdentifierError():
            return ExitCode.REFUSED, "not-found", f"{error}; check the catalog and the name (NAMESPACE.TABLE)"
        case TableAlreadyExistsError() | NamespaceAlreadyExistsError():
            return ExitCode.REFUSED, "exists", f"{error}; choose another name"
        case CommitFailedException() | ValidationException():
            return ExitCode.FAILED, ErrorKind.COMMIT_NOT_APPLIED, _advised(error, ErrorKind.COMMIT_NOT_APPLIED)
        case SQLAlchemyError():
            reason = getattr(error, "orig", None) or error
            has_gone = isinstance(error, OperationalError | InterfaceError) and not isinstance(reason, SQLiteError)
            return (
                ExitCode.FAILED if has_gone else ExitCode.USAGE,
                "database",
                f"the catalog's database failed: {reason}; check that it is a catalog's, is up and may be written",
            )
        case ModuleNotFoundError():
            package = (error.name or "").partition(".")[0]
            wanted = f"{package} is not installed" if package else str(error)
            return ExitCode.MISSING, "missing", f"{wanted}: {install_module(error.name)}"
        case NotInstalled():
            return ExitCode.MISSING, "missing", str(error)
        case ServerFailed():
            return (
                ExitCode.FAILED,
                "server-failed",
                f"{error.message}; see its log above" if error.log else f"{error}; look into the log of the server",
            )
        case ValidationError() | JSONDecodeError():
            reason = str(error).partition("\n")[0]
            return ExitCode.FAILED, "unreadable", f"metadata of a table can't be read: {reason}; restore the file"
        case OSError():
            return ExitCode.FAILED, "input-output", _system_message(error)
    name = type(error).__name__
    return ExitCode.BUG, "unexpected", f"unexpected {name}: {error}; please report what --debug shows"


def _system_message(error: OSError) -> str:
    reason = error.strerror or str(error)
    place = f"{error.filename}: " if error.filename is not None else ""
    return f"{place}{reason[:1].lower()}{reason[1:]}; {_HINTS.get(error.errno or 0, _ANY_HINT)}"


def _advised(error: BaseException, kind: ErrorKind) -> str:
    if not isinstance(error, StatementError | ConfigError | InvalidArguments):
        return f"{error}; {_ADVICE[kind]}"
    text = error.text(without=("statement",))  # which the excerpt shows
    return text if "accepted" in error.details else f"{text}; {_ADVICE[kind]}"
