"""Lock managers of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from commit_coord.config import configure, values
from commit_coord.errors import ConfigError
from commit_coord.locks.memory import MemoryLockManager
from commit_coord.locks.registry import create_lock_manager

ELSEWHERE = f"{__name__}:Elsewhere"


class Elsewhere(MemoryLockManager):
    """One of another package."""

    name = "elsewhere"


class Unfinished:
    """Lacks most of the contract."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise AssertionError("it is not opened")

    def acquire(self) -> None:
        """One of the methods."""

    def locks(self) -> None:
        """Another one."""


def test_a_class_of_another_package_is_opened_as_ours_are() -> None:
    with create_lock_manager(ELSEWHERE, "u", space="s") as manager:
        assert isinstance(manager, Elsewhere)
        assert list(manager.locks()) == []


def test_a_package_may_name_its_lock_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(name="elsewhere", value=ELSEWHERE, group=values.LOCK_MANAGER_GROUP)
    monkeypatch.setattr(values, "entry_points", lambda *, group: [entry] if group == entry.group else [])
    with create_lock_manager("elsewhere") as manager:
        assert isinstance(manager, Elsewhere)
    settings = configure("c", {"uri": "sqlite:////tmp/c.db", "lock-impl": "elsewhere"}).settings
    assert settings.lock_impl == "elsewhere"


def test_our_own_managers_are_opened_without_a_look_at_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads a file of each installed package."""
    looked: list[str] = []
    monkeypatch.setattr(values, "entry_points", lambda *, group: looked.append(group))
    configure("c", {"uri": "sqlite:////tmp/c.db", "lock-impl": "memory"})
    create_lock_manager("memory").close()
    assert looked == []


@pytest.mark.parametrize("path", ["nowhere.to_be_found:Locks", f"{__name__}:Nothing", "json:"])
def test_what_can_not_be_imported_is_named(path: str) -> None:
    with pytest.raises(ConfigError, match="can't be imported") as error:
        create_lock_manager(path)
    assert error.value.details["value"] == path


def test_what_lacks_a_method_is_refused_before_it_is_opened() -> None:
    with pytest.raises(ConfigError, match="lacks methods") as error:
        create_lock_manager(f"{__name__}:Unfinished")
    assert error.value.details["lacking"] == "submit, pages, unlock, reap, remember, recall, close"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown lock manager"):
        create_lock_manager("nonsense")
    with pytest.raises(ConfigError, match="invalid value"):
        configure("c", {"uri": "sqlite:////tmp/c.db", "lock-impl": "nonsense"})
    settings = configure("c", {"uri": "sqlite:////tmp/c.db", "lock-impl": ELSEWHERE}).settings
    assert settings.lock_impl == ELSEWHERE
