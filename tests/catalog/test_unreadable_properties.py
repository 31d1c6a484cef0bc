"""Properties of a table that are no number, or neither true nor false: no commit that landed fails by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.types import StringType

from commit_coord.errors import CommitCoordError, CommitStateUnknown, ConfigError, UpdatesDoNotFit
from commit_coord.iceberg.table_properties import FLAGS, NUMBERS
from commit_coord.sql.session import Session
from tests.catalog.kit import SCHEMA, Kit, ids, kit, local, row_ids

UNREADABLE = [*((key, "128MB") for key in NUMBERS), *((key, "yess") for key in FLAGS)]


@pytest.fixture(scope="module")
def made() -> Iterator[Kit]:
    with kit("lease") as made:
        yield made


def with_property(made: Kit, key: str, value: str) -> Any:
    """Return a table that another program gave this property; its commits delete old metadata files."""
    table = made.table(ids(1), ids(2))
    path = Path(local(table.metadata_location))
    document = json.loads(path.read_text())
    cleaning = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    document["properties"] |= {**cleaning, key: value}
    given = path.with_name("00009-given.metadata.json")
    given.write_text(json.dumps(document))
    made.catalog.drop_table(table.name())
    return made.catalog.register_table(table.name(), f"file://{given}")


def _statement(text: str) -> Callable[[Kit, Any], Any]:
    return lambda made, table: Session(made.catalog).run(text.format(t=".".join(table.name())))


def _changed(change: Callable[[Any], Any]) -> Callable[[Kit, Any], Any]:
    def call(made: Kit, table: Any) -> None:
        with table.transaction() as tx:
            change(tx)

    return call


def _evolved(made: Kit, table: Any) -> None:
    with table.update_schema() as update:
        update.add_column("x", StringType())


def _branched(made: Kit, table: Any) -> None:
    with table.manage_snapshots() as snapshots:
        snapshots.create_branch(table.current_snapshot().snapshot_id, "b")


CALLS: dict[str, Callable[[Kit, Any], Any]] = {
    "append": lambda made, table: table.append(ids(3)),
    "overwrite": lambda made, table: table.overwrite(ids(3)),
    "delete rows": lambda made, table: table.delete("id = 1"),
    "upsert": lambda made, table: table.upsert(ids(1, 3), join_cols=["id"]),
    "compact": lambda made, table: table.compact(),
    "set a property": _changed(lambda tx: tx.set_properties({"a": "b"})),
    "add a column": _evolved,
    "branch": _branched,
    "expire": lambda made, table: table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit(),
    "EXPIRE": _statement("ALTER TABLE {t} EXECUTE EXPIRE_SNAPSHOTS"),
    "INSERT": _statement("INSERT INTO {t} VALUES (3, 'x')"),
    "UPDATE": _statement("UPDATE {t} SET s = 'x' WHERE id = 1"),
    "DELETE": _statement("DELETE FROM {t} WHERE id = 1"),
    "orphans": lambda made, table: made.catalog.find_orphans(table.name(), dropped=[str(table.metadata.table_uuid)]),
    "repair": lambda made, table: made.catalog.find_lost(table.name()),
    "rename": lambda made, table: made.catalog.rename_table(table.name(), made.identifier()),
    "drop": lambda made, table: made.catalog.drop_table(table.name()),
    "purge": lambda made, table: made.catalog.purge_table(table.name()),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("key, value", UNREADABLE)
def test_a_call_on_an_unreadable_property_succeeds_or_names_it_and_does_nothing(
    made: Kit, key: str, value: str, call: str
) -> None:
    table = with_property(made, key, value)
    before = table.metadata_location
    refused = _refusal(made, table, call)
    if refused is not None:
        assert key in refused
        assert value in refused
        assert before == made.again(table).metadata_location
        assert [1, 2] == row_ids(made.again(table))
        with made.again(table).transaction() as tx:
            tx.remove_properties(key)
        assert [1, 2] == row_ids(made.again(table))


def _refusal(made: Kit, table: Any, call: str) -> str | None:
    try:
        CALLS[call](made, table)
    except CommitStateUnknown:
        raise
    except (CommitCoordError, ValidationException) as error:
        return str(error)
    return None


def _created(made: Kit, properties: dict[str, str]) -> None:
    made.catalog.create_table(made.identifier(), SCHEMA, properties=properties)


def _created_in_a_transaction(made: Kit, properties: dict[str, str]) -> None:
    with made.catalog.create_table_transaction(made.identifier(), SCHEMA) as tx:
        tx.set_properties(properties)


def _set(made: Kit, properties: dict[str, str]) -> None:
    with made.table().transaction() as tx:
        tx.set_properties(properties)


@pytest.mark.parametrize("way", [_created, _created_in_a_transaction, _set], ids=lambda way: way.__name__.strip("_"))
@pytest.mark.parametrize("key, value", UNREADABLE)
def test_no_unreadable_property_is_set(
    made: Kit, key: str, value: str, way: Callable[[Kit, dict[str, str]], Any]
) -> None:
    with pytest.raises((ConfigError, UpdatesDoNotFit), match="propert.* of the table|table property") as refused:
        way(made, {key: value})
    assert key in str(refused.value)
    assert value in str(refused.value)


def test_an_unreadable_property_does_not_keep_others_from_being_set(made: Kit) -> None:
    table = with_property(made, "gc.enabled", "yess")
    with table.transaction() as tx:
        tx.set_properties({"a": "b", "gc.enabled": "yess"})
    assert "b" == made.again(table).properties["a"]


@pytest.mark.parametrize("version", ["two", "2.5", ""])
def test_a_format_version_that_is_no_number_is_refused(made: Kit, version: str) -> None:
    for create in (made.catalog.create_table, made.catalog.create_table_transaction):
        with pytest.raises(ConfigError, match="format-version.*a whole number"):
            create("db.new", SCHEMA, properties={"format-version": version})
