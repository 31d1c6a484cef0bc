"""Table metadata whose history stays unparsed until a caller reads it.

Theory of operation
    PyIceberg's ``update_table_metadata`` handles every update of the specification and costs next to nothing,
    but for two things: it ends in a deep copy of the whole metadata, and loading and dumping run every snapshot
    through Pydantic. At 5,000 snapshots that is 4.8 s of CPU for one append. So the classes here are PyIceberg's
    own models with another history inside: ``snapshots`` and the two logs are :class:`LazyModels`, shared
    between versions of the metadata and parsed entry by entry; and a deep copy that copies what can be
    changed in place (``properties``, ``refs``) and shares the rest, which is frozen.

    What PyIceberg does not know of (keys of newer versions, other engines' additions) is carried along: entries of
    the history stay JSON, also when they were parsed, and :mod:`commit_coord.iceberg.unknown` keeps the rest.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, Self, TypeVar, overload

import orjson
from pydantic import BaseModel, PrivateAttr, field_serializer
from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import (
    TableMetadata,
    TableMetadataUtil,
    TableMetadataV1,
    TableMetadataV2,
    TableMetadataV3,
)
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import IsolationLevel, MetadataLogEntry, Operation, Snapshot, SnapshotLogEntry
from pyiceberg.table.update import (
    AssignUUIDUpdate,
    RemoveSnapshotsUpdate,
    TableUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)
from pyiceberg.utils.properties import property_as_int

from commit_coord.errors import ConfigError
from commit_coord.iceberg.column_types import with_all_types
from commit_coord.iceberg.given import counted, numbered
from commit_coord.iceberg.partition_names import refuse_names
from commit_coord.iceberg.statistics import AnyStatisticsFile
from commit_coord.iceberg.unknown import ObjectKey, Unknown, of_schema, of_table, put_back, surviving
from commit_coord.iceberg.usable import refuse_unusable

M = TypeVar("M", bound=BaseModel)

_TAIL_MAX = 256
"""Entries behind the shared index before it is built anew; bounds what one added snapshot copies."""


class LazyModels(Sequence[M], Generic[M]):
    """An immutable sequence of Pydantic models that are parsed when they are asked for.

    An entry that was read is dumped as it was read: its model may not know all of its keys.

    Args:
        items: Raw JSON objects or parsed models; owned by the sequence from now on.
        parse: Makes a model of a raw object.
    """

    __slots__ = ("_index", "_indexed", "_items", "_json", "_models", "_named", "_parse", "_tail")

    def __init__(self, items: list[Any], parse: Callable[[dict[str, Any]], M]) -> None:
        self._items = items
        self._parse = parse
        self._models: dict[int, M] = {}
        """Models of raw objects that were asked for, by position."""
        self._index: dict[int, int] | None = None
        self._indexed = 0
        self._tail: dict[int, int] = {}
        self._named: dict[str, _Named] = {}
        """By the key of the summaries, once a caller has asked for a value there."""
        self._json: tuple[int, tuple[bytes, ...]] = (0, ())

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> list[M]: ...
    def __getitem__(self, index: int | slice) -> M | list[M]:
        """Return one entry or a plain list of entries, parsed."""
        if isinstance(index, slice):
            return [self._model(position) for position in range(*index.indices(len(self._items)))]
        return self._model(index if index >= 0 else len(self._items) + index)

    def _model(self, position: int) -> M:
        item = self._items[position]
        if not isinstance(item, dict):
            made: M = item
            return made
        model = self._models.get(position)
        if model is None:
            model = self._models[position] = self._parse(item)
        return model

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._items)

    def __iter__(self) -> Iterator[M]:
        """Parse and yield every entry."""
        return (self._model(position) for position in range(len(self._items)))

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence, entry by entry."""
        if isinstance(other, LazyModels) and self._items is other._items:
            return True
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash either

    def __repr__(self) -> str:
        """Return what a list would."""
        return repr(list(self))

    def __add__(self, added: Iterable[M]) -> LazyModels[M]:
        """Return this sequence with *added* behind it; nothing of this one is parsed."""
        grown = LazyModels([*self._items, *added], self._parse)
        grown._json = self._json
        grown._models = dict(self._models)
        # The index of one that was cut covers more than its entries.
        whole = self._indexed + len(self._tail) == len(self)
        if self._index is not None and whole and len(grown) - self._indexed <= _TAIL_MAX:
            grown._index, grown._indexed = self._index, self._indexed
            grown._tail = dict(self._tail)
            for position in range(len(self), len(grown)):
                grown._tail[_snapshot_id(grown._items[position])] = position
        for key, named in dict(self._named).items():  # copied in one step: another thread may ask for a key
            if (more := named.grown(grown._items, key)) is not None:
                grown._named[key] = more
        return grown

    @classmethod
    def of_json(
        cls, text: bytes, parse: Callable[[dict[str, Any]], M], known: LazyModels[M] | None = None
    ) -> LazyModels[M]:
        """Return the entries of *text*, a JSON array without its brackets.

        Args:
            text: Kept, for :meth:`json`.
            parse: Makes a model of a raw object.
            known: An earlier version of the sequence. Where *text* begins with its text, only the rest is read:
                a head that another writer made differs by the last few entries.
        """
        if known is not None:
            done, chunks = known._json
            at = _end_of(chunks, text)
            if 0 < done == len(known) and text[at : at + 1] in (b"", b",") and at > 0:
                grown: LazyModels[M] = known + orjson.loads(b"[" + text[at + 1 :] + b"]")
                grown._json = (len(grown), _with(chunks, text[at:]))
                return grown
        made: LazyModels[M] = cls(orjson.loads(b"[" + text + b"]"), parse)
        made._json = (len(made), _with((), text))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyModels[M]:
        """Return itself: entries are frozen."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the entries alone."""
        return LazyModels, (self._items, self._parse)

    def by_id(self, snapshot_id: int) -> M | None:
        """Return the entry with *snapshot_id*, None when there is none."""
        position = self._position(snapshot_id)
        return self._model(position) if position < len(self) else None

    def _position(self, snapshot_id: int) -> int:
        """Return where the entry with *snapshot_id* is, at or behind the end when there is none."""
        if self._index is None:
            self._index = {_snapshot_id(item): position for position, item in enumerate(self._items)}
            self._indexed = len(self._items)
        return self._tail.get(snapshot_id, self._index.get(snapshot_id, len(self)))

    def lineage(self, snapshot_id: int | None) -> Iterator[Mapping[str, str]]:
        """Yield the summaries of the snapshot *snapshot_id* and its ancestors, newest first, unparsed."""
        while snapshot_id is not None and (position := self._position(snapshot_id)) < len(self):
            item = self._items[position]
            raw = isinstance(item, dict)
            yield (item.get("summary") if raw else item.summary) or {}
            snapshot_id = item.get("parent-snapshot-id") if raw else item.parent_snapshot_id

    def cut_behind(self, snapshot_id: int) -> LazyModels[M]:
        """Return the entries up to the last one with *snapshot_id*, unparsed; itself when it is the end or missing."""
        for length in range(len(self._items), 0, -1):
            if _snapshot_id(self._items[length - 1]) == snapshot_id:
                break
        else:
            return self
        if length == len(self._items):
            return self
        cut = LazyModels(self._items[:length], self._parse)
        cut._index, cut._indexed, cut._tail = self._index, self._indexed, self._tail
        return cut

    def ids_with_summary(self, key: str, value: str, *, behind: int = -1) -> Iterator[int]:
        """Yield the ids of snapshots whose summary names *value* at *key*, newest first, unparsed.

        Args:
            key: Of a list that is separated by commas.
            value: One of it.
            behind: The sequence number at which to stop looking.
        """
        if behind < 0:
            named = self._named.get(key)
            if named is None:
                named = self._named[key] = _Named.of(self._items, key)
            yield from (_snapshot_id(self._items[position]) for position in reversed(named.positions(value)))
            return
        for item in reversed(self._items):
            raw = isinstance(item, dict)
            if ((item.get("sequence-number") if raw else item.sequence_number) or 0) <= behind:
                return
            if value in _values(item, key):
                yield _snapshot_id(item)

    def sequence_numbers(self) -> set[int]:
        """Return those of the snapshots, unparsed."""
        return {
            (item.get("sequence-number") if isinstance(item, dict) else item.sequence_number) or 0
            for item in self._items
        }

    def last(self, length: int) -> LazyModels[M]:
        """Return the last *length* entries, unparsed; itself when it has no more."""
        if length >= len(self._items):
            return self
        return LazyModels(self._items[len(self._items) - length :], self._parse)

    def without(self, snapshot_ids: set[int]) -> LazyModels[M]:
        """Return the entries with none of *snapshot_ids*, unparsed."""
        return LazyModels([item for item in self._items if _snapshot_id(item) not in snapshot_ids], self._parse)

    def behind(self, snapshot_ids: set[int]) -> LazyModels[M]:
        """Return the entries behind the last one with one of *snapshot_ids*, unparsed; itself when there is none."""
        for position in range(len(self._items), 0, -1):
            if _snapshot_id(self._items[position - 1]) in snapshot_ids:
                return self.last(len(self._items) - position)
        return self

    def map_raw(self, change: Callable[[Any], Any]) -> LazyModels[M]:
        """Return the sequence of ``change(item)``, where an item is a raw object or a model."""
        return LazyModels([change(item) for item in self._items], self._parse)

    def json(self, dump: Callable[[M], bytes]) -> tuple[bytes, ...]:
        """Return the entries as a JSON array without its brackets; what was dumped before is not dumped again.

        In parts, to be written one after the other: a history has megabytes, and to join it for each commit would copy
        all of it for one new entry.

        Args:
            dump: Makes JSON of a model. Always the same for one table, so its output may be kept.
        """
        done, chunks = self._json
        if done < len(self._items):
            parts = [orjson.dumps(i) if isinstance(i, dict) else dump(i) for i in self._items[done:]]
            chunks = _with(chunks, (b"," if done else b"") + b",".join(parts))
            self._json = (len(self._items), chunks)
        return chunks


