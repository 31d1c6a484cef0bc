"""The coordinated catalog over PyIceberg's SQL catalog tables, on SQLite or PostgreSQL.

The tables are those of PyIceberg's ``SqlCatalog`` and Java's ``JdbcCatalog``, so unmodified readers and writers see
the same tables; theirs is a compare-and-set on the same column, so nobody overwrites anybody.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from sqlalchemy import Connection, Engine, event, make_url, text
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.opening import open_locks
from commit_coord.catalog.sql_changes import KEY, NamedRows, send_once
from commit_coord.catalog.sql_namespaces import SqlNamespaces
from commit_coord.catalog.sql_views import SqlViews
from commit_coord.config import Configuration, Settings, configure
from commit_coord.coordinator import PointerSwap
from commit_coord.errors import CommitStateUnknown, ConfigError, DatabaseUnavailable
from commit_coord.extras import install
from commit_coord.iceberg.attempt import table_name
from commit_coord.locks.hive_lease import not_live
from commit_coord.locks.sql.postgres import keepalive_options
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BUSY_TIMEOUT_MS = 30_000
"""SQLite: how long a statement waits for another process's transaction. These take milliseconds."""

_AGAIN = Backoff(initial_ms=10, maximum_ms=500)
"""Between tries while a server is started again."""

_POINTER = f"SELECT metadata_location FROM iceberg_tables WHERE {KEY}"
_SWAP = text(
    "UPDATE iceberg_tables SET metadata_location = :location, previous_metadata_location = :base "
    f"WHERE {KEY} AND metadata_location = :base"
)
_CREATE = text(
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) "
    "VALUES (:catalog, :namespace, :name, :location)"
)
_TABLES_ONLY = " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"

_DECLARATIONS = text(
    "CREATE TABLE IF NOT EXISTS commit_coord_catalogs "
    "(catalog_name VARCHAR(255) PRIMARY KEY, lock_impl TEXT, lock_service VARCHAR(1000), process VARCHAR(255))"
)
_WIDEN = "ALTER TABLE commit_coord_catalogs ALTER COLUMN lock_impl TYPE TEXT"
"""What makes room for the path of a class: earlier versions made the column 64 characters wide."""
_DECLARED = text("SELECT lock_impl, lock_service, process FROM commit_coord_catalogs WHERE catalog_name = :catalog")
_DECLARE = text("INSERT INTO commit_coord_catalogs VALUES (:catalog, :impl, :service, :process)")
_UNDECLARE = text("DELETE FROM commit_coord_catalogs WHERE catalog_name = :catalog")


