"""What all tests share: servers, each started once, when the first test asks for it, and limits for hangs."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["commit_coord.testing.servers", "tests.limits"]

_ONE_SESSION = "tests/spark/"


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """A file's tests run in one process, and so do all tests that share a Spark session: a JVM that is new is slow."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return _ONE_SESSION if scope.startswith(_ONE_SESSION) else scope


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Say which tests run in one process."""
    return _Scheduling(config, log)
