"""Runs statements on a coordinated catalog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.config import OperationLocks
from commit_coord.errors import LockError, StatementError
from commit_coord.iceberg.named_partitions import OPEN, partition_levels
from commit_coord.locks.hive_lease import HiveLease, HiveLeases, LeaseObject
from commit_coord.model import LockMode, LockScope, LockState, Reach, Resource
from commit_coord.protocol.hierarchy import lock_target
from commit_coord.sql import show
from commit_coord.sql.grammar import located, parse
from commit_coord.sql.names import Names
from commit_coord.sql.operations import execute
from commit_coord.sql.plan import locks_of
from commit_coord.sql.show import Answer
from commit_coord.sql.statement import (
    CreateDatabase,
    CreateTable,
    Describe,
    DropDatabase,
    DropForceLease,
    DropTable,
    ExplainLocks,
    Help,
    Leased,
    Lock,
    PartitionClause,
    QualifiedName,
    Rename,
    ShowDatabases,
    ShowLease,
    ShowLocks,
    ShowTables,
    Statement,
    Unlock,
)
from commit_coord.table import Rewriter, rewrite_here
from commit_coord.table.operation_locks import locks_to_ask_for

logger = logging.getLogger(__name__)

_WITHOUT_COMMIT = CreateDatabase, CreateTable, DropDatabase, DropTable, Rename
"""Statements that change the catalog itself. No check at a commit finds what conflicts with them."""


class Session:
    """A person's or a program's statements, one after the other.

    Args:
        catalog: Where the tables and locks are.
        database: Of names that name none.
        all_columns: Whether SHOW LOCKS answers in thirteen columns, as with Hive's ``DbTxnManager``, instead of two.
        rewrite: The function that executes CONCATENATE; ``commit_coord.spark.rewriter`` does it in a Spark session.
    """

    def __init__(
        self,
        catalog: CoordinatedCatalog,
        *,
        database: str = "default",
        all_columns: bool = False,
        rewrite: Rewriter = rewrite_here,
    ) -> None:
        self.catalog = catalog
        self.names = Names(catalog, database, rewrite)
        self.all_columns = all_columns

    def run(self, text: str) -> Answer:
        """Return what the statement *text* answers.

        Raises:
            StatementError: It is malformed, or names what is not there. Nothing was done.
            LockError: It could not get or free the locks that it is about.
        """
        statement = parse(text)
        try:
            return self._answer(statement, text)
        except StatementError as error:
            raise located(error, text) from error.__cause__

    def _answer(self, statement: Statement, text: str) -> Answer:
        match statement:
            case Help():
                return show.show_help()
            case ShowDatabases(pattern=pattern):
                return show.show_names("database_name", self.names.databases(), pattern)
            case ShowTables(database=database, pattern=pattern):
                names = [table[-1] for table in self.names.tables_of(database)]
                return show.show_names("tab_name", names, pattern)
            case Describe(table=name, extended=extended):
                return show.describe(self.names.table(name), extended=extended)
            case ShowLocks():
                return self._show(statement)
            case ExplainLocks(statement=explained, formatted=formatted):
                return show.explain_locks(self._locks(explained, text), formatted=formatted)
            case Lock(mode=mode):
                return self._lock(statement, mode, text)
            case Unlock():
                return self._unlock(statement)
            case ShowLease(objects=objects):
                return show.show_lease(self._leases(HiveLeases.list_lease, objects))
            case DropForceLease(objects=objects):
                ended = self._leases(HiveLeases.force_drop_lease, objects)
                return show.message(f"ended {len({lease.lease_id for lease in ended})} leases")
            case DropTable(table=name, if_exists=True) if not self.catalog.table_exists(self.names.identifier(name)):
                return show.message(f"there is no table {name}")
            case DropDatabase(database=database, if_exists=True) if not self.names.has_database(database):
                return show.message(f"there is no database {database}")
        return self._execute(statement, text)

    def _execute(self, statement: Statement, text: str) -> Answer:
        """Do what *statement* says under its locks; they are planned again once they are held.

        1. We plan the locks of a partition.   2. Another client changes how the table is partitioned.
        3. We get our locks, which are not those that the statement needs now.
        """
        wanted = locks_of(statement, self.names)
        checked = not isinstance(statement, _WITHOUT_COMMIT)
        while (
            missing := locks_to_ask_for(self.catalog, wanted, checked_at_commit=checked)
        ) and self.catalog.settings.operation_locks is not OperationLocks.OFF:
            with self.catalog.lock_change(missing, statement=text):
                planned, wanted = wanted, locks_of(statement, self.names)
                if planned == wanted:
                    return execute(statement, self.names)
        return execute(statement, self.names)

    def _locks(self, statement: Statement, text: str) -> Iterable[tuple[Resource, LockMode]]:
        """Return the locks that *statement* takes, parents included."""
        locks = locks_of(statement, self.names, explained=True)
        return self.catalog.lock_request(locks, statement=text).locks if locks else ()

    def _show(self, statement: ShowLocks) -> Answer:
        resource = None
        if statement.database is not None or statement.table is not None:
            resource = self._resource(statement)
        listed = self.catalog.locks.locks(resource)
        if resource is not None and (statement.database is not None or statement.partition is not None):
            listed = [entry for entry in listed if self.catalog.locks.is_on(entry, resource)]  # Not what lies below it.
        if self.all_columns:
            return show.show_all_columns(listed)
        operations = [entry for entry in listed if entry.scope is LockScope.OPERATION]
        return show.show_locks(
            operations, on="db" if statement.database is not None else "tab", extended=statement.extended
        )

    def _lock(self, statement: Lock, mode: LockMode, text: str) -> Answer:
        resource = self._resource(statement)
        request = self.catalog.lock_request([(resource, mode)], statement=text, explicit=True)
        try:
            self.catalog.acquire_operation(request)
        except LockError:
            raise  # It left nothing.
        except BaseException:
            # 1. The lock is granted.   2. Ctrl-C, on the way to us.   3. Nobody knows of it, and it has no end.
            try:
                self.catalog.locks.unlock(request_id=request.request_id)
            except LockError:
                logger.warning(
                    "a lock was perhaps granted and stays: unlock request %s", request.request_id, exc_info=True
                )
            raise
        in_process = self.catalog.locks.guarantees.reach == Reach.PROCESS
        ends = "UNLOCK, or until this process ends," if in_process else "UNLOCK"
        return show.message(f"locked until {ends}: {request}".replace(",:", ":"))

    def _unlock(self, statement: Unlock) -> Answer:
        resource = self._resource(statement)
        is_on = self.catalog.locks.is_on
        present = self.catalog.locks.locks(resource, scope=LockScope.OPERATION)
        # A statement that waits keeps its place, and is perhaps granted by this one.
        locked = [entry for entry in present if entry.explicit and entry.state is LockState.ACQUIRED]
        # A lock of a partition holds its table too, and is not what UNLOCK of the table is about.
        kept = {entry.request_id for entry in present if not is_on(entry, resource)}
        shown = [entry for entry in locked if entry.request_id not in kept]
        freed = self.catalog.unlock(shown=shown, why="UNLOCK statement") if shown else ()
        if freed:
            return show.message(f"freed {len(freed)} locks on {resource}")
        held = next((one for one in present if is_on(one, resource) and one.state is LockState.ACQUIRED), None)
        if held is None:
            return show.message(f"nobody has locked {resource}")
        return show.message(
            f"no LOCK statement has locked {resource}: {held.owner} holds it until that operation ends; "
            "`commit-coord unlock` frees it by force"
        )

    def _resource(self, statement: ShowLocks | Lock | Unlock) -> Resource:
        if statement.database is not None:
            return Resource((self.names.database(statement.database),))
        assert statement.table is not None
        table = self.names.table(statement.table)
        resource = Resource.table(table.name())
        if statement.partition:
            resource = lock_target(resource, partition_levels(table, statement.partition.named))
        return self.catalog.spelled(resource)

    def _leases(
        self, ask: Callable[[HiveLeases, list[LeaseObject]], list[HiveLease]], objects: Leased
    ) -> list[HiveLease]:
        if not self.catalog.locks.guarantees.mutual_exclusion:
            return []  # Locks are turned off, and nobody has any.
        named = [LeaseObject.of(self._leasable(name, partition)) for name, partition in objects]
        return ask(self.catalog.leases, named)

    def _leasable(self, name: QualifiedName, partition: PartitionClause | None) -> Resource:
        """Return what *name* and *partition* mean; a table that is not there has no columns to hold them against."""
        table = Resource.table(self.names.identifier(name))
        if partition is None:
            return table
        if self.catalog.table_exists(self.names.identifier(name)):
            return lock_target(table, partition_levels(self.names.table(name), partition.named))
        return lock_target(table, [None if value is OPEN else f"{key}={value}" for key, value in partition.values])