class CoordinatedSqlCatalog(CoordinatedCatalog, SqlNamespaces):
    """PyIceberg's ``SqlCatalog`` with coordinated commits.

    Args:
        name: The catalog; several may live in one database.
        properties: See ``docs/configuration.md``; what the environment and ``.pyiceberg.yaml`` say is merged in.

    Raises:
        ConfigError: A setting is unknown or malformed, the database can't be reached, or other processes use this
            catalog with another lock manager.
    """

    def __init__(self, name: str, **properties: Any) -> None:
        configuration = configure(name, properties)
        self._lease_ms = configuration.settings.lock_heartbeat_timeout_ms
        self._type_filter = ""
        _refuse_malformed(configuration.properties["uri"])
        try:
            SqlCatalog.__init__(self, name, **configuration.properties)
        except ModuleNotFoundError as error:
            # PyIceberg turns a ModuleNotFoundError of a catalog class into a plain "could not initialize".
            raise ConfigError(
                f"a database driver is missing: {error}", key="uri", accepted=install("postgres")
            ) from error
        except SQLAlchemyError as error:
            # The driver's own errors say no more, in a hundred lines.
            raise _unopened(configuration.properties["uri"], error) from None
        self.view_store: SqlViews | None = None
        if self._schema_version == "v1":
            self._type_filter = _TABLES_ONLY
            self.view_store = SqlViews(name, self._connected, self._fenced)
        self._pointer_statement = text(_POINTER + self._type_filter)
        self._rows = NamedRows(
            self._connected,
            self._key,
            self.pointer,
            kind="Table",
            missing=NoSuchTableError,
            taken=TableAlreadyExistsError,
            only=self._type_filter,
        )
        _close_connections_before_fork(self.engine)
        # Also of a catalog that nobody closed: a connection that is collected while it is open warns.
        weakref.finalize(self, self.engine.dispose).atexit = False
        self._declare_locks(configuration)
        self._configure(configuration)
        self._coordinate(self, open_locks(self.settings, self.events, space=name))

    def _init_catalog(self) -> None:
        """Make the catalog's tables, also when several processes start at once."""
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine, "connect", _prepare_sqlite)
        else:
            _bound_silence(self.engine, self._lease_ms)
        try:
            super()._init_catalog()
        except (OperationalError, ProgrammingError, IntegrityError) as error:
            # 1. Two processes find no tables. 2. The first creates them. 3. The second gets the error that they exist.
            if "exists" not in str(error):
                raise
            super()._init_catalog()

    def _add(self, table: Identifier, location: str, metadata: TableMetadata) -> None:
        """See :meth:`CoordinatedCatalog._add`; the row is sent once, as a swap is.

        1. We send COMMIT, and the connection breaks.   2. We find no table of the name: PostgreSQL still waits for its
        standby, or the table is there and another client renames it.   3. The table is there.   So what is seen after a
        lost reply proves that the table was made, and never that it was not.
        """
        result = self.swap(table, None, location)
        if result is SwapResult.MOVED:
            raise TableAlreadyExistsError(f"Table {table_name(table)} already exists")
        if result is SwapResult.LOST_REPLY and not self._is_seen(table, location):
            raise CommitStateUnknown(
                "it is not known whether the table was created; its metadata file is kept; look for the table first",
                table=table_name(table),
                location=location,
            )

    def _drop(self, table: Identifier, location: str | None = None) -> None:
        """See :meth:`CoordinatedCatalog._drop`; also of a row without a pointer, which PyIceberg lists and drops."""
        self._rows.drop(table, location)

    def _rename(self, old: Identifier, new: Identifier) -> None:
        """See :meth:`CoordinatedCatalog._rename`."""
        self._refuse_missing_namespace(new)
        self._rows.rename(old, new)

    # The pointer store.

    def pointer(self, table: tuple[str, ...]) -> str | None:
        """Return the metadata location of *table*, None when there is no such table."""
        return self._connected(lambda connection: self._read(connection, table))

    def _read(self, connection: Connection, table: tuple[str, ...]) -> str | None:
        location: str | None = connection.execute(self._pointer_statement, self._key(table)).scalar()
        return location

    def swap(self, table: tuple[str, ...], base: str | None, location: str) -> SwapResult:
        """Set the pointer from *base* to *location*; with no base, create the table.

        An error before COMMIT was sent is raised, or the swap is tried again: the transaction is rolled back whatever
        happens. For an error of COMMIT itself see :func:`~commit_coord.catalog.sql_changes.send_once`.
        """
        return self.swap_all([PointerSwap(table=table, base=base, location=location)])

    def swap_under_leases(
        self, lease_ids: Sequence[int], table: tuple[str, ...], base: str | None, location: str
    ) -> SwapResult:
        """Swap if the leases are live: in one transaction, where both are in one database."""
        return self.swap_all([PointerSwap(table=table, base=base, location=location)], lease_ids)

    def swap_all(self, swaps: Sequence[PointerSwap], lease_ids: Sequence[int] = ()) -> SwapResult:
        """Swap all pointers in one transaction, or none; see :meth:`swap`.

        Rows are taken in the order of their names, so two transactions never wait for each other.
        """
        for swap in swaps:
            if swap.base is None and self.view_exists(swap.table):
                raise TableAlreadyExistsError(f"View with same name already exists: {table_name(swap.table)}")
        ordered = sorted(swaps, key=lambda swap: swap.table)

        def swapped(connection: Connection) -> bool:
            for swap in ordered:
                values = {**self._key(swap.table), "base": swap.base, "location": swap.location}
                if connection.execute(_CREATE if swap.base is None else _SWAP, values).rowcount < 1:
                    return False  # what was swapped before it is rolled back
            return True

        try:
            names = ", ".join(table_name(swap.table) for swap in ordered)
            return send_once(self._connected, self._fenced(lease_ids, swapped), names)
        except IntegrityError:
            return SwapResult.MOVED  # another client has created the table

    def _fenced(self, lease_ids: Sequence[int], change: Callable[[Connection], bool]) -> Callable[[Connection], bool]:
        """Return *change*, on the condition that the Hive leases are live.

        Leases in another database are asked for now: one that ends before the change is not noticed.

        Raises:
            LeaseEnded: A lease that is asked for now has ended; what is returned raises it for those in this database.
        """
        if not self._leases_are_here:
            self._ensure_live(lease_ids)
            return change
        # In one order, so that two transactions never wait for each other.
        fences = {lease_id: self.leases.fence(lease_id) for lease_id in sorted(lease_ids)}

        def fenced(connection: Connection) -> bool:
            for lease_id, (statement, values) in fences.items():
                if not connection.execute(text(statement), values).all():
                    raise not_live(lease_id)
            return change(connection)

        return fenced

    @property
    def _leases_are_here(self) -> bool:
        """Whether the leases are in the database of the pointers."""
        return bool(self.settings.lock_uri == self.configuration.properties["uri"])

    def _connected(self, work: Callable[[Connection], T]) -> T:
        """Return what *work* returns; while the server cuts its connection or takes none, try again for one lease.

        So a server that is started again, or a connection that died while it was idle, costs time and no commit.
        SQLite waits by itself.

        Args:
            work: Has changed nothing when it raises.
        """
        clock, tries = self.coordinator.clock, 0
        until = clock.now() + self.settings.lock_heartbeat_timeout_ms / 1000
        while True:
            try:
                with self.engine.connect() as connection:
                    return work(connection)
            except (OperationalError, InterfaceError):
                if self.engine.dialect.name == "sqlite" or clock.now() >= until:
                    raise
                logger.info("the catalog's database was not reached", exc_info=True)
            clock.sleep(next_wait(_AGAIN, tries, clock.random()))
            tries += 1

    def _key(self, table: tuple[str, ...]) -> dict[str, Any]:
        *namespace, name = table
        return {"catalog": self.name, "namespace": ".".join(namespace), "name": name}

    # One catalog, one lock manager.

    def _declare_locks(self, configuration: Configuration) -> None:
        """Raise if other processes coordinate this catalog with another lock manager.

        Locks of two managers do not see each other. The compare-and-set would still keep every commit safe, but
        jobs that rely on operation locks would run into each other.
        """
        settings = configuration.settings
        service = _lock_service(settings)
        mine = {
            "catalog": self.name,
            "impl": settings.lock_impl,
            "service": service,
            "process": self.host.owner().process if settings.lock_impl == "memory" else "",
        }
        try:
            self._declare(mine)
        except (OperationalError, ProgrammingError):
            # A database that can be read but not written serves readers; a commit will say so itself.
            logger.info("the lock manager of catalog %s could not be declared", self.name, exc_info=True)

    def _declare(self, mine: dict[str, str]) -> None:
        found = self._declared()
        if (
            found is not None
            and found.process
            and found.process != mine["process"]
            and self.host.is_dead(found.process)
        ):
            with self.engine.begin() as connection:
                connection.execute(_UNDECLARE, mine)
            found = None
        if found is None:
            try:
                with self.engine.begin() as connection:
                    connection.execute(_DECLARATIONS)
                    connection.execute(_DECLARE, mine)
            except IntegrityError:
                found = self._declared()  # another process was faster
            except DataError as error:
                raise ConfigError(
                    "the lock manager's name is too long for its database column, which an earlier version created; "
                    "widen the column",
                    catalog=self.name,
                    key="lock-impl",
                    value=mine["impl"],
                    accepted=_WIDEN,
                    cause=error.orig,
                ) from error
        if found is None:
            return
        if (found.lock_impl, found.lock_service) != (mine["impl"], mine["service"]):
            raise ConfigError(
                "other processes use this catalog with another lock manager: use the same one, or stop them and run "
                "`commit-coord config --adopt-locks`",
                catalog=self.name,
                key="lock-impl",
                value=f"{mine['impl']} {mine['service']}".strip(),
                declared=f"{found.lock_impl} {found.lock_service}".strip(),
            )
        if found.process and found.process != mine["process"]:
            raise ConfigError(
                "another process uses this catalog with the `memory` lock manager, which serves one process alone",
                catalog=self.name,
                key="lock-impl",
                value=mine["impl"],
                accepted="lease",
                declared_by=found.process,
            )

    def _declared(self) -> Any:
        with self.engine.connect() as connection:
            try:
                return connection.execute(_DECLARED, {"catalog": self.name}).one_or_none()
            except (OperationalError, ProgrammingError):
                return None  # no process has declared anything yet: there is no such table

    @classmethod
    def adopt_locks(cls, name: str, **properties: Any) -> None:
        """Forget which lock manager the catalog was used with: the next client declares its own.

        Call it when every process that uses the catalog has been stopped.
        """
        plain = SqlCatalog(name, **configure(name, properties).properties)
        with plain.engine.begin() as connection:
            connection.execute(_DECLARATIONS)
            connection.execute(_UNDECLARE, {"catalog": name})
        plain.close()


