"""Every error that commit_coord raises, grouped by what a handler does next.

::

    CommitCoordError                      message, kind (stable code), details; picklable
    ├── LockError                         raised by lock managers; says nothing about commits
    │   ├── LockTimeout                   also TimeoutError: the deadline passed; names the holder
    │   │   └── LeaseAlreadyExists        another owner holds a Hive lease or an operation lock on the object
    │   ├── LockRefused                   the lock manager refused the request
    │   │   ├── LockReentered             this thread already holds the lock
    │   │   ├── LockDeadlock              this request is the youngest of a deadlock
    │   │   ├── ClientStops               this client is stopping; its lock request was withdrawn
    │   │   ├── ExceedsMaxLeaseTime       the Hive lease would last longer than the configured maximum
    │   │   └── LeaseEnded                the commit depends on a Hive lease that has ended
    │   ├── OfferLost                     not granted, but another lock holder may have published the offer
    │   ├── PartlyFreed               some locks were, or may have been, released by force; the lock service failed
    │   ├── LockLost                      the lock was held, then it expired or was released by force
    │   └── LockServiceUnavailable        the lock service can't be reached
    ├── CommitError                       a commit did not land, or it is not known whether it did
    │   ├── CommitNotApplied              also PyIceberg's CommitFailedException: nothing was published
    │   │   ├── CommitConflict            another commit conflicts with it
    │   │   │   ├── StaleRead             also PyIceberg's ValidationException: the rows were computed from old ones
    │   │   │   ├── CheckpointInTable     a stream has committed this checkpoint before
    │   │   │   ├── UpdatesDoNotFit       also ValueError: the same request is refused again
    │   │   │   └── NoSuchProperty        also KeyError: a property to be removed is not there
    │   │   └── CommitLockFailed          a lock was not granted or was lost: nothing was changed
    │   └── CommitStateUnknown            also PyIceberg's CommitStateUnknownException: keep every file
    ├── MetastoreUnavailable              the Hive Metastore can't be reached or does not answer
    ├── ConfigError                       also ValueError: names the key, the value and the accepted values
    │   └── DatabaseUnavailable           the catalog's database can't be reached, or refuses the login
    ├── StatementError                    also ValueError: says where in the statement, and what was expected
    │   └── FileInTable                   a file to be added is already in the table: keep it
    ├── PartlyDropped                     some tables of a database were dropped, then its drop failed
    ├── PartlyRepaired                    some lost commits were brought back, then the repair failed
    ├── InvalidArguments                  also ValueError: invalid arguments for a Hive lease, or no such lease
    └── InternalError                     an invariant is broken: please report it

The PyIceberg base classes matter. PyIceberg deletes the manifests of a commit that ended with
``CommitFailedException`` or ``ValidationException``, because these promise that nothing landed.
So ``CommitNotApplied`` and its subclasses are raised only on a proven FAILURE; otherwise it is ``CommitStateUnknown``.

Messages are lower case, the condition first, then ``key='value'`` pairs; causes are chained.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, ClassVar

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

from commit_coord import redaction


class ErrorKind(StrEnum):
    """Stable codes, one for each error class; append only."""

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
    CLIENT_STOPS = "client-stops"
    PARTLY_FREED = "partly-freed"
    PARTLY_DROPPED = "partly-dropped"
    DATABASE_UNAVAILABLE = "database-unavailable"
    PARTLY_REPAIRED = "partly-repaired"


class CommitCoordError(Exception):
    """Base of all errors of this package.

    Args:
        message: The condition, lower case, without the details.
        details: Named facts (such as owner, table, time); printed after the message. Passwords in them are hidden.
    """

    kind: ClassVar[ErrorKind] = ErrorKind.INTERNAL

    def __init__(self, message: str, **details: Any) -> None:
        self.message = message
        self.details = redaction.facts({key: value for key, value in details.items() if value is not None})
        super().__init__(message)

    def __str__(self) -> str:
        """Return the message with its details as ``key='value'`` pairs."""
        return self.text()

    def text(self, *, without: Collection[str] = ()) -> str:
        """Return the message with its details as ``key='value'`` pairs, but for those named by *without*."""
        details = {key: str(value) for key, value in self.details.items() if key not in without}
        facts = ", ".join(f"{key}={redaction.without_passwords(value)!r}" for key, value in details.items())
        return f"{self.message}: {facts}" if facts else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the details: PySpark ships errors between processes."""
        return _rebuild, (type(self), self.message, {k: str(v) for k, v in self.details.items()})


def _rebuild(cls: type[CommitCoordError], message: str, details: dict[str, str]) -> CommitCoordError:
    return cls(message, **details)


class LockError(CommitCoordError):
    """A lock could not be acquired or kept. The error says nothing about commits."""


