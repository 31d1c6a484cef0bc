"""What must hold between the files of a table.

``faults`` says what does not fit: partition values are recomputed from the rows of each file, bounds and counts are
held against them, summaries against manifests, logs against snapshots.
"""

from __future__ import annotations

import decimal
import itertools
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from commit_coord.testing.table_files.observed import BY_VALUE, Json, Live, Manifest, Observed, local
from commit_coord.testing.table_files.state import leaves, value_at
from commit_coord.testing.table_files.transforms import EPOCH, micros, transformed
from commit_coord.testing.table_files.values import Row


def faults(now: Observed, before: Observed | None) -> Iterator[str]:
    """Yield what is wrong in a table, given that it was right *before*."""
    known = before.snapshots if before is not None and before.raw["table-uuid"] == now.raw["table-uuid"] else {}
    yield from faults_of_document(now, before)
    for snapshot_id, snapshot in now.snapshots.items():
        if snapshot_id not in known:
            yield from _snapshot(now, snapshot)
        elif not now.files.exists(snapshot["manifest-list"]):
            yield "the manifest list of an old snapshot is gone"
    for path in reachable(now):
        if not now.files.exists(path):
            yield f"a file is missing: {os.path.basename(path)}"


def faults_of_document(now: Observed, before: Observed | None) -> Iterator[str]:
    """Yield what is wrong in a metadata file, whatever it leads to, given that the table was right *before*."""
    raw = now.raw
    yield from _logs(now, before)
    yield from _given_once(now)
    for what, key in (("schemas", "schema-id"), ("partition-specs", "spec-id"), ("sort-orders", "order-id")):
        if len({one[key] for one in raw[what]}) != len(raw[what]):
            yield f"two {what} have one id"
    for spec in raw["partition-specs"]:
        if len({one["field-id"] for one in spec["fields"]}) != len(spec["fields"]):
            yield "two fields of a partition spec have one id"
    for name, ref in raw.get("refs", {}).items():
        if ref["snapshot-id"] not in now.snapshots:
            yield f"{name} refers to a snapshot that is gone"


def _given_once(now: Observed) -> Iterator[str]:
    """Sequence numbers and row ids. A snapshot that follows none may have a number that another line has, too."""
    raw, snapshots = now.raw, now.snapshots.values()
    numbers = [s.get("sequence-number") or 0 for s in snapshots]
    if raw["format-version"] > 1 and max(numbers, default=0) > raw["last-sequence-number"]:
        yield "a snapshot's sequence number is above the table's last one"
    following = [s["sequence-number"] for s in snapshots if s.get("parent-snapshot-id") and s.get("sequence-number")]
    if len(set(following)) != len(following):
        yield "two snapshots have one sequence number"
    for snapshot in snapshots:
        parent = now.snapshots.get(snapshot.get("parent-snapshot-id") or 0, {})
        if snapshot.get("sequence-number") and snapshot["sequence-number"] == parent.get("sequence-number"):
            yield "a snapshot has the sequence number of its parent"
    if raw["format-version"] > 2:
        given = sorted((s["first-row-id"], s["first-row-id"] + s["added-rows"]) for s in snapshots if "added-rows" in s)
        if any(first < end for (_, end), (first, _) in itertools.pairwise(given)):
            yield "two snapshots have one row id"
        if max((end for _, end in given), default=0) > raw["next-row-id"]:
            yield "a snapshot has row ids above the table's next one"


def faults_of_head(now: Observed) -> Iterator[str]:
    """Yield what is wrong in the logs and the present snapshot of a table with many snapshots.

    The table may have been written by writers that were killed: what nothing leads to is not looked at.
    """
    yield from _logs(now, None)
    head = now.raw.get("current-snapshot-id")
    if head in now.snapshots:
        yield from _snapshot(now, now.snapshots[head])


def reachable(now: Observed) -> Iterator[str]:
    """Yield each file that a metadata file leads to."""
    yield local(now.location)
    for snapshot in now.snapshots.values():
        yield local(snapshot["manifest-list"])
        for manifest in now.files.manifest_list(snapshot["manifest-list"]):
            yield local(manifest["manifest_path"])
            for entry in now.files.manifest(manifest["manifest_path"]).entries:
                if entry["status"] != 2:
                    yield local(entry["data_file"]["file_path"])


