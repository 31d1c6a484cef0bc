"""Commits of views: the protocol of the tables, with the metadata of a view in the file.

A view has no metadata log, so after a lost reply only the pointer and the one before it tell what became of a swap.
Where others have swapped twice since, the outcome stays UNKNOWN.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.typedef import Identifier
from pyiceberg.view.metadata import ViewMetadata

from commit_coord.coordinator.latched import LatchedCommit
from commit_coord.coordinator.outcome import raise_unless_landed
from commit_coord.coordinator.request_ids import file_name, version_of
from commit_coord.coordinator.services import Services
from commit_coord.coordinator.stores import delete_quietly
from commit_coord.errors import InternalError
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.view_metadata import InvalidView, ViewPointer
from commit_coord.model import CommitStatus
from commit_coord.protocol.commit import Answered, Planned, PlanResult, Refusal, SwapResult, Where

logger = logging.getLogger(__name__)


class ViewStore(Protocol):
    """Where the pointers of views are kept."""

    def find(self, view: Identifier) -> ViewPointer | None:
        """Return the pointer of *view* now, None when there is no such view."""
        ...

    def swap(self, view: Identifier, base: str | None, location: str, made: ViewMetadata) -> SwapResult:
        """Set the pointer of *view* to *location*, whose metadata is *made*, if it is *base*.

        As :meth:`PointerStore.swap`. Nobody swaps without a comparison, and without the lock of those who do.

        Raises:
            ViewAlreadyExistsError: A table has the name.
        """
        ...

    def drop(self, view: Identifier) -> None:
        """Remove the pointer of *view*; its files stay.

        Raises:
            NoSuchViewError: There is no such view.
        """
        ...

    def rename(self, view: Identifier, to: Identifier) -> None:
        """Give *view* the name *to*.

        Raises:
            NoSuchViewError: There is no such view.
            ViewAlreadyExistsError: The name is used.
        """
        ...

    def names(self, namespace: Identifier) -> list[Identifier]:
        """Return the views of a namespace."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedView:
    """A commit that landed: the view with it, and the file that published it."""

    metadata: ViewMetadata
    location: str


Change = Callable[[ViewMetadata | None], ViewMetadata]
"""Returns what becomes of a view, of None where there is none; itself where nothing changes. Raises what it refuses
with."""

_REFUSED_WITH = (NoSuchViewError, ViewAlreadyExistsError, NoSuchNamespaceError, InvalidView)


class ViewCommit(LatchedCommit):
    """Changes one view.

    Args:
        services: What the commits of the catalog share.
        store: The pointers of its views.
        view: Which one.
        change: What becomes of it; called again on each head.
        registered: The metadata file of a view that is made of it; None has one written.
    """

    def __init__(
        self, services: Services, store: ViewStore, view: Identifier, change: Change, registered: str | None = None
    ) -> None:
        super().__init__(services, [view], str(services.host.new_id()))
        self._store, self._view, self._change, self._registered = store, view, change, registered
        self._used_plain_name = False

    def run(self) -> CommittedView:
        """Execute the change.

        Raises:
            NoSuchViewError: There is no such view; or what else the change refuses with. Nothing landed.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
        """
        verdict = self.drive()
        if verdict.status is CommitStatus.FAILURE and isinstance(verdict.error, _REFUSED_WITH):
            raise verdict.error
        raise_unless_landed(verdict, {"table": self.shown, "request_id": self._request_id})
        landed = verdict.answered or verdict.plan
        assert landed is not None, "a success without a plan is an answer"
        metadata: CommittedView = landed.payload
        return metadata

    def _plan(self) -> PlanResult:
        found = self._store.find(self._view)
        base = None if found is None else found.location
        head = None if base is None else view_metadata.read(self._services.store.file_io({}, base), base)
        try:
            made = self._change(head)
        except CommitFailedException as error:
            return Refusal(reason=str(error))
        if made is head:
            assert base is not None, "what there is has a pointer"
            return Answered(payload=CommittedView(metadata=head, location=base))
        location = self._registered or self._new_location(made, base)
        return Planned(base=base, location=location, payload=CommittedView(metadata=made, location=location))

    def _new_location(self, made: ViewMetadata, base: str | None) -> str:
        name = file_name(self._request_id, self._services.host, fresh=not self._used_plain_name)
        self._used_plain_name = True
        return view_metadata.file_location(made, version_of(base) + 1, name)

    def _plan_again(self) -> None:
        raise InternalError("a view is planned under its latch")

    def _write(self, plan: Planned) -> None:
        if self._registered is None:
            made: CommittedView = plan.payload
            io = self._services.store.file_io({}, plan.location)
            with io.new_output(plan.location).create() as output:
                output.write(view_metadata.dump(made.metadata, plan.location))

    def _discard(self, plan: Planned) -> None:
        if self._registered is None:
            delete_quietly(self._services.store.file_io({}, plan.location), plan.location)

    def _swap(self, plan: Planned) -> SwapResult:
        made: CommittedView = plan.payload
        return self._reported(
            [self._view], lambda: self._store.swap(self._view, plan.base, plan.location, made.metadata)
        )

    def _locate(self, plan: Planned) -> Where:
        try:
            found = self._store.find(self._view)
        except Exception:
            logger.warning("the outcome of a commit could not be read yet", exc_info=True)
            return Where.UNDECIDED
        pointer, previous = (None, None) if found is None else (found.location, found.previous)
        if plan.location in (pointer, previous):
            return Where.IN_LOG
        if pointer == plan.base:
            return Where.STILL_BASE
        # Others swapped from our base, and no pointer comes back to what it was.
        return Where.NOT_IN_LOG if plan.base is not None and previous == plan.base else Where.UNDECIDED
