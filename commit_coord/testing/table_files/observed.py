"""A table's files, read by code that nothing else uses.

``Files`` reads metadata files, manifest lists, manifests and data files, each once: they never change. ``Observed``
makes of them the state that a table is in.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from commit_coord.testing.table_files.state import Partition, State
from commit_coord.testing.table_files.values import MAIN, Row, Value

Json = dict[str, Any]

_DATA, _DELETES = 0, 1
"""What a manifest lists."""

_FILE_PATH, _POS = 2147483546, 2147483545
"""The field ids in files of positions."""

_UUID_BYTES = 16

BY_VALUE = 2
"""The content of a file whose rows say which values a deleted row has."""


def local(location: str) -> str:
    """Return the path in *location*, in one spelling."""
    path = location.removeprefix("file://").removeprefix("file:")
    return re.sub("/{2,}", "/", path) if path.startswith("/") else path


@dataclass(frozen=True)
class Manifest:
    """A manifest: what its file says of itself, and its entries."""

    about: Mapping[str, str]
    entries: Sequence[Json]


@dataclass
class Files:
    """Files of tables, read once each."""

    tables: dict[str, Json] = field(default_factory=dict)
    lists: dict[str, list[Json]] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Of data files by path; a client that writes files without field ids notes here what they hold."""

    def read(self, location: str) -> bytes:
        """Return what a file holds."""
        return Path(local(location)).read_bytes()

    def exists(self, location: str) -> bool:
        """Return whether there is such a file."""
        return Path(local(location)).exists()

    def size(self, location: str) -> int:
        """Return the length of a file in bytes."""
        return Path(local(location)).stat().st_size

    def table(self, location: str) -> Json:
        """Return a metadata file."""
        if location not in self.tables:
            self.tables[location] = json.loads(self.read(location))
        return self.tables[location]

    def manifest_list(self, location: str) -> list[Json]:
        """Return the manifests in a list."""
        if location not in self.lists:
            reader = fastavro.reader(io.BytesIO(self.read(location)))
            self.lists[location] = [cast(Json, entry) for entry in reader]
        return self.lists[location]

    def manifest(self, location: str) -> Manifest:
        """Return a manifest."""
        if location not in self.manifests:
            reader = fastavro.reader(io.BytesIO(self.read(location)))
            self.manifests[location] = Manifest(dict(reader.metadata), [cast(Json, entry) for entry in reader])
        return self.manifests[location]

    def data(self, location: str) -> list[Row]:
        """Return the rows of a data file, by field ids."""
        key = local(location)
        if key not in self.rows:
            table = pq.ParquetFile(pa.BufferReader(self.read(location))).read(use_threads=False)
            columns = [(_field_id(f), f.type, table.column(i).to_pylist()) for i, f in enumerate(table.schema)]
            self.rows[key] = [
                tuple(sorted((key, _by_id(values[i], kind)) for key, kind, values in columns if values[i] is not None))
                for i in range(table.num_rows)
            ]
        return self.rows[key]


def _field_id(field: pa.Field) -> int:
    return int((field.metadata or {})[b"PARQUET:field_id"])


