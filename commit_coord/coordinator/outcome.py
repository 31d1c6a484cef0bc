"""Turns a verdict into the result of a commit to tables, or into a ``CommitError``.

No other module creates these errors from a verdict.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from commit_coord.coordinator.payload import Payload, journal_entry
from commit_coord.coordinator.run import Run
from commit_coord.coordinator.stores import Committed, delete_quietly, published
from commit_coord.errors import (
    CommitConflict,
    CommitLockFailed,
    CommitNotApplied,
    CommitStateUnknown,
    StatementError,
    UpdatesDoNotFit,
)
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.rebase import shares_files
from commit_coord.model import CommitStatus, JournalEntry
from commit_coord.protocol.commit import Cause, Planned, Verdict

logger = logging.getLogger(__name__)

_DELETE_OLD_METADATA = "write.metadata.delete-after-commit.enabled"

_warned_of_growth: set[UUID] = set()
"""The UUIDs of the tables for which this process has logged the warning; jobs open a catalog many times."""


def outcome(run: Run, verdict: Verdict, *, looked_up: bool) -> Committed:
    """Return the result of the commit for its caller.

    Args:
        run: The run that has ended.
        verdict: How the run has ended.
        looked_up: Whether the request id was looked up in a head, and not found.

    Raises:
        CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
        StatementError: The attempt was planned again, and planning refused it with this error.
    """
    raise_unless_landed(verdict, facts_of(run), doubt=doubt(run, verdict, looked_up=looked_up))
    if verdict.nothing_to_swap is not None:
        return _landed_without_us(run, verdict.nothing_to_swap.payload)
    assert verdict.plan is not None, "a success has a plan, or nothing to swap"
    return _swapped(run, verdict, verdict.plan)


def raise_unless_landed(verdict: Verdict, facts: Mapping[str, str], *, doubt: str | None = None) -> None:
    """Raise the error with which the commit ended, unless it landed.

    Args:
        verdict: How the commit ended.
        facts: Table and request id, for the error.
        doubt: Why an earlier commit with this request id may have landed although this one failed; None if that is
            impossible.

    Raises:
        CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
        StatementError: The attempt was planned again, and planning refused it with this error.
    """
    match verdict.status:
        case CommitStatus.UNKNOWN:
            raise CommitStateUnknown(
                "it is not known whether the commit landed; every file is kept; search for the request id before you "
                "repeat the operation",
                **facts,
                location=verdict.plan.location if verdict.plan else None,
                reason=verdict.reason or None,
            ) from verdict.error
        case CommitStatus.FAILURE:
            if doubt is not None:
                raise CommitStateUnknown(f"{doubt}: {verdict.reason}", **facts) from verdict.error
            error = _failure(verdict, facts)
            if error is verdict.error:
                raise error  # with the cause that it has
            raise error from verdict.error


def _failure(verdict: Verdict, facts: Mapping[str, str]) -> Exception:
    if verdict.cause in (Cause.LOCK, Cause.PHASE):
        return CommitLockFailed(f"the commit did not land: {verdict.reason}", **facts)
    if isinstance(verdict.error, StatementError):  # its message says which files to keep
        return verdict.error
    if verdict.cause is Cause.CONFLICT:
        kind = UpdatesDoNotFit if verdict.error is not None else CommitConflict
        return kind(f"the commit did not land: {verdict.reason}", **facts)
    return CommitNotApplied(f"the commit did not land: {verdict.reason}", **facts)


def doubt(run: Run, verdict: Verdict, *, looked_up: bool) -> str | None:
    """Return why an earlier commit with our request id may have landed although ours failed; None if that can't be.

    Args:
        run: The run that has ended.
        verdict: How it has ended.
        looked_up: Whether our request id was looked up in a head, and not found.
    """
    if not run.attempt.repeatable or _excludes_other_commits(verdict):
        return None
    if looked_up:
        return "this commit did not land, but an earlier commit with this request id may still land"
    return "this commit did not land, but it is not known whether an earlier commit with this request id landed"


def _excludes_other_commits(verdict: Verdict) -> bool:
    """Return whether it is certain that no other commit with our request id has landed or will land.

    Another commit with our request id may still swap later, although no head that we read contains the id:

    1. We are planned on a head, and give the latch back.   2. Another commit with our request id is planned on the next
    head, sends its swap and is interrupted; the swap is delayed.
    3. We look for the request id in that head, too, and do not find it.   4. We fail, because the disk is full.
    5. The delayed swap finds the head that it was planned on, and lands.

    If planning refused our request, this can't happen: the present head refuses it, so no commit with our request id
    was planned on it. One that was planned on an earlier head can't land: the pointer never returns to that head.
    """
    return verdict.cause is Cause.CONFLICT and verdict.plan is None


def _landed_without_us(run: Run, found: Committed | JournalEntry) -> Committed:
    if not isinstance(found, JournalEntry):
        return found
    if run.attempt.repeatable:
        _remember(run, replace(found, key=run.attempt.request_id))
    return _carried_along(run, found)


def _carried_along(run: Run, entry: JournalEntry) -> Committed:
    """Return the commit of our attempt, which another latch holder has published.

    Raises:
        CommitStateUnknown: The commit has landed, but the table can't be read. Any other error would let PyIceberg
            delete files of the commit.
    """
    services, location = run.services, entry.metadata_location
    try:
        try:
            metadata = services.read(location)
        except Exception:  # noqa: BLE001 - most likely, a later commit has deleted the old metadata file
            metadata, location = services.load(run.attempt.table)
    except Exception as error:
        raise CommitStateUnknown(
            "the commit landed, but the table can't be read now; do not repeat it",
            table=entry.table,
            request_id=run.attempt.request_id,
            location=entry.metadata_location,
        ) from error
    return published(metadata, location, entry.snapshot_ids)


def _swapped(run: Run, verdict: Verdict, plan: Planned) -> Committed:
    payload: Payload = plan.payload
    own = payload.own
    if run.attempt.repeatable:
        _remember(run, journal_entry(run.attempt, own, verdict, run.attempt.request_id))
    for path in (*payload.unused, *payload.unused_of_members):
        delete_quietly(payload.io, path)
    _delete_old_metadata(run, payload)
    _warn_of_growth(run, payload)
    if not payload.carried:
        return Committed(metadata=own.metadata, location=plan.location, snapshot_ids=own.snapshot_ids)
    return published(payload.metadata, plan.location, own.snapshot_ids)


def _remember(run: Run, entry: JournalEntry) -> None:
    locks = run.services.locks
    if not locks.guarantees.journal:
        return
    try:
        locks.remember(entry, lifetime_ms=run.services.journal_lifetime_ms)
    except Exception:
        # The commit has landed, and its summary and file name contain the request id.
        logger.warning("request %s could not be written to the journal", entry.key, exc_info=True)


def facts_of(run: Run) -> dict[str, str]:
    """Return the table and the request id, for errors."""
    return {"table": table_name(run.attempt.table), "request_id": run.attempt.request_id}


def _delete_old_metadata(run: Run, payload: Payload) -> None:
    """Delete the metadata files that are no longer in the metadata log, if the table's properties ask for it.

    With ``gc.enabled=false`` they stay: the table may have been registered from the metadata file of another one.

    The deletion runs in the background, and the process waits for it only when it exits. Deleting the file of a
    long history takes a sixth of the time of an append, and with an object store each deletion is a round trip.
    """
    metadata = payload.metadata
    # As Iceberg Java reads it: everything but "true" is false. An invalid value is no error, because the commit has
    # already landed.
    asked = metadata.properties.get(_DELETE_OLD_METADATA, "false")
    if payload.base is None or asked.strip().lower() != "true" or shares_files(metadata):
        return

    kept = {entry.metadata_file for entry in metadata.metadata_log}
    for path in [entry.metadata_file for entry in payload.base.metadata_log if entry.metadata_file not in kept]:
        try:
            run.services.executor().submit(delete_quietly, payload.io, path)
        except RuntimeError:  # The interpreter is shutting down, and the executor accepts no more work.
            delete_quietly(payload.io, path)


def _warn_of_growth(run: Run, payload: Payload) -> None:
    """Warn once per process and table that metadata files which are no longer in the log are kept.

    If the table's properties say what becomes of old metadata files, there is no warning. Each such file contains the
    whole history: 11,000 small appends left 44 GB.
    """
    metadata = payload.metadata
    if payload.base is None or metadata.table_uuid in _warned_of_growth:
        return
    if _DELETE_OLD_METADATA in metadata.properties:
        return
    if len(metadata.metadata_log) > len(payload.base.metadata_log):
        return
    _warned_of_growth.add(metadata.table_uuid)
    logger.warning(
        "old metadata files of table %s pile up: each commit leaves one that nobody needs. Set the table property "
        "%s=true to delete them (write.metadata.previous-versions-max says how many are kept), or false to hide this "
        "warning; docs/maintenance.md shows more",
        table_name(run.attempt.table),
        _DELETE_OLD_METADATA,
    )
