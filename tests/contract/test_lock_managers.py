"""Every lock manager keeps the contract. What else is promised of one alone is tested in a file of its own."""

from __future__ import annotations

import pytest

from commit_coord.testing.carrying import CarryingContract, NotCarryingContract
from commit_coord.testing.contract import LockContract
from tests.contract.conftest import CARRYING, NOT_CARRYING


class TestLockManagers(LockContract):
    """See ``commit_coord.testing.contract``; the services are in ``conftest.py``."""


@pytest.mark.parametrize("service", CARRYING, indirect=True)
class TestLockManagersThatCarry(CarryingContract):
    """See ``commit_coord.testing.carrying``."""


@pytest.mark.parametrize("service", NOT_CARRYING, indirect=True)
class TestLockManagersThatDoNotCarry(NotCarryingContract):
    """See ``commit_coord.testing.carrying``."""
