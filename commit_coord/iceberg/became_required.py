"""Rows that lack a value of a column that became required after they were written.

Nothing in a commit says for certain with which schema its rows were written:

* The snapshot names the schema that its client saw last.
* The header of a manifest has the schema that its client knew when it wrote the manifest. A client that was refused may
  list its files in a new manifest, and one that merges manifests does.
* The counts of a file may be left out (``write.metadata.metrics.default``), and lists, maps and structs have none.

So a header that does not require the column refuses, and one that does proves nothing. A file is taken if its counts
show no NULL; else a Parquet file is asked itself: each field in it is optional or required.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema, _index_parents, index_by_id
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import SetCurrentSchemaUpdate, TableUpdate
from pyiceberg.types import PrimitiveType, StructType

from commit_coord.iceberg import avro, manifest_list, manifests
from commit_coord.iceberg.written import ByContent, lacking, lacks

_LONGEST_REMEMBERED = 256 * 1024
"""Bytes of the longest header that is remembered."""


def written_for(meta: Mapping[str, bytes]) -> tuple[Schema, tuple[PartitionField, ...]]:
    """Return the schema and the partition fields in the header of a manifest.

    Raises:
        KeyError, ValueError: It does not say them.
    """
    texts = meta["schema"], meta["partition-spec"]
    # A client writes the same ones with each of its appends.
    return _parsed(*texts) if sum(map(len, texts)) <= _LONGEST_REMEMBERED else _parsed.__wrapped__(*texts)


@lru_cache(maxsize=64)
def _parsed(schema: bytes, spec: bytes) -> tuple[Schema, tuple[PartitionField, ...]]:
    fields = tuple(PartitionField.model_validate(field) for field in orjson.loads(spec))
    return Schema.model_validate_json(schema), fields


def required_since(now: Schema, schemas: Sequence[Schema]) -> tuple[int, ...]:
    """Return the fields that *now* requires and rows of the table may lack.

    Args:
        now: The current schema.
        schemas: Those that the table has. If some were removed, a column may have been missing in one of them.
    """
    removed = [Schema()] if len(schemas) <= max(schema.schema_id for schema in schemas) else []
    return _required_since(ByContent(now), tuple(map(ByContent, (*schemas, *removed))))


@lru_cache(maxsize=16)
def _required_since(now: ByContent[Schema], schemas: tuple[ByContent[Schema], ...]) -> tuple[int, ...]:
    return tuple(sorted({field_id for each in schemas for field_id in lacking(now.value, each.value)}))


def lacks_required(added: Iterable[Mapping[str, Any]], now: Schema, required: Sequence[int], io: FileIO) -> str | None:
    """Return the reason if a file may lack a value that is required; None if all rows have them all.

    Args:
        added: The files' entries in a manifest.
        now: The current schema.
        required: What :func:`required_since` found.
        io: Reads the footers of files whose counts do not tell.

    Raises:
        OSError: A file exists, and could not be read.
    """
    outer = {field_id: _outer(field_id, now) for field_id in required}
    for entry in added if required else ():
        file = entry["data_file"]
        counts, nulls = (_by_id(file.get(name)) for name in ("value_counts", "null_value_counts"))
        open_ones = [field_id for field_id in required if outer[field_id] is None or nulls.get(field_id) != 0]
        if open_ones and str(file["file_format"]).upper() == "PARQUET":
            try:
                footer = _Footer.of(io, file["file_path"])
            except FileNotFoundError:
                continue  # it has no rows; a commit that names it lands, as on every other catalog
            found = (field_id for field_id in open_ones if not footer.shows(field_id, now))
        else:
            found = (
                field_id
                for field_id in open_ones
                if outer[field_id] and (nulls.get(field_id) or (counts and field_id not in counts))
            )
        if (field_id := next(found, None)) is not None:
            return lacks(now, field_id)
    return None


def _outer(field_id: int, schema: Schema) -> bool | None:
    """Return whether all that holds a field is required; None if counts tell nothing of it.

    They count the values of a primitive field in structs only, and a NULL for each struct that is NULL.
    """
    fields, parents = index_by_id(schema), _index_parents(schema)
    if not isinstance(fields[field_id].field_type, PrimitiveType):
        return None
    holders, at = [], parents.get(field_id)
    while at is not None:
        holders.append(fields[at])
        at = parents.get(at)
    if not all(isinstance(holder.field_type, StructType) for holder in holders):
        return None
    return all(holder.required for holder in holders)


def _by_id(pairs: Any) -> dict[int, int]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}


class _Footer(NamedTuple):
    """What a Parquet file says of its columns."""

    metadata: Any
    fields: dict[int, tuple[bool, range]]
    """By field id: whether it is optional, and the columns of the file that hold it."""

    @classmethod
    def of(cls, io: FileIO, location: str) -> _Footer:
        # Loaded when it is needed: Arrow starts threads, and takes long.
        import pyarrow.parquet as pq

        with io.new_input(location).open() as stream:
            metadata = pq.read_metadata(stream)
        fields: dict[int, tuple[bool, range]] = {}
        _note(metadata.schema.to_arrow_schema(), 0, fields)
        return cls(metadata, fields)

    def shows(self, field_id: int, schema: Schema) -> bool:
        """Return whether no row lacks the field; a struct that is NULL has no fields to lack."""
        if field_id not in self.fields:
            holder = _index_parents(schema).get(field_id)
            return holder is not None and bool(self.fields) and holder not in self.fields
        optional, columns = self.fields[field_id]
        return not optional or any(map(self._is_full, columns))

    def _is_full(self, column: int) -> bool:
        """Return whether no row has NULL in *column*, nor in what holds it; not of lists, whose NULLs nobody counts."""
        groups = (self.metadata.row_group(number) for number in range(self.metadata.num_row_groups))
        known = [group.column(column).statistics for group in groups]
        return self.metadata.schema.column(column).max_repetition_level == 0 and all(
            each is not None and each.has_null_count and each.null_count == 0 for each in known
        )


def _note(columns: Iterable[Any], begin: int, found: dict[int, tuple[bool, range]]) -> int:
    """Add to *found* what Arrow's fields *columns* say, which begin at the column *begin*; return where they end."""
    for column in columns:
        inner = _inner(column.type)
        end = _note(inner, begin, found) if inner else begin + 1
        number = (column.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            found[int(number)] = column.nullable, range(begin, end)
        begin = end
    return begin


def _inner(kind: Any) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) or pa.types.is_large_list(kind) else []


