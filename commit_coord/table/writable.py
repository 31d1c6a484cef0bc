"""Which tables can be written."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table import Table

from commit_coord.errors import CommitNotApplied

_NEWEST_VERSION = 2


def refuse_unwritable(table: Table) -> None:
    """Return if *table* can be written. Call it before a file is written, and before a lock is taken.

    Raises:
        CommitNotApplied: Its format version can only be read. Nothing was done.
    """
    check_version(table.metadata.format_version, table.name())


def check_version(format_version: int, name: Sequence[str]) -> None:
    """Return if tables of *format_version* can be written.

    Raises:
        CommitNotApplied: They can't.
    """
    if format_version > _NEWEST_VERSION:
        raise CommitNotApplied(
            "nothing was written: tables of this format version can be read, but not yet written",
            table=".".join(name),
            format_version=format_version,
            newest=_NEWEST_VERSION,
        )