def _logs(now: Observed, before: Observed | None) -> Iterator[str]:
    raw = now.raw
    log = raw.get("snapshot-log", [])
    if any(entry["snapshot-id"] not in now.snapshots for entry in log):
        yield "the snapshot log names a snapshot that is gone"
    current = raw.get("current-snapshot-id")
    if current in now.snapshots and log and log[-1]["snapshot-id"] != current:
        yield "the snapshot log does not end with the present snapshot"
    for key, entries in (("snapshot", log), ("metadata", raw.get("metadata-log", []))):
        times = [entry["timestamp-ms"] for entry in entries]
        if times != sorted(times):
            yield f"the {key} log steps back in time"
    if before is not None and before.raw["table-uuid"] == raw["table-uuid"] and before.location != now.location:
        if not raw.get("metadata-log") or raw["metadata-log"][-1]["metadata-file"] != before.location:
            yield "the metadata log does not end with the file before"
        if raw["last-updated-ms"] < before.raw["last-updated-ms"]:
            yield "last-updated-ms steps back"
        if raw["last-column-id"] < before.raw["last-column-id"]:
            yield "last-column-id steps back"
        yield from _gaps(log, before.raw.get("snapshot-log", []), set(now.snapshots))


def _gaps(log: list[Json], old: list[Json], there: set[int]) -> Iterator[str]:
    """What was the present snapshot before one that is gone must not seem to have been it for longer."""
    gone = [at for at, entry in enumerate(old) if entry["snapshot-id"] not in there]
    if gone and any(entry in log for entry in old[: gone[-1]]):
        yield "the snapshot log has entries before one that is gone"


def _snapshot(now: Observed, snapshot: Json) -> Iterator[str]:
    version = now.raw["format-version"]
    parent = now.snapshots.get(snapshot.get("parent-snapshot-id") or 0)
    if parent is not None and snapshot.get("sequence-number", 0) < parent.get("sequence-number", 0):
        yield "a snapshot's sequence number is below its parent's"
    if "schema-id" in snapshot and snapshot["schema-id"] not in now.schemas:
        yield "a snapshot's schema is gone"
    if not now.files.exists(snapshot["manifest-list"]):
        yield "a manifest list is missing"
        return
    paths: Counter[str] = Counter()
    for manifest in now.files.manifest_list(snapshot["manifest-list"]):
        if not now.files.exists(manifest["manifest_path"]):
            yield "a manifest is missing"
            continue
        yield from _manifest(now, snapshot, manifest, version)
    for file in now.live(snapshot["snapshot-id"]):
        paths[file.path] += 1
        yield from _data_file(now, file)
    for file in now.deletes(snapshot["snapshot-id"]):
        paths[file.path] += 1
        yield from _file(now, file)
    if doubled := [path for path, times in paths.items() if times > 1]:
        yield f"files are in a snapshot twice: {len(doubled)}"
    yield from _summary(now, snapshot, parent)


def _manifest(now: Observed, snapshot: Json, manifest: Json, version: int) -> Iterator[str]:
    found = now.files.manifest(manifest["manifest_path"])
    spec_id = manifest["partition_spec_id"]
    if spec_id not in now.specs:
        yield f"a manifest is of a spec that is not there: {spec_id}"
        return
    if int(found.about.get("partition-spec-id", 0)) != spec_id:
        yield "a manifest and its list name two specs"
    named = [(f["source-id"], f["transform"]) for f in json.loads(found.about["partition-spec"])]
    if named != [(p.source, p.transform) for p in now.specs[spec_id]]:
        yield "the spec written in a manifest is another one than the table's of that id"
    if not found.entries:
        yield "an empty manifest"
    # An append may have been prepared before the table's upgrade, but old files are written anew on what is there.
    anew = manifest["added_snapshot_id"] == snapshot["snapshot-id"] and any(e["status"] == 0 for e in found.entries)
    if anew and int(found.about.get("format-version", 1)) != version:
        yield "a manifest of old files is written in another format version than the table's"
    for status, kind in ((1, "added"), (0, "existing"), (2, "deleted")):
        inside = [e for e in found.entries if e["status"] == status]
        key = f"{kind}_files_count" if f"{kind}_files_count" in manifest else f"{kind}_data_files_count"
        if manifest.get(key) is not None and manifest[key] != len(inside):
            yield f"a list counts {manifest[key]} {kind} files, its manifest has {len(inside)}"
        records = sum(e["data_file"]["record_count"] for e in inside)
        if manifest.get(f"{kind}_rows_count") is not None and manifest[f"{kind}_rows_count"] != records:
            yield f"a list counts {manifest[f'{kind}_rows_count']} {kind} rows, its manifest has {records}"
    if version > 1:
        yield from _sequence_numbers(snapshot, manifest, found)
    yield from _partition_summaries(now, manifest, found)


