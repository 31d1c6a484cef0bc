"""Reads the JSON of a request, and the fields in it as the specification means them. Pure.

Clients in Go send ``null`` for each map and list that was not set, and Iceberg Java's server takes that for a field
that is not there. PyIceberg's models refuse it. They also take a field by the name that it has in Python, for example
``table_changes``; a handler that reads the JSON itself would not find it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from commit_coord.iceberg.column_types import with_all_types
from commit_coord.iceberg.specs import NO_FIELD_ID
from commit_coord.iceberg.statistics import SetAnyStatistics

MAPS = frozenset({"properties", "summary", "updates"})
"""The fields that hold a map. Its keys are the client's own, and its values must be strings."""


def read(body: bytes) -> Any:
    """Return the JSON in *body*. Of a field that is there twice, the last one counts.

    Raises:
        ValueError: *body* is not JSON.
    """
    return from_json(body, allow_inf_nan=False)


def stated(document: Any) -> Any:
    """Return *document* with the fields that the client states.

    Without those that are null, so that the model has their defaults. And without those whose name has an underscore:
    the specification has none of them in a request.
    """
    if isinstance(document, list):
        return [stated(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        name: value if name in MAPS and isinstance(value, dict) else stated(value)
        for name, value in document.items()
        if value is not None and "_" not in name
    }


def without_redundant(document: Any, name: str = "") -> Any:
    """Return *document*, which has this *name*, without the fields that some clients write and that add nothing.

    These are ``required`` in the type of a list or map, because the field that has the type has it, too; ``"type":
    "struct"`` in a partition spec or a sort order, which is always one; and ``source-ids`` of a partition or sort
    field, if it is ``source-id`` in a list.
    """
    if isinstance(document, list):
        return [without_redundant(each) for each in document]
    if not isinstance(document, dict):
        return document
    redundant = None
    match document:
        case {"type": "list" | "map"}:
            redundant = "required"
        case {"type": "struct"} if name in _SPECS_AND_ORDERS:
            redundant = "type"
        case {"source-ids": [source_id]} if document.get("source-id") in (None, source_id):
            redundant, document = "source-ids", {**document, "source-id": source_id}
    return {key: without_redundant(value, key) for key, value in document.items() if key != redundant}


_SPECS_AND_ORDERS = frozenset({"partition-spec", "write-order", "spec", "sort-order"})


def texts(properties: Any) -> Any:
    """Return *properties* with numbers and booleans as strings, as Java reads them.

    PyIceberg's client sends the properties of a namespace as it is given them.
    """
    if not isinstance(properties, dict):
        return properties
    return {
        key: json.dumps(value) if isinstance(value, bool | int | float) else value for key, value in properties.items()
    }


def unbound_spec(spec: Any) -> Any:
    """Return *spec* with a ``field-id`` in each field. iceberg-rust leaves them out; PyIceberg's model needs them."""
    if not isinstance(spec, dict) or not isinstance(spec.get("fields"), list):
        return spec
    fields = [{"field-id": NO_FIELD_ID, **each} if isinstance(each, dict) else each for each in spec["fields"]]
    return {**spec, "fields": fields}


_LONGS = frozenset(
    {
        *("snapshot-id", "parent-snapshot-id", "snapshot-ids", "sequence-number", "first-row-id", "added-rows"),
        *("timestamp-ms", "max-ref-age-ms", "max-snapshot-age-ms"),
        *("file-size-in-bytes", "file-footer-size-in-bytes", "initial-default", "write-default"),
    }
)
"""The fields whose integers have 64 bits; those of all others have 32."""


def inexact(given: Any, kept: Any, path: str, *, is_long: bool = False) -> Iterator[str]:
    """Yield a sentence for each integer of *kept* that Java can't read as one in *given*, below *path*.

    PyIceberg's models take 9007199254740993.0, true and "7" for integers, the first one for another integer. And its
    integers have as many bits as they need.
    """
    if isinstance(given, dict) and isinstance(kept, dict):
        for key in given.keys() & kept.keys():
            yield from inexact(given[key], kept[key], f"{path}.{key}", is_long=is_long or key in _LONGS)
    elif isinstance(given, list) and isinstance(kept, list):
        for number, (one, other) in enumerate(zip(given, kept, strict=False)):
            yield from inexact(one, other, f"{path}.{number}", is_long=is_long)
    elif type(kept) is int and given is not None:
        bits = 64 if is_long else 32
        if type(given) is not int or not -(2 ** (bits - 1)) <= given < 2 ** (bits - 1):
            yield f"{path}: it must be an integer of {bits} bits, written as one"


def columns(schema: Any) -> Any:
    """Return *schema* with the types that PyIceberg lacks.

    Raises:
        ValueError: They are too deep for the recursion of PyIceberg.
        NotImplementedError: A column has a default value that PyIceberg cannot hold.
    """
    _refuse_deep(schema, 0)
    _refuse_nanoseconds(schema)
    return with_all_types(schema)


_DEEPEST = 100
"""How many types may be in one another."""


def _refuse_deep(part: Any, depth: int) -> None:
    if isinstance(part, list):
        for each in part:
            _refuse_deep(each, depth)
    elif isinstance(part, dict):
        depth += part.get("type") in ("struct", "list", "map")
        if depth > _DEEPEST:
            raise ValueError(f"the types of the columns are more than {_DEEPEST} levels deep")
        _refuse_deep(list(part.values()), depth)


def _refuse_nanoseconds(schema: Any) -> None:
    if isinstance(schema, list):
        for each in schema:
            _refuse_nanoseconds(each)
    elif isinstance(schema, dict):
        kind, defaults = schema.get("type"), (schema.get("initial-default"), schema.get("write-default"))
        if kind in ("timestamp_ns", "timestamptz_ns") and defaults != (None, None):
            raise NotImplementedError(
                f"this server does not know default values of the type {kind}, as the column {schema.get('name')} has"
            )
        _refuse_nanoseconds(list(schema.values()))


def as_models_take_it(update: Any) -> Any:
    """Return *update* of a table or view with what PyIceberg's models would refuse in a form that they take.

    Raises:
        ValueError: It has a summary that no other client can read.
        NotImplementedError: As :func:`columns`.
    """
    match update:
        case {"action": "add-snapshot", "snapshot": {"summary": dict(summary)}}:
            if not all(isinstance(value, str) for value in summary.values()):
                raise ValueError("the values of a summary must be strings")
            return update
        case {"action": "add-schema", "schema": schema}:
            return {**update, "schema": columns(schema)}
        case {"action": "add-spec", "spec": spec}:
            return {**update, "spec": unbound_spec(spec)}
        case {"action": "set-statistics", "statistics": dict()}:
            return SetAnyStatistics.model_validate(update)
        case _:
            return update
