"""A table whose metadata files pile up says so once, until its properties decide about them."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commit_coord.coordinator.stores import delete_quietly
from tests.catalog.kit import SCHEMA, ids
from tests.coordinator.test_groups import open_catalog

DELETE = "write.metadata.delete-after-commit.enabled"
SHORT_LOG = {"write.metadata.previous-versions-max": "2"}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "pile up" in record.getMessage()]


def test_a_warning_says_once_how_to_delete_the_metadata_files_that_pile_up(
    catalog: Any, caplog: pytest.LogCaptureFixture
) -> None:
    table = catalog.create_table("db.t", SCHEMA, properties=SHORT_LOG)
    with caplog.at_level(logging.WARNING):
        table.append(ids(1))
        table.append(ids(2))
        assert [] == warnings(caplog)  # the log still names every file
        for number in range(3, 6):
            table.append(ids(number))
    (said,) = warnings(caplog)
    assert all(part in said for part in ("db.t", f"{DELETE}=true", *SHORT_LOG))


def test_a_catalog_that_is_opened_again_does_not_warn_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs open a catalog for each table or batch."""
    with caplog.at_level(logging.WARNING):
        for number in range(6):
            with closing(open_catalog(tmp_path, "memory")) as catalog:
                catalog.create_namespace_if_not_exists("db")
                catalog.create_table_if_not_exists("db.t", SCHEMA, properties=SHORT_LOG).append(ids(number))
    assert 1 == len(warnings(caplog))


@pytest.mark.parametrize("decided", ["true", "false"])
def test_a_table_that_decides_about_its_metadata_files_is_not_warned_of(
    catalog: Any, caplog: pytest.LogCaptureFixture, decided: str
) -> None:
    table = catalog.create_table("db.t", SCHEMA, properties={**SHORT_LOG, DELETE: decided})
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            table.append(ids(number))
    assert [] == warnings(caplog)


def test_metadata_files_that_may_be_another_tables_are_kept(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions, pool = list[Any](), catalog.coordinator.executor()

    def submit(call: Any, *arguments: Any) -> Any:
        return deletions.append(arguments) if call is delete_quietly else pool.submit(call, *arguments)

    monkeypatch.setattr(catalog.coordinator, "executor", lambda: SimpleNamespace(submit=submit))
    shared = {DELETE: "true", "write.metadata.previous-versions-max": "1", "gc.enabled": "false"}
    table = catalog.create_table("db.t", SCHEMA, properties=shared)
    table.append(ids(1))
    copied = catalog.register_table("db.copied", table.metadata_location)
    for number in range(2, 6):
        copied.append(ids(number))
    assert [] == deletions
    copied.transaction().set_properties({"gc.enabled": "true"}).commit_transaction()
    copied.append(ids(6))
    assert deletions
