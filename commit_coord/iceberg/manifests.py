"""Manifests of added files, and small manifests put together.

PyIceberg derives the Avro schema of a manifest, its encoder and its header anew for each file, which takes longer than
writing the entry of an append. They depend on the table's schema and spec alone, so they are kept from one to the next.

A table that is appended to all day gets a manifest with each append. ``commit.manifest-merge.enabled`` has them merged;
PyIceberg and Java then write all of them anew each time, which costs more the more there are. Here the smallest go
together, until half of them are left at most, and with them a larger one only when they outnumber it: so an entry is
written anew a logarithmic number of times, and the number of manifests stays below
``commit.manifest.min-count-to-merge`` and one for each full ``commit.manifest.target-size-bytes``.
"""

from __future__ import annotations

import io as stdio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import fastavro
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.writer import Writer
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    construct_partition_summaries,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import StructType

from commit_coord.iceberg import avro, manifest_list
from commit_coord.iceberg.manifest_list import schema_and_names
from commit_coord.iceberg.written import ByContent, partition_schema


def due(manifests: Sequence[ManifestFile], *, added: int, min_count: int, target_bytes: int) -> list[ManifestFile]:
    """Return those of *manifests*, which are of one spec, that should be put together now.

    Args:
        manifests: In a table's list.
        added: How many the commit adds.
        min_count: ``commit.manifest.min-count-to-merge``.
        target_bytes: ``commit.manifest.target-size-bytes``.
    """
    small = sorted((m for m in manifests if m.manifest_length < target_bytes), key=_files)
    if len(small) + added < min_count:
        return []
    chosen: list[ManifestFile] = []
    # Were only the surplus put together, the next append would bring the next one, and everything were written anew.
    enough = len(small) + added + 1 - min_count // 2
    size = files = 0
    for manifest in small:
        size += manifest.manifest_length
        if size > target_bytes or (len(chosen) >= enough and _files(manifest) > files):
            break
        chosen.append(manifest)
        files += _files(manifest)
    return chosen if len(chosen) > 1 else []


def _files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


class _Form(NamedTuple):
    """The common data of manifests with one schema, spec, format version and codec."""

    header: bytes
    """Without its sync marker."""
    encoder: Writer
    compress: Callable[[bytes], tuple[bytes, int]]


@lru_cache(maxsize=64)
def _form(format_version: int, schema: ByContent[Schema], spec: ByContent[PartitionSpec], codec: str) -> _Form:
    """Derive what PyIceberg begins a manifest with."""
    header = stdio.BytesIO()
    writer: Any = write_manifest(
        format_version,  # type: ignore[arg-type]  # of another one it says that it can't be written
        spec.value,
        schema.value,
        None,  # type: ignore[arg-type]  # nothing is written
        0,
        codec,  # type: ignore[arg-type]  # as above
    ).new_writer()
    writer.encoder = BinaryEncoder(header)
    writer._write_header()
    found = writer.compression_codec()
    return _Form(
        header=header.getvalue()[: -len(writer.sync_bytes)],
        encoder=writer.writer,
        compress=found.compress if found is not None else lambda data: (data, len(data)),
    )


_BLOCK_BYTES = 1024 * 1024
"""Of encoded entries that are compressed together."""


def write_added(
    io: FileIO,
    new_location: Callable[[], str],
    files: Sequence[DataFile],
    *,
    metadata: TableMetadata,
    spec: PartitionSpec,
    snapshot_id: int,
    inherits: bool,
    target_bytes: int = TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
) -> list[ManifestFile]:
    """Write the manifests of *files*, which the snapshot *snapshot_id* adds to a table; in their order.

    Who plans a read opens a manifest as a whole. So one is ended before it gets larger than *target_bytes*, unless a
    single block is (``_BLOCK_BYTES`` before compression).

    Args:
        io: Writes.
        new_location: Returns where the next one goes.
        files: At least one.
        metadata: The table's.
        spec: The partition spec of *files*.
        snapshot_id: The snapshot that adds them.
        inherits: Leave the snapshot's id open in the entries, to be inherited from the manifest list.
        target_bytes: ``commit.manifest.target-size-bytes``.
    """
    schema = partition_schema(metadata, spec)
    codec = metadata.properties.get("write.avro.compression-codec", "gzip")
    form = _form(metadata.format_version, ByContent(schema), ByContent(spec), codec)
    sync = os.urandom(16)
    blocks = _blocks(form, files, None if inherits else snapshot_id)
    written: list[ManifestFile] = []
    for begin, end, body in _bodies(blocks, sync, target_bytes - len(form.header) - len(sync)):
        location, data = new_location(), form.header + sync + body
        with io.new_output(location).create(overwrite=True) as output:
            output.write(data)
        written.append(_added(location, len(data), files[begin:end], spec, schema, snapshot_id))
    return written


class _Block(NamedTuple):
    """The compressed entries of the files from *begin* to *end*."""

    begin: int
    end: int
    payload: bytes


