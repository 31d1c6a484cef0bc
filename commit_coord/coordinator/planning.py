"""Applies an attempt to the head that is read under the latch: plan, refuse, or find that it has landed."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import assert_never

from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from commit_coord.coordinator.payload import Part, Payload
from commit_coord.coordinator.request_ids import file_name, named_in, version_of
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.stores import Committed, Replanner, lock_mismatch, published
from commit_coord.errors import ConfigError
from commit_coord.iceberg import manifest_list, specs
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.overwrites import HandoverNote, versions
from commit_coord.iceberg.rebase import REQUEST_ID, Conflict, Rebased, created, rebase
from commit_coord.iceberg.storage import metadata_places, misplaced, unserved
from commit_coord.iceberg.table_properties import refuse_unreadable
from commit_coord.protocol.commit import NeedsReplan, NothingToSwap, Planned, PlanResult, Refusal, WrongLatch

logger = logging.getLogger(__name__)


class Planner:
    """Plans one attempt, each time when the protocol asks for it.

    Args:
        run: The run that this planner is part of.
        replan: Plans the attempt again if it does not fit a head that has moved; with None it is then refused.
    """

    def __init__(self, run: Run, replan: Replanner | None) -> None:
        self._run = run
        self._services = run.services
        self._replan = replan
        self._used_plain_name = run.is_repair
        """Whether a metadata file with the plain name (only the request id) may exist already."""
        self.looked_up = False
        """Whether the request id was looked up in a head, and not found."""
        self.note = HandoverNote()
        """The note for the next commit of the table, without the entry that this commit adds."""

    def plan(self) -> PlanResult:
        """Read the pointer, and apply the attempt to the head."""
        run, services, attempt = self._run, self._services, self._run.attempt
        pointer = services.store.pointer(attempt.table)
        if pointer is not None and run.latch.handover_note:
            self.note = services.overwrites.look_back(attempt.table, pointer, run.latch.handover_note)
        if (own := self._own_snapshot(pointer)) is not None:
            # A latch holder took our offer, swapped, and ended before it could settle the offer.
            return NothingToSwap(payload=own)
        if attempt.repeatable and (entry := self.landed_before(attempt, pointer)):
            return NothingToSwap(payload=entry)
        self.looked_up = True
        if attempt.base_location is None:
            return self._plan_creation(pointer)
        if pointer is None:
            return Refusal(reason="the table was dropped since it was read")
        head = services.read(pointer)
        if (reason := lock_mismatch(run.latch, head.properties)) is not None:
            return WrongLatch(reason=reason)
        if run.is_repair and (known := self._why_not_due(pointer)) is not None:
            return known
        run.head_moved |= pointer != attempt.base_location
        if attempt.append is not None and pointer != attempt.base_location:
            # An earlier latch holder may have returned our offer because it could not read a manifest.
            self.check_manifests(attempt, head)
        result = self.rebase(attempt, head, pointer)
        match result:
            case Conflict(reason=reason, misfit=misfit):
                return Refusal(reason=reason, misfit=misfit)
            case NeedsReplan(reason=reason):
                return result if self._replan is not None else Refusal(reason=reason)
            case Rebased() if result.metadata is head:
                return NothingToSwap(payload=Committed(metadata=head, location=pointer, snapshot_ids=()))
            case Rebased() if (reason := self._spec_in_use(head, result.metadata)) is not None:
                return Refusal(reason=reason)
            case Rebased():
                return self._planned(self.prepared(result, head), head, pointer)
            case _:
                assert_never(result)

    def plan_again(self) -> None:
        """Call the replanner of the caller with the newest head, and use the attempt that it returns."""
        assert self._replan is not None, "an attempt without a replanner is refused"
        head, location = self._services.load(self._run.attempt.table)
        again = self._replan(head, location)
        self._run.attempt = replace(again, repeatable=self._run.attempt.repeatable)

    def rebase(self, attempt: Attempt, head: TableMetadata, location: str | None) -> Rebased | NeedsReplan | Conflict:
        """Return the result of *attempt* on *head*, now and under this latch."""
        return rebase(
            attempt,
            head,
            location,
            generation=self._run.latch.generation,
            now_ms=self._services.clock.wall_ms(),
            file_id=str(self._services.host.new_id()),
        )

    def prepared(self, rebased: Rebased, head: TableMetadata | None) -> Rebased:
        """Return *rebased* with what the pointer store adds to the metadata."""
        attempt = self._run.attempt
        made = self._services.store.prepare_metadata(
            attempt.table, head, rebased.metadata, changes_phase=attempt.changes_phase
        )
        return replace(rebased, metadata=made)

    def landed_before(self, attempt: Attempt, pointer: str | None) -> Committed | None:
        """Return the commit with the request id of *attempt*, if the journal or the table at *pointer* has it.

        Raises:
            CommitStateUnknown: Neither has it, but the commit may have landed: the history is too short to prove it.
        """
        if pointer is None:
            return None
        metadata = self._services.read(pointer)
        entry = self._services.recall(attempt.table, metadata, pointer, attempt.request_id, attempt.since)
        if entry is None:
            return None
        return Committed(metadata=metadata, location=pointer, snapshot_ids=entry.snapshot_ids, landed_before=True)

    def check_manifests(self, attempt: Attempt, head: TableMetadata) -> None:
        """Check that all manifests of an append can be read.

        Raises:
            Exception: A manifest can't be read.
        """
        assert attempt.append is not None, "only appends are offered"
        manifest_list.check_whole(self._services.store.file_io(head.location), attempt.append.manifests)

    def _own_snapshot(self, pointer: str | None) -> Committed | None:
        """Return our append if another latch holder has published it, else None."""
        attempt, append = self._run.attempt, self._run.attempt.append
        if append is None or pointer is None or (attempt.repeatable and not self._run.may_be_carried):
            return None  # A repeatable request is found by its request id.
        head = self._services.read(pointer)
        found = self.append_in(attempt, head)
        return None if found is None else published(head, pointer, (found,))

    def append_in(self, attempt: Attempt, head: TableMetadata) -> int | None:
        """Return the id of the snapshot in *head* that contains the append of *attempt*; None if there is none.

        *head* must come from the metadata reader: its ``snapshots`` are ``LazyModels``.
        """
        append = attempt.append
        assert append is not None, "only appends are offered"
        if head.snapshot_by_id(append.snapshot_id) is not None:
            return append.snapshot_id
        if not append.inherits:
            return None
        own = {manifest.manifest_path for manifest in append.manifests}
        snapshots: fast_metadata.LazyModels[Snapshot] = head.__dict__["snapshots"]
        for found in snapshots.ids_with_summary(REQUEST_ID, attempt.request_id, behind=attempt.base_sequence_number):
            # If this is the snapshot of an earlier commit with the same request id, it lists other manifests than ours.
            if not attempt.repeatable or own & self._listed(snapshots.by_id(found)):
                return found
        return None

    def _why_not_due(self, pointer: str) -> NothingToSwap | Refusal | None:
        """Return None if a repair is still due at *pointer*, or only rewrites manifests.

        Otherwise return NothingToSwap if another client has restored the commit since, or Refusal if the history is too
        short to tell.

        1. Client A finds a lost commit and asks its user.   2. Client B restores the commit, deletes its rows, and
        expires snapshots.   3. A's user confirms. No snapshot and no live file shows that the commit was restored; only
        the name of B's metadata file does, which contains the request id.
        """
        services, attempt = self._services, self._run.attempt
        if attempt.append is not None and attempt.append.merge is not None:
            # This repair rewrites manifests and restores no rows. If these manifests are gone, it changes nothing.
            return None
        try:
            for version in versions(services.read, pointer):
                if version == attempt.base_location:
                    return None
                if named_in(version) == attempt.request_id:
                    head = services.read(pointer)
                    return NothingToSwap(
                        payload=Committed(metadata=head, location=pointer, snapshot_ids=(), landed_before=True)
                    )
        except Exception:
            logger.warning("a history can't be read back to %s", attempt.base_location, exc_info=True)
        return Refusal(
            reason="the search for lost commits is out of date: the table's history no longer contains the metadata "
            "file that the search has read; search again"
        )

    def _spec_in_use(self, head: TableMetadata, changed: TableMetadata) -> str | None:
        """Return why *changed* must not be published, see :func:`~commit_coord.iceberg.specs.dropped_in_use`.

        Raises:
            FileNotFoundError: A manifest list of *head* is missing.
        """
        if changed.partition_specs == head.partition_specs:
            return None
        try:
            return specs.dropped_in_use(head, changed, self._services.store.file_io(head.location))
        except FileNotFoundError as error:
            # Raise, do not refuse: a refusal would prove that no commit with this request id has landed. But another
            # commit with this id may have read the file before it was deleted, and may have landed.
            raise FileNotFoundError(
                f"it is not known whether files of the removed partition specs are left: {error}"
            ) from error

    def _listed(self, snapshot: Snapshot | None) -> set[str]:
        assert snapshot is not None, "its id was just read from the same metadata"
        listed = manifest_list.read(self._run.file_io(snapshot.manifest_list), snapshot.manifest_list)
        return {manifest.manifest_path for manifest in listed}

    def _plan_creation(self, pointer: str | None) -> PlanResult:
        if pointer is not None:
            return Refusal(reason="the table already exists")
        attempt = self._run.attempt
        try:
            for requirement in attempt.requirements:
                requirement.validate(None)
            made = created(attempt, generation=self._run.latch.generation)
        except (CommitFailedException, KeyError) as error:
            return Refusal(reason=str(error))
        except (ValueError, ValidationError) as error:
            return Refusal(reason=str(error), misfit=error)
        return self._planned(
            self.prepared(Rebased(metadata=made, manifest_list=None, snapshot_ids=()), None), None, None
        )

    def _planned(self, rebased: Rebased, head: TableMetadata | None, base: str | None) -> Planned | Refusal:
        attempt = self._run.attempt
        alone = Part(attempt=attempt, head=head, location=base, rebased=rebased)
        metadata = rebased.metadata
        suffix = ".gz" if metadata.properties.get("write.metadata.compression-codec", "none") == "gzip" else ""
        version = version_of(base) + 1
        host = self._services.host
        name = file_name(attempt.request_id, host, fresh=not (self._used_plain_name or attempt.repeatable))
        self._used_plain_name = True
        location = metadata_places(metadata).new_metadata_location(f"{version:05d}-{name}{suffix}.metadata.json")
        io = self._services.store.file_io(location)
        if (reason := misplaced(metadata) or unserved(io, location)) is not None:
            return Refusal(reason=reason, misfit=ValueError(reason))
        try:
            refuse_unreadable(metadata.properties, head.properties if head is not None else {})
        except ConfigError as error:
            return Refusal(reason=str(error), misfit=error)
        payload = Payload(parts=[alone], alone=alone, io=io, base=head, written=[], unused=[])
        return Planned(base=base, location=location, payload=payload)
