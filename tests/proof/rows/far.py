"""Clients of programs that are far: on a Hive Metastore, with locks on a server, each in a process of its own.

A client in a process performs one operation at a time. It asks before it hands a commit to the coordinator, so that
another client can commit right before it: the races of programs are the same, whatever process runs them.

``make rows-servers`` runs programs so: what they are and what is judged is what ``make rows`` has.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import commit_coord
from commit_coord.local import HiveMetastore, ZooKeeperEnsemble
from commit_coord.testing.table_files.observed import Files
from tests.proof.rows import many
from tests.proof.rows.clients import Clients, quiet
from tests.proof.rows.doing import NAMESPACE, Doing, Written
from tests.proof.rows.draw.dice import Dice
from tests.proof.rows.draw.tables import placed, table
from tests.proof.rows.findings import ALONE
from tests.proof.rows.model.operations import CommitFiles, Single, WriteFiles, is_fresh
from tests.proof.rows.program import Program

_OURS = ("a", "b")
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Place:
    """Where the clients' tables and locks are.

    Args:
        uri: Of the catalog's database or metastore.
        warehouse: Of the tables.
        properties: Of our catalogs in addition to these: the lock manager's.
    """

    uri: str
    warehouse: str
    properties: Mapping[str, str]

    def open(self, client: str, operation_locks: str) -> Any:
        """Return the catalog of *client*."""
        common = {"warehouse": self.warehouse}
        if client in _OURS:
            locks = {"operation-locks": operation_locks, "lock.acquire-timeout-ms": "500", **self.properties}
            return commit_coord.load_catalog("rows", uri=f"coord+{self.uri}", **common, **locks)
        if not self.uri.startswith("thrift"):
            return SqlCatalog("rows", uri=self.uri, **common)
        brief = {"lock-check-min-wait-time": "0.02", "lock-check-max-wait-time": "0.1", "lock-check-retries": "3"}
        return HiveCatalog("rows", uri=self.uri, **{"hive.hive2-compatible": "true"}, **brief, **common)


class FarClients(Clients):
    """Clients at a place.

    Args:
        folder: For files.
        locks: ``operation-locks`` of our catalogs.
        place: Where they work.
        apart: Each in a process of its own.
    """

    def __init__(self, folder: Path, locks: str, place: Place, *, apart: bool) -> None:
        self.folder, self.locks, self.place = folder, locks, place
        folder.mkdir(parents=True, exist_ok=True)
        self._looking = place.open("s", locks)
        # PyIceberg's catalog first makes the database's tables.
        where = {"location": f"{place.warehouse}/{NAMESPACE}"} if place.uri.startswith("thrift") else {}
        self._looking.create_namespace_if_not_exists(NAMESPACE, where)
        self.catalogs = {
            name: Remote(place, name, locks, folder) if apart else place.open(name, locks) for name in (*_OURS, "s")
        }

    def pointer(self, table: str) -> str | None:
        """Return where the metadata of *table* is."""
        if not self._looking.table_exists((NAMESPACE, table)):
            return None
        location: str = self._looking.load_table((NAMESPACE, table)).metadata_location
        return location

    def doing(self, folder: Path, files: Files) -> Any:
        """Return what does operations."""
        there = any(isinstance(catalog, Remote) for catalog in self.catalogs.values())
        return FarDoing(files) if there else Doing(folder, files)

    def close(self) -> None:
        """Close them."""
        for catalog in (*self.catalogs.values(), self._looking):
            catalog.close()


# Processes.


@dataclass
class Handle:
    """What is known here of a table that a client in another process has loaded."""

    catalog: Remote
    key: tuple[str, str]
    metadata_location: str = ""
    _about: Mapping[str, Any] = field(default_factory=dict)

    def updated(self, about: Mapping[str, Any]) -> Handle:
        """Take what the process says of its table."""
        self._about, self.metadata_location = about, about["metadata_location"]
        return self

    def refresh(self) -> Handle:
        """Have it loaded again."""
        return self.updated(self.catalog.ask("load", self.key))

    def schema(self) -> Any:
        """Return its columns."""
        return self._about["schema"]

    def spec(self) -> Any:
        """Return its partition spec."""
        return self._about["spec"]

    def location(self) -> Any:
        """Return where it lies."""
        return self._about["location"]

    @property
    def properties(self) -> Any:
        """Return its properties."""
        return self._about["properties"]

    @property
    def format_version(self) -> Any:
        """Return the version of its format."""
        return self._about["format_version"]


class Remote:
    """A client's catalog in a process of its own."""

    def __init__(self, place: Place, client: str, locks: str, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, place, client, locks, folder), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def coordinator(self) -> Remote:
        """Return what has a method ``commit``."""
        return self

    def commit(self, *_: Any) -> None:
        """Be called right before the process commits."""

    commit_table = commit

    def ask(self, what: str, *arguments: Any) -> Any:
        """Return what the process answers, or raise what it raised."""
        self._pipe.send_bytes(pickle.dumps((what, arguments)))
        while True:
            if not self._pipe.poll(_PATIENCE_S):
                raise RuntimeError(f"a client did not answer for {_PATIENCE_S:.0f} s: {what} {arguments}")
            kind, answer = pickle.loads(self._pipe.recv_bytes())
            if kind == "commits":
                (self.commit if answer == "commit" else self.commit_table)()
                self._pipe.send_bytes(pickle.dumps("go on"))
            elif kind == "raised":
                raise answer
            else:
                return answer

    def load_table(self, key: tuple[str, str]) -> Handle:
        """Have a table loaded, anew; the process works with this one from now on."""
        return Handle(self, key).refresh()

    def create_table(self, key: tuple[str, str], schema: Any, **given: Any) -> Handle:
        """Have a table made."""
        return Handle(self, key).updated(self.ask("create", key, schema, given))

    def purge_table(self, key: tuple[str, str]) -> None:
        """Drop the table and its files."""
        self.ask("purge", key)

    def drop_table(self, key: tuple[str, str]) -> None:
        """Have a table dropped."""
        self.ask("drop", key)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(_PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()


class FarDoing:
    """Has operations done by clients in processes of their own."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.slots: dict[str, Written] = {}
        self.dropped: set[str] = set()
        self.between: Callable[[], None] = lambda: None  # a client that is far is raced at its commits alone

    def __call__(self, operation: Single, table: Handle) -> None:
        """Do *operation* on *table*, as its client sees it."""
        written = self.slots[operation.slot] if isinstance(operation, CommitFiles) else None
        error, about, foreign, slot = table.catalog.ask("do", operation, table.key, written, self.dropped)
        table.updated(about)
        self.files.rows.update(foreign)
        if isinstance(operation, WriteFiles) and error is None:
            self.slots[operation.slot] = slot
        if error is not None:
            raise error


def _serve(pipe: Connection, place: Place, client: str, locks: str, folder: Path) -> None:
    """Be a client."""
    catalog = place.open(client, locks)
    ours = client in _OURS
    owner, method = (catalog.coordinator, "commit") if ours else (catalog, "commit_table")
    real: Callable[..., Any] = getattr(owner, method)

    def commit(*args: Any, **kwargs: Any) -> Any:
        pipe.send_bytes(pickle.dumps(("commits", method)))
        pipe.recv_bytes()
        return real(*args, **kwargs)

    setattr(owner, method, commit)
    serving = _Serving(catalog, folder)
    while True:
        try:
            what, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            break
        try:
            with quiet():
                answer: Any = ("answers", getattr(serving, what)(*arguments))
        except Exception as error:  # noqa: BLE001 - it is raised there
            answer = ("raised", _portable(error))
        pipe.send_bytes(pickle.dumps(answer))
    catalog.close()


class _Serving:
    """What a client in a process is asked for."""

    def __init__(self, catalog: Any, folder: Path) -> None:
        self._catalog, self._folder = catalog, folder
        self._tables: dict[tuple[str, str], Table] = {}

    def load(self, key: tuple[str, str]) -> Mapping[str, Any]:
        self._tables[key] = self._catalog.load_table(key)
        return _about(self._tables[key])

    def create(self, key: tuple[str, str], schema: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self._tables[key] = self._catalog.create_table(key, schema, **given)
        return _about(self._tables[key])

    def purge(self, key: tuple[str, str]) -> None:
        self._catalog.purge_table(key)

    def drop(self, key: tuple[str, str]) -> None:
        self._catalog.drop_table(key)

    def do(self, operation: Single, key: tuple[str, str], written: Written | None, dropped: set[str]) -> Any:
        table = self._catalog.load_table(key) if is_fresh(operation) else self._tables[key]
        doing = Doing(self._folder, Files(), dropped=dropped)
        if isinstance(operation, CommitFiles) and written is not None:
            doing.slots[operation.slot] = written
        error: Exception | None = None
        try:
            doing(operation, table)
        except Exception as raised:  # noqa: BLE001 - it is judged there
            error = _portable(raised)
        slot = doing.slots.get(operation.slot) if isinstance(operation, WriteFiles) else None
        return error, _about(self._tables[key]), doing.files.rows, slot


def _about(table: Table) -> Mapping[str, Any]:
    return {
        "metadata_location": table.metadata_location,
        "schema": table.schema(),
        "location": table.location(),
        "spec": table.spec(),
        "properties": table.properties,
        "format_version": table.format_version,
    }


def _portable(error: Exception) -> Exception:
    """Return *error*, or one of its type that can travel."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever a pickle raises
        made = Exception.__new__(type(error))
        made.args = (str(error),)
        return made
    return error


# Many programs.


class Rig(many.Rig):
    """Clients for each way of locking, opened when a program asks for them."""

    def __init__(self, stack: ExitStack, folder: Path, place: Place, *, apart: bool) -> None:
        super().__init__(stack)
        self._folder, self._place, self._apart = folder, place, apart

    def table(self, dice: Dice) -> Program:
        """Return a program without steps; no table lies next to its own, which a client would have to make."""
        return placed(dice, table(dice), neighbours=False)

    def of(self, locks: str) -> Clients:
        """Return clients that lock so."""
        if locks not in self._made:
            made = FarClients(self._folder / locks, locks, self._place, apart=self._apart)
            self._stack.callback(made.close)
            self._made[locks] = made
        return self._made[locks]


def run_programs(
    folder: Path, seeds: Sequence[int], place: Place, *, apart: bool, say: Callable[[str], None] = print
) -> int:
    """Run a program for each of *seeds*, and return how many findings there are."""
    with ExitStack() as stack:
        rig = Rig(stack, folder, place, apart=apart)
        done = many.run_many(seeds, 1, lambda one: say(f"seed {one.seed}: {one.text}\n{one.program}\n"), rig)
    landed = sum(number for name, number in done.counts.items() if name.endswith(" landed"))
    refused = sum(number for name, number in done.counts.items() if name.endswith(" refused"))
    findings = sum(number for kind, number in done.kinds.items() if not kind.startswith(ALONE))
    say(f"{len(seeds):,} programs, {landed:,} operations landed, {refused:,} were refused, {findings:,} findings")
    return findings


def hive(uri: str, folder: Path, locks: str, ensemble: str = "") -> Place:
    """Return a place on a Hive Metastore; *locks* is ``hms`` or ``zookeeper``, of the *ensemble*."""
    properties = {"lock-impl": locks, "hive.hive2-compatible": "true"}
    return Place(uri, (folder / "warehouse").as_uri(), properties | ({"lock.uri": ensemble} if ensemble else {}))


def sqlite(folder: Path) -> Place:
    """Return a place on SQLite, with locks that processes share."""
    return Place(f"sqlite:///{folder}/catalog.db", (folder / "warehouse").as_uri(), {"lock-impl": "lease"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="make rows-servers", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next one has the next seed")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--locks", choices=("hms", "zookeeper", "lease"), default="zookeeper", help="lease: on SQLite")
    parser.add_argument("--together", action="store_true", help="all clients in one process")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rows-")))
        place = sqlite(folder)
        if options.locks != "lease":
            metastore, ensemble = HiveMetastore(folder / "hms"), ""
            if options.locks == "zookeeper":
                keepers = ZooKeeperEnsemble(folder / "zookeeper", 1)
                stack.callback(keepers.close)
                keepers.start()
                ensemble = keepers.connect_string
            stack.callback(metastore.close)
            metastore.start()
            place = hive(metastore.uri, folder, options.locks, ensemble)
        began = time.monotonic()
        seeds = range(options.seed, options.seed + options.runs)
        findings = run_programs(folder / "clients", seeds, place, apart=not options.together)
        print(f"in {time.monotonic() - began:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
