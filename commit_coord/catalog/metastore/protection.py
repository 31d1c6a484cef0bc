"""Finds out whether writers of other kinds can overwrite a table's commits, and what prevents it at present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from commit_coord.catalog.metastore.declarations import COMMON_LOCK, LOCK_ENABLED
from commit_coord.hms.probe import CompareAndSet
from commit_coord.model import LockEntry
from commit_coord.protocol.migration import LOCK_IMPL


class WriterRelation(StrEnum):
    """The relation between commit_coord writers and writers of another kind on a table."""

    TAKE_TURNS = "take turns"
    """Both kinds of writers hold the metastore's lock for each swap."""
    COMPARE = "compare and set"
    """Both kinds of writers set the pointer only if it is still the one that they have read."""
    KEPT_OUT = "kept out"
    """A guard lock blocks the other writers until they time out."""
    OVERWRITE = "can overwrite commits"
    """Nothing prevents the other writers from overwriting commits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """The protection of one table.

    Args:
        table: ``db.table``.
        properties: Of its head.
        lock_impl: The lock manager of the catalog that looks.
        compare_and_set: What the server in use makes of a swap's condition.
        guard: The guard lock in the metastore, None if there is none.
    """

    table: str
    properties: Mapping[str, str]
    lock_impl: str
    compare_and_set: CompareAndSet
    guard: LockEntry | None

    @property
    def declared(self) -> str | None:
        """The lock manager that the table's writers use; None before the first commit of ours."""
        return self.properties.get(LOCK_IMPL)

    @property
    def lock_only_writers(self) -> WriterRelation:
        """Writers that know nothing but the metastore's lock: PyIceberg's, and Java's by default."""
        if self.guard is not None:
            return WriterRelation.KEPT_OUT
        if (self.declared or self.lock_impl) in COMMON_LOCK or self.compare_and_set is not CompareAndSet.HONOURED:
            return WriterRelation.TAKE_TURNS
        return WriterRelation.OVERWRITE

    @property
    def java_writers(self) -> WriterRelation:
        """Java's writers, which do as the table tells them."""
        if self.properties.get(LOCK_ENABLED, "true").lower() != "false":
            return self.lock_only_writers
        return WriterRelation.COMPARE if self.compare_and_set is CompareAndSet.HONOURED else WriterRelation.OVERWRITE
