"""Manifest lists that grow by copying are the lists that PyIceberg would have written."""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary, read_manifest_list

from commit_coord.iceberg import avro, manifest_list

IO = PyArrowFileIO()


def manifest(number: int, content: ManifestContent = ManifestContent.DATA) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=f"file:///t/metadata/{number}-m0.avro",
        manifest_length=4000 + number,
        partition_spec_id=0,
        content=content,
        sequence_number=-1,
        min_sequence_number=-1,
        added_snapshot_id=number,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=10,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=[PartitionFieldSummary(False, None, b"\x01", b"\xff")],
        key_metadata=None,
    )


def grow(
    folder: Path, head: str | None, number: int, *, version: int = 2, codec: str = "gzip", **others: Any
) -> tuple[str, bool]:
    location = f"{folder}/list-{number}.avro"
    metadata: Any = SimpleNamespace(format_version=version, properties={"write.avro.compression-codec": codec})
    used = manifest_list.write_appended(
        IO,
        location,
        head=head,
        metadata=metadata,
        snapshot_id=number,
        parent_snapshot_id=number - 1 or None,
        sequence_number=number if version > 1 else 0,
        **{"added": [manifest(number)], **others},
    )
    return location, used


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("codec", ["gzip", "zstandard", "null"])
def test_a_list_of_two_hundred_appends_holds_each_manifest_with_its_sequence_number(
    tmp_path: Path, version: int, codec: str
) -> None:
    head = None
    for number in range(1, 201):
        head, _ = grow(tmp_path, head, number, version=version, codec=codec)
    found = {m.added_snapshot_id: m for m in read_manifest_list(IO.new_input(str(head)))}
    assert found.keys() == set(range(1, 201))
    assert all(m.sequence_number == (number if version > 1 else 0) for number, m in found.items())
    assert found[150].partitions == manifest(150).partitions
    with open(str(head), "rb") as stream:
        assert fastavro.reader(stream).metadata["snapshot-id"] == "200"


def test_a_list_that_was_cut_is_neither_read_nor_grown(tmp_path: Path) -> None:
    """Only a cut between two blocks is not noticed: then the file is a whole one."""
    head = None
    for number in (1, 2, 3):
        head, _ = grow(tmp_path, head, number)
    path = Path(str(head))
    data = path.read_bytes()
    _, start = avro.header(data)
    ends = [start, *(block.end for block in avro.blocks(data, start))]
    for length in set(range(len(data))) - set(ends):
        path.write_bytes(data[:length])
        for use in (partial(manifest_list.read, IO, str(head)), partial(grow, tmp_path, head, 4)):
            with pytest.raises((EOFError, IndexError, ValueError, zlib.error)):
                use()
        assert not (tmp_path / "list-4.avro").exists()


def test_small_blocks_are_folded_so_that_the_file_stays_small(tmp_path: Path) -> None:
    head = None
    for number in range(1, 301):
        head, _ = grow(tmp_path, head, number)
    with open(str(head), "rb") as stream:
        assert len(list(fastavro.block_reader(stream))) < 80


def test_a_snapshot_without_files_keeps_the_list_of_its_parent(tmp_path: Path) -> None:
    head, _ = grow(tmp_path, None, 1)
    location, _ = grow(tmp_path, head, 2, added=[])
    assert [m.added_snapshot_id for m in manifest_list.read(IO, location)] == [1]


def test_a_list_with_too_few_fields_is_written_anew(tmp_path: Path) -> None:
    """A version 1 list knows no sequence numbers; the first append after an upgrade can't be copied behind it."""
    head, _ = grow(tmp_path, None, 1, version=1)
    head, _ = grow(tmp_path, head, 2, version=2)
    found = {m.added_snapshot_id: m.sequence_number for m in read_manifest_list(IO.new_input(head))}
    assert found == {1: 0, 2: 2}


def test_a_merged_manifest_replaces_what_it_holds(tmp_path: Path) -> None:
    head = None
    for number in range(1, 6):
        head, _ = grow(tmp_path, head, number)
    replaced = frozenset(manifest(number).manifest_path for number in (1, 2, 3))
    head, used = grow(tmp_path, head, 6, merged=manifest(6), replaced=replaced)
    assert used
    assert sorted(m.added_snapshot_id or 0 for m in manifest_list.read(IO, head)) == [4, 5, 6, 6]


