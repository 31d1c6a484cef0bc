"""Many processes append to one table, some are killed, servers too, and the table is proved right afterwards.

Theory of operation
    Each *slot* has a log file. Its writer marks every append with an id of its own, which it writes to the log before
    the append ("try") and after it was acknowledged ("ack", and when), with fsync each time. The id travels into the
    table twice: in the snapshot's summary, and as a column of the rows. A killed writer is replaced by a new process
    that goes on where the slot's acknowledgements end; it never repeats an append whose outcome it does not know.

    Processes are forked from a server that has imported everything and opened nothing: to start one costs little
    beside what it is killed in.

    So what must hold can be read off the logs, and :mod:`commit_coord.testing.history` decides whether it does: an id
    that was acknowledged stands in the table exactly once, one that was only tried at most once, any other never.
    Where appends share snapshots the rows alone have the ids.

    Every row is compared, not its id alone: it follows from the mark. The table's files are read by code that no writer
    uses, and held against each other: partition values, bounds, counts, sequence numbers. The table is partitioned, and
    a process beside the writers may change its columns and partitions all the time.

    Beside ours there may be writers that know nothing of us; see :mod:`commit_coord.testing.plain`. They write as long
    as ours do.

``python -m commit_coord.testing.hammer`` runs it; ``--help`` says with what.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.config import COALESCE
from commit_coord.errors import CommitStateUnknown, LockError
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.testing.history import Answer, Append, check_files, check_line, check_places, check_snapshots
from commit_coord.testing.plain import Tidier, open_plain
from commit_coord.testing.rows.metadata import Files, Observed, faults_of_head
from commit_coord.testing.rows.model import Row

TABLE = ("hammer", "t")
_IMPORTED = [
    "commit_coord.catalog.sql",
    "commit_coord.catalog.hive",
    "commit_coord.locks.zookeeper.manager",
    "pyiceberg.io.pyarrow",
    "pandas",
    "pyarrow.pandas_compat",
    "sqlite3",
    "rich.console",
    "rich.table",
]
"""What a writer would import with its first append."""
ROWS = 10
_LINE = 200
"""Metadata files that are read back from the last one."""
_MARK = "hammer-id"
_SCHEMA = pa.schema([("id", pa.int64()), ("mark", pa.string()), ("value", pa.float64())])
_COLUMNS = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "mark", StringType()), NestedField(3, "value", DoubleType())
)
_SPEC = PartitionSpec(PartitionField(2, 1000, TruncateTransform(1), "slot"))
"""All rows of an append are in one partition, whatever fields are added: an append is a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done and what was found.

    Args:
        seconds: From the first process to the last proof but one (starts included, the scan of the rows not).
        kills: Processes that were killed.
        faults: Done to the servers.
        stalled_s: The longest time in which no append was acknowledged.
        acknowledged: Appends that were acknowledged to a log.
        unanswered: Appends that were tried and whose answer no log has: their process was killed.
        unanswered_landed: How many of these are in the table.
        snapshots: In the table.
        failures: Errors that writers met, by name; each is one refused append.
        plain: What writers that know nothing of us were told: how often, by name.
        changes: Schemas and partition specs that the table got after it was made.
        locks_left: Right after the last process ended.
        broken: What does not hold, in words; empty is the proof.
    """

    seconds: float
    kills: int
    faults: int
    stalled_s: float
    acknowledged: int
    unanswered: int
    unanswered_landed: int
    snapshots: int
    failures: dict[str, int]
    plain: dict[str, int]
    changes: int
    locks_left: int
    broken: tuple[str, ...] = field(default=())


def hammer(
    folder: Path,
    *,
    writers: int,
    appends: int,
    kill_every_s: float | None = None,
    kills_max: int | None = None,
    faults: Sequence[Callable[[], object]] = (),
    seed: int = 0,
    properties: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    coalesce: bool = False,
    plain: int = 0,
    evolve: bool = False,
    rest_s: float = 0.0,
    timeout_s: float = 900.0,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Have *writers* processes append *appends* times each to a new table, and prove what became of it.

    Args:
        folder: Empty; database, warehouse and logs go there.
        writers: Slots, each one process at a time.
        appends: To be acknowledged in each slot.
        kill_every_s: Kill one writer with SIGKILL, chosen with *seed*, every so many seconds, and replace it; later
            when none has begun to append since it was started.
        kills_max: Stop killing after so many.
        faults: What is done to the servers while the writers write: each once, in this order, at equal parts of the
            acknowledgements. So a share of these comes after the last fault, and only if the writers go on.
        seed: Of the choice.
        properties: Of the catalog, beside ``uri`` and ``warehouse``.
        table_properties: Of the table.
        coalesce: Whether appends of one commit share a snapshot.
        plain: Processes beside *writers* that write with PyIceberg's own ``HiveCatalog``; killed like them.
        evolve: A process adds and drops a column and a partition field, again and again, while the writers write.
        rest_s: How long a writer rests after an append, in the mean. Who reads the table before it locks it, as
            PyIceberg does, gets nowhere beside those that lock it first and never rest.
        timeout_s: Give up after so long; the report then says so.
        say: Told of the progress.
    """
    given = dict(properties or {})
    catalog = _open(folder, given)
    catalog.create_namespace_if_not_exists(TABLE[0])
    of_table = {**(table_properties or {}), COALESCE: str(coalesce).lower()}
    catalog.create_table(TABLE, _COLUMNS, partition_spec=_SPEC, properties=of_table)
    began, kills, dice = time.monotonic(), 0, random.Random(seed)  # noqa: S311 - dice, no secret

    def start(slot: int) -> ForkServerProcess:
        if slot < writers:
            return _start(_write, folder, slot, appends, given, rest_s)
        return _start(_write_plain, folder, slot, given)

    slots = {slot: start(slot) for slot in range(writers)}
    others = {slot: start(slot) for slot in range(writers, writers + plain)}
    stop = folder / "stop"
    evolving = _start(_evolve, folder, stop, given) if evolve else None
    while evolving is not None and evolving.is_alive() and not catalog.load_table(TABLE).metadata.current_schema_id:
        time.sleep(0.02)  # else short runs of the writers might see no change
    tidier = Tidier(given.get("uri", "")) if plain else None
    next_kill = began + kill_every_s if kill_every_s else None
    done = 0
    broken: list[str] = []
    tried_at_start: dict[int, int] = {}
    try:
        while slots:
            if time.monotonic() - began > timeout_s:
                broken.append(f"not done after {timeout_s:.0f} s: slots {sorted(slots)}")
                break
            time.sleep(0.02)
            for slot, process in list(slots.items()):
                if process.exitcode is not None:
                    if process.exitcode:
                        broken.append(f"the writer of slot {slot} ended with status {process.exitcode}")
                    del slots[slot]
            for slot, process in others.items():
                if process.exitcode is not None:
                    others[slot] = start(slot)  # it ends itself when it can't tell what became of an append
            if tidier is not None:
                tidier.tidy([process.pid for process in others.values()])
            if done < len(faults):
                acknowledged = _acknowledged(folder, writers)
                if acknowledged * (len(faults) + 1) >= writers * appends * (done + 1):
                    faults[done]()
                    done += 1
                    say(f"fault {done} was done from {acknowledged} acknowledged to {_acknowledged(folder, writers)}")
            if kills == kills_max:
                next_kill = None
            if next_kill is not None and kill_every_s and time.monotonic() >= next_kill:
                # Only one that has tried something since it was started: on a slow machine starts alone would be
                # killed otherwise, which proves nothing and never ends.
                alive = {**slots, **others}
                tried = {slot: len(_log(folder, slot).tried) for slot in alive}
                busy = [slot for slot in sorted(alive) if tried[slot] > tried_at_start.get(slot, 0) + 1]
                if not busy:
                    continue
                victim = dice.choice(busy)
                alive[victim].kill()
                alive[victim].join()
                tried_at_start[victim] = tried[victim]
                (slots if victim in slots else others)[victim] = start(victim)
                kills += 1
                next_kill = max(next_kill + kill_every_s, time.monotonic())
                say(f"killed {kills}, acknowledged {_acknowledged(folder, writers)}")
    finally:
        for process in (*slots.values(), *others.values()):
            process.kill()
            process.join()
        if evolving is not None:
            stop.touch()
            evolving.join()
            if evolving.exitcode:
                broken.append(f"the process that changes the table ended with status {evolving.exitcode}")
        if tidier is not None:
            tidier.close()
    seconds = time.monotonic() - began
    if done < len(faults):
        broken.append(f"{done} of {len(faults)} faults were done")
    report = _prove(catalog, folder, writers, plain, appends, seconds, kills, done, broken)
    catalog.close()
    return report


