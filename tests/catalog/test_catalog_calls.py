"""Random programs of catalog calls do on our catalog what they do on PyIceberg's: the same answers, the same errors.

Where ours refuses what PyIceberg's takes, ``DEVIATIONS`` says so with its reason, and PyIceberg's is not called.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Identifier
from sqlalchemy.exc import SQLAlchemyError

import commit_coord
from tests.catalog.kit import SCHEMA, ids, row_ids

USUAL = ["a", "b", "A", "ä", "数", "a b", "n" * 200]
ODD = [" a ", "", " ", "a.b", "\n", "a\tb", "..", "a/b", "%", "_", "?", "#", "'", '"', "\\"]
LEVELS = st.sampled_from(USUAL + ODD)
FEW = st.sampled_from(["a", "b", "A"])
NAMESPACES = st.one_of(
    st.tuples(FEW),
    FEW,
    st.lists(LEVELS, max_size=2).map(tuple),
    st.lists(LEVELS, min_size=1, max_size=2).map(".".join),
)
TABLES = st.one_of(st.tuples(FEW, FEW), st.tuples(FEW, LEVELS), st.lists(LEVELS, max_size=3).map(tuple), LEVELS)
PROPERTIES = st.dictionaries(st.sampled_from(["k", "l", ""]), st.sampled_from(["", "1", "ä"]), max_size=2)

Name = str | Identifier
Deviation = tuple[str, Callable[[str, tuple[Any, ...]], bool], type[Exception]]


def _table_names(call: str, arguments: tuple[Any, ...]) -> list[Identifier]:
    """Return the identifiers of tables among *arguments*, as far as they have a namespace."""
    if "table" not in call or call == "list_tables":
        return []
    names = arguments[:2] if call == "rename_table" else arguments[:1]
    return [Catalog.identifier_to_tuple(name) for name in names]


def _is_nameless(call: str, arguments: tuple[Any, ...]) -> bool:
    if call == "table_exists":
        return False
    names = _table_names(call, arguments)
    return any(len(name) > 1 and not name[-1] and all(level.strip() for level in name[:-1]) for name in names)


def _has_no_folder(call: str, arguments: tuple[Any, ...]) -> bool:
    if call != "create_table":
        return False
    *namespace, name = Catalog.identifier_to_tuple(arguments[0]) or ("",)
    if not namespace or not all(level.strip() for level in namespace):
        return False
    parts = {*".".join(level.strip() for level in namespace).split("/"), *name.split("/")}
    return bool(parts & {".", ".."}) or any(sign in part for part in parts for sign in "?#")


def _is_itself(call: str, arguments: tuple[Any, ...]) -> bool:
    names = _table_names(call, arguments)
    return call == "rename_table" and len(set(map(_stored, names))) == 1 and len(names[0]) > 1


def _stored(name: Identifier) -> tuple[str, str]:
    return ".".join(level.strip() for level in name[:-1]), name[-1] if name else ""


def _has_dots_at_an_edge(call: str, arguments: tuple[Any, ...]) -> bool:
    if call != "create_namespace":
        return False
    levels = [level.strip() for level in Catalog.identifier_to_tuple(arguments[0])]
    return all(levels) and not all(level.strip() for level in ".".join(levels).split("."))


DEVIATIONS: list[Deviation] = [
    ("PyIceberg lists such a namespace under a name that it does not find", _has_dots_at_an_edge, NoSuchNamespaceError),
    ("a table without a name has no lock", _is_nameless, ValueError),
    ("the files of such a location would not be found again, or lie outside the warehouse", _has_no_folder, Exception),
    ("to rename a table to its own name is refused, whether there is one or not", _is_itself, Exception),
]
"""Why; whether a call is one; what ours raises."""


class CatalogCalls(RuleBasedStateMachine):
    """The same calls on our catalog and on PyIceberg's."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="coord-calls-")
        self.ours: Any = commit_coord.load_catalog(
            "c", uri=f"coord+sqlite:///{self.folder}/ours.db", warehouse=f"file://{self.folder}/ours"
        )
        self.stock: Any = SqlCatalog(
            "c", uri=f"sqlite:///{self.folder}/stock.db", warehouse=f"file://{self.folder}/stock"
        )
        self.dropped: list[tuple[str, str]] = []
        for catalog in (self.ours, self.stock):
            catalog.create_namespace("a")
            catalog.create_namespace("b")

    def teardown(self) -> None:
        """Nothing is locked, and both have the same tables."""
        try:
            assert [] == list(self.ours.locks.locks())
            assert everything(self.ours) == everything(self.stock)
        finally:
            self.ours.close()
            self.stock.close()
            shutil.rmtree(self.folder)

    def both(self, call: str, *arguments: Any, shown: Callable[[Any], Any] = lambda found: found) -> None:
        """Make a call on both and compare what comes of it."""
        for reason, is_one, error in DEVIATIONS:
            if is_one(call, arguments):
                with pytest.raises(error) as raised:
                    getattr(self.ours, call)(*arguments)
                assert str(raised.value), reason
                return
        mine, theirs = (outcome(catalog, call, arguments, shown) for catalog in (self.ours, self.stock))
        if isinstance(theirs, Exception):
            assert_no_worse(mine, theirs, (call, arguments))
        else:
            assert mine == theirs, (call, arguments)

    @rule(namespace=NAMESPACES, properties=PROPERTIES)
    def create_namespace(self, namespace: Name, properties: dict[str, str]) -> None:
        self.both("create_namespace", namespace, properties)

    @rule(namespace=NAMESPACES)
    def drop_namespace(self, namespace: Name) -> None:
        self.both("drop_namespace", namespace)

    @rule(namespace=NAMESPACES)
    def look_at_a_namespace(self, namespace: Name) -> None:
        self.both("namespace_exists", namespace)
        self.both("load_namespace_properties", namespace, shown=_without_mark)
        self.both("list_tables", namespace, shown=sorted)
        self.both("list_namespaces", namespace, shown=sorted)

    @rule(namespace=NAMESPACES, removals=st.sets(st.sampled_from("kl")), updates=PROPERTIES)
    def change_properties(self, namespace: Name, removals: set[str], updates: dict[str, str]) -> None:
        there = outcome(self.stock, "load_namespace_properties", (namespace,), set)
        if not isinstance(there, Exception) and there and not updates and there <= removals:
            return  # PyIceberg loses a namespace with its last property
        self.both("update_namespace_properties", namespace, removals, updates, shown=_summary)

    @rule(table=TABLES, properties=st.dictionaries(st.sampled_from("kl"), st.sampled_from(["", "1"]), max_size=1))
    def create_table(self, table: Name, properties: dict[str, str]) -> None:
        self.both("create_table", table, SCHEMA, None, *_NO_SPEC, properties, shown=_shown)

    @rule(table=TABLES)
    def look_at_a_table(self, table: Name) -> None:
        self.both("table_exists", table)
        self.both("load_table", table, shown=_shown)

    @rule(table=st.tuples(FEW, FEW))
    def append(self, table: Identifier) -> None:
        for catalog in (self.ours, self.stock):
            if catalog.table_exists(table):
                catalog.load_table(table).append(ids(1))

    @rule(table=TABLES)
    def drop_table(self, table: Name) -> None:
        places = [_location(catalog, table) for catalog in (self.ours, self.stock)]
        self.both("drop_table", table)
        if all(places):
            self.dropped.append(cast(tuple[str, str], tuple(places)))

    @rule(table=TABLES)
    def purge_table(self, table: Name) -> None:
        there = _location(self.ours, table) is not None
        self.both("purge_table", table)
        if there:
            self.dropped.clear()  # Tables of one name have one folder: what was dropped may have lost its files.

    @rule(table=TABLES, to=TABLES)
    def rename_table(self, table: Name, to: Name) -> None:
        self.both("rename_table", table, to, shown=_shown)

    @rule(table=TABLES, number=st.integers(0, 10))
    def register_table(self, table: Name, number: int) -> None:
        if not self.dropped or any(is_one("register_table", (table,)) for _, is_one, _ in DEVIATIONS):
            return
        places = self.dropped[number % len(self.dropped)]
        mine, theirs = (
            outcome(catalog, "register_table", (table, place), _shown)
            for catalog, place in zip((self.ours, self.stock), places, strict=True)
        )
        if isinstance(theirs, Exception):
            assert_no_worse(mine, theirs, ("register_table", table))
        else:
            assert mine == theirs


