"""Answers with metadata are made of what is kept; what is kept is counted."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate

from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.rest.compression import Compressor
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.wire import HttpAnswer, Request
from tests.unit.test_fast_metadata import appended, parsed

_PLAIN = Request(method="GET", path="/")
_GZIP = Request(method="GET", path="/", headers={"accept-encoding": "gzip"})


def _files(location: str) -> FileIO:
    return PyArrowFileIO()


def _metadata(number: int, snapshots: int = 100) -> bytes:
    return b'{"number":%d,"snapshots":[%s]}' % (number, b",".join(b'{"snapshot-id":%d}' % n for n in range(snapshots)))


def _plain(answer: HttpAnswer) -> bytes:
    return gzip.decompress(answer.body) if answer.headers.get("content-encoding") else answer.body


def _counted(made: TableAnswers) -> bool:
    """Return whether the size of what is kept is what is counted."""
    return made._bytes == sum(body.size for body in made._kept.values())


class _Slow(Compressor):
    """Does something before each answer is compressed, and counts them."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(1 << 20)
        self._before, self.texts = before, list[bytes]()

    def gzip(self, text: bytes, history: Sequence[bytes] = ()) -> bytes:
        self._before()
        self.texts.append(b"".join((text, *history)))
        return super().gzip(text, history)


# -- what is kept ----------------------------------------------------------------------------------------------


def test_the_commits_of_a_group_share_one_answer() -> None:
    """However many threads ask at once, it is compressed once."""
    made, together = TableAnswers(_files), Barrier(8)
    made._compressor = slow = _Slow()
    written = made.written("file:///t/1.json", [_metadata(1)], _PLAIN)

    def ask(_: int) -> bytes:
        together.wait()
        kept = made.kept("file:///t/1.json", _GZIP)
        assert kept is not None
        return kept.body

    with ThreadPoolExecutor(8) as threads:
        bodies = set(threads.map(ask, range(8)))
    assert [written.body] == [gzip.decompress(body) for body in bodies] == slow.texts
    assert _counted(made)


def test_nothing_is_answered_for_a_file_that_nobody_has_written_or_loaded() -> None:
    assert TableAnswers(_files).kept("file:///t/1.json", _PLAIN) is None


def test_a_file_that_was_loaded_is_not_answered_otherwise_after_a_commit(tmp_path: Path) -> None:
    """The bytes of the file count, and not how this process would write them."""
    path = tmp_path / "1.metadata.json"
    path.write_bytes(b'{ "number": 1 }')
    made = TableAnswers(_files)
    loaded = made.load(f"file://{path}", _PLAIN)
    written = made.written(f"file://{path}", [b'{"number":1}'], _PLAIN)
    assert loaded.body == written.body
    assert b'{ "number": 1 }' in loaded.body


@pytest.mark.parametrize("asked", [_PLAIN, _GZIP], ids=["plain", "gzip"])
def test_what_is_kept_is_counted_and_has_a_limit(asked: Request) -> None:
    made = TableAnswers(_files, max_bytes=10_000)
    for number in range(50):
        answer = made.written(f"file:///t/{number}.json", [_metadata(number)], asked)
        assert _metadata(number) in _plain(answer)
        assert _counted(made)
        assert made._bytes <= 7_500
    assert made.kept("file:///t/0.json", asked) is None
    assert made.kept("file:///t/49.json", asked) is not None


def test_what_is_forgotten_while_it_is_compressed_is_not_counted() -> None:
    made = TableAnswers(_files, max_bytes=4_000)

    def others() -> None:
        for number in range(2, 9):
            made.written(f"file:///t/{number}.json", [_metadata(number)], _PLAIN)

    made._compressor = _Slow(others)
    assert _metadata(1) in _plain(made.written("file:///t/1.json", [_metadata(1)], _GZIP))
    assert made.kept("file:///t/1.json", _PLAIN) is None
    assert _counted(made)


# -- compressed parts ------------------------------------------------------------------------------------------


