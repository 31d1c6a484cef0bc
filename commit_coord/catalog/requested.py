"""Commits that clients of other protocols ask for: requirements and updates, and nothing of what was read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertCreate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from commit_coord.catalog.sent_before import SentBefore
from commit_coord.coordinator import Change, Committed, Coordinator, delete_quietly
from commit_coord.errors import CheckpointInTable, CommitConflict, CommitNotApplied, CommitStateUnknown, StaleRead
from commit_coord.iceberg import blind, manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import NO_SNAPSHOT, Append, Attempt, table_name
from commit_coord.iceberg.java_updates import as_java_applies
from commit_coord.iceberg.rebase import Conflict, snapshots_and_branches
from commit_coord.iceberg.streams import checkpoint_in_table, offsets_moved

logger = logging.getLogger(__name__)

_Asked = tuple[Identifier, Sequence[TableRequirement], Sequence[TableUpdate]]


class RequestedCommit:
    """One commit that is asked for.

    Whether it has landed before is looked up first: the files that it names may be gone when it is sent twice.

    Args:
        coordinator: Commits.
        table: The table. It is created where a requirement says that there is none.
        requirements: Everything that the client relies on; there is no other trace of what it has read.
        updates: Applied to the head in their order.
        declared: What the client says of all its appends: ``blind`` or ``checked``; None where it says nothing.
        request_id: A UUID that the client has chosen, by which it may ask for the same again; None makes one.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        table: Identifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        declared: str | None,
        request_id: str | None,
    ) -> None:
        self._coordinator = coordinator
        self._declared = declared
        self._added = snapshots_and_branches(updates)
        self._creates = any(isinstance(requirement, AssertCreate) for requirement in requirements)
        self._asked = Attempt(
            request_id=request_id or str(coordinator.host.new_id()),
            table=tuple(table),
            table_uuid=None,
            base_location=None,
            requirements=tuple(requirements),
            updates=tuple(updates),
            reads_data=True,  # what the updates become depends on the head, so they are made anew for each
        )
        self.before = SentBefore(
            coordinator=coordinator,
            table=self._asked.table,
            updates=self._asked.updates,
            creates=self._creates,
            request_id=request_id,
        )
        self._land = partial(coordinator.commit, repeatable=request_id is not None, remembered=False)
        self._candidate = None if self._creates else blind.candidate(requirements, updates)
        self._append: Append | None = None
        self._written: list[str] = []
        """Manifests that were written for it here."""
        self._sent = False
        """Whether the coordinator was asked to land it."""

    def commit(self) -> Committed:
        """Land it, once.

        Raises:
            CheckpointInTable: Its stream has committed the same before.
            StaleRead: The offsets that a coordinator of Kafka Connect has read have moved since.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
            NoSuchTableError: There is no such table, and it is not to be created.
            ValueError: It declares something that nobody knows.
        """
        try:
            committed = self._commit()
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

    def _commit(self) -> Committed:
        if self._creates:
            self._sent = True
            (committed,) = self._land([self._asked])
            return committed
        head, location = self._coordinator.load(self._asked.table)
        if (landed := self.before.landed_in(head, location)) is not None:
            return landed
        attempt = self._on(head, location)
        self._sent = True
        (committed,) = self._land([attempt], replan=self._on)
        return committed

    def change(self, request_id: str) -> Change:
        """Return it as a part of the commit *request_id* to several tables. Its requirements decide.

        Raises:
            CommitConflict: They are not met.
            NoSuchTableError: There is no such table, and it is not to be created.
        """
        self._candidate = None
        self._asked = replace(self._asked, request_id=request_id)
        if self._creates:
            return Change(attempt=self._asked)
        return Change(attempt=self._on(*self._coordinator.load(self._asked.table)), replan=self._on)

    def _on(self, head: TableMetadata, location: str) -> Attempt:
        """Return the attempt on *head*: a blind append, or one that its requirements decide on.

        Raises:
            CommitConflict: They are not met. What is refused on a head that was there would wait for its latch in vain.
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
                updates=as_java_applies(found.updates, head),
                append=append,
                reads_data=bool(found.updates),
            )
        try:
            for requirement in self._asked.requirements:
                requirement.validate(head)
            return replace(attempt, updates=as_java_applies(self._asked.updates, head))
        except CommitFailedException as error:
            raise self._refused(CommitConflict, str(error)) from error

    def _is_declared(self, found: blind.Candidate, head: TableMetadata) -> bool:
        summary = found.snapshot.summary
        assert summary is not None, "an append says that it is one"
        return blind.is_declared(summary.additional_properties, self._declared, head.properties)

    def _take(self, found: blind.Candidate, head: TableMetadata) -> Append | None:
        """Return the append that is declared to be blind; None where it is none after all.

        Raises:
            CommitConflict: Its files can't be rows of the table.
            CommitStateUnknown: A file that it names is gone.
        """
        if self._append is not None:
            return self._append
        provider = load_location_provider(head.location, head.properties)

        def new_location() -> str:
            self._written.append(provider.new_metadata_location(f"{self._coordinator.host.new_id()}-m0.avro"))
            return self._written[-1]

        io = self._coordinator.store.file_io(head.properties, head.location)
        try:
            taken = blind.take(found, head, io, new_location)
        except blind.NoAppend as reason:
            logger.info("an append is not blind, although declared: %s", reason)
            self._candidate = None
            return None
        except FileNotFoundError as error:
            # 1. It lands, and its client deletes the files that the table does not use.   2. Its snapshot expires.
            # 3. It arrives once more. Whoever is told that it did not land may delete what the table needs.
            raise CommitStateUnknown(
                "a file that the commit names is gone, perhaps because it landed before",
                table=table_name(self._asked.table),
                file=str(error),
            ) from error
        if isinstance(taken, Conflict):
            raise self._refused(CommitConflict, taken.reason)
        self._append = taken
        return taken

    def _delete_unused(self, landed: Committed | None) -> None:
        """Delete the manifests that were written here and that *landed* does not have."""
        if not self._written:
            return
        try:
            used = self._manifests(landed) if landed is not None else set()
        except Exception:
            logger.warning("whether manifests are used could not be found out; they stay", exc_info=True)
            return
        for path in self._written:
            if path not in used:
                delete_quietly(self._coordinator.store.file_io({}, path), path)

    def _manifests(self, landed: Committed) -> set[str]:
        ((added, _),) = self._added  # an append adds one
        snapshot = landed.metadata.snapshot_by_id(added.snapshot_id)
        if snapshot is None:
            return set(self._written)  # it has expired since; later snapshots may have them
        io = self._coordinator.store.file_io(landed.metadata.properties, snapshot.manifest_list)
        return {manifest.manifest_path for manifest in manifest_list.read(io, snapshot.manifest_list)}

    # Streams.

    def refuse_late_streams(self, refused: CommitNotApplied) -> None:
        """Raise what says that *refused* is not to be tried again: a stream that committed before, or moved on."""
        try:
            head, _ = self._coordinator.load(self._asked.table)
        except Exception:  # the table may be gone; then it is refused for that
            logger.info("a refused commit was not looked at again", exc_info=True)
            return
        for snapshot, branch in self._added:
            summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            parent = NO_SNAPSHOT if snapshot.parent_snapshot_id is None else snapshot.parent_snapshot_id
            if reason := checkpoint_in_table(summary, branch, head):
                raise self._refused(CheckpointInTable, reason) from refused
            if reason := offsets_moved(summary, branch, head, parent):
                raise self._refused(StaleRead, reason) from refused

    def _refused(self, kind: type[CommitConflict], reason: str) -> CommitConflict:
        return kind(
            f"the commit did not land: {reason}",
            table=table_name(self._asked.table),
            request_id=self._asked.request_id,
        )


class RequestedCommits:
    """Several commits that are asked for together, each of another table: all of them land, or none.

    Args:
        coordinator: Commits.
        requests: The tables, what the client relies on, and what is to be applied.
        request_id: A UUID that the client has chosen, by which it may ask for the same again; None makes one.
    """

    def __init__(self, coordinator: Coordinator, requests: Sequence[_Asked], request_id: str | None) -> None:
        self._coordinator, self._request_id = coordinator, request_id
        self._parts = [RequestedCommit(coordinator, *asked, None, request_id) for asked in requests]

    def commit(self) -> dict[Identifier, Committed]:
        """Land them, once; return what became of each table.

        Raises:
            ConfigError: The catalog swaps the pointer of one table at a time. Nothing was done.
            NoSuchTableError: One of the tables is not there, and is not to be created. Nothing was done.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit_several`.
        """
        coordinator = self._coordinator
        coordinator.require_several()
        if (landed := self._landed(SentBefore.landed_now)) is not None:
            return landed
        request_id = self._request_id or str(coordinator.host.new_id())
        try:
            changes = [part.change(request_id) for part in self._parts]
            return coordinator.commit_several(changes, repeatable=self._request_id is not None, remembered=False)
        except CommitNotApplied as refused:
            if (landed := self._landed(partial(SentBefore.landed_after, refused=refused))) is not None:
                return landed
            for part in self._parts:
                part.refuse_late_streams(refused)
            raise

    def _landed(self, look: Callable[[SentBefore], Committed | None]) -> dict[Identifier, Committed] | None:
        """Return what became of each table, as the commit landed before; None where it did not.

        Raises:
            CommitStateUnknown: Parts of it are there.
        """
        found = {part.before.table: look(part.before) for part in self._parts if part.before.leaves_traces}
        landed = {table: committed for table, committed in found.items() if committed is not None}
        if not landed:
            return None
        if len(landed) < len(self._parts) and self._request_id is None:
            # The others may leave no trace, or have been dropped or expired since. Or this is another commit.
            raise CommitStateUnknown(
                "parts of the commit are in their tables; whether all of it landed is not known",
                table=", ".join(map(table_name, landed)),
            )
        for part in self._parts:
            table = part.before.table
            if table not in landed:
                metadata, location = self._coordinator.load(table)
                landed[table] = Committed(metadata=metadata, location=location, snapshot_ids=(), answered=True)
        return landed
