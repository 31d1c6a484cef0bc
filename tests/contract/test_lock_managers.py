"""The contract, on every lock manager."""

from __future__ import annotations

from commit_coord.testing.carrying import CarryingContract
from commit_coord.testing.contract import LockContract


class TestLockManagers(LockContract, CarryingContract):
    """See ``commit_coord.testing.contract``; the services are in ``conftest.py``."""
