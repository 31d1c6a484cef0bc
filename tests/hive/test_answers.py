"""Whatever a metastore answers to the calls of a change, and whenever it carries them out, no outcome is misjudged.

The metastore is in memory; the catalog on top of it is the real one. Each change is made again and again, and each time
other calls fail: nothing is sent, because the servers are away or the client is connected to another one; or the answer
is an error or gets lost, and the call was carried out before, is carried out later, or never.

Afterwards: what was acknowledged is there, with every file; what was refused is not there and never comes; of what is
unknown every file is kept. And what another client made meanwhile, under a name that the change was about, is as that
client made it.

A table's move to another lock service is a change, too, which a report and an audit log tell of. ZooKeeper is in memory
likewise, and its calls fail likewise.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hive_metastore.ttypes import Database
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchNamespaceError

import commit_coord
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.metastore.hive_table import METADATA_LOCATION
from commit_coord.catalog.migration import Migration, Moved, Outcome
from commit_coord.errors import (
    CommitConflict,
    CommitNotApplied,
    CommitStateUnknown,
    LockServiceUnavailable,
    UpdatesDoNotFit,
)
from commit_coord.events import PhaseChange
from commit_coord.hms.calls import FailedOver, MetastoreCaller
from commit_coord.hms.connection import (
    AlreadyExists,
    InvalidObject,
    InvalidOperation,
    LostReply,
    MetaError,
    MetastoreServerFailed,
    NoSuchObject,
    NotSent,
)
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.protocol.commit import SwapResult, TryLimits
from commit_coord.protocol.migration import LOCK_PHASE, MIGRATING, ZOOKEEPER, Phase, State
from tests.catalog.kit import SCHEMA, UNEXPECTED, files_in, files_of, ids, row_ids
from tests.catalog.test_views import queries, replacing, version
from tests.coordinator.test_lost_replies import NoWaiting
from tests.proof.sim.metastore import LockTable
from tests.proof.sim.moving import NoWriters

URIS = "thrift://one:9083,thrift://two:9083"
PURGE = "external.table.purge"
CHANGES = {
    "create_table",
    "alter_table_with_environment_context",
    "drop_table",
    "create_database",
    "alter_database",
    "drop_database",
}


Change = tuple[Callable[[], object], Callable[[CoordinatedHiveCatalog], bool]]
"""What makes a change, and whether a catalog has it."""

Making = Callable[[CoordinatedHiveCatalog, tuple[str, str]], Change]
"""Prepares a change of what has this name."""


class Carried(Enum):
    """When a call is carried out whose answer is an error."""

    BEFORE = auto()
    """Before the answer."""
    TWICE = auto()
    """The server repeats what its database did not answer, and answers what came of the second time."""
    NEVER = auto()
    SOON = auto()
    """Before the next call that is sent."""
    LATE = auto()
    """Before the next change that is sent; after everything, if none is."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call.

    Args:
        error: What the call raises; of :class:`NotSent` and :class:`FailedOver` the server hears nothing.
        carried: When a change is carried out nevertheless.
        lasts: Each later call raises it, too.
    """

    error: type[BaseException]
    carried: Carried = Carried.NEVER
    lasts: bool = False


ANSWERS = [Fault(error, carried) for error in (MetaError, LostReply) for carried in Carried]
FAULTS = [
    *ANSWERS,
    Fault(NotSent),
    Fault(FailedOver),
    Fault(MetastoreServerFailed, Carried.BEFORE),
    Fault(NotSent, lasts=True),
    Fault(MetastoreServerFailed, lasts=True),
]


class TimeLimit(Exception):
    """The error of a signal handler, as job queues have one."""


class OfAHandler(Fault):
    """A fault that no metastore has."""


OF_A_HANDLER = [
    OfAHandler(error, carried)
    for error in (TimeLimit, TimeoutError, KeyboardInterrupt)
    for carried in Carried
    if carried is not Carried.TWICE
]


@dataclass(slots=True)
class Metastore:
    """A metastore in memory, and what happens to the calls of a change.

    Args:
        faults: By the number of the call.
        seen: The calls since the faults were set.
    """

    faults: dict[int, Fault] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None
    """What other clients do once a change is sent whose answer is an error."""
    phase: str = ""
    """In which new tables are."""
    _databases: dict[str, Any] = field(default_factory=lambda: {"db": Database(name="db", parameters={})})
    _tables: dict[tuple[str, str], Any] = field(default_factory=dict)
    _locks: LockTable = field(default_factory=lambda: LockTable(lambda: 0.0))
    _soon: list[Callable[[], object]] = field(default_factory=list)
    _late: list[Callable[[], object]] = field(default_factory=list)
    _thread: threading.Thread = field(default_factory=threading.current_thread)

    def call(
        self, caller: MetastoreCaller, name: str, *arguments: Any, server: str | None = None, patience_ms: int = 0
    ) -> Any:
        """Stand for :meth:`MetastoreCaller.send` and :meth:`MetastoreCaller.repeat`."""
        fault = self._next(name)
        if fault is not None and fault.error is FailedOver:
            caller.pool._leave(caller.pool.address)
        if server not in (None, caller.pool.address):
            raise FailedOver("the client is connected to another metastore than the one the call is for")
        if fault is not None and fault.error is NotSent:
            raise NotSent("the metastore can't be reached")
        self._arrive(is_change=name in CHANGES)
        work: Callable[[], Any] = partial(self._answer, name, *copy.deepcopy(arguments))
        if fault is None or fault.error is FailedOver:
            return work()
        try:
            return self._failing(caller, name, fault, work)
        finally:
            if name in CHANGES:
                meanwhile, self.meanwhile = self.meanwhile, lambda: None
                meanwhile()

    def _failing(self, caller: MetastoreCaller, name: str, fault: Fault, work: Callable[[], Any]) -> Any:
        if fault.carried is Carried.TWICE:
            work()
            return work()
        if name not in CHANGES or fault.carried is Carried.BEFORE:
            work()
        elif fault.carried is not Carried.NEVER:
            (self._soon if fault.carried is Carried.SOON else self._late).append(work)
        if fault.error is LostReply:
            caller.pool._leave(caller.pool.address)
        raise fault.error(f"{name} fails")

    def take_over(self, before: Set[tuple[str, str]], theirs: Mapping[tuple[str, str], Any]) -> None:
        """As another client, move all but *before* to other names, and make *theirs*."""
        for database, name in self._tables.keys() - before:
            self._tables[database, f"{name}_moved"] = self._tables.pop((database, name))
        self._tables.update(copy.deepcopy(dict(theirs)))

    def heal(self) -> None:
        """Carry out what is still under way. From now on nothing fails."""
        self.faults.clear()
        self._arrive(is_change=True)

    def fail(self, name: str) -> None:
        """Raise what happens to a call to another service; nothing of it is carried out."""
        if (fault := self._next(name)) is not None:
            raise KeyboardInterrupt if fault.error is KeyboardInterrupt else LockServiceUnavailable(f"{name} fails")

    def _next(self, name: str) -> Fault | None:
        if name not in CHANGES and threading.current_thread() is not self._thread:
            return None  # a heartbeat, whose time nobody knows
        number = len(self.seen)
        self.seen.append(name)
        lasting = [fault for at, fault in self.faults.items() if fault.lasts and at < number]
        return self.faults.get(number, lasting[0] if lasting else None)

    def _arrive(self, *, is_change: bool) -> None:
        arriving, self._soon = self._soon, []
        if is_change:
            arriving, self._late = arriving + self._late, []
        for work in arriving:
            try:
                work()
            except (AlreadyExists, MetaError, NoSuchObject):  # nobody waits for its answer
                continue

    def _answer(self, name: str, *arguments: Any) -> Any:
        match name, arguments:
            case "getVersion", ():
                return "2.3.10"
            case "get_all_databases", ():
                return [*self._databases]
            case "get_database", (name,):
                found = copy.deepcopy(self._database(name))
                found.parameters |= {LOCK_PHASE: self.phase} if self.phase else {}
                return found
            case "create_database", (database,):
                if database.name in self._databases:
                    raise AlreadyExists(database.name)
                self._databases[database.name] = database
            case "alter_database", (name, database):
                self._database(name)
                self._databases[name] = database
            case "drop_database", (name, _, _):
                self._database(name)
                del self._databases[name]
            case "get_all_tables", (database,):
                return [name for of, name in self._tables if of == database]
            case "get_table_objects_by_name_req", (request,):
                return _Listed([copy.deepcopy(self._tables[request.dbName, name]) for name in request.tblNames])
            case "get_table_req", (request,):
                return _Found(copy.deepcopy(self._table(request.dbName, request.tblName)))
            case "create_table", (new,):
                if new.dbName not in self._databases:
                    raise InvalidObject(new.dbName)
                if (new.dbName, new.tableName) in self._tables:
                    raise AlreadyExists(new.tableName)
                self._tables[new.dbName, new.tableName] = new
            case "alter_table_with_environment_context", (database, table, new, context):
                asked = context.properties
                there = self._table(database, table).parameters.get(asked.get("expected_parameter_key"))
                if there != asked.get("expected_parameter_value"):
                    raise MetaError("The table has been modified")
                to = (new.dbName, new.tableName)
                if to != (database, table) and to in self._tables:
                    raise MetaError(f"new table {new.tableName} already exists")
                del self._tables[database, table]
                self._tables[to] = new
            case "drop_table", (database, table, _):
                self._table(database, table)
                del self._tables[database, table]
            case _:
                return self._locks.answer(name, *arguments)
        return None

    def _database(self, name: str) -> Any:
        if name not in self._databases:
            raise NoSuchObject(name)
        return self._databases[name]

    def _table(self, database: str, table: str) -> Any:
        if (database, table) not in self._tables:
            raise NoSuchObject(f"{database}.{table}")
        return self._tables[database, table]


@dataclass(frozen=True, slots=True)
class _Found:
    table: Any


@dataclass(frozen=True, slots=True)
class _Listed:
    tables: list[Any]


@dataclass(slots=True)
class World:
    """A metastore, what opens catalogs on it whose calls fail, and a catalog that reads."""

    metastore: Metastore
    open: Callable[[], CoordinatedHiveCatalog]
    reader: CoordinatedHiveCatalog
    _names: Iterator[int] = field(default_factory=itertools.count)

    def prepared(self, make: Making, catalog: CoordinatedHiveCatalog) -> Change:
        """Return a change that is about to be made."""
        made = make(catalog, ("db", f"x{next(self._names)}"))
        self.metastore.seen.clear()
        return made


class ZooKeeper(MemoryLockManager):
    """ZooKeeper's locks in memory; *metastore* says what happens to its calls."""

    name = ZOOKEEPER

    def __init__(self, metastore: Metastore, space: Path) -> None:
        super().__init__(space=f"{space}")
        self._metastore = metastore

    def __getattribute__(self, name: str) -> Any:
        if name in ("acquire", "acquire_while", "submit", "pages"):
            self._metastore.fail(f"ZooKeeper's {name}")
        return super().__getattribute__(name)


