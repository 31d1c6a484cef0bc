"""Notes of who released a request by force, for the error that its waiter gets.

A metastore keeps nothing for us but locks, so a note is a lock that blocks nobody: SHARED_READ on the request's id in
a table that nobody locks otherwise. Its owner is the operator. The waiter removes the note when it has read it.
"""

from __future__ import annotations

from commit_coord.clock import Clock
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.locks import ListedLock
from commit_coord.locks.base import BRIEFLY
from commit_coord.locks.handover import FORCED_RELEASE_LIFETIME_MS, facts_of_forced_release, name_of_operator
from commit_coord.locks.hms import names as hms_names
from commit_coord.locks.hms.requests import translated
from commit_coord.model import Owner


class ForcedReleaseNotes:
    """The notes in one metastore.

    Args:
        metastore: Where they are.
        clock: Time.
    """

    def __init__(self, metastore: MetastoreClient, clock: Clock) -> None:
        self._metastore, self._clock = metastore, clock

    def leave(self, request_id: str, by: Owner, why: str) -> None:
        """See :meth:`HandoverLockManager.note_forced_release`.

        A waiter that has died removes no note, so each call removes the old ones. Many metastores also do that by
        themselves, after ``hive.txn.timeout``.
        """
        oldest_ms = self._clock.wall_ms() - FORCED_RELEASE_LIFETIME_MS
        with translated(None):
            for note in self._listed():
                if note.heartbeat_ms < oldest_ms:
                    self._metastore.unlock(note.lock_id)
            self._metastore.lock(
                [hms_names.forced_release_note(request_id)],
                user=hms_names.user(by),
                host=hms_names.fitting(name_of_operator(by)),
                agent=hms_names.fitting(why),
            )

    def take(self, request_id: str) -> dict[str, str]:
        """Return what the notes about *request_id* say, as facts for an error, and remove them.

        Raises:
            LockServiceUnavailable: The metastore did not answer.
        """
        about, facts = hms_names.forced_release_note(request_id), dict[str, str]()
        with translated(None), self._metastore.within(BRIEFLY):
            for note in self._listed():
                if note.part == about:
                    facts = facts_of_forced_release(note.host, note.agent)
                    self._metastore.unlock(note.lock_id)
        return facts

    def _listed(self) -> list[ListedLock]:
        return self._metastore.show_locks(hms_names.OPERATIONS, hms_names.RELEASES)
