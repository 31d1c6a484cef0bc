"""Finds and removes files of a table that no commit refers to and no live attempt can still publish.

Theory of operation
    A crash, an unknown outcome, and every expired snapshot leave files behind. While others write, one look does not
    show which of the files below a table's location are left:

    1. We read which files the table refers to.   2. A writer commits a file that it had written before.
    3. We list the folder, find its file, and delete it.

    So the order is:

    1. List the files.
    2. Ask the lock service who is at work on the table: one that holds or waits for the commit latch has written its
       files already; one that holds locks of an operation may have written since it asked for them.
    3. Wait until all of the former have ended. Their files are in the table now, or never will be.
    4. Read which files the table refers to. Whatever was committed up to here is spared by that.
    5. What was listed and is not referred to, is older than *older_than_ms*, and older than every operation's locks,
       can only belong to a writer that wrote it longer ago than that and has not asked for the latch yet. That is what
       *older_than_ms* has to exclude: it is the longest time that any writer takes from its first file to its commit,
       without the time that it waits in a queue.

    Where the lock manager does not see every writer (`none`, `memory` with several processes, writers of other kinds),
    *older_than_ms* alone has to do, with the waiting in it.

    What was overwritten and not repaired yet is referred to, too, as long as the lock service remembers it.

    A file below our location may have become another table's as well (``add_files``, a location that was changed).
    Only manifests tell, so if there is anything to delete, those of all tables of the catalog are read, and of what the
    lock service remembers as lost of them.

    Another catalog may have a table in the same folder. Only its metadata files tell, by their ``table-uuid``, so of
    metadata files that are not in our history the beginning is read. A table that was dropped leaves such files, too.

    Another catalog may also have our own table, after ``register_table``, with our UUID. Its first commit writes the
    same as a commit of ours that crashed before its swap: a metadata file whose predecessor is in our history. Nothing
    in the file proves which of the two it is. So such a file is refused, too, until the caller says that no other
    catalog has the table.
"""

from __future__ import annotations

import os
import posixpath
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import compress
from operator import not_
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import fastavro
from pyiceberg.exceptions import NoSuchIcebergTableError, NoSuchTableError, NoSuchViewError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Identifier
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.view.metadata import ViewMetadata

from commit_coord.coordinator import delete_quietly
from commit_coord.errors import InternalError, InvalidArguments, LockError, LockTimeout
from commit_coord.iceberg import manifest_list, view_metadata
from commit_coord.iceberg.attempt import table_name
from commit_coord.iceberg.overwrites import HandoverNote, versions
from commit_coord.iceberg.rebase import says_shared, shares_files
from commit_coord.iceberg.table_properties import GC_ENABLED
from commit_coord.locks.blockers import holder_facts
from commit_coord.model import LockEntry, LockMode, LockScope, Resource

if TYPE_CHECKING:
    from commit_coord.config import Settings
    from commit_coord.coordinator import Coordinator
    from commit_coord.locks.base import LockManager

DAY_MS = 86_400_000

OLDER_THAN_MS = 3 * DAY_MS
"""As Iceberg's own ``remove_orphan_files``."""

AT_LEAST_MS = 3_600_000
"""Smaller ages are refused unless forced: a job may well write for an hour before it commits."""

_SKEW_MS = 60_000
"""By which the clocks of a lock service, a file store and this host may differ."""

_LOOK_AGAIN = 0.2
"""Seconds between two checks whether a writer has ended."""

_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties that have a table's files written elsewhere than in its location."""

_METADATA = (".metadata.json", ".metadata.json.gz")
"""How names of metadata files end."""

_UUID = re.compile(rb'"(?:table|view)-uuid"\s*:\s*"([^"]+)"')

_BEGINNING = 4096
"""Bytes of a metadata file that are read first: every known writer has the id before the long lists."""

_STATEMENT = "look for orphans"

_BUSY_MS = 1000
"""How long the latch of another table is waited for at first. Those that are busy come last, and have all the time."""

_BUCKETS = ("s3", "s3a", "s3n", "gs", "oss")
"""Schemes whose locations begin with the name of a bucket."""

_KEPT = re.compile(r"version-hint\.text")