class LockTimeout(LockError, TimeoutError):
    """The deadline passed while another owner held a conflicting lock.

    What was done: the request was withdrawn, nothing stays queued.
    What to do: look at the holder that the message names (``commit-coord locks``), wait longer
    (``lock.acquire-timeout-ms``), or release the lock by force if its owner is dead (``commit-coord unlock``).
    """

    kind = ErrorKind.LOCK_TIMEOUT


class LeaseAlreadyExists(LockTimeout):
    """Another owner holds a Hive lease or an operation lock on the object, and the wait timed out.

    What was done: nothing is held, nothing stays queued.
    What to do: look at the holder that the message names (``SHOW LEASE``), wait longer, or drop the lease of a dead
    holder (``DROP FORCE LEASE``).

    Source: Hive's proposal of leases, ``LeaseAlreadyExistsException``.
    """

    kind = ErrorKind.LEASE_ALREADY_EXISTS


class LockRefused(LockError):
    """The request was refused: for example a conflict under the policy ``deny``, or a request that is not supported."""

    kind = ErrorKind.LOCK_REFUSED


class LockReentered(LockRefused):
    """This thread already holds a lock on the resource and would wait for itself."""

    kind = ErrorKind.LOCK_REENTERED


class ExceedsMaxLeaseTime(LockRefused):
    """The Hive lease was not extended: it would last longer than ``lease.max-duration-ms``.

    What was done: nothing, the end time of the lease has not changed.
    What to do: finish before that time, or drop the lease and grab another one.
    """

    kind = ErrorKind.EXCEEDS_MAX_LEASE_TIME


class LeaseEnded(LockRefused):
    """The commit depends on a Hive lease that has ended: it expired, was dropped, or was dropped by force.

    What to do: another owner may have locked the same objects since. Grab a new lease and start the operation again.
    """

    kind = ErrorKind.LEASE_ENDED


class LockDeadlock(LockRefused):
    """Deadlock: threads that hold locks wait for each other in a cycle, and this request is the youngest of them.

    What was done: the request was withdrawn; the thread still holds its earlier locks.
    What to do: release those and start again. Better: take all locks of an operation in one request.
    """

    kind = ErrorKind.LOCK_DEADLOCK


class ClientStops(LockRefused):
    """This client is about to end, so it waits for no lock any more.

    What was done: the request was withdrawn, nothing stays queued.
    What to do: ask another client, or this one when it is back.
    """

    kind = ErrorKind.CLIENT_STOPS


class OfferLost(LockError):
    """The request was not granted, but another lock holder may have published the request's offer, or may still do so.

    What to do: look for the result before you repeat the request.
    """

    kind = ErrorKind.OFFER_LOST


class LockLost(LockError):
    """The lock was held and is held no longer: its lease expired, or the lock was released by force.

    What to do: publish nothing under this lock; start the operation again.
    """

    kind = ErrorKind.LOCK_LOST


class PartlyFreed(LockError):
    """Some locks were released by force, or may have been, and the lock service failed: the others are still there.

    What was done: the locks of ``freed`` were released; those of ``maybe_freed`` are free, or will be soon, or stay,
    because no answer came. The audit log names both.
    What to do: remove the reason that the message gives, list the locks that are left, and release those.

    Args:
        message: As for every error.
        freed: The released locks. Not sent to other processes with the error.
        maybe_freed: The locks of which that is not known; as *freed*.
        details: As for every error.
    """

    kind = ErrorKind.PARTLY_FREED

    def __init__(
        self, message: str, *, freed: Sequence[Any] = (), maybe_freed: Sequence[Any] = (), **details: Any
    ) -> None:
        super().__init__(message, **details)
        self.freed, self.maybe_freed = tuple(freed), tuple(maybe_freed)


class LockServiceUnavailable(LockError):
    """The lock service can't be reached, or sent an invalid answer. Requests of this client expire, unless explicit."""

    kind = ErrorKind.LOCK_SERVICE_UNAVAILABLE


class CommitError(CommitCoordError):
    """A commit ended without success, or it is not known whether it landed."""


class CommitNotApplied(CommitError, CommitFailedException):
    """The commit did not land and never will. You may delete its files and repeat the operation."""

    kind = ErrorKind.COMMIT_NOT_APPLIED


class CommitConflict(CommitNotApplied):
    """The commit did not land: it conflicts with another commit, or does not fit the table. The message says why.

    What to do: read the table again, look at what changed, decide, and write again.
    """

    kind = ErrorKind.COMMIT_CONFLICT


