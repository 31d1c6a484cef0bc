"""Tests what a metastore server supports, because version numbers may be wrong and builds of vendors differ.

Source: HIVE-26882 and HIVE-28121 brought the compare-and-set of ``alter_table``; servers before them, 3.1.3 among them,
ignore the condition and answer as if it held. On 4.0.1 with Derby every conditional alter fails.
"""

from __future__ import annotations

import logging
import threading
import uuid
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hive_metastore.ttypes import FieldSchema, SerDeInfo, StorageDescriptor, Table

from commit_coord.errors import MetastoreUnavailable
from commit_coord.hms.calls import FailedOver
from commit_coord.hms.client import MetastoreClient
from commit_coord.hms.connection import LostReply, MetaError, MetastoreServerFailed
from commit_coord.hms.locks import LockPart, LockType

logger = logging.getLogger(__name__)

_KEY = "metadata_location"


class CompareAndSet(StrEnum):
    """How a server handles ``expected_parameter_key`` and ``expected_parameter_value``."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The capabilities of one server.

    Args:
        server: Its address.
        version: As it says.
        compare_and_set: What becomes of a condition.
        tried: Whether that was tried out; else the configuration says so.
    """

    server: str
    version: str
    compare_and_set: CompareAndSet
    tried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LockService:
    """The capabilities of one server's lock service.

    Args:
        there: Whether it grants locks at all.
        reason: Why not, in the server's words.
        exclusive_write: Whether it knows ``EXCL_WRITE`` (Hive 4).
    """

    there: bool
    reason: str = ""
    exclusive_write: bool = False


class Probe:
    """Tries each server once, and again after another one was in use.

    Args:
        client: Of the metastore.
        believed: What to believe without trying; None tries.
    """

    def __init__(self, client: MetastoreClient, believed: CompareAndSet | None = None) -> None:
        self._client = client
        self._believed = believed
        self._lock = threading.Lock()
        self._known: Capabilities | None = None

    def capabilities(self) -> Capabilities:
        """Return what the server can do that is in use now.

        Raises:
            MetastoreUnavailable: None could be asked.
        """
        known = self._known
        if known is not None and known.server == self._client.address:
            return known
        with self._lock:
            if self._known is None or self._known.server != self._client.address:
                self._known = self._ask()
            return self._known

    def _ask(self) -> Capabilities:
        for _ in range(2 * len(self._client.addresses)):
            version = self._client.version()
            server = self._client.address
            try:
                found = self._believed or _compare_and_set(self._client, server)
            except (FailedOver, LostReply):
                continue  # the next server, or the same one on a new connection
            return Capabilities(server=server, version=version, compare_and_set=found, tried=self._believed is None)
        raise MetastoreUnavailable(
            "no metastore stayed reachable for long enough to test whether it compares and sets",
            uris=self._client.addresses,
            # Hive 4.0.1 on Derby repeats a conditional alter for 20 s before it says that it can't.
            accepted="a longer hive.client-timeout-ms; or set hive.compare-and-set to what the servers support",
        )


def assumed(setting: str) -> CompareAndSet | None:
    """Return what the property ``hive.compare-and-set`` says; None where it asks for a trial."""
    return None if setting == "probe" else CompareAndSet(setting)


def _compare_and_set(client: MetastoreClient, server: str) -> CompareAndSet:
    """Set a parameter with the right condition, then with a wrong one.

    On a view: it has no folder, so nothing is made in the warehouse.
    """
    db, name = "default", f"commit_coord_probe_{uuid.uuid4().hex}"
    client.create_table(_view(db, name, "0"))
    try:
        try:
            client.alter_table(db, name, _view(db, name, "1"), expected=(_KEY, "0"), server=server)
        except (MetaError, MetastoreServerFailed) as error:
            logger.info("a conditional alter whose condition holds failed on %s", server, exc_info=error)
            return CompareAndSet.BROKEN
        with suppress(MetaError, MetastoreServerFailed):
            client.alter_table(db, name, _view(db, name, "2"), expected=(_KEY, "0"), server=server)
        value = client.get_table(db, name).parameters.get(_KEY)
    finally:
        with suppress(Exception):  # a remaining view does no harm
            client.drop_table(db, name, False)
    return CompareAndSet.HONOURED if value == "1" else CompareAndSet.IGNORED


def lock_service(client: MetastoreClient) -> LockService:
    """Try to lock something that nobody else asks for.

    Raises:
        MetastoreUnavailable: No server could be asked.
    """
    found = {}
    for kind in (LockType.SHARED_READ, LockType.EXCL_WRITE):
        part = LockPart(type=kind, db="commit-coord", table=f"probe-{uuid.uuid4().hex}")
        try:
            lock_id, _ = client.lock([part], user="commit-coord", host="commit-coord", agent="commit-coord probe")
        except (MetaError, MetastoreServerFailed) as error:
            found[kind] = str(getattr(error, "message", error))
            if kind is LockType.SHARED_READ:
                return LockService(there=False, reason=found[kind])
        else:
            client.unlock(lock_id)
    return LockService(there=True, exclusive_write=LockType.EXCL_WRITE not in found)


def _view(db: str, name: str, value: str) -> Any:
    return Table(
        tableName=name,
        dbName=db,
        owner="commit-coord",
        sd=StorageDescriptor(
            cols=[FieldSchema("a", "int", "")],
            inputFormat="org.apache.hadoop.mapred.FileInputFormat",
            outputFormat="org.apache.hadoop.mapred.FileOutputFormat",
            serdeInfo=SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
        ),
        partitionKeys=[],
        parameters={_KEY: value},
        tableType="VIRTUAL_VIEW",
        viewOriginalText="select 1",
        viewExpandedText="select 1",
    )
