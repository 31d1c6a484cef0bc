"""Commits of clients of other protocols: requirements and updates, without any trace of what the client read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCreate, AssertTableUUID, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from commit_coord.catalog.sent_before import SentBefore
from commit_coord.coordinator import Committed, Coordinator, TableAttempt, delete_quietly
from commit_coord.errors import (
    CheckpointInTable,
    CommitConflict,
    CommitError,
    CommitNotApplied,
    CommitStateUnknown,
    StaleRead,
    UpdatesDoNotFit,
)
from commit_coord.iceberg import blind, manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import NO_SNAPSHOT, Append, Attempt, Beginning, table_name
from commit_coord.iceberg.became_required import RowsOfSnapshots
from commit_coord.iceberg.java_updates import as_java_applies, as_java_creates
from commit_coord.iceberg.rebase import Conflict, snapshots_and_branches, taken_column_ids
from commit_coord.iceberg.specs import FilesOfSnapshots
from commit_coord.iceberg.storage import metadata_places
from commit_coord.iceberg.streams import carries_offsets, checkpoint_in_table, offsets_moved

logger = logging.getLogger(__name__)

_Asked = tuple[Identifier, Sequence[TableRequirement], Sequence[TableUpdate]]
C = TypeVar("C", bound=CommitConflict)


class RequestedCommit:
    """One commit to one table.

    It first checks whether the commit has already landed: if it is a repeat, the files that it names may be deleted.

    Args:
        coordinator: Commits.
        table: The table; created if a requirement says that it does not exist.
        requirements: Everything on which the client relies.
        updates: Applied to the head in this order.
        declared: The client's declaration for all its appends, ``blind`` or ``checked``; None if there is none.
        request_id: A UUID that the client has chosen and may use again; None makes one.
        since: The table as the first copy of the request found it, if this is another copy and that is known.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        table: Identifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        declared: str | None,
        request_id: str | None,
        since: Beginning | None,
    ) -> None:
        self._coordinator = coordinator
        self._declared = declared
        self._added = snapshots_and_branches(updates)
        snapshots = [snapshot for snapshot, _ in self._added]
        self._files, self._rows = FilesOfSnapshots(snapshots), RowsOfSnapshots(snapshots)
        self._creates = any(isinstance(requirement, AssertCreate) for requirement in requirements)
        self._asked = Attempt(
            request_id=request_id or str(coordinator.host.new_id()),
            table=tuple(table),
            table_uuid=None,
            base_location=None,
            requirements=tuple(requirements),
            updates=as_java_creates(updates) if self._creates else tuple(updates),
            since=since,
            reads_data=True,  # the updates depend on the head, so they are made again for each head
        )
        self.before = SentBefore(
            coordinator=coordinator,
            table=self._asked.table,
            updates=self._asked.updates,
            creates=self._creates,
            table_uuid=next((each.uuid for each in requirements if isinstance(each, AssertTableUUID)), None),
            request_id=request_id,
            since=since,
        )
        self._land = partial(coordinator.commit, repeatable=request_id is not None)
        self._candidate = None if self._creates else blind.candidate(requirements, updates)
        self._append: Append | None = None
        self._written: list[str] = []
        """The manifests that this commit has written."""
        self._sent = False
        """Whether the coordinator was called."""

    def commit(self, check: Callable[[], None]) -> Committed:
        """Land the commit, once.

        Args:
            check: Raises an error if the commit must not land. It is called unless the commit has already landed.

        Raises:
            Exception: Whatever *check* raises. Nothing was done.
            CheckpointInTable: Its stream has already committed this checkpoint.
            StaleRead: The offsets of Kafka Connect have moved since its coordinator read them.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
            CommitStateUnknown: As :meth:`SentBefore.head` and :meth:`SentBefore.landed_in`.
            NoSuchTableError: The table does not exist, and the commit does not create it.
            ValueError: The declaration is not known.
        """
        try:
            return self._landed_once(check)
        except CommitError as error:
            if not self._sent:
                self._coordinator.emit_ended([self._asked.table], self._asked.request_id, error)
            raise

    def _landed_once(self, check: Callable[[], None]) -> Committed:
        try:
            committed = self._commit(check)
        except CommitNotApplied as refused:
            landed = self.before.landed_after(refused)
            self._delete_unused(landed)
            if landed is not None:
                return landed
            self.refuse_late_streams(refused)
            raise
        except BaseException:
            if not self._sent:
                self._delete_unused(None)
            raise
        self._delete_unused(committed)
        return committed

    def _commit(self, check: Callable[[], None]) -> Committed:
        if self._creates:
            if (landed := self.before.landed_now()) is not None:
                return landed
            check()
            self._sent = True
            (committed,) = self._land([self._asked])
            return committed
        head, location = self.before.head()
        if (landed := self.before.landed_in(head, location)) is not None:
            return landed
        check()
        attempt = self._on(head, location)
        self._sent = True
        (committed,) = self._land([attempt], replan=self._on)
        return committed

    def change(self, request_id: str) -> TableAttempt:
        """Return the commit as a part of the commit *request_id* to several tables. Its requirements decide.

        Raises:
            CommitConflict: A requirement is not met.
            CommitStateUnknown: As :meth:`SentBefore.head`.
            NoSuchTableError: The table does not exist, and the commit does not create it.
        """
        self._candidate = None
        self._asked = replace(self._asked, request_id=request_id)
        if self._creates:
            return TableAttempt(attempt=self._asked)
        return TableAttempt(attempt=self._on(*self.before.head()), replan=self._on)

    def _on(self, head: TableMetadata, location: str) -> Attempt:
        """Return the attempt for *head*: a blind append, or the commit if its requirements are met.

        Raises:
            CommitConflict: A requirement is not met, its new columns have ids of other ones, or its files do not fit.
                Checking this before the latch is taken saves the wait for it.
            UpdatesDoNotFit: As :meth:`_applied`.
            UpdatesDoNotFit, CommitStateUnknown: A file that it names can't be read, see :meth:`_unreadable`.
        """
        attempt = replace(
            self._asked,
            table_uuid=str(head.table_uuid),
            base_location=location,
            base_sequence_number=fast_metadata.sequence_number(head),
        )
        found = self._candidate
        if found is not None and self._is_declared(found, head) and (append := self._take(found, head)) is not None:
            return replace(
                attempt,
                requirements=found.requirements,
                updates=self._applied(found.updates, head),
                append=append,
                reads_data=bool(found.updates),
            )
        try:
            for requirement in self._asked.requirements:
                requirement.validate(head)
        except CommitFailedException as error:
            raise self._refused(CommitConflict, str(error)) from error
        if reason := taken_column_ids(self._asked, head):  # of a schema that the table has, nothing is left below
            raise self._refused(CommitConflict, reason)
        updates = self._applied(self._asked.updates, head)
        self._refuse_files_that_do_not_fit(head, updates)
        return replace(attempt, updates=updates)

    def _applied(self, updates: Sequence[TableUpdate], head: TableMetadata) -> tuple[TableUpdate, ...]:
        """Return *updates* with the ids that they have on *head*.

        Raises:
            CommitConflict: An id or sequence number was given to something else.
            UpdatesDoNotFit: A partition spec or sort order does not fit the columns.
        """
        try:
            return as_java_applies(updates, head)
        except CommitFailedException as error:
            raise self._refused(CommitConflict, str(error)) from error
        except (ValueError, ValidationError) as error:
            raise self._refused(UpdatesDoNotFit, str(error)) from error

    def _refuse_files_that_do_not_fit(self, head: TableMetadata, updates: Sequence[TableUpdate]) -> None:
        """Return if *head* has the partition specs of the files that the commit adds, and they all that it requires.

        Raises:
            CommitConflict: It has not, or a file may lack values of a column that became required.
            UpdatesDoNotFit, CommitStateUnknown: A file that the commit names can't be read, see :meth:`_unreadable`.
        """
        try:
            io = partial(self._coordinator.store.file_io, head.location)
            reason = self._files.misfit(head, updates, io) or self._rows.misfit(head, updates, io)
        except Exception as error:
            raise self._unreadable(head, error) from error
        if reason is not None:
            raise self._refused(CommitConflict, reason)

    def _is_declared(self, found: blind.Candidate, head: TableMetadata) -> bool:
        summary = found.snapshot.summary
        assert summary is not None, "an append says that it is one"
        return blind.is_declared(summary.additional_properties, self._declared, head.properties)

    def _take(self, found: blind.Candidate, head: TableMetadata) -> Append | None:
        """Return the append that is declared blind; None if the commit turns out to do more than append.

        Raises:
            CommitConflict: Its files do not fit the table.
            UpdatesDoNotFit, CommitStateUnknown: A file that it names can't be read, see :meth:`_unreadable`.
        """
        if self._append is not None:
            return self._append
        places = metadata_places(head)

        def new_location() -> str:
            self._written.append(places.new_metadata_location(f"{self._coordinator.host.new_id()}-m0.avro"))
            return self._written[-1]

        io = self._coordinator.store.file_io(head.location)
        try:
            taken = blind.take(found, head, io, new_location, self._coordinator.lists)
        except blind.NoAppend as reason:
            logger.info("an append is not blind, although declared: %s", reason)
            self._candidate = None
            return None
        except Exception as error:
            raise self._unreadable(head, error) from error
        if isinstance(taken, Conflict):
            raise self._refused(CommitConflict, taken.reason)
        self._append = taken
        return taken

    def _delete_unused(self, landed: Committed | None) -> None:
        """Delete the manifests that this commit has written and *landed* does not use."""
        if not self._written:
            return
        try:
            used = self._manifests(landed) if landed is not None else set()
        except Exception:
            logger.warning("it is not known whether the table uses these manifests, so they stay", exc_info=True)
            return
        for path in self._written:
            if path not in used:
                delete_quietly(self._coordinator.store.file_io(path), path)

    def _manifests(self, landed: Committed) -> set[str]:
        ((added, _),) = self._added  # an append adds one snapshot
        snapshot = landed.metadata.snapshot_by_id(added.snapshot_id)
        if snapshot is None:
            return set(self._written)  # the snapshot has expired; later ones may use the manifests
        io = self._coordinator.store.file_io(snapshot.manifest_list)
        return {manifest.manifest_path for manifest in manifest_list.read(io, snapshot.manifest_list)}

    # Streams.

    def refuse_late_streams(self, refused: CommitNotApplied) -> None:
        """Raise an error instead of *refused* if a retry would double rows of a stream; else return.

        Raises:
            CheckpointInTable: The stream has already committed this checkpoint.
            StaleRead: The offsets have moved since the client read them.
            CommitStateUnknown: The offsets may have moved, or may move before the client retries.
        """
        try:
            head, _ = self._coordinator.load(self._asked.table)
        except NoSuchTableError:
            return
        except Exception as error:
            self._keep_from_retrying(refused, error)
            logger.info("the table of a refused commit could not be read again", exc_info=True)
            return
        for snapshot, branch in self._added:
            summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            parent = NO_SNAPSHOT if snapshot.parent_snapshot_id is None else snapshot.parent_snapshot_id
            if reason := checkpoint_in_table(summary, branch, head):
                raise self._refused(CheckpointInTable, reason) from refused
            if reason := offsets_moved(summary, branch, head, parent):
                raise self._refused(StaleRead, reason) from refused
        if not isinstance(refused, CommitConflict):
            self._keep_from_retrying(refused, refused)

    def _keep_from_retrying(self, refused: CommitNotApplied, reason: Exception) -> None:
        """Check that no offsets are committed.

        1. A coordinator of Kafka Connect is refused for *reason*.   2. The offsets move, or have moved before.
        3. It retries on the new head without comparing them again. From that head on they have not moved: rows double.

        Raises:
            CommitStateUnknown: Some are. Such a client reads the offsets again before it commits the next time.
        """
        if any(carries_offsets(snapshot.summary) for snapshot, _ in self._added):
            raise CommitStateUnknown(
                f"this commit did not land ({reason}); do not retry it before you have read Kafka's offsets in the "
                "table: they may have moved, and a retry could write the rows twice",
                table=table_name(self._asked.table),
                request_id=self._asked.request_id,
            ) from refused

    def _unreadable(self, head: TableMetadata, error: Exception) -> UpdatesDoNotFit | CommitStateUnknown:
        """Return what the commit ends with because a file that it names can't be read: it may have landed before.

        A short read ends in any error: a number, a name or a compressed block may be cut.

        1. The commit lands, and its client deletes the files that the table does not use.   2. Its snapshot expires.
        3. The request arrives again. After a refusal, the client may delete files of the table. A table without
        snapshots uses none.
        """
        if isinstance(error, FileNotFoundError) and not head.snapshots:
            return self._refused(UpdatesDoNotFit, f"a file that it names does not exist: {error}")
        return CommitStateUnknown(
            "a file that the commit names does not exist or can't be read, perhaps because the commit has landed",
            table=table_name(self._asked.table),
            file=str(error),
        )

    def _refused(self, kind: type[C], reason: str) -> C:
        return kind(
            f"the commit did not land: {reason}",
            table=table_name(self._asked.table),
            request_id=self._asked.request_id,
        )