class _Named:
    """The positions of entries by the values in their summaries at one key; for a sequence and those that it grows to.

    Args:
        base: Of the first entries, for all of these sequences.
        covered: How many entries these are.
        tail: Of the others.
        length: How many entries there are.
    """

    __slots__ = ("_base", "_covered", "_length", "_tail")

    def __init__(
        self, base: Mapping[str, Sequence[int]], covered: int, tail: Mapping[str, tuple[int, ...]], length: int
    ) -> None:
        self._base, self._covered, self._tail, self._length = base, covered, tail, length

    @classmethod
    def of(cls, items: Sequence[Any], key: str) -> _Named:
        """Return the positions of *items* by their values at *key*."""
        base: dict[str, list[int]] = {}
        for position, item in enumerate(items):
            for value in _values(item, key):
                base.setdefault(value, []).append(position)
        return cls(base, len(items), {}, len(items))

    def grown(self, items: Sequence[Any], key: str) -> _Named | None:
        """Return the positions of *items*, of which the first ones are known; None if there are too many others."""
        if len(items) - self._covered > _TAIL_MAX:
            return None
        tail = dict(self._tail)
        for position in range(self._length, len(items)):
            for value in _values(items[position], key):
                tail[value] = (*tail.get(value, ()), position)
        return _Named(self._base, self._covered, tail, len(items))

    def positions(self, value: str) -> tuple[int, ...]:
        """Return the positions of the entries with *value*, in ascending order."""
        return (*self._base.get(value, ()), *self._tail.get(value, ()))


