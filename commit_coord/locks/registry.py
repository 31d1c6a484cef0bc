"""Lock managers by name, each imported only when it is asked for: a driver may not be installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.config.values import installed_lock_managers
from commit_coord.errors import ConfigError
from commit_coord.events import Events
from commit_coord.locks.base import LockSettings
from commit_coord.locks.handover import HandoverLockManager

LOCK_MANAGERS: Mapping[str, str] = MappingProxyType(
    {
        "none": "commit_coord.locks.none:NoneLockManager",
        "memory": "commit_coord.locks.memory:MemoryLockManager",
        "lease": "commit_coord.locks.sql.manager:SqlLockManager",
        "hms": "commit_coord.locks.hms.manager:HmsLockManager",
        "zookeeper": "commit_coord.locks.zookeeper.manager:ZooKeeperLockManager",
        "hms-to-zookeeper": "commit_coord.locks.migration.manager:open_manager",
    }
)


_METHODS = ("acquire", "submit", "locks", "pages", "unlock", "reap", "remember", "recall", "close")
"""Required methods of a class from another package; :class:`HandoverLockManager` has defaults for the others."""


def create_lock_manager(
    name: str,
    uri: str = "",
    settings: LockSettings | None = None,
    clock: Clock = SYSTEM_CLOCK,
    events: Events | None = None,
    *,
    space: str = "",
    options: Mapping[str, Any] | None = None,
) -> HandoverLockManager:
    """Return the lock manager *name* as a client of the service at *uri*.

    A class of another package is called as ``Class(uri, space=…, settings=…, clock=…, events=…)``, with nothing else.
    It gets the host and the threads of this process from :mod:`commit_coord.locks.public` (``SYSTEM_HOST``,
    ``THREADS``); our own managers take them as arguments with these defaults, which only simulations replace.

    Args:
        name: A key of :data:`LOCK_MANAGERS`; ``package.module:Class``; or a name from the entry-point group
            ``commit_coord.lock_managers``.
        uri: Where the service is: a database URL for ``lease``, ``thrift://…`` for ``hms``,
            ``host:port,host:port/chroot`` for ``zookeeper`` and ``hms-to-zookeeper``, any text for ``memory`` (clients
            of one process with the same text and space share their locks), unused by ``none``.
        settings: Times; None takes the defaults.
        clock: Where time and chance come from.
        events: Receives what happens to locks; None drops it.
        space: Separates what does not concern each other at one service, as the catalogs of one database do.
        options: Arguments that only this manager takes (``Settings.lock_options``); one of another package has none.

    Raises:
        ConfigError: *name* is unknown; the message lists the known ones. Or it can't be imported, or lacks a method of
            the contract; or *uri* makes no sense to it.
    """
    factory = _factory(name)
    return factory(
        uri, space=space, settings=settings or LockSettings(), clock=clock, events=events or Events(), **(options or {})
    )


def _factory(name: str) -> Callable[..., HandoverLockManager]:
    """Return what makes the lock manager *name*."""
    path = LOCK_MANAGERS.get(name) or (name if ":" in name else installed_lock_managers().get(name))
    if path is None:
        known = ", ".join([*LOCK_MANAGERS, *installed_lock_managers()])
        raise ConfigError(
            "unknown lock manager", key="lock-impl", value=name, accepted=f"{known}; or package.module:Class"
        )
    module, _, attribute = path.partition(":")
    try:
        found: Callable[..., HandoverLockManager] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if name in LOCK_MANAGERS:
            raise
        raise ConfigError(
            "the lock manager can't be imported", key="lock-impl", value=name, path=path, cause=error
        ) from error
    if isinstance(found, type) and (lacking := [one for one in _METHODS if not callable(getattr(found, one, None))]):
        raise ConfigError(
            "the lock manager lacks methods of the contract",
            key="lock-impl",
            value=name,
            lacking=", ".join(lacking),
            accepted="a subclass of commit_coord.locks.handover.HandoverLockManager",
        )
    return found