def _open(folder: Path, properties: Mapping[str, str]) -> CoordinatedCatalog:
    place = {"uri": f"coord+sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    return commit_coord.load_catalog("hammer", **{**place, **properties})


# One slot.


@dataclass(frozen=True, slots=True)
class _Log:
    tried: list[str]
    acked: dict[str, int]
    refused: list[tuple[str, str]]
    acked_at: list[float]


def _path(folder: Path, slot: int) -> Path:
    return folder / f"slot-{slot}.log"


def _log(folder: Path, slot: int) -> _Log:
    """Return what the log of *slot* says; a last line that a kill cut off says nothing."""
    log = _Log([], {}, [], [])
    path = _path(folder, slot)
    for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
        match line.split() if line.endswith("\n") else []:
            case ["try", mark]:
                log.tried.append(mark)
            case ["ack", mark, snapshot_id, at]:
                log.acked[mark] = int(snapshot_id)
                log.acked_at.append(float(at))
            case ["refused", mark, error]:
                log.refused.append((mark, error))
    return log


def _acknowledged(folder: Path, writers: int) -> int:
    return sum(len(_log(folder, slot).acked) for slot in range(writers))


def _start(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Start a process for *target*."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _write(folder: Path, slot: int, appends: int, properties: Mapping[str, str], rest_s: float) -> None:
    """Be the writer of *slot* until it has *appends* acknowledgements."""
    catalog = _open(folder, properties)
    table = catalog.load_table(TABLE)
    marked = table.properties[COALESCE] == "false"  # what says different things can't share a snapshot
    dice = random.Random()  # noqa: S311 - dice, no secret
    with _Diary(folder, slot) as diary:
        while diary.done < appends:
            mark = diary.tries()
            try:
                table.append(_rows(mark), snapshot_properties={_MARK: mark} if marked else {})
            except Exception as error:
                logging.getLogger(__name__).exception("append %s", mark)
                diary.note("refused", mark, type(error).__name__)
                with suppress(Exception):  # the next append says whether it lasts
                    table.refresh()
                continue
            diary.acknowledged(mark, table)
            time.sleep(2 * rest_s * dice.random())
    catalog.close()


def _write_plain(folder: Path, slot: int, properties: Mapping[str, str]) -> None:
    """Be the writer of *slot* that knows nothing of us, until it can't tell what became of an append."""
    table = open_plain(properties["uri"]).load_table(TABLE)
    with _Diary(folder, slot) as diary:
        while True:
            mark = diary.tries()
            try:
                table.append(_rows(mark), snapshot_properties={_MARK: mark})
            except CommitFailedException as error:
                diary.note("refused", mark, type(error).__name__)
                table.refresh()
                continue
            diary.acknowledged(mark, table)


def _evolve(folder: Path, stop: Path, properties: Mapping[str, str]) -> None:
    """Change the table's columns and partitions, one change after the other, until *stop* is there."""
    with closing(_open(folder, properties)) as catalog:
        for change in itertools.cycle(_CHANGES):
            if stop.exists():
                return
            # It competes with the writers, and may lose: then the next one is tried.
            with suppress(CommitFailedException, CommitStateUnknown, LockError, ValidationError, ValueError):
                change(catalog.load_table(TABLE))
            time.sleep(_CHANGE_EVERY_S)


def _add_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("more", StringType())


def _drop_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("more")


def _add_field(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("value", IdentityTransform(), "append")


def _drop_field(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("append")


_CHANGES = (_add_column, _add_field, _drop_column, _drop_field)
_CHANGE_EVERY_S = 0.2


class _Diary:
    """What a writer of *slot* writes to its log."""

    def __init__(self, folder: Path, slot: int) -> None:
        before = _log(folder, slot)
        self.done, self.number = len(before.acked), len(before.tried)
        self._slot, self._log = slot, _path(folder, slot).open("a")

    def __enter__(self) -> Self:
        if self._log.tell():
            self.note()  # ends a line that a kill cut off
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def tries(self) -> str:
        """Note that an append begins, and return its mark."""
        mark = f"{self._slot}-{os.getpid()}-{self.number}"
        self.number += 1
        self.note("try", mark)
        return mark

    def acknowledged(self, mark: str, table: Table) -> None:
        """Note that the append of that mark was."""
        snapshot = table.current_snapshot()
        assert snapshot is not None
        self.note("ack", mark, snapshot.snapshot_id, time.monotonic())
        self.done += 1

    def note(self, *words: object) -> None:
        self._log.write(" ".join(map(str, words)) + "\n")
        self._log.flush()
        os.fsync(self._log.fileno())


def _rows(mark: str) -> pa.Table:
    """Return the rows of an append; they follow from its mark, so the proof knows them."""
    value = float(mark.rpartition("-")[2])
    return pa.table({"id": list(range(ROWS)), "mark": [mark] * ROWS, "value": [value] * ROWS}, schema=_SCHEMA)


# The proof.


def _prove(
    catalog: CoordinatedCatalog,
    folder: Path,
    writers: int,
    plain: int,
    appends: int,
    seconds: float,
    kills: int,
    faults: int,
    broken: list[str],
) -> Report:
    left = catalog.locks.locks()
    if left:
        broken.append(f"locks left: {', '.join(str(entry.resource) for entry in left)}")
    logs = [_log(folder, slot) for slot in range(writers + plain)]
    ours, others = logs[:writers], logs[writers:]
    tried = {mark for log in logs for mark in log.tried}
    acked = {mark: snapshot_id for log in logs for mark, snapshot_id in log.acked.items()}
    refused = [pair for log in logs for pair in log.refused]
    unanswered = tried - acked.keys() - {mark for mark, _ in refused}
    # From the file alone, so that a mistake of the library can't hide itself.
    location = catalog.load_table(TABLE).metadata_location
    body: dict[str, Any] = json.loads(_local(location).read_bytes())
    found = catalog.load_table(TABLE)
    rows = Counter(found.scan().to_arrow()["mark"].to_pylist())
    snapshots = {snapshot["snapshot-id"] for snapshot in body["snapshots"]}
    places: dict[str, list[int]] = {}
    if body["properties"][COALESCE] == "true":
        # Which snapshot a row came with nobody can tell; the one that was answered must be there.
        for mark, times in rows.items():
            answered = acked.get(mark, 0)
            places[mark] = [answered if answered in snapshots else 0] * (times // ROWS)
    else:
        for snapshot in body["snapshots"]:
            places.setdefault(str(snapshot["summary"].get(_MARK)), []).append(snapshot["snapshot-id"])
    done = sum(len(log.acked) for log in ours)
    if done != writers * appends:
        broken.append(f"{done} acknowledged instead of {writers * appends}")
    said = dict.fromkeys(tried, Answer.UNKNOWN) | dict.fromkeys(acked, Answer.ACKNOWLEDGED)
    said |= {mark: Answer.REFUSED for mark, error in refused if "Unknown" not in error}
    told = [Append(mark=mark, answer=answer, snapshot_id=acked.get(mark)) for mark, answer in said.items()]
    broken += check_places(told, places)
    # PyIceberg's own catalog dates a metadata file by when it built the snapshot in it, maybe before the last file.
    broken += [what for what in check_snapshots(body) if not (plain and what.endswith("the metadata-log step back"))]
    line, uneven = check_line(location, lambda path: json.loads(_local(path).read_bytes()), files=_LINE)
    lists = [snapshot["manifest-list"] for snapshot in body["snapshots"]]
    manifests = [one.manifest_path for one in manifest_list.read(PyArrowFileIO(), lists[-1])] if lists else []
    broken += uneven
    broken += check_files([*line, *lists, *manifests], lambda path: _local(path).exists())  # the rows need the others
    of_others = {mark for log in others for mark in log.tried}
    summaries = [snapshot["summary"] for snapshot in body["snapshots"]]
    requests = Counter(
        one
        for summary in summaries
        for one in ([summary[_MARK]] if summary.get(_MARK) in of_others else summary[REQUEST_ID].split(","))
    )
    broken += [
        f"the request {request_id} is there {times} times" for request_id, times in requests.items() if times > 1
    ]
    files = Counter(task.file.file_path for task in found.scan().plan_files())
    broken += [f"the file {path} is there {times} times" for path, times in files.items() if times > 1]
    if not len(requests) == len(files) == sum(map(len, places.values())):
        broken.append(f"{len(requests)} requests and {len(files)} files for {sum(map(len, places.values()))} appends")
    if rows != Counter({mark: ROWS * len(found) for mark, found in places.items()}):
        broken.append("the rows are not those of the snapshots")
    broken += wrong_rows(location, places)
    return Report(
        seconds=round(seconds, 2),
        kills=kills,
        faults=faults,
        stalled_s=round(
            max((b - a for a, b in pairwise(sorted(at for log in logs for at in log.acked_at))), default=0), 2
        ),
        acknowledged=done,
        unanswered=len(unanswered),
        unanswered_landed=sum(len(places.get(mark, ())) for mark in unanswered),
        snapshots=len(snapshots),
        failures=dict(Counter(error for log in ours for _, error in log.refused)),
        plain=dict(
            Counter(
                error for log in others for error in ["acknowledged"] * len(log.acked) + [e for _, e in log.refused]
            )
        ),
        changes=len(body["schemas"]) + len(body["partition-specs"]) - 2,
        locks_left=len(left),
        broken=tuple(broken),
    )


def wrong_rows(location: str, places: Mapping[str, Sequence[int]]) -> list[str]:
    """Return what is wrong in the table's rows, and in what its metadata says of them."""
    seen = Observed(location, Files())
    wanted: Counter[Row] = Counter()
    for mark, times in places.items():
        wanted.update(tuple(enumerate(row.values(), 1)) for row in _rows(mark).to_pylist() * len(times))
    found = seen.state.of()
    broken = [f"the row {row} is missing" for row in (wanted - found)]
    broken += [f"the row {row} is there, and nobody wrote it" for row in (found - wanted)]
    return broken[:10] + [f"the metadata: {fault}" for fault in faults_of_head(seen)][:10]


def _local(path: str) -> Path:
    return Path(unquote(urlsplit(path).path))


def main(arguments: list[str] | None = None) -> int:
    """Run the hammer, print the report as JSON; 1 when the proof failed."""
    parser = argparse.ArgumentParser(prog="python -m commit_coord.testing.hammer", description=__doc__)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--appends", type=int, default=200, help="for each writer")
    parser.add_argument("--kill-every-s", type=float, help="kill one with SIGKILL this often, and replace it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coalesce", action="store_true", help="appends of one commit share a snapshot")
    parser.add_argument("--evolve", action="store_true", help="another process changes columns and partitions")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="commit-coord-hammer-") as folder:
        report = hammer(
            Path(folder),
            writers=given.writers,
            appends=given.appends,
            kill_every_s=given.kill_every_s,
            seed=given.seed,
            coalesce=given.coalesce,
            evolve=given.evolve,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps(asdict(report), indent=2))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
