"""Finds the writers of tables in a metastore: in its locks, in the tables' history, and in the registry.

A metastore keeps no history of its locks. So they are listed again and again for a while; a lock that is there for less
than it takes from one listing to the next is seen by chance. What a table's snapshots tell is seen in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.table.metadata import TableMetadata

from commit_coord.clock import Clock
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.locks import ListedLock, LockType
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.migration.writers import Writer
from commit_coord.model import Owner

_EVERY = 0.1
"""Seconds between two listings of the locks."""

_JAVA_AGENT = "Iceberg-"
"""Prefix of Java's ``agentInfo``. Source: Iceberg Java ``MetastoreLock``."""

_JAVA_SUMMARY = "iceberg-version"
"""A key in the summary of snapshots from Java. Source: Iceberg Java ``EnvironmentContext``."""

_SKEW_MS = 86_400_000
"""By which the clocks of writers may differ: a snapshot may be that much older than the one before it."""


class WriterKind(StrEnum):
    """The locks that a writer supports."""

    MIGRATING = "migrating"
    """A commit_coord writer that supports all phases."""
    PINNED = "pinned to hms"
    """A commit_coord writer that takes the metastore's locks in every phase."""
    JAVA = "java"
    """Follows the table's properties: locks in the metastore, or compares and sets."""
    LOCK_ONLY = "lock only"
    """Takes only the metastore's lock, as far as can be seen: PyIceberg and others."""

    @property
    def holds_up(self) -> bool:
        """Whether a table with such a writer must not leave the metastore's locks."""
        return self in (WriterKind.PINNED, WriterKind.LOCK_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A writer that was seen at a table.

    Args:
        table: ``db.table``, or a database whose tables are locked together.
        kind: What it knows.
        who: User, host, process, application, as far as it tells.
        how: ``lock``: in the lock service; ``commit``: in the table's history.
        times: How many locks, or commits.
        last_ms: When last, on the wall clock.
        spelled: The table as the writer locked it, where a server tells that from the table's own lock (2.3 does): such
            a lock excludes neither us nor the guard. Else "".
    """

    table: str
    kind: WriterKind
    who: str
    how: str
    times: int
    last_ms: int
    spelled: str = ""

    def __str__(self) -> str:
        """Return who and how often."""
        noun = self.how if self.times == 1 else f"{self.how}s"
        passes = f" on {self.spelled}, which excludes nobody" if self.spelled else ""
        return f"{self.who} ({self.kind}, {self.times} {noun}{passes})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWriters:
    """The writers that were seen in a period of time.

    Args:
        sightings: Writers at tables.
        seconds: How long the locks were watched.
        locks: Lock requests that the metastore took in that time, of everybody and for everything, as far as its
            numbers tell; None where too few were seen.
    """

    sightings: Sequence[Sighting]
    seconds: float
    locks: int | None

    def at(self, table: str, commits: Sequence[Sighting] = ()) -> list[Sighting]:
        """Return those at *table*, and *commits*."""
        database = table.partition(".")[0]
        return [*(one for one in self.sightings if one.table in (table, database)), *commits]


def watch(
    metastore: MetastoreClient,
    registry: Callable[[], Iterable[Writer]],
    clock: Clock,
    *,
    seconds: float,
    own: str,
) -> SeenWriters:
    """List the metastore's locks for *seconds*, at least once, and return whose were seen.

    Args:
        metastore: Whose locks.
        registry: Returns the writers in the registry of the migration.
        clock: Time.
        seconds: How long.
        own: The client that is watching; what it locks is not counted.
    """
    found: dict[tuple[str, str, str], dict[int, tuple[ListedLock, int]]] = {}
    ready = {own}
    ids: set[int] = set()
    started = clock.now()
    while True:
        ready.update(writer.client for writer in registry())
        now_ms = clock.wall_ms()
        for listed in metastore.show_locks():
            ids.add(listed.lock_id)
            if listed.part.type is not LockType.SHARED_READ and listed.part.db != hms_names.OPERATIONS:
                table = f"{listed.part.db}.{listed.part.table}" if listed.part.table else listed.part.db
                agent = hms_names.Agent.parse(listed.agent)
                key = table, _who(listed), agent.client if agent is not None else ""
                found.setdefault(key, {})[listed.lock_id] = listed, now_ms
        if clock.now() - started >= seconds:
            break
        clock.sleep(_EVERY)
    ready.update(writer.client for writer in registry())  # one that has just begun may be registered a moment later
    sightings = []
    for (table, who, _), locks in found.items():
        listed, _ = next(iter(locks.values()))
        agent = hms_names.Agent.parse(listed.agent)
        if agent is not None and agent.client == own:
            continue
        last_ms = max(at_ms for _, at_ms in locks.values())
        kind = _kind(listed, agent, ready)
        sightings.append(
            Sighting(
                table=table.lower(),
                kind=kind,
                who=who,
                how="lock",
                times=len(locks),
                last_ms=last_ms,
                spelled=table if table != table.lower() else "",
            )
        )
    return SeenWriters(
        sightings=sightings,
        seconds=clock.now() - started,
        locks=max(ids) - min(ids) + 1 if len(ids) > 1 else None,
    )


def committed(metadata: TableMetadata, table: str, *, since_ms: int) -> list[Sighting]:
    """Return who, not of ours, added snapshots to *table* since *since_ms*."""
    found: dict[tuple[WriterKind, str], list[int]] = {}
    for snapshot in reversed(metadata.snapshots):
        if snapshot.timestamp_ms < since_ms - _SKEW_MS:
            break
        if snapshot.timestamp_ms < since_ms:
            continue  # not the end: clocks of hosts differ, and an earlier snapshot may have a later time
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if REQUEST_ID in summary:
            continue
        kind = WriterKind.JAVA if _JAVA_SUMMARY in summary else WriterKind.LOCK_ONLY
        names = (summary.get(key) for key in ("engine-name", "app-name", "spark.app.id", "app-id", _JAVA_SUMMARY))
        who = " ".join(name for name in names if name) or "a writer without a name"
        found.setdefault((kind, who), []).append(snapshot.timestamp_ms)
    return [
        Sighting(table=table, kind=kind, who=who, how="commit", times=len(times), last_ms=max(times))
        for (kind, who), times in found.items()
    ]


def _who(listed: ListedLock) -> str:
    agent = hms_names.Agent.parse(listed.agent)
    owner: Owner = hms_names.owner_of(listed, agent)
    if agent is not None:
        return f"{owner.user}@{owner.host} pid {owner.pid} {owner.application}".rstrip()
    return f"{owner.user}@{owner.host}" + (" Java" if listed.agent.startswith(_JAVA_AGENT) else "")


def _kind(listed: ListedLock, agent: hms_names.Agent | None, ready: set[str]) -> WriterKind:
    if agent is not None:
        return WriterKind.MIGRATING if agent.client in ready else WriterKind.PINNED
    return WriterKind.JAVA if listed.agent.startswith(_JAVA_AGENT) else WriterKind.LOCK_ONLY
