"""What an error leaves open of a change that was sent."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hive_metastore.ttypes import Database

from commit_coord import doubt
from commit_coord.errors import CommitStateUnknown, InvalidArguments
from commit_coord.hms.client import MetastoreClient


class NothingWasSent(Exception):
    """Proves it."""


def test_what_proves_one_change_proves_nothing_of_the_one_before_it() -> None:
    """1. A change is sent, and its reply is lost. 2. Sent again, it does not reach the server. 3. The first lands."""
    with doubt.watching():
        with suppress(TimeoutError), doubt.sending(NothingWasSent):
            raise TimeoutError
        with suppress(NothingWasSent), doubt.sending(NothingWasSent):
            raise NothingWasSent
        assert doubt.is_open()


def test_a_change_that_was_not_sent_is_in_no_doubt() -> None:
    with doubt.watching():
        with suppress(NothingWasSent), doubt.sending(NothingWasSent):
            raise NothingWasSent
        assert not doubt.is_open()


@pytest.mark.parametrize("value", [5, True, "\ud800", b"x"], ids=repr)
@pytest.mark.parametrize("where", ["parameters", "locationUri", "description"])
def test_a_property_of_a_namespace_that_is_no_text_is_refused_without_doubt(value: Any, where: str) -> None:
    """Thrift finds out while it writes, where nothing tells that nothing was sent."""
    client: Any = MetastoreClient.__new__(MetastoreClient)
    wrong = Database(name="d", **{where: {"a": value} if where == "parameters" else value})
    with pytest.raises(InvalidArguments), doubt.deciding("it was done"):
        client.create_database(wrong)
    with pytest.raises(InvalidArguments), doubt.deciding("it was done"):
        client.alter_database("d", wrong)


def test_an_error_after_a_change_was_sent_is_unknown() -> None:
    with pytest.raises(CommitStateUnknown, match="whether it was done"), doubt.deciding("it was done"):
        doubt.opens()
        raise ValueError("a time limit is over")
