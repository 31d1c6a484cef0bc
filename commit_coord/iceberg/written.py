"""The schema and the partition specs that data files were written for, compared by content.

Their ids alone do not tell. When old schemas and specs were removed from a table, a later one may get the id of an
earlier one.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, _index_parents, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import VoidTransform

_TEXTS: dict[int, tuple[weakref.ref[Schema | PartitionSpec], str]] = {}
"""Schemas and specs by their address, and their texts: a commit needs each several times, and the next one does too."""


def text_of(model: Schema | PartitionSpec) -> str:
    """Return *model*, which never changes, as JSON."""
    address = id(model)
    known = _TEXTS.get(address)
    # 1. A schema is collected.   2. Another one is made at its address. So the address alone tells nothing.
    if known is not None and known[0]() is model:
        return known[1]
    text = model.model_dump_json()
    _TEXTS[address] = weakref.ref(model, lambda _: _TEXTS.pop(address, None)), text
    return text


T = TypeVar("T", Schema, PartitionSpec)


@dataclass(frozen=True, slots=True, eq=False)
class ByContent(Generic[T]):
    """A schema or spec as an argument of a function that remembers its results: one is as good as an equal one."""

    value: T

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same content."""
        return isinstance(other, ByContent) and text_of(self.value) == text_of(other.value)

    def __hash__(self) -> int:
        """Return the hash of the content."""
        return hash(text_of(self.value))


def digest(model: Schema | PartitionSpec) -> str:
    """Return a short text that only an equal schema or spec has."""
    return hashlib.blake2b(text_of(model).encode(), digest_size=8).hexdigest()


def mark(metadata: TableMetadata, files: Iterable[DataFile]) -> None:
    """Let those of *files* that do not say their spec be of the table's current one.

    PyIceberg's writers leave it out, so call this before the table can have changed.
    """
    for file in files:
        if not hasattr(file, "_spec_id"):
            file.spec_id = metadata.default_spec_id


def has_partitions(spec: PartitionSpec) -> bool:
    """Return whether *spec* tells rows apart: what was dropped from a table of format version 1 stays, and is void."""
    return not all(isinstance(field.transform, VoidTransform) for field in spec.fields)


@dataclass(frozen=True, slots=True)
class Written:
    """The schema and the partition specs that data files were written for.

    Args:
        schema: Their schema.
        specs: Their partition specs, by id.
    """

    schema: Schema
    specs: dict[int, PartitionSpec] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        metadata: TableMetadata,
        files: Sequence[DataFile],
        schema_id: int | None = None,
        *,
        shown: TableMetadata | None = None,
        given: Written | None = None,
    ) -> Written:
        """Return what *files* of the table were written for; None as *schema_id* means its current schema.

        A file that does not say its spec gets the id of the table's current one.

        Args:
            metadata: The table's.
            files: Of any specs of it.
            schema_id: Their schema's.
            shown: The table as it was when they were written; what it knows is not looked up in *metadata*.
            given: What their writer kept of it; what it says is looked up nowhere else.

        Raises:
            ValueError: The table does not have that schema, or a spec; or a file's partition does not fit its spec.
        """
        shown = shown or metadata
        schema_id = metadata.current_schema_id if schema_id is None else schema_id
        schema = given.schema if given else shown.schema_by_id(schema_id) or metadata.schema_by_id(schema_id)
        if schema is None:
            raise ValueError(f"schema {schema_id} of the written files is gone")
        specs: dict[int, PartitionSpec] = {}
        known = {**metadata.specs(), **shown.specs(), **(given.specs if given else {})}
        mark(metadata, files)
        for file in files:
            spec = known.get(file.spec_id)
            if spec is None:
                raise ValueError(f"partition spec {file.spec_id} of the written files is gone")
            if len(file.partition) != len(spec.fields):
                raise ValueError(
                    f"the file {file.file_path} has a partition of {len(file.partition)} values, "
                    f"its partition spec {file.spec_id} has {len(spec.fields)} fields"
                )
            specs[file.spec_id] = spec
        return cls(schema, specs)

    def mark(self, files: Iterable[DataFile]) -> None:
        """Let those of *files* that do not say their spec be of the only one that is here.

        Raises:
            ValueError: There are several, or none.
        """
        for file in files:
            if not hasattr(file, "_spec_id"):
                if len(self.specs) != 1:
                    raise ValueError(
                        f"the file {file.file_path} does not say its partition spec, and {len(self.specs)} are given; "
                        "set its spec_id"
                    )
                (file.spec_id,) = self.specs

    @staticmethod
    def known(metadata: TableMetadata, files: Iterable[DataFile], schema_id: int | None) -> bool:
        """Return whether the table has the schema and the specs that *files* say."""
        specs = {file.spec_id for file in files if hasattr(file, "_spec_id")}
        return (schema_id is None or metadata.schema_by_id(schema_id) is not None) and specs <= metadata.specs().keys()

    def misfit(self, head: TableMetadata) -> str | None:
        """Return why the files can't be rows of *head*, None when they can."""
        known = head.specs()
        for spec_id, spec in self.specs.items():
            if known.get(spec_id) != spec:
                return f"partition spec {spec_id} of the written files is gone"
        return rows_misfit(head.schema(), self.schema)


def rows_misfit(now: Schema, written: Schema) -> str | None:
    """Return why rows of the schema *written* can't be rows of the schema *now*, None when they can."""
    if now is written or now == written:
        return None
    field_id = next(lacking(now, written), None)
    return None if field_id is None else lacks(now, field_id)


def lacking(now: Schema, written: Schema) -> Iterator[int]:
    """Yield the fields that *now* requires and rows of the schema *written* may lack.

    Where *now* requires a value, *written* must have required it too. A required column in a column that *written* does
    not have is no obstacle: the outer column is null in these rows, and only that one must allow it.
    """
    fields, parents = index_by_id(written), _index_parents(now)
    for field_id, found in index_by_id(now).items():
        before = fields.get(field_id)
        if before is None and field_id in parents and parents[field_id] not in fields:
            continue
        if found.required and not (before is not None and before.required) and found.initial_default is None:
            yield field_id


def lacks(now: Schema, field_id: int) -> str:
    """Return the reason for which rows without a value of a field do not fit the schema *now*."""
    name = now.find_column_name(field_id)
    return f"the column {name!r} is required now and was not when the files were written"


def partition_schema(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """Return the schema to write manifests of *spec* with: one that has the columns that its partitions are made of.

    It is the current one, or, where a column was dropped since, the newest one that had them all. Without its column a
    partition field has no type, and its values can't be written. When no schema has them all, what is left is missing.
    """
    sources = {field.source_id for field in spec.fields}
    schemas = [metadata.schema(), *reversed(metadata.schemas)]
    return next((schema for schema in schemas if sources <= schema._lazy_id_to_field.keys()), schemas[0])
