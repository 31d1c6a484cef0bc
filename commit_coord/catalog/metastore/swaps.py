"""Swaps a pointer: by compare-and-set, or under the common lock if the server ignores the condition."""

from __future__ import annotations

import logging
from typing import Any

from pyiceberg.typedef import Identifier

from commit_coord.catalog.metastore.common_lock import CommonLock
from commit_coord.catalog.metastore.declarations import COMMON_LOCK, declared_at
from commit_coord.catalog.metastore.guards import Guards
from commit_coord.catalog.metastore.hive_table import METADATA_LOCATION, TableFormat
from commit_coord.catalog.metastore.pointers import Pointers
from commit_coord.catalog.metastore.servers import Servers
from commit_coord.catalog.metastore.writers import LockOnlyWriters
from commit_coord.hms.calls import FailedOver
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.probe import CompareAndSet
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.overwrites import Overwrites
from commit_coord.iceberg.reader import MetadataReader
from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

_TRIES = 10
"""Of a swap that meets one server after the other."""


class Swaps:
    """Swaps the pointers of one metastore.

    Args:
        client: Of the metastore.
        servers: What its servers can do.
        pointers: How pointers are read and sent.
        common_lock: The lock of lock-only writers.
        writers: Those writers.
        guards: What keeps them out where writers lock elsewhere.
        metadata: Reads what is swapped in and out.
        table_format: How a table looks in the metastore.
        overwrites: Receives the pointers that were found, and the commits that landed.
    """

    def __init__(
        self,
        client: MetastoreClient,
        *,
        servers: Servers,
        pointers: Pointers,
        common_lock: CommonLock,
        writers: LockOnlyWriters,
        guards: Guards,
        metadata: MetadataReader,
        table_format: TableFormat,
        overwrites: Overwrites,
    ) -> None:
        self._client, self._servers, self._pointers = client, servers, pointers
        self._common_lock, self._writers, self._guards = common_lock, writers, guards
        self._metadata, self._format, self._overwrites = metadata, table_format, overwrites

    def swap(self, table: Identifier, base: str, location: str) -> SwapResult:
        """Set the pointer of *table* from *base* to *location*.

        Raises:
            FailedOver: Every time another server was in use; nothing was sent.
            NoSuchTableError: There is no such table.
        """
        self._overwrites.check(table, base)
        is_handed_back = self._is_handed_back(base, location)  # Once the swap is sent, nothing may fail.
        for _ in range(_TRIES):
            able = self._servers.capabilities()
            try:
                if able.compare_and_set is CompareAndSet.HONOURED:
                    self._guards.place_for_swap(table, location, base)
                    result = self._compare_and_set(table, base, location, able.server)
                else:
                    result = self._check_and_set(table, base, location, able.server)
            except FailedOver:
                continue  # Nothing was sent; what the other server can do is another question.
            try:
                if result is SwapResult.SWAPPED:
                    self._overwrites.landed(table, location)
                # After a lost reply, the table may still be the one that has to be guarded.
                if is_handed_back and (
                    result is SwapResult.SWAPPED
                    or (result is SwapResult.LOST_REPLY and self._pointers.location(table) == location)
                ):
                    self._guards.remove(table)
            except Exception:
                logger.warning("a swap of %s could not be looked after", table_name(table), exc_info=True)
            return result
        raise FailedOver(
            "the swap was not sent: at each try, the client was connected to another metastore than the tested one",
            uris=self._client.addresses,
        )

    def _is_handed_back(self, base: str, location: str) -> bool:
        return (
            declared_at(self._metadata, location) in COMMON_LOCK
            and declared_at(self._metadata, base) not in COMMON_LOCK
        )

    def _compare_and_set(self, table: Identifier, base: str, location: str, server: str) -> SwapResult:
        # Read again, whatever was read under the latch: the alter replaces all parameters, and sets back what others
        # have changed since. The condition is on the pointer alone, so between this call and the next that remains.
        found = self._pointers.found(table)
        if found.parameters[METADATA_LOCATION] != base:
            return SwapResult.MOVED
        altered = self._altered(found, base, location)
        return self._pointers.alter(table, altered, expected=(METADATA_LOCATION, base), base=base, server=server)

    def _check_and_set(self, table: Identifier, base: str, location: str, server: str) -> SwapResult:
        """Swap on a server that ignores the condition; see :mod:`commit_coord.catalog.hive`."""
        with self._common_lock.of(table) as lease:
            lease.ensure_active(0)
            found = self._pointers.found(table)
            if found.parameters[METADATA_LOCATION] != base:
                return SwapResult.MOVED
            altered = self._altered(found, base, location)
            result = self._pointers.alter(table, altered, expected=None, base=base, server=server)
            if result is SwapResult.SWAPPED:
                try:
                    lease.ensure_active(0)
                    is_there = self._pointers.location(table) == location
                    result = SwapResult.SWAPPED if is_there else SwapResult.LOST_REPLY
                except Exception:
                    # It was sent: whatever fails now proves nothing.
                    logger.warning("a swap of %s could not be looked after", table_name(table), exc_info=True)
                    result = SwapResult.LOST_REPLY
            if result is SwapResult.LOST_REPLY:
                self._writers.doubt(location)
            return result

    def _altered(self, found: Any, base: str, location: str) -> Any:
        read = self._metadata.read
        return self._format.fill(found, location, read(location), base_location=base, base=read(base))
