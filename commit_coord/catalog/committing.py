"""The commits of a catalog: PyIceberg's own, those of other protocols, and those to several tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from commit_coord.catalog.locking import LockingCatalog
from commit_coord.catalog.names import NamedCatalog
from commit_coord.catalog.requested import RequestedCommit, RequestedCommits
from commit_coord.coordinator import Committed
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt, Beginning, table_name
from commit_coord.table import CatalogTransaction
from commit_coord.table.several import LoadingCatalog

TableCommit = tuple[str | Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""A table, the requirements of the commit to it, and the updates."""


class CommittingCatalog(LockingCatalog, NamedCatalog):
    """The catalog's methods that commit to its tables."""

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit *updates* to the table as it is now, if it meets *requirements*.

        The entry for callers that speak PyIceberg's own protocol; tables of this catalog say more (see ``Attempt``).
        """
        creates = any(isinstance(requirement, AssertCreate) for requirement in requirements)
        attempt = Attempt(
            request_id=str(self.host.new_id()),
            table=self._table_identifier(tuple(table.name())),
            table_uuid=None if creates else str(table.metadata.table_uuid),
            base_location=None if creates else table.metadata_location,
            base_sequence_number=fast_metadata.sequence_number(table.metadata),
            requirements=requirements,
            updates=updates,
        )
        (committed,) = self.coordinator.commit([attempt])
        return CommitTableResponse.model_construct(metadata=committed.metadata, metadata_location=committed.location)

    def commit_request(
        self,
        identifier: str | Identifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        *,
        declared: str | None = None,
        request_id: str | None = None,
        since: Beginning | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Committed:
        """Commit for a client of another protocol: on any head, the requirements decide whether the commit lands.

        An append that is declared blind follows any head. If the commit has already landed, its result is returned and
        nothing is done; see :mod:`commit_coord.catalog.sent_before`.

        Args:
            identifier: The table; created if a requirement says that it does not exist.
            requirements: Everything on which the client relies; nothing else tells what it has read.
            updates: Applied to the head in this order.
            declared: The client's declaration for all its appends, ``blind`` or ``checked``. With None, the table
                property ``commit.append.blind`` decides. The snapshot property ``commit-coord.append`` has precedence.
            request_id: A UUID that the client has chosen and may use again; None makes one.
            since: The table as the first copy of the request found it, if this is another copy and that is known. With
                it, this copy lands only if the table shows that no other one has.
            check: Raises an error if the commit must not land. It is called unless the commit has already landed.

        Raises:
            Exception: Whatever *check* raises. Nothing was done.
            NoSuchTableError: The table does not exist, and the commit does not create it.
            CheckpointInTable: Its stream has already committed this checkpoint.
            StaleRead: The offsets of Kafka Connect have moved since its coordinator read them.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
            ValueError: The declaration is not known.
        """
        table = self._table_identifier(identifier)
        commit = RequestedCommit(self.coordinator, table, requirements, updates, declared, request_id, since)
        return commit.commit(check)

    def commit_requests(
        self,
        requests: Sequence[TableCommit],
        *,
        request_id: str | None = None,
        since: Mapping[Identifier, Beginning] = MappingProxyType({}),
        check: Callable[[], None] = lambda: None,
    ) -> dict[Identifier, Committed]:
        """Commit *requests*, each to another table, like :meth:`commit_request`: all of them land, or none.

        The requirements decide, also for appends that are declared blind.

        Args:
            requests: The commits.
            request_id: As for :meth:`commit_request`.
            since: As for :meth:`commit_request`, by table.
            check: As for :meth:`commit_request`.

        Returns:
            For each table, its state after the commit.

        Raises:
            Exception: Whatever *check* raises. Nothing was done.
            ConfigError: The catalog can swap only one pointer at a time. Nothing was done.
            ValueError: A table is named twice. Nothing was done.
            NoSuchTableError: A table does not exist, and its commit does not create it. Nothing was done.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit_tables`.
        """
        named = [(self._table_identifier(table), requires, changes) for table, requires, changes in requests]
        begun = {self._table_identifier(table): beginning for table, beginning in since.items()}
        names = [table for table, *_ in named]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"nothing was done: the table {table_name(twice[0])} is named twice")
        return RequestedCommits(self.coordinator, named, request_id, begun).commit(check)

    def transaction(self: LoadingCatalog, request_id: str | None = None) -> CatalogTransaction:
        """Return a transaction over several tables: all its changes land together, or none.

        ::

            with catalog.transaction() as tx:
                tx.table("shop.orders").append(orders)
                tx.table("shop.stock").delete("item = 7")

        Args:
            request_id: Chosen by the caller: a UUID, or any text that is unique to this commit. A transaction that is
                repeated with the same id lands once.

        Raises:
            ConfigError: The catalog can swap only one pointer at a time.
        """
        self.coordinator.require_multi_table()
        return CatalogTransaction(self, request_id)
