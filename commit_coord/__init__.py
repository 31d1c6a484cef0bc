"""commit_coord: a commit coordinator for Apache Iceberg tables that PySpark and PyIceberg write together."""

from commit_coord.catalog.load import load_catalog
from commit_coord.errors import (
    CommitConflict,
    CommitCoordError,
    CommitError,
    CommitLockFailed,
    CommitNotApplied,
    CommitStateUnknown,
    ConfigError,
    ExceedsMaxLeaseTime,
    InvalidArguments,
    LeaseAlreadyExists,
    LeaseEnded,
    LockError,
    LockLost,
    LockReentered,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
    StatementError,
)
from commit_coord.locks.hive_lease import HeldLease, HiveLease, LeaseObject, Leases
from commit_coord.model import LockMode, LockScope, Resource

__all__ = [
    "CommitConflict",
    "CommitCoordError",
    "CommitError",
    "CommitLockFailed",
    "CommitNotApplied",
    "CommitStateUnknown",
    "ConfigError",
    "ExceedsMaxLeaseTime",
    "HeldLease",
    "HiveLease",
    "InvalidArguments",
    "LeaseAlreadyExists",
    "LeaseEnded",
    "LeaseObject",
    "Leases",
    "LockError",
    "LockLost",
    "LockMode",
    "LockReentered",
    "LockRefused",
    "LockScope",
    "LockServiceUnavailable",
    "LockTimeout",
    "Resource",
    "StatementError",
    "load_catalog",
]