def _sequence_numbers(snapshot: Json, manifest: Json, found: Manifest) -> Iterator[str]:
    number = manifest.get("sequence_number")
    if number is None:
        return  # a list of format version 1: all are 0
    if number > snapshot.get("sequence-number", 0):
        yield "a manifest's sequence number is above its snapshot's"
    lowest = manifest.get("min_sequence_number")
    old = int(found.about.get("format-version", 1)) == 1
    for entry in found.entries:
        own = entry.get("sequence_number")
        if own is None and not old and entry["status"] != 1:
            yield "an entry that is not new has no sequence number"
            return
        if own is not None and entry["status"] != 2 and lowest is not None and own < lowest:
            yield "an entry's sequence number is below its manifest's least one"
        if own is not None and own > number:
            yield "an entry's sequence number is above its manifest's"


def _partition_summaries(now: Observed, manifest: Json, found: Manifest) -> Iterator[str]:
    spec, summaries = now.specs[manifest["partition_spec_id"]], manifest.get("partitions")
    if not summaries:
        return
    if len(summaries) != len(spec):
        yield f"a list sums up {len(summaries)} partition fields of {len(spec)}"
        return
    for position, (part, summary) in enumerate(zip(spec, summaries, strict=True)):
        values = [list(e["data_file"]["partition"].values())[position] for e in found.entries if e["status"] != 2]
        if None in values and not summary["contains_null"]:
            yield f"a list says that {part.name} is never null"
        nans = any(isinstance(v, float) and math.isnan(v) for v in values)
        if nans and summary.get("contains_nan") is False:
            yield f"a list says that {part.name} is never NaN"
        source = now.schema.find_field(part.source) if part.source in now.schema.field_ids else None
        if source is None or part.transform == "void":
            continue
        kind = _result_type(part.transform, source.field_type)
        yield from _bounds(
            f"in a list, {part.name}", summary["lower_bound"], summary["upper_bound"], map(_plain, values), kind
        )


