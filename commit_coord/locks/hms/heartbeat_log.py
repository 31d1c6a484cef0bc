"""Whether a client may release a lock in a Hive Metastore because its owner is dead: servers do not do this."""

from __future__ import annotations

from commit_coord.hms.locks import ListedLock
from commit_coord.locks.hms import names as hms_names
from commit_coord.process import Host

HeartbeatLog = dict[int, tuple[tuple[int, int], float]]
"""Lock id → (its last heartbeat, how often the metastore had failed), and when this pair was first seen."""


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
    """Return whether a lock of ours may be released: no new heartbeat for its lease time, or its process has ended.

    False for guards, for locks of other programs, and for granted locks of LOCK statements: a person must release them.
    The request of a LOCK statement that waits names no lease time. It is over when its process had ended before the
    listing: nobody would learn that it is granted.

    1. We list the locks; a LOCK statement waits.   2. It is granted, and its process ends as usual.   3. We see that
    the process has ended.   So the request is over only if a later listing still shows that it waits.

    Args:
        listed: One component of the lock.
        heartbeat_ms: The latest heartbeat of all its components.
        heartbeats: What was seen before; the caller keeps it.
        failures: How often the metastore has failed. If it does not answer this client, it may not answer others
            either, so missing heartbeats prove nothing.
        asked: When the listing was requested.
        answered: When the listing arrived: much later, if the metastore was away.
        host: Knows which processes have ended.
    """
    agent = hms_names.Agent.parse(listed.agent)
    if agent is None or agent.guard:
        return False
    heard = heartbeat_ms, failures
    if agent.lease_ms is None and listed.acquired:
        return False
    ended = host.is_dead(hms_names.owner_of(listed, agent).process)
    if agent.lease_ms is None:
        had_ended = listed.lock_id in heartbeats
        if ended:
            heartbeats.setdefault(listed.lock_id, (heard, answered))
        return had_ended
    before, seen = heartbeats.get(listed.lock_id, (None, answered))
    if before != heard:
        heartbeats[listed.lock_id] = heard, answered
        seen = answered
    return asked - seen >= agent.lease_ms / 1000 or ended