def _lock_service(settings: Settings) -> str:
    """Return where the locks are."""
    match settings.lock_impl:
        case "none":
            return ""
        case "zookeeper":
            hosts, slash, chroot = settings.lock_uri.partition("/")
            return ",".join(sorted(hosts.split(","))) + f"{slash}{chroot} {settings.lock_zk_namespace}"
        case _:
            return _service(settings.lock_uri)


def _service(uri: str) -> str:
    """Return *uri* without its secrets and its driver: two spellings of one service are one service."""
    try:
        url = make_url(uri)
    except SQLAlchemyError:
        return uri
    if url.get_backend_name() == "sqlite" and url.database:
        # SQLite's own spelling, file:/path, carries options such as ?mode=ro.
        url = url.set(database=os.path.realpath(url.database.removeprefix("file:")))
    return url.set(drivername=url.get_backend_name(), username=None, password=None, query={}).render_as_string()


def _unopened(uri: str, error: SQLAlchemyError) -> ConfigError:
    """Return the error about a database that can't be opened."""
    message, facts = "the catalog's database can't be opened", {"key": "uri", "value": _service(uri)}
    cause: object = getattr(error, "orig", error)
    url = make_url(uri)
    if url.get_backend_name() != "sqlite":
        accepted = "a server that is up, and a user and a password that it knows"
        is_unavailable = isinstance(error, OperationalError | InterfaceError)
        return (DatabaseUnavailable if is_unavailable else ConfigError)(
            message, **facts, cause=cause, accepted=accepted
        )
    folder = os.path.dirname(os.path.abspath((url.database or "").removeprefix("file:")))
    if not os.path.isdir(folder):
        cause = f"there is no folder {folder}"
    return ConfigError(message, **facts, cause=cause, accepted="the file of an SQLite database")


