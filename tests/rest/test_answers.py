"""Answers with metadata are made of what is kept; what is kept is counted."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from commit_coord.rest import metadata as answers
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.wire import Request

_PLAIN = Request(method="GET", path="/")
_GZIP = Request(method="GET", path="/", headers={"accept-encoding": "gzip"})


def _files(location: str) -> FileIO:
    return PyArrowFileIO()


def _metadata(number: int, snapshots: int = 100) -> bytes:
    return b'{"number":%d,"snapshots":[%s]}' % (number, b",".join(b'{"snapshot-id":%d}' % n for n in range(snapshots)))


def _counted(made: TableAnswers) -> bool:
    """Return whether the size of what is kept is what is counted."""
    return made._bytes == sum(len(body.plain) + len(body.gzipped or b"") for body in made._kept.values())


def test_the_commits_of_a_group_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads ask at once, it is compressed once."""
    compressed = []

    def compress(plain: bytes, **options: Any) -> bytes:
        compressed.append(plain)
        return gzip.compress(plain, **options)

    monkeypatch.setattr(answers, "gzip", type("counting", (), {"compress": staticmethod(compress)}))
    made, together = TableAnswers(_files), Barrier(8)
    written = made.written("file:///t/1.json", _metadata(1), _PLAIN)

    def ask(_: int) -> bytes:
        together.wait()
        kept = made.kept("file:///t/1.json", _GZIP)
        assert kept is not None
        return kept.body

    with ThreadPoolExecutor(8) as threads:
        bodies = set(threads.map(ask, range(8)))
    assert [written.body] == [gzip.decompress(body) for body in bodies] == compressed
    assert _counted(made)


def test_nothing_is_answered_for_a_file_that_nobody_has_written_or_loaded() -> None:
    assert TableAnswers(_files).kept("file:///t/1.json", _PLAIN) is None


def test_a_file_that_was_loaded_is_not_answered_otherwise_after_a_commit(tmp_path: Path) -> None:
    """The bytes of the file count, and not how this process would write them."""
    path = tmp_path / "1.metadata.json"
    path.write_bytes(b'{ "number": 1 }')
    made = TableAnswers(_files)
    loaded = made.load(f"file://{path}", _PLAIN)
    written = made.written(f"file://{path}", b'{"number":1}', _PLAIN)
    assert loaded.body == written.body
    assert b'{ "number": 1 }' in loaded.body


@pytest.mark.parametrize("request_", [_PLAIN, _GZIP], ids=["plain", "gzip"])
def test_what_is_kept_is_counted_and_has_a_limit(request_: Request) -> None:
    made = TableAnswers(_files, max_bytes=10_000)
    for number in range(50):
        answer = made.written(f"file:///t/{number}.json", _metadata(number), request_)
        plain = gzip.decompress(answer.body) if answer.headers.get("content-encoding") else answer.body
        assert _metadata(number) in plain
        assert _counted(made)
        assert made._bytes <= 10_000
    assert made.kept("file:///t/0.json", request_) is None
    assert made.kept("file:///t/49.json", request_) is not None


def test_what_is_forgotten_while_it_is_compressed_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = TableAnswers(_files, max_bytes=3_000)

    def compress(plain: bytes, **options: Any) -> bytes:
        for number in range(2, 9):
            made.written(f"file:///t/{number}.json", _metadata(number), _PLAIN)
        return gzip.compress(plain, **options)

    monkeypatch.setattr(answers, "gzip", type("slow", (), {"compress": staticmethod(compress)}))
    assert _metadata(1) in gzip.decompress(made.written("file:///t/1.json", _metadata(1), _GZIP).body)
    assert made.kept("file:///t/1.json", _PLAIN) is None
    assert _counted(made)
