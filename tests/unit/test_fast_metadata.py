"""Fast metadata is PyIceberg's metadata: same values, same JSON, whatever was parsed in between."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import random
import uuid
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    UpgradeFormatVersionUpdate,
    update_table_metadata,
)

from commit_coord.iceberg import metadata as fast_metadata


def raw(snapshots: int, version: int = 2) -> dict[str, Any]:
    """Return table metadata with a line of *snapshots* and one key that PyIceberg does not know."""
    schema = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "int"}]}
    line = [
        {
            "snapshot-id": number,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
            **({"sequence-number": number} if version > 1 else {}),
            "timestamp-ms": 1_700_000_000_000 + number,
            "manifest-list": f"file:///t/metadata/snap-{number}.avro",
            "summary": {"operation": "append", "total-records": str(number)},
            "schema-id": 0,
        }
        for number in range(1, snapshots + 1)
    ]
    made: dict[str, Any] = {
        "format-version": version,
        "table-uuid": str(uuid.UUID(int=7)),
        "location": "file:///t",
        "last-updated-ms": 1_700_000_000_000 + snapshots,
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"p": "1"},
        "snapshots": line,
        "snapshot-log": [{"snapshot-id": s["snapshot-id"], "timestamp-ms": s["timestamp-ms"]} for s in line],
        "metadata-log": [],
        "a-key-of-tomorrow": {"kept": True},
    }
    if version == 1:
        made |= {"schema": schema, "partition-spec": []}
    else:
        made["last-sequence-number"] = snapshots
    if snapshots:
        made |= {"current-snapshot-id": snapshots, "refs": {"main": {"snapshot-id": snapshots, "type": "branch"}}}
    return made


def parsed(snapshots: int, version: int = 2) -> Any:
    return fast_metadata.parse(json.dumps(raw(snapshots, version)).encode(), "file:///t/metadata/v.metadata.json")


def stock(snapshots: int, version: int = 2) -> Any:
    return TableMetadataUtil.parse_raw(json.dumps(raw(snapshots, version)))


def moved(snapshot_id: int) -> SetSnapshotRefUpdate:
    """Return the update that moves main."""
    return SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id})


def appended(number: int, parent: int | None) -> tuple[Any, ...]:
    snapshot = Snapshot(
        snapshot_id=number,
        parent_snapshot_id=parent,
        sequence_number=number,
        timestamp_ms=1_800_000_000_000 + number,
        manifest_list=f"file:///t/metadata/snap-{number}.avro",
        summary=Summary(Operation.APPEND, **{"added-records": "1"}),
        schema_id=0,
    )
    return (
        AddSnapshotUpdate(snapshot=snapshot),
        moved(number),
    )


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("snapshots", [0, 1, 40])
def test_what_is_dumped_is_what_pyiceberg_reads(version: int, snapshots: int) -> None:
    changed = fast_metadata.apply_updates(parsed(snapshots, version), appended(99, snapshots or None))
    expected = update_table_metadata(stock(snapshots, version), appended(99, snapshots or None))
    text = fast_metadata.dump(changed, "file:///t/metadata/v.metadata.json").decode()
    assert TableMetadataUtil.parse_raw(text) == TableMetadataUtil.parse_raw(expected.model_dump_json())


@pytest.mark.parametrize("version", [1, 2])
def test_pyiceberg_s_own_dump_of_fast_metadata_is_right(version: int) -> None:
    assert TableMetadataUtil.parse_raw(parsed(5, version).model_dump_json()) == stock(5, version)
    assert TableMetadataUtil.parse_obj(parsed(5, version).model_dump()) == stock(5, version)


def test_keys_that_pyiceberg_does_not_know_survive_a_commit() -> None:
    changed = fast_metadata.apply_updates(parsed(2), appended(99, 2))
    assert json.loads(fast_metadata.dump(changed, "v.metadata.json"))["a-key-of-tomorrow"] == {"kept": True}


def test_a_commit_parses_no_old_snapshot() -> None:
    base = parsed(500)
    changed = fast_metadata.apply_updates(base, appended(999, 500))
    fast_metadata.dump(changed, "v.metadata.json")
    still_raw = [item for item in changed.__dict__["snapshots"]._items if isinstance(item, dict)]
    assert len(still_raw) >= 498


def test_the_base_is_never_changed_by_what_grows_from_it() -> None:
    base = parsed(3)
    one = fast_metadata.apply_updates(base, appended(10, 3))
    two = fast_metadata.apply_updates(base, appended(20, 3))
    assert [s.snapshot_id for s in base.snapshots] == [1, 2, 3]
    assert one.snapshot_by_id(20) is None
    assert two.snapshot_by_id(10) is None
    assert one.snapshot_by_id(10) is not None
    three = fast_metadata.apply_updates(one, appended(20, 10))
    assert [s.snapshot_id for s in three.snapshots] == [1, 2, 3, 10, 20]


def test_the_index_finds_every_snapshot_after_a_thousand_appends() -> None:
    metadata: Any = parsed(1)
    for number in range(2, 1002):
        metadata = fast_metadata.apply_updates(metadata, appended(number, number - 1))
    assert all(metadata.snapshot_by_id(number).snapshot_id == number for number in range(1, 1002))
    assert metadata.snapshot_by_id(5000) is None


def test_a_deep_copy_shares_no_dictionary_that_a_caller_may_change() -> None:
    base = parsed(1)
    copied = copy.deepcopy(base)
    copied.properties["p"] = "2"
    copied.refs.clear()
    assert base.properties == {"p": "1"}
    assert "main" in base.refs


def test_fast_metadata_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(parsed(4))) == parsed(4)


def test_gzipped_metadata_is_written_and_read_by_its_name() -> None:
    location = "file:///t/metadata/00001-x.gz.metadata.json"
    data = fast_metadata.dump(parsed(2), location)
    assert gzip.decompress(data)[:1] == b"{"
    assert fast_metadata.parse(data, location) == parsed(2)


@pytest.mark.parametrize("ids", [{1}, {2, 3}, {1, 2, 3, 4}])
def test_expiring_gives_what_pyiceberg_gives_but_a_log_without_gaps(ids: set[int]) -> None:
    """PyIceberg leaves older entries in the log; for the time of an expired snapshot, one of them would answer."""
    update = (RemoveSnapshotsUpdate(snapshot_ids=sorted(ids)),)
    ours, theirs = fast_metadata.apply_updates(parsed(5), update), update_table_metadata(stock(5), update)
    assert list(ours.snapshots) == theirs.snapshots
    assert list(ours.snapshot_log) == [entry for entry in theirs.snapshot_log if entry.snapshot_id > max(ids)]
    assert ours.refs == theirs.refs


def test_a_snapshot_that_is_gone_can_be_expired_again() -> None:
    """As in Java; who asks for it by its id is refused by PyIceberg's call, when it was gone already."""
    without = fast_metadata.apply_updates(parsed(3), (RemoveSnapshotsUpdate(snapshot_ids=[2]),))
    assert fast_metadata.apply_updates(without, (RemoveSnapshotsUpdate(snapshot_ids=[2]),)) == without
    left = fast_metadata.apply_updates(parsed(3), (RemoveSnapshotsUpdate(snapshot_ids=[1, 2, 77]),)).snapshots
    assert [snapshot.snapshot_id for snapshot in left] == [3]


