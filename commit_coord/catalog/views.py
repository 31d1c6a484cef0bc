"""The views of a catalog. They take the same latches as tables, so a view and a table never get the same name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    ViewAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.typedef import EMPTY_DICT, Identifier
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from commit_coord.catalog.locking import LockingCatalog
from commit_coord.catalog.names import NamedCatalog
from commit_coord.coordinator.views import CommittedView, ViewCommit, ViewStore
from commit_coord.errors import ConfigError
from commit_coord.iceberg import view_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.view_metadata import SameView, ViewUpdate
from commit_coord.protocol.hierarchy import Operation


class ViewedCatalog(LockingCatalog, NamedCatalog):
    """The catalog's methods for views. A subclass sets the attributes before the first call."""

    view_store: ViewStore | None
    """Stores the pointers of views; None if the catalog cannot store views."""

    def create_view(
        self,
        identifier: str | Identifier,
        schema: Any,
        view_version: ViewVersion,
        location: str | None = None,
        properties: dict[str, str] = EMPTY_DICT,
        *,
        view_uuid: str | None = None,
    ) -> View:
        """Create a view.

        Args:
            identifier: The view's name.
            schema: The schema of its rows, Iceberg's or Arrow's.
            view_version: Its queries; this method sets the schema id.
            location: The folder of its files; None: the default folder in the warehouse.
            properties: Its properties.
            view_uuid: Its UUID; None makes one up.

        Raises:
            NoSuchNamespaceError: The namespace does not exist.
            ViewAlreadyExistsError: A view or a table has this name.
            InvalidView: The view has no query, or several for one dialect; or a property is not valid.
            ConfigError: The catalog cannot store views.
            CommitError: As any commit.
        """
        view = self._view_identifier(identifier)
        columns: Schema = self._convert_schema_if_needed(schema)  # type: ignore[attr-defined]
        self._require_namespace(view)
        place = self._resolve_table_location(location, table_name(view[:-1]), view[-1])  # type: ignore[attr-defined]
        now_ms = self.coordinator.clock.wall_ms()
        uuid = view_uuid or str(self.coordinator.host.new_id())
        new = view_metadata.created(columns, view_version, place, properties, now_ms, uuid)

        def made(head: ViewMetadata | None) -> ViewMetadata:
            self._refuse_existing(view, head)
            return new

        with self.operating(Operation.CREATE_TABLE, view, "create view"):
            return _shown(view, ViewCommit(self.coordinator, self._views, view, made).run())

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        """Register the view whose metadata file is at *metadata_location*.

        Raises:
            NoSuchNamespaceError: The namespace does not exist.
            ViewAlreadyExistsError: A view or a table has this name.
            FileNotFoundError: The file does not exist; nothing was registered.
            InvalidView: The file does not contain the metadata of a view; nothing was registered.
            ConfigError: The catalog cannot store views.
            CommitError: As any commit.
        """
        view = self._view_identifier(identifier)
        self._require_namespace(view)
        file_io = self.coordinator.store.file_io(metadata_location)
        registered = view_metadata.read(file_io, metadata_location)

        def made(head: ViewMetadata | None) -> ViewMetadata:
            self._refuse_existing(view, head)
            return registered

        with self.operating(Operation.CREATE_TABLE, view, "register view"):
            return _shown(view, ViewCommit(self.coordinator, self._views, view, made, metadata_location).run())

    def commit_view(
        self, identifier: str | Identifier, requirements: Sequence[SameView], updates: Sequence[ViewUpdate]
    ) -> CommittedView:
        """Apply *updates* to the view as it is now, if it meets *requirements*.

        Raises:
            NoSuchViewError: The view does not exist.
            InvalidView: The updates do not fit the view.
            ConfigError: The catalog cannot store views.
            CommitError: As any commit.
        """
        view = self._view_identifier(identifier)

        def made(head: ViewMetadata | None) -> ViewMetadata:
            if head is None:
                raise _missing(view)
            for requirement in requirements:
                requirement.validate(head)
            return view_metadata.changed(head, updates, self.coordinator.clock.wall_ms())

        return ViewCommit(self.coordinator, self._views, view, made).run()

    def load_view(self, identifier: str | Identifier) -> View:
        """Return the view as it is now.

        Raises:
            NoSuchViewError: There is none of that name.
        """
        location = self.view_location(identifier)
        metadata = view_metadata.read(self.coordinator.store.file_io(location), location)
        return View(self._view_identifier(identifier), metadata)

    def view_location(self, identifier: str | Identifier) -> str:
        """Return where the metadata of the view is now, without reading it.

        Raises:
            NoSuchViewError: There is none of that name.
        """
        view = self._view_identifier(identifier)
        found = self.view_store.find(view) if self.view_store is not None else None
        if found is None:
            raise _missing(view)
        return found.location

    def view_exists(self, identifier: str | Identifier) -> bool:
        """Return whether there is a view of that name."""
        try:
            self.view_location(identifier)
        except NoSuchViewError:
            return False
        return True

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """Return the views of a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
        """
        levels = self._namespace_identifier(namespace)
        if not self.namespace_exists(levels):  # type: ignore[attr-defined]
            raise NoSuchNamespaceError(f"Namespace does not exist: {table_name(levels)}")
        return self.view_store.names(levels) if self.view_store is not None else []

    def drop_view(self, identifier: str | Identifier, *, expected: str | None = None) -> None:
        """Drop the view; its files stay.

        Args:
            identifier: The view.
            expected: Its UUID, or its metadata location if nobody can read its metadata; None drops any view.

        Raises:
            NoSuchViewError: The view does not exist, or another view than *expected* has the name by now.
            CommitNotApplied: Other writers change the view all the time, or the store refuses; nothing was dropped.
            CommitStateUnknown: It is not known whether the view was dropped.
        """
        view = self._view_identifier(identifier)
        self.view_location(view)
        with self.operating(Operation.DROP_TABLE, view, "drop view"), self._latch(view, statement="drop view"):
            self._refuse_another_view(view, expected)
            self._views.drop(view)

    def rename_view(
        self, from_identifier: str | Identifier, to_identifier: str | Identifier, *, expected: str | None = None
    ) -> None:
        """Give the view another name.

        Args:
            from_identifier: The view.
            to_identifier: Its new name.
            expected: Its UUID, or its metadata location if nobody can read its metadata; None renames any view.

        Raises:
            NoSuchViewError: No view has the old name, or another view than *expected* has it by now.
            NoSuchNamespaceError: The namespace of the new name does not exist.
            ViewAlreadyExistsError: A view or a table has the new name.
            CommitNotApplied: Other writers change the view all the time, or the store refuses; nothing was renamed.
            CommitStateUnknown: It is not known whether the view was renamed.
        """
        old, new = self._view_identifier(from_identifier), self._view_identifier(to_identifier)
        given = (table_name(Catalog.identifier_to_tuple(each)) for each in (from_identifier, to_identifier))
        renaming = "Cannot rename " + " to ".join(given)
        self.view_location(old)
        self._require_namespace(new)
        if old == new:
            raise ViewAlreadyExistsError(f"{renaming}. View already exists")
        operation = self.operating(Operation.RENAME, old, f"rename to {table_name(new)}")
        with operation, self._latch(old, new, statement="rename"):
            self._refuse_another_view(old, expected)
            if self._views.find(new) is not None:
                raise ViewAlreadyExistsError(f"{renaming}. View already exists")
            if self._is_table(new):
                raise ViewAlreadyExistsError(f"{renaming}. Table already exists")
            self._views.rename(old, new)

    @property
    def _views(self) -> ViewStore:
        if self.view_store is None:
            raise ConfigError(
                "the catalog's tables have no column for views",
                key="schema_version",
                accepted="v1, which adds the column iceberg_type",
            )
        return self.view_store

    def _view_identifier(self, identifier: str | Identifier) -> Identifier:
        try:
            return self._table_identifier(identifier)
        except NoSuchTableError as error:
            raise NoSuchViewError(f"View does not exist: {error}") from error

    def _require_namespace(self, view: Identifier) -> None:
        if not self.namespace_exists(view[:-1]):  # type: ignore[attr-defined]
            raise NoSuchNamespaceError(f"Namespace does not exist: {table_name(view[:-1])}")

    def _refuse_existing(self, view: Identifier, head: ViewMetadata | None) -> None:
        if head is not None:
            raise ViewAlreadyExistsError(f"View already exists: {table_name(view)}")
        if self._is_table(view):
            raise ViewAlreadyExistsError(f"Table with same name already exists: {table_name(view)}")

    def _refuse_another_view(self, view: Identifier, expected: str | None) -> None:
        if expected is None or self.view_location(view) == expected:
            return
        if str(self.load_view(view).metadata.view_uuid) != expected:
            raise NoSuchViewError(
                f"View does not exist: {table_name(view)} was dropped or renamed, and another view has its name; "
                "nothing was done"
            )

    def _is_table(self, name: Identifier) -> bool:
        try:
            return self.coordinator.store.pointer(name) is not None
        except NoSuchTableError:
            return True  # an object of another kind has the name


def _missing(view: Identifier) -> NoSuchViewError:
    return NoSuchViewError(f"View does not exist: {table_name(view)}")


def _shown(view: Identifier, committed: CommittedView) -> View:
    return View(view, committed.metadata)
