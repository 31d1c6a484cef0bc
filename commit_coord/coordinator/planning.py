"""What becomes of an attempt on the head that is read under the latch."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from commit_coord.coordinator.payload import Part, Payload
from commit_coord.coordinator.request_ids import file_name, version_of
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.stores import Committed, Replanner, lock_mismatch, published
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import Attempt
from commit_coord.iceberg.overwrites import Note
from commit_coord.iceberg.rebase import REQUEST_ID, Conflict, Rebased, created, rebase
from commit_coord.protocol.commit import Answered, NeedsReplan, Planned, PlanResult, Refusal, WrongLatch


class Planner:
    """Plans one attempt, as often as the protocol asks for it.

    Args:
        run: The run that it is a part of.
        replan: Plans the attempt again when the head moved; None refuses it then.
    """

    def __init__(self, run: Run, replan: Replanner | None) -> None:
        self._run = run
        self._services = run.services
        self._replan = replan
        self._used_plain_name = run.is_repair
        """Whether a metadata file has the name that the first one has."""
        self.heads_without_request: set[str | None] = set()
        """The heads in which our request was looked up, and not found."""
        self.note = Note()
        """What is left for the next commit of the table, but for what this one adds."""

    def plan(self) -> PlanResult:
        """Read the pointer, and return what becomes of the attempt there."""
        run, services, attempt = self._run, self._services, self._run.attempt
        pointer = services.store.pointer(attempt.table)
        if pointer is not None and run.latch.handover_note:
            self.note = services.overwrites.look_back(attempt.table, pointer, run.latch.handover_note)
        if (own := self._own_snapshot(pointer)) is not None:
            # A holder took our offer, swapped, and was gone before it could tell us.
            return Answered(payload=own)
        if attempt.repeatable and (entry := self.landed_before(attempt, pointer)):
            return Answered(payload=entry)
        self.heads_without_request.add(pointer)
        if attempt.base_location is None:
            return self._plan_creation(pointer)
        if pointer is None:
            return Refusal(reason="the table was dropped since it was read")
        head = services.read(pointer)
        if (reason := lock_mismatch(run.latch, head.properties)) is not None:
            return WrongLatch(reason=reason)
        run.rebased |= pointer != attempt.base_location
        if attempt.append is not None and pointer != attempt.base_location:
            # An earlier holder may have left our offer to us because it could not read a manifest.
            self.check_manifests(attempt, head)
        result = self.rebase(attempt, head, pointer)
        match result:
            case Conflict(reason=reason, misfit=misfit):
                return Refusal(reason=reason, misfit=misfit)
            case NeedsReplan(reason=reason):
                return result if self._replan is not None else Refusal(reason=reason)
            case Rebased() if result.metadata is head:
                return Answered(payload=Committed(metadata=head, location=pointer, snapshot_ids=()))
            case Rebased():
                return self._planned(self.prepared(result, head), head, pointer)
            case _:
                assert_never(result)

    def plan_again(self) -> None:
        """Have the attempt planned again by its owner, on the newest head."""
        assert self._replan is not None, "an attempt that nobody can plan again is refused"
        head, location = self._services.load(self._run.attempt.table)
        again = self._replan(head, location)
        self._run.attempt = replace(again, repeatable=self._run.attempt.repeatable)

    def rebase(self, attempt: Attempt, head: TableMetadata, location: str | None) -> Rebased | NeedsReplan | Conflict:
        """Return what becomes of *attempt* on *head*, now and under this latch."""
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
        made = self._services.store.prepare_metadata(self._run.attempt.table, head, rebased.metadata)
        return replace(rebased, metadata=made)

    def landed_before(self, attempt: Attempt, pointer: str | None) -> Committed | None:
        """Return the commit of the request of *attempt* that the table at *pointer* knows."""
        if pointer is None:
            return None
        metadata = self._services.read(pointer)
        entry = self._services.recall(attempt.table, metadata, pointer, attempt.request_id)
        if entry is None:
            return None
        return Committed(metadata=metadata, location=pointer, snapshot_ids=entry.snapshot_ids, answered=True)

    def check_manifests(self, attempt: Attempt, head: TableMetadata) -> None:
        """Return if the manifests of an append can be read.

        Raises:
            Exception: One can't.
        """
        assert attempt.append is not None, "only appends are carried"
        manifest_list.check_whole(
            self._services.store.file_io(head.properties, head.location), attempt.append.manifests
        )

    def _own_snapshot(self, pointer: str | None) -> Committed | None:
        """Return our append as another holder has published it."""
        attempt, append = self._run.attempt, self._run.attempt.append
        if append is None or pointer is None or (attempt.repeatable and not self._run.may_be_carried):
            return None  # A repeated request is known by its id.
        head = self._services.read(pointer)
        if head.snapshot_by_id(append.snapshot_id) is not None:
            return published(head, pointer, (append.snapshot_id,))
        if not append.inherits:
            return None
        own = {manifest.manifest_path for manifest in append.manifests}
        snapshots: fast_metadata.LazyModels[Snapshot] = head.__dict__["snapshots"]
        for found in snapshots.ids_with_summary(REQUEST_ID, attempt.request_id, behind=attempt.base_sequence_number):
            # An earlier commit of the same request had other manifests. Ours are then in no table, and can go.
            if not attempt.repeatable or own & self._listed(snapshots.by_id(found)):
                return published(head, pointer, (found,))
        return None

    def _listed(self, snapshot: Snapshot | None) -> set[str]:
        assert snapshot is not None, "its id was just read from the same metadata"
        listed = manifest_list.read(self._run.file_io(snapshot.manifest_list), snapshot.manifest_list)
        return {manifest.manifest_path for manifest in listed}

    def _plan_creation(self, pointer: str | None) -> PlanResult:
        if pointer is not None:
            return Refusal(reason="the table exists already")
        attempt = self._run.attempt
        for requirement in attempt.requirements:
            requirement.validate(None)
        made = created(attempt, generation=self._run.latch.generation)
        return self._planned(
            self.prepared(Rebased(metadata=made, manifest_list=None, snapshot_ids=()), None), None, None
        )

    def _planned(self, rebased: Rebased, head: TableMetadata | None, base: str | None) -> Planned:
        attempt = self._run.attempt
        alone = Part(attempt=attempt, head=head, location=base, rebased=rebased)
        metadata = rebased.metadata
        provider = load_location_provider(metadata.location, metadata.properties)
        suffix = ".gz" if metadata.properties.get("write.metadata.compression-codec", "none") == "gzip" else ""
        version = version_of(base) + 1
        host = self._services.host
        name = file_name(attempt.request_id, host, fresh=not (self._used_plain_name or attempt.repeatable))
        self._used_plain_name = True
        location = provider.new_metadata_location(f"{version:05d}-{name}{suffix}.metadata.json")
        io = self._services.store.file_io(metadata.properties, location)
        payload = Payload(parts=[alone], alone=alone, io=io, base=head, written=[], unused=[])
        return Planned(base=base, location=location, payload=payload)
