"""The cache of table metadata stays small however many versions go by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from commit_coord.iceberg.cache import VERSIONS, MetadataCache


def _metadata() -> Any:
    return SimpleNamespace(snapshots=[])


def _never(known: Any) -> Any:
    raise AssertionError("was not to be read")


def test_what_was_put_need_not_be_read() -> None:
    cache = MetadataCache()
    metadata = _metadata()
    cache.put("t/1.json", metadata, 100)

    assert cache.get("t/1.json", _never) is metadata


def test_a_new_version_is_read_with_the_one_before_it() -> None:
    cache = MetadataCache()
    first, second = _metadata(), _metadata()
    cache.put("t/1.json", first, 100)
    given = []

    assert cache.get("t/2.json", lambda known: given.append(known) or second) is second
    assert cache.get("u/1.json", lambda known: given.append(known) or _metadata()) is not None
    assert given == [first, None]


def test_only_the_last_versions_of_a_table_stay_in_memory() -> None:
    cache = MetadataCache()
    cache.put("other/1.json", other := _metadata(), 100)
    for number in range(1000):
        cache.put(f"t/{number}.json", _metadata(), 100)
    again = []

    for number in range(1000 - VERSIONS, 1000):
        cache.get(f"t/{number}.json", _never)
    cache.get(f"t/{999 - VERSIONS}.json", lambda known: again.append(known) or _metadata())

    assert len(again) == 1
    assert cache.get("other/1.json", _never) is other


def test_a_deleted_version_is_forgotten_and_the_one_before_it_serves() -> None:
    cache = MetadataCache()
    cache.put("t/1.json", first := _metadata(), 100)
    cache.put("t/2.json", _metadata(), 100)
    cache.drop("t/2.json")
    given = []

    cache.get("t/2.json", lambda known: given.append(known) or _metadata())

    assert given == [first]


def test_the_newest_version_stays_even_when_it_is_larger_than_the_room() -> None:
    cache = MetadataCache(max_bytes=1000)
    cache.put("t/1.json", _metadata(), 600)
    cache.put("u/1.json", large := _metadata(), 2000)
    again = []

    assert cache.get("u/1.json", _never) is large
    cache.get("t/1.json", lambda known: again.append(known) or _metadata())
    assert again == [None]