def test_an_upgrade_to_version_2_stays_fast() -> None:
    upgraded = fast_metadata.apply_updates(parsed(3, 1), (UpgradeFormatVersionUpdate(format_version=2),))
    assert upgraded.format_version == 2
    assert isinstance(upgraded, fast_metadata.FastMetadataV2)
    assert [s.snapshot_id for s in upgraded.snapshots] == [1, 2, 3]


def test_timestamps_never_step_back_when_the_clock_does() -> None:
    base = parsed(3)
    an_hour_ago = base.last_updated_ms - 3_600_000
    assert fast_metadata.not_before(base, an_hour_ago) == base.last_updated_ms
    changed = fast_metadata.apply_updates(base, (moved(2),))
    stamped = fast_metadata.stamped(changed, base, base.last_updated_ms)
    times = [entry.timestamp_ms for entry in stamped.snapshot_log]
    assert times == sorted(times)
    assert stamped.last_updated_ms == base.last_updated_ms


def test_the_metadata_log_is_cut_to_its_configured_length() -> None:
    base = fast_metadata.apply_updates(
        parsed(1), (SetPropertiesUpdate(updates={"write.metadata.previous-versions-max": "3"}),)
    )
    metadata: Any = base
    for number in range(5):
        metadata = fast_metadata.logged(metadata, metadata, f"file:///t/metadata/{number}.metadata.json")
    assert [entry.metadata_file[-15] for entry in metadata.metadata_log] == ["2", "3", "4"]


@pytest.mark.parametrize("version", [1, 2])
def test_a_file_of_another_layout_is_read_as_a_whole(version: int) -> None:
    """PyIceberg's own files end otherwise, with other keys behind the snapshot log; so do Java's."""
    theirs = stock(3, version).model_dump_json().encode()
    known = fast_metadata.parse(fast_metadata.dump(parsed(2, version), "v.metadata.json"), "v.metadata.json")
    assert fast_metadata.parse(theirs, "v.metadata.json", known).model_dump() == stock(3, version).model_dump()
    shuffled = dict(sorted(raw(3, version).items(), key=lambda item: item[0][::-1]))
    assert fast_metadata.parse(json.dumps(shuffled, separators=(",", ":")).encode(), "v.metadata.json") == parsed(
        3, version
    )


