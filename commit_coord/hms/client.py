"""The calls of a Hive Metastore that we make, each repeated only where a repeat is harmless.

Names are folded to lower case here, as the servers keep them; their lock tables up to 2.3 would tell them apart.
What a table or database looks like stays Thrift's: PyIceberg's ``HiveCatalog`` makes and reads these objects. So the
methods have Thrift's names, and the client can stand where ``HiveCatalog`` expects an open Thrift client.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from hive_metastore.ttypes import (
    CheckLockRequest,
    EnvironmentContext,
    GetTableRequest,
    GetTablesRequest,
    HeartbeatRequest,
    LockComponent,
    LockRequest,
    ShowLocksRequest,
    UnlockRequest,
)
from tenacity import (
    RetryCallState,
    Retrying,
    stop_after_attempt,
    stop_after_delay,
    wait_random_exponential,
)

from commit_coord.errors import ConfigError
from commit_coord.hms.connection import (
    Access,
    Connection,
    InvalidObject,
    InvalidOperation,
    LostReply,
    MetaError,
    NotSent,
    ServerFailed,
    UnknownMethod,
)
from commit_coord.hms.pool import Pool

_NO_TXN = 6
"""``DataOperationType.NO_TXN``: servers that run with ``hive.in.test`` refuse locks whose operation is unset."""


_SHORTEST = 0.5
"""Seconds that an answer has in any case."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f'\"\\]")
_LONGEST_DB = 128
_LONGEST_TABLE = 256
"""``HIVE_LOCKS.HL_TABLE`` since Hive 4; 128 before, where a longer name makes the lock call fail."""
_PARTITION = 767

_FAILURES = 4
"""Times that a server may fail in a call that changes nothing: 4.0.1 lists its locks not always while they change."""


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
        a backslash does in MySQL, and what follows is carried out: a lock on somebody else's table, say.
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
        user: As the holder said.
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


class FailedOver(NotSent):
    """Another server is in use than the one that the call was meant for; nothing was sent."""


