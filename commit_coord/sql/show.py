"""The answers to statements: as rows for programs, and in the forms in which Hive prints them.

Source: Hive's ``ShowLocksDesc`` and ``ShowLocksOperation`` (two columns; thirteen with ``DbTxnManager``), and the
expected outputs of its tests of EXPLAIN LOCKS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

import orjson
from pyiceberg.table import Table

from commit_coord.locks.hive_lease import HiveLease
from commit_coord.model import LockEntry, LockMode, LockState, Resource
from commit_coord.redaction import shown
from commit_coord.sql.manual import STATEMENTS
from commit_coord.sql.types import hive_type

_TYPES = {LockMode.SHARED: "SHARED_READ", LockMode.EXCLUSIVE: "EXCLUSIVE"}

_EXTENDED = ("LOCK_QUERYID", "LOCK_TIME", "LOCK_MODE", "LOCK_QUERYSTRING")

_FULL = {
    "lockid": "Lock ID",
    "database": "Database",
    "table": "Table",
    "partition": "Partition",
    "lock_state": "State",
    "blocked_by": "Blocked By",
    "lock_type": "Type",
    "transaction_id": "Transaction ID",
    "last_heartbeat": "Last Heartbeat",
    "acquired_at": "Acquired At",
    "user": "User",
    "hostname": "Hostname",
    "agent_info": "Agent Info",
}

_NOT_BLOCKED = " " * 12

_SEPARATOR = ("", "", "")
"""The row between two parts of a description."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a statement.

    Args:
        columns: Their names, as Hive has them.
        rows: One value for each column.
        lines: The same as Hive prints it.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    lines: Sequence[str]

    def __str__(self) -> str:
        """Return what Hive would print."""
        return "\n".join(self.lines)


def message(text: str) -> Answer:
    """Return the answer of a statement that has done something."""
    return Answer(("result",), [(text,)], [text])


def show_help() -> Answer:
    """Return what each statement does."""
    width = max(map(len, STATEMENTS))
    lines = [f"{form:<{width}}  {what}" for form, what in STATEMENTS.items()]
    return Answer(("statement", "what it does"), list(STATEMENTS.items()), lines)


def show_names(column: str, names: Iterable[str], pattern: str) -> Answer:
    """Return those of *names* that match Hive's *pattern*: ``*`` is any text, ``|`` separates several."""
    patterns = pattern.lower().split("|")
    found = [name for name in names if any(fnmatchcase(name.lower(), one) for one in patterns)]
    return Answer((column,), [(name,) for name in found], found)


def describe(table: Table, *, extended: bool) -> Answer:
    """Return the columns and partition fields of *table*; *extended* adds its place, its state and its properties."""
    schema, metadata = table.schema(), table.metadata
    rows = [(field.name, hive_type(field.field_type), field.doc or "") for field in schema.fields]
    if fields := table.spec().fields:
        rows += [_SEPARATOR, ("# Partition Transform Information", "", ""), ("# col_name", "transform_type", "")]
        rows += [(schema.find_column_name(field.source_id) or "", str(field.transform), "") for field in fields]
    if extended:
        snapshot = metadata.current_snapshot_id
        rows += [
            _SEPARATOR,
            ("# Detailed Table Information", "", ""),
            ("Database:", ".".join(table.name()[:-1]), ""),
            ("Table UUID:", str(metadata.table_uuid), ""),
            ("Format Version:", str(metadata.format_version), ""),
            ("Location:", metadata.location, ""),
            ("Metadata Location:", table.metadata_location, ""),
            ("Current Snapshot:", "none" if snapshot is None else str(snapshot), ""),
            ("Table Parameters:", "", ""),
            *(("", key, shown(key, value)) for key, value in sorted(metadata.properties.items())),
        ]
    return Answer(("col_name", "data_type", "comment"), rows, ["\t".join(row) for row in rows])


def show_locks(entries: Iterable[LockEntry], *, on: str, extended: bool) -> Answer:
    """Return held locks as Hive's ZooKeeper lock manager shows them.

    Args:
        entries: Those to show; who waits is left out.
        on: ``tab`` or ``db``.
        extended: Also who took each, when and how.
    """
    held = sorted(
        (entry for entry in entries if entry.state is LockState.ACQUIRED),
        key=lambda entry: (entry.resource, entry.mode is LockMode.SHARED),
    )
    rows, lines = [], []
    for entry in held:
        row: tuple[str, ...] = (_at(entry.resource), entry.mode.value)
        lines.append("\t".join(row))
        if extended:
            more = (
                entry.request_id,
                str(entry.requested_at_ms),
                "EXPLICIT" if entry.explicit else "IMPLICIT",
                entry.owner.statement,
            )
            lines += [f"{key}:{value}" for key, value in zip(_EXTENDED, more, strict=True)]
            row = (*row, *more)
        rows.append(row)
    return Answer((f"{on}_name", "mode", *(_EXTENDED if extended else ())), rows, lines)


def show_all_columns(entries: Iterable[LockEntry]) -> Answer:
    """Return locks as Hive's ``DbTxnManager`` shows them: thirteen columns, who waits for whom among them."""
    present = list(entries)
    numbers = {entry.request_id: str(entry.generation or entry.request_id) for entry in present}
    rows = []
    for number, entry in enumerate(present, 1):
        database, *below = entry.resource.path
        blocked_by = None if entry.blocked_by is None else numbers.get(entry.blocked_by, entry.blocked_by)
        rows.append(
            (
                f"{numbers[entry.request_id]}.{number}",
                database,
                below[0] if below else None,
                "/".join(below[1:]) or None,
                entry.state.value,
                blocked_by,
                _TYPES[entry.mode],
                None,
                None,
                str(entry.requested_at_ms) if entry.state is LockState.ACQUIRED else None,
                entry.owner.user,
                entry.owner.host,
                f"{entry.owner.application} {entry.owner.statement}".strip(),
            )
        )
    blocked_at = list(_FULL).index("blocked_by")
    lines = [
        "\t".join(
            _NOT_BLOCKED if value is None and place == blocked_at else "NULL" if value is None else value
            for place, value in enumerate(row)
        )
        for row in rows
    ]
    return Answer(tuple(_FULL), rows, ["\t".join(_FULL.values()), *lines])


def show_lease(leases: Iterable[HiveLease]) -> Answer:
    """Return live leases, a row for each of their objects."""
    columns = tuple(field.name for field in fields(HiveLease))
    rows = [astuple(lease) for lease in leases]
    return Answer(columns, rows, ["\t".join(map(str, row)) for row in (columns, *rows)])


def explain_locks(locks: Iterable[tuple[Resource, LockMode]], *, formatted: bool) -> Answer:
    """Return what a statement would lock, reads first."""
    ordered = sorted(locks, key=lambda lock: (lock[1] is LockMode.EXCLUSIVE, lock[0]))
    rows = [(_dotted(resource), _TYPES[mode]) for resource, mode in ordered]
    arrows = [f"{name} -> {kind}" for name, kind in rows]
    lines = ["LOCK INFORMATION:", *arrows]
    if formatted:
        lines = [orjson.dumps({"LOCK INFORMATION:": f"[{', '.join(arrows)}]"}).decode()]
    return Answer(("object", "lock_type"), rows, lines)


def _at(resource: Resource) -> str:
    database, *rest = resource.path
    table, partition = rest[:1], rest[1:]
    return "@".join([database, *table, *(["/".join(partition)] if partition else [])])


def _dotted(resource: Resource) -> str:
    database, *rest = resource.path
    table, partition = rest[:1], rest[1:]
    return ".".join([database, *table, *(["/".join(partition)] if partition else [])])
