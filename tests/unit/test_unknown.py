"""Whatever a metadata file says that nobody here knows is still there after every update, at every level."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter
from pyiceberg.table.update import TableUpdate

from commit_coord.iceberg import metadata as fast_metadata
from tests.unit.test_fast_metadata import raw

_NAME = "metadata/v.metadata.json"
_OF_CLIENTS = {"properties", "summary"}
"""Mappings whose keys anybody chooses: they have no unknown ones."""


def document(version: int) -> dict[str, Any]:
    """Return a metadata file that has an object at every level."""
    made = raw(4, version)
    inner = {"type": "struct", "fields": [{"id": 6, "name": "x", "required": False, "type": "int"}]}
    mapping = {"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": inner, "value-required": False}
    nested = {"type": "list", "element-id": 5, "element": mapping, "element-required": False}
    columns = [*made["schemas"][0]["fields"], {"id": 4, "name": "n", "required": False, "type": nested}]
    made["schemas"].append({"type": "struct", "schema-id": 1, "fields": columns})
    field = {"source-id": 1, "field-id": 1000, "name": "a", "transform": "identity"}
    made["partition-specs"].append({"spec-id": 1, "fields": [field]})
    order = {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    made["sort-orders"].append({"order-id": 1, "fields": [order]})
    file = {"snapshot-id": 4, "statistics-path": "s", "file-size-in-bytes": 1}
    blob = {"type": "apache-datasketches-theta-v1", "snapshot-id": 4, "sequence-number": 4, "fields": [1]}
    made["statistics"] = [{**file, "file-footer-size-in-bytes": 1, "blob-metadata": [blob]}]
    made["partition-statistics"] = [file]
    made["metadata-log"] = [{"metadata-file": "m", "timestamp-ms": 1}]
    made["refs"]["t"] = {"snapshot-id": 3, "type": "tag"}
    made |= {"last-column-id": 8, "last-partition-id": 1000}
    if version == 3:
        made["next-row-id"] = 0
    return made


_SNAPSHOT = {
    "snapshot-id": 99,
    "parent-snapshot-id": 4,
    "sequence-number": 5,
    "timestamp-ms": 1_800_000_000_000,
    "manifest-list": "l",
    "summary": {"operation": "append"},
    "schema-id": 0,
    "first-row-id": 0,
    "added-rows": 1,
}
_FILE = {"snapshot-id": 3, "statistics-path": "p", "file-size-in-bytes": 1}
_TO_99 = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 99}
_WIDER = {"type": "struct", "schema-id": 2, "fields": [{"id": 9, "name": "z", "required": False, "type": "int"}]}
_UPDATES: tuple[list[dict[str, Any]], ...] = (
    [{"action": "add-snapshot", "snapshot": _SNAPSHOT}, _TO_99],
    [{**_TO_99, "snapshot-id": 2}],
    [{**_TO_99, "ref-name": "fresh", "type": "tag", "snapshot-id": 4}],
    [{"action": "remove-snapshot-ref", "ref-name": "t"}],
    [{"action": "remove-snapshots", "snapshot-ids": [1]}],
    [{"action": "remove-snapshots", "snapshot-ids": [2, 3]}],
    [{"action": "set-properties", "updates": {"k": "v"}}],
    [{"action": "remove-properties", "removals": ["p"]}],
    [{"action": "set-location", "location": "file:///other"}],
    [{"action": "add-schema", "schema": _WIDER}],
    [{"action": "set-current-schema", "schema-id": 1}],
    [{"action": "remove-schemas", "schema-ids": [1]}],
    [{"action": "add-spec", "spec": {"spec-id": 2, "fields": []}}],
    [{"action": "set-default-spec", "spec-id": 1}],
    [{"action": "remove-partition-specs", "spec-ids": [1]}],
    [{"action": "add-sort-order", "sort-order": {"order-id": 2, "fields": []}}],
    [{"action": "set-default-sort-order", "sort-order-id": 1}],
    [{"action": "set-statistics", "statistics": {**_FILE, "file-footer-size-in-bytes": 1, "blob-metadata": []}}],
    [{"action": "remove-statistics", "snapshot-id": 4}],
    [{"action": "set-partition-statistics", "partition-statistics": _FILE}],
    [{"action": "remove-partition-statistics", "snapshot-id": 4}],
    [{"action": "upgrade-format-version", "format-version": 2}],
    [{"action": "upgrade-format-version", "format-version": 3}],
)


def strewn(chance: random.Random, found: Any, name: str = "") -> Any:
    """Return *found* with an unknown key in some of its objects."""
    if isinstance(found, list):
        return [strewn(chance, each) for each in found]
    if not isinstance(found, dict) or name in _OF_CLIENTS:
        return found
    made = {key: strewn(chance, value, key) for key, value in found.items()}
    if name != "refs" and chance.random() < 0.5:
        made["a-key-of-tomorrow"] = {"kept": chance.randrange(100)}
    return made


def unknown(found: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where *found* has an unknown key, and its value."""
    if isinstance(found, list):
        for position, each in enumerate(found):
            ids = [each.get(key) for key in _IDS] if isinstance(each, dict) else []
            yield from unknown(each, (*place, tuple(ids) if any(i is not None for i in ids) else position))
    elif isinstance(found, dict):
        for key, value in found.items():
            if key == "a-key-of-tomorrow":
                yield (*place, value["kept"])
            else:
                yield from unknown(value, (*place, key))


_IDS = ("schema-id", "spec-id", "order-id", "snapshot-id", "field-id", "id", "metadata-file", "statistics-path")


def objects(found: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where *found* has an object."""
    if isinstance(found, list):
        for position, each in enumerate(found):
            ids = [each.get(key) for key in _IDS] if isinstance(each, dict) else []
            yield from objects(each, (*place, tuple(ids) if any(i is not None for i in ids) else position))
    elif isinstance(found, dict):
        yield place
        for key, value in found.items():
            yield from objects(value, (*place, key))


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("number", range(len(_UPDATES)))
def test_every_update_keeps_what_nobody_knows_of_what_it_leaves(version: int, number: int) -> None:
    chance = random.Random(number)
    given = strewn(chance, document(version))
    base = fast_metadata.parse(json.dumps(given).encode(), _NAME)
    for snapshot in base.snapshots:
        assert base.snapshot_by_id(snapshot.snapshot_id) == snapshot  # parsed, as by a reader
    if version > 1 and _UPDATES[number][0].get("format-version", 3) < version:
        return
    updates = [TypeAdapter(TableUpdate).validate_python(update) for update in _UPDATES[number]]
    made = json.loads(fast_metadata.dump(fast_metadata.apply_updates(base, updates), _NAME))
    left = set(objects(made))
    assert {at for at in unknown(given) if at[:-1] in left} == set(unknown(made))


def test_a_schema_that_gets_the_id_of_a_removed_one_has_its_own_keys_only() -> None:
    given = document(2)
    given["schemas"][1]["a-key-of-tomorrow"] = {"kept": 1}
    base = fast_metadata.parse(json.dumps(given).encode(), _NAME)
    updates = [
        {"action": "remove-schemas", "schema-ids": [1]},
        {"action": "add-schema", "schema": {**_WIDER, "schema-id": 1}},
    ]
    changed = fast_metadata.apply_updates(base, [TypeAdapter(TableUpdate).validate_python(each) for each in updates])
    assert set() == set(unknown(json.loads(fast_metadata.dump(changed, _NAME))["schemas"]))
