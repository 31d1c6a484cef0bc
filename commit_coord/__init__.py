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
    LockDeadlock,
    LockError,
    LockLost,
    LockReentered,
    LockRefused,
    LockServiceUnavailable,
    LockTimeout,
    StatementError,
)
from commit_coord.model import LockMode, LockScope, Resource

__all__ = [
    "CommitConflict",
    "CommitCoordError",
    "CommitError",
    "CommitLockFailed",
    "CommitNotApplied",
    "CommitStateUnknown",
    "ConfigError",
    "LockDeadlock",
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