def _by_id(value: Any, kind: pa.DataType) -> Value:
    """Return a value as Arrow gives it, with field ids for names."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        found = [(_field_id(f), _by_id(value[f.name], f.type)) for f in kind]
        return tuple(sorted((key, item) for key, item in found if item is not None))
    if pa.types.is_map(kind):
        return tuple(sorted(((_by_id(k, kind.key_type), _by_id(v, kind.item_type)) for k, v in value), key=repr))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return tuple(_by_id(item, kind.value_type) for item in value)
    if isinstance(value, bytes) and pa.types.is_fixed_size_binary(kind) and kind.byte_width == _UUID_BYTES:
        return UUID(bytes=value)
    return math.nan if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True)
class Live:
    """A file of a snapshot, and the manifest that lists it."""

    manifest: Json
    entry: Json

    @property
    def file(self) -> Json:
        """Return what the manifest says of the file."""
        found: Json = self.entry["data_file"]
        return found

    @property
    def path(self) -> str:
        """Return where it lies."""
        found: str = self.file["file_path"]
        return found

    @property
    def number(self) -> int:
        """Return its sequence number: its own, or else, while it is new, that of its manifest."""
        own = self.entry.get("sequence_number")
        return int(own if own is not None else self.manifest.get("sequence_number") or 0)


class _Deleted:
    """The deleted rows of a snapshot.

    A file of positions names rows of data files. A file of values deletes every row of its partition that has them and
    is older; without a partition, every row of the table.

    Args:
        files: Read them.
        deletes: The files that delete rows.
        specs: Of the table.
    """

    def __init__(self, files: Files, deletes: Iterable[Live], specs: Mapping[int, tuple[Partition, ...]]) -> None:
        self._places: dict[tuple[str, int], int] = {}
        self._values: list[tuple[Live, list[int], set[tuple[Value, ...]]]] = []
        self._specs = specs
        for delete in deletes:
            rows = [dict(row) for row in files.data(delete.path)]
            if delete.file["content"] == BY_VALUE:
                ids = list(delete.file["equality_ids"])
                self._values.append((delete, ids, {tuple(row.get(key) for key in ids) for row in rows}))
                continue
            for row in rows:
                place = row[_FILE_PATH], row[_POS]
                self._places[place] = max(delete.number, self._places.get(place, 0))

    def has(self, file: Live, at: int, row: Row) -> bool:
        """Return whether the row at a position of *file* is deleted."""
        # A file that is added once more is newer than the deletion of its rows.
        if self._places.get((file.path, at), -1) >= file.number:
            return True
        values = dict(row)
        return any(
            delete.number > file.number
            and self._covers(delete, file)
            and tuple(values.get(key) for key in ids) in deleted
            for delete, ids, deleted in self._values
        )

    def _covers(self, delete: Live, file: Live) -> bool:
        spec_id = delete.manifest["partition_spec_id"]
        same = spec_id == file.manifest["partition_spec_id"]
        return not self._specs[spec_id] or (same and repr(delete.file["partition"]) == repr(file.file["partition"]))


@dataclass(frozen=True)
class Observed:
    """A table as one metadata file says."""

    location: str
    files: Files

    @cached_property
    def raw(self) -> Json:
        """Return the metadata file."""
        return self.files.table(self.location)

    @cached_property
    def snapshots(self) -> dict[int, Json]:
        """Return the snapshots by id."""
        return {s["snapshot-id"]: s for s in self.raw.get("snapshots", [])}

    @cached_property
    def schemas(self) -> dict[int, Schema]:
        """Return the schemas by id."""
        return {s["schema-id"]: Schema.model_validate(s) for s in self.raw["schemas"]}

    @cached_property
    def schema(self) -> Schema:
        """Return the present schema."""
        return self.schemas[self.raw["current-schema-id"]]

    @cached_property
    def specs(self) -> dict[int, tuple[Partition, ...]]:
        """Return the specs by id, void fields with them."""
        return {
            spec["spec-id"]: tuple(Partition(f["source-id"], f["transform"], f["name"]) for f in spec["fields"])
            for spec in self.raw["partition-specs"]
        }

    def live(self, snapshot_id: int) -> Iterator[Live]:
        """Yield the data files of a snapshot."""
        return self._live(snapshot_id, _DATA)

    def deletes(self, snapshot_id: int) -> Iterator[Live]:
        """Yield the files of a snapshot that delete rows of others."""
        return self._live(snapshot_id, _DELETES)

    def _live(self, snapshot_id: int, content: int) -> Iterator[Live]:
        for manifest in self.files.manifest_list(self.snapshots[snapshot_id]["manifest-list"]):
            if manifest.get("content", _DATA) == content:
                for entry in self.files.manifest(manifest["manifest_path"]).entries:
                    if entry["status"] != 2:
                        yield Live(manifest, entry)

    def placed(self, snapshot_id: int) -> Iterator[tuple[str, list[tuple[int, Row]]]]:
        """Yield the path of each data file of a snapshot, and its rows with their positions, without deleted ones."""
        for file, rows in self._placed(snapshot_id):
            yield file.path, rows

    def _placed(self, snapshot_id: int) -> Iterator[tuple[Live, list[tuple[int, Row]]]]:
        gone = _Deleted(self.files, self.deletes(snapshot_id), self.specs)
        for file in self.live(snapshot_id):
            rows = enumerate(self.files.data(file.path))
            yield file, [(at, row) for at, row in rows if not gone.has(file, at, row)]

    def by_value(self, snapshot_id: int | None) -> bool:
        """Return whether rows of a snapshot are deleted by value."""
        found = self.deletes(snapshot_id) if snapshot_id in self.snapshots and snapshot_id is not None else ()
        return any(one.file["content"] == BY_VALUE for one in found)

    def rows(self, snapshot_id: int) -> tuple[Row, ...]:
        """Return the rows of a snapshot."""
        return tuple(row for _, rows in self._placed(snapshot_id) for _, row in rows)

    def history(self, snapshot_id: int | None) -> Iterator[tuple[int, tuple[Row, ...]]]:
        """Yield the snapshots behind the one with *snapshot_id*, itself first, as far as they are there."""
        while snapshot_id in self.snapshots:
            assert snapshot_id is not None
            yield snapshot_id, self.rows(snapshot_id)
            snapshot_id = self.snapshots[snapshot_id].get("parent-snapshot-id")

    def written(self, snapshot_id: int | None) -> int | None:
        """Return the newest snapshot from *snapshot_id* back that is no compaction; None if it is gone."""
        while snapshot_id in self.snapshots:
            assert snapshot_id is not None
            snapshot = self.snapshots[snapshot_id]
            if snapshot.get("summary", {}).get("operation") != "replace":
                return snapshot_id
            snapshot_id = snapshot.get("parent-snapshot-id")
        return None

    @cached_property
    def state(self) -> State:
        """Return the state that the table is in."""
        raw = self.raw
        refs = {name: ref for name, ref in raw.get("refs", {}).items() if ref["snapshot-id"] in self.snapshots}
        head = refs.get(MAIN, {}).get("snapshot-id")
        order = next(o for o in raw["sort-orders"] if o["order-id"] == raw["default-sort-order-id"])
        properties = raw.get("properties", {})
        history = tuple(itertools.islice(self.history(head), 4))
        return State(
            uuid=raw["table-uuid"],
            fields=self.schema.as_struct(),
            rows={name: self.rows(ref["snapshot-id"]) for name, ref in refs.items()},
            tags=frozenset(name for name, ref in refs.items() if ref["type"] == "tag"),
            spec=tuple(p for p in self.specs[raw["default-spec-id"]] if p.transform != "void"),
            void=frozenset(p.name for p in self.specs[raw["default-spec-id"]] if p.transform == "void"),
            order=tuple((f["source-id"], f["transform"], f["direction"], f["null-order"]) for f in order["fields"]),
            properties={
                k: v
                for k, v in properties.items()
                if k != "schema.name-mapping.default" and not k.startswith("commit-coord.stream.")
            },
            version=raw["format-version"],
            last_id=raw["last-column-id"],
            spec_id=raw["default-spec-id"],
            history=history,
            by_value=any(self.by_value(ref["snapshot-id"]) for ref in refs.values()),
            times=tuple(self.snapshots[snapshot_id]["timestamp-ms"] for snapshot_id, _ in history),
            written={name: self.written(ref["snapshot-id"]) for name, ref in refs.items()},
            mapping=dict(_mapped(json.loads(properties.get("schema.name-mapping.default", "[]")))),
            files=tuple(
                (file.manifest["partition_spec_id"], tuple(row for _, row in rows))
                for file, rows in (self._placed(head) if head is not None else ())
            ),
        )


def _mapped(fields: Sequence[Json], around: str = "") -> Iterator[tuple[str, int]]:
    for one in fields:
        for name in one["names"]:
            yield around + name, one.get("field-id", -1)
            yield from _mapped(one.get("fields", ()), f"{around}{name}.")
