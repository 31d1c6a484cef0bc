"""Writers of three kinds on one table, and which answers each of them got.

Theory of operation
    A writer owns the rows whose keys begin with its name, and changes no others. After each change it writes to a
    journal of its own which answer it got: that the change is acknowledged, that it was refused, or neither; before it,
    that it was killed, which stays there if it was. So what must be in the table follows from the journals alone; see
    :mod:`integration.proof`.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException

import commit_coord
from commit_coord.errors import MetastoreUnavailable
from commit_coord.hms.client import MetastoreClient
from commit_coord.table.table import CoordinatedTable
from commit_coord.testing.fleet import ForkedWriter, SyncedLog, holds_within, whole_lines
from commit_coord.testing.plain import open_plain
from integration.conftest import Java

Kind = Literal["commit_coord", "pyiceberg", "rest", "java", "spark"]
"""The library; PyIceberg's own catalog, and its REST client; Java's HiveCatalog, and its REST client in Spark SQL."""

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])

PROPERTIES = {
    # A writer that meets another commit tries again, all of them equally often.
    "commit.retry.num-retries": "50",
    "commit.retry.max-wait-ms": "200",
    # A MERGE joins, so by default any new file is a conflict: here no two writers change the same rows.
    "write.merge.isolation-level": "snapshot",
}
"""Of the table."""

PYTHON = ("insert", "insert", "update", "insert", "delete")
INSERTS = ("insert",)
JAVA = ("insert", "merge", "compact", "insert", "delete", "insert", "expire")
"""What writers do, over and over."""

_TUNED = {"lock-check-min-wait-time": "0.05", "lock-check-max-wait-time": "0.2", "lock-check-retries": "1000"}
"""Seconds. With PyIceberg's own times one of four writers waits for half a minute."""

_LEAD = 5
"""Acknowledgements that a writer may be ahead of any other one."""

KILLED = "killed"
"""The answer that a writer got to a change that it did not live to see."""

ENOUGH = "enough"
"""The file in the folder of the journals that ends the writers."""

Change = dict[str, int | None]
"""Key → the new value; None where the row is deleted."""

Apply = Callable[[str, Change], int | None]
"""Carries out one step and returns the id of the snapshot that it made, None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The answer that a writer got to its change of that number."""

    number: int
    step: str
    change: Change
    end: Literal["acknowledged", "refused", "unknown"]
    error: str = ""
    snapshot_id: int | None = None
    began: float = 0.0
    """When, in seconds on this machine's clock."""
    ended: float = 0.0


# Write.


def write(
    journal: Path, steps: Sequence[str], apply: Apply, *, rest_s: float | None = None, gives_up: bool = False
) -> None:
    """Do *steps* over and over until there is :data:`ENOUGH`; note in *journal* what became of each.

    A writer ends alone when there is a file of its own, ``<name>.enough``.

    A writer that is far ahead of another one waits for it: one that reads the table before it locks it lands nothing
    while others lock it first and never pause. With *rest_s* it does not wait for others, and rests so long instead.
    One that *gives_up* ends when it can't tell what became of a change, and with it what it may have left.
    """
    name, rows, number = journal.stem, dict[str, int](), 0
    all_ = sorted(journal.parent.glob("*.jsonl"))
    place = all_.index(journal)

    def shall_end() -> bool:
        return journal.with_name(ENOUGH).exists() or _ended(journal)

    def is_level() -> bool:
        others = [count_acknowledged(one) for one in all_ if not _ended(one)]
        return count_acknowledged(journal) <= min(others, default=math.inf) + _LEAD

    with SyncedLog(journal) as log:
        while not shall_end():
            if rest_s is None and not is_level():
                holds_within(lambda: shall_end() or is_level(), math.inf)
                continue
            step = steps[(number + place) % len(steps)]  # else all would begin alike and, waiting, stay together
            change = _next(name, number, step, rows)
            began = Answered(number=number, step=step, change=change, end="unknown", error=KILLED, began=time.time())
            number += 1
            _note(log, began)
            answer = replace(_answered(apply, began), ended=time.time())
            _note(log, answer)
            if answer.end != "refused":
                for key, value in change.items():
                    rows.pop(key, None)
                    if answer.end == "acknowledged" and value is not None:
                        rows[key] = value
            if gives_up and answer.end == "unknown":
                return
            time.sleep(rest_s or 0.0)  # the subject: a writer that is slow, see above


def _note(log: SyncedLog, answer: Answered) -> None:
    log.line(json.dumps({slot: getattr(answer, slot) for slot in Answered.__slots__}))


def read(journal: Path) -> list[Answered]:
    """Return what *journal* says last of each change."""
    answers = [Answered(**json.loads(line)) for line in whole_lines(journal)]
    return list({one.number: one for one in answers}.values())


def count_acknowledged(journal: Path) -> int:
    """Return how many changes its writer was acknowledged."""
    return sum(answer.end == "acknowledged" for answer in read(journal))


def end(journal: Path) -> None:
    """Have the writer of *journal* end."""
    journal.with_suffix(".enough").touch()


def _ended(journal: Path) -> bool:
    return journal.with_suffix(".enough").exists()


def _next(name: str, number: int, step: str, rows: Mapping[str, int]) -> Change:
    """Return the change of a step; the oldest of the own *rows* is what is changed."""
    new: Change = {f"{name}-{number}-{row}": 0 for row in range(3)}
    old = next(iter(rows), None)
    match step:
        case "update" if old is not None:
            return {old: rows[old] + 1}
        case "delete" if old is not None:
            return {old: None}
        case "merge" if old is not None:
            return {**new, old: rows[old] + 1}
        case "compact" | "expire":
            return {}
        case _:
            return new


