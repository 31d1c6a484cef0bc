"""The locks of a Hive Metastore: what is asked, what is listed, and what no server may be asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from hive_metastore.ttypes import (
    CheckLockRequest,
    HeartbeatRequest,
    LockComponent,
    LockRequest,
    ShowLocksRequest,
    UnlockRequest,
)

from commit_coord.hms.calls import MetastoreCaller

_NO_TXN = 6
"""``DataOperationType.NO_TXN``: servers that run with ``hive.in.test`` refuse locks whose operation is unset."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f'\"\\]")
_LONGEST_DB = 128
_LONGEST_TABLE = 256
"""``HIVE_LOCKS.HL_TABLE`` since Hive 4; 128 before, where a longer name makes the lock call fail."""
_PARTITION = 767


class LockType(IntEnum):
    """Source: Hive Metastore Thrift ``LockType``; the last one since Hive 4."""

    SHARED_READ = 1
    SHARED_WRITE = 2
    EXCLUSIVE = 3
    EXCL_WRITE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPart:
    """One component of a lock.

    Args:
        type: How.
        db: Folded to lower case.
        table: Likewise.
        partition: None locks the whole table.
    """

    type: LockType
    db: str
    table: str
    partition: str | None = None

    @property
    def refusal(self) -> str | None:
        """Why no server may be asked for this, in words; None where it may.

        Up to 3.1 servers put the names between quotes into a statement of SQL as they are. A quote ends the text there,
        a backslash does in MySQL, and what follows is carried out: a lock on another user's table, say.
        """
        for name, longest in ((self.db, _LONGEST_DB), (self.table, _LONGEST_TABLE), (self.partition or "", _PARTITION)):
            if len(name) > longest:
                return f"its lock table takes {longest} characters of this name, not {len(name)}"
            if _UNSAFE.search(name):
                return (
                    "it puts names into SQL as they are, so quotes, backslashes and control characters can't be locked"
                )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLock:
    """One component as the server lists it.

    Args:
        lock_id: The lock's.
        part: What it locks; its table is empty for a lock on a database.
        acquired: Whether it is held; else it waits.
        heartbeat_ms: When the server heard of the holder last, by its own clock.
        acquired_ms: Since when it is held, None while it waits.
        user: As the holder reported it.
        host: Likewise.
        agent: Likewise.
    """

    lock_id: int
    part: LockPart
    acquired: bool
    heartbeat_ms: int
    acquired_ms: int | None
    user: str
    host: str
    agent: str


class Unlockable(ValueError):
    """A name that no server may be asked to lock. Nothing was sent."""


class ThriftLockCalls:
    """The calls that concern locks."""

    def __init__(self, caller: MetastoreCaller) -> None:
        self._caller = caller

    def lock(
        self, parts: Sequence[LockPart], *, user: str, host: str, agent: str, patience_ms: int = 0
    ) -> tuple[int, bool]:
        """Ask for a lock; return its id and whether it is granted already. A lost reply leaves it in the queue.

        The answer to many *parts* may take *patience_ms* longer than others.

        Raises:
            Unlockable: A name would become a part of the server's SQL, or is too long.
            LostReply: It may be there, or will be.
            MetaError: The server has no lock service, or it failed.
        """
        for part in parts:
            if (reason := part.refusal) is not None:
                raise Unlockable(f"the metastore can't lock {part.db!r}, {part.table!r}, {part.partition!r}: {reason}")
        request = LockRequest(
            component=[
                LockComponent(
                    type=part.type,
                    level=2 if part.partition is None else 3,
                    dbname=part.db.lower(),
                    tablename=part.table.lower(),
                    partitionname=part.partition,
                    operationType=_NO_TXN,
                )
                for part in parts
            ],
            user=user,
            hostname=host,
            agentInfo=agent,
        )
        response = self._caller.send("lock", request, patience_ms=patience_ms)
        return response.lockid, response.state == 1

    def check_lock(self, lock_id: int) -> bool:
        """Return whether a lock is granted; it is, if no lock blocks it. Extends it, too.

        Raises:
            NoSuchLock: It was released or timed out.
        """
        return bool(self._caller.repeat("check_lock", CheckLockRequest(lockid=lock_id)).state == 1)

    def heartbeat(self, lock_id: int) -> None:
        """Extend a lock. Raises NoSuchLock when it is gone."""
        self._caller.repeat("heartbeat", HeartbeatRequest(lockid=lock_id))

    def unlock(self, lock_id: int) -> None:
        """Release a lock, held or waiting, of any owner. One that is gone is no error."""
        self._caller.repeat("unlock", UnlockRequest(lockid=lock_id))

    def show_locks(self, db: str | None = None, table: str | None = None) -> list[ListedLock]:
        """Return every component of every lock, or those on one database or table."""
        # Hive 2.3 puts these names into its SQL as they are: a quote in one would break it.
        names = {"dbname": db, "tablename": table}
        request = ShowLocksRequest(**{k: v.lower() for k, v in names.items() if v and re.fullmatch(r"[\w.-]+", v)})
        listed = [
            ListedLock(
                lock_id=found.lockid,
                part=LockPart(
                    type=LockType(found.type),
                    db=found.dbname,
                    table=found.tablename or "",
                    partition=found.partname or None,
                ),
                acquired=found.state == 1,
                heartbeat_ms=found.lastheartbeat or 0,
                acquired_ms=found.acquiredat,
                user=found.user or "",
                host=found.hostname or "",
                agent=found.agentInfo or "",
            )
            for found in self._caller.repeat("show_locks", request).locks or ()
        ]
        return [one for one in listed if db in (None, one.part.db) and table in (None, one.part.table)]