class SearchedCatalog(Protocol):
    """A catalog as far as the search for orphans goes."""

    @property
    def coordinator(self) -> Coordinator:
        """Knows the heads."""
        ...

    @property
    def locks(self) -> LockManager:
        """The lock service, which knows the writers at work on a table."""
        ...

    @property
    def settings(self) -> Settings:
        """The settings of the catalog."""
        ...

    def list_tables(self, namespace: str | Identifier) -> Iterable[Identifier]:
        """Return the tables of *namespace*."""
        ...

    def list_namespaces(self, namespace: str | Identifier = ()) -> Iterable[Identifier]:
        """Return the namespaces in *namespace*."""
        ...

    def list_views(self, namespace: str | Identifier) -> Iterable[Identifier]:
        """Return the views of *namespace*."""
        ...

    def view_location(self, identifier: str | Identifier) -> str:
        """Return where the metadata of a view is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A file that nothing refers to."""

    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """The result of a search for orphans below the location of a table.

    Args:
        table: Namespace and name.
        location: Where it lies.
        files: What may be deleted, oldest first.
        looked_at: Files there are.
        young: Files that nothing refers to and that are too young.
        at_work: Files that nothing refers to and that an operation at work may have written.
        undeleted: Files that could not be deleted, after a deletion.
    """

    table: Identifier
    location: str
    files: tuple[Orphan, ...]
    looked_at: int
    young: int = 0
    at_work: int = 0
    undeleted: tuple[Orphan, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in :attr:`files`."""
        return sum(one.size for one in self.files)


def find(
    catalog: SearchedCatalog,
    table: Identifier,
    *,
    older_than_ms: int = OLDER_THAN_MS,
    force: bool = False,
    dropped: Collection[str] = (),
) -> Orphans:
    """Return the orphans of *table*.

    Args:
        catalog: Where it is.
        table: Which one.
        older_than_ms: How long ago a file must have been written.
        force: Take less than an hour, too.
        dropped: The UUIDs of tables and views that are in no catalog any more: files of theirs may be orphans. The UUID
            of *table* itself says that no other catalog has it.

    Raises:
        NoSuchTableError: There is none of that name.
        InvalidArguments: *older_than_ms* is too short; or another table or view is inside the location, or it is a
            root; or ``gc.enabled`` is false, or neither true nor false: other tables may need the files; or the files
            of another table can't be read; or there is a metadata file of a table that is not *dropped*, or of this
            one that is not in its history; or a table or view of the catalog is *dropped*.
        LockTimeout: A writer that was at work on this table or another one did not end within
            ``lock.acquire-timeout-ms``; the message names it.
        Exception: Something that the table refers to can't be read.
    """
    if older_than_ms < (0 if force else AT_LEAST_MS):
        raise InvalidArguments(
            "the age is too short: uncommitted files of a slow writer might be deleted",
            older_than_ms=older_than_ms,
            accepted=f"at least {AT_LEAST_MS} (an hour), or force",
        )
    coordinator = catalog.coordinator
    metadata, location = coordinator.load(table)
    _refuse_shared_files(table, metadata)
    _refuse_shared(catalog, table, metadata.location, dropped)
    io = coordinator.store.file_io(location)
    now_ms = coordinator.clock.wall_ms()
    listed = list(_listed(io, metadata.location))
    began_ms = _at_work_since(catalog, table)
    spared = _referenced(coordinator, table, is_own=True)
    loose = sorted(_without(listed, spared), key=lambda one: (one.modified_ms, one.path))
    _refuse_unknown(io, table, str(metadata.table_uuid), dropped, [one.path for one in loose])
    old = [one for one in loose if one.modified_ms < now_ms - older_than_ms]
    left = [one for one in old if began_ms is None or one.modified_ms < began_ms - _SKEW_MS]
    return Orphans(
        table=table,
        location=metadata.location,
        files=tuple(_needed_by_no_other(catalog, table, left)),
        looked_at=len(listed),
        young=len(loose) - len(old),
        at_work=len(old) - len(left),
    )


def delete(
    catalog: SearchedCatalog, found: Orphans, *, on_deleted: Callable[[Orphan], None] = lambda _: None
) -> Orphans:
    """Delete what was *found*, but for what was committed since; return what was deleted.

    A file that can't be deleted is logged and left, as one of ``undeleted``. *on_deleted* is called for each file that
    is gone. An interrupt ends the deletion: when it is raised, *on_deleted* was called for all, and no more files go.

    Raises:
        NoSuchTableError: The table is gone, or another one has its name; nothing was deleted.
        InvalidArguments: ``gc.enabled`` is false by now, or the files of another table can't be read; nothing was
            deleted.
        LockTimeout: As :func:`find`; nothing was deleted.
        Exception: Something that the table refers to can't be read; nothing was deleted.
    """
    coordinator = catalog.coordinator
    metadata, location = coordinator.load(found.table)
    if metadata.location != found.location:
        raise NoSuchTableError(
            f"nothing was deleted: since the search, the location of {table_name(found.table)} has changed to "
            f"{metadata.location}"
        )
    _refuse_shared_files(found.table, metadata)
    io = coordinator.store.file_io(location)
    unneeded = _needed_by_no_other(catalog, found.table, found.files)
    spared = _referenced(coordinator, found.table, is_own=True)  # read last: to read the other tables may take minutes
    doomed = _without(unneeded, spared)
    gone = _deleted(io, doomed, on_deleted)
    return replace(found, files=tuple(compress(doomed, gone)), undeleted=tuple(compress(doomed, map(not_, gone))))


def _deleted(io: FileIO, doomed: Sequence[Orphan], on_deleted: Callable[[Orphan], None]) -> list[bool]:
    """Delete *doomed*; return of each whether it is gone."""
    threads = ExecutorFactory.get_or_create()
    begun: list[Future[bool]] = []
    try:
        begun.extend(threads.submit(delete_quietly, io, one.path) for one in doomed)
        wait(begun)
    except BaseException:
        for deletion in begun:
            deletion.cancel()
        wait(begun)
        raise
    finally:
        for one, deletion in zip(doomed, begun, strict=False):
            if deletion.done() and not deletion.cancelled() and deletion.result():
                on_deleted(one)
    return [deletion.result() for deletion in begun]


# What there is.


def _listed(io: FileIO, location: str) -> Iterator[Orphan]:
    """Yield every file below *location*, but for hidden ones (``_temporary``, ``.crc``): they are of other programs."""
    # Only here: it takes a second, and starts threads, which would get the signals that others hold back.
    from pyarrow import fs
    from pyiceberg.io.pyarrow import PyArrowFileIO

    store = io if isinstance(io, PyArrowFileIO) else PyArrowFileIO(io.properties)
    scheme, authority, path = store.parse_location(location, store.properties)
    root = path.rstrip("/")
    top = os.path.realpath(root) if scheme == "file" else ""
    for info in store.fs_by_scheme(scheme, authority).get_file_info(
        fs.FileSelector(root, recursive=True, allow_not_found=True)
    ):
        below = info.path[len(root) :]
        if info.type != fs.FileType.File or not info.path.startswith(f"{root}/") or _is_hidden(below):
            continue
        if top and not os.path.realpath(info.path).startswith(f"{top}/"):
            continue  # by a symbolic link it lies elsewhere
        path = f"{location.rstrip('/')}{below}"
        if store.parse_location(path, store.properties)[2] != info.path:
            continue  # a '?' or '#' in its name: to delete it would delete another file
        yield Orphan(path=path, size=info.size or 0, modified_ms=(info.mtime_ns or 0) // 1_000_000)


def _is_hidden(path: str) -> bool:
    *folders, name = path.strip("/").split("/")
    return (
        any(folder.startswith(("_", ".")) and "=" not in folder for folder in folders)
        or name.startswith(("_", "."))
        or _KEPT.fullmatch(name) is not None
    )


# Writers that may still need some of the files.


def _at_work_since(catalog: SearchedCatalog, table: Identifier) -> int | None:
    """Wait until all who had written before now have committed; return since when the first operation is at work.

    Returns:
        None when there is no operation.

    Raises:
        LockTimeout: One of them has not ended in time.
    """
    resource = Resource.table(table)
    entries = [entry for entry in catalog.locks.locks(resource) if not entry.guard]
    writers = [one for one in entries if one.scope is LockScope.COMMIT and one.mode is LockMode.EXCLUSIVE]
    operations = [one.requested_at_ms for one in entries if one.scope is LockScope.OPERATION]
    clock = catalog.coordinator.clock
    deadline = clock.now() + catalog.settings.lock_acquire_timeout_ms / 1000
    left = writers
    while left:
        if clock.now() >= deadline:
            raise _busy(left[0])
        clock.sleep(_LOOK_AGAIN)
        there = {one.request_id for one in catalog.locks.locks(resource, scope=LockScope.COMMIT)}
        left = [one for one in left if one.request_id in there]
    return min(operations, default=None)


def _busy(writer: LockEntry) -> LockTimeout:
    return LockTimeout(
        "a writer is at work on the table and may need files that nothing refers to yet; try again when it has ended",
        resource=writer.resource,
        **holder_facts(writer.owner, writer.requested_at_ms, writer.request_id),
    )


# What is referred to.


def _referenced(
    coordinator: Coordinator, table: Identifier, *, is_own: bool = False, within_ms: int | None = None
) -> set[str]:
    """Return the keys of all files that *table* refers to now, or referred to in commits that may be repaired.

    The commit latch is taken only for the table itself (*is_own*), so a commit that is under way is waited for. Of
    another table, whose writers may use another lock manager, only the note is read under its latch.

    Raises:
        LockTimeout: A writer held the latch for longer than *within_ms*, or than ``lock.acquire-timeout-ms``.
    """
    kept: str | None = None
    if is_own:
        with coordinator.latch(table, statement=_STATEMENT) as latch:
            kept = latch.handover_note
            metadata, location = coordinator.load(table)
    if kept is None:
        # While a table moves, its note may be kept elsewhere than its commit latch.
        with coordinator.note_latch(table, statement=_STATEMENT, within_ms=within_ms) or nullcontext() as notes:
            kept = None if notes is None else notes.handover_note
            metadata, location = coordinator.load(table)
    note = HandoverNote.parse(kept or "")
    io = coordinator.store.file_io(location)
    found = set(_versions(coordinator, location))
    tables = [metadata]
    for known in (*note.lost, *([note.head] if note.head is not None else [])):
        if known.location in found or known.table_uuid != str(metadata.table_uuid):
            continue
        if not io.new_input(known.location).exists():
            continue  # writers that leave no notes, or other tools, have deleted it: nobody can repair it
        tables.append(coordinator.read(known.location))
        found.update(_versions(coordinator, known.location))
    return _keys(found.union(*(_files(io, one) for one in tables)))


def _versions(coordinator: Coordinator, location: str) -> Iterator[str]:
    try:
        yield from versions(coordinator.read, location)
    except FileNotFoundError:
        return  # trimmed, and deleted


def _files(io: FileIO, metadata: TableMetadata) -> set[str]:
    lists = {snapshot.manifest_list for snapshot in metadata.snapshots}
    threads = ExecutorFactory.get_or_create()
    manifests: dict[str, ManifestFile] = {}

    def listed(path: str) -> list[ManifestFile]:
        found = manifest_list.read(io, path)
        names, data = {one.manifest_path for one in found}, _content(io, path)
        _compare(path, names, _by_fastavro(data, lambda record: record["manifest_path"]))
        # As a rule the first two are one library below.
        _compare(path, names, manifest_list.paths(path, data))
        return found

    for found in threads.map(listed, lists):
        manifests.update((manifest.manifest_path, manifest) for manifest in found)

    def named(manifest: ManifestFile) -> set[str]:
        # Deleted entries, too: a reader of changes reads deleted files.
        entries, path = manifest.fetch_manifest_entry(io, discard_deleted=False), manifest.manifest_path
        found = {entry.data_file.file_path for entry in entries}
        _compare(path, found, _by_fastavro(_content(io, path), lambda record: record["data_file"]["file_path"]))
        return found

    data = {path for paths in threads.map(named, manifests.values()) for path in paths}
    statistics = {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}
    return lists | manifests.keys() | data | statistics


def _content(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def _by_fastavro(data: bytes, named: Callable[[Any], str]) -> set[str]:
    return {named(record) for record in fastavro.reader(BytesIO(data))}


def _compare(path: str, found: set[str], again: set[str]) -> None:
    """Return if two readers that share no code *found* the same names in the file at *path*.

    A reader that overlooks an entry would have a live file deleted.

    Raises:
        InternalError: The second one found others.
    """
    if found != again:
        raise InternalError(
            "two Avro readers find different file names in a file, so no file is treated as an orphan",
            path=path,
            only_one=", ".join(sorted(found ^ again)[:3]),
        )


def _keys(locations: Iterable[str]) -> set[str]:
    """Return what the spellings of the files at *locations* have in common with their other spellings.

    Engines write ``file:/a``, ``file:///a``, ``file://localhost/a`` and ``/a``; ``s3``, ``s3a`` and ``s3n``;
    ``hdfs://name:8020/a`` and ``hdfs:///a``; and ``/a/../b`` for ``/b``. So only the path counts. In addition, of a
    local file, which may be relative, the place counts that PyIceberg opens, without links among its folders. To it,
    ``file://localhost/a`` is ``localhost/a``, below the current folder.

    If two files have one of their keys in common, both are kept.
    """
    return {key for location in locations for key in _keys_of(location)}


def _keys_of(location: str) -> Iterator[str]:
    parts = urlsplit(location)
    path = parts.path if parts.scheme else location
    yield re.sub("/{2,}", "/", posixpath.normpath(path)) if path else ""
    if parts.scheme in ("", "file"):
        yield os.path.realpath(parts.netloc + parts.path if parts.scheme else location)


def _in_another_bucket(one: str, other: str) -> bool:
    """Return whether two locations are in buckets with different names; elsewhere one place may have several names."""
    buckets = {parts.netloc for parts in map(urlsplit, (one, other)) if parts.scheme in _BUCKETS and parts.netloc}
    return len(buckets) > 1


def _without(files: Iterable[Orphan], needed: Collection[str]) -> list[Orphan]:
    """Return those of *files* of which no key is *needed*."""
    return [one for one in files if not any(key in needed for key in _keys_of(one.path))]


def _refuse_shared_files(table: Identifier, metadata: TableMetadata) -> None:
    """Refuse a table that says that its files are not its own alone.

    Raises:
        InvalidArguments: It says so.
    """
    if shares_files(metadata):
        raise InvalidArguments(
            f"{says_shared(metadata)} says that other tables may need files of this one, so none is an orphan and "
            f"nothing was deleted; set {GC_ENABLED}=true when no other table uses its files",
            table=table_name(table),
        )


def _refuse_shared(catalog: SearchedCatalog, table: Identifier, location: str, dropped: Collection[str]) -> None:
    """Refuse a location that files of other tables or views lie in; and *dropped* UUIDs of tables and views.

    Raises:
        InvalidArguments: It is one, or a root; or another table can't be read.
    """
    mine = {key.rstrip("/") for key in _keys_of(location)}
    if "" in mine and not location.startswith(("s3", "gs", "abfs", "wasb", "oss")):
        raise InvalidArguments(
            "the location of the table is a root directory, where other files may be", location=location
        )
    for other in _others(catalog, table):
        if other.uuid in dropped:
            raise InvalidArguments(
                f"the {other.kind} with this UUID is in the catalog, so it was not dropped",
                uuid=other.uuid,
                other=table_name(other.name),
            )
        for path in other.places:
            if not _in_another_bucket(path, location) and any(
                f"{key.rstrip('/')}/".startswith(f"{one}/") for key in _keys_of(path) for one in mine
            ):
                raise InvalidArguments(
                    f"another {other.kind} lies in the location of this table: its files can't be distinguished from "
                    "orphans",
                    table=table_name(table),
                    other=table_name(other.name),
                    location=path,
                )


def _refuse_unknown(io: FileIO, table: Identifier, own: str, dropped: Collection[str], paths: Iterable[str]) -> None:
    """Refuse a folder with a metadata file, among *paths*, of a table or view whose UUID is not *dropped*.

    Raises:
        InvalidArguments: There is one.
    """
    files = [path for path in paths if path.endswith(_METADATA)]
    for path, uuid in zip(
        files, ExecutorFactory.get_or_create().map(lambda one: _uuid_in(io, one), files), strict=True
    ):
        if uuid is None or uuid in dropped:
            continue
        if uuid == own:
            reason = (
                "the table's location contains a metadata file of this table that is not in its history: a commit that "
                "crashed has left it, or the table was registered in another catalog, too, and changed there; if no "
                "other catalog has the table, pass its UUID as dropped (--dropped)"
            )
        else:
            reason = (
                "the table's location contains a metadata file of another table, perhaps a table of another catalog; "
                "if that table was dropped or never created, pass its UUID as dropped (--dropped)"
            )
        raise InvalidArguments(reason, table=table_name(table), metadata_file=path, uuid=uuid)


def _uuid_in(io: FileIO, path: str) -> str | None:
    """Return the UUID in the metadata file at *path*; None if it was not written to its end, or is gone."""
    plain = zlib.decompressobj(31).decompress if ".gz" in path.rpartition("/")[2] else bytes
    with suppress(FileNotFoundError, zlib.error), io.new_input(path).open() as stream:
        begun = plain(stream.read(_BEGINNING))
        found = _UUID.search(begun) or _UUID.search(begun + plain(stream.read()))
        return found[1].decode() if found else None
    return None


def _needed_by_no_other(catalog: SearchedCatalog, table: Identifier, files: Iterable[Orphan]) -> list[Orphan]:
    """Return those of *files* to which no table or view but *table* refers, nor a commit of it that may be repaired.

    Raises:
        InvalidArguments: The files of another table can't be read, so it is not known which they are.
        LockTimeout: A writer of another table did not end in time.
    """
    left, busy = list(files), list[_Other]()
    for other in _others(catalog, table) if left else ():
        try:
            left = _without(left, _needed_by(catalog, table, other, within_ms=_BUSY_MS))
        except LockTimeout:
            busy.append(other)
        if not left:
            break
    for other in busy if left else ():
        left = _without(left, _needed_by(catalog, table, other))
    return left


def _needed_by(catalog: SearchedCatalog, table: Identifier, other: _Other, *, within_ms: int | None = None) -> set[str]:
    """Return the keys of the files that *other* needs; raises as :func:`_needed_by_no_other` does."""
    needed = _keys([other.location])
    if other.kind == "table":
        with suppress(NoSuchTableError, NoSuchIcebergTableError), _readable(table, other.name):
            needed |= _referenced(catalog.coordinator, other.name, within_ms=within_ms)
    return needed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """Another table or view of the catalog.

    Args:
        kind: "table" or "view".
        name: Namespace and name.
        uuid: Its UUID.
        location: Its metadata file.
        places: The folders where its files go.
    """

    kind: str
    name: Identifier
    uuid: str
    location: str
    places: tuple[str, ...]


def _others(catalog: SearchedCatalog, table: Identifier) -> Iterator[_Other]:
    """Yield every table and view of the catalog but *table*.

    Raises:
        InvalidArguments: One can't be read.
    """
    coordinator = catalog.coordinator
    for kind, other in _names(catalog):
        if other == table:
            continue
        metadata: TableMetadata | ViewMetadata
        try:
            with _readable(table, other):
                if kind == "table":
                    metadata, location = coordinator.load(other)
                    uuid = str(metadata.table_uuid)
                else:
                    location = catalog.view_location(other)
                    metadata = view_metadata.read(coordinator.store.file_io(location), location)
                    uuid = metadata.view_uuid
        except (NoSuchTableError, NoSuchIcebergTableError, NoSuchViewError):
            continue  # dropped meanwhile, or none of Iceberg's
        given = (metadata.properties.get(key) for key in _PLACES)
        places = (metadata.location, *(place for place in given if place))
        yield _Other(kind=kind, name=other, uuid=uuid, location=location, places=places)


@contextmanager
def _readable(table: Identifier, other: Identifier) -> Iterator[None]:
    """Read *other* in the block.

    Raises:
        NoSuchTableError, NoSuchIcebergTableError, NoSuchViewError: It is none.
        LockError: Its latch was not granted.
        InvalidArguments: It can't be read.
    """
    try:
        yield
    except (NoSuchTableError, NoSuchIcebergTableError, NoSuchViewError, LockError):
        raise
    except Exception as error:
        raise InvalidArguments(
            "the files of another table can't be read, so it is not known whether it needs files of this one, and "
            "nothing was deleted; try again, and if this stays so, repair or drop the other table",
            table=table_name(table),
            other=table_name(other),
            cause=error,
        ) from error


def _names(catalog: SearchedCatalog) -> Iterator[tuple[str, Identifier]]:
    """Yield every table and view of the catalog, with its kind."""
    seen: set[Identifier] = set()

    def below(namespaces: Iterable[Identifier]) -> Iterator[tuple[str, Identifier]]:
        for namespace in namespaces:
            if namespace in seen:
                continue
            seen.add(namespace)
            yield from (("table", tuple(identifier)) for identifier in catalog.list_tables(namespace))
            yield from (("view", tuple(identifier)) for identifier in catalog.list_views(namespace))
            yield from below(map(tuple, catalog.list_namespaces(namespace)))

    yield from below(map(tuple, catalog.list_namespaces()))