def _answered(apply: Apply, began: Answered) -> Answered:
    try:
        return replace(began, end="acknowledged", error="", snapshot_id=apply(began.step, began.change))
    except Exception as error:  # noqa: BLE001 - whatever it is, it goes into the journal
        # Java's errors come as text.
        text = f"{type(error).__name__}: {error}"
        refusals = (CommitFailedException, ValidationException)
        refused = isinstance(error, refusals) or any(f".exceptions.{kind.__name__}" in text for kind in refusals)
        refused &= CommitStateUnknownException.__name__ not in text
        return replace(began, end="refused" if refused else "unknown", error=text[:2000])


def start_python(
    kind: Kind,
    journal: Path,
    table: str,
    properties: Mapping[str, str],
    *,
    steps: Sequence[str] = PYTHON,
    rest_s: float | None = None,
    gives_up: bool = False,
) -> ForkedWriter:
    """Start a process that writes with our catalog or one of PyIceberg's own; see :func:`write`."""
    imported = ["integration.writers", "commit_coord.catalog.hive", "pyiceberg.io.pyarrow"]
    return ForkedWriter(
        _write_python, kind, journal, table, dict(properties), steps, rest_s, gives_up, imported=imported
    )


def _write_python(
    kind: Kind,
    journal: Path,
    name: str,
    properties: Mapping[str, str],
    steps: Sequence[str],
    rest_s: float | None,
    gives_up: bool,
) -> None:
    if kind == "commit_coord":
        catalog: Any = commit_coord.load_catalog(journal.stem, **properties)
    elif kind == "rest":
        catalog = RestCatalog(journal.stem, **properties)
    else:
        catalog = open_plain(properties["uri"], **_TUNED)
    table = catalog.load_table(name)

    def apply(step: str, change: Change) -> int | None:
        try:
            _change(table, change)
        except BaseException:
            with suppress(Exception):
                table.refresh()
            raise
        snapshot = table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    write(journal, steps, apply, rest_s=rest_s, gives_up=gives_up)
    catalog.close()


def _change(table: Any, change: Change) -> None:
    rows = pa.table({"key": list(change), "value": list(change.values())}, schema=SCHEMA)
    match list(change.items()):
        case [(key, None)]:
            table.delete(f"key = '{key}'")
        case [(key, _)]:
            # What is written comes from the writer's own journal: nobody else changes these keys.
            own = {"reads": commit_coord.NOTHING} if isinstance(table, CoordinatedTable) else {}
            table.overwrite(rows, f"key = '{key}'", **own)
        case _:
            table.append(rows)


def write_java(
    java: Java,
    journal: Path,
    catalog: str,
    table: str,
    steps: Sequence[str] = JAVA,
    *,
    rest_s: float | None = None,
    turn: AbstractContextManager[object] | None = None,
) -> None:
    """Write with a catalog of Java through Spark SQL, in this thread; each step within *turn*."""
    full = f"{catalog}.{table}"

    def apply(step: str, change: Change) -> None:
        with turn or nullcontext():
            execute(step, change)

    def execute(step: str, change: Change) -> None:
        rows = ", ".join(f"('{key}', {value})" for key, value in change.items())
        keys = ", ".join(f"'{key}'" for key in change)
        match step:
            case "compact":
                options = "map('min-input-files', '2')"
                java.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => {options})")
            case "expire":
                now = f"TIMESTAMP '{datetime.now(UTC).isoformat(sep=' ', timespec='milliseconds')}'"
                options = f"older_than => {now}, retain_last => 20"
                java.sql(f"CALL {catalog}.system.expire_snapshots(table => '{table}', {options})")
            case "delete" if list(change.values()) == [None]:
                java.sql(f"DELETE FROM {full} WHERE key IN ({keys})")
            case "merge":
                java.sql(
                    f"MERGE INTO {full} t USING (SELECT * FROM VALUES {rows} AS s(key, value)) s "
                    f"ON t.key = s.key AND t.key IN ({keys}) "
                    "WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT *"
                )
            case _:
                java.sql(f"INSERT INTO {full} VALUES {rows}")

    write(journal, steps, apply, rest_s=rest_s)


Running = ForkedWriter | Future[None]
"""A writer: a process of its own, or a thread that asks Java."""


def runs(writer: Running) -> bool:
    """Return whether *writer* has not ended."""
    return not writer.done() if isinstance(writer, Future) else writer.exit_code is None


def await_end(writers: Iterable[Running]) -> None:
    """Return when all have ended well."""
    for writer in writers:
        if isinstance(writer, Future):
            writer.result()
        else:
            assert 0 == writer.wait()


def await_enough(journals: Sequence[Path], commits: int, *, alive: Callable[[], bool]) -> None:
    """Return when *commits* were acknowledged, or not all are *alive*; then the writers end, too."""
    try:
        await_acknowledged(journals, commits, alive=alive)
    finally:
        journals[0].with_name(ENOUGH).touch()


def await_acknowledged(journals: Sequence[Path], commits: int, *, alive: Callable[[], bool]) -> None:
    """Return when *commits* more than now were acknowledged, or not all are *alive*."""
    wanted = sum(map(count_acknowledged, journals)) + commits
    holds_within(lambda: not alive() or sum(map(count_acknowledged, journals)) >= wanted, math.inf, every_s=0.2)


@contextmanager
def watched(metastore: str, table: str) -> Iterator[list[str]]:
    """Note every location that *table* is seen at, in their order, until the end."""
    seen: list[str] = []
    over = threading.Event()

    def watch() -> None:
        with MetastoreClient.of(metastore) as client:
            while not over.wait(0.1):
                with suppress(MetastoreUnavailable):
                    location = client.get_table(*table.split(".")).parameters["metadata_location"]
                    if location not in seen[-1:]:
                        seen.append(location)
            client.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
