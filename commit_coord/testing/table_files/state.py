"""A table as the bag of its rows, and what else it has: columns, partitions, references, properties."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from commit_coord.testing.table_files.values import MAIN, Named, Row, canonical, complete, projected


class Unbound(Exception):
    """A name is not the name of a column."""


def path_of(column: str, fields: StructType) -> tuple[NestedField, ...]:
    """Return the fields that lead to *column*, ``s.x`` in a struct.

    Raises:
        Unbound: There is none.
    """
    found: list[NestedField] = []
    kind: IcebergType = fields
    for name in column.split("."):
        inside = [f for f in kind.fields if f.name == name] if isinstance(kind, StructType) else []
        if not inside:
            raise Unbound(column)
        found.append(inside[0])
        kind = inside[0].field_type
    return tuple(found)


@dataclass(frozen=True)
class Partition:
    """One field of a partition spec: ``transform(source)``, as Iceberg writes it."""

    source: int
    transform: str
    name: str


@dataclass(frozen=True)
class State:
    """A table as one commit left it.

    Args:
        uuid: Which table: one that was dropped and made again is another.
        fields: Its columns.
        rows: By branch and tag, each a sorted tuple.
        tags: Which of these are tags.
        spec: Its partition fields, those that are void left out.
        order: Its sort order: (source, transform, direction, nulls).
        properties: Without those that follow from something else.
        version: Of the format.
        last_id: The highest field id that was ever given out.
        void: The names of its void partition fields. Seen, not compared.
        spec_id: Of *spec*. Seen, not compared.
        files: Of the main branch: the spec and the rows of each. Seen, not compared.
        history: Of the main branch: the rows of its last snapshots, the newest first. Seen, not compared.
        times: Of these snapshots, in milliseconds. Seen, not compared.
        by_value: Rows are deleted by files of values, which PyIceberg does not read. Seen, not compared.
        mapping: Its name mapping, by which columns are found in files that name no field ids: their paths. Seen, not
            compared.
        written: By branch and tag, the snapshot that changed its rows last. Seen, not compared.
    """

    uuid: str
    fields: StructType
    rows: Mapping[str, tuple[Row, ...]]
    tags: frozenset[str] = frozenset()
    spec: tuple[Partition, ...] = ()
    order: tuple[tuple[Any, ...], ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = 2
    last_id: int = field(default=0, compare=False)
    void: frozenset[str] = field(default=frozenset(), compare=False)
    spec_id: int = field(default=0, compare=False)
    files: tuple[tuple[int, tuple[Row, ...]], ...] = field(default=(), compare=False)
    history: tuple[tuple[int, tuple[Row, ...]], ...] = field(default=(), compare=False)
    times: tuple[int, ...] = field(default=(), compare=False)
    by_value: bool = field(default=False, compare=False)
    mapping: Mapping[str, int] = field(default_factory=dict, compare=False)
    written: Mapping[str, int | None] = field(default_factory=dict, compare=False)

    @property
    def mapped(self) -> bool:
        """Return whether it has a name mapping."""
        return bool(self.mapping)

    @property
    def isolation(self) -> str:
        """Return the isolation level of what overwrites rows."""
        return self.properties.get("write.update.isolation-level", "serializable")

    def of(self, ref: str = MAIN) -> Counter[Row]:
        """Return the rows of a branch or tag as the present columns show them."""
        return Counter(_visible(row, self.fields) for row in self.rows.get(ref, ()))

    def with_rows(self, rows: Iterable[Row], branch: str = MAIN) -> State:
        """Return the table with *rows* in *branch* instead of what is there."""
        return replace(self, rows={**self.rows, branch: tuple(rows)})

    def named(self, column: str) -> NestedField:
        """Return a column by its name."""
        return path_of(column, self.fields)[-1]

    def is_like(self, other: State) -> bool:
        """Return whether nothing differs that a change could rest on: neither structure nor rows, files or settings.

        Rows that were replaced by their like are others: a file shows what is in it, and not what was in another one.
        """
        return (
            self.same_structure(other)
            and (self.order, self.properties, self.tags) == (other.order, other.properties, other.tags)
            and self.rows.keys() == other.rows.keys()
            and all(Counter(rows) == Counter(other.rows[ref]) for ref, rows in self.rows.items())
            and Counter(self.files) == Counter(other.files)
            and self.written == other.written
        )

    def same_structure(self, other: State) -> bool:
        """Return whether only rows and refs differ."""
        return (self.uuid, self.fields, self.spec, self.version) == (
            other.uuid,
            other.fields,
            other.spec,
            other.version,
        )


def paths(kind: IcebergType, around: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path of each field in *kind*, as name mappings have it, and its id."""
    match kind:
        case StructType(fields=fields):
            inside = list(fields)
        case ListType():
            inside = [kind.element_field]
        case MapType():
            inside = [kind.key_field, kind.value_field]
        case _:
            inside = []
    for one in inside:
        yield around + one.name, one.field_id
        yield from paths(one.field_type, f"{around}{one.name}.")


def misled(fields: StructType, mapping: Mapping[str, int], before: StructType | None = None) -> bool:
    """Return whether *mapping* has a path of *fields* for another field; not where it was so *before*."""
    old = dict(paths(before)) if before is not None else {}
    return any(path in mapping and key not in (mapping[path], old.get(path)) for path, key in paths(fields))


def _visible(row: Row, fields: StructType) -> Row:
    found: Row = projected(row, fields)
    return found


def rows_of(named: Sequence[Named], fields: StructType) -> list[Row] | None:
    """Return rows that were written by name; None when one lacks what is required, or has what a column can't have.

    Without columns there are no rows: Arrow has none to write.
    """
    try:
        made: list[Row] = [canonical(row, fields) for row in named if fields.fields]
    except (TypeError, AttributeError, ValueError, struct.error):
        return None  # a race's steps are drawn before the first one is done, and may name other columns by then
    return made if all(complete(row, fields) for row in made) else None


def leaves(fields: StructType) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the columns of single values, those in structs with them: their paths, as names and as field ids."""
    for one in fields.fields:
        if isinstance(one.field_type, StructType):
            for path, field_ids in leaves(one.field_type):
                yield f"{one.name}.{path}", (one.field_id, *field_ids)
        elif one.field_type.is_primitive:
            yield one.name, (one.field_id,)


def value_at(row: Any, field_ids: tuple[int, ...]) -> Any:
    """Return the value of *row* at a path of field ids; None where there is none."""
    for key in field_ids:
        row = None if row is None else dict(row).get(key)
    return row
