"""Notes of who released a request by force, for the error that its waiter gets.

A metastore keeps nothing for us but locks, so a note is a lock that blocks nobody: SHARED_READ on the request's id in
a table that nobody locks otherwise. Its owner is the operator. The waiter removes the note when it has read it.
"""

from __future__ import annotations

from contextlib import suppress

from commit_coord.clock import Clock
from commit_coord.errors import LockServiceUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.locks import ListedLock
from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.handover import FORCED_RELEASE_LIFETIME_MS, ForcedRelease
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.requests import FOREIGN, translated
from commit_coord.model import Owner


class ForcedReleaseNotes:
    """The notes in one metastore.

    Args:
        metastore: Where they are.
        clock: Time.
    """

    def __init__(self, metastore: MetastoreClient, clock: Clock) -> None:
        self._metastore, self._clock = metastore, clock
        self._removes_old_from_ms = 0

    def leave(self, request_id: str, by: Owner, why: str) -> None:
        """See :meth:`HandoverLockManager.note_forced_release`.

        A waiter that has died removes no note, so this removes those of more than an hour ago, once an hour. Many
        metastores also do that by themselves, after ``hive.txn.timeout``.
        """
        if request_id.startswith(FOREIGN):
            return  # Hive looks for no note.
        now_ms = self._clock.wall_ms()
        with translated(None):
            if now_ms >= self._removes_old_from_ms:
                for note in self._listed():
                    if note.heartbeat_ms < now_ms - FORCED_RELEASE_LIFETIME_MS:
                        self._metastore.unlock(note.lock_id)
                self._removes_old_from_ms = now_ms + FORCED_RELEASE_LIFETIME_MS
            self._metastore.lock(
                [hms_names.forced_release_note(request_id)],
                user=hms_names.user(by),
                host=hms_names.fitting(ForcedRelease.by(by, why).operator),
                agent=hms_names.fitting(why),
            )

    def take(self, request_id: str) -> dict[str, str]:
        """Return what the notes about *request_id* say, as facts for an error, and remove them.

        Raises:
            LockServiceUnavailable: The metastore did not answer.
        """
        about, facts = hms_names.forced_release_note(request_id), dict[str, str]()
        with self._metastore.within(BRIEFLY):
            with translated(None):
                notes = [note for note in self._listed() if note.part == about]
            for note in notes:
                facts = ForcedRelease(note.host, note.agent).facts
                with suppress(LockServiceUnavailable), translated(None):  # It is removed later.
                    self._metastore.unlock(note.lock_id)
        return facts

    def _listed(self) -> list[ListedLock]:
        return self._metastore.show_locks(hms_names.OPERATIONS, hms_names.RELEASES)
