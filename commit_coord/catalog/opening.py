"""The lock manager that the settings of a catalog name."""

from __future__ import annotations

from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Settings
from commit_coord.events import Events
from commit_coord.locks.base import LockSettings
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.registry import create_lock_manager


def lock_settings(settings: Settings) -> LockSettings:
    """Return the times of the catalog's locks."""
    return LockSettings(
        acquire_timeout_ms=settings.lock_acquire_timeout_ms,
        lease_ms=settings.lock_heartbeat_timeout_ms,
        heartbeat_interval_ms=settings.lock_heartbeat_interval_ms,
        check_min_wait_ms=settings.lock_check_min_wait_ms,
        check_max_wait_ms=settings.lock_check_max_wait_ms,
    )


def open_locks(settings: Settings, events: Events, space: str) -> HandoverLockManager:
    """Return the lock manager that *settings* name.

    Args:
        settings: Of the catalog.
        events: Receives what happens to locks.
        space: Tells this catalog's tables from others of the same names at the same lock service.
    """
    return create_lock_manager(
        settings.lock_impl,
        settings.lock_uri,
        lock_settings(settings),
        SYSTEM_CLOCK,
        events,
        space=space,
        options=settings.lock_options,
    )
