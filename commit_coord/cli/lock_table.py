"""Writes ``docs/locks.md`` from the table of operations: ``python -m commit_coord.cli.lock_table > docs/locks.md``."""

from __future__ import annotations

from collections.abc import Iterable

from commit_coord.protocol.hierarchy import COMMANDS, Calls, Command, Operation

_MANUAL = list(Operation)[: list(Operation).index(Operation.DROP_TABLE) + 1]
"""The commands of Hive's manual come first."""


_TEXT = """\
# Which operation takes which locks

S is shared, X exclusive: S is compatible with S, X with nothing. Who locks a partition in any mode holds S on its
prefixes and on its table, and with `lock.database-parents=true` on the database.

A statement takes its locks unless `operation-locks=off`, those of the tables that it reads included, and holds them
from before it looks at the first row until it is done. A call from Python or a job of Spark takes them with the values
of `operation-locks` in the last column, until its transaction ends. `EXPLAIN LOCKS` prints what a statement would take.

* *partition, else table*: the partitions that the statement or its filter fixes; without any, the table.
* Partitions whose values only the rows will tell (`PARTITION (day)`) lock the prefix that is known, else the table.
* A table that has had more than one partition spec locks as a whole.
* More partitions than `lock.max-partitions` lock their prefixes.
* A call of a table from Python locks the partitions that its filter fixes and its rows lie in. `upsert`, `add_files`
  and everything inside a transaction that the caller opened lock the whole table.

## The commands of Hive's manual

{manual}

`PARTITION (…) CONCATENATE` holds S on the table too, by the manual's own rule on parents, which its table leaves out.

## Iceberg's operations

{iceberg}

`DROP DATABASE … CASCADE` also drops, and locks, every table in it. Databases are locked by what works on databases, by
new tables, and by everything else with `lock.database-parents=true`.

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
    calls = command.calls.value if command.calls is not Calls.NONE else ""
    return f"| {operation} | {command.mode.letter} | {command.level} | {statement} | {call} | {calls} |"


if __name__ == "__main__":
    print(render(), end="")
