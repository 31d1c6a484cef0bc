"""What every coordinated catalog shares: how it is opened, and how its tables are registered, dropped and renamed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceNotEmptyError,
    TableAlreadyExistsError,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier

from commit_coord.catalog.creating import CreatingCatalog
from commit_coord.catalog.maintenance import MaintainedCatalog
from commit_coord.catalog.moved_notes import note_moves, take_note
from commit_coord.catalog.names import LEVEL_SEPARATOR, NoSuchName
from commit_coord.catalog.purging import files_of, refuse_another, refuse_shared_files
from commit_coord.catalog.reading import ReadingCatalog
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Configuration
from commit_coord.coordinator import Coordinator, PointerStore, delete_quietly
from commit_coord.errors import CommitStateUnknown, UpdatesDoNotFit
from commit_coord.events import Events
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.iceberg.storage import FileIOs, cut_off
from commit_coord.locks.handover import HandoverLockManager
from commit_coord.observing import observe
from commit_coord.observing.audit import AuditLog
from commit_coord.protocol.commit import SwapResult
from commit_coord.protocol.hierarchy import Operation
from commit_coord.table import CoordinatedTable

logger = logging.getLogger(__name__)


class CoordinatedCatalog(CreatingCatalog, ReadingCatalog, MaintainedCatalog, MetastoreCatalog):
    """Goes in front of a PyIceberg catalog class; that class keeps the pointers and everything else.

    ``super()`` is that class in the methods below, which mypy can't know of a mixin. A subclass is a
    :class:`~commit_coord.coordinator.PointerStore`, calls :meth:`_configure` first and :meth:`_coordinate` when it is
    ready.
    """

    def _configure(self, configuration: Configuration) -> None:
        """Take the settings over, and open what listens to this catalog."""
        settings = configuration.settings
        self.configuration, self.settings, self.events = configuration, settings, Events()
        observe(self.events, settings, catalog=self.name)
        self._audit = AuditLog(settings.commit_coord_audit_log, catalog=self.name, lock_manager=settings.lock_impl)
        self._file_ios = FileIOs(self.properties)

    def _coordinate(
        self, store: PointerStore, locks: HandoverLockManager, metadata: MetadataReader | None = None
    ) -> None:
        """Make the coordinator."""
        settings = self.settings
        self.locks = locks
        self.coordinator = Coordinator(
            store,
            locks,
            acquire_timeout_ms=settings.lock_acquire_timeout_ms,
            clock=SYSTEM_CLOCK,
            events=self.events,
            journal_lifetime_ms=settings.commit_journal_lifetime_ms,
            group_max_size=settings.commit_group_max_size,
            group_max_bytes=settings.commit_group_max_bytes,
            metadata=metadata,
            host=self.host,
        )

    def swaps_are_conditional(self) -> bool:
        """Return whether the store itself compares at each swap, so that a commit without its latch overwrites none."""
        return True

    # Tables.

    def register_table(
        self,
        identifier: str | Identifier,
        metadata_location: str,
        overwrite: bool = False,
        *,
        expected: str | None = None,
    ) -> CoordinatedTable:
        """Register the table whose metadata file is at *metadata_location*, under its latch.

        Args:
            identifier: The table.
            metadata_location: The metadata file.
            overwrite: Replace an existing table of this name. The files of the old table stay.
            expected: Where the metadata of this table is, in the state that is replaced; None replaces any state.

        Raises:
            TableAlreadyExistsError: There is a table of this name, and *overwrite* is false; or there is a view.
            FileNotFoundError: The file does not exist; nothing was registered.
            UpdatesDoNotFit: File stores would read another file than *metadata_location*; nothing was registered.
            ConfigError: By the file, the writers of the table would lock elsewhere; nothing was registered.
            CommitFailedException: The table was not replaced: it is not as *expected*, or a writer that takes no latch
                changed it at the same time.
            CommitStateUnknown: It is not known whether the table was registered.
        """
        table = self._table_identifier(identifier)
        if (reason := cut_off(metadata_location)) is not None:
            raise UpdatesDoNotFit(f"the table was not registered: {reason}", table=table_name(table))
        operation = Operation.DROP_TABLE if overwrite else Operation.CREATE_TABLE
        registering = self.operating(operation, table, "register table")
        with registering, self._latch(table, statement="register table") as latch:
            if not overwrite:
                self._refuse_existing_table(table)
            store = self.coordinator.store
            pointer = store.pointer(table)
            if expected not in (None, pointer):
                raise _changed(table)
            registered = self.coordinator.read(metadata_location)
            if pointer is None:
                self._refuse_missing_namespace(table)
            self._refuse_registered(table, pointer, registered)
            if pointer is None:
                self._add(table, metadata_location, registered)
                return self._made(table, metadata_location, registered)
            match store.swap(table, pointer, metadata_location):
                case SwapResult.MOVED:
                    raise _changed(table)
                case SwapResult.LOST_REPLY if not self._is_seen(table, metadata_location):
                    raise CommitStateUnknown(
                        "it is not known whether the table was registered; load it before you repeat the call",
                        table=table_name(table),
                        location=metadata_location,
                    )
            take_note(latch)
            self.coordinator.overwrites.landed(table, metadata_location)
            return self._made(table, metadata_location, registered)

    def _is_seen(self, table: Identifier, location: str) -> bool:
        """Return whether *table* is seen to have its metadata at *location*."""
        try:
            return self.coordinator.store.pointer(table) == location
        except Exception:
            logger.warning("the pointer of %s could not be read", table_name(table), exc_info=True)
            return False

    def drop_table(self, identifier: str | Identifier, *, expected: str | None = None) -> None:
        """Drop the table when nobody works on it: X on the table, then its latch.

        Args:
            identifier: The table.
            expected: Its UUID, or its metadata location if nobody can read its metadata; None drops any table.

        Raises:
            NoSuchTableError: No table has this name, or another table than *expected* has it by now.
            CommitNotApplied: Another writer changes it all the time, or the database or the metastore refuses.
            CommitStateUnknown: It is not known whether the table was dropped.
        """
        table = self._table_identifier(identifier)
        with (
            self.operating(Operation.DROP_TABLE, table),
            self._latch(table, statement="drop table") as latch,
        ):
            refuse_another(self.coordinator, table, expected)
            self._drop(table)
            take_note(latch)

    def rename_table(
        self, from_identifier: str | Identifier, to_identifier: str | Identifier, *, expected: str | None = None
    ) -> CoordinatedTable:
        """Rename the table when nobody works on it: X on the old name, then the latches of both names.

        What the lock service remembers as lost of the table, it remembers under the new name.

        Args:
            from_identifier: The table.
            to_identifier: Its new name.
            expected: As for :meth:`drop_table`.

        Raises:
            NoSuchTableError: As for :meth:`drop_table`.
            TableAlreadyExistsError: A table or a view has the new name.
            CommitNotApplied: As for :meth:`_rename`; nothing was renamed.
            CommitStateUnknown: It is not known whether the table was renamed; or it was, and could not be loaded.
        """
        old, new = self._table_identifier(from_identifier), self._table_identifier(to_identifier)
        if old == new:
            raise TableAlreadyExistsError(f"Table {'.'.join(new)} already exists")
        renaming = self.operating(Operation.RENAME, old, f"rename to {'.'.join(new)}")
        moving = note_moves(self.coordinator, old, new, self._is_table)
        with renaming, moving, self._latch(old, new, statement="rename"):
            refuse_another(self.coordinator, old, expected)
            if self.view_exists(new):
                raise TableAlreadyExistsError(
                    f"Cannot rename {table_name(old)} to {table_name(new)}. View already exists"
                )
            self._rename(old, new)
            try:
                return self.load_table(new)
            except Exception as error:
                raise CommitStateUnknown(
                    "the table was renamed, and an unexpected error came after it; load it under its new name, do "
                    "not repeat the rename",
                    table=table_name(old),
                    to=table_name(new),
                ) from error

    def _drop(self, table: Identifier, location: str | None = None) -> None:
        """Remove the pointer of *table*, whose latch is held, once; only if it is *location*, unless that is None.

        1. We send the drop, and its reply is lost.   2. An unmodified client renames the table.   3. We see no table of
        the name, take it for dropped, and purge its files.   So after a lost reply nothing is known.

        Raises:
            NoSuchTableError: There is none of that name.
            CommitNotApplied: It has another pointer, or the database refuses.
            CommitStateUnknown: It is not known whether the table was dropped.
        """
        raise NotImplementedError

    def _rename(self, old: Identifier, new: Identifier) -> None:
        """Give the table *old* the name *new*; the latches of both are held.

        Raises:
            NoSuchTableError: There is none of that name.
            TableAlreadyExistsError: There is a table *new*.
            CommitNotApplied: Another writer changes it all the time, or the database or the metastore refuses.
            CommitStateUnknown: It is not known whether the table was renamed.
        """
        raise NotImplementedError

    def purge_table(self, identifier: str | Identifier, *, expected: str | None = None) -> None:
        """Drop the table and delete its files, each manifest read once (PyIceberg reads it for every snapshot).

        A file that can't be read is passed over; what only it names stays.

        It does not check whether another table uses its files (``add_files``, ``register_table`` of a table that is
        there): set ``gc.enabled=false`` on each table whose files another one uses.

        Args:
            identifier: The table.
            expected: As for :meth:`drop_table`.

        Raises:
            NoSuchTableError, CommitNotApplied: As for :meth:`drop_table`.
            CommitStateUnknown: It is not known whether the table was dropped; no file was deleted.
            ValidationException: ``gc.enabled`` is false: other tables may need its files. Nothing was dropped.
        """
        name = self._table_identifier(identifier)
        with (
            self.operating(Operation.DROP_TABLE, name, "purge table"),
            self._latch(name, statement="purge table") as latch,
        ):
            refuse_another(self.coordinator, name, expected)
            table = self.load_table(name)  # under the latch: files of a commit in between would stay behind
            refuse_shared_files(table)
            self._drop(name, table.metadata_location)
            take_note(latch)
        for path in files_of(table):
            delete_quietly(table.io, path)

    def create_namespace(self, namespace: str | Identifier, properties: dict[str, str] = EMPTY_DICT) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: There is one of that name.
            NoSuchNamespaceError: No namespace can have this name: a level of it is empty, or contains U+001F.
            CommitNotApplied: The database or the metastore refuses it; there is no such namespace.
            CommitStateUnknown: It is not known whether the namespace was created.
        """
        levels = self._namespace_identifier(namespace)
        if any(LEVEL_SEPARATOR in level for level in levels):
            raise NoSuchName(f"a level of a namespace can't contain U+001F, no REST path could name it: {namespace!r}")
        with self.operating(Operation.CREATE_DATABASE, levels):
            super().create_namespace(namespace, properties)  # type: ignore[safe-super]

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Drop a namespace.

        Raises:
            NoSuchNamespaceError: There is none of that name.
            NamespaceNotEmptyError: It has tables or views.
            CommitNotApplied: The database or the metastore refuses that; nothing was dropped.
            CommitStateUnknown: It is not known whether the namespace was dropped.
        """
        with self.operating(Operation.DROP_DATABASE, self._namespace_identifier(namespace)):
            if views := self.list_views(namespace):
                raise NamespaceNotEmptyError(
                    f"Namespace {table_name(views[0][:-1])} is not empty. {len(views)} views exist."
                )
            super().drop_namespace(namespace)  # type: ignore[safe-super]

    # Other processes, and copies.

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the catalog was opened with, passwords included: it is opened anew where it is loaded.

        What is loaded is another client: it holds none of this one's locks.

        Raises:
            TypeError: The catalog exists only in the memory of this process.
        """
        if self.configuration.is_in_memory:
            raise TypeError(
                f"catalog {self.name!r} exists only in the memory of this process, where no other process finds it: "
                "keep it in a file (sqlite:///…) or in a database to send it to other processes"
            )
        return _opened_anew, (type(self), self.name, self.configuration.given)

    def __copy__(self) -> Self:
        """Return the same catalog: a copy of a table commits through the client that the table has."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """As a plain copy."""
        return self

    def close(self) -> None:
        """Give back every lock of this client and close every connection, also where one fails to close."""
        try:
            self.locks.close()
        finally:
            super().close()


def _opened_anew(cls: type[CoordinatedCatalog], name: str, given: Mapping[str, str]) -> CoordinatedCatalog:
    return cls(name, **given)


def _changed(table: Identifier) -> CommitFailedException:
    return CommitFailedException(f"Table {table_name(table)} was changed by another writer")
