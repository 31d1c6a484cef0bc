"""The writers: processes, or threads of one, that work on one table, and log what they try and what became of it.

A slot is one writer at a time; what ends is replaced. Its mark of an operation, ``<kind>.<slot>.<pid>.<number>``, goes
into the snapshot's summary and into a column of the rows. Kinds:

======== =================================================================================================
append   ``table.append`` of ten rows to the slot's own partition
replace  ``table.overwrite`` of that partition, under an operation lock X on it
delete   in turns, an append to that partition, and ``table.delete`` of it under an operation lock X
java     Iceberg Java's ``newAppend`` or ``newFastAppend`` of ten rows through the REST server (``java/``)
spark    ``commit_coord.spark.write_table`` of that partition alone, from a Spark session of its own
======== =================================================================================================

An *order* is a file that tells a slot to do something to itself when it reaches a step of the commit protocol: the
writer's process wraps what performs the protocol's effects.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.load import load_catalog
from commit_coord.model import LockMode, Resource
from commit_coord.testing.fleet import OutcomeLog, read_outcomes
from tests.proof.faults.world import run_out_of_memory

TABLE = ("faults", "t")
MARK = "faults-mark"
ROWS = 10
SCHEMA = pa.schema([("part", pa.string()), ("mark", pa.string()), ("value", pa.int64())])

KINDS = ("append",) * 5 + ("replace",) * 2 + ("delete",)
"""What each slot does."""

CLIENTS = ("append", "append", "replace", "delete") + ("java",) * 4
"""What each slot does where writers are clients of REST servers."""

STEPS = ("AcquireLatch", "Retract", "Plan", "Gather", "Write", "EnsureActive", "Swap", "Confirm", "Release")
"""The steps of every commit; each has a before and an after."""

IMPORTED = [
    "commit_coord.catalog.sql",
    "commit_coord.catalog.hive",
    "commit_coord.locks.zookeeper.manager",
    "tests.proof.faults.writers",
    "psycopg",
    "pyiceberg.catalog.hive",
    "pyiceberg.catalog.rest",
    "pyiceberg.io.pyarrow",
    "pandas",
    "pyarrow.pandas_compat",
    "sqlite3",
]
"""What a writer would import with its first operation."""

_PAUSE_S = {"append": 0.03, "replace": 0.1, "delete": 0.1, "spark": 0.1}
"""After each operation: small tables are read sooner, and every latch is contended all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a slot does to itself.

    Args:
        step: When: at ``before Swap``, ``after Write`` and so on, or ``in Swap``, right before a database's COMMIT.
        act: ``kill``, ``stop`` or ``hoard`` (take memory until the kernel ends the process).
    """

    step: str
    act: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the writers of one cell work.

    Args:
        folder: Logs and orders.
        catalog: The catalog's name.
        properties: Its properties.
        ours: Coordinated; else PyIceberg's own, or a REST client.
        java: The command of a writer of the kind ``java``.
    """

    folder: Path
    catalog: str
    properties: Mapping[str, str]
    ours: bool
    java: Sequence[str] = ()

    def open(self) -> Catalog:
        """Open the catalog."""
        if self.ours:
            return load_catalog(self.catalog, **self.properties)
        from pyiceberg.catalog import load_catalog as load

        return load(self.catalog, **self.properties)

    @property
    def stop(self) -> Path:
        """Exists when writers shall end."""
        return self.folder / "stop"

    def clock(self, slot: int) -> Path:
        """Has the seconds by which the clock of *slot* is wrong."""
        return self.folder / f"clock-{slot}"

    def log(self, slot: int) -> Path:
        """What *slot* tried, and what became of it."""
        return self.folder / f"slot-{slot}.log"

    def order(self, slot: int) -> Path:
        """What *slot* shall do to itself."""
        return self.folder / f"order-{slot}.json"

    def give(self, slot: int, order: Order) -> None:
        """Give *slot* an order; when it is carried out, the file is gone."""
        part = self.folder / f"order-{slot}.part"
        part.write_text(json.dumps(asdict(order)))
        part.rename(self.order(slot))

    def pid(self, slot: int) -> int | None:
        """The process of *slot*, by what it wrote; None before the first."""
        with suppress(OSError, ValueError):
            return int((self.folder / f"pid-{slot}").read_text())
        return None