class _NoRegistry(NoWriters):
    @classmethod
    def of(cls, *_: Any) -> _NoRegistry:
        return cls()


@pytest.fixture(params=["none-honoured", "hms-ignored", "memory-honoured"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    impl, _, compares = request.param.rpartition("-")
    logging.disable()
    metastore = Metastore()
    for name in ("send", "repeat"):
        monkeypatch.setattr(MetastoreCaller, name, lambda *asked, **more: metastore.call(*asked, **more))  # noqa: PLW0108 - binds
    for module in ("pointers", "administration"):
        monkeypatch.setattr(f"commit_coord.catalog.metastore.{module}.next_wait", lambda *_: 0.0)
    properties = {"lock-impl": impl, "hive.compare-and-set": compares, "warehouse": f"file://{tmp_path}"}
    if impl == MIGRATING:
        properties["lock.uri"] = "127.0.0.1:1"
        monkeypatch.setattr("commit_coord.catalog.metastore.locks.Writers", _NoRegistry)
        monkeypatch.setattr(
            "commit_coord.locks.migration.sides.ZooKeeperLockManager", lambda *_, **__: ZooKeeper(metastore, tmp_path)
        )

    def opened() -> CoordinatedHiveCatalog:
        catalog = commit_coord.load_catalog("t", uri=f"coord+{URIS}", **properties)
        assert isinstance(catalog, CoordinatedHiveCatalog)
        catalog.coordinator.clock, catalog.coordinator.limits = NoWaiting(), TryLimits(status_checks=3)
        return catalog

    with closing(opened()) as reader:
        yield World(metastore, opened, reader)
    logging.disable(logging.NOTSET)


def append(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    table = made.create_table(name, SCHEMA)
    table.append(ids(1))

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        seen = catalog.load_table(name)
        assert files_of(seen) <= files_in(seen.location())
        found = row_ids(seen)
        assert found in ([1], [1, 2])
        return found == [1, 2]

    return lambda: table.append(ids(2)), is_there


def creation_with_rows(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    creating = made.create_table_transaction(name, SCHEMA)
    creating.append(ids(1))

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        if not catalog.table_exists(name):
            return False
        seen = catalog.load_table(name)
        assert files_of(seen) <= files_in(seen.location())
        assert row_ids(seen) == [1]
        return True

    return creating.commit_transaction, is_there


def creation(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return catalog.table_exists(name) and not row_ids(catalog.load_table(name))

    return lambda: made.create_table(name, SCHEMA), is_there


def registration(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    other = ("db", f"{name[1]}_other")
    location = made.create_table(other, SCHEMA).metadata_location

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return catalog.table_exists(name) and not row_ids(catalog.load_table(name))

    return lambda: made.register_table(name, location), is_there


def registration_over_another_table(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    registration(made, name)
    made.create_table(name, SCHEMA).append(ids(1))
    other = made.load_table(("db", f"{name[1]}_other")).metadata_location

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return not row_ids(catalog.load_table(name))

    return lambda: made.register_table(name, other, overwrite=True), is_there


def rename(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_table(name, SCHEMA).append(ids(1))
    new = ("db", f"{name[1]}_new")

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        assert catalog.table_exists(name) is not catalog.table_exists(new)
        return catalog.table_exists(new) and row_ids(catalog.load_table(new)) == [1]

    return lambda: made.rename_table(name, new), is_there


def drop(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_table(name, SCHEMA).append(ids(1))
    return lambda: made.drop_table(name), lambda catalog: not catalog.table_exists(name)


def purge(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_table(name, SCHEMA).append(ids(1))

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        if not catalog.table_exists(name):
            return True
        seen = catalog.load_table(name)
        assert files_of(seen) <= files_in(seen.location())
        return False

    return lambda: made.purge_table(name), is_there


def creation_of_a_view(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return catalog.view_exists(name) and queries(catalog.load_view(name)) == ["select 1"]

    return lambda: made.create_view(name, SCHEMA, version("select 1")), is_there


def replacement_of_a_view(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_view(name, SCHEMA, version("select 1"))

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return queries(catalog.load_view(name)) == ["select 1", "select 2"]

    return lambda: made.commit_view(name, [], replacing("select 2")), is_there


def registration_of_a_view(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    other = ("db", f"{name[1]}_other")
    made.create_view(other, SCHEMA, version("select 1"))
    location = made.view_location(other)

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return catalog.view_exists(name) and queries(catalog.load_view(name)) == ["select 1"]

    return lambda: made.register_view(name, location), is_there


def rename_of_a_view(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_view(name, SCHEMA, version("select 1"))
    new = ("db", f"{name[1]}_new")

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        assert catalog.view_exists(name) is not catalog.view_exists(new)
        return catalog.view_exists(new) and queries(catalog.load_view(new)) == ["select 1"]

    return lambda: made.rename_view(name, new), is_there


def drop_of_a_view(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_view(name, SCHEMA, version("select 1"))
    return lambda: made.drop_view(name), lambda catalog: not catalog.view_exists(name)


def creation_of_a_namespace(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return catalog.namespace_exists(name[1]) and properties_of(catalog, name[1]) == {"a": "1"}

    return lambda: made.create_namespace(name[1], {"a": "1"}), is_there


def change_of_a_namespace(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_namespace(name[1], {"a": "1", "b": "2"})

    def is_there(catalog: CoordinatedHiveCatalog) -> bool:
        return properties_of(catalog, name[1]) == {"b": "3"}

    return lambda: made.update_namespace_properties(name[1], {"a"}, {"b": "3"}), is_there


def drop_of_a_namespace(made: CoordinatedHiveCatalog, name: tuple[str, str]) -> Change:
    made.create_namespace(name[1])
    return lambda: made.drop_namespace(name[1]), lambda catalog: not catalog.namespace_exists(name[1])


def properties_of(catalog: CoordinatedHiveCatalog, namespace: str) -> dict[str, str]:
    found = catalog.load_namespace_properties(namespace)
    return {key: value for key, value in found.items() if key != "location"}


OF_TABLES_AND_VIEWS: list[Making] = [
    append,
    creation_with_rows,
    creation,
    registration,
    registration_over_another_table,
    rename,
    drop,
    purge,
    creation_of_a_view,
    replacement_of_a_view,
    registration_of_a_view,
    rename_of_a_view,
    drop_of_a_view,
]
OF_NAMESPACES: list[Making] = [creation_of_a_namespace, change_of_a_namespace, drop_of_a_namespace]
RAW = (AlreadyExists, InvalidObject, InvalidOperation, MetaError, MetastoreServerFailed, NoSuchObject)
"""What a metastore answers, which a catalog puts into words."""


def misjudged(world: World, make: Making, faults: dict[int, Fault]) -> str | None:
    """Return what is wrong with the outcome of a change whose calls fail like this, None if it is right."""
    said: BaseException | None = None
    with closing(world.open()) as catalog:
        change, is_there = world.prepared(make, catalog)
        world.metastore.faults |= faults
        try:
            change()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
            said = error
    shown = [f"{number} {name}: {faults.get(number, '')}" for number, name in enumerate(world.metastore.seen)]
    world.metastore.heal()
    try:
        there = is_there(world.reader)
    except FileNotFoundError as error:
        return f"{shown}\n{said!r}, and a file is gone: {error}"
    if make in OF_NAMESPACES and isinstance(said, RAW) and not CHANGES.isdisjoint(world.metastore.seen):
        return f"{shown}\n{said!r} is told of to people"
    if UNEXPECTED in str(said) and not any(isinstance(fault, OfAHandler) for fault in faults.values()):
        return f"{shown}\n{said!r}: an answer that nothing expects"
    # An error of what follows the change must not look like an error of the change.
    if there is (said is None) or isinstance(said, CommitStateUnknown | KeyboardInterrupt):
        return None
    return f"{shown}\n{said!r}, and {'it is there' if there else 'it is not there'}"


def plans(calls: list[str]) -> Iterator[dict[int, Fault]]:
    """Yield which of the *calls* of an undisturbed change fail, and of those that they make necessary."""
    sent = next(number for number, name in enumerate(calls) if name in CHANGES)
    for number, fault in itertools.product(range(len(calls)), FAULTS):
        yield {number: fault}
    for first, later, second in itertools.product([*ANSWERS, Fault(FailedOver)], range(1, 4), FAULTS):
        # A change that is refused twice is refused for good; see `Pointers.alter`.
        if (
            first.error is not MetaError
            or second.error is not MetaError
            or second.carried not in (Carried.SOON, Carried.LATE)
        ):
            yield {sent: first, sent + later: second}


@pytest.mark.parametrize("make", [*OF_TABLES_AND_VIEWS, *OF_NAMESPACES])
def test_no_answer_of_a_metastore_misjudges_a_change(world: World, make: Making) -> None:
    with closing(world.open()) as catalog:
        change, is_there = world.prepared(make, catalog)
        change()
        calls = [*world.metastore.seen]
    assert is_there(world.reader)
    found = [wrong for faults in plans(calls) if (wrong := misjudged(world, make, faults)) is not None]
    assert not found, f"{len(found)} wrong, such as\n" + "\n\n".join(found[:3])


@pytest.mark.parametrize("make", [*OF_TABLES_AND_VIEWS, *OF_NAMESPACES])
def test_no_error_of_a_signal_handler_misjudges_a_change(world: World, make: Making) -> None:
    """It comes while a call waits for its answer, or right after a call of a change whose reply was lost."""
    with closing(world.open()) as catalog:
        world.prepared(make, catalog)[0]()
        calls = [*world.metastore.seen]
    sent = next(number for number, name in enumerate(calls) if name in CHANGES)
    plans: list[dict[int, Fault]] = [{at: fault} for at in range(len(calls)) for fault in OF_A_HANDLER]
    plans += [{sent: Fault(LostReply, Carried.LATE), at: OfAHandler(TimeLimit)} for at in range(sent + 1, sent + 4)]
    found = [wrong for faults in plans if (wrong := misjudged(world, make, faults)) is not None]
    assert not found, f"{len(found)} wrong, such as\n" + "\n\n".join(found[:3])


@pytest.mark.parametrize("make", OF_TABLES_AND_VIEWS)
def test_no_change_hits_what_another_client_made_while_its_reply_was_lost(world: World, make: Making) -> None:
    """The other client moves what is there to other names, and gives the old names to tables and views of its own."""
    metastore = world.metastore
    with closing(world.open()) as catalog:
        world.prepared(make, catalog)[0]()
        sent = next(number for number, name in enumerate(metastore.seen) if name in CHANGES)
    for fault in (fault for fault in ANSWERS if fault.carried not in (Carried.SOON, Carried.LATE)):
        before = set(metastore._tables)
        with closing(world.open()) as catalog:
            change, _ = world.prepared(make, catalog)
            theirs = {name: copy.deepcopy(metastore._tables[name]) for name in metastore._tables.keys() - before}
            for table in theirs.values():
                table.parameters[METADATA_LOCATION] = "theirs"
            metastore.meanwhile = partial(metastore.take_over, before, theirs)
            metastore.faults[sent] = fault
            with suppress(Exception):
                change()
        metastore.heal()
        assert theirs == {name: found for name, found in metastore._tables.items() if name in theirs}, fault


def test_a_creation_that_another_client_overtakes_is_a_conflict(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metastore refuses it, and shows the other table: nothing is in doubt."""
    world.reader.create_table(("db", "theirs"), SCHEMA)
    with closing(world.open()) as catalog:
        swap = catalog.swap

        def overtaken(table: tuple[str, str], base: str | None, location: str) -> SwapResult:
            world.metastore._tables[table] = world.metastore._tables["db", "theirs"]
            return swap(table, base, location)

        monkeypatch.setattr(catalog, "swap", overtaken)
        creating = catalog.create_table_transaction(("db", "mine"), SCHEMA)
        creating.append(ids(1))
        with pytest.raises(CommitConflict):
            creating.commit_transaction()


def test_a_namespace_that_another_client_has_created_is_refused(world: World) -> None:
    world.reader.create_namespace("theirs")
    with closing(world.open()) as catalog, pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("theirs")


def test_a_creation_that_a_server_repeats_is_unknown_if_the_namespace_is_gone(world: World) -> None:
    """The answer is that there is one, which may have been ours: another client has dropped it since."""
    with closing(world.open()) as catalog:
        change, _ = world.prepared(creation_of_a_namespace, catalog)
        before = {*world.metastore._databases}
        world.metastore.meanwhile = lambda: [
            world.metastore._databases.pop(name) for name in world.metastore._databases.keys() - before
        ]
        world.metastore.faults |= {0: Fault(MetaError, Carried.TWICE)}
        with pytest.raises(CommitStateUnknown, match="the namespace was created"):
            change()


@pytest.mark.parametrize(
    "make, answer, error",
    [
        (creation_of_a_namespace, MetaError("anna has no privilege"), CommitNotApplied),
        (creation_of_a_namespace, InvalidObject("no name for a database"), UpdatesDoNotFit),
        (change_of_a_namespace, MetaError("anna has no privilege"), CommitNotApplied),
        (change_of_a_namespace, MetastoreServerFailed("it broke"), CommitNotApplied),
    ],
)
def test_a_change_of_a_namespace_that_is_refused_each_time_was_not_made(
    world: World, monkeypatch: pytest.MonkeyPatch, make: Making, answer: Exception, error: type[Exception]
) -> None:
    answers, sent = Metastore._answer, []

    def answered(self: Metastore, name: str, *arguments: Any) -> Any:
        if name in CHANGES:
            sent.append(name)
            raise answer
        return answers(self, name, *arguments)

    with closing(world.open()) as catalog:
        change, is_there = world.prepared(make, catalog)
        monkeypatch.setattr(Metastore, "_answer", answered)
        with pytest.raises(error, match=f"the namespace was not c.*{answer}") as refused:
            change()
    assert (type(refused.value), refused.value.__cause__) == (error, answer)
    assert len(sent) == (1 if isinstance(answer, InvalidObject) else 2)
    assert not is_there(world.reader)


def test_a_namespace_that_is_dropped_before_its_change_does_not_exist(world: World) -> None:
    with closing(world.open()) as catalog:
        change, _ = world.prepared(change_of_a_namespace, catalog)
        get = catalog.metastore.get_database

        def dropping(name: str) -> Any:
            found = get(name)
            world.metastore._databases.pop(name)
            return found

        with pytest.MonkeyPatch.context() as patched, pytest.raises(NoSuchNamespaceError):
            patched.setattr(catalog.metastore, "get_database", dropping)
            change()


@pytest.mark.parametrize(
    "answer, error",
    [
        (MetaError("Table metadata not deleted since /w is not writable by anna"), UpdatesDoNotFit),
        (MetaError("Database not dropped since /w is not writable by anna"), UpdatesDoNotFit),
        (InvalidOperation("anna has no privilege"), UpdatesDoNotFit),
        (InvalidOperation("Database db is not empty. One or more functions exist."), NamespaceNotEmptyError),
        (MetaError("a listener failed"), CommitStateUnknown),
    ],
)
def test_a_drop_is_refused_if_the_answer_proves_it(
    world: World, monkeypatch: pytest.MonkeyPatch, answer: Exception, error: type[Exception]
) -> None:
    """A listener is told of a drop after it was carried out, and may fail then."""
    answers = Metastore._answer

    def answered(self: Metastore, name: str, *arguments: Any) -> Any:
        if name in ("drop_table", "drop_database"):
            raise answer
        return answers(self, name, *arguments)

    with closing(world.open()) as catalog:
        catalog.create_table(("db", "t"), SCHEMA)
        catalog.create_namespace("empty")
        monkeypatch.setattr(Metastore, "_answer", answered)
        if not isinstance(answer, InvalidOperation):  # which is no answer to the drop of a table
            with pytest.raises(error, match=str(answer)):
                catalog.drop_table(("db", "t"))
        with pytest.raises(error, match="not empty" if error is NamespaceNotEmptyError else str(answer)):
            catalog.drop_namespace("empty")


@pytest.mark.parametrize("names", [("gc.enabled", PURGE), (PURGE, "gc.enabled")], ids=" then ".join)
def test_what_iceberg_must_keep_is_not_shown_to_hive_as_what_it_may_purge(world: World, names: Sequence[str]) -> None:
    said = {"gc.enabled": "false", PURGE: "true"}
    with closing(world.open()) as catalog:
        catalog.create_table(("db", "kept"), SCHEMA, properties={name: said[name] for name in names})
        shown = catalog.metastore.get_table("db", "kept").parameters
    assert (shown[PURGE], "gc.enabled" in shown) == ("false", False)


def misjudged_move(world: World, way: tuple[Phase, Phase], faults: dict[int, Fault]) -> str | None:
    """Return what is wrong with what is told of a move whose calls fail like this, None if it is right."""
    start, target = way
    name = ("db", f"x{next(world._names)}")
    world.metastore.phase = start
    events: list[PhaseChange] = []
    moved: Moved | None = None
    with closing(world.open()) as catalog:
        before = State.of(catalog.create_table(name, SCHEMA).properties)
        assert before.phase is start
        catalog.events.subscribe(lambda event: events.append(event) if isinstance(event, PhaseChange) else None)
        world.metastore.seen.clear()
        world.metastore.faults |= faults
        with suppress(KeyboardInterrupt):
            moved = Migration(catalog).move(name, target)
        shown = [f"{number} {call}: {faults.get(number, '')}" for number, call in enumerate(world.metastore.seen)]
        world.metastore.heal()
    state = State.of(world.reader.load_table(name).properties)
    stages = [(event.epoch, event.stage) for event in events]
    wrong = [*_wrong_audit(stages, before, state)]
    wrong += [] if moved is None else _wrong_report(moved, before, state, target)
    return "\n".join([*shown, *wrong, f"{stages}, {moved}, and it is in {state}"]) if wrong else None


def _wrong_audit(stages: Sequence[tuple[int, str]], before: State, state: State) -> Iterator[str]:
    for (epoch, begun), (_, ended) in itertools.zip_longest(stages[::2], stages[1::2], fillvalue=(0, "nothing")):
        if begun != "begun" or ended not in ("done", "refused", "unknown"):
            yield f"a step is told of as {begun} and {ended}"
        if ended == "done" and state.epoch < epoch:
            yield "the audit log has what did not come"
    ends = dict(stages)
    if any(ends.get(epoch) not in ("done", "unknown") for epoch in range(before.epoch + 1, state.epoch + 1)):
        yield "the audit log lacks a step"


def _wrong_report(moved: Moved, before: State, state: State, target: Phase) -> Iterator[str]:
    good = moved.outcome in (Outcome.CHANGED, Outcome.THERE)
    if good and (moved.after, state.phase) != (state, target):
        yield "it is not where the report says"
    if not good and moved.outcome is not Outcome.UNKNOWN and (moved.after or before) != state:
        yield "the report hides where it is"


def plans_of_move(calls: list[str]) -> Iterator[dict[int, Fault]]:
    """Yield which of the *calls* of an undisturbed move fail."""
    interrupts = [Fault(KeyboardInterrupt, carried) for carried in (Carried.BEFORE, Carried.NEVER)]
    for (number, name), fault in itertools.product(enumerate([*calls]), [*FAULTS, *interrupts]):
        if name in CHANGES or fault.carried is Carried.NEVER:
            yield {number: fault}
        if name in CHANGES and not fault.lasts:
            yield {number: fault, number + 1: Fault(NotSent, lasts=True)}


WAYS = [
    (Phase.HMS, Phase.BOTH),
    (Phase.BOTH, Phase.ZOOKEEPER),
    (Phase.BOTH, Phase.HMS),
    (Phase.ZOOKEEPER, Phase.BOTH),
    (Phase.ZOOKEEPER, Phase.HMS),
]


@pytest.mark.parametrize("way", WAYS, ids=" to ".join)
@pytest.mark.parametrize("world", [f"{MIGRATING}-honoured"], indirect=True)
def test_no_answer_of_a_service_misjudges_a_move(world: World, way: tuple[Phase, Phase]) -> None:
    """The report, the audit log and the properties of the table agree on it."""
    assert misjudged_move(world, way, {}) is None
    plans = [*plans_of_move(world.metastore.seen)]
    found = [wrong for faults in plans if (wrong := misjudged_move(world, way, faults)) is not None]
    assert not found, f"{len(found)} wrong, such as\n" + "\n\n".join(found[:3])
