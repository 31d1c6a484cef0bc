"""Writes ``docs/locks.md`` from the table of operations: ``python -m commit_coord.cli.lock_table > docs/locks.md``."""

from __future__ import annotations

from collections.abc import Iterable

from commit_coord.protocol.hierarchy import COMMANDS, CallLocking, Command, Operation

_MANUAL = list(Operation)[: list(Operation).index(Operation.DROP_TABLE) + 1]
"""The commands of Hive's manual come first."""


_TEXT = """\
# Which operation takes which locks

S is shared, X is exclusive: two S locks are compatible, and X conflicts with every lock. A lock on a partition, in any
mode, includes S on the prefixes of the partition and on its table, and with `lock.database-parents=true` on its
database.

A statement takes its locks unless `operation-locks=off`, also those on the tables that it reads. It holds them from
before it reads the first row until it ends. A call from Python or a Spark job takes its locks if `operation-locks` has
one of the values in the last column, and holds them until its transaction ends. `EXPLAIN LOCKS` prints the locks that a
statement would take.

* *partition, else table*: the partitions to which the statement or its filter is limited; if there are none, the table.
* If only the rows determine the partitions (`PARTITION (day)`), the prefix that is known is locked, else the table.
* If a table has had more than one partition spec, the whole table is locked.
* If there are more partitions than `lock.max-partitions`, their prefixes are locked.
* A call of a table from Python locks the partitions to which its filter is limited and those that contain its rows.
  `upsert`, `add_files` and all calls inside a transaction that the caller opened lock the whole table.

## The commands of Hive's manual

{manual}

`PARTITION (…) CONCATENATE` also holds S on the table: the manual's rule on parents requires it; its table omits it.

## Iceberg's other operations

{iceberg}

`DROP DATABASE … CASCADE` also drops, and locks, every table in the database. Operations on databases and the creation
of tables lock the database; with `lock.database-parents=true`, all other operations do, too.

This page is written by `python -m commit_coord.cli.lock_table`.
"""


def render() -> str:
    """Return the document."""
    return _TEXT.format(
        manual="\n".join(_rows(_MANUAL)),
        iceberg="\n".join(_rows(operation for operation in Operation if operation not in _MANUAL)),
    )


def _rows(operations: Iterable[Operation]) -> list[str]:
    head = [
        "| operation | lock | on | statement | from Python | `operation-locks` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return head + [_row(operation, COMMANDS[operation]) for operation in operations]


def _row(operation: Operation, command: Command) -> str:
    statement = f"`{command.statement}`".replace("|", "\\|") if command.statement else ""
    call = f"`{command.call}`" if command.call else ""
    calls = command.calls.value if command.calls is not CallLocking.NONE else ""
    return f"| {operation} | {command.mode.letter} | {command.level} | {statement} | {call} | {calls} |"


if __name__ == "__main__":
    print(render(), end="")
