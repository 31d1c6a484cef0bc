"""commit_coord: a commit coordinator for Apache Iceberg tables that PySpark and PyIceberg write together."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from commit_coord.loading import when_loaded
from commit_coord.version import __version__

if TYPE_CHECKING:
    from commit_coord.catalog.load import load_catalog
    from commit_coord.errors import (
        CheckpointInTable,
        CommitConflict,
        CommitCoordError,
        CommitError,
        CommitLockFailed,
        CommitNotApplied,
        CommitStateUnknown,
        ConfigError,
        ExceedsMaxLeaseTime,
        FileInTable,
        InvalidArguments,
        LeaseAlreadyExists,
        LeaseEnded,
        LockDeadlock,
        LockError,
        LockLost,
        LockReentered,
        LockRefused,
        LockServiceUnavailable,
        LockTimeout,
        NoSuchProperty,
        StaleRead,
        StatementError,
        UpdatesDoNotFit,
    )
    from commit_coord.locks.hive_lease import HeldHiveLease, HiveLease, HiveLeases, LeaseObject
    from commit_coord.model import LockMode, LockScope, Resource
    from commit_coord.table.isolation import NOTHING

__all__ = [
    "NOTHING",
    "CheckpointInTable",
    "CommitConflict",
    "CommitCoordError",
    "CommitError",
    "CommitLockFailed",
    "CommitNotApplied",
    "CommitStateUnknown",
    "ConfigError",
    "ExceedsMaxLeaseTime",
    "FileInTable",
    "HeldHiveLease",
    "HiveLease",
    "HiveLeases",
    "InvalidArguments",
    "LeaseAlreadyExists",
    "LeaseEnded",
    "LeaseObject",
    "LockDeadlock",
    "LockError",
    "LockLost",
    "LockMode",
    "LockReentered",
    "LockRefused",
    "LockScope",
    "LockServiceUnavailable",
    "LockTimeout",
    "NoSuchProperty",
    "Resource",
    "StaleRead",
    "StatementError",
    "UpdatesDoNotFit",
    "__version__",
    "load_catalog",
]

_MODULES = {
    "commit_coord.catalog.load": ("load_catalog",),
    "commit_coord.errors": (
        "CheckpointInTable",
        "CommitConflict",
        "CommitCoordError",
        "CommitError",
        "CommitLockFailed",
        "CommitNotApplied",
        "CommitStateUnknown",
        "ConfigError",
        "ExceedsMaxLeaseTime",
        "FileInTable",
        "InvalidArguments",
        "LeaseAlreadyExists",
        "LeaseEnded",
        "LockDeadlock",
        "LockError",
        "LockLost",
        "LockReentered",
        "LockRefused",
        "LockServiceUnavailable",
        "LockTimeout",
        "NoSuchProperty",
        "StaleRead",
        "StatementError",
        "UpdatesDoNotFit",
    ),
    "commit_coord.locks.hive_lease": (
        "HeldHiveLease",
        "HeldLease",  # the former name of HeldHiveLease
        "HiveLease",
        "HiveLeases",
        "LeaseObject",
        "Leases",  # the former name of HiveLeases
    ),
    "commit_coord.model": (
        "LockMode",
        "LockScope",
        "Resource",
    ),
    "commit_coord.table.isolation": ("NOTHING",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def _mend(loaded: ModuleType) -> None:
    """Have PyIceberg read, write and filter exactly in this process."""
    importlib.import_module("commit_coord.iceberg.exact").mend(loaded)


when_loaded("pyiceberg.expressions.visitors", _mend)
when_loaded("pyiceberg.table", _mend)
when_loaded("pyiceberg.io.pyarrow", _mend)


def __getattr__(name: str) -> Any:
    """Import what is used, when it is used: PyArrow, PyIceberg and SQLAlchemy take most of a second."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted({*globals(), *__all__})
