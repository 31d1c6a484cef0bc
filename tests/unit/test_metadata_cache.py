"""The cache of table metadata stays small however many versions go by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from commit_coord.iceberg.cache import VERSIONS, MetadataCache


def _metadata() -> Any:
    return SimpleNamespace(snapshots=[])


class _Reader:
    """Reads whatever it is asked for, and keeps which version was known to it each time."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def __call__(self, known: Any) -> Any:
        self.given.append(known)
        return _metadata()


def test_what_was_put_need_not_be_read() -> None:
    cache, read = MetadataCache(), _Reader()
    metadata = _metadata()
    cache.put("t/1.json", metadata, 100)

    assert cache.get("t/1.json", read) is metadata
    assert read.given == []


def test_a_new_version_is_read_with_the_one_before_it() -> None:
    cache, read = MetadataCache(), _Reader()
    metadata = _metadata()
    cache.put("t/1.json", metadata, 100)

    cache.get("t/2.json", read)
    cache.get("u/1.json", read)

    assert read.given == [metadata, None]


def test_only_the_last_versions_of_a_table_stay_in_memory() -> None:
    cache, read = MetadataCache(), _Reader()
    other = _metadata()
    cache.put("other/1.json", other, 100)
    for number in range(1000):
        cache.put(f"t/{number}.json", _metadata(), 100)

    for number in range(1000 - VERSIONS, 1000):
        cache.get(f"t/{number}.json", read)
    assert cache.get("other/1.json", read) is other
    assert read.given == []

    cache.get(f"t/{999 - VERSIONS}.json", read)
    assert len(read.given) == 1


def test_a_deleted_version_is_forgotten_and_the_one_before_it_serves() -> None:
    cache, read = MetadataCache(), _Reader()
    metadata = _metadata()
    cache.put("t/1.json", metadata, 100)
    cache.put("t/2.json", _metadata(), 100)
    cache.drop("t/2.json")

    cache.get("t/2.json", read)

    assert read.given == [metadata]


def test_the_newest_version_stays_even_when_it_is_larger_than_the_room() -> None:
    cache, read = MetadataCache(max_bytes=1000), _Reader()
    large = _metadata()
    cache.put("t/1.json", _metadata(), 600)
    cache.put("u/1.json", large, 2000)

    assert cache.get("u/1.json", read) is large
    cache.get("t/1.json", read)
    assert read.given == [None]


def test_the_text_of_what_was_written_stays_as_long_as_its_metadata() -> None:
    cache, read = MetadataCache(), _Reader()
    for number in range(VERSIONS + 1):
        cache.put(f"t/{number}.json", _metadata(), 100, [b"{%d" % number, b"}"])
    cache.get("t/read.json", read)

    assert cache.json(f"t/{VERSIONS}.json") == [b"{%d" % VERSIONS, b"}"]
    assert cache.json("t/0.json") is None
    assert cache.json("t/read.json") is None
    cache.drop(f"t/{VERSIONS}.json")
    assert cache.json(f"t/{VERSIONS}.json") is None
