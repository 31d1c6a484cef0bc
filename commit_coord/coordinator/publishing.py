"""Writes the files of a swap, swaps the pointer, and finds out whether a swap landed."""

from __future__ import annotations

import logging
from concurrent.futures import wait

from commit_coord import doubt
from commit_coord.coordinator.payload import Payload
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.stores import delete_quietly, new_file
from commit_coord.events import SwapEnded
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.rebase import Rebased
from commit_coord.protocol.commit import Planned, SwapResult, Where

logger = logging.getLogger(__name__)


class Publisher:
    """Publishes the plans of one run.

    Args:
        run: The run that this publisher is part of.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._services = run.services
        self._maybe_overwritten: set[str] = set()
        """Locations that we swapped in and a lock-only writer may have replaced; these writers have finished since."""

    # Files.

    def write(self, plan: Planned) -> None:
        """Write the files of the swap. Leave out attempts of others whose files can't be written."""
        payload: Payload = plan.payload
        if len(payload.parts) == 1 and not payload.parts[0].members:
            # Write both files at the same time: on an object store each is a round trip under the latch.
            writing = self._services.executor().submit(self._write_metadata, payload, plan.location)
            try:
                self._write_list(payload, payload.own)
            finally:
                # The pool is PyIceberg's, and a scan may use all its threads. Then this thread writes the file itself.
                was_cancelled = writing.cancel()
                if not was_cancelled:
                    wait([writing])  # a file that is written after `discard` would become an orphan
            if was_cancelled:
                self._write_metadata(payload, plan.location)
            else:
                writing.result()
            return
        for position, part in enumerate(tuple(payload.parts)):
            try:
                self._write_list(payload, part.rebased)
            except Exception:
                if not part.members:
                    raise  # It is this commit's attempt.
                # The later parts are based on this one, so their attempts are returned to their owners too.
                ids = ", ".join(member.attempt.request_id for member in part.members)
                logger.warning("offered appends can't be published by this commit: %s", ids, exc_info=True)
                del payload.parts[position:]
                break
        if not payload.parts:
            payload.parts.append(payload.alone)
            self._write_list(payload, payload.own)
        self._write_metadata(payload, plan.location)

    def discard(self, plan: Planned) -> None:
        """Delete the files that were written for *plan*; it is proven that no table refers to them."""
        payload: Payload = plan.payload
        self._services.cache.drop(plan.location)
        for path in payload.written:
            delete_quietly(payload.io, path)

    def _write_metadata(self, payload: Payload, location: str) -> None:
        json = fast_metadata.dump_parts(payload.metadata)
        with new_file(location, payload.written), payload.io.new_output(location).create() as output:
            for part in fast_metadata.zipped(json, location):
                output.write(part)
        self._services.cache.put(location, payload.metadata, sum(map(len, json)), json)

    def _write_list(self, payload: Payload, rebased: Rebased) -> None:
        listed = rebased.manifest_list
        if listed is not None:
            merge = listed.merge
            if merge is not None and merge.format_version != rebased.metadata.format_version:
                merge = None  # the table was upgraded after the merge was prepared
            with new_file(listed.location, payload.written):
                used = manifest_list.write_appended(
                    payload.io,
                    listed.location,
                    head=listed.head,
                    added=listed.added,
                    merged=merge.merged if merge else None,
                    replaced=merge.replaced if merge else frozenset(),
                    clean=listed.clean,
                    metadata=rebased.metadata,
                    snapshot_id=listed.snapshot_id,
                    parent_snapshot_id=listed.parent_snapshot_id,
                    sequence_number=listed.sequence_number,
                    known=self._services.lists,
                )
            if listed.merge is not None and not (merge and used):
                payload.unused.append(listed.merge.merged.manifest_path)

    # The swap.

    def swap(self, plan: Planned) -> SwapResult:
        """Compare and set the pointer; with fences, only while their Hive leases are live.

        Raises:
            Exception: The swap was not executed and never will be, unless it is in doubt (:mod:`commit_coord.doubt`).
        """
        services, attempt = self._services, self._run.attempt
        started, result = services.clock.now(), "REFUSED"
        try:
            swapped = self._compare_and_set(plan)
            result = swapped.name
            return swapped
        except Exception:
            result = SwapResult.LOST_REPLY.name if doubt.is_open() else result
            raise
        finally:
            if services.events.heard:
                services.events.emit(
                    SwapEnded(
                        table=table_name(attempt.table),
                        request_id=attempt.request_id,
                        result=result,
                        took_ms=(services.clock.now() - started) * 1000,
                    )
                )

    def _compare_and_set(self, plan: Planned) -> SwapResult:
        store, table, fences = self._services.store, self._run.attempt.table, self._run.fences
        if not fences:
            return store.swap(table, plan.base, plan.location)
        return store.swap_under_leases(fences, table, plan.base, plan.location)

    def confirm(self, plan: Planned) -> Where:
        """Find out whether an executed swap is final, or a lock-only writer has overwritten it.

        Raises:
            LockError: It is not known whether all lock-only writers have finished.
        """
        if self._services.store.wait_for_lock_only_writers(self._run.attempt.table, plan.location, self._run.latch):
            self._maybe_overwritten.add(plan.location)
        return self.locate(plan) if plan.location in self._maybe_overwritten else Where.IN_LOG

    def locate(self, plan: Planned) -> Where:
        """Search the metadata log for the swap, backwards from the pointer; read older metadata files if necessary.

        For the creation of a table this may prove that it landed, but never that it did not:

        1. We create the table, and the reply is lost.   2. A client that takes no latch renames the table, and creates
        another one with the old name.   3. We find the other table. Our metadata file belongs to the renamed one.

        Known limit: if the name is free in step 3, the creation is sent again, and two tables share one metadata file.
        """
        services = self._services
        try:
            pointer = services.store.pointer(self._run.attempt.table)
            if pointer == plan.location:
                return Where.IN_LOG
            if pointer == plan.base:
                return Where.STILL_BASE
            while pointer is not None:
                log = [entry.metadata_file for entry in services.read(pointer).metadata_log]
                if plan.location in log:
                    return Where.IN_LOG
                if plan.base in log:
                    return Where.NOT_IN_LOG
                pointer = log[0] if log and log[0] != pointer else None
        except Exception:
            logger.warning("the outcome of a commit could not be determined yet", exc_info=True)
        return Where.UNDECIDED
