"""Snapshots that expire while other clients use the table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.kit import Kit, ids


@pytest.mark.parametrize(
    "refer",
    [
        lambda manage, snapshot: manage.create_branch(snapshot, "theirs"),
        lambda manage, snapshot: manage.create_tag(snapshot, "theirs"),
        lambda manage, snapshot: manage.rollback_to_snapshot(snapshot),
    ],
    ids=["branch", "tag", "rollback"],
)
@pytest.mark.parametrize("by", ["id", "age"])
def test_a_stale_expiry_spares_the_snapshots_that_others_refer_to_meanwhile(memory: Kit, refer: Any, by: str) -> None:
    """Also where nothing is left to expire, and the branch, the tag and the rollback stay."""
    table = memory.table()
    for number in (1, 2, 3):
        table.append(ids(number))
    first, second, third = (snapshot.snapshot_id for snapshot in table.snapshots())
    stale = memory.again(table)
    with memory.again(table).manage_snapshots() as manage:
        refer(manage, first)
    refs = memory.again(table).refs()
    expiry = stale.maintenance.expire_snapshots()
    if by == "id":
        expiry.by_ids([first, second]).commit()
    else:
        expiry.older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    after = memory.again(table)
    assert after.refs() == refs
    assert {snapshot.snapshot_id for snapshot in after.snapshots()} >= {ref.snapshot_id for ref in refs.values()}
    assert second not in {snapshot.snapshot_id for snapshot in after.snapshots()}
    for ref in refs:
        assert after.scan().use_ref(ref).to_arrow().num_rows == {first: 1, third: 3}[refs[ref].snapshot_id]


def test_a_stale_expiry_by_age_lands_where_others_expired_some_of_it(tmp_path: Path) -> None:
    """Its operation lock brings it up to date after it has chosen what to expire."""
    kit = Kit(tmp_path, "lease", **{"operation-locks": "hive"})
    table = kit.table()
    for number in (1, 2, 3):
        table.append(ids(number))
    stale = kit.again(table)
    table.maintenance.expire_snapshots().by_id(table.snapshots()[1].snapshot_id).commit()
    stale.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    assert len(kit.again(table).snapshots()) == 1