class MetastoreClient:
    """A client of one metastore, which may have several servers. Thread safe.

    Args:
        uris: ``thrift://host:port``, several separated by commas.
        access: How to talk to them.

    Raises:
        ConfigError: A URI is malformed.
    """

    def __init__(self, uris: str, access: Access) -> None:
        self.addresses = tuple(_address(uri.strip()) for uri in uris.split(","))
        self.access = access
        self.calls: Counter[str] = Counter()
        """Round trips so far, by call."""
        self.failures = 0
        """Calls so far that were not answered: the servers were away, or seemed so."""
        self._limits = threading.local()
        self._pool = Pool(self.addresses, lambda address: Connection(address, access, connect_ms=self._limit_ms()))
        # What is sent may be carried out, so only what was not sent is sent again…
        self._once = self._retrying(NotSent)
        # … and what changes nothing, or ends the same way when it is done twice.
        self._again = self._retrying(NotSent, LostReply, ServerFailed)

    @classmethod
    def of(cls, text: str) -> MetastoreClient:
        """Return the client for what :attr:`service` returned for another one."""
        uris, _, query = text.partition("?")
        options = {key: values[-1] for key, values in parse_qs(query).items()}
        return cls(
            uris,
            Access(
                timeout_ms=int(options.get("timeout-ms", Access().timeout_ms)),
                ugi=options.get("ugi"),
                kerberos_service=options.get("kerberos-service"),
            ),
        )

    @property
    def service(self) -> str:
        """The servers and how to talk to them, as one text."""
        options = {
            "timeout-ms": str(self.access.timeout_ms),
            "ugi": self.access.ugi,
            "kerberos-service": self.access.kerberos_service,
        }
        return f"{','.join(self.addresses)}?{urlencode({k: v for k, v in options.items() if v is not None})}"

    @property
    def address(self) -> str:
        """The server that is used at present."""
        return self._pool.address

    def close(self) -> None:
        """Close the idle connections. May be called again, and the client may be used again."""
        self._pool.close()

    def __enter__(self) -> Self:
        """Return the client itself, as ``HiveCatalog`` expects of what it opens for each call."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing: the connections stay open."""

    # Tables.

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        """Return a table.

        Hive 4 has only the newer call, Hive 2.2 and before only the older one.

        Raises:
            NoSuchObject: There is none.
        """
        db, table = dbname.lower(), tbl_name.lower()
        try:
            return self._repeat("get_table_req", GetTableRequest(dbName=db, tblName=table)).table
        except UnknownMethod:
            return self._repeat("get_table", db, table)

    def get_all_tables(self, db_name: str) -> list[str]:
        """Return the names of all tables of a database, of whatever kind; none where there is no database."""
        return list(self._repeat("get_all_tables", db_name.lower()))

    def get_table_objects_by_name(self, dbname: str, tbl_names: Sequence[str]) -> list[Any]:
        """Return those of the tables that exist."""
        db, names = dbname.lower(), [name.lower() for name in tbl_names]
        try:
            request = GetTablesRequest(dbName=db, tblNames=names)
            return list(self._repeat("get_table_objects_by_name_req", request).tables)
        except UnknownMethod:
            return list(self._repeat("get_table_objects_by_name", db, names))

    def create_table(self, tbl: Any) -> None:
        """Create a table.

        Raises:
            AlreadyExists: There is one, perhaps by an earlier try of this one.
            LostReply: It may exist now, or later.
        """
        self._send("create_table", tbl)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        """As :meth:`alter_table`, with Thrift's own arguments."""
        self._send(
            "alter_table_with_environment_context", dbname.lower(), tbl_name.lower(), new_tbl, environment_context
        )

    def alter_table(
        self, db: str, table: str, new: Any, *, expected: tuple[str, str] | None, server: str | None = None
    ) -> None:
        """Replace a table, all of it.

        Args:
            db: Where it is now.
            table: Its name now.
            new: What it becomes.
            expected: The parameter and the value that it must have for that, where the server honours it.
            server: Send it to this one and no other.

        Raises:
            NoSuchObject: There is no such table.
            MetaError: The server refused it; also when the parameter has another value.
            FailedOver: *server* is not the one in use; nothing was sent.
            LostReply: It may have been carried out, or will be.
        """
        properties = {"DO_NOT_UPDATE_STATS": "true"}
        if expected is not None:
            properties |= {"expected_parameter_key": expected[0], "expected_parameter_value": expected[1]}
        context = EnvironmentContext(properties=properties)
        self._send("alter_table_with_environment_context", db.lower(), table.lower(), new, context, server=server)

    def drop_table(self, dbname: str, name: str, deleteData: bool) -> None:  # noqa: N803 - Thrift's names
        """Drop a table.

        Raises:
            NoSuchObject: There is none.
            LostReply: It may be gone.
        """
        self._send("drop_table", dbname.lower(), name.lower(), deleteData)

    # Databases.

    def get_all_databases(self) -> list[str]:
        """Return the names of all databases."""
        return list(self._repeat("get_all_databases"))

    def get_database(self, name: str) -> Any:
        """Return a database. Raises NoSuchObject where there is none."""
        return self._repeat("get_database", name.lower())

    def create_database(self, database: Any) -> None:
        """Create a database. Raises AlreadyExists where there is one."""
        self._send("create_database", database)

    def alter_database(self, dbname: str, db: Any) -> None:
        """Replace a database's properties."""
        self._send("alter_database", dbname.lower(), db)

    def drop_database(self, name: str, deleteData: bool, cascade: bool) -> None:  # noqa: N803 - Thrift's
        """Drop a database. Raises InvalidOperation where it is not empty, NoSuchObject where there is none."""
        self._send("drop_database", name.lower(), deleteData, cascade)

    # Locks.

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
        response = self._send("lock", request, patience_ms=patience_ms)
        return response.lockid, response.state == 1

    def check_lock(self, lock_id: int) -> bool:
        """Return whether a lock is granted; it is, if nobody stands in its way. Extends it, too.

        Raises:
            NoSuchLock: It was released or timed out.
        """
        return bool(self._repeat("check_lock", CheckLockRequest(lockid=lock_id)).state == 1)

    def heartbeat(self, lock_id: int) -> None:
        """Extend a lock. Raises NoSuchLock when it is gone."""
        self._repeat("heartbeat", HeartbeatRequest(lockid=lock_id))

    def unlock(self, lock_id: int) -> None:
        """Release a lock, held or waiting, whoever owns it. One that is gone is no error."""
        self._repeat("unlock", UnlockRequest(lockid=lock_id))

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
            for found in self._repeat("show_locks", request).locks or ()
        ]
        return [one for one in listed if db in (None, one.part.db) and table in (None, one.part.table)]

    def version(self) -> str:
        """Return what the server says of its version; up to Hive 3 that is the one of its interface."""
        return str(self._repeat("getVersion"))

    # How.

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Have this thread's calls in the block fail after *seconds* in all, instead of a time limit each.

        Each server has an equal part of that for its answer: one that hangs leaves time to ask the next.
        """
        outer = self._until, self._each
        until, each = time.monotonic() + seconds, max(_SHORTEST, seconds / len(self.addresses))
        self._limits.until, self._limits.each = min(until, self._until), min(each, self._each)
        try:
            yield
        finally:
            self._limits.until, self._limits.each = outer

    @property
    def _until(self) -> float:
        return getattr(self._limits, "until", math.inf)

    @property
    def _each(self) -> float:
        return getattr(self._limits, "each", math.inf)

    def _limit_ms(self) -> int | None:
        """Return how long this thread may wait for the next answer; None where the timeout alone limits it."""
        seconds = min(self._each, max(_SHORTEST, self._until - time.monotonic()))
        return None if seconds == math.inf else math.ceil(seconds * 1000)

    def _repeat(self, name: str, *arguments: Any) -> Any:
        return self._again(self._call, name, arguments, None, 0)

    def _send(self, name: str, *arguments: Any, server: str | None = None, patience_ms: int = 0) -> Any:
        return self._once(self._call, name, arguments, server, patience_ms)

    def _call(self, name: str, arguments: tuple[Any, ...], server: str | None, patience_ms: int) -> Any:
        try:
            with self._pool.connection() as connection:
                if server not in (None, connection.address):
                    raise FailedOver("another metastore is in use now", uri=connection.address, meant=server)
                self.calls[name] += 1
                limit_ms = self._limit_ms()
                limit = {} if limit_ms is None else {"limit_ms": limit_ms}
                return connection.call(name, *arguments, patience_ms=patience_ms, **limit)
        except (NotSent, LostReply):
            self.failures += 1
            raise

    def _passes(self, state: RetryCallState, errors: tuple[type[Exception], ...]) -> bool:
        """Return whether what failed is of *errors* and may be over soon."""
        error = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(error, errors) or isinstance(error, FailedOver):
            return False  # What fails over to another server is for the caller to decide.
        if isinstance(error, ServerFailed):
            return state.attempt_number < _FAILURES
        return self._pool.reached or isinstance(error, LostReply)

    def _retrying(self, *errors: type[Exception]) -> Any:
        """Return what calls a function again on *errors*, for one timeout, and until each server had its chance."""
        usual = stop_after_delay(self.access.timeout_ms / 1000) & stop_after_attempt(len(self.addresses))
        return Retrying(
            retry=lambda state: self._passes(state, errors),
            wait=wait_random_exponential(multiplier=0.1, max=1),
            stop=lambda state: usual(state) or time.monotonic() >= self._until,
            reraise=True,
        )


def client_of(properties: Mapping[str, str], *, timeout_ms: int) -> MetastoreClient:
    """Return the client for PyIceberg's ``HiveCatalog`` properties: ``uri``, ``ugi``, ``hive.kerberos-*``."""
    kerberos = properties.get("hive.kerberos-authentication", "false").lower() == "true"
    return MetastoreClient(
        properties["uri"],
        Access(
            timeout_ms=timeout_ms,
            ugi=properties.get("ugi"),
            kerberos_service=properties.get("hive.kerberos-service-name", "hive") if kerberos else None,
        ),
    )


def _address(uri: str) -> str:
    parts = urlsplit(uri)
    try:
        port = parts.port or 9083
    except ValueError:
        port = 0
    if parts.scheme != "thrift" or not parts.hostname or not port or parts.path.strip("/"):
        raise ConfigError("this is no uri of a metastore", key="uri", value=uri, accepted="thrift://host:port")
    return f"thrift://{parts.hostname}:{port}"


__all__ = [
    "FailedOver",
    "InvalidObject",
    "InvalidOperation",
    "ListedLock",
    "LockPart",
    "LockType",
    "MetaError",
    "MetastoreClient",
    "client_of",
]
