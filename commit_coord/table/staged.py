"""The changes that a transaction has staged so far, as one value, and the transaction of PyIceberg that keeps it.

A call stages all that it does, or nothing: one that fails puts back the value that was there before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.table.append import PureAppend
from commit_coord.table.changes import EVOLUTIONS, Change
from commit_coord.table.created_files import CreatedFiles
from commit_coord.table.isolation import Read

REFS = SetSnapshotRefUpdate | RemoveSnapshotRefUpdate

Call = Callable[[Any], Any]
"""Makes a call again on the transaction that it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The staged changes, and the declarations of the calls.

    Args:
        updates: What the commit changes.
        requirements: What the head must be like.
        producers: Those that made the snapshots in *updates*, and the one of *pending*.
        pending: An append of which no snapshot was made, since nothing has looked at it.
        changes: Of the table itself, but for those of plans.
        reads: Whether *updates* depend on what the table holds, so that they can't be taken to another head.
        calls: Make the outermost calls again.
        replayable: Whether *calls* are all that was staged.
        depended: What the staged rows were computed from.
        removed: What the staged deletes name: rows of the caller's that are staged too were computed from it.
        rows_given: Whether rows are staged of which the caller did not say what they were computed from.
        computes: Whether a call stages rows that it computes from the table as it is when the commit lands.
        replaces: Whether a call replaces rows as of when the commit lands, whatever they are.
        by_name: Whether a call has named columns.
        folds_case: Whether one has done so in any case.
    """

    updates: tuple[TableUpdate, ...] = ()
    requirements: tuple[TableRequirement, ...] = ()
    producers: tuple[Any, ...] = ()
    pending: PureAppend | None = None
    changes: tuple[Change, ...] = ()
    reads: bool = False
    calls: tuple[Call, ...] = ()
    replayable: bool = True
    depended: tuple[Read, ...] = ()
    removed: tuple[Read, ...] = ()
    rows_given: bool = False
    computes: bool = False
    replaces: bool = False
    by_name: bool = False
    folds_case: bool = False

    @property
    def stages(self) -> bool:
        """Whether there is something to commit."""
        return bool(self.updates) or self.pending is not None

    @property
    def begun(self) -> bool:
        """Whether something was called, also if it has found nothing to do."""
        return self.stages or bool(self.calls or self.producers)

    @property
    def dependencies(self) -> tuple[Read, ...]:
        """The parts of the table that must not have changed."""
        return (*self.depended, *(self.removed if self.rows_given else ()))

    @property
    def removes_at_landing(self) -> bool:
        """Whether a removal takes the rows that are there when the commit lands, and depends on none that were read."""
        return self.replaces or not self.dependencies or (bool(self.removed) and not self.rows_given)

    @property
    def only_appends(self) -> bool:
        """Whether no row is removed."""
        return all(isinstance(producer, PureAppend) for producer in self.producers)

    @property
    def evolves(self) -> bool:
        """Whether schemas, specs or sort orders are added: on another head their ids may be taken."""
        return any(isinstance(update, EVOLUTIONS) for update in self.updates)

    @property
    def property_keys(self) -> set[str]:
        """The properties that are set or removed."""
        keys: set[str] = set()
        for update in self.updates:
            if isinstance(update, SetPropertiesUpdate):
                keys |= update.updates.keys()
            elif isinstance(update, RemovePropertiesUpdate):
                keys |= set(update.removals)
        return keys

    @property
    def can_be_rebuilt(self) -> bool:
        """Whether PyIceberg can make the snapshots again on another head, and what else is staged stays.

        It checks every snapshot of a transaction against what happened on the branch of the first, and forgets each
        tag and branch that is staged together with the snapshots.
        """
        own = {producer._snapshot_id for producer in self.producers}
        refs = [update for update in self.updates if isinstance(update, REFS)]
        own_refs = all(isinstance(ref, SetSnapshotRefUpdate) and ref.snapshot_id in own for ref in refs)
        one_branch = len({producer._target_branch for producer in self.producers}) <= 1
        return one_branch and own_refs and not self.reads and not self.evolves

    def as_called(self) -> Staged:
        """Return what the calls have declared, without what they have staged."""
        return replace(self, updates=(), requirements=(), producers=(), pending=None, changes=(), reads=False)


class Draft:
    """The changes of one transaction, and its view of the table with them.

    Args:
        table: What the changes are planned on. Its metadata is replaced when they are planned on another head.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.staged = Staged()
        self._view: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    def update(self, **fields: Any) -> None:
        """Replace fields of what is staged."""
        before = self.staged
        if any(getattr(before, name) is not value for name, value in fields.items()):
            self.staged = replace(before, **fields)

    def changed(self) -> TableMetadata:
        """Return the table with the staged changes, but for an append that nothing has looked at."""
        base, updates = self.table.metadata, self.staged.updates
        if self._view is None or self._view[0] is not base or self._view[1] is not updates:
            self._view = (base, updates, fast_metadata.apply_updates(base, updates) if updates else base)
        return self._view[2]


class StagingTransaction(Transaction):
    """A PyIceberg transaction that keeps what is staged in a :class:`Draft`."""

    draft: Draft
    created: CreatedFiles

    def __init__(self, table: Table, autocommit: bool) -> None:
        self.draft = Draft(table)
        super().__init__(table, autocommit)

    @property
    def _updates(self) -> tuple[TableUpdate, ...]:
        return self.draft.staged.updates

    @_updates.setter
    def _updates(self, updates: tuple[TableUpdate, ...]) -> None:
        self.draft.update(updates=updates)

    @property
    def _requirements(self) -> tuple[TableRequirement, ...]:
        return self.draft.staged.requirements

    @_requirements.setter
    def _requirements(self, requirements: tuple[TableRequirement, ...]) -> None:
        self.draft.update(requirements=requirements)

    @property
    def _snapshot_producers(self) -> list[Any]:
        return list(self.draft.staged.producers)

    @_snapshot_producers.setter
    def _snapshot_producers(self, producers: Iterable[Any]) -> None:
        self.draft.update(producers=tuple(producers))

    def _register_snapshot_producer(self, producer: Any) -> None:
        self.draft.update(producers=(*self.draft.staged.producers, producer))

    def materialise(self) -> None:
        """Make an ordinary PyIceberg snapshot of a pending append, if there is one: something wants to look at it."""
        producer = self.draft.staged.pending
        if producer is not None:
            self.draft.update(pending=None)
            self._stage(*producer._commit())

    def _is_sent(self) -> bool:
        """Return whether the coordinator was asked to land what is staged, and sees to it."""
        return False

    def _emit_refused(self, error: BaseException) -> None:
        """Emit the events of the commit, if *error* refused it before the coordinator was asked."""
        raise NotImplementedError

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Stage all that the block stages, or nothing, with its files.

        1. The caller overwrites all rows: their deletion is staged.   2. The disk is full when the new rows are
        written.   3. The caller goes on without them, and commits. The table would be empty.

        A thread of PyIceberg's that begins a file later than the block has ended leaves one that nobody refers to.
        """
        before, files = self.draft.staged, self.created.mark()
        try:
            yield
        except BaseException:
            in_commit = self._failed or self._is_sent()
            if not in_commit:  # else it sees to what is staged, and its files may be in the table
                self.draft.staged = before
                self.created.delete(self._table.io, since=files)
            raise