class RequestedCommits:
    """Several commits in one request, each to another table: all of them land, or none.

    Args:
        coordinator: Commits.
        requests: For each table, its name, requirements and updates.
        request_id: A UUID that the client has chosen and may use again; None makes one.
        since: By table, as for :class:`RequestedCommit`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        requests: Sequence[_Asked],
        request_id: str | None,
        since: Mapping[Identifier, Beginning],
    ) -> None:
        self._coordinator, self._request_id = coordinator, request_id
        self._parts = [RequestedCommit(coordinator, *each, None, request_id, since.get(each[0])) for each in requests]
        self._sent = False
        """Whether the coordinator was called."""

    def commit(self, check: Callable[[], None]) -> dict[Identifier, Committed]:
        """Land the commits, once; return the state of each table.

        Args:
            check: As for :meth:`RequestedCommit.commit`.

        Raises:
            Exception: Whatever *check* raises. Nothing was done.
            ConfigError: The catalog can swap only one pointer at a time. Nothing was done.
            NoSuchTableError: A table does not exist, and its commit does not create it. Nothing was done.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit_tables`.
        """
        coordinator = self._coordinator
        coordinator.require_multi_table()
        request_id = self._request_id or str(coordinator.host.new_id())
        try:
            return self._landed_once(check, request_id)
        except CommitError as error:
            if not self._sent:
                coordinator.emit_ended([part.before.table for part in self._parts], request_id, error)
            raise

    def _landed_once(self, check: Callable[[], None], request_id: str) -> dict[Identifier, Committed]:
        if (landed := self._landed(SentBefore.landed_now)) is not None:
            return landed
        check()
        try:
            changes = [part.change(request_id) for part in self._parts]
            self._sent = True
            return self._coordinator.commit_tables(changes, repeatable=self._request_id is not None)
        except CommitNotApplied as refused:
            if (landed := self._landed(partial(SentBefore.landed_after, refused=refused))) is not None:
                return landed
            for part in self._parts:
                part.refuse_late_streams(refused)
            raise

    def _landed(self, look: Callable[[SentBefore], Committed | None]) -> dict[Identifier, Committed] | None:
        """Return the state of each table if the commit has already landed; None if it has not.

        Raises:
            CommitStateUnknown: Some tables contain their part of the commit, and others do not show theirs. Or it has
                landed, and a table that it has changed is gone.
        """
        found = {part.before.table: look(part.before) for part in self._parts if part.before.leaves_traces}
        landed = {table: committed for table, committed in found.items() if committed is not None}
        if not landed:
            return None
        named = any(
            part.before.is_named_in(landed[part.before.table]) for part in self._parts if part.before.table in landed
        )
        if len(landed) < len(self._parts) and not named:
            # A part may leave no trace, its snapshot may have expired, or its table may have been dropped. Or another
            # commit has the same snapshot id.
            raise CommitStateUnknown(
                "some tables contain their part of the commit, and it is not known whether the others do; look for its "
                "rows there before you repeat it",
                table=", ".join(map(table_name, landed)),
            )
        for part in self._parts:
            table = part.before.table
            if table not in landed:
                try:
                    metadata, location = part.before.head()
                except NoSuchTableError as error:  # after a 404, the client would delete files of the other tables
                    raise CommitStateUnknown(
                        "the commit has landed, and one of its tables was renamed or dropped since, so its state can't "
                        "be returned; do not repeat the commit",
                        table=table_name(table),
                        request_id=self._request_id,
                    ) from error
                landed[table] = Committed(metadata=metadata, location=location, snapshot_ids=(), landed_before=True)
        return landed
