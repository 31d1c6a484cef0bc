"""Names that no table or namespace can have are refused in PyIceberg's words, before a lock is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from tests.catalog.kit import EVERY_LOCK_MANAGER, SCHEMA, Kit, kit_of


@pytest.fixture(scope="module", params=EVERY_LOCK_MANAGER)
def coord(request: pytest.FixtureRequest) -> Iterator[Kit]:
    with kit_of(request) as made:
        yield made


NO_NAMESPACES = ["", (), ("",), ("", ""), " ", ("a", ""), "a.", ".a", "a..b", ("..",), ("a.",), ("a. .b",)]


@pytest.mark.parametrize("namespace", NO_NAMESPACES, ids=repr)
@pytest.mark.parametrize("call", ["create_namespace", "create_namespace_if_not_exists", "drop_namespace"])
def test_a_namespace_with_an_empty_level_is_refused(coord: Kit, call: str, namespace: Any) -> None:
    with pytest.raises(NoSuchNamespaceError, match="(?i)namespace"):
        getattr(coord.catalog, call)(namespace)


@pytest.mark.parametrize("call", ["load_table", "drop_table", "purge_table"])
def test_there_is_no_table_without_a_name(coord: Kit, call: str) -> None:
    for identifier in ((coord.namespace, ""), f"{coord.namespace}."):
        with pytest.raises(NoSuchTableError, match="a table needs a name"):
            getattr(coord.catalog, call)(identifier)
        assert not coord.catalog.table_exists(identifier)


def test_no_table_is_made_without_a_name(coord: Kit) -> None:
    nameless, table = (coord.namespace, ""), coord.table()
    calls: list[Callable[[], object]] = [
        lambda: coord.catalog.create_table(nameless, SCHEMA),
        lambda: coord.catalog.create_table_transaction(nameless, SCHEMA).commit_transaction(),
        lambda: coord.catalog.register_table(nameless, table.metadata_location),
        lambda: coord.catalog.rename_table(table.name(), nameless),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="a table needs a name"):
            call()
    assert coord.catalog.table_exists(table.name())


def test_a_table_below_a_level_of_dots_is_not_there(coord: Kit) -> None:
    identifier = ("..", "t")
    for create in (coord.catalog.create_table, coord.catalog.create_table_transaction):
        with pytest.raises(NoSuchNamespaceError):
            create(identifier, SCHEMA)
    for call in ("load_table", "drop_table", "purge_table"):
        with pytest.raises(NoSuchTableError):
            getattr(coord.catalog, call)(identifier)