class StaleRead(CommitConflict, ValidationException):
    """The commit did not land: its rows were computed from data that other commits have changed since.

    The commit would have undone the changes of those commits. The table object is not refreshed, so the same call
    fails again. A Spark job also raises it if its DataFrame was read from the table, but from an unknown snapshot.
    What to do: ``table.refresh()``, read again, compute again, and write the result. If your rows do not depend on
    the table, pass ``reads=NOTHING``. If you know the snapshot that was read, pass it as ``read_at``.
    """

    kind = ErrorKind.STALE_READ


class CheckpointInTable(CommitConflict):
    """The commit did not land: its stream has already committed this checkpoint, or a later one, to the table.

    What to do: do not retry. If another instance of the stream runs, let it continue, and stop this one.
    """

    kind = ErrorKind.CHECKPOINT_IN_TABLE


class UpdatesDoNotFit(CommitConflict, ValueError):
    """The commit did not land: what it asks for does not fit the table, for example a schema id that does not exist.

    Or the catalog's database refuses a drop, a rename, or a change of a namespace, or a metastore says that it does not
    do that, for example drop the database ``default``; nothing was done.
    What to do: read the table again and ask for something else, or remove the reason that the message gives. Until then
    the same request is refused again.
    """

    kind = ErrorKind.UPDATES_DO_NOT_FIT


class NoSuchProperty(CommitConflict, KeyError):
    """The call was asked to remove a property that the table does not have. Nothing was changed.

    What to do: check the name in ``table.properties``; perhaps another writer has already removed the property.
    """

    kind = ErrorKind.NO_SUCH_PROPERTY


class CommitLockFailed(CommitNotApplied):
    """Nothing was changed: a lock was not granted, or was lost before the swap in each of several tries.

    While the lock service can't be reached, every call, job and SQL statement that changes a table or the catalog
    ends with this error. So does a commit that waits too long for its lock; an operation that waits too long before
    its change begins ends with ``LockTimeout``.
    What to do: remove the reason that the message gives, and repeat the call.
    """

    kind = ErrorKind.COMMIT_LOCK_FAILED


class CommitStateUnknown(CommitError, CommitStateUnknownException):
    """It is not known whether the commit landed. All its files are kept.

    What to do: when the service answers again, search for the request id of the message with
    ``commit-coord commits TABLE --request-id ID``. Repeat the operation only if the commit is not there. If you chose
    the request id yourself, you may repeat the operation at any time, with the same id: it is idempotent.
    """

    kind = ErrorKind.COMMIT_STATE_UNKNOWN


class MetastoreUnavailable(CommitCoordError):
    """The Hive Metastore can't be reached, or did not answer in time (``hive.client-timeout-ms``).

    What was done: a call that reads changed nothing. For a call that changes something, the message says whether it
    was sent; if it was, the metastore may still execute it. Commits never raise this error: they are classified.
    What to do: check the servers that the message names, then the table or namespace, and repeat the call.
    """

    kind = ErrorKind.METASTORE_UNAVAILABLE


class ConfigError(CommitCoordError, ValueError):
    """A setting is unknown or invalid, or contradicts another setting; the message names the accepted values."""

    kind = ErrorKind.CONFIG


class DatabaseUnavailable(ConfigError):
    """The server of the catalog's database can't be reached, or refuses the login. The catalog was not opened.

    What to do: check the address, the user and the password, and that the server is up; then open the catalog again.
    """

    kind = ErrorKind.DATABASE_UNAVAILABLE


class StatementError(CommitCoordError, ValueError):
    """A statement is malformed, or names an object that does not exist. Nothing was done."""

    kind = ErrorKind.STATEMENT


class FileInTable(StatementError):
    """A file to be added is already in the table. Nothing was committed.

    What to do: keep the file, because the table needs it. After any other error that says that nothing landed, you may
    delete the files.
    """

    kind = ErrorKind.FILE_IN_TABLE


class PartlyDropped(CommitCoordError):
    """A database was to be dropped with its tables. Some tables were dropped, then the drop failed.

    What was done: the tables that the message names were dropped; their files stay. The cause says why it failed.
    What to do: remove the reason, and repeat the statement for the rest.
    """

    kind = ErrorKind.PARTLY_DROPPED


class PartlyRepaired(CommitCoordError):
    """Lost commits were to be brought back. Some were, then the repair failed.

    What was done: the commits whose request ids the message names are in the table again. The cause says why it failed.
    What to do: remove the reason, and repair the table again; each commit is brought back once.
    """

    kind = ErrorKind.PARTLY_REPAIRED


class InvalidArguments(CommitCoordError, ValueError):
    """An argument of a lock or a Hive lease is invalid (a time, a type, an object), or there is no such lease."""

    kind = ErrorKind.INVALID_ARGUMENTS


class InternalError(CommitCoordError):
    """An internal invariant of commit_coord is broken. Please report it with the message."""

    kind = ErrorKind.INTERNAL
