"""The commits of a catalog: PyIceberg's own, those of other protocols, and those to several tables."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from commit_coord.catalog.locking import LockingCatalog
from commit_coord.catalog.names import NamedCatalog
from commit_coord.catalog.requested import RequestedCommit, RequestedCommits
from commit_coord.coordinator import Committed
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt, table_name
from commit_coord.table import CatalogTransaction
from commit_coord.table.several import LoadingCatalog

CommitRequest = tuple[str | Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""A table, what its client relies on, and what is to be applied to it."""


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
    ) -> Committed:
        """Commit what a client of another protocol asks for: on the head, whichever it is, its requirements decide.

        An append that is declared to be blind follows any head. What has landed before is answered, and not done again;
        see :mod:`commit_coord.catalog.sent_before`.

        Args:
            identifier: The table. It is created where a requirement says that there is none.
            requirements: Everything that the client relies on; there is no other trace of what it has read.
            updates: Applied to the head in their order.
            declared: What the client says of all its appends: ``blind`` or ``checked``. None where it says nothing:
                the table's ``commit.append.blind`` counts. A snapshot may say otherwise by ``commit-coord.append``.
            request_id: A UUID that the client has chosen, by which it may ask for the same again; None makes one. The
                table's history carries it. The journal does not: who calls this remembers what was answered.

        Raises:
            NoSuchTableError: There is none of that name, and it is not to be created.
            CheckpointInTable: Its stream has committed the same before.
            StaleRead: The offsets that a coordinator of Kafka Connect has read have moved since.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
            ValueError: It declares something that nobody knows.
        """
        table = self._table_identifier(identifier)
        return RequestedCommit(self.coordinator, table, requirements, updates, declared, request_id).commit()

    def commit_requests(
        self, requests: Sequence[CommitRequest], *, request_id: str | None = None
    ) -> dict[Identifier, Committed]:
        """Commit *requests*, each to another table, as :meth:`commit_request` does one: all of them, or none.

        Their requirements decide, also of appends that are declared to be blind.

        Args:
            requests: What is asked for.
            request_id: As for :meth:`commit_request`.

        Returns:
            What became of each table.

        Raises:
            ConfigError: The catalog swaps the pointer of one table at a time. Nothing was done.
            ValueError: A table is named twice. Nothing was done.
            NoSuchTableError: One of the tables is not there, and is not to be created. Nothing was done.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit_several`.
        """
        named = [(self._table_identifier(table), requires, changes) for table, requires, changes in requests]
        names = [table_name(table) for table, *_ in named]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"nothing was done: the table {twice[0]} is named twice")
        return RequestedCommits(self.coordinator, named, request_id).commit()

    def transaction(self: LoadingCatalog, request_id: str | None = None) -> CatalogTransaction:
        """Return a transaction over several tables: what it stages of each lands together, or not at all.

        ::

            with catalog.transaction() as tx:
                tx.table("shop.orders").append(orders)
                tx.table("shop.stock").delete("item = 7")

        Args:
            request_id: Chosen by the caller: a UUID, or any text that means this commit and no other. A transaction
                that is made again with it lands once.

        Raises:
            ConfigError: The catalog swaps the pointer of one table at a time.
        """
        self.coordinator.require_several()
        return CatalogTransaction(self, request_id)