def _versions(chance: random.Random) -> Iterator[Any]:
    """Yield the versions of a table whose history grows, is cut by expiry, and is read anew from its file."""
    metadata: Any = parsed(300)
    for number in range(301, 501):
        metadata = fast_metadata.apply_updates(metadata, appended(number, number - 1))
        match chance.randrange(20):
            case 0:
                gone = chance.sample([each.snapshot_id for each in metadata.snapshots][:-1], 5)
                metadata = fast_metadata.apply_updates(metadata, (RemoveSnapshotsUpdate(snapshot_ids=gone),))
            case 1:
                metadata = fast_metadata.parse(fast_metadata.dump(metadata, ""), "", chance.choice([None, metadata]))
            case 2:
                metadata = fast_metadata.apply_updates(metadata, (SetPropertiesUpdate(updates={"n": str(number)}),))
        yield metadata


def test_every_compressed_answer_is_the_plain_one() -> None:
    """Whatever a history was made of before: it grows, shrinks and is written anew."""
    made = TableAnswers(_files)
    for number, metadata in enumerate(_versions(random.Random(7))):
        location = f"file:///t/metadata/{number}.json"
        zipped = made.written(location, fast_metadata.dump_parts(metadata), _GZIP)
        plain = made.kept(location, _PLAIN)
        assert plain is not None
        assert plain.body == gzip.decompress(zipped.body)
        assert fast_metadata.dump(metadata, "") in plain.body
        assert _counted(made)


def test_a_history_that_has_grown_is_compressed_at_its_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    compressor, metadata = Compressor(1 << 20), parsed(2_000)
    begin, *history = fast_metadata.dump_parts(metadata)
    compressor.gzip(begin, history)
    compressed, compressobj = list[int](), zlib.compressobj

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self._deflate = compressobj(*arguments)
            self.flush = self._deflate.flush

        def compress(self, part: bytes) -> bytes:
            compressed.append(len(part))
            return self._deflate.compress(part)

    monkeypatch.setattr(zlib, "compressobj", Counting)
    for number in range(2_001, 2_101):
        metadata = fast_metadata.apply_updates(metadata, appended(number, number - 1))
        begin, *history = fast_metadata.dump_parts(metadata)
        text = b"".join((begin, *history))
        assert text == gzip.decompress(compressor.gzip(begin, history))
    assert sum(compressed) < 100 * len(text) / 10


@pytest.mark.parametrize("lengths", [[], [0], [5_000], [10, 5_000, 5_000, 10], [5_000, 10, 4_096, 4_095]])
def test_parts_of_any_length_make_one_member(lengths: list[int]) -> None:
    chance = random.Random(1)
    history = [bytes(chance.choices(b"abcdef", k=length)) for length in lengths]
    for text in (b"", b"x" * 10_000):
        zipped = Compressor(1 << 20).gzip(text, history)
        whole = zlib.decompressobj(16 + zlib.MAX_WBITS)
        assert b"".join((text, *history)) == whole.decompress(zipped)
        assert (True, b"") == (whole.eof, whole.unused_data)


def test_what_is_kept_of_parts_is_counted_and_has_a_limit() -> None:
    compressor = Compressor(100_000)
    for number in range(100):
        part = b"%d" % number * 5_000
        assert b"x" + part == gzip.decompress(compressor.gzip(b"x", [part]))
        assert compressor._bytes == sum(len(part) + len(made) for part, made in compressor._kept.items()) <= 100_000
    assert part in compressor._kept


def test_threads_compress_at_the_same_time() -> None:
    compressor = Compressor(150_000)  # so small that parts come and go
    parts = [bytes([65 + number]) * 20_000 for number in range(12)]

    def compress(seed: int) -> bool:
        chance = random.Random(seed)
        history = chance.sample(parts, 6)
        return b"".join((b"x", *history)) == gzip.decompress(compressor.gzip(b"x", history))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(compress, range(400)))
    assert compressor._bytes == sum(len(part) + len(made) for part, made in compressor._kept.items())
