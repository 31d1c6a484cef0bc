"""What a metadata file says that PyIceberg's models do not know, at every level but the history.

A model is made of the keys that it knows, and the others are gone when it is dumped. A key of a newer version of the
format, or of another engine, belongs to its object as long as the object is in the table: without its ``key-id``, for
example, an encrypted file can be read by nobody. The history needs none of this: its objects stay JSON.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.statistics import BlobMetadata, PartitionStatisticsFile, StatisticsFile
from pyiceberg.types import ListType, MapType, NestedField, StructType

Json = dict[str, Any]

ObjectKey = tuple[str, Hashable]
"""A key, and what identifies an object there."""


@dataclass(slots=True)
class _Level:
    """A kind of object: the keys that PyIceberg knows, and at which keys there are objects below.

    With each key below goes what identifies an object there: its values at these keys; with none, its position in a
    list, or its name in a mapping. None means that there is one object.
    """

    known: frozenset[str]
    below: dict[str, tuple[_Level, tuple[str, ...] | None]] = field(default_factory=dict)


def _keys(*models: type[BaseModel]) -> frozenset[str]:
    return frozenset(known.alias or name for model in models for name, known in model.model_fields.items())


_TYPE = _Level(_keys(StructType, ListType, MapType) | {"type"})
_COLUMN = _Level(_keys(NestedField), {"type": (_TYPE, None)})
_TYPE.below = {"fields": (_COLUMN, ("id",)), "element": (_TYPE, None), "key": (_TYPE, None), "value": (_TYPE, None)}
_SCHEMA = _Level(_keys(Schema) | {"type"}, {"fields": (_COLUMN, ("id",))})
_PARTITION_FIELD = _Level(_keys(PartitionField) | {"source-ids"})
_SPEC = _Level(_keys(PartitionSpec), {"fields": (_PARTITION_FIELD, ("field-id",))})
_ORDER = _Level(_keys(SortOrder), {"fields": (_Level(_keys(SortField) | {"source-ids"}), ())})
_STATISTICS = _Level(_keys(StatisticsFile), {"blob-metadata": (_Level(_keys(BlobMetadata)), ())})

_TABLE = _Level(
    frozenset(),
    {
        "schemas": (_SCHEMA, ("schema-id",)),
        "schema": (_SCHEMA, None),
        "partition-specs": (_SPEC, ("spec-id",)),
        "partition-spec": (_PARTITION_FIELD, ("field-id",)),
        "sort-orders": (_ORDER, ("order-id",)),
        "refs": (_Level(_keys(SnapshotRef)), ()),
        "statistics": (_STATISTICS, ("snapshot-id", "statistics-path")),
        "partition-statistics": (_Level(_keys(PartitionStatisticsFile)), ("snapshot-id", "statistics-path")),
    },
)


@dataclass(frozen=True, slots=True)
class Unknown:
    """What is not known of an object.

    Args:
        own: Its unknown keys and their values.
        below: Of the objects in it that have some, by key and identity.
    """

    own: Mapping[str, Any] = field(default_factory=dict)
    below: Mapping[ObjectKey, Unknown] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether there is anything."""
        return bool(self.own or self.below)


def of_table(raw: Json, known: frozenset[str]) -> Unknown:
    """Return what is not known in *raw*, a metadata file of which *known* are the keys, without its schemas."""
    return _of({**raw, "schemas": None}, _Level(known | {"schemas"}, _TABLE.below))


def of_schema(raw: Json) -> Mapping[ObjectKey, Unknown]:
    """Return what is not known in *raw*, a schema, as it is in the JSON of its table."""
    return _of({"schemas": [raw]}, _TABLE).below


def put_back(body: Json, unknown: Unknown) -> None:
    """Put *unknown* into *body*, the JSON of what is known of a table; what is not there any more stays away."""
    _put_back(body, unknown, _TABLE)


def surviving(unknown: Unknown, before: Json, after: Json) -> Unknown:
    """Return what of *unknown* belongs to objects that are the same in *after* as *before*.

    The id of a schema or spec that was removed may be given to another one. A branch that moves is the same branch.
    """

    def is_same(key: str, identity: Hashable) -> bool:
        old, new = (dict(_items(body.get(key), _TABLE.below[key][1])).get(identity) for body in (before, after))
        if key == "refs" and old is not None and new is not None:
            return bool(old["type"] == new["type"])
        return old == new

    return Unknown(unknown.own, {at: each for at, each in unknown.below.items() if is_same(*at)})


def lost_fields(given: Any, kept: Any) -> Iterator[str]:
    """Yield the paths of the fields of *given* that *kept* lacks."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                if value is not None:
                    yield key
            else:
                yield from (f"{key}.{below}" for below in lost_fields(value, kept[key]))
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=False)):
            yield from (f"{number}.{below}" for below in lost_fields(one, other))


def _of(raw: Json, level: _Level) -> Unknown:
    below = {
        (key, identity): found
        for key, (lower, by) in level.below.items()
        for identity, item in _items(raw.get(key), by)
        if (found := _of(item, lower))
    }
    return Unknown({key: value for key, value in raw.items() if key not in level.known}, below)


def _put_back(body: Json, unknown: Unknown, level: _Level) -> None:
    for key, value in unknown.own.items():
        body.setdefault(key, value)
    for (key, identity), found in unknown.below.items():
        lower, by = level.below[key]
        for each, item in _items(body.get(key), by):
            if each == identity:
                _put_back(item, found, lower)


def _items(value: Any, by: tuple[str, ...] | None) -> Iterator[tuple[Hashable, Json]]:
    """Yield the objects in *value* with what identifies each; nothing where PyIceberg must refuse what it is."""
    if by is None:
        pairs: Any = [(None, value)]
    elif isinstance(value, dict):
        pairs = value.items()
    else:
        pairs = enumerate(value) if isinstance(value, list) else ()
    for name, item in pairs:
        if isinstance(item, dict):
            yield (repr([item.get(key) for key in by]) if by else name), item
