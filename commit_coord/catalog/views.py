"""Views, coordinated like tables: a change takes the latch of the name, and compares and sets the pointer.

Their metadata files are those of Iceberg Java, so its engines read and write the same views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from pyiceberg.exceptions import CommitFailedException, NoSuchViewError, ViewAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.typedef import Identifier

from commit_coord.coordinator import Coordinator, delete_quietly
from commit_coord.coordinator.request_ids import version_of
from commit_coord.errors import CommitStateUnknown
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.locks.base import Lease
from commit_coord.protocol.commit import SwapResult

Object = Mapping[str, Any]


class ViewStore(Protocol):
    """Where the metadata location of every view is kept."""

    def location(self, view: Identifier) -> str | None:
        """Return the metadata location of *view*, None when there is none of that name."""
        ...

    def listed(self, namespace: Identifier) -> list[Identifier]:
        """Return the views of *namespace*."""
        ...

    def swap(self, view: Identifier, base: str | None, location: str) -> SwapResult:
        """Set the pointer from *base* to *location*; with no base, create the view."""
        ...

    def drop(self, view: Identifier, base: str) -> bool:
        """Drop *view* if its pointer is *base*; return whether it was."""
        ...

    def rename(self, old: Identifier, new: Identifier, base: str) -> bool:
        """Give *old* the name *new* if its pointer is *base*; return whether it has that now.

        Raises:
            ViewAlreadyExistsError: There is something of the new name.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoadedView:
    """The metadata of a view, and the file that it is in."""

    location: str
    metadata: Object


class Views:
    """The views of a catalog.

    Args:
        store: Their pointers.
        coordinator: Of the catalog's commits.
        file_io: Returns the file store for a location.
        latch: Takes the commit latches of names.
    """

    def __init__(
        self,
        store: ViewStore,
        coordinator: Coordinator,
        file_io: Callable[[str], FileIO],
        latch: Callable[..., Lease],
    ) -> None:
        self.store, self._coordinator, self._file_io, self._latch = store, coordinator, file_io, latch

    def location(self, view: Identifier) -> str:
        """Return where the metadata of *view* is now.

        Raises:
            NoSuchViewError: There is none of that name.
        """
        location = self.store.location(view)
        if location is None:
            raise NoSuchViewError(f"View does not exist: {table_name(view)}")
        return location

    def create(
        self, view: Identifier, place: str, schema: Object, version: Object, properties: Mapping[str, str]
    ) -> LoadedView:
        """Create *view*, with its files in *place*.

        Raises:
            ViewAlreadyExistsError: There is something of that name.
            ValueError: The version has two queries for one dialect.
            CommitStateUnknown: It is not known whether it was created.
        """
        metadata = view_metadata.created(str(self._coordinator.host.new_id()), place, schema, version, properties)
        with self._latch(view, statement="create view"):
            if self.store.location(view) is not None:
                raise _exists(view)
            return self._publish(view, None, metadata)

    def commit(self, view: Identifier, requirements: Sequence[Object], updates: Sequence[Object]) -> LoadedView:
        """Change *view* as it is now, if it meets *requirements*.

        Raises:
            NoSuchViewError: There is none of that name.
            CommitFailedException: It does not meet them, or somebody who takes no latch changed it meanwhile.
            ValidationException: An update does not fit.
            ValueError: An update or requirement is not one of views.
            CommitStateUnknown: It is not known whether it was changed.
        """
        with self._latch(view, statement="replace view"):
            base = self.location(view)
            with self._file_io(base).new_input(base).open() as stream:
                before = orjson.loads(fast_metadata.unzipped(stream.read(), base))
            view_metadata.check_uuid(before, requirements)
            after = view_metadata.changed(before, updates, now_ms=self._coordinator.clock.wall_ms())
            return LoadedView(base, before) if after == before else self._publish(view, base, after)

    def register(self, view: Identifier, location: str) -> str:
        """Register the view whose metadata file is at *location*; return that.

        Raises:
            ViewAlreadyExistsError: There is something of that name.
            FileNotFoundError: There is no such file.
        """
        with self._latch(view, statement="register view"):
            if self.store.location(view) is not None:
                raise _exists(view)
            with self._file_io(location).new_input(location).open() as stream:
                orjson.loads(fast_metadata.unzipped(stream.read(), location))
            self._swap(view, None, location)
            return location

    def drop(self, view: Identifier) -> None:
        """Drop *view*; its files stay.

        Raises:
            NoSuchViewError: There is none of that name.
        """
        with self._latch(view, statement="drop view"):
            if not self.store.drop(view, self.location(view)):
                raise CommitFailedException(f"View {table_name(view)} was changed meanwhile")

    def rename(self, old: Identifier, new: Identifier) -> None:
        """Give *old* the name *new*.

        Raises:
            NoSuchViewError: There is none of the old name.
            ViewAlreadyExistsError: There is something of the new name.
        """
        with self._latch(old, new, statement="rename view"):
            if not self.store.rename(old, new, self.location(old)):
                raise CommitFailedException(f"View {table_name(old)} was changed meanwhile")

    def _publish(self, view: Identifier, base: str | None, metadata: Object) -> LoadedView:
        place = metadata["properties"].get("write.metadata.path") or f"{metadata['location'].rstrip('/')}/metadata"
        location = f"{place}/{version_of(base) + 1:05d}-{self._coordinator.host.new_id()}.metadata.json"
        io = self._file_io(location)
        with io.new_output(location).create() as output:
            output.write(orjson.dumps(metadata))
        try:
            self._swap(view, base, location)
        except CommitStateUnknown:
            raise  # the view may have the file
        except Exception:
            delete_quietly(io, location)
            raise
        return LoadedView(location, metadata)

    def _swap(self, view: Identifier, base: str | None, location: str) -> None:
        match self.store.swap(view, base, location):
            case SwapResult.MOVED if base is None:
                raise _exists(view)
            case SwapResult.MOVED:
                raise CommitFailedException(f"View {table_name(view)} was changed meanwhile")
            case SwapResult.LOST_REPLY if self.store.location(view) != location:
                raise CommitStateUnknown(
                    "whether the view was changed is not known; its file is kept",
                    table=table_name(view),
                    location=location,
                )


def _exists(view: Identifier) -> ViewAlreadyExistsError:
    return ViewAlreadyExistsError(f"View already exists: {table_name(view)}")