_NO_SPEC = (UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER)


def outcome(catalog: Any, call: str, arguments: tuple[Any, ...], shown: Callable[[Any], Any]) -> Any:
    """Return what a call returned or raised."""
    try:
        return shown(getattr(catalog, call)(*arguments))
    except Exception as error:  # noqa: BLE001 - compared with the other catalog's
        return error


def assert_no_worse(mine: Any, theirs: Exception, what: Any) -> None:
    """Assert that ours refused with PyIceberg's error, or with words where that let a raw one through."""
    raw = isinstance(theirs, LookupError | TypeError | AttributeError | SQLAlchemyError | OSError)
    accepted = (type(theirs), ValueError, NoSuchNamespaceError, NoSuchTableError) if raw else type(theirs)
    assert isinstance(mine, accepted), (what, mine, theirs)
    assert str(mine) or not str(theirs)


def everything(catalog: Any) -> dict[Identifier, tuple[Any, ...]]:
    """Return every table that is listed, with its rows."""
    with catalog.engine.connect() as connection:
        stored = connection.exec_driver_sql("SELECT DISTINCT table_namespace FROM iceberg_tables").scalars()
        namespaces = [tuple(each.split(".")) for each in stored]
    return {name: _shown(catalog.load_table(name)) for space in namespaces for name in catalog.list_tables(space)}


def _shown(table: Any) -> tuple[Any, ...]:
    return table.name(), table.schema().as_struct(), dict(table.properties), row_ids(table)


def _without_mark(properties: dict[str, str]) -> dict[str, str]:
    """Return *properties* without the one that PyIceberg shows of a namespace that has none."""
    return {key: value for key, value in properties.items() if key != "exists"}


def _summary(summary: Any) -> list[list[str]]:
    return [sorted(each) for each in (summary.removed, summary.updated, summary.missing)]


def _location(catalog: Any, table: Name) -> str | None:
    """Return where the metadata of a table is, None when there is no such table."""
    try:
        return str(catalog.load_table(table).metadata_location)
    except Exception:  # noqa: BLE001 - that it can't be loaded is what is asked
        return None


@pytest.mark.timeout(600)
def test_programs_of_catalog_calls_do_what_they_do_on_pyiceberg_s_catalog() -> None:
    run_state_machine_as_test(
        CatalogCalls,
        settings=settings(
            max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
