"""Creates, renames and drops tables and views of a metastore."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.typedef import Identifier

from commit_coord import doubt
from commit_coord.catalog.metastore.common_lock import CommonLock
from commit_coord.catalog.metastore.hive_table import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from commit_coord.catalog.metastore.pointers import AGAIN, Pointers
from commit_coord.catalog.metastore.properties import WriterProperties
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.clock import Clock
from commit_coord.errors import CommitNotApplied, CommitStateUnknown, UpdatesDoNotFit
from commit_coord.hms.calls import FailedOver
from commit_coord.hms.client import MetastoreClient, is_refused_drop
from commit_coord.hms.connection import (
    InvalidOperation,
    LostReply,
    MetaError,
    MetastoreServerFailed,
    NoSuchObject,
    NotSent,
)
from commit_coord.hms.probe import CompareAndSet
from commit_coord.iceberg.attempt import table_name
from commit_coord.protocol.backoff import next_wait
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

_TRIES = 10
"""Of a creation or a rename whose answer got lost."""


class Administration:
    """Creates, renames and drops the tables, or the views, of one metastore.

    The errors that say that there is none of a name, or one already, are those of the *pointers*.

    Args:
        client: Of the metastore.
        pointers: How tables, or views, are found and created.
        servers: What its servers can do.
        properties: What tables declare of their writers.
        common_lock: Under which a table is renamed on a server that ignores the condition of an alter.
        clock: Time and random numbers.
    """

    def __init__(
        self,
        client: MetastoreClient,
        pointers: Pointers,
        servers: Servers,
        properties: WriterProperties,
        common_lock: CommonLock,
        clock: Clock,
    ) -> None:
        self._client, self._pointers, self._servers = client, pointers, servers
        self._properties, self._common_lock, self._clock = properties, common_lock, clock

    def create(self, new: Any, location: str) -> None:
        """Create *new* with the pointer *location*: again, until it is known to exist or not.

        Raises:
            TableAlreadyExistsError, ViewAlreadyExistsError: There is one, and it is not this.
            NoSuchNamespaceError: There is no such database.
            InvalidOperation: The metastore refuses it; the message says what to change.
            CommitStateUnknown: It is not known whether it was created; its metadata file is kept.
        """
        table, in_doubt = (new.dbName, new.tableName), False
        for check in range(_TRIES):
            try:
                result = self._pointers.create(new, location, if_taken=SwapResult.MOVED)
                if result is SwapResult.MOVED and not in_doubt:
                    doubt.ends()
                    raise self._pointers.taken(f"{self._pointers.kind} {table_name(table)} already exists")
                in_doubt = True
                if result is SwapResult.SWAPPED or self._pointers.location(table) == location:
                    return
            except Exception:
                # 1. We send the creation, and its reply is lost.   2. The next call fails or is refused: the database
                # is dropped.   3. The metastore carries the creation out, or it has, and the table has another name or
                # another pointer by now.   So an error is one only before anything is in doubt.
                if not in_doubt:
                    raise
                logger.warning("it is not known yet whether %s was created", table_name(table), exc_info=True)
            self._clock.sleep(next_wait(AGAIN, check, self._clock.random()))
        kind = self._pointers.kind.lower()
        raise CommitStateUnknown(
            f"it is not known whether the {kind} was created; its metadata file is kept; look for the {kind} first",
            table=table_name(table),
            location=location,
        )

    def rename(self, old: Identifier, new: Identifier) -> str:
        """Move a table or view to another name, on the condition that its pointer is the one that goes along.

        Returns:
            The pointer.

        Raises:
            NoSuchTableError, NoSuchViewError: There is none of the old name.
            NoSuchNamespaceError: There is no database of the new name's.
            TableAlreadyExistsError, ViewAlreadyExistsError: There is one of the new name.
            ConfigError: Its writers use another lock manager than this catalog.
            LockTimeout: The metastore ignores the condition, and another client held the table's lock for longer than
                ``lock.acquire-timeout-ms``. Nothing was sent.
            CommitNotApplied: The metastore refuses the rename.
            CommitStateUnknown: It is not known whether it was renamed.
        """
        with ExitStack() as held:
            return self._rename(old, new, held)

    def _rename(self, old: Identifier, new: Identifier, held: ExitStack) -> str:
        is_locked = False
        sent: set[str] = set()  # the pointers in the alters whose replies were lost; each may still be carried out
        for check in range(_TRIES):
            try:
                able = self._servers.capabilities()
                if able.compare_and_set is not CompareAndSet.HONOURED and not is_locked:
                    # 1. We read the pointer.   2. Another client commits, and releases its lock.   3. Our alter sets
                    # the pointer back.   So we hold this lock, until the last try: an alter without a reply may be
                    # under way.
                    held.enter_context(self._common_lock.of(old))
                    is_locked = True
                found = self._pointers.find(old) if sent else self._pointers.found(old)
                there = self._pointers.location(new)
                # 1. We send the alter, and its reply is lost.   2. The new name does not exist yet, so we wait.
                # 3. The metastore carries the alter out, also between the two calls above.   4. We meet our own table.
                if there is not None and there in sent:
                    return there
                parameters = {} if found is None else found.parameters
                # By now, the old name may be that of another table, whose pointer never was the one that we sent.
                pointers = {parameters.get(METADATA_LOCATION), parameters.get(PREVIOUS_METADATA_LOCATION)}
                if sent and (there is not None or sent.isdisjoint(pointers)):
                    break  # others have changed, dropped or created a table since, under one of the two names
                self._properties.refuse_others(old, parameters)
                if there is not None:
                    raise self._pointers.taken(f"{self._pointers.kind} {table_name(new)} already exists")
                location: str = parameters[METADATA_LOCATION]
                if self._pointers.kind == "Table" and parameters.get("EXTERNAL", "").upper() != "TRUE":
                    raise UpdatesDoNotFit(
                        "the table was not renamed: it is a managed table, whose folder the metastore would move, and "
                        "its metadata would name files that are gone; commit to it once, which makes it an external "
                        "table, or set EXTERNAL=TRUE in Hive",
                        table=table_name(old),
                        to=table_name(new),
                    )
                found.dbName, found.tableName = new
                expected = (METADATA_LOCATION, location) if able.compare_and_set is CompareAndSet.HONOURED else None
                sending = self._pointers.alter(old, found, expected=expected, base=location, server=able.server)
                if sending is SwapResult.SWAPPED:
                    return location
                sent.add(location)
            except FailedOver:
                logger.warning("the rename of %s is tried again", table_name(old), exc_info=True)
            except Exception as error:
                # As in :meth:`create`, an error is one only before anything is in doubt.
                if not sent:
                    self._tell_refusal(old, new, error)
                    raise
                logger.warning("it is not known yet whether %s was renamed", table_name(old), exc_info=True)
            self._clock.sleep(next_wait(AGAIN, check, self._clock.random()))
        raise CommitStateUnknown(
            f"it is not known whether the {self._pointers.kind.lower()} was renamed; look which of the two names "
            "exists before you repeat it",
            table=table_name(old),
            to=table_name(new),
        )

    def _tell_refusal(self, old: Identifier, new: Identifier, refused: Exception) -> None:
        """Raise what it means that the metastore has *refused* a rename, if that is an answer of the metastore."""
        if not isinstance(refused, MetaError | InvalidOperation | MetastoreServerFailed):
            return
        if new[0] not in self._client.get_all_databases():
            raise NoSuchNamespaceError(f"Namespace does not exist: {new[0]}") from refused
        kind = UpdatesDoNotFit if isinstance(refused, InvalidOperation) else CommitNotApplied
        raise kind(
            f"the {self._pointers.kind.lower()} was not renamed: {refused}", table=table_name(old), to=table_name(new)
        ) from refused

    def drop(self, table: Identifier, location: str | None = None) -> None:
        """Drop *table*, if its pointer is *location* or that is None. The call is sent once.

        1. We send it, and its reply is lost: it was carried out.   2. Another client creates a table of this name.
        3. Sent again, it would drop their table.

        Raises:
            NoSuchTableError, NoSuchViewError: There is none of that name, or none of Iceberg's.
            ConfigError: Its writers use another lock manager than this catalog.
            CommitNotApplied: It has another pointer, so nothing was sent; or the server refuses the drop
                (``UpdatesDoNotFit``).
            CommitStateUnknown: It is not known whether it was dropped.
        """
        kind = self._pointers.kind.lower()
        found = self._pointers.found(table).parameters
        self._properties.refuse_others(table, found)
        if location not in (None, found[METADATA_LOCATION]):
            raise CommitNotApplied(
                f"the {kind} was not dropped: another writer has changed it", table=table_name(table)
            )
        database, name = table
        with doubt.sending(NotSent, UpdatesDoNotFit):
            self._send_drop(database, name)

    def _send_drop(self, database: str, name: str) -> None:
        kind, table = self._pointers.kind.lower(), (database, name)
        try:
            self._client.drop_table(database, name, deleteData=False)
        except (LostReply, MetaError, MetastoreServerFailed, NoSuchObject) as error:
            if is_refused_drop(error):
                raise UpdatesDoNotFit(f"the {kind} was not dropped: {error}", table=table_name(table)) from error
            # Also "no such table": a server repeats what its database did not answer, and then finds nothing.
            raise CommitStateUnknown(
                f"it is not known whether the {kind} was dropped ({error}); look for it before you repeat the call",
                table=table_name(table),
            ) from error
