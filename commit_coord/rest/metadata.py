"""Answers with the metadata of a table, made of the bytes of its file.

A load parses nothing: the file contains JSON already, and to parse and write 1 MB would cost ten times the rest of a
load. A metadata file never changes, so the answer is cached by the file's location, also compressed if a client has
asked for that. A commit puts the bytes that it wrote into the cache, in the parts in which it made them.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson
from pyiceberg.io import FileIO

from commit_coord.iceberg.metadata import unzipped
from commit_coord.rest.compression import Compressor
from commit_coord.rest.wire import HttpAnswer, Request

_GZIP_FROM_BYTES = 1024

_CONFIG = b',"config":{}}'


def etag_of(location: str | None, *, refs_only: bool) -> str:
    """Return the entity tag of an answer with the metadata at *location*.

    The tag is weak, because the compressed and the plain answer share it. The answer with only the snapshots of the
    refs is another representation, so it has another tag.
    """
    return f'W/"{hashlib.sha256(f"{refs_only:d} {location}".encode()).hexdigest()[:32]}"'


def matches(if_none_match: str | None, etag: str) -> bool:
    """Return whether the header ``If-None-Match`` says that the client has the answer with *etag*."""
    if if_none_match is None:
        return False
    given = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in given or etag.removeprefix("W/") in given


class _SnapshotId(msgspec.Struct):
    id: int = msgspec.field(name="snapshot-id")


def with_referenced_snapshots(metadata: bytes) -> bytes:
    """Return *metadata* with only those snapshots that branches and tags name. Everything else is unchanged."""
    fields = msgspec.json.decode(metadata, type=dict[str, msgspec.Raw])
    snapshots = fields.get("snapshots")
    if snapshots is None or bytes(snapshots) == b"null":
        return metadata
    refs = msgspec.json.decode(fields.get("refs") or b"{}", type=dict[str, _SnapshotId] | None) or {}
    kept: set[Any] = {ref.id for ref in refs.values()}
    kept.add(msgspec.json.decode(fields.get("current-snapshot-id") or b"null"))
    raw = msgspec.json.decode(snapshots, type=list[msgspec.Raw])
    ids = msgspec.json.decode(snapshots, type=list[_SnapshotId])
    fields["snapshots"] = msgspec.Raw(
        msgspec.json.encode([each for each, snapshot in zip(raw, ids, strict=True) if snapshot.id in kept])
    )
    return msgspec.json.encode(fields)


@dataclass(slots=True)
class _Body:
    """One body, and what it was made into: plain (False) or compressed (True), once a client has asked for that.

    Args:
        text: The body; the begin of it if there is a history.
        history: The rest, in parts that it shares with the bodies before and after it.
    """

    text: bytes
    history: Sequence[bytes] = ()
    made: dict[bool, bytes] = field(default_factory=dict)
    making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def length(self) -> int:
        return len(self.text) + sum(map(len, self.history))

    @property
    def size(self) -> int:
        return self.length + sum(map(len, self.made.values()))


class TableAnswers:
    """Makes ``LoadTableResult`` answers, and caches the last used ones. Thread safe.

    Args:
        file_io: Returns the file store for a location.
        max_bytes: The size of the cache; of these, a quarter is for the compressed parts of answers.
    """

    def __init__(self, file_io: Callable[[str], FileIO], max_bytes: int = 128 * 1024 * 1024) -> None:
        self._file_io = file_io
        self._compressor = Compressor(max_bytes // 4)
        self._max_bytes = max_bytes - max_bytes // 4
        self._kept: OrderedDict[tuple[str, bool], _Body] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def load(self, location: str, request: Request, *, refs_only: bool = False) -> HttpAnswer:
        """Return the answer with the metadata file at *location*.

        Raises:
            FileNotFoundError: The file does not exist any more. A cached answer is not used then.
        """
        body = self._get(location, refs_only)
        whole = self._get(location, False) if refs_only else body
        if whole is None and body is None:
            body = self._read(location, refs_only)
        elif not self._file_io(location).new_input(location).exists():
            raise missing(location)
        elif body is None:
            assert whole is not None, "one of the two is there"
            metadata = self._made(whole, (location, False), zipped=False)[len(_head(location)) : -len(_CONFIG)]
            body = self._put(location, refs_only, _Body(_spliced(location, with_referenced_snapshots(metadata))))
        return self._answer(body, location, request, refs_only=refs_only)

    def kept(self, location: str, request: Request) -> HttpAnswer | None:
        """Return the answer with the metadata file at *location*; None if it is not cached.

        Only for who knows that the file is there: for a commit that has just landed in it. All commits of a group land
        in one file, so most of them find the answer of the first.
        """
        body = self._get(location, False)
        return None if body is None else self._answer(body, location, request, refs_only=False)

    def written(self, location: str, metadata: Sequence[bytes], request: Request) -> HttpAnswer:
        """Return the answer with *metadata*, the parts of what was just written to *location*."""
        begin, *history = metadata
        body = self._put(location, False, _Body(_head(location) + begin, [*history, _CONFIG]))
        return self._answer(body, location, request, refs_only=False)

    def unkept(self, location: str, metadata: bytes, request: Request) -> HttpAnswer:
        """Return the answer with *metadata*, which may differ from the file at *location*: not cached, and no ETag."""
        return self._answer(_Body(_spliced(location, metadata)), None, request, refs_only=False)

    def staged(self, metadata: bytes, request: Request) -> HttpAnswer:
        """Return the answer with *metadata*, which is not in a file yet."""
        return self._answer(_Body(_spliced(None, metadata)), None, request, refs_only=False)

    def _read(self, location: str, refs_only: bool) -> _Body:
        try:
            with self._file_io(location).new_input(location).open() as stream:
                metadata = unzipped(stream.read(), location)
        except FileNotFoundError as error:
            raise missing(location) from error
        if refs_only:
            metadata = with_referenced_snapshots(metadata)
        return self._put(location, refs_only, _Body(_spliced(location, metadata)))

    def _answer(self, body: _Body, location: str | None, request: Request, *, refs_only: bool) -> HttpAnswer:
        headers = {"vary": "accept-encoding"}
        if location is not None:
            headers["etag"] = etag_of(location, refs_only=refs_only)
        key = None if location is None else (location, refs_only)
        if body.length < _GZIP_FROM_BYTES or not request.takes_gzip:
            return HttpAnswer(body=self._made(body, key, zipped=False), headers=headers, location=location)
        headers["content-encoding"] = "gzip"
        return HttpAnswer(body=self._made(body, key, zipped=True), headers=headers, location=location)

    def _made(self, body: _Body, key: tuple[str, bool] | None, *, zipped: bool) -> bytes:
        if not zipped and not body.history:
            return body.text
        with body.making:  # else each thread that waits for this answer would make it for itself
            made = body.made.get(zipped)
            if made is None:
                gzip = self._compressor.gzip
                made = gzip(body.text, body.history) if zipped else b"".join((body.text, *body.history))
                with self._lock:  # a body that is forgotten must have been counted as a whole
                    body.made[zipped] = made
                    if key is not None and self._kept.get(key) is body:
                        self._bytes += len(made)
                        self._shrink()
            return made

    def _get(self, location: str, refs_only: bool) -> _Body | None:
        with self._lock:
            found = self._kept.get((location, refs_only))
            if found is not None:
                self._kept.move_to_end((location, refs_only))
            return found

    def _put(self, location: str, refs_only: bool, body: _Body) -> _Body:
        with self._lock:
            # Another thread may have read the same file, which never changes. Its answer is perhaps compressed already.
            if (other := self._kept.get((location, refs_only))) is not None:
                return other
            self._kept[location, refs_only] = body
            self._bytes += body.size
            self._shrink()
        return body

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: tuple[str, bool]) -> None:
        if (body := self._kept.pop(key, None)) is not None:
            self._bytes -= body.size


def missing(location: str) -> FileNotFoundError:
    """Return the error for a metadata file that does not exist although the catalog points to it, in Java's words."""
    return FileNotFoundError(f"Failed to open input stream for file: {location}")


def _head(location: str | None) -> bytes:
    return b'{"metadata-location":' + orjson.dumps(location) + b',"metadata":'


def _spliced(location: str | None, metadata: bytes) -> bytes:
    return b"".join((_head(location), metadata, _CONFIG))