def _refuse_malformed(uri: str) -> None:
    try:
        make_url(uri)
    except (SQLAlchemyError, ValueError):  # the latter: a port that is no number
        shown = uri.rpartition("@")[2]
        raise ConfigError(
            "not a database URL", key="uri", value=shown, accepted="coord+postgresql://user@host:5432/database"
        ) from None


def _prepare_sqlite(connection: Any, record: Any) -> None:
    """Let readers and one writer work side by side, and writers wait for each other."""
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    try:
        cursor.execute("PRAGMA journal_mode = WAL")
    except Exception:
        # A read-only file keeps the mode that it has.
        logger.debug("SQLite stays in its journal mode", exc_info=True)
    cursor.close()


def _bound_silence(engine: Engine, lease_ms: int) -> None:
    """Limit the effect of a silently broken connection and of a stopped client to the time of a lease.

    1. A holder sends the UPDATE of its swap, and is stopped before its COMMIT; its latch runs out.
    2. The next holder's UPDATE waits for the row, for as long as the first one is stopped.

    So the server ends a transaction in which nothing happens; its COMMIT is then a lost reply.
    """

    @event.listens_for(engine, "do_connect")
    def connecting(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        if not dialect.driver.startswith("psycopg"):
            return  # no other driver hands its options to libpq
        options.update(keepalive_options(lease_ms) | options)

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET idle_in_transaction_session_timeout = {lease_ms:d}")
        connection.commit()


def _close_connections_before_fork(engine: Engine) -> None:
    """Let a forked child open its own connections.

    One connection must not serve two processes. And SQLite's library notes in memory which file locks its process
    has; a child inherits the notes and not the locks. So no idle connection may be open when a process forks.
    """
    reference = weakref.ref(engine)

    def close() -> None:
        if (found := reference()) is not None:
            found.dispose()

    os.register_at_fork(before=close)
