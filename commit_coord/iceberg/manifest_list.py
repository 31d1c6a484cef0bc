"""Manifest lists, grown by copying.

An append adds one entry to a list of thousands. Decoding and encoding the thousands is what costs (400 to 700 ms
for 10,000 in PyIceberg); Avro blocks, though, can be copied as they are as long as the new file has the old
one's schema, codec and sync marker. So the new list is: a new header, the old blocks byte by byte, one more block.

Small blocks would pile up, one an append, so every ``_FOLD`` of them are folded into one.

A block of no records is left out. PyIceberg writes one where a snapshot has no manifests, and its reader takes it for
the end of the file: what comes after it would be in no scan.
"""

from __future__ import annotations

import io as stdio
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import fastavro
import orjson
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO, InputFile, InputStream
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    UNASSIGNED_SEQ,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
    read_manifest_list,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from commit_coord.iceberg import avro

_FIELD_IDS = [field.field_id for field in MANIFEST_LIST_FILE_SCHEMAS[2].fields]
_SUMMARY_IDS = [509, 518, 510, 511]
"""``field_summary``: contains_null, contains_nan, lower_bound, upper_bound. Source: specification, "Manifest lists"."""

_PATH = Schema(*(MANIFEST_LIST_FILE_SCHEMAS[2].find_field(field_id) for field_id in (500, 507)))
"""The path of a manifest, and the list of partitions, which PyIceberg's decoder can't leave out."""

_REQUIRED = {1: {500, 501, 502, 503}, 2: set(_FIELD_IDS) - {507, 519}}
"""The required fields of a manifest list by format version; a list with fewer fields is rewritten."""


_COUNTED = {500, 501, 502, 503, 504, 505, 506, 512, 513, 514}
"""The fields without which PyIceberg reads no list."""

_CONTENTS = tuple(sorted(ManifestContent))

_FOLD = 64
"""Trailing blocks of one entry that are folded into one block."""


