"""Every error that commit_coord raises, grouped by what a handler does next.

::

    CommitCoordError                      message, kind (stable code), details; picklable
    ├── LockError                         raised by lock managers; knows nothing of commits
    │   ├── LockTimeout                   also TimeoutError: the deadline passed; says who holds
    │   │   └── LeaseAlreadyExists        somebody holds a lease, or a lock, on what a lease was asked for
    │   ├── LockRefused                   the request was answered with no
    │   │   ├── LockReentered             this thread holds the lock already
    │   │   ├── LockDeadlock              each waits for the next one, in a circle
    │   │   ├── ExceedsMaxLeaseTime       the lease would live longer than a lease may
    │   │   └── LeaseEnded                a commit depends on a lease that is not live
    │   ├── OfferLost                     not granted, and another holder may have done what was offered
    │   ├── LockLost                      was held, then expired or was taken away
    │   └── LockServiceUnavailable        the lock service can't be reached
    ├── CommitError                       raised by the coordinator alone
    │   ├── CommitNotApplied              also PyIceberg's CommitFailedException: nothing was published
    │   │   ├── CommitConflict            another commit stands in the way
    │   │   │   ├── StaleRead             also PyIceberg's ValidationException: the rows were computed from old ones
    │   │   │   ├── CheckpointInTable     a stream has committed the same files before
    │   │   │   └── UpdatesDoNotFit       also ValueError: to try the same again does not help
    │   │   └── CommitLockFailed          no latch, no publish; the LockError is the cause
    │   └── CommitStateUnknown            also PyIceberg's CommitStateUnknownException: keep every file
    ├── MetastoreUnavailable              the Hive Metastore can't be reached or does not answer
    ├── ConfigError                       also ValueError: says the key, the value and what is accepted
    ├── StatementError                    also ValueError: says where in the statement, and what was expected
    │   └── FileInTable                   a file that was to be added is in the table already: keep it
    ├── InvalidArguments                  also ValueError: a lease can't be asked for so, or there is no such lease
    └── InternalError                     an invariant broke: please report it

The second bases matter. PyIceberg deletes the manifests of a commit that ended in
``CommitFailedException`` or ``ValidationException``, because these promise that nothing landed.
So that family is raised on a proven FAILURE only; anything else is ``CommitStateUnknown``.

Messages are lower case, the condition first, then ``key='value'`` pairs; causes are chained.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

from commit_coord import redaction


class ErrorKind(StrEnum):
    """Stable codes, one an error class; append only."""

    LOCK_TIMEOUT = "lock-timeout"
    LOCK_REFUSED = "lock-refused"
    LOCK_LOST = "lock-lost"
    LOCK_SERVICE_UNAVAILABLE = "lock-service-unavailable"
    COMMIT_NOT_APPLIED = "commit-not-applied"
    COMMIT_CONFLICT = "commit-conflict"
    COMMIT_LOCK_FAILED = "commit-lock-failed"
    COMMIT_STATE_UNKNOWN = "commit-state-unknown"
    CONFIG = "config"
    INTERNAL = "internal"
    OFFER_LOST = "offer-lost"
    METASTORE_UNAVAILABLE = "metastore-unavailable"
    LOCK_REENTERED = "lock-reentered"
    STATEMENT = "statement"
    LEASE_ALREADY_EXISTS = "lease-already-exists"
    EXCEEDS_MAX_LEASE_TIME = "exceeds-max-lease-time"
    INVALID_ARGUMENTS = "invalid-arguments"
    LEASE_ENDED = "lease-ended"
    LOCK_DEADLOCK = "lock-deadlock"
    STALE_READ = "stale-read"
    NO_SUCH_PROPERTY = "no-such-property"
    FILE_IN_TABLE = "file-in-table"
    CHECKPOINT_IN_TABLE = "checkpoint-in-table"
    UPDATES_DO_NOT_FIT = "updates-do-not-fit"


class CommitCoordError(Exception):
    """Base of all errors of this package.

    Args:
        message: The condition, lower case, without the details.
        details: Named facts (who, where, since when); printed behind the message. Passwords in them are hidden.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(self, message: str, **details: Any) -> None:
        self.message = message
        self.details = redaction.facts({key: value for key, value in details.items() if value is not None})
        super().__init__(message)

    def __str__(self) -> str:
        """Return the message with its details as ``key='value'`` pairs."""
        facts = ", ".join(f"{key}={redaction.without_passwords(str(value))!r}" for key, value in self.details.items())
        return f"{self.message}: {facts}" if facts else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the details: PySpark ships errors between processes."""
        return _rebuild, (type(self), self.message, {k: str(v) for k, v in self.details.items()})


def _rebuild(cls: type[CommitCoordError], message: str, details: dict[str, str]) -> CommitCoordError:
    return cls(message, **details)


class LockError(CommitCoordError):
    """A lock could not be had or kept. Nothing is known about any commit."""


class LockTimeout(LockError, TimeoutError):
    """The deadline passed while somebody else held a conflicting lock.

    What was done: the request was withdrawn, nothing stays queued.
    What to do: look at the holder that the message names (``commit-coord locks``), wait longer
    (``lock.acquire-timeout-ms``), or free the lock when its owner is gone (``commit-coord unlock``).
    """

    kind = ErrorKind.LOCK_TIMEOUT


class LeaseAlreadyExists(LockTimeout):
    """Somebody holds a lease, or the lock of an operation, on what a lease was asked for, and held it till the end.

    What was done: nothing is held, nothing stays queued.
    What to do: look at the holder that the message names (``SHOW LEASE``), wait longer, or end its lease when it is
    dead (``DROP FORCE LEASE``).

    Source: Hive's proposal of leases, ``LeaseAlreadyExistsException``.
    """

    kind = ErrorKind.LEASE_ALREADY_EXISTS


class LockRefused(LockError):
    """The request was refused: a conflict under ``deny``, or something that the lock manager does not promise."""

    kind = ErrorKind.LOCK_REFUSED


class LockReentered(LockRefused):
    """This thread holds a lock on the resource already and would wait for itself."""

    kind = ErrorKind.LOCK_REENTERED


class ExceedsMaxLeaseTime(LockRefused):
    """The lease was not extended: it would live longer than a lease may (``lease.max-duration-ms``).

    What was done: nothing, the lease ends when it would have ended.
    What to do: finish by then, or drop it and grab another one.
    """

    kind = ErrorKind.EXCEEDS_MAX_LEASE_TIME


class LeaseEnded(LockRefused):
    """A commit depends on a lease that is not live (any more): it expired, was dropped, or somebody ended it by force.

    What to do: somebody else may have what it locked. Grab a lease and start the operation again.
    """

    kind = ErrorKind.LEASE_ENDED


class LockDeadlock(LockRefused):
    """Threads that hold locks wait for each other in a circle, and this request is the youngest of them.

    What was done: the request was withdrawn; what the thread held before it holds still.
    What to do: give that back and begin anew; better, take all locks of an operation in one request.
    """

    kind = ErrorKind.LOCK_DEADLOCK


class OfferLost(LockError):
    """The request was not granted, and what it offered may have been carried out by another holder, or may yet be.

    What to do: look for the result before doing it again.
    """

    kind = ErrorKind.OFFER_LOST


class LockLost(LockError):
    """The lease was held and is not any more: it expired, or somebody freed it by force.

    What to do: stop publishing under this lease; start the operation again.
    """

    kind = ErrorKind.LOCK_LOST


class LockServiceUnavailable(LockError):
    """The lock service could not be reached or answered nonsense. A request left behind expires by itself."""

    kind = ErrorKind.LOCK_SERVICE_UNAVAILABLE


class CommitError(CommitCoordError):
    """What became of a commit. Raised by the coordinator, from one classified ``CommitStatus``."""


class CommitNotApplied(CommitError, CommitFailedException):
    """The commit did not land and never will: its files may be deleted, the operation may be repeated."""

    kind = ErrorKind.COMMIT_NOT_APPLIED


class CommitConflict(CommitNotApplied):
    """The commit did not land because another one stands in its way (the message names it).

    What to do: read the table again, look at what changed, decide, and write again.
    """

    kind = ErrorKind.COMMIT_CONFLICT


class StaleRead(CommitConflict, ValidationException):
    """The commit did not land: rows that it was computed from have changed since the table object read them.

    To write them would undo what other commits did. The table object stays as it was, so the same call is refused
    again.
    What to do: ``table.refresh()``, read and compute again, and write that. Rows that do not depend on the table are
    written with ``reads=NOTHING``.
    """

    kind = ErrorKind.STALE_READ


class CheckpointInTable(CommitConflict):
    """The commit did not land: its stream has committed the same checkpoint, or a later one, to the table before.

    What to do: nothing, another instance of the stream goes on. To try the commit again does not help.
    """

    kind = ErrorKind.CHECKPOINT_IN_TABLE


class UpdatesDoNotFit(CommitConflict, ValueError):
    """The commit did not land: what it asks for does not fit the table, for example a schema id that is not there.

    What to do: read the table again and ask for something else. To try the same again does not help.
    """

    kind = ErrorKind.UPDATES_DO_NOT_FIT


class NoSuchProperty(CommitConflict, KeyError):
    """A property was to be removed that the table does not have. Nothing was changed.

    What to do: look at ``table.properties``; if it was to go, it has gone.
    """

    kind = ErrorKind.NO_SUCH_PROPERTY


class CommitLockFailed(CommitNotApplied):
    """Nothing was changed: a lock was not granted, or was lost again and again before the swap.

    While the lock service can't be reached, so ends every call, job and SQL statement that changes a table or the
    catalog. A lock that another one holds for too long ends a commit so too; before a change begins it is
    ``LockTimeout``. What to do: repeat the call when the message's reason is gone.
    """

    kind = ErrorKind.COMMIT_LOCK_FAILED


class CommitStateUnknown(CommitError, CommitStateUnknownException):
    """Whether the commit landed could not be found out. Every file of it is kept.

    What to do: when the service answers again, ask ``commit-coord commits TABLE`` for the request id
    in the message. Repeat the operation only if the id is not there; one whose request id you chose yourself may be
    repeated at any time, with the same id.
    """

    kind = ErrorKind.COMMIT_STATE_UNKNOWN


class MetastoreUnavailable(CommitCoordError):
    """The Hive Metastore can't be reached, or did not answer in time (``hive.client-timeout-ms``).

    What was done: a call that reads did nothing; of a change, the message says whether it was sent, and then it may
    still be carried out. Commits never end in this error: they are classified.
    What to do: look at the servers that the message names; then look at the table or namespace, and repeat.
    """

    kind = ErrorKind.METASTORE_UNAVAILABLE


class ConfigError(CommitCoordError, ValueError):
    """A setting is unknown, malformed, or clashes with another one; the message says what is accepted."""

    kind = ErrorKind.CONFIG


class StatementError(CommitCoordError, ValueError):
    """A statement is malformed, or names what is not there. Nothing was done."""

    kind = ErrorKind.STATEMENT


class FileInTable(StatementError):
    """A file that was to be added is in the table already. Nothing was committed.

    What to do: keep the file, since the table needs it. After any other error that says that nothing landed, the files
    may be deleted.
    """

    kind = ErrorKind.FILE_IN_TABLE


class InvalidArguments(CommitCoordError, ValueError):
    """What was asked of a lease makes no sense: a time, a type, an object, or a lease that is not there (any more)."""

    kind = ErrorKind.INVALID_ARGUMENTS


class InternalError(CommitCoordError):
    """An invariant of commit_coord broke. Please report it with the message."""

    kind = ErrorKind.INTERNAL