def _blocks(form: _Form, files: Sequence[DataFile], snapshot_id: int | None) -> Iterator[_Block]:
    """Yield the blocks of the manifests of *files*."""
    begin, records = 0, stdio.BytesIO()
    for end, file in enumerate(files, 1):
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=file,
        )
        form.encoder.write(BinaryEncoder(records), entry)
        if records.tell() >= _BLOCK_BYTES or end == len(files):
            yield _Block(begin, end, form.compress(records.getvalue())[0])
            begin, records = end, stdio.BytesIO()


def _bodies(blocks: Iterable[_Block], sync: bytes, target_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield for each manifest which files are in it, from where to where, and what follows its header."""
    begin, end, body = 0, 0, b""
    for block in blocks:
        data = avro.block(block.end - block.begin, block.payload, sync)
        if body and len(body) + len(data) > target_bytes:
            yield begin, end, body
            begin, body = end, b""
        end, body = block.end, body + data
    yield begin, end, body


def _added(
    location: str, length: int, files: Sequence[DataFile], spec: PartitionSpec, schema: Schema, snapshot_id: int
) -> ManifestFile:
    """Return what a manifest list says of a manifest of added *files*."""
    return ManifestFile.from_args(
        manifest_path=location,
        manifest_length=length,
        partition_spec_id=spec.spec_id,
        content=ManifestContent.DATA,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=UNASSIGNED_SEQ,
        added_snapshot_id=snapshot_id,
        added_files_count=len(files),
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=sum(file.record_count for file in files),
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=construct_partition_summaries(spec, schema, [file.partition for file in files]),
        key_metadata=None,
    )


def merge(
    io: FileIO,
    location: str,
    manifests: Sequence[ManifestFile],
    metadata: TableMetadata,
    spec: PartitionSpec,
    snapshot_id: int,
) -> ManifestFile | None:
    """Write at *location* one manifest with the live entries of *manifests*, as existing ones; None if that can't be.

    It can't where their files differ in their Avro schema, as those of several engines do, or are of an older format
    version than the table: an existing entry must say its sequence numbers, and those of version 1 have no place for
    them. Nor where no entry is live.

    Args:
        io: Reads and writes.
        location: Where; must not exist.
        manifests: Of one spec, data files only.
        metadata: The table's.
        spec: The partition spec of *manifests*.
        snapshot_id: The snapshot that adds it.
    """
    entries: list[dict[str, Any]] = []
    meta: dict[str, bytes] = {}
    for manifest in manifests:
        with io.new_input(manifest.manifest_path).open() as stream:
            data = stream.read()
        read, start = avro.header(data)
        meta = meta or read
        if read["avro.schema"] != meta["avro.schema"] or read.get("avro.codec", b"null") not in avro.CODECS:
            return None
        if int(read.get("format-version", b"1")) != metadata.format_version:
            return None
        entries += _live_entries(data, start, read, manifest)
    if not entries:
        return None
    partitions = _summaries(manifests, spec.partition_type(partition_schema(metadata, spec)))
    return _write_entries(io, location, meta, entries, manifests[0].partition_spec_id, partitions, snapshot_id)


def _write_entries(
    io: FileIO,
    location: str,
    meta: dict[str, bytes],
    entries: Sequence[dict[str, Any]],
    spec_id: int,
    partitions: list[PartitionFieldSummary] | None,
    snapshot_id: int,
) -> ManifestFile:
    """Write at *location* a manifest of data files with *entries*, decoded from files of the Avro metadata *meta*."""
    codec, sync = meta.get("avro.codec", b"null"), os.urandom(16)
    schema, _ = schema_and_names(meta["avro.schema"])
    records = stdio.BytesIO()
    for entry in entries:
        fastavro.schemaless_writer(records, schema, entry)
    data = avro.put_together(meta, sync, avro.block(len(entries), avro.CODECS[codec][0](records.getvalue()), sync))
    with io.new_output(location).create() as output:
        output.write(data)
    added = [entry for entry in entries if entry["status"] == ManifestEntryStatus.ADDED]
    existing = [entry for entry in entries if entry["status"] == ManifestEntryStatus.EXISTING]
    return ManifestFile.from_args(
        manifest_path=location,
        manifest_length=len(data),
        partition_spec_id=spec_id,
        content=ManifestContent.DATA,
        sequence_number=UNASSIGNED_SEQ,
        min_sequence_number=min((entry.get("sequence_number", 0) for entry in existing), default=UNASSIGNED_SEQ),
        added_snapshot_id=snapshot_id,
        added_files_count=len(added),
        existing_files_count=len(existing),
        deleted_files_count=0,
        added_rows_count=sum(entry["data_file"]["record_count"] for entry in added),
        existing_rows_count=sum(entry["data_file"]["record_count"] for entry in existing),
        deleted_rows_count=0,
        partitions=partitions,
        key_metadata=None,
    )


class Entries(NamedTuple):
    """The entries of a manifest, decoded, by their status."""

    meta: dict[str, bytes]
    """Of its Avro file."""
    added: list[dict[str, Any]]
    existing: list[dict[str, Any]]
    deleted: list[dict[str, Any]]

    def write(
        self, io: FileIO, location: str, entries: Sequence[dict[str, Any]], like: ManifestFile, snapshot_id: int
    ) -> ManifestFile:
        """Write at *location* a manifest with some of the *entries*.

        Args:
            io: Writes.
            location: Where; must not exist.
            entries: Some of these.
            like: The manifest that they are of. What it says of its partitions is true of some of its files, too.
            snapshot_id: Who adds the new one.
        """
        return _write_entries(io, location, self.meta, entries, like.partition_spec_id, like.partitions, snapshot_id)


def entries_of(io: FileIO, manifest: ManifestFile) -> Entries:
    """Return the entries of *manifest*, as they are written there.

    Raises:
        OSError: It is missing.
        ValueError: It is no whole Avro file, or compressed in a way that is not known here.
    """
    return entries_in(manifest_list.whole(io, manifest), manifest.manifest_path)


def entries_in(data: bytes, location: str) -> Entries:
    """Return the entries of the manifest *data* from *location*; raise as :func:`entries_of` does."""
    meta, start = avro.header(data)
    if meta.get("avro.codec", b"null") not in avro.CODECS:
        raise ValueError(f"the manifest {location} is compressed with {meta['avro.codec']!r}")
    found: dict[int, list[dict[str, Any]]] = {int(status): [] for status in ManifestEntryStatus}
    for entry in _decoded(data, start, meta):
        found[entry["status"]].append(entry)
    return Entries(
        meta,
        found[ManifestEntryStatus.ADDED],
        found[ManifestEntryStatus.EXISTING],
        found[ManifestEntryStatus.DELETED],
    )


def lacks_sequence_numbers(io: FileIO, manifest: ManifestFile) -> bool:
    """Return whether *manifest*, of a table of version 2, has existing entries that say no sequence number.

    Those of version 1 have no place for one. A manifest that version 1 wrote is of number 0, and its entries inherit
    that; one of a later number was merged from such manifests, and existing entries inherit nothing.
    """
    if manifest.content != ManifestContent.DATA or not manifest.sequence_number or not manifest.existing_files_count:
        return False
    with io.new_input(manifest.manifest_path).open() as stream:
        read, _ = avro.header(stream.read())
    return 3 not in schema_and_names(read["avro.schema"])[1]


def _live_entries(data: bytes, start: int, meta: dict[str, bytes], manifest: ManifestFile) -> Iterator[dict[str, Any]]:
    """Yield the entries of a manifest as existing ones, with what they inherit. Source: specification, "Manifests"."""
    for entry in _decoded(data, start, meta):
        if entry["status"] == ManifestEntryStatus.DELETED:
            continue
        if entry["snapshot_id"] is None:
            entry["snapshot_id"] = manifest.added_snapshot_id
        for name in ("sequence_number", "file_sequence_number"):
            if name in entry and entry[name] is None:
                entry[name] = manifest.sequence_number
        entry["status"] = int(ManifestEntryStatus.EXISTING)
        yield entry


def _decoded(data: bytes, start: int, meta: dict[str, bytes]) -> Iterator[dict[str, Any]]:
    schema, _ = schema_and_names(meta["avro.schema"])
    decompress = avro.CODECS[meta.get("avro.codec", b"null")][1]
    for block in avro.blocks(data, start):
        records = stdio.BytesIO(decompress(data[block.payload : block.payload + block.size]))
        for _ in range(block.records):
            entry: Any = fastavro.schemaless_reader(records, schema, None)
            yield entry


def _summaries(manifests: Sequence[ManifestFile], partition: StructType) -> list[PartitionFieldSummary] | None:
    """Return what the partitions of all of *manifests* have in common, field by field; None where one does not say.

    Readers skip a manifest by its summaries. To them a field without bounds has no value but null and NaN, so bounds
    that are not known can only be left out with all the rest.
    """
    if partition.fields and not all(manifest.partitions for manifest in manifests):
        return None
    found: list[PartitionFieldSummary] = []
    for position, field in enumerate(partition.fields):
        parts = [manifest.partitions[position] for manifest in manifests if manifest.partitions]
        typed: Callable[[bytes], Any] = partial(from_bytes, field.field_type)
        nan = {part.contains_nan for part in parts}
        found.append(
            PartitionFieldSummary(
                any(part.contains_null for part in parts),
                True if True in nan else None if None in nan else False,
                min((part.lower_bound for part in parts if part.lower_bound is not None), key=typed, default=None),
                max((part.upper_bound for part in parts if part.upper_bound is not None), key=typed, default=None),
            )
        )
    return found
