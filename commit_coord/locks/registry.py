"""Lock managers by name, each imported only when it is asked for: a driver may not be installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from commit_coord.clock import SYSTEM_CLOCK, Clock
from commit_coord.errors import ConfigError
from commit_coord.events import Events
from commit_coord.locks.base import LockSettings
from commit_coord.locks.handover import HandoverLockManager

LOCK_MANAGERS: Mapping[str, str] = MappingProxyType(
    {
        "none": "commit_coord.locks.none:NoneLockManager",
        "memory": "commit_coord.locks.memory:MemoryLockManager",
        "lease": "commit_coord.locks.sql.manager:LeaseLockManager",
        "hms": "commit_coord.locks.hms.manager:HmsLockManager",
        "zookeeper": "commit_coord.locks.zookeeper.manager:ZooKeeperLockManager",
        "hms-to-zookeeper": "commit_coord.locks.migration.manager:open_manager",
    }
)


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

    Args:
        name: A key of :data:`LOCK_MANAGERS`.
        uri: Where the service is: a database URL for ``lease``, ``thrift://…`` for ``hms``,
            ``host:port,host:port/chroot`` for ``zookeeper`` and ``hms-to-zookeeper``, any text for ``memory`` (clients
            of one process with the same text and space share their locks), unused by ``none``.
        settings: Times; None takes the defaults.
        clock: Where time and chance come from.
        events: Who is told; None tells nobody.
        space: Separates what does not concern each other at one service, as the catalogs of one database do.
        options: Arguments that this manager takes beyond those (``Settings.lock_options``).

    Raises:
        ConfigError: *name* is unknown; the message lists the known ones. Or *uri* makes no sense to it.
    """
    try:
        module, _, attribute = LOCK_MANAGERS[name].partition(":")
    except KeyError:
        raise ConfigError(
            "unknown lock manager", key="lock-impl", value=name, accepted=", ".join(LOCK_MANAGERS)
        ) from None
    factory: Callable[..., HandoverLockManager] = getattr(import_module(module), attribute)
    return factory(
        uri, space=space, settings=settings or LockSettings(), clock=clock, events=events or Events(), **(options or {})
    )
