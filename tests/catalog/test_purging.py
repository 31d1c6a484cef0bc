"""What a purge deletes, and what it must not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyiceberg.exceptions import ValidationException

from tests.catalog.kit import EVERY_LOCK_MANAGER, Kit, files_in, ids, kit_of, row_ids


@pytest.fixture(scope="module", params=EVERY_LOCK_MANAGER)
def coord(request: pytest.FixtureRequest) -> Iterator[Kit]:
    with kit_of(request) as made:
        yield made


@pytest.mark.parametrize("value", ["false", "FALSE"])
def test_a_table_that_shares_its_files_is_not_purged(coord: Kit, value: str) -> None:
    """The files of *copy* are those of *source*, as in a table that Spark's `snapshot` procedure makes."""
    source = coord.table(ids(1, 2))
    copy = coord.table(properties={"gc.enabled": value})
    copy.commit_files([task.file for task in source.scan().plan_files()])
    before = files_in(coord.warehouse)

    with pytest.raises(ValidationException, match="gc.enabled=false"):
        coord.catalog.purge_table(copy.name())
    assert files_in(coord.warehouse) == before
    assert row_ids(coord.again(copy)) == row_ids(coord.again(source)) == [1, 2]

    coord.catalog.drop_table(copy.name())
    assert row_ids(coord.again(source)) == [1, 2]


def test_gc_that_is_allowed_again_lets_a_table_be_purged(coord: Kit) -> None:
    table = coord.table(ids(1), properties={"gc.enabled": "false"})
    with table.transaction() as tx:
        tx.set_properties({"gc.enabled": "true"})
    coord.catalog.purge_table(table.name())
    assert files_in(table.location()) == set()
