"""Commits to views: the same protocol as for tables, with a view's metadata in the file.

A view has no metadata log. So after a lost reply, only its present pointer and the previous one show the outcome of a
swap. The outcome stays UNKNOWN if other writers have swapped twice since our swap was sent, or if our swap creates the
view and another writer has created it instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.typedef import Identifier
from pyiceberg.view.metadata import ViewMetadata

from commit_coord.coordinator.latched import LatchedCommit
from commit_coord.coordinator.outcome import raise_unless_landed
from commit_coord.coordinator.request_ids import file_name, version_of
from commit_coord.coordinator.services import Services
from commit_coord.coordinator.stores import delete_quietly, new_file
from commit_coord.errors import InternalError
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.storage import unserved
from commit_coord.iceberg.view_metadata import InvalidView, ViewPointer
from commit_coord.model import CommitStatus
from commit_coord.protocol.commit import NothingToSwap, Planned, PlanResult, Refusal, SwapResult, Where

logger = logging.getLogger(__name__)


class ViewStore(Protocol):
    """Where the pointers of views are kept."""

    def find(self, view: Identifier) -> ViewPointer | None:
        """Return the pointer of *view* now, None if the view does not exist."""
        ...

    def swap(
        self, view: Identifier, base: str | None, location: str, made: ViewMetadata, lease_ids: Sequence[int] = ()
    ) -> SwapResult:
        """Set the pointer of *view* to *location*, a file with the metadata *made*, if the pointer is *base*.

        As :meth:`PointerStore.swap_under_leases`. In addition, the store keeps lock-only writers out during the swap.

        Raises:
            ViewAlreadyExistsError: A table has the name.
            LeaseEnded: One of the Hive leases has ended.
        """
        ...

    def drop(self, view: Identifier) -> None:
        """Remove the pointer of *view*; its files stay.

        Raises:
            NoSuchViewError: There is no such view.
            CommitNotApplied: The store refuses.
            CommitStateUnknown: It is not known whether the view was dropped. The change is sent once: sent again, it
                could drop a view that another client has made meanwhile.
        """
        ...

    def rename(self, view: Identifier, to: Identifier) -> None:
        """Give *view* the name *to*.

        Raises:
            NoSuchViewError: There is no such view.
            ViewAlreadyExistsError: The name is used.
            CommitNotApplied: The store refuses.
            CommitStateUnknown: It is not known whether the view was renamed.
        """
        ...

    def names(self, namespace: Identifier) -> list[Identifier]:
        """Return the views of a namespace."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedView:
    """A commit that landed: the view's metadata after it, and the file that contains this metadata."""

    metadata: ViewMetadata
    location: str


ViewChange = Callable[[ViewMetadata | None], ViewMetadata]
"""Returns the new metadata of a view, given the present metadata, or None if the view does not exist.

It returns its argument itself if nothing changes, and raises an error to refuse the change.
"""

_REFUSED_WITH = (NoSuchViewError, ViewAlreadyExistsError, NoSuchNamespaceError, InvalidView)


class ViewCommit(LatchedCommit):
    """Changes one view.

    Args:
        services: What the commits of the catalog share.
        store: Stores the pointers of its views.
        view: The view.
        change: Makes the new metadata; called again for each head.
        registered: An existing metadata file that is registered for the view; None: the commit writes a new file.
    """

    def __init__(
        self, services: Services, store: ViewStore, view: Identifier, change: ViewChange, registered: str | None = None
    ) -> None:
        super().__init__(services, [view], str(services.host.new_id()))
        self._store, self._view, self._change, self._registered = store, view, change, registered
        self._created: list[str] = []
        self._used_plain_name = False

    def run(self) -> CommittedView:
        """Execute the change.

        Raises:
            NoSuchViewError, ViewAlreadyExistsError, NoSuchNamespaceError, InvalidView: *change* or the store refused
                the change with this error. Nothing landed. Another error of *change* becomes a CommitNotApplied.
            CommitError: As :meth:`~commit_coord.coordinator.Coordinator.commit`.
        """
        with self.in_doubt():
            verdict = self.drive()
        if verdict.status is CommitStatus.FAILURE and isinstance(verdict.error, _REFUSED_WITH):
            raise verdict.error
        raise_unless_landed(verdict, {"table": self.shown, "request_id": self._request_id})
        landed = verdict.nothing_to_swap or verdict.plan
        assert landed is not None, "a success has a plan, or nothing to swap"
        metadata: CommittedView = landed.payload
        return metadata

    def _plan(self) -> PlanResult:
        found = self._store.find(self._view)
        base = None if found is None else found.location
        head, unknown = None, list[str]()
        if base is not None:
            head, unknown = view_metadata.read_with_unknown(self._services.store.file_io(base), base)
        try:
            made = self._change(head)
        except CommitFailedException as error:
            return Refusal(reason=str(error))
        if made is head:
            assert base is not None, "a view that exists has a pointer"
            return NothingToSwap(payload=CommittedView(metadata=head, location=base))
        if unknown:
            raise InvalidView(
                f"the view has the field {unknown[0]}, which a commit by commit_coord would drop; change the view "
                "with the engine that wrote it"
            )
        location = self._registered or self._new_location(made, base)
        if (reason := unserved(self._services.store.file_io(location), location)) is not None:
            raise InvalidView(reason)
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
            io = self._services.store.file_io(plan.location)
            with new_file(plan.location, self._created), io.new_output(plan.location).create() as output:
                output.write(view_metadata.dump(made.metadata, plan.location))

    def _discard(self, plan: Planned) -> None:
        if plan.location in self._created:
            delete_quietly(self._services.store.file_io(plan.location), plan.location)

    def _swap(self, plan: Planned) -> SwapResult:
        made: CommittedView = plan.payload
        fences = self._services.fences
        return self._reported(
            [self._view], lambda: self._store.swap(self._view, plan.base, plan.location, made.metadata, fences)
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
        # Another writer has swapped from our base, and a pointer never returns to an earlier value.
        return Where.NOT_IN_LOG if plan.base is not None and previous == plan.base else Where.UNDECIDED