def to_json(manifest: ManifestFile) -> dict[str, Any]:
    """Return *manifest* as JSON values, bounds as hexadecimal."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, list):
            return [[plain(item) for item in summary._data] for summary in value]
        return int(value) if isinstance(value, ManifestContent) else value

    return {str(field_id): plain(value) for field_id, value in zip(_FIELD_IDS, manifest._data, strict=False)}


def from_json(fields: dict[str, Any]) -> ManifestFile:
    """Return the manifest that :func:`to_json` wrote."""
    data = [fields.get(str(field_id)) for field_id in _FIELD_IDS]
    data[3] = ManifestContent(data[3] or 0)
    if data[13] is not None:
        data[13] = [
            PartitionFieldSummary(null, nan, *(None if bound is None else bytes.fromhex(bound) for bound in bounds))
            for null, nan, *bounds in data[13]
        ]
    if data[14] is not None:
        data[14] = bytes.fromhex(data[14])
    return ManifestFile(*data)


def numbered(manifest: ManifestFile, sequence_number: int) -> ManifestFile:
    """Return *manifest* with the sequence number of the commit that adds it, where it has none yet."""
    copied = ManifestFile(*manifest._data)
    if copied.sequence_number == UNASSIGNED_SEQ:
        copied.sequence_number = sequence_number
    if copied.min_sequence_number == UNASSIGNED_SEQ:
        copied.min_sequence_number = sequence_number
    return copied


def unnumbered(manifest: ManifestFile) -> ManifestFile:
    """Return *manifest*, whose entries are all added ones, as if no commit had given it a sequence number."""
    copied = ManifestFile(*manifest._data)
    copied.sequence_number = copied.min_sequence_number = UNASSIGNED_SEQ
    return copied


def added_by(manifest: ManifestFile, snapshot_id: int) -> ManifestFile:
    """Return *manifest* as one that the snapshot *snapshot_id* adds: its entries must leave theirs open."""
    data = list(manifest._data)
    data[_FIELD_IDS.index(503)] = snapshot_id
    return ManifestFile(*data)


def check_whole(io: FileIO, manifests: Iterable[ManifestFile]) -> None:
    """Return if each of *manifests* is there and as it was written: a commit that names another one breaks its table.

    Raises:
        OSError: One is missing.
        ValueError: One is no whole Avro file, or not as long as it was. Its entries are not decoded.
    """
    for manifest in manifests:
        whole(io, manifest)


def whole(io: FileIO, manifest: ManifestFile) -> bytes:
    """Return the content of *manifest*; raise as :func:`check_whole` does."""
    with io.new_input(manifest.manifest_path).open() as stream:
        data: bytes = stream.read()
    sync = data[-16:]
    if len(data) != manifest.manifest_length or not data.startswith(avro.MAGIC) or data.count(sync) < 2:
        raise ValueError(f"the manifest {manifest.manifest_path} is damaged")
    return data


class RecentLists:
    """The lists that were written last. Thread safe.

    A list never changes, and the next commit of the same writer grows it. So it need not be read again, which would be
    done under the latch.
    """

    _KEPT = 8
    _LARGEST = 4 * 1024 * 1024
    _MANIFESTS = 20_000
    """Manifests of the lists that are kept decoded, all together. One takes about a kilobyte."""

    def __init__(self) -> None:
        self._lists: dict[str, bytes] = {}
        """By location. Each step below is one of the interpreter's, so threads need no lock."""
        self._decoded: OrderedDict[str, Mapping[str, ManifestFile]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def take(self, location: str) -> bytes | None:
        """Return the list at *location*, None when it is not here; forget it, since the next commit grows another."""
        return self._lists.pop(location, None)

    def keep(self, location: str, data: bytes) -> None:
        """Keep the list at *location*, if it is not too large, and forget the oldest one."""
        if len(data) <= self._LARGEST:
            self._lists[location] = data
            for oldest in list(self._lists)[: -self._KEPT]:
                self._lists.pop(oldest, None)

    def manifests(self, io: FileIO, location: str) -> Mapping[str, ManifestFile]:
        """Return the manifests of the list at *location* by their paths; nobody may change them.

        They are kept, also those of the lists that this process makes of it: the next clients ask for those.
        """
        with self._lock:
            if (found := self._decoded.get(location)) is not None:
                self._decoded.move_to_end(location)
                return found
        found = {manifest.manifest_path: manifest for manifest in read(io, location)}
        self._keep_decoded(location, found)
        return found

    def grown(self, head: str, location: str, added: Iterable[ManifestFile]) -> None:
        """Note that the list at *location* was made of that at *head*, with *added* behind it."""
        with self._lock:
            known = self._decoded.get(head)
        if known is not None:
            self._keep_decoded(location, {**known, **{manifest.manifest_path: manifest for manifest in added}})

    def _keep_decoded(self, location: str, found: Mapping[str, ManifestFile]) -> None:
        if len(found) > self._MANIFESTS:
            return  # all others would have to go for it
        with self._lock:
            self._count += len(found) - len(self._decoded.pop(location, ()))
            self._decoded[location] = found
            while self._count > self._MANIFESTS:
                _, oldest = self._decoded.popitem(last=False)
                self._count -= len(oldest)


def write_appended(
    io: FileIO,
    location: str,
    *,
    head: str | None,
    added: Sequence[ManifestFile],
    merged: ManifestFile | None = None,
    replaced: frozenset[str] = frozenset(),
    clean: bool = False,
    metadata: TableMetadata,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
    known: RecentLists | None = None,
) -> bool:
    """Write at *location* the manifest list *head* with *added*.

    Returns:
        Whether the list has *merged* instead of *replaced*: only when *head* still has all of these.

    Args:
        io: Reads *head*, writes *location*.
        location: Where; must not exist.
        head: The list of the parent snapshot, None when there is no parent.
        added: New manifests, those of this commit without sequence numbers.
        merged: A manifest with the live entries of *replaced*.
        replaced: Paths of manifests.
        clean: Leave out manifests that hold nothing but deleted entries, as PyIceberg's appends do: they concern the
            snapshot that deleted, and would pile up. The list is then decoded instead of copied.
        metadata: Says the format version and the Avro codec.
        snapshot_id: The snapshot whose list this is.
        parent_snapshot_id: Its parent.
        sequence_number: Its sequence number; 0 in version 1.
        known: May have *head*, and gets the new list.
    """
    known = known or RecentLists()
    added = [numbered(manifest, sequence_number) for manifest in added]
    kept = read(io, head) if head is not None and (clean or merged is not None) else None
    use_merged = kept is not None and replaced <= {manifest.manifest_path for manifest in kept}
    if head is not None and not use_merged and not clean:
        old = known.take(head) or _content(io, head)
        data = _grown(old, added, metadata.format_version, snapshot_id, parent_snapshot_id, sequence_number)
        if data is not None:
            with io.new_output(location).create() as output:
                output.write(data)
            known.keep(location, data)
            known.grown(head, location, added)
            return False
        kept = kept if kept is not None else read(io, head)
    if use_merged and merged is not None:
        added.append(numbered(merged, sequence_number))
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=io.new_output(location),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_snapshot_id,
        sequence_number=sequence_number,
        avro_compression=metadata.properties.get("write.avro.compression-codec", "gzip"),  # type: ignore[arg-type]
    ) as writer:
        live = [m for m in kept or () if m.has_added_files() or m.has_existing_files()]
        listed = added + [m for m in live if not (use_merged and m.manifest_path in replaced)]
        if listed:
            writer.add_manifests(listed)
    return use_merged