def _values(item: Any, key: str) -> set[str]:
    """Return the values in the summary of an entry at *key*, a list that is separated by commas."""
    summary = item.get("summary") if isinstance(item, dict) else item.summary
    text = summary.get(key) if summary else None
    return set(text.split(",")) if text else set()


def _with(chunks: tuple[bytes, ...], text: bytes) -> tuple[bytes, ...]:
    """Return *chunks* with *text* behind them, as few as a binary counter has digits: no byte is copied often."""
    while chunks and text and len(chunks[-1]) <= len(text):
        chunks, text = chunks[:-1], chunks[-1] + text
    return (*chunks, text) if text else chunks


def _end_of(chunks: tuple[bytes, ...], text: bytes) -> int:
    """Return where *chunks* end in *text*, 0 when it does not begin with them."""
    at = 0
    for chunk in chunks:
        if not text.startswith(chunk, at):
            return 0
        at += len(chunk)
    return at


def _snapshot_id(item: Any) -> int:
    snapshot_id: int = item["snapshot-id"] if isinstance(item, dict) else item.snapshot_id
    return snapshot_id


class _FastMetadata(BaseModel):
    """What the three versions share. A mixin in front of PyIceberg's classes."""

    _unknown: Unknown = PrivateAttr(default_factory=Unknown)
    """What PyIceberg does not know of everything but the history."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Copy what could be changed in place; everything else is frozen and shared."""
        copied = self.__copy__()
        copied.__dict__["properties"] = dict(self.__dict__["properties"])
        copied.__dict__["refs"] = dict(self.__dict__["refs"])
        return copied

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot by an index instead of a walk."""
        snapshots: LazyModels[Snapshot] = self.__dict__["snapshots"]
        return snapshots.by_id(snapshot_id)

    def isolation_level(self, operation: Operation) -> IsolationLevel:
        """Return the level of ``write.update.isolation-level`` for an overwrite, else of ``write.delete…``.

        Raises:
            ConfigError: It is neither ``serializable`` nor ``snapshot``, in whatever case, as Java reads them.
        """
        key = TableProperties.WRITE_DELETE_ISOLATION_LEVEL
        if operation is Operation.OVERWRITE:
            key = TableProperties.WRITE_UPDATE_ISOLATION_LEVEL
        value = self.__dict__["properties"].get(key, TableProperties.WRITE_ISOLATION_LEVEL_DEFAULT)
        try:
            return IsolationLevel(value.lower())
        except ValueError:
            raise ConfigError(
                "a table property has no such value", key=key, value=value, accepted="serializable, snapshot"
            ) from None

    # Pydantic's serializer reads lists from C, so it must be given real ones.

    @field_serializer("snapshots", check_fields=False)
    def serialize_snapshots(self, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
        """Dump what PyIceberg's serializer of the same name dumps: version 1 keeps no sequence numbers."""
        if getattr(self, "format_version", 2) == 1:
            return [snapshot.model_copy(update={"sequence_number": None}) for snapshot in snapshots]
        return list(snapshots)

    @field_serializer("snapshot_log", check_fields=False)
    def serialize_snapshot_log(self, log: Sequence[SnapshotLogEntry]) -> list[SnapshotLogEntry]:
        """Dump the log as a list."""
        return list(log)

    @field_serializer("metadata_log", check_fields=False)
    def serialize_metadata_log(self, log: Sequence[MetadataLogEntry]) -> list[MetadataLogEntry]:
        """Dump the log as a list."""
        return list(log)


