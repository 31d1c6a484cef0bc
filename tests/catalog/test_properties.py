"""Table properties that are not there any more, or never were."""

from __future__ import annotations

import pytest

from commit_coord import CommitConflict
from tests.catalog.kit import Kit


@pytest.mark.parametrize("removed", [("gone",), ("there", "gone")])
def test_the_error_names_the_property_that_is_not_there(memory: Kit, removed: tuple[str, ...]) -> None:
    """A KeyError as PyIceberg's own, with words."""
    table = memory.table(properties={"there": "1"})
    for kind in (KeyError, CommitConflict):
        with pytest.raises(kind, match="nothing was changed: the table has no such property.*gone"):
            table.transaction().remove_properties(*removed).commit_transaction()
    assert memory.again(table).properties["there"] == "1"


def test_a_property_that_another_client_has_removed_is_a_conflict(memory: Kit) -> None:
    table = memory.table(properties={"there": "1"})
    stale = memory.again(table)
    with table.transaction() as transaction:
        transaction.remove_properties("there", "there")  # twice is once
    with pytest.raises(CommitConflict, match="'there'"):
        stale.transaction().remove_properties("there").commit_transaction()