def _plain(value: Any) -> Any:
    """Return a partition value as Avro gives it in the terms of the model."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _result_type(transform: str, source: IcebergType) -> IcebergType | None:
    return source if transform.partition("[")[0] in {"identity", "truncate"} else None


def _file(now: Observed, live: Live) -> Iterator[str]:
    file, path = live.file, live.path
    if not now.files.exists(path):
        yield "a data file is missing"
        return
    if now.files.size(path) != file["file_size_in_bytes"]:
        yield "a data file has another size than its entry says"
    rows = now.files.data(path)
    if file["record_count"] != len(rows):
        yield f"an entry counts {file['record_count']} records in a file of {len(rows)}"


def _data_file(now: Observed, live: Live) -> Iterator[str]:
    yield from _file(now, live)
    if now.files.exists(live.path):
        rows = now.files.data(live.path)
        yield from _partition(now, live, rows)
        yield from _metrics(now, live.file, rows)


def _partition(now: Observed, live: Live, rows: list[Row]) -> Iterator[str]:
    spec = now.specs[live.manifest["partition_spec_id"]]
    values = list(live.file["partition"].values())
    if len(values) != len(spec):
        yield f"a file has {len(values)} partition values, its spec {len(spec)} fields"
        return
    types = {f.field_id: f.field_type for schema in now.schemas.values() for f in schema.fields}
    for part, found in zip(spec, values, strict=True):
        kind = types.get(part.source)
        if kind is None:
            continue
        for row in rows:
            wanted = transformed(part.transform, dict(row).get(part.source), kind)
            if not _same_partition(wanted, found):
                yield f"a file lies in {part.name}={found!r}, and has a row of {wanted!r}"
                break


def _same_partition(wanted: Any, found: Any) -> bool:
    """Return whether a row of *wanted* lies in the partition *found*: zeros of both signs lie in 0.0, NaN in NaN."""
    if isinstance(found, date) and not isinstance(found, datetime) and isinstance(wanted, int):
        found = (found - EPOCH).days
    if isinstance(found, datetime) and isinstance(wanted, datetime):
        return micros(found) == micros(wanted)
    if isinstance(found, float) and isinstance(wanted, float):
        return repr(wanted + 0.0) == repr(found)  # -0.0 + 0.0 is 0.0
    if isinstance(wanted, UUID) and isinstance(found, bytes):
        return wanted.bytes == found
    return bool(wanted == found)


def _metrics(now: Observed, file: Json, rows: list[Row]) -> Iterator[str]:
    for column in now.schema.fields:
        key = column.field_id
        if not column.field_type.is_primitive:
            continue
        values = [dict(row).get(key) for row in rows]
        there = [v for v in values if v is not None]
        nans = sum(isinstance(v, float) and math.isnan(v) for v in there)
        counts = {"value_counts": len(values), "null_value_counts": len(values) - len(there), "nan_value_counts": nans}
        for name, wanted in counts.items():
            stated = _of(file, name, key)
            if (
                stated is not None
                and stated != wanted
                and (any(k == key for row in rows for k, _ in row) or stated < wanted)
            ):
                yield f"{name} of {column.name} is {stated}, of {wanted}"
    for path, ids in leaves(now.schema.as_struct()):
        lower, upper = _of(file, "lower_bounds", ids[-1]), _of(file, "upper_bounds", ids[-1])
        yield from _bounds(path, lower, upper, (value_at(row, ids) for row in rows), now.schema.find_type(ids[-1]))


def _of(file: Json, name: str, key: int) -> Any:
    found = file.get(name)
    pairs = found.items() if isinstance(found, dict) else ((p["key"], p["value"]) for p in found or ())
    return next((value for known, value in pairs if int(known) == key), None)


def _bounds(
    what: str, lower: bytes | None, upper: bytes | None, values: Any, kind: IcebergType | None
) -> Iterator[str]:
    values = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    if kind is None or not values:
        return
    try:
        low = _decoded(lower, kind) if lower is not None else None
        high = _decoded(upper, kind) if upper is not None else None
        if low is not None and any(_comparable(v) < low for v in values):
            yield f"the lower bound of {what}, {low!r}, is above a value"
        if high is not None and any(_comparable(v) > high for v in values):
            yield f"the upper bound of {what}, {high!r}, is below a value"
    except TypeError as error:
        yield f"the bounds of {what} are of another type: {error}"


def _comparable(value: Any) -> Any:
    match value:
        case datetime():
            return micros(value)
        case date():
            return (value - EPOCH).days
        case time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case str():
            return value.encode()
        case UUID():
            return value.bytes
    return value


def _decoded(data: bytes, kind: IcebergType) -> Any:
    """Return a bound, as the specification's binary form of single values has it, comparable."""
    match kind:
        case FloatType() | DoubleType():
            return struct.unpack("<f" if len(data) == 4 else "<d", data)[0]
        case DecimalType(scale=scale):
            # Not scaleb(): that rounds to the context's 28 digits.
            number = int.from_bytes(data, "big", signed=True)
            return decimal.Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))
        case DateType() | TimeType() | TimestampType() | TimestamptzType():
            return int.from_bytes(data, "little", signed=True)
    if str(kind) in {"int", "long"}:
        return int.from_bytes(data, "little", signed=True)
    if str(kind) == "boolean":
        return data != b"\0"
    return data


def _summary(now: Observed, snapshot: Json, parent: Json | None) -> Iterator[str]:
    stated = snapshot.get("summary", {})
    live = {file.path: file.file for file in now.live(snapshot["snapshot-id"])}
    deletes = [file.file for file in now.deletes(snapshot["snapshot-id"])]
    totals = {
        "total-records": sum(f["record_count"] for f in live.values()),
        "total-data-files": len(live),
        "total-files-size": sum(f["file_size_in_bytes"] for f in (*live.values(), *deletes)),
        "total-delete-files": len(deletes),
        "total-position-deletes": sum(f["record_count"] for f in deletes if f["content"] != BY_VALUE),
        "total-equality-deletes": sum(f["record_count"] for f in deletes if f["content"] == BY_VALUE),
    }
    for key, wanted in totals.items():
        if key in stated and int(stated[key]) != wanted:
            yield f"{key} is {stated[key]}, of {wanted}"
    if parent is None and snapshot.get("parent-snapshot-id") is not None:
        return  # expired: what changed is not known
    old = {file.path: file.file for file in now.live(parent["snapshot-id"])} if parent is not None else {}
    added = [f for path, f in live.items() if path not in old]
    removed = [f for path, f in old.items() if path not in live]
    changes = {
        "added-data-files": len(added),
        "added-records": sum(f["record_count"] for f in added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(f["record_count"] for f in removed),
    }
    for key, wanted in changes.items():
        if int(stated.get(key, 0)) != wanted:
            yield f"{key} is {stated.get(key, 0)}, of {wanted}"