class FastMetadataV1(_FastMetadata, TableMetadataV1):
    """PyIceberg's version 1 metadata with a lazy history."""


class FastMetadataV2(_FastMetadata, TableMetadataV2):
    """PyIceberg's version 2 metadata with a lazy history."""


class FastMetadataV3(_FastMetadata, TableMetadataV3):
    """PyIceberg's version 3 metadata with a lazy history."""


FastMetadata = FastMetadataV1 | FastMetadataV2 | FastMetadataV3

_CLASSES: dict[int, type[FastMetadata]] = {
    1: FastMetadataV1,
    2: FastMetadataV2,
    3: FastMetadataV3,
}
_KNOWN = {
    version: frozenset(field.alias or name for name, field in cls.model_fields.items())
    for version, cls in _CLASSES.items()
}


_HISTORY: dict[str, type[BaseModel]] = {
    "snapshots": Snapshot,
    "snapshot_log": SnapshotLogEntry,
    "metadata_log": MetadataLogEntry,
}


def as_fast(metadata: TableMetadata) -> FastMetadata:
    """Return *metadata* as one of the classes above; itself when it is one."""
    if isinstance(metadata, FastMetadata):
        return metadata
    fields = dict(metadata.__dict__)
    for name, model in _HISTORY.items():
        if not isinstance(fields[name], LazyModels):
            fields[name] = LazyModels(list(fields[name]), model.model_validate)
    return _CLASSES[metadata.format_version].model_construct(**fields)


