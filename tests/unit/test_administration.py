"""Renames and creations in a metastore that loses the reply, and carries the change out at any time after that."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

from commit_coord import CommitStateUnknown
from commit_coord.catalog.metastore.administration import Administration
from commit_coord.catalog.metastore.hive_table import (
    ICEBERG_VIEW,
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    TABLE_TYPE,
    VIRTUAL_VIEW,
)
from commit_coord.catalog.metastore.pointers import MODIFIED, Pointers
from commit_coord.catalog.metastore.views import ViewPointers
from commit_coord.errors import UpdatesDoNotFit
from commit_coord.hms.connection import (
    AlreadyExists,
    InvalidObject,
    InvalidOperation,
    LostReply,
    MetaError,
    NoSuchObject,
    NotSent,
)
from commit_coord.hms.probe import CompareAndSet

OLD, NEW = ("db", "t"), ("db", "u")
KINDS = {"table": ("EXTERNAL_TABLE", "ICEBERG", Pointers), "view": (VIRTUAL_VIEW, ICEBERG_VIEW, ViewPointers)}


class Metastore:
    """Tables by their names. Loses the reply to the first alter, and carries it out *delay* calls later."""

    def __init__(self, delay: int) -> None:
        self.tables: dict[tuple[str, str], Any] = {}
        self._delay, self._late = delay, cast("tuple[Any, Any] | None", None)
        self.altered = 0

    def get_table(self, database: str, name: str) -> Any:
        self._tick()
        if (found := self.tables.get((database, name))) is None:
            raise NoSuchObject(message=name)
        return copy.deepcopy(found)

    def get_all_databases(self) -> list[str]:
        self._tick()
        return ["db"]

    def alter_table(self, database: str, name: str, new: Any, *, expected: Any, server: str) -> None:
        self._tick()
        self.altered += 1
        if self.altered == 1:
            self._late = (database, name), copy.deepcopy(new)
            raise LostReply("no answer")
        self._execute((database, name), new)

    def _tick(self) -> None:
        self._delay -= self._late is not None
        if self._late is not None and self._delay < 0:
            late, self._late = self._late, None
            self._execute(*late)

    def _execute(self, old: Any, new: Any) -> None:
        name = new.dbName, new.tableName
        if old not in self.tables or name in self.tables:
            raise InvalidOperation(message=f"{old} is not there, or {name} is")
        self.tables[name] = new
        del self.tables[old]


def named(name: tuple[str, str], kind: str, location: str) -> Any:
    """Return a table or a view of the metastore."""
    table_type, iceberg, _ = KINDS[kind]
    parameters = {TABLE_TYPE: iceberg, METADATA_LOCATION: location, "EXTERNAL": "TRUE"}
    return SimpleNamespace(dbName=name[0], tableName=name[1], tableType=table_type, parameters=parameters)


def administration(metastore: Any, kind: str, common_lock: Any = None) -> Administration:
    """Return what changes the tables, or the views, of *metastore*; it ignores conditions if there is a lock."""
    clock: Any = SimpleNamespace(sleep=lambda seconds: None, random=lambda: 0.5)
    compares = CompareAndSet.HONOURED if common_lock is None else CompareAndSet.IGNORED
    servers: Any = SimpleNamespace(capabilities=lambda: SimpleNamespace(server="s", compare_and_set=compares))
    properties: Any = SimpleNamespace(refuse_others=lambda table, parameters: None)
    pointers = KINDS[kind][2](metastore, clock)
    return Administration(metastore, pointers, servers, properties, common_lock, clock)


def rename(metastore: Metastore, kind: str) -> None:
    """Rename OLD to NEW."""
    administration(metastore, kind).rename(OLD, NEW)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("delay", range(8))
def test_a_rename_that_comes_late_is_a_rename(kind: str, delay: int) -> None:
    metastore = Metastore(delay)
    metastore.tables[OLD] = named(OLD, kind, "mine")
    rename(metastore, kind)
    assert {NEW: "mine"} == {name: table.parameters[METADATA_LOCATION] for name, table in metastore.tables.items()}


@pytest.mark.parametrize("external", [{}, {"EXTERNAL": "FALSE"}, {"EXTERNAL": "TRUE"}, {"EXTERNAL": "true"}])
def test_a_managed_table_keeps_its_name_because_the_metastore_would_move_its_folder(external: dict[str, str]) -> None:
    metastore = Metastore(0)
    metastore.altered = 1  # no reply is lost
    metastore.tables[OLD] = named(OLD, "table", "mine")
    del metastore.tables[OLD].parameters["EXTERNAL"]
    metastore.tables[OLD].parameters.update(external)
    if external.get("EXTERNAL", "").lower() == "true":
        rename(metastore, "table")
    else:
        with pytest.raises(UpdatesDoNotFit, match="managed table"):
            rename(metastore, "table")
        assert list(metastore.tables) == [OLD]


class LockOnlyWriter(Metastore):
    """Another client commits to OLD before the call of number *moment*, or as soon as it gets the lock."""

    def __init__(self, moment: int) -> None:
        super().__init__(0)
        self.altered = 1  # no reply is lost
        self._moment, self._is_held = moment, False

    @contextmanager
    def of(self, table: tuple[str, str]) -> Iterator[None]:
        assert (table, self._is_held) == (OLD, False)
        self._is_held = True
        yield
        self._is_held = False

    def _tick(self) -> None:
        self._moment -= 1
        if self._moment < 0 and not self._is_held and OLD in self.tables:
            self.tables[OLD].parameters[METADATA_LOCATION] = "theirs"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moment", range(6))
def test_a_rename_without_a_condition_takes_no_commit_back(kind: str, moment: int) -> None:
    metastore = LockOnlyWriter(moment)
    metastore.tables[OLD] = named(OLD, kind, "mine")
    seen: list[str] = []
    execute = metastore._execute

    def look(old: Any, new: Any) -> None:
        seen.append(metastore.tables[old].parameters[METADATA_LOCATION])
        execute(old, new)

    metastore._execute = look  # type: ignore[method-assign]
    administration(metastore, kind, metastore).rename(OLD, NEW)
    assert seen == [metastore.tables[NEW].parameters[METADATA_LOCATION]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gone", [OLD, NEW])
def test_a_rename_whose_reply_was_lost_is_unknown_if_others_touched_the_table(kind: str, gone: tuple[str, str]) -> None:
    """Others drop the table under its old name before the alter comes, or it is carried out and moved on."""
    metastore = Metastore(99)
    metastore.tables[OLD] = named(OLD, kind, "mine")
    before = metastore.alter_table

    def alter(*arguments: Any, **more: Any) -> None:
        with pytest.raises(LostReply):
            before(*arguments, **more)
        del metastore.tables[OLD]
        if gone == NEW:
            metastore.tables[NEW] = named(NEW, kind, "moved on")
        raise LostReply("no answer")

    metastore.alter_table = alter  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        rename(metastore, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rename_is_sent_again_for_the_table_that_others_have_changed_meanwhile(kind: str) -> None:
    metastore = Metastore(0)
    metastore.tables[OLD] = named(OLD, kind, "mine")
    metastore.altered, before = 1, metastore.alter_table

    def alter(*arguments: Any, **more: Any) -> None:
        metastore.alter_table = before  # type: ignore[method-assign]
        metastore.tables[OLD].parameters |= {METADATA_LOCATION: "changed", PREVIOUS_METADATA_LOCATION: "mine"}
        raise MetaError(message=MODIFIED)

    metastore.alter_table = alter  # type: ignore[method-assign]
    rename(metastore, kind)
    assert {NEW: "changed"} == {name: table.parameters[METADATA_LOCATION] for name, table in metastore.tables.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rename_to_a_name_that_others_take_while_its_reply_is_lost_is_unknown(kind: str) -> None:
    """It may still be carried out, if they drop their table before it arrives."""
    metastore = Metastore(99)
    metastore.tables[OLD] = named(OLD, kind, "mine")

    def lost(*_: Any, **__: Any) -> None:
        metastore.tables[NEW] = named(NEW, kind, "theirs")
        raise LostReply("no answer")

    metastore.alter_table = lost  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown):
        rename(metastore, kind)


def test_a_table_that_is_not_there_is_not_renamed() -> None:
    with pytest.raises(NoSuchTableError):
        rename(Metastore(0), "table")


REFUSALS: list[Exception] = [
    InvalidOperation(message="refused"),
    InvalidObject(message="refused"),
    MetaError(message="refused"),
    NotSent("refused"),
    RuntimeError("a bug of the client"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("databases", [["db"], []], ids=["database there", "database gone"])
def test_a_creation_in_doubt_stays_in_doubt_whatever_its_repeat_is_answered(
    refusal: Exception, databases: list[str]
) -> None:
    """The first call is still under way, and its table may come with the metadata file at any time."""
    metastore, answers = Metastore(0), itertools.chain([LostReply("no answer")], itertools.repeat(refusal))
    metastore.create_table = lambda new: _raise(next(answers))  # type: ignore[attr-defined]
    metastore.get_all_databases = lambda: databases  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown, match="was created; its metadata file is kept"):
        administration(metastore, "table").create(named(NEW, "table", "mine"), "mine")


@pytest.mark.parametrize("reply", [LostReply("no answer"), AlreadyExists(message="u")], ids=["lost", "refused"])
def test_a_name_that_another_table_has_proves_nothing_of_a_creation_whose_reply_was_lost(reply: Exception) -> None:
    """It landed, the table was renamed, and another one has its name. Only a refusal of the first call is proof."""
    metastore = Metastore(0)

    def create(new: Any) -> None:
        metastore.tables[NEW] = named(NEW, "table", "theirs")
        raise reply

    metastore.create_table = create  # type: ignore[attr-defined]
    expected = CommitStateUnknown if isinstance(reply, LostReply) else TableAlreadyExistsError
    with pytest.raises(expected):
        administration(metastore, "table").create(named(NEW, "table", "mine"), "mine")


def _raise(error: Exception) -> None:
    raise error
