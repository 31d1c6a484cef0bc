"""Wherever its connection to the database of a SQL catalog breaks, no change is taken for what it is not.

Each change is made again and again. Each time its connections break at another step: before it, in it or after
it if it is a COMMIT, or when the connection is given back; once, or from then on. Then work is tried again, as it is on
PostgreSQL. Or a signal handler raises an error at that step.

Afterwards: what was acknowledged is there, with every file; what was refused is not there. And what another client
made meanwhile, under a name that the change was about, is as that client made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from commit_coord import CommitStateUnknown
from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.protocol.commit import TryLimits
from tests.catalog.kit import SCHEMA, UNEXPECTED, Kit, files_in, files_of, ids, kit, row_ids
from tests.catalog.test_views import queries, replacing, version


class TimeLimit(Exception):
    """The error of a signal handler, as job queues have one."""


class Breaking:
    """An engine whose connections break at a step, and which says that its database is PostgreSQL."""

    dialect = SimpleNamespace(name="postgresql")

    def __init__(self) -> None:
        self.real: Any = None
        self.seen: list[str] = []
        self.breaks_at: int | None = None
        self.lasts = False
        self.error: Callable[[str], BaseException] = broken
        self.meanwhile: Callable[[], object] = lambda: None
        """What other clients do when the first connection breaks after a COMMIT."""

    @contextmanager
    def connect(self) -> Iterator[Any]:
        self.step("connect")
        with self.real.connect() as connection:
            yield _Breaking(connection, self)
        self.step("give back")

    def commits(self, connection: Connection) -> None:
        """Raise if the connection breaks in its COMMIT; the second time, the server rolls back what it did not get."""
        self.step("in commit")
        if self._breaks_next():
            connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr]
        self.step("rolled back")

    def _breaks_next(self) -> bool:
        return self.breaks_at is not None and self.breaks_at == len(self.seen)

    def step(self, name: str) -> None:
        """Raise if the connection breaks here."""
        number = len(self.seen)
        self.seen.append(name)
        if self.breaks_at is not None and (number == self.breaks_at or (self.lasts and number > self.breaks_at)):
            if "committed" in self.seen:
                meanwhile, self.meanwhile = self.meanwhile, lambda: None
                meanwhile()
            raise self.error(name)


def broken(name: str) -> OperationalError:
    return OperationalError(name, None, ConnectionError("server closed the connection unexpectedly"))


class _Breaking:
    def __init__(self, connection: Connection, engine: Breaking) -> None:
        self._connection, self._engine = connection, engine

    def execute(self, *arguments: Any) -> Any:
        self._engine.step("execute")
        return self._connection.execute(*arguments)

    def commit(self) -> None:
        self._engine.step("commit")
        event.listen(self._connection, "commit", self._engine.commits, once=True)
        self._connection.commit()
        self._engine.step("committed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Ticking:
    """A clock on which time passes by waiting alone."""

    def __init__(self, clock: Any) -> None:
        self.wall_ms, self.random, self._now = clock.wall_ms, clock.random, 0.0

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


Change = tuple[Callable[[], object], Callable[[], bool]]
"""What makes a change, and whether it is there."""


def append(store: Kit) -> Change:
    table = store.table(ids(1))

    def is_there() -> bool:
        seen = store.again(table)
        assert files_of(seen) <= files_in(seen.location())
        assert row_ids(seen) in ([1], [1, 2])
        return row_ids(seen) == [1, 2]

    return lambda: table.append(ids(2)), is_there


def appends_to_two_tables(store: Kit) -> Change:
    tables = store.table(ids(1)), store.table(ids(1))

    def both() -> None:
        with store.catalog.transaction() as tx:
            for table in tables:
                tx.table(table.name()).append(ids(2))

    def is_there() -> bool:
        again = [store.again(table) for table in tables]
        assert all(files_of(seen) <= files_in(seen.location()) for seen in again)
        first, second = map(row_ids, again)
        assert first == second
        return first == [1, 2]

    return both, is_there


def creation_of_a_table(store: Kit) -> Change:
    name = store.identifier()

    def is_there() -> bool:
        return store.catalog.table_exists(name) and row_ids(store.catalog.load_table(name)) == []

    return lambda: store.catalog.create_table(name, SCHEMA), is_there


def registration_of_a_table(store: Kit) -> Change:
    name, location = store.identifier(), store.table(ids(1)).metadata_location

    def is_there() -> bool:
        return store.catalog.table_exists(name) and row_ids(store.catalog.load_table(name)) == [1]

    return lambda: store.catalog.register_table(name, location), is_there


def registration_over_a_table(store: Kit) -> Change:
    there, location = store.table(), store.table(ids(1)).metadata_location

    def is_there() -> bool:
        return row_ids(store.again(there)) == [1]

    return lambda: store.catalog.register_table(there.name(), location, overwrite=True), is_there


def rename_of_a_table(store: Kit) -> Change:
    table, new = store.table(ids(1)), store.identifier()

    def is_there() -> bool:
        assert store.catalog.table_exists(table.name()) is not store.catalog.table_exists(new)
        return store.catalog.table_exists(new) and row_ids(store.catalog.load_table(new)) == [1]

    return lambda: store.catalog.rename_table(table.name(), new), is_there


def drop_of_a_table(store: Kit) -> Change:
    name = store.table(ids(1)).name()
    return lambda: store.catalog.drop_table(name), lambda: not store.catalog.table_exists(name)


def purge_of_a_table(store: Kit) -> Change:
    table = store.table(ids(1))

    def is_there() -> bool:
        if not store.catalog.table_exists(table.name()):
            return True
        assert files_of(store.again(table)) <= files_in(table.location())
        return False

    return lambda: store.catalog.purge_table(table.name()), is_there


def creation_of_a_view(store: Kit) -> Change:
    name = store.identifier()

    def is_there() -> bool:
        return store.catalog.view_exists(name) and queries(store.catalog.load_view(name)) == ["select 1"]

    return lambda: store.catalog.create_view(name, SCHEMA, version("select 1")), is_there


def replacement_of_a_view(store: Kit) -> Change:
    name = store.identifier()
    store.catalog.create_view(name, SCHEMA, version("select 1"))

    def is_there() -> bool:
        return queries(store.catalog.load_view(name)) == ["select 1", "select 2"]

    return lambda: store.catalog.commit_view(name, [], replacing("select 2")), is_there


def registration_of_a_view(store: Kit) -> Change:
    first, name = store.identifier(), store.identifier()
    store.catalog.create_view(first, SCHEMA, version("select 1"))
    location = store.catalog.view_location(first)

    def is_there() -> bool:
        return store.catalog.view_exists(name) and queries(store.catalog.load_view(name)) == ["select 1"]

    return lambda: store.catalog.register_view(name, location), is_there


def rename_of_a_view(store: Kit) -> Change:
    old, new = store.identifier(), store.identifier()
    store.catalog.create_view(old, SCHEMA, version("select 1"))

    def is_there() -> bool:
        assert store.catalog.view_exists(old) is not store.catalog.view_exists(new)
        return store.catalog.view_exists(new) and queries(store.catalog.load_view(new)) == ["select 1"]

    return lambda: store.catalog.rename_view(old, new), is_there


def drop_of_a_view(store: Kit) -> Change:
    name = store.identifier()
    store.catalog.create_view(name, SCHEMA, version("select 1"))
    return lambda: store.catalog.drop_view(name), lambda: not store.catalog.view_exists(name)


def creation_of_a_namespace(store: Kit) -> Change:
    name = store.identifier()[1]

    def is_there() -> bool:
        return store.catalog.namespace_exists(name) and dict(store.catalog.load_namespace_properties(name)) == {
            "a": "1"
        }

    return lambda: store.catalog.create_namespace(name, {"a": "1"}), is_there


def change_of_a_namespace(store: Kit) -> Change:
    name = store.identifier()[1]
    store.catalog.create_namespace(name, {"a": "1", "b": "2"})

    def is_there() -> bool:
        return dict(store.catalog.load_namespace_properties(name)) == {"b": "3"}

    return lambda: store.catalog.update_namespace_properties(name, {"a"}, {"b": "3"}), is_there


def drop_of_a_namespace(store: Kit) -> Change:
    name = store.identifier()[1]
    store.catalog.create_namespace(name)
    return lambda: store.catalog.drop_namespace(name), lambda: not store.catalog.namespace_exists(name)


CHANGES = [
    append,
    appends_to_two_tables,
    creation_of_a_table,
    registration_of_a_table,
    registration_over_a_table,
    rename_of_a_table,
    drop_of_a_table,
    purge_of_a_table,
    creation_of_a_view,
    replacement_of_a_view,
    registration_of_a_view,
    rename_of_a_view,
    drop_of_a_view,
    creation_of_a_namespace,
    change_of_a_namespace,
    drop_of_a_namespace,
]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """What catalogs use from now on, whose connections break."""
    connected: Any = CoordinatedSqlCatalog._connected

    def breaking(catalog: Any, work: Callable[[Connection], object]) -> object:
        made.real = catalog.engine
        return connected(SimpleNamespace(engine=made, settings=catalog.settings, coordinator=catalog.coordinator), work)

    made = Breaking()
    monkeypatch.setattr(CoordinatedSqlCatalog, "_connected", breaking)
    return made


@pytest.fixture
def store(engine: Breaking) -> Iterator[Kit]:
    """A catalog whose connections break."""
    with kit("memory") as made:
        made.catalog.coordinator.clock = Ticking(made.catalog.coordinator.clock)
        made.catalog.coordinator.limits = TryLimits(status_checks=3)
        yield made


def outcome(engine: Breaking, change: Callable[[], object], breaks_at: int | None) -> BaseException | None:
    """Return what a change says whose connections break at that step."""
    engine.seen.clear()
    engine.breaks_at = breaks_at
    try:
        change()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
        return error
    finally:
        engine.breaks_at = None
        engine.real.dispose()  # what is not committed is not seen from now on
    return None


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("make", CHANGES)
def test_no_broken_connection_misjudges_a_change(
    make: Callable[[Kit], Change], lasts: bool, engine: Breaking, store: Kit
) -> None:
    engine.lasts = lasts
    misjudges_none(make, engine, store)


@pytest.mark.parametrize("error", [TimeLimit, TimeoutError, KeyboardInterrupt])
@pytest.mark.parametrize("make", CHANGES)
def test_no_error_of_a_signal_handler_misjudges_a_change(
    make: Callable[[Kit], Change], error: type[BaseException], engine: Breaking, store: Kit
) -> None:
    engine.error = error
    misjudges_none(make, engine, store)


def misjudges_none(make: Callable[[Kit], Change], engine: Breaking, store: Kit) -> None:
    """Assert that the outcome is right wherever the change fails."""
    wrong = []
    change, is_there = make(store)
    assert (outcome(engine, change, None), is_there()) == (None, True)
    steps = len(engine.seen)
    for number in range(steps):
        change, is_there = make(store)
        said, seen = outcome(engine, change, number), [*engine.seen]
        try:
            there: bool | str = is_there()
        except FileNotFoundError as error:
            there = str(error)
        is_right = isinstance(said, CommitStateUnknown | KeyboardInterrupt) or there is (said is None)
        # That a connection breaks is expected; the error of a signal handler is not.
        if not is_right or (engine.error is broken and UNEXPECTED in str(said)):
            wrong.append(f"{number}: {seen}: {said!r}: {there}")
    assert steps >= 5
    assert not wrong, "\n".join(wrong)


_INSERT = text(
    "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type) "
    "VALUES (:catalog, :db, :name, :location, :kind)"
)
_MOVE = text("UPDATE iceberg_tables SET table_name = :to WHERE table_name = :name")


def rows(store: Kit) -> dict[str, tuple[str, str | None]]:
    """Return the pointer and the kind of each table and view, by its name."""
    with store.catalog.engine.connect() as connection:
        found = connection.execute(text("SELECT table_name, metadata_location, iceberg_type FROM iceberg_tables"))
        return {name: (location, kind) for name, location, kind in found}


def take_over(store: Kit, before: Set[str], theirs: Mapping[str, tuple[str, str | None]]) -> None:
    """As another client, move all but *before* to other names, and make *theirs*."""
    with store.catalog.engine.begin() as connection:
        for name in rows(store).keys() - before:
            connection.execute(_MOVE, {"name": name, "to": f"{name}_moved"})
        where = {"catalog": store.name, "db": store.namespace}
        for name, (location, kind) in theirs.items():
            connection.execute(_INSERT, {**where, "name": name, "location": location, "kind": kind})


@pytest.mark.parametrize("make", CHANGES)
def test_no_change_hits_what_another_client_made_while_its_reply_was_lost(
    make: Callable[[Kit], Change], engine: Breaking, store: Kit
) -> None:
    """The other client moves what is there to other names, and gives the old names to tables and views of its own."""
    outcome(engine, make(store)[0], None)
    for number in range(engine.seen.index("committed"), len(engine.seen)):
        before = rows(store)
        change, _ = make(store)
        theirs = {name: ("theirs", kind) for name, (_, kind) in rows(store).items() if name not in before}
        engine.meanwhile = partial(take_over, store, before.keys(), theirs)
        outcome(engine, change, number)
        assert theirs == {name: found for name, found in rows(store).items() if name in theirs}, engine.seen


@pytest.mark.parametrize("then", ["it lands later", "another client renames the table", "another client has the name"])
def test_a_creation_whose_reply_was_lost_keeps_the_metadata_file(memory: Kit, then: str) -> None:
    """As when PostgreSQL waits for a standby: the connection is cut, and what it committed is visible afterwards."""
    name, engine = memory.identifier(), memory.catalog.engine
    before = files_in(memory.folder)

    def lose(connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        if then == "it lands later":
            driver.rollback()
        else:
            driver.commit()
            memory.stock.rename_table(name, renamed)
        if then == "another client has the name":
            memory.stock.create_table(name, SCHEMA, location=f"{memory.warehouse}/theirs")
        raise OperationalError("COMMIT", None, ConnectionError("server closed the connection unexpectedly"))

    renamed = memory.identifier()
    event.listen(engine, "commit", lose, once=True)
    with pytest.raises(CommitStateUnknown, match="the table was created; its metadata file is kept"):
        memory.catalog.create_table(name, SCHEMA)
    if then == "it lands later":
        (left,) = (path for path in files_in(memory.folder) - before if path.endswith(".metadata.json"))
        with engine.begin() as connection:
            values = {"catalog": memory.name, "db": name[0], "name": renamed[1], "location": f"file://{left}"}
            connection.execute(_INSERT, {**values, "kind": None})
    assert row_ids(memory.catalog.load_table(renamed)) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_registration_whose_reply_was_lost_is_looked_for(memory: Kit, overwrite: bool) -> None:
    """It is there, and is answered so; while nobody can look, it is unknown."""
    location = memory.table(ids(1)).metadata_location

    def registered() -> Any:
        def lose(connection: Connection) -> None:
            connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
            raise OperationalError("COMMIT", None, ConnectionError("server closed the connection unexpectedly"))

        name = memory.table().name() if overwrite else memory.identifier()
        event.listen(memory.catalog.engine, "commit", lose, once=True)
        return memory.catalog.register_table(name, location, overwrite=overwrite)

    assert row_ids(registered()) == [1]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(memory.catalog, "_is_seen", lambda *_: False)
        with pytest.raises(CommitStateUnknown, match="it is not known whether the table was"):
            registered()


def test_a_table_that_is_renamed_before_its_creator_has_it_keeps_its_file(memory: Kit) -> None:
    name, renamed, engine = memory.identifier(), memory.identifier(), memory.catalog.engine

    def rename(connection: Connection) -> None:
        connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
        memory.stock.rename_table(name, renamed)

    event.listen(engine, "commit", rename, once=True)
    made = memory.catalog.create_table(name, SCHEMA)
    assert made.metadata_location == memory.catalog.load_table(renamed).metadata_location
    assert row_ids(memory.catalog.load_table(renamed)) == []


def test_a_row_without_a_pointer_is_dropped_as_pyiceberg_drops_it(memory: Kit) -> None:
    """It is listed, and is no table that can be read; a view without a pointer is no table at all."""
    table, view = [memory.table().name() for _ in range(2)]
    update = "UPDATE iceberg_tables SET metadata_location = NULL, iceberg_type = :type WHERE table_name = :name"
    with memory.catalog.engine.begin() as connection:
        connection.execute(text(update), {"type": "TABLE", "name": table[1]})
        connection.execute(text(update), {"type": "VIEW", "name": view[1]})
    assert table in memory.stock.list_tables(memory.namespace)
    memory.catalog.drop_table(table)
    assert table not in memory.stock.list_tables(memory.namespace)
    for name in (table, view):
        with pytest.raises(NoSuchTableError):
            memory.catalog.drop_table(name)
    with memory.catalog.engine.connect() as connection:
        is_there = text("SELECT 1 FROM iceberg_tables WHERE table_name = :name")
        assert connection.execute(is_there, {"name": view[1]}).all()
