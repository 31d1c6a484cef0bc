"""What a table on a metastore says of those who write to it. It is in Iceberg's metadata, where no alter loses it.

Locks of two managers do not see each other. The compare-and-set keeps every commit of ours safe in any case; but jobs
that rely on operation locks would run into each other, and a writer that knows nothing but the metastore's lock
overwrites whatever is committed without it. So the first commit of ours *declares* by which lock manager the table's
writers exclude each other, every later one reads it under the latch, and one by another lock manager is refused.

Java's writers lock in the metastore as well, unless the table tells them to compare and set instead.

Source: Iceberg Java ``HiveTableOperations.hiveLockEnabled``: the table's property first, then the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commit_coord.errors import ConfigError
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.locks.registry import LOCK_MANAGERS
from commit_coord.protocol.migration import LOCK_IMPL, LOCK_PHASE, ZOOKEEPER, Phase, State

LOCK_ENABLED = "engine.hive.lock-enabled"
"""Table property of Iceberg's: with ``false`` Java does not lock in the metastore, it compares and sets."""

COMMON_LOCK = frozenset({"hms"})
"""The lock managers whose latch is also the lock of unmodified writers, so that no guard is needed."""


def declared_at(metadata: MetadataReader, location: str) -> str | None:
    """Return the lock manager that the metadata file at *location* declares, None where it declares none."""
    return metadata.read(location).properties.get(LOCK_IMPL)


def prepare_properties(
    before: Mapping[str, str], after: Mapping[str, str], *, table: str, impl: str, compares: Callable[[], bool]
) -> dict[str, str]:
    """Return the properties *after* as they may follow *before*, the lock manager declared.

    A commit that itself changes the declaration hands the table over: away from its own lock manager, or to it.

    Args:
        before: The head's; empty for a new table.
        after: What a commit of ours is about to publish.
        table: For messages.
        impl: Our own lock manager.
        compares: Whether the metastore honours the condition of a swap. Asked only where it matters.

    Raises:
        ConfigError: The table's writers use another lock manager than ours, or the declared one does not exist.
    """
    declared = before.get(LOCK_IMPL)
    chosen = after.get(LOCK_IMPL, impl)
    if impl not in (declared or impl, chosen):
        raise other_lock_manager(table, declared, impl)
    if chosen != impl and chosen not in LOCK_MANAGERS:
        raise ConfigError(
            "no such lock manager", table=table, key=LOCK_IMPL, value=chosen, accepted=", ".join(LOCK_MANAGERS)
        )
    made = {**after, LOCK_IMPL: chosen}
    if chosen not in COMMON_LOCK:
        if compares():
            made[LOCK_ENABLED] = "false"
    elif declared is not None and declared not in COMMON_LOCK:
        made.pop(LOCK_ENABLED, None)
    if LOCK_PHASE in made and chosen != State.of(made).phase.lock_impl:
        # Handed over, and not by a migration: the table is where that leaves it.
        made |= State.of(made).changed_to(Phase.ZOOKEEPER if chosen == ZOOKEEPER else Phase.HMS) | {LOCK_IMPL: chosen}
    return made


def other_lock_manager(table: str, declared: str | None, impl: str) -> ConfigError:
    """Return the error for a table whose writers use another lock manager than *impl*."""
    return ConfigError(
        "the table's writers use another lock manager than this catalog: use the same one, or stop the writers and run "
        f"`commit-coord config --adopt-locks --table {table}`",
        table=table,
        property=LOCK_IMPL,
        declared=declared,
        key="lock-impl",
        value=impl,
        accepted=declared,
    )
