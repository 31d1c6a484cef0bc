"""The pointers of a metastore: the parameter ``metadata_location`` of each table."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.typedef import Identifier

from commit_coord import doubt
from commit_coord.catalog.metastore import hive_table
from commit_coord.catalog.metastore.hive_table import ICEBERG_VIEW, METADATA_LOCATION, TABLE_TYPE
from commit_coord.clock import Clock
from commit_coord.errors import MetastoreUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import (
    AlreadyExists,
    InvalidObject,
    InvalidOperation,
    LostReply,
    MetaError,
    MetastoreServerFailed,
    NoSuchObject,
    NotSent,
)
from commit_coord.iceberg.attempt import table_name
from commit_coord.interrupts import to_its_end
from commit_coord.protocol.backoff import Backoff, next_wait
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

MODIFIED = "The table has been modified"
"""How a server refuses a swap whose condition does not hold. Source: ``HiveAlterHandler``, ``ObjectStore``."""

_INCOMPATIBLE = "types incompatible with the existing columns"

_REFUSALS = (MetaError, InvalidOperation, MetastoreServerFailed)

AGAIN = Backoff(initial_ms=50, maximum_ms=2_000)
"""Between two tries of a change that may have been carried out."""


class Pointers:
    """Reads and changes the pointers, one call of the metastore at a time.

    Args:
        client: Of the metastore.
        clock: Time and random numbers.
    """

    kind = "Table"
    """What has these pointers, for messages."""
    missing: type[Exception] = NoSuchTableError
    taken: type[Exception] = TableAlreadyExistsError

    def __init__(self, client: MetastoreClient, clock: Clock) -> None:
        self._client, self._clock = client, clock

    def find(self, table: Identifier) -> Any:
        """Return the metastore's table, None when there is none.

        Raises:
            NoSuchIcebergTableError: The object with this name is not an Iceberg table.
        """
        database, name = table
        try:
            found = self._client.get_table(database, name)
        except NoSuchObject:
            return None
        kind = (found.parameters or {}).get(TABLE_TYPE, "")
        if kind.upper() == ICEBERG_VIEW:
            raise NoSuchIcebergTableError(f"Table does not exist: {database}.{name} is a view")
        if kind.lower() != "iceberg" or not found.parameters.get(METADATA_LOCATION):
            raise NoSuchIcebergTableError(
                f"{database}.{name} is not an Iceberg table: {TABLE_TYPE}={kind!r}, tableType={found.tableType!r}, "
                f"{METADATA_LOCATION}={found.parameters.get(METADATA_LOCATION)!r}"
            )
        return found

    def found(self, table: Identifier) -> Any:
        """Return the metastore's table.

        Raises:
            NoSuchTableError: There is none of that name.
        """
        found = self.find(table)
        if found is None:
            raise self.missing(f"{self.kind} does not exist: {table_name(table)}")
        return found

    def location(self, table: Identifier) -> str | None:
        """Return the metadata location of *table*, None when there is no such table.

        Raises:
            NoSuchIcebergTableError: The object with this name is not an Iceberg table.
        """
        found = self.find(table)
        return None if found is None else found.parameters[METADATA_LOCATION]

    def alter(
        self, table: Identifier, altered: Any, *, expected: tuple[str, str] | None, base: str, server: str
    ) -> SwapResult:
        """Send an alter and say what its answer proves.

        A refusal because the table "has been modified" is LOST_REPLY too: servers repeat what their database did not
        answer, and then meet their own change.

        One without a condition is seen to its end:

        1. We hold the lock and send the change.   2. Ctrl-C: we give the lock back.   3. Another client commits.
        4. The change, which was still under way, is carried out over theirs.

        Args:
            table: Which one.
            altered: As it is to be.
            expected: The condition: a parameter and its value.
            base: The pointer that it is swapped from.
            server: The one to ask.

        Raises:
            FailedOver: Another server is in use by now; nothing was sent.
            NoSuchTableError: There is no such table.
            InvalidOperation: The metastore refuses the new table; the message says what to change.
        """
        *_, name = table
        send = partial(self._client.alter_table, table[0], name, altered, expected=expected, server=server)
        with doubt.sending(NotSent, self.missing, *_REFUSALS):
            return self._alter(table, altered, base, send if expected is not None else lambda: to_its_end(send))

    def _alter(self, table: Identifier, altered: Any, base: str, send: Callable[[], None]) -> SwapResult:
        *_, name = table
        refusals: list[str] = []
        while True:
            try:
                send()
            except LostReply:
                logger.warning("the reply to a swap of %s was lost", table_name(table), exc_info=True)
                return SwapResult.LOST_REPLY
            except NotSent:
                if refusals:  # Of the change that was refused before this one, nothing is proven.
                    return SwapResult.LOST_REPLY
                raise
            except NoSuchObject as error:
                if refusals or altered.tableName != name or altered.dbName != table[0]:
                    # Perhaps because of our own rename: servers repeat what their database did not answer.
                    return SwapResult.LOST_REPLY
                raise self.missing(f"{self.kind} does not exist: {table_name(table)}") from error
            except _REFUSALS as error:
                if MODIFIED in str(error) or not self._is_still(table, base):
                    return SwapResult.LOST_REPLY
                if _INCOMPATIBLE in str(error):
                    raise _column_change_refused(error) from error
                # Answered with a failure, and nothing changed. Yet the server's database may have carried out what it
                # did not answer to the server, a moment later: only the same answer to the same call is proof.
                refusals.append(str(error))
                if len(refusals) > 1:
                    if (reason := hive_table.value_refused(altered.parameters, str(error))) is not None:
                        raise InvalidOperation(reason) from error
                    raise
                self._clock.sleep(next_wait(AGAIN, 0, self._clock.random()))
            else:
                return SwapResult.SWAPPED

    def _is_still(self, table: Identifier, base: str | None) -> bool:
        """Return whether the pointer is seen to be *base*; None: whether there is seen to be no table."""
        try:
            return self.location(table) == base
        except Exception:
            logger.warning("the pointer of %s could not be read", table_name(table), exc_info=True)
            return False

    def create(self, new: Any, location: str, *, if_taken: SwapResult = SwapResult.LOST_REPLY) -> SwapResult:
        """Send the creation of the table *new* with the pointer *location*, and say what its answer proves.

        Args:
            new: The table.
            location: Its pointer.
            if_taken: What is returned if the answer is that the name is taken, and another table is seen to have it.

        Raises:
            NotSent: Nothing was sent.
            NoSuchNamespaceError: There is no such database.
            NoSuchIcebergTableError: The object with this name is not an Iceberg table.
            MetaError, InvalidObject, InvalidOperation, MetastoreServerFailed: The metastore refuses the table; the
                message says what to change.
            Exception: Nothing is proven.
        """
        with doubt.sending(NotSent, NoSuchNamespaceError, NoSuchIcebergTableError, InvalidObject, *_REFUSALS):
            return self._create(new, location, if_taken)

    def _create(self, new: Any, location: str, if_taken: SwapResult) -> SwapResult:
        table = (new.dbName, new.tableName)
        refusals: list[str] = []
        while True:
            try:
                self._client.create_table(new)
            except LostReply:
                logger.warning("the reply to the creation of %s was lost", table_name(table), exc_info=True)
                return SwapResult.LOST_REPLY
            except NotSent:
                if refusals:  # Of the creation that was refused before this one, nothing is proven.
                    return SwapResult.LOST_REPLY
                raise
            except AlreadyExists:
                try:
                    if (seen := self.location(table)) == location:
                        return SwapResult.SWAPPED
                    return if_taken if seen is not None and not refusals else SwapResult.LOST_REPLY
                except (MetastoreUnavailable, MetaError, MetastoreServerFailed):
                    logger.warning("the pointer of %s could not be read", table_name(table), exc_info=True)
                    return SwapResult.LOST_REPLY
            except InvalidObject as error:
                if refusals:
                    return SwapResult.LOST_REPLY
                if table[0] not in self._client.get_all_databases():
                    raise NoSuchNamespaceError(f"Namespace does not exist: {table[0]}") from error
                raise
            except (MetaError, MetastoreServerFailed) as error:
                if not self._is_still(table, None):
                    return SwapResult.LOST_REPLY
                refusals.append(str(error))
                if len(refusals) > 1:  # as in :meth:`alter`
                    reason = hive_table.folder_refused(new.sd.location, str(error))
                    reason = reason or hive_table.value_refused(new.parameters, str(error))
                    if reason is not None:
                        raise InvalidOperation(reason) from error
                    raise
                self._clock.sleep(next_wait(AGAIN, 0, self._clock.random()))
            else:
                return SwapResult.SWAPPED


def _column_change_refused(error: Exception) -> InvalidOperation:
    return InvalidOperation(
        "the metastore refuses the change of columns; set hive.metastore.disallow.incompatible.col.type.changes=false "
        f"on it, as Iceberg needs: {error}"
    )