def write(place: Place, slots: Mapping[int, str], parent: int) -> None:
    """Be the writers of *slots* (number → kind) until they shall stop, or the process *parent* is gone."""
    warnings.simplefilter("ignore")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    said = place.folder / f"process-{os.getpid()}.log"
    with said.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)  # also what Spark's JVM says
    logging.basicConfig(filename=said, level=logging.WARNING, format="%(asctime)s %(message)s")
    for slot in slots:
        (place.folder / f"pid-{slot}").write_text(str(os.getpid()))
    if "java" in slots.values():
        _become_java(place, min(slots), parent)
    watch_clock(place, min(slots))
    obeying = _Obeying(place)
    try:
        catalog = place.open()
    except Exception as error:
        logging.exception("the catalog was not opened")  # noqa: LOG015 - of this process alone
        for slot in slots:
            with OutcomeLog(place.log(slot)) as log:
                log.failed_start(error)
        sys.exit(3)
    obeying.watch(catalog)
    work = [partial(_Slot(place, slot, kind, catalog, parent, obeying).work) for slot, kind in slots.items()]
    if len(work) == 1:
        work[0]()
    else:
        threads = [threading.Thread(target=one) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with suppress(Exception):
        catalog.close()
    os._exit(0)  # Spark's JVM and whatever else was started goes with its pipes


def _become_java(place: Place, slot: int, parent: int) -> None:
    tried = len(read_outcomes(place.log(slot)).tried)
    where = (place.properties["uri"], place.properties["warehouse"], *TABLE)
    os.execv(place.java[0], [*place.java, *map(str, (place.folder, slot, tried, parent, *where))])  # noqa: S606 - our own


class _Slot:
    """One writer."""

    def __init__(self, place: Place, slot: int, kind: str, catalog: Catalog, parent: int, obeying: _Obeying) -> None:
        self._place = place
        self._slot = slot
        self._kind = kind
        self._catalog = catalog
        self._parent = parent
        self._obeying = obeying
        self._part = f"p{slot}"
        self._is_full = False
        self._session: Any = None

    def work(self) -> None:
        self._obeying.slots.number = self._slot
        number = len(read_outcomes(self._place.log(self._slot)).tried)
        with OutcomeLog(self._place.log(self._slot)) as log:
            try:
                operate = self._operation()
            except Exception as error:
                logging.exception("the table was not loaded")  # noqa: LOG015
                log.failed_start(error)
                os._exit(3)
            while not self._place.stop.exists() and _lives(self._parent):
                mark = f"{self._kind}.{self._slot}.{os.getpid()}.{number}"
                number += 1
                log.tries(mark)
                try:
                    snapshot_id = operate(mark, number)
                except (CommitFailedException, ValidationException) as error:
                    logging.warning("%s", mark, exc_info=True)  # noqa: LOG015
                    log.refused(mark, error)
                except Exception as error:
                    logging.warning("%s", mark, exc_info=True)  # noqa: LOG015
                    log.unknown(mark, error)
                else:
                    log.acknowledged(mark, snapshot_id)
                time.sleep(_PAUSE_S[self._kind])  # the subject: the pace of a writer

    def _operation(self) -> Callable[[str, int], int | None]:
        table = self._catalog.load_table(TABLE)
        return partial(getattr(self, f"_{self._kind}"), table)

    def _append(self, table: Table, mark: str, number: int) -> int | None:
        self._refreshed(table)
        table.append(self._rows(mark, number), snapshot_properties={MARK: mark})
        return _landed(table, mark)

    def _replace(self, table: Table, mark: str, number: int) -> int | None:
        with self._locked(mark):
            table.refresh()
            table.overwrite(
                self._rows(mark, number),
                overwrite_filter=f"part = '{self._part}'",
                snapshot_properties={MARK: mark},
            )
        return _landed(table, mark)

    def _delete(self, table: Table, mark: str, number: int) -> int | None:
        self._is_full = not self._is_full
        if self._is_full:
            return self._append(table, mark, number)
        with self._locked(mark):
            table.refresh()
            table.delete(f"part = '{self._part}'", snapshot_properties={MARK: mark})
        return _landed(table, mark)

    def _spark(self, table: Table, mark: str, number: int) -> int | None:
        from commit_coord.spark import write_table

        assert isinstance(self._catalog, CoordinatedCatalog)
        self._session = self._session or _session(self._place.folder / f"spark-{self._slot}")
        frame = self._session.createDataFrame(
            [(self._part, mark, number)] * ROWS, "part string, mark string, value bigint"
        )
        written = write_table(
            frame,
            (self._catalog, TABLE),
            mode="dynamic",
            overwrite_filter=f"part = '{self._part}'",
            snapshot_properties={MARK: mark},
        )
        return _landed(written, mark)

    def _rows(self, mark: str, number: int) -> pa.Table:
        return pa.table({"part": [self._part] * ROWS, "mark": [mark] * ROWS, "value": [number] * ROWS}, schema=SCHEMA)

    def _refreshed(self, table: Table) -> None:
        if not self._place.ours:  # PyIceberg's own starts from what it sees
            table.refresh()

    def _locked(self, statement: str) -> Any:
        """Hold the slot's partition for as long as an operation takes."""
        if not isinstance(self._catalog, CoordinatedCatalog):
            return nullcontext()
        wanted = {Resource.table(TABLE, f"part={self._part}"): LockMode.EXCLUSIVE}
        return self._catalog.lock_operation(wanted, statement=statement)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _landed(table: Table, mark: str) -> int | None:
    """Return the snapshot with *mark*; behind it may be others that a REST server published together with it."""
    for snapshot in reversed(table.snapshots()):
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(MARK) == mark:
            return snapshot.snapshot_id
    return None


def _session(scratch: Path) -> Any:
    from pyspark.sql import SparkSession

    scratch.mkdir(exist_ok=True)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir='{scratch}'",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    return SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()


# Orders.


class _Obeying:
    """Carries out orders at the steps that they name."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.slots = threading.local()

    def watch(self, catalog: Catalog) -> None:
        """Look for orders at every step of *catalog*'s commits."""
        if not isinstance(catalog, CoordinatedCatalog):
            _wrap_pyiceberg(catalog, self.reached)
            return
        from commit_coord.coordinator.commit import Commit

        perform = Commit._perform

        def performed(commit: Any, effect: Any) -> Any:
            step = type(effect).__name__
            self.reached(f"before {step}")
            try:
                return perform(commit, effect)
            finally:
                self.reached(f"after {step}")

        Commit._perform = performed  # type: ignore[method-assign, assignment]
        engine = getattr(catalog, "engine", None)
        if engine is not None:
            from sqlalchemy import event

            event.listen(engine, "commit", lambda connection: self.reached("in Swap"))

    def reached(self, step: str) -> None:
        """Carry out the order that waits for *step*."""
        slot = getattr(self.slots, "number", None)
        if slot is None:
            return
        path = self._place.order(slot)
        try:
            order = Order(**json.loads(path.read_text()))
        except FileNotFoundError:
            return
        if order.step != step:
            return
        path.unlink()
        if order.act == "hoard":
            run_out_of_memory(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL if order.act == "kill" else signal.SIGSTOP)
        if order.act == "kill":
            threading.Event().wait()  # the signal is on its way


def _wrap_pyiceberg(catalog: Catalog, reached: Callable[[str], None]) -> None:
    """Have PyIceberg's own catalog tell of the moments that ours has steps for."""
    write_metadata: Callable[..., None] | None = getattr(catalog, "_write_metadata", None)
    if write_metadata is None:  # a REST client: its server writes
        return

    def written(*arguments: Any, **named: Any) -> None:
        write_metadata(*arguments, **named)
        reached("before Swap")

    catalog._write_metadata = written  # type: ignore[attr-defined]
    engine = getattr(catalog, "engine", None)
    if engine is not None:
        from sqlalchemy import event

        event.listen(engine, "commit", lambda connection: reached("in Swap"))


# The clock.


def watch_clock(place: Place, slot: int) -> None:
    """Have this process's wall clock be wrong by what a file says, in Python's ``time`` and in PyIceberg's metadata."""
    path, right, right_ns = place.clock(slot), time.time, time.time_ns

    def step() -> float:
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            return 0.0

    time.time = lambda: right() + step()
    time.time_ns = lambda: right_ns() + int(step() * 1e9)

    class Stepped(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return super().now(tz) + dt.timedelta(seconds=step())

    for name in ("pyiceberg.table.update", "pyiceberg.table"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "datetime", None) is dt.datetime:
            module.datetime = Stepped  # type: ignore[attr-defined]


def one_process(kinds: Sequence[str]) -> list[dict[int, str]]:
    """Return all slots as those of one process."""
    return [dict(enumerate(kinds))]


def processes(kinds: Sequence[str]) -> list[dict[int, str]]:
    """Return each slot as that of a process of its own."""
    return [{slot: kind} for slot, kind in enumerate(kinds)]