def unzipped(data: bytes, location: str) -> bytes:
    """Return the JSON in *data*, the bytes of the file at *location*, whose name says whether it is gzipped."""
    return gzip.decompress(data) if location.endswith((".gz.metadata.json", ".metadata.json.gz")) else data


def parse(data: bytes, location: str, known: TableMetadata | None = None) -> FastMetadata:
    """Return the metadata in *data*, the bytes of the file at *location*.

    Args:
        data: As :func:`dump` or any other engine writes it.
        location: Its name says whether it is gzipped.
        known: Another version of the table's metadata, whose history need not be read again.

    Raises:
        ValidationError: PyIceberg's, when the file is not Iceberg table metadata.
    """
    data = unzipped(data, location)
    raw, snapshots, snapshot_log = _read_history(data, known)
    metadata_log = LazyModels(raw.pop("metadata-log", None) or [], MetadataLogEntry.model_validate)
    version = raw.get("format-version")
    unknown = of_table(raw, _KNOWN[version] if version in (1, 2, 3) else frozenset())  # now: PyIceberg changes raw
    below = dict(unknown.below)
    given = dict(raw)
    if isinstance(statistics := raw.get("statistics"), list):
        given["statistics"] = [AnyStatisticsFile.model_validate(file) for file in statistics]
    if isinstance(schemas := raw.get("schemas"), list):  # what is none is left to PyIceberg, which refuses it in words
        read = [_schema(orjson.dumps(schema)) for schema in schemas]
        given["schemas"] = [schema for schema, _ in read]
        for _, found in read:
            below.update(found)
    metadata = TableMetadataUtil.parse_obj(given)
    fields = dict(metadata.__dict__)
    fields |= {"snapshots": snapshots, "snapshot_log": snapshot_log, "metadata_log": metadata_log}
    made = _CLASSES[metadata.format_version].model_construct(**fields)
    made._unknown = Unknown(unknown.own, below)
    return made


@lru_cache(maxsize=64)
def _schema(text: bytes) -> tuple[Schema, Mapping[ObjectKey, Unknown]]:
    """Return the schema that *text* says, and what is not known of it.

    The versions of a table share both, since none can change them.
    """
    raw = orjson.loads(text)
    unknown = of_schema(raw)
    return Schema.model_validate(with_all_types(raw)), unknown


_SNAPSHOTS, _LOG = b',"snapshots":[', b'],"snapshot-log":['

_Parts = tuple[dict[str, Any], LazyModels[Snapshot], LazyModels[SnapshotLogEntry]]


def _read_history(data: bytes, known: TableMetadata | None) -> _Parts:
    """Return everything else, the snapshots and the snapshot log of a metadata file.

    A file as :func:`dump` lays it out is cut at two marks, and what *known* has is not read again. Other engines lay
    it out otherwise; cut there, at least one part is no JSON (a quote inside of a string is escaped, so a mark is
    a key, and a key in another place leaves brackets open), and the file is read as a whole.
    """
    begin, middle = data.find(_SNAPSHOTS), data.rfind(_LOG)
    if 0 < begin < middle and data.endswith(b"]}"):
        before: dict[str, Any] = known.__dict__ if isinstance(known, FastMetadata) else {}
        snapshots, log = data[begin + len(_SNAPSHOTS) : middle], data[middle + len(_LOG) : -2]
        with contextlib.suppress(orjson.JSONDecodeError):
            return (
                orjson.loads(data[:begin] + b"}"),
                LazyModels.of_json(snapshots, Snapshot.model_validate, before.get("snapshots")),
                LazyModels.of_json(log, SnapshotLogEntry.model_validate, before.get("snapshot_log")),
            )
    raw: dict[str, Any] = orjson.loads(data)
    return (
        raw,
        LazyModels(raw.pop("snapshots", None) or [], Snapshot.model_validate),
        LazyModels(raw.pop("snapshot-log", None) or [], SnapshotLogEntry.model_validate),
    )


