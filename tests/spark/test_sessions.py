"""The session that the tests of this folder share."""

from __future__ import annotations

import pytest

from tests import limits
from tests.spark.conftest import Sessions


def test_a_time_limit_that_strikes_gives_the_next_test_a_new_session(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its JVM may be stuck in the call that was stopped, and its connection half read."""
    before = sessions.current()
    assert before is sessions.current()
    monkeypatch.setattr(limits, "STRIKES", [*limits.STRIKES, "a test that hangs"])
    after = sessions.current()
    assert after is not before
    assert 3 == after.range(3).count()
    sessions._strikes = len(limits.STRIKES) - 1
