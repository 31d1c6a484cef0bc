"""The error tree is an interface: handlers, PyIceberg and PySpark depend on bases, codes and pickling."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

from commit_coord import errors
from commit_coord.errors import CommitCoordError, ErrorKind

TREE: dict[str, tuple[type[BaseException], ...]] = {
    "CommitCoordError": (Exception,),
    "LockError": (errors.CommitCoordError,),
    "LockTimeout": (errors.LockError, TimeoutError),
    "LockRefused": (errors.LockError,),
    "LockReentered": (errors.LockRefused,),
    "LockDeadlock": (errors.LockRefused,),
    "ClientStops": (errors.LockRefused,),
    "OfferLost": (errors.LockError,),
    "PartlyDropped": (errors.CommitCoordError,),
    "PartlyRepaired": (errors.CommitCoordError,),
    "PartlyFreed": (errors.LockError,),
    "LockLost": (errors.LockError,),
    "LockServiceUnavailable": (errors.LockError,),
    "CommitError": (errors.CommitCoordError,),
    "CommitNotApplied": (errors.CommitError, CommitFailedException),
    "CommitConflict": (errors.CommitNotApplied,),
    "StaleRead": (errors.CommitConflict, ValidationException),
    "CheckpointInTable": (errors.CommitConflict,),
    "UpdatesDoNotFit": (errors.CommitConflict, ValueError),
    "NoSuchProperty": (errors.CommitConflict, KeyError),
    "CommitLockFailed": (errors.CommitNotApplied,),
    "CommitStateUnknown": (errors.CommitError, CommitStateUnknownException),
    "MetastoreUnavailable": (errors.CommitCoordError,),
    "ConfigError": (errors.CommitCoordError, ValueError),
    "DatabaseUnavailable": (errors.ConfigError,),
    "StatementError": (errors.CommitCoordError, ValueError),
    "FileInTable": (errors.StatementError,),
    "LeaseAlreadyExists": (errors.LockTimeout,),
    "ExceedsMaxLeaseTime": (errors.LockRefused,),
    "InvalidArguments": (errors.CommitCoordError, ValueError),
    "LeaseEnded": (errors.LockRefused,),
    "InternalError": (errors.CommitCoordError,),
}
"""Every error class and its direct bases."""

ABSTRACT = {"CommitCoordError", "LockError", "CommitError"}
"""Classes that handlers catch and nobody raises: they have no code of their own."""


def family(base: type[CommitCoordError] = CommitCoordError) -> Iterator[type[CommitCoordError]]:
    """Yield *base* and everything below it that the error module defines."""
    yield base
    for child in base.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from family(child)


CLASSES = sorted(set(family()), key=lambda cls: cls.__name__)
RAISED = [cls for cls in CLASSES if cls.__name__ not in ABSTRACT]


def test_tree() -> None:
    """Classes and bases are the ones that handlers were written against."""
    assert {cls.__name__: cls.__bases__ for cls in CLASSES} == TREE


def test_each_raised_class_has_a_code_of_its_own() -> None:
    """A code names one class, and each code is in use."""
    assert sorted(cls.kind for cls in RAISED) == sorted(ErrorKind)


def test_codes_are_stable() -> None:
    """Codes are in people's dashboards and scripts: new ones are added, none is changed."""
    assert [kind.value for kind in ErrorKind][:19] == [
        "lock-timeout",
        "lock-refused",
        "lock-lost",
        "lock-service-unavailable",
        "commit-not-applied",
        "commit-conflict",
        "commit-lock-failed",
        "commit-state-unknown",
        "config",
        "internal",
        "offer-lost",
        "metastore-unavailable",
        "lock-reentered",
        "statement",
        "lease-already-exists",
        "exceeds-max-lease-time",
        "invalid-arguments",
        "lease-ended",
        "lock-deadlock",
    ]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_pickle_round_trip(cls: type[CommitCoordError]) -> None:
    """PySpark ships errors between processes; type, message and details arrive."""
    sent = cls("the deadline passed", holder="ann@host pid 7", waited_ms=1500, nothing=None)

    received = pickle.loads(pickle.dumps(sent))

    assert type(received) is cls
    assert str(received) == str(sent) == "the deadline passed: holder='ann@host pid 7', waited_ms='1500'"
    assert received.kind is sent.kind


def test_only_a_proven_failure_lets_pyiceberg_delete_files() -> None:
    """PyIceberg deletes a commit's manifests on these two, so nothing that may have landed is one of them."""
    deletes = {cls.__name__ for cls in CLASSES if issubclass(cls, CommitFailedException | ValidationException)}
    assert deletes == {
        "CommitNotApplied",
        "CommitConflict",
        "StaleRead",
        "CheckpointInTable",
        "UpdatesDoNotFit",
        "NoSuchProperty",
        "CommitLockFailed",
    }