def count(io: FileIO, location: str) -> int:
    """Return how many manifests the list at *location* has, without a look at them."""
    data = _content(io, location)
    return sum(block.records for block in avro.blocks(data, avro.header(data)[1]))


def hidden(io: FileIO, location: str) -> int:
    """Return how many manifests of the list at *location* PyIceberg does not see."""
    return avro.hidden(_content(io, location))


def read(io: FileIO, location: str) -> list[ManifestFile]:
    """Return the manifests of the list at *location*, by whatever engine it was written.

    Not through ``Snapshot.manifests``: that answers from a cache keyed by path, which keeps whatever sequence
    numbers it saw first; and it stops at a block of no records.
    """
    return read_others(io, location, {})


def read_others(io: FileIO, location: str, known: dict[str, ManifestFile]) -> list[ManifestFile]:
    """Return the manifests of the list at *location* without the *known* ones, which are taken out of *known*."""
    data = avro.without_empty_blocks(_content(io, location))
    found = decoded(data, known)
    if found is None:
        listed = read_manifest_list(_InMemory(location, data))
        return [manifest for manifest in listed if known.pop(manifest.manifest_path, None) is None]
    return found


def paths(location: str, data: bytes) -> set[str]:
    """Return the paths of the manifests in the list *data* from *location*, as PyIceberg's decoder reads them.

    It shares no code with :func:`decoded`, nor with the library below that. 10,000 paths take 80 ms.
    """
    found: set[str] = set()
    with AvroFile[Record](_InMemory(location, data), _PATH) as reader:
        more = True
        while more:
            before = reader.block
            found.update(record[0] for record in reader)
            # It stops at a block of no records, and goes on if it is asked again. At the end of the file it must not be
            # asked: there no block is new.
            last = reader.block
            more = last is not None and last is not before and not last.block_records
    return found


def decoded(data: bytes, known: dict[str, ManifestFile] | None = None) -> list[ManifestFile] | None:
    """Return the manifests of the list *data*, up to a block of no records; None where PyIceberg must read it.

    As PyIceberg does, whose decoder makes fifty calls for each manifest.

    Args:
        data: The list.
        known: Manifests by path that are left out, and taken out of it: of them nothing but the path is looked at.

    Raises:
        ValueError: The list is damaged.
    """
    known = {} if known is None else known
    meta, start = avro.header(data)
    decompress = avro.CODECS.get(meta.get("avro.codec", b"null"), (None, None))[1]
    if "avro.schema" not in meta:
        raise ValueError("the manifest list does not tell its schema")
    schema, names = schema_and_names(meta["avro.schema"])
    if decompress is None or not names.keys() >= _COUNTED:
        return None
    keys, summary_keys = ([names.get(field_id, "") for field_id in ids] for ids in (_FIELD_IDS, _SUMMARY_IDS))
    sync = data[start - 16 : start]
    found: list[ManifestFile] = []
    for block in avro.blocks(data, start):
        if not block.records:
            break
        if data[block.end - 16 : block.end] != sync:
            raise ValueError("a block of the manifest list does not end where it should")
        records = stdio.BytesIO(decompress(data[block.payload : block.payload + block.size]))
        for _ in range(block.records):
            record: Any = fastavro.schemaless_reader(records, schema, None)
            if known and known.pop(record[keys[0]], None) is not None:
                continue
            values = [record.get(key) for key in keys]
            values[3] = _CONTENTS[values[3] or 0]
            values[4], values[5] = values[4] or 0, values[5] or 0
            if values[13] is not None:
                values[13] = [PartitionFieldSummary(*[part.get(key) for key in summary_keys]) for part in values[13]]
            found.append(ManifestFile(*values))
    return found


def encoded(manifests: Iterable[ManifestFile], format_version: int) -> bytes:
    """Return the records of *manifests* in a list of *format_version*, one behind the other, as PyIceberg writes them.

    PyIceberg's encoder makes a hundred calls for each.
    """
    schema, names = _written_schema(format_version)
    records = stdio.BytesIO()
    for manifest in manifests:
        fastavro.schemaless_writer(records, schema, _record(manifest, names))
    return records.getvalue()