class RowsOfSnapshots:
    """The rows that snapshots of one commit add. Their manifests are read once, whatever becomes the head.

    Args:
        snapshots: That the commit adds.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots
        self._added: list[_Added] | None = None
        self._judged: dict[tuple[ByContent[Schema], tuple[int, ...]], str | None] = {}

    def misfit(self, head: TableMetadata, updates: Sequence[TableUpdate], io: Callable[[], FileIO]) -> str | None:
        """Return why the rows do not fit the columns of *head*; None if they do.

        Nothing is read if no column became required. A commit that sets the columns itself knows them.

        Raises:
            OSError: A list, a manifest or a file could not be read.
        """
        if not self._snapshots or any(isinstance(update, SetCurrentSchemaUpdate) for update in updates):
            return None
        now, required = head.schema(), required_since(head.schema(), head.schemas)
        if not required:
            return None
        if self._added is None:
            self._added = list(self._read(io()))
        key = ByContent(now), required
        if key not in self._judged:
            self._judged[key] = next(filter(None, (each.misfit(now, required, io()) for each in self._added)), None)
        return self._judged[key]

    def _read(self, io: FileIO) -> Iterator[_Added]:
        for snapshot in self._snapshots:
            for manifest in manifest_list.read(io, snapshot.manifest_list):
                own = manifest.added_snapshot_id == snapshot.snapshot_id and manifest.added_files_count != 0
                if own and manifest.content == ManifestContent.DATA:
                    data = manifest_list.whole(io, manifest)
                    meta, _ = avro.header(data)
                    known = meta.get("avro.codec", b"null") in avro.CODECS
                    files = manifests.entries_in(data, manifest.manifest_path).added if known else []
                    if files or not known:
                        yield _Added(_schema_of(meta), files)


class _Added(NamedTuple):
    """What one manifest adds."""

    written: Schema | None
    """Its schema; None if it does not say it."""
    files: list[dict[str, Any]]
    """Their entries; none of a manifest in a codec that is not known here."""

    def misfit(self, now: Schema, required: tuple[int, ...], io: FileIO) -> str | None:
        """Return why the rows do not fit the schema *now*; None if they do."""
        missing = () if self.written is None else (each for each in lacking(now, self.written) if each in required)
        for field_id in missing:
            return lacks(now, field_id)
        return lacks_required(self.files, now, required, io)


def _schema_of(meta: Mapping[str, bytes]) -> Schema | None:
    try:
        return written_for(meta)[0]
    except (KeyError, ValueError):
        return None
