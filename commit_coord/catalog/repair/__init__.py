"""Brings back what writers without our rules overwrote.

Theory of operation
    The metadata files of commits that were overwritten are still there, and their data files too: nobody refers to
    them any more, and nobody deletes them but ``orphans``, which spares what the lock service remembers. From the last
    one of them its log leads back to where the two histories part. What was committed on the way is *lost*.

    An append is brought back by a commit on the present head like any other: the same data files, in the same
    manifests, under the same snapshot id and request id. A snapshot id can be in a table once, so however often and by
    however many it is repaired, nothing is added twice.

    Whatever read the table that it changed (an overwrite, a delete) or is no data (a schema change) can't be carried
    over: it might say something else on the present head. It is listed with what to do. So is an append whose rows a
    later lost commit took away, by a delete or because it moved or removed their branch; and an append that would show
    other rows on the present head, or a part of them twice.

    The head may move while a user looks at the list. So each append is judged again on the head on which it lands.

    A commit can also be in the history and yet be in no scan: an older version of this package added manifests behind a
    block of no records, where PyIceberg's reader stops. An append of nothing to the branch writes the list anew,
    without that block.

    An older version also merged manifests of format version 1 in a table of version 2, and left the sequence numbers
    out, as version 1 has none. Other engines can't read an existing entry without one. Such files are all of number 0
    (specification, "Sequence Numbers"), so an append of nothing to the branch replaces the manifest by one that says
    so. Older snapshots and tags stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from pyiceberg.typedef import Identifier

from commit_coord.catalog.repair.commits import RESTORED_FROM, LostCommit, Repair
from commit_coord.catalog.repair.histories import LostHistories
from commit_coord.catalog.repair.unreadable import UnreadableManifests
from commit_coord.errors import InvalidArguments, PartlyRepaired
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.overwrites import Acknowledged, HandoverNote

if TYPE_CHECKING:
    from commit_coord.coordinator import Coordinator

__all__ = ["RESTORED_FROM", "LostCommit", "Repair", "execute", "find", "forget"]


def find(coordinator: Coordinator, table: Identifier, since: Iterable[str] = ()) -> Repair:
    """Return what was lost of *table*.

    Args:
        coordinator: Of its catalog.
        table: Which one.
        since: Metadata files of commits that are known to be lost, in addition to what the lock service remembers.

    Raises:
        NoSuchTableError: There is none of that name.
        InvalidArguments: A file of *since* is none of this table, or can't be read; or the lock service remembers
            nothing, *since* is empty, and no reader overlooks anything.
        LockError: The latch, which is held to read the note, was not granted.
    """
    given = list(since)
    with coordinator.latch(table, statement="look for lost commits") as latch:
        text = latch.handover_note
        head, location = coordinator.load(table)
    histories = LostHistories(coordinator, table, head, location)
    manifests = UnreadableManifests(table, head, location, coordinator.store.file_io(location), coordinator.host)
    overlooked = [*manifests.overlooked(), *manifests.unnumbered()]
    if text is None and not given and not overlooked:
        raise InvalidArguments(
            "the lock manager of this catalog keeps no notes of commits: pass the path of the last lost metadata file, "
            "which the log message and the event about the overwritten commit show",
            table=table_name(table),
            lock_manager=coordinator.locks.name,
        )
    note = HandoverNote.parse(text or "")
    known = [lost.location for lost in (*note.lost, *([note.head] if note.head and histories.has(note.head) else []))]
    found: set[str] = set()
    for path in dict.fromkeys([*given, *known]):
        found.update(histories.look_behind(path, asked=path in given))
    return Repair(
        table=table,
        commits=(*histories.judged(), *overlooked),
        remembered=len(note.lost),
        looked_at=frozenset([*found, *(lost.location for lost in note.lost)]),
    )


def execute(
    coordinator: Coordinator, repair: Repair, *, on_restored: Callable[[LostCommit], None] = lambda _: None
) -> list[LostCommit]:
    """Bring back what can be; if nothing else was found, have the lock service forget it. Return what was brought back.

    What was overwritten after *repair* was made is not forgotten. *on_restored* is called for each commit, as it lands.

    Guarantee: on return each of ``repair.restorable`` is in the history of the table, once, also when others repair it
    too. It may be called again. Rows that were deleted since stay deleted, and rows that were added again are not
    added twice.

    Raises:
        CommitConflict: A commit can't be brought back any more, or nobody can tell what became of it since *repair* was
            made: make a new one.
        CommitError: As any commit; none was brought back before it.
        PartlyRepaired: Some commits were brought back, then something failed.
    """
    restored: list[LostCommit] = []
    try:
        for commit in repair.restorable:
            assert commit.prepare is not None
            coordinator.commit([commit.prepare()], replan=commit.replan, is_repair=True)
            restored.append(commit)
            on_restored(commit)
        if not repair.by_hand:
            forget(coordinator, repair.table, repair.looked_at)
    except Exception as error:
        if not restored:
            raise
        raise PartlyRepaired(
            f"{len(restored)} of {len(repair.restorable)} commits were brought back, then the repair failed ({error})",
            table=table_name(repair.table),
            brought_back=", ".join(commit.request_id or commit.location for commit in restored),
        ) from error
    return restored


def forget(
    coordinator: Coordinator, table: Identifier, only: Collection[str] | None = None, *, dry_run: bool = False
) -> tuple[Acknowledged, ...]:
    """Have the lock service forget what was lost of *table*; return what it forgot, or with *dry_run* would forget.

    Without *only*, the metadata files that its caller has seen, this could happen:

    1. A finds that *m2* was lost, and asks its user.   2. *m4* is overwritten, too: the note names both.
    3. The user confirms, and A empties the note: no client finds *m4* any more, and ``orphans`` deletes its files.
    """
    with coordinator.latch(table, statement="forget lost commits") as latch:
        if not latch.handover_note:
            return ()
        _, location = coordinator.load(table)
        head = HandoverNote.parse(latch.handover_note).head
        lost = coordinator.overwrites.look_back(table, location, latch.handover_note).lost
        kept = tuple(one for one in lost if only is not None and one.location not in only)
        if kept != lost and not dry_run:
            latch.set_handover_note(HandoverNote(head=None if head in lost else head, lost=kept).to_text())
        return tuple(one for one in lost if one not in kept)
