"""The judge of order finds a writer that lands before another one that was in the queue before."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from integration.order import Queued, Swap, overtaken

HOLDER = Queued("holder", 1, "a", sent_at=0, answered_at=1, left_at=12)
JAVA = Queued("java", 2, None, sent_at=2, answered_at=3, left_at=22)
BEHIND = Queued("behind", 3, "c", sent_at=4, answered_at=5, left_at=32)
SWAP = Swap("holder", 10, 11, "v1")
OF_JAVA = Swap("java", 20, 21, "v2")
OF_BEHIND = Swap("behind", 30, 31, "v3")

IN_ORDER: Mapping[str, set[str]] = {"v1": {"a"}, "v2": {"a"}, "v3": {"a", "c"}}
CARRIED = {"v1": {"a", "c"}, "v2": {"a", "c"}}


def test_who_lands_in_the_order_of_the_queue_overtakes_nobody() -> None:
    assert [] == overtaken([HOLDER, JAVA, BEHIND], [SWAP, OF_JAVA, OF_BEHIND], IN_ORDER.__getitem__)


def test_who_is_carried_past_a_lock_of_another_program_is_found() -> None:
    (found,) = overtaken([HOLDER, JAVA, BEHIND], [SWAP, OF_JAVA], CARRIED.__getitem__)
    assert "lock 3 of behind landed in v1 before lock 2 of java" in found


@pytest.mark.parametrize(
    "java",
    [
        pytest.param(Queued("java", 2, None, sent_at=2, answered_at=4.5, left_at=22), id="it was asked for meanwhile"),
        pytest.param(Queued("java", 2, None, sent_at=2, answered_at=3, left_at=9), id="it had given up before"),
    ],
)
def test_who_was_not_surely_in_the_queue_before_is_not_overtaken(java: Queued) -> None:
    assert [] == overtaken([HOLDER, java, BEHIND], [SWAP], CARRIED.__getitem__)


def test_who_is_granted_before_an_earlier_lock_is_found() -> None:
    (found,) = overtaken([HOLDER, JAVA, BEHIND], [SWAP, Swap("behind", 13, 14, "v3")], IN_ORDER.__getitem__)
    assert "lock 3 of behind landed in v3 before lock 2 of java" in found