def test_a_merge_is_not_used_when_another_commit_took_one_of_its_manifests_away(tmp_path: Path) -> None:
    head = None
    for number in range(1, 4):
        head, _ = grow(tmp_path, head, number)
    replaced = frozenset({manifest(1).manifest_path, "file:///t/metadata/gone-m0.avro"})
    head, used = grow(tmp_path, head, 4, merged=manifest(4), replaced=replaced)
    assert not used
    assert sorted(m.added_snapshot_id or 0 for m in manifest_list.read(IO, head)) == [1, 2, 3, 4]


def test_a_manifest_survives_json() -> None:
    for content in ManifestContent:
        made = manifest(3, content)
        assert manifest_list.from_json(manifest_list.to_json(made))._data == made._data


def test_a_writer_grows_the_list_that_it_wrote_without_reading_it_again(tmp_path: Path) -> None:
    known = manifest_list.RecentLists()
    head, _ = grow(tmp_path, None, 1, known=known)
    head, _ = grow(tmp_path, head, 2, known=known)
    for number in range(3, 101):
        Path(head).unlink()
        head, _ = grow(tmp_path, head, number, known=known)
        assert sorted(m.added_snapshot_id or 0 for m in manifest_list.read(IO, head)) == list(range(1, number + 1))


def test_a_list_that_is_large_or_was_written_long_ago_is_read_again(tmp_path: Path) -> None:
    known = manifest_list.RecentLists()
    heads = []
    for number in range(1, 12):
        (tmp_path / f"{number}").mkdir()
        heads.append(grow(tmp_path / f"{number}", None, number)[0])
        known.keep(heads[-1], Path(heads[-1]).read_bytes())
    assert [known.take(head) is None for head in heads] == [True] * 3 + [False] * 8
    known.keep("large", bytes(5 * 1024 * 1024))
    assert known.take("large") is None


def _by_path(found: Any) -> dict[str, Any]:
    return {each.manifest_path: each._data for each in found}


def test_the_manifests_of_a_list_are_known_when_it_has_grown(tmp_path: Path) -> None:
    """Through folded blocks too, they are those that are read."""
    known = manifest_list.RecentLists()
    head, _ = grow(tmp_path, None, 1, known=known)
    known.manifests(IO, head)
    for number in range(2, 140):
        head, _ = grow(tmp_path, head, number, known=known)
    read = _by_path(manifest_list.read(IO, head))
    Path(head).unlink()
    assert len(read) == 139
    assert _by_path(known.manifests(IO, head).values()) == read


def test_a_list_that_was_written_anew_is_read(tmp_path: Path) -> None:
    """Its manifests are not those of the list before it and the added ones."""
    known = manifest_list.RecentLists()
    head, _ = grow(tmp_path, None, 1, known=known)
    assert len(known.manifests(IO, head)) == 1
    replaced = frozenset({manifest(1).manifest_path})
    head, used = grow(tmp_path, head, 2, merged=manifest(3), replaced=replaced, known=known)
    assert used
    assert sorted(known.manifests(IO, head)) == sorted(manifest(number).manifest_path for number in (2, 3))


def test_the_manifests_that_are_kept_are_counted_and_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_list.RecentLists, "_MANIFESTS", 100)
    known = manifest_list.RecentLists()
    head, _ = grow(tmp_path, None, 1, known=known)
    known.manifests(IO, head)
    for number in range(2, 110):
        head, _ = grow(tmp_path, head, number, known=known)
        assert known._count == sum(map(len, known._decoded.values())) <= 100
    assert len(known.manifests(IO, head)) == 109  # more than may be kept
    assert known._decoded
    assert head not in known._decoded


@pytest.mark.parametrize("by_pyiceberg", [False, True])
def test_what_is_known_of_a_list_is_left_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_pyiceberg: bool
) -> None:
    if by_pyiceberg:
        monkeypatch.setattr(manifest_list, "decoded", lambda *_: None)
    head, _ = grow(tmp_path, None, 1, added=[manifest(1), manifest(2), manifest(3), manifest(2)])
    known = {made.manifest_path: made for made in map(manifest, (2, 3, 4))}
    found = manifest_list.read_others(IO, head, known)
    assert [each.added_snapshot_id for each in found] == [1, 2]
    assert list(known) == [manifest(4).manifest_path]