@lru_cache
def _written_schema(format_version: int) -> tuple[Any, dict[int, str]]:
    written = AvroSchemaConversion().iceberg_to_avro(
        MANIFEST_LIST_FILE_SCHEMAS[format_version], schema_name="manifest_file"
    )
    return schema_and_names(orjson.dumps(written))


def _content(io: FileIO, location: str) -> bytes:
    with io.new_input(location).open() as stream:
        return stream.read()


class _InMemory(InputFile):
    """A file that was read already."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return stdio.BytesIO(self._data)


def _names(schema: Any) -> dict[int, str]:
    """Return field id → name of a manifest list's Avro schema: names changed over versions, ids never."""
    found: dict[int, str] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for option in node:
                walk(option)
        elif isinstance(node, dict):
            for field in node.get("fields", ()):
                if "field-id" in field:
                    found[int(field["field-id"])] = field["name"]
                walk(field["type"])
            if isinstance(node.get("type"), dict | list):
                walk(node["type"])
            if "items" in node:
                walk(node["items"])

    walk(schema)
    return found


def _record(manifest: ManifestFile, names: dict[int, str]) -> dict[str, Any]:
    values = dict(zip(_FIELD_IDS, manifest._data, strict=False))
    record = {names[field_id]: value for field_id, value in values.items() if field_id in names}
    if 517 in names:
        record[names[517]] = int(manifest.content)
    if record.get(names.get(507, "")) is not None:
        record[names[507]] = [
            {names[i]: value for i, value in zip(_SUMMARY_IDS, summary._data, strict=True) if i in names}
            for summary in manifest.partitions or ()
        ]
    return record


def _grown(
    old: bytes,
    added: Iterable[ManifestFile],
    format_version: int,
    snapshot_id: int,
    parent_snapshot_id: int | None,
    sequence_number: int,
) -> bytes | None:
    """Return the new file, or None where the old one's schema or codec does not serve.

    Source: Avro specification, "Object Container Files".
    """
    meta, start = avro.header(old)
    codec = meta.get("avro.codec", b"null")
    schema, names = schema_and_names(meta["avro.schema"])
    if not _REQUIRED[format_version] <= names.keys() or codec not in avro.CODECS:
        return None
    sync = old[start - 16 : start]
    blocks = list(avro.blocks(old, start))
    if not all(block.records for block in blocks):
        old = avro.without_empty_blocks(old)
        blocks = list(avro.blocks(old, start))
    records = stdio.BytesIO()
    kept_end, count = len(old), 0
    if len(blocks) >= _FOLD and all(block.records == 1 for block in blocks[-_FOLD:]):
        # A block is its records, one behind the other: to fold blocks, put them behind each other.
        kept_end, count = blocks[-_FOLD].begin, _FOLD
        for block in blocks[-_FOLD:]:
            records.write(avro.CODECS[codec][1](old[block.payload : block.payload + block.size]))
    for manifest in added:
        fastavro.schemaless_writer(records, schema, _record(manifest, names))
        count += 1
    meta |= {
        "snapshot-id": b"%d" % snapshot_id,
        "parent-snapshot-id": b"null" if parent_snapshot_id is None else b"%d" % parent_snapshot_id,
        "format-version": b"%d" % format_version,
        "sequence-number": b"%d" % sequence_number,
    }
    if format_version == 1:
        del meta["sequence-number"]
    # An append of no rows adds no manifest, hence no block.
    fresh = avro.block(count, avro.CODECS[codec][0](records.getvalue()), sync) if count else b""
    return avro.put_together(meta, sync, old[start:kept_end] + fresh)


@lru_cache(maxsize=32)
def schema_and_names(text: bytes) -> tuple[Any, dict[int, str]]:
    """Return a writer schema made ready, and its names by field id; a table's lists share one."""
    schema = orjson.loads(text)
    return fastavro.parse_schema(_as_stored(schema, set())), _names(schema)


def _as_stored(schema: Any, names: set[str]) -> Any:
    """Return *schema* without logical types, and with every ``fixed`` under a name of its own.

    PyIceberg's manifests may define one name twice. By its logical type, a decimal with more digits than the type, as
    partitions may have it, would be rounded, and a date beyond the year 9999 is an error.
    """
    if isinstance(schema, list):
        return [_as_stored(one, names) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _as_stored(value, names) for key, value in schema.items() if key != "logicalType"}
    if made.get("type") == "fixed":
        while made["name"] in names:
            made["name"] += "_"
        names.add(made["name"])
    return made