def test_only_what_is_new_of_a_head_is_parsed() -> None:
    known = fast_metadata.parse(fast_metadata.dump(parsed(300), "v.metadata.json"), "v.metadata.json")
    newer = fast_metadata.apply_updates(parsed(300), appended(999, 300))
    head = fast_metadata.parse(fast_metadata.dump(newer, "v.metadata.json"), "v.metadata.json", known)
    old, new = known.__dict__["snapshots"]._items, head.__dict__["snapshots"]._items
    assert all(ours is theirs for ours, theirs in zip(old, new, strict=False))
    assert head == newer


@pytest.mark.parametrize("ids", [{1}, {300}])
def test_a_head_whose_history_was_cut_is_read_anew(ids: set[int]) -> None:
    known = fast_metadata.parse(fast_metadata.dump(parsed(300), "v.metadata.json"), "v.metadata.json")
    cut = fast_metadata.apply_updates(parsed(300), (RemoveSnapshotsUpdate(snapshot_ids=sorted(ids)),))
    head = fast_metadata.parse(fast_metadata.dump(cut, "v.metadata.json"), "v.metadata.json", known)
    assert head == cut
    assert {s.snapshot_id for s in head.snapshots} == set(range(1, 301)) - ids


def test_a_table_as_of_a_snapshot_is_what_it_was_when_that_was_the_last() -> None:
    whole = parsed(6)
    seen = fast_metadata.as_of(whole, 4)
    then = stock(4)
    assert list(seen.snapshots) == then.snapshots
    assert list(seen.snapshot_log) == then.snapshot_log
    assert (seen.current_snapshot_id, seen.refs, fast_metadata.sequence_number(seen)) == (4, then.refs, 4)
    assert fast_metadata.as_of(whole, 6) is whole
    assert fast_metadata.as_of(whole, 99) is whole, "it was expired meanwhile"


def test_what_was_cut_off_is_found_neither_there_nor_behind_what_is_added() -> None:
    whole = parsed(6)
    assert whole.snapshot_by_id(6) is not None  # makes the index, which the cut shares
    seen = fast_metadata.as_of(whole, 4)
    assert seen.snapshot_by_id(5) is None
    grown = fast_metadata.apply_updates(seen, appended(50, parent=4))
    assert grown.snapshot_by_id(5) is None
    added = grown.snapshot_by_id(50)
    assert added is not None
    assert added.parent_snapshot_id == 4
    assert whole.snapshot_by_id(5).snapshot_id == 5


@pytest.mark.parametrize("schemas", [5, "text", {"a": 1}, [5], ["text"], [None]])
def test_metadata_with_schemas_that_are_none_is_refused_as_by_pyiceberg(schemas: Any) -> None:
    broken = raw(3) | {"schemas": schemas}
    with pytest.raises(Exception) as theirs:  # noqa: PT011 - whatever PyIceberg says
        TableMetadataUtil.parse_obj(copy.deepcopy(broken))
    with pytest.raises(type(theirs.value)):
        fast_metadata.parse(json.dumps(broken).encode(), "x.metadata.json")


def _named(number: int, names: str | None, *, is_raw: bool) -> Any:
    snapshot = appended(number, None)[0].snapshot
    summary = Summary(Operation.APPEND, **({"names": names} if names else {}))
    snapshot = snapshot.model_copy(update={"summary": summary})
    return json.loads(snapshot.model_dump_json()) if is_raw else snapshot


def test_what_summaries_name_is_found_in_every_version_of_a_history() -> None:
    """It grows in several directions, is cut, and loses entries; some were parsed, and some name several or nothing."""
    chance = random.Random(3)
    versions: list[Any] = [fast_metadata.LazyModels([], Snapshot.model_validate)]
    for number in range(1, 600):
        names = chance.choice([None, "", "a", "b,a", f"n{number}", f"n{number % 7},n{number % 5}"])
        made = versions[-1] if chance.random() < 0.9 else chance.choice(versions[-5:])
        match chance.randrange(40):
            case 0:
                made = made.without(set(chance.sample(range(number), min(3, number))))
            case 1:
                made = made.cut_behind(chance.randrange(1, number + 1))
            case 2:
                made = made.map_raw(lambda item: item)
        made = made + [_named(number, names, is_raw=chance.random() < 0.5)]  # noqa: RUF005 - stays unparsed
        versions.append(made)
        for one in chance.sample(versions[-5:], min(2, len(versions))):
            value = chance.choice(["a", "b", "n1", f"n{number}", "nobody"])
            expected = [
                each.snapshot_id for each in reversed(one) if value in ((each.summary["names"] or "").split(","))
            ]
            assert expected == list(one.ids_with_summary("names", value))
            assert expected == list(one.ids_with_summary("names", value, behind=0))
