"""The lock services that the contract runs on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commit_coord.locks.handover import HandoverLockManager
from commit_coord.locks.memory_space import SPACES
from commit_coord.protocol.migration import Phase, State
from commit_coord.testing.carrying import OffersIn
from commit_coord.testing.contract import Service

CARRYING: list[Any] = [
    "memory",
    "lease-sqlite",
    pytest.param("lease-postgresql", marks=pytest.mark.postgres),
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    pytest.param("zookeeper-ensemble", marks=[pytest.mark.zookeeper, pytest.mark.slow]),
    pytest.param("zookeeper-ensemble-usual-ticks", marks=[pytest.mark.zookeeper, pytest.mark.slow]),
    pytest.param("hms", marks=pytest.mark.hms),
    pytest.param("hms-apart", marks=pytest.mark.hms),
    pytest.param("hms-to-zookeeper-both", marks=[pytest.mark.hms, pytest.mark.zookeeper, pytest.mark.slow]),
    pytest.param("hms-to-zookeeper-zookeeper", marks=[pytest.mark.hms, pytest.mark.zookeeper, pytest.mark.slow]),
    pytest.param("hms-to-zookeeper-hms", marks=[pytest.mark.hms, pytest.mark.zookeeper, pytest.mark.slow]),
]
NOT_CARRYING = ["none"]
_FORGETTING = threading.Lock()


class Apart(Service):
    """A metastore whose clients share no queue of threads, as clients in different processes."""

    def open(self, **settings: int) -> HandoverLockManager:
        """Return another client, which submits each request as a client of its own."""
        manager = self._alone(**settings)
        # A process has one request in the metastore's queue; its other threads wait for that one.
        alone: Any = manager
        alone.submit = lambda request, *, deadline: self._alone(**settings).submit(request, deadline=deadline)
        return manager

    def _alone(self, **settings: int) -> HandoverLockManager:
        with _FORGETTING:  # threads of one test come here together
            manager: HandoverLockManager = super().open(**settings)
            for space in [key for key in SPACES if key[0].startswith("hms ")]:
                del SPACES[space]
        return manager


@pytest.fixture(params=CARRYING + NOT_CARRYING)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """One service after the other, empty."""
    options: dict[str, Any] = {}
    opens_sessions = ends_sessions = False
    has_spaces = True
    match request.param:
        case "lease-sqlite":
            name, uri = "lease", f"sqlite:///{tmp_path}/locks.db"
        case "lease-postgresql":
            name, uri = "lease", request.getfixturevalue("postgres").url
        case "zookeeper":
            name, uri = "zookeeper", request.getfixturevalue("zookeeper").connect_string
            opens_sessions = ends_sessions = True
        case "zookeeper-ensemble":
            name, uri = "zookeeper", request.getfixturevalue("zookeeper_ensemble").connect_string
            opens_sessions = ends_sessions = True
        case "zookeeper-ensemble-usual-ticks":
            name, uri = "zookeeper", request.getfixturevalue("zookeeper_usual_ticks").connect_string
            opens_sessions = ends_sessions = True
        case "hms" | "hms-apart":
            name, uri = "hms", request.getfixturevalue("hms").uri
            has_spaces = False
            options = {"files": OffersIn(tmp_path)}
        case text if text.startswith("hms-to-zookeeper-"):
            # Every table is in one phase; the metastore's locks know no tests, so each begins with none.
            phase = Phase(text.removeprefix("hms-to-zookeeper-"))
            name, uri = "hms-to-zookeeper", request.getfixturevalue("zookeeper").connect_string
            ends_sessions = phase is Phase.ZOOKEEPER  # in `both` the metastore's half is left
            has_spaces = False
            options = {
                "metastore": request.getfixturevalue("hms").uri,
                "state_of": lambda _: State(phase=phase, epoch=1),
            }
        case name:
            uri = ""
    kind = Apart if request.param == "hms-apart" else Service
    with kind(
        name, uri, opens_sessions=opens_sessions, ends_sessions=ends_sessions, has_spaces=has_spaces, **options
    ) as service:
        yield service