def dump(metadata: TableMetadata, location: str) -> bytes:
    """Return the bytes of the metadata file for *location*, gzipped when the name says so."""
    return b"".join(zipped(dump_parts(metadata), location))


def zipped(parts: Sequence[bytes], location: str) -> Sequence[bytes]:
    """Return the content of the metadata file for *location* whose JSON is *parts*: gzipped when the name says so."""
    if location.endswith(".gz.metadata.json"):
        return (gzip.compress(b"".join(parts), compresslevel=6),)
    return parts


def dump_parts(metadata: TableMetadata) -> Sequence[bytes]:
    """Return the JSON of *metadata* in parts, to be written one behind the other.

    The two parts of the history come last, where :func:`parse` finds them without reading what is known.
    """
    whole = as_fast(metadata)
    body = _body(whole)
    put_back(body, whole._unknown)
    v1 = whole.format_version == 1
    snapshots: LazyModels[Snapshot] = whole.__dict__["snapshots"]
    snapshot_log: LazyModels[SnapshotLogEntry] = whole.__dict__["snapshot_log"]
    metadata_log: LazyModels[MetadataLogEntry] = whole.__dict__["metadata_log"]
    body["metadata-log"] = orjson.Fragment(
        b"".join((b"[", *metadata_log.json(lambda e: e.model_dump_json().encode()), b"]"))
    )
    history = snapshots.json(lambda s: s.model_dump_json(exclude={"sequence_number"} if v1 else None).encode())
    log = snapshot_log.json(lambda e: e.model_dump_json().encode())
    return (orjson.dumps(body)[:-1], _SNAPSHOTS, *history, _LOG, *log, b"]}")


def _body(metadata: FastMetadata) -> dict[str, Any]:
    """Return the JSON of what PyIceberg knows of *metadata*, without the history."""
    body: dict[str, Any] = metadata.model_dump(mode="json", exclude={*_HISTORY, "statistics"})
    # By their own classes, which may have blobs of other types than PyIceberg's.
    body["statistics"] = [file.model_dump(mode="json") for file in metadata.statistics]
    return body


def read(io: FileIO, location: str, known: TableMetadata | None = None) -> FastMetadata:
    """Read the metadata file at *location*; see :func:`parse`."""
    with io.new_input(location).open() as stream:
        return parse(stream.read(), location, known)


def create(updates: Sequence[TableUpdate]) -> TableMetadata:
    """Return the metadata of a new table that *updates* describe (PyIceberg's ``CreateTableTransaction``).

    PyIceberg makes no table of version 3 out of another one, so such a table begins as one.

    Raises:
        ValueError: They describe none. Or as :func:`~commit_coord.iceberg.partition_names.refuse_names` and
            :func:`~commit_coord.iceberg.usable.refuse_unusable`.
    """
    refuse_unusable(updates, None)
    empty = MetastoreCatalog._empty_table_metadata()
    if any(_upgrades_to_v3(update) for update in updates):
        empty = TableMetadataV3.model_construct(last_column_id=-1, next_row_id=0)  # type: ignore[call-arg]
        updates = [update for update in updates if not isinstance(update, UpgradeFormatVersionUpdate)]
    made = parse(dump(update_table_metadata(empty, tuple(updates)), ""), "")  # validates it
    for spec in made.partition_specs:
        refuse_names(spec, made.schema())
    return as_fast(counted(made, None, updates))


def extras(metadata: TableMetadata) -> Mapping[str, Any]:
    """Return the top-level keys that PyIceberg does not know, such as ``encryption-keys``."""
    return metadata._unknown.own if isinstance(metadata, FastMetadata) else {}


