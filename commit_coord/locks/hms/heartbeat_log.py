"""Whether a lock in a Hive Metastore may be freed because its owner has ended: servers do not free it by themselves."""

from __future__ import annotations

from commit_coord.hms.locks import ListedLock
from commit_coord.locks.hms import names as hms_names
from commit_coord.process import Host

HeartbeatLog = dict[int, tuple[tuple[int, int], float]]
"""Lock id → its last heartbeat and how often the metastore had failed, and when that was seen first."""


def is_over(
    listed: ListedLock,
    heartbeat_ms: int,
    *,
    heartbeats: HeartbeatLog,
    failures: int,
    asked: float,
    answered: float,
    host: Host,
) -> bool:
    """Return whether a lock of ours may be freed: its heartbeat has stopped for a lease, or its process ended.

    Locks of other programs, of LOCK statements and guards are left to people.

    Args:
        listed: One component of it.
        heartbeat_ms: The last of all its components.
        heartbeats: What was seen before; the caller keeps it.
        failures: How often the metastore has failed. If it does not answer this client, it may not answer others
            either, so missing heartbeats prove nothing.
        asked: When it was listed; that may have taken as long as the metastore was away.
        answered: Likewise.
        host: Knows which processes have ended.
    """
    agent = hms_names.Agent.parse(listed.agent)
    if agent is None or agent.lease_ms is None:
        return False
    heard = heartbeat_ms, failures
    before, seen = heartbeats.get(listed.lock_id, (None, answered))
    if before != heard:
        heartbeats[listed.lock_id] = heard, answered
        seen = answered
    return asked - seen >= agent.lease_ms / 1000 or host.is_dead(hms_names.owner_of(listed, agent).process)
