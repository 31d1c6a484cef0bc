"""The manager that ``examples/`` has for etcd keeps the contract: it is written against the public contract alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commit_coord.errors import LockError
from commit_coord.locks.base import Interrupted
from commit_coord.model import LockMode
from commit_coord.process import this_owner
from commit_coord.testing.carrying import NotCarryingContract
from commit_coord.testing.contract import TABLE, LockContract, Service, request, soon
from commit_coord.testing.hammer import hammer
from commit_coord.testing.servers import running
from tests.etcd import EtcdServer

EXAMPLE = Path(__file__).parents[2] / "examples" / "etcd_locks.py"
MANAGER = "examples.etcd_locks:EtcdLockManager"


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    """One server for all tests."""
    yield from running("etcd", EtcdServer)


@pytest.fixture
def service(etcd: EtcdServer) -> Iterator[Service]:
    """The server, with a space of its own for each test."""
    with Service(MANAGER, etcd.url, ends_sessions=True) as service:
        yield service


class TestEtcdLocks(LockContract):
    """See ``commit_coord.testing.contract``."""


class TestEtcdLocksDoNotCarry(NotCarryingContract):
    """See ``commit_coord.testing.carrying``."""


@pytest.fixture
def with_journal(etcd: EtcdServer) -> Iterator[Service]:
    """The server, for the manager that has a journal, too."""
    with Service("tests.etcd_journal:EtcdJournalLockManager", etcd.url, ends_sessions=True) as service:
        yield service


@pytest.mark.slow
class TestEtcdLocksWithAJournal(LockContract):
    """See ``commit_coord.testing.contract``."""

    @pytest.fixture
    def service(self, with_journal: Service) -> Service:
        """The manager that has a journal."""
        return with_journal


def test_a_manager_of_another_package_declares_a_journal(with_journal: Service) -> None:
    """It remembers commits, and who released a waiting request by force."""
    manager, other = with_journal.open(), with_journal.open()
    LockContract().test_the_journal_remembers_for_its_time(manager, other)

    operator = replace(this_owner(), user="ann", host="console", pid=7)
    manager.note_forced_release("a request", operator, "it hung")
    assert {"released_by": "ann@console pid 7", "why": "it hung"} == other.forced_release_note("a request")


@pytest.mark.parametrize("happened", ["the reply was lost", "the lease had ended"])
def test_an_explicit_lock_that_may_not_outlive_its_client_is_not_granted(
    service: Service, monkeypatch: pytest.MonkeyPatch, happened: str
) -> None:
    manager: Any = service.open()
    requests = manager.parts.table
    detach = requests.detach

    def broken(ticket: Any) -> bool:
        if happened == "the lease had ended":
            requests.remove(ticket)
            return bool(detach(ticket))
        detach(ticket)
        raise Interrupted("the reply was lost")

    monkeypatch.setattr(requests, "detach", broken)
    with pytest.raises(LockError):
        manager.acquire(request((LockMode.EXCLUSIVE, TABLE), explicit=True), deadline=soon(2))
    assert [] == list(service.open().locks())


def _imported_by(text: str) -> set[str]:
    """Return the modules of ours that a program imports."""
    imported = [
        node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    return {name for name in imported if name.startswith("commit_coord")}


def test_the_example_is_short_and_imports_the_public_contract_alone() -> None:
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 300
    assert {"commit_coord.locks", "commit_coord.locks.public"} == _imported_by(text)


def test_a_journal_needs_the_public_contract_alone() -> None:
    assert {"commit_coord.locks"} == _imported_by((Path(__file__).parents[1] / "etcd_journal.py").read_text())


@pytest.mark.parametrize("appends", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_eight_processes_that_lock_in_etcd_make_one_chain_of_snapshots(
    etcd: EtcdServer, appends: int, tmp_path: Path
) -> None:
    properties = {"lock-impl": MANAGER, "lock.uri": etcd.url}
    report = hammer(tmp_path, writers=8, appends=appends, properties=properties, timeout_s=600)

    expected = replace(report, acknowledged=8 * appends, snapshots=8 * appends, failures={}, locks_left=0, broken=())
    assert expected == report