def apply_updates(base: TableMetadata, updates: Sequence[TableUpdate]) -> FastMetadata:
    """Return *base* with *updates* applied in order, by PyIceberg's own rules, without its costs.

    Raises:
        ValueError: An update does not fit (PyIceberg's words), or gives the table another UUID, as PyIceberg allows.
            Or as :func:`~commit_coord.iceberg.usable.refuse_unusable`.

    Two updates are applied here. ``RemoveSnapshotsUpdate``: PyIceberg's walks the list of snapshots once for every
    removed id and compares with a list, 27 s for 5,000 of 10,000. An upgrade: PyIceberg knows none to version 3, and
    in one to version 2 it drops what it does not know.
    """
    refuse_unusable(updates, base)
    first = metadata = as_fast(base)
    if any(isinstance(update, AssignUUIDUpdate) and update.uuid != base.table_uuid for update in updates):
        raise ValueError(f"Cannot reassign uuid: the table keeps {base.table_uuid}; leave the update out")
    for kind, run in itertools.groupby(updates, key=_applied_here):
        if kind is RemoveSnapshotsUpdate:
            ids = {snapshot_id for update in run for snapshot_id in getattr(update, "snapshot_ids", ())}
            metadata = _remove_snapshots(metadata, ids)
        elif kind is UpgradeFormatVersionUpdate:
            for update in run:
                metadata = _upgraded(metadata, update)
        else:
            applied = tuple(map(numbered, run))
            metadata = as_fast(counted(update_table_metadata(metadata, applied), metadata, applied))
    if first._unknown.below and metadata is not first:
        metadata = metadata.model_copy()
        metadata._unknown = surviving(first._unknown, _body(first), _body(metadata))
    return metadata


def _applied_here(update: TableUpdate) -> type[TableUpdate] | None:
    """Return the kind of *update* where PyIceberg does not apply it for us."""
    if isinstance(update, RemoveSnapshotsUpdate):
        return RemoveSnapshotsUpdate
    return UpgradeFormatVersionUpdate if isinstance(update, UpgradeFormatVersionUpdate) else None


def _upgrades_to_v3(update: TableUpdate) -> bool:
    return isinstance(update, UpgradeFormatVersionUpdate) and update.format_version == 3


def _upgraded(metadata: FastMetadata, update: TableUpdate) -> FastMetadata:
    """Return *metadata* in the version of *update*. In version 3 its rows have no ids until they are written anew.

    Source: Iceberg specification, "Row Lineage for Upgraded Tables".

    Raises:
        ValueError: There is no such version, or it is a lower one.
    """
    if metadata.format_version == 3 and _upgrades_to_v3(update):
        return metadata
    if _upgrades_to_v3(update):
        known = {name: value for name, value in metadata.__dict__.items() if name in FastMetadataV3.model_fields}
        fields = {**known, "format_version": 3, "next_row_id": 0}
    else:
        fields = update_table_metadata(metadata, (update,)).__dict__
    made = _CLASSES[fields["format_version"]].model_construct(**fields)
    made._unknown = metadata._unknown
    return made


def logged(metadata: TableMetadata, base: TableMetadata, base_location: str) -> TableMetadata:
    """Return *metadata* with the file of *base* behind its metadata log, which is cut to its configured length.

    Source: PyIceberg ``_update_table_metadata_log``, which parses the log.

    Raises:
        ValueError: The configured length is not a number.
    """
    length = property_as_int(
        metadata.properties,
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT,
    )
    log: LazyModels[MetadataLogEntry] = metadata.__dict__["metadata_log"]
    entry = MetadataLogEntry(metadata_file=base_location, timestamp_ms=base.last_updated_ms)
    kept = log.last(max(1, length or 1) - 1)
    return metadata.model_copy(update={"metadata_log": kept + [entry]})  # noqa: RUF005 - stays unparsed


def stamped(metadata: TableMetadata, base: TableMetadata, now_ms: int) -> TableMetadata:
    """Return *metadata* with *now_ms* on everything that is new since *base* (PyIceberg takes the host's clock)."""
    log: LazyModels[SnapshotLogEntry] = metadata.__dict__["snapshot_log"]
    known = len(base.snapshot_log)
    update: dict[str, Any] = {"last_updated_ms": now_ms}
    if len(log) > known and any(entry.timestamp_ms != now_ms for entry in log[known:]):
        old: LazyModels[SnapshotLogEntry] = base.__dict__["snapshot_log"]
        update["snapshot_log"] = old + [e.model_copy(update={"timestamp_ms": now_ms}) for e in log[known:]]
    return metadata.model_copy(update=update)


def sequence_number(metadata: TableMetadata) -> int:
    """Return the last sequence number; 0 in version 1, which has none."""
    number: int = getattr(metadata, "last_sequence_number", 0)
    return number


def as_of(metadata: TableMetadata, snapshot_id: int) -> TableMetadata:
    """Return *metadata* without the snapshots after *snapshot_id*; *metadata* itself if there are none.

    One metadata file may publish the snapshots of several writers. Each writer's table shows its own snapshot as the
    last one. If *snapshot_id* does not exist, return *metadata* itself.
    """
    snapshots: LazyModels[Snapshot] = metadata.__dict__["snapshots"]
    kept = snapshots.cut_behind(snapshot_id)
    if kept is snapshots:
        return metadata

    def before(found: int | None) -> int | None:
        while found is not None and kept.by_id(found) is None:
            later = snapshots.by_id(found)
            found = later.parent_snapshot_id if later is not None else None
        return found

    current = before(metadata.current_snapshot_id)
    log: LazyModels[SnapshotLogEntry] = metadata.__dict__["snapshot_log"]

    refs = {
        name: ref.model_copy(update={"snapshot_id": found})
        for name, ref in metadata.refs.items()
        if (found := before(ref.snapshot_id)) is not None
    }
    return metadata.model_copy(
        update={
            "snapshots": kept,
            "snapshot_log": log.cut_behind(current) if current is not None else log,
            "refs": refs,
            "current_snapshot_id": current,
            "last_sequence_number": kept[-1].sequence_number,
        }
    )


def _remove_snapshots(metadata: FastMetadata, snapshot_ids: set[int]) -> FastMetadata:
    """Return *metadata* without *snapshot_ids*; refs and statistics of them go along. One that is gone stays gone.

    Source: Iceberg specification, "Snapshot log": entries of expired snapshots are removed; Java
    ``TableMetadata.Builder.removeSnapshots``.
    """
    snapshots: LazyModels[Snapshot] = metadata.__dict__["snapshots"]
    snapshot_ids = {snapshot_id for snapshot_id in snapshot_ids if snapshots.by_id(snapshot_id) is not None}
    if not snapshot_ids:
        return metadata

    def orphaned(item: Any) -> Any:
        if isinstance(item, dict):
            if item.get("parent-snapshot-id") in snapshot_ids:
                return {key: value for key, value in item.items() if key != "parent-snapshot-id"}
            return item
        if item.parent_snapshot_id in snapshot_ids:
            return item.model_copy(update={"parent_snapshot_id": None})
        return item

    snapshot_log: LazyModels[SnapshotLogEntry] = metadata.__dict__["snapshot_log"]
    refs = {name: ref for name, ref in metadata.refs.items() if ref.snapshot_id not in snapshot_ids}
    main_gone = MAIN_BRANCH in metadata.refs and MAIN_BRANCH not in refs
    return metadata.model_copy(
        update={
            "snapshots": snapshots.without(snapshot_ids).map_raw(orphaned),
            # With a gap, the entry before it would answer for the time of the one that is gone.
            "snapshot_log": snapshot_log.behind(snapshot_ids),
            "refs": refs,
            "current_snapshot_id": None if main_gone else metadata.current_snapshot_id,
            "statistics": [s for s in metadata.statistics if s.snapshot_id not in snapshot_ids],
            "partition_statistics": [s for s in metadata.partition_statistics if s.snapshot_id not in snapshot_ids],
        }
    )


def not_before(metadata: TableMetadata, now_ms: int) -> int:
    """Return the timestamp for the next change of *metadata*: *now_ms*, but never before any of its own.

    Java refuses a table whose snapshot or metadata log steps back by more than a minute.
    Source: Iceberg Java ``TableMetadata`` constructor, ``ONE_MINUTE`` checks.
    """
    latest = [now_ms, metadata.last_updated_ms]
    latest += [history[-1].timestamp_ms for history in (metadata.snapshot_log, metadata.metadata_log) if history]
    return max(latest)
