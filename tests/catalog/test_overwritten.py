"""Commits that a writer without our rules overwrote: found at the next commit of anybody, and brought back."""

from __future__ import annotations

import json
import logging
import sqlite3
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.events import CommitOverwritten
from commit_coord.iceberg.overwrites import Note
from tests.catalog.kit import EVERY_LOCK_MANAGER, SCHEMA, Kit, coordinated, ids, kit_of, row_ids

SQL_MANAGERS = [param for param in EVERY_LOCK_MANAGER if "hms" not in str(param)]


@pytest.fixture(scope="module", params=SQL_MANAGERS)
def made(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """Our catalog on SQLite with each lock manager that carries notes."""
    with kit_of(request) as made:
        yield made


def put(made: Kit, table: Any, location: str) -> None:
    """Do what a writer that only locks does: set the pointer, whatever it is."""
    *namespace, name = table.name()
    with sqlite3.connect(f"{made.folder}/catalog.db") as db:
        (count,) = db.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_namespace = ? AND table_name = ? RETURNING 1",
            (location, ".".join(namespace), name),
        ).fetchone()
    db.close()
    assert count == 1


def listened(catalog: CoordinatedCatalog) -> list[CommitOverwritten]:
    """Return what is reported from now on."""
    seen: list[CommitOverwritten] = []
    catalog.events.subscribe(lambda event: seen.append(event) if isinstance(event, CommitOverwritten) else None)
    return seen


def note_of(catalog: CoordinatedCatalog, table: Any) -> Note:
    with catalog.coordinator.latch(tuple(table.name())) as latch:
        return Note.parse(latch.note or "")


def overwritten(made: Kit, *, commits: int = 1) -> tuple[Any, list[Any]]:
    """Return a table whose last *commits* rows (of 1, 2, 3, …) were overwritten by row 100, and those commits."""
    table = made.table(ids(1))
    base = table.metadata_location
    lost = []
    for number in range(2, 2 + commits):
        table.append(ids(number))
        lost.append((table.metadata_location, table.current_snapshot()))
    put(made, table, base)
    made.stock.load_table(table.name()).append(ids(100))
    assert row_ids(made.again(table)) == [1, 100]
    return table, lost


def test_the_next_commit_of_anybody_names_what_was_overwritten(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    table, lost = overwritten(made, commits=2)
    other = coordinated(made.open())
    seen = listened(other)
    with caplog.at_level(logging.ERROR):
        other.load_table(table.name()).append(ids(5))
    (found,) = seen
    location, snapshot = lost[-1]
    assert found.lost == tuple(path for path, _ in lost)
    assert (found.location, found.snapshot_ids) == (location, (snapshot.snapshot_id,))
    assert found.request_id == snapshot.summary["commit-coord.request-id"]
    assert f"commit {found.request_id}" in found.by
    assert found.at_ms == snapshot.timestamp_ms
    name = ".".join(table.name())
    assert f"`commit-coord repair {name} --from {location}`" in caplog.text
    other.load_table(table.name()).append(ids(6))
    made.again(table).append(ids(7))
    assert len(seen) == 1
    assert [one.location for one in note_of(other, table).lost] == [location]
    assert row_ids(made.again(table)) == [1, 5, 6, 7, 100]
    other.close()


def test_a_note_that_is_too_old_raises_no_alarm(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    """A writer that was killed between its swap and its release left none; other writers leave none at all."""
    table = made.table(ids(1))
    catalog = coordinated(made.catalog)
    with catalog.coordinator.latch(tuple(table.name())) as latch:
        old = latch.note
    assert old
    for number in range(2, 5):
        table.append(ids(number))
    with catalog.coordinator.latch(tuple(table.name())) as latch:
        latch.leave(old)
    made.stock.load_table(table.name()).append(ids(5))
    made.again(table).append(ids(6))
    assert "were overwritten" not in caplog.text
    assert note_of(catalog, table).lost == ()


def test_what_ends_or_cuts_a_history_raises_no_alarm(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    catalog = coordinated(made.catalog)
    table = made.table(ids(1), properties={"write.metadata.previous-versions-max": "1"})
    first = table.current_snapshot().snapshot_id
    for number in range(2, 5):
        table.append(ids(number))
        for more in range(3):
            made.stock.load_table(table.name()).append(ids(10 * number + more))  # the note is not in the log any more
        table.refresh()
    with table.transaction() as tx:
        tx.set_properties({"write.metadata.delete-after-commit.enabled": "true"})
    for number in range(3):
        made.stock.load_table(table.name()).append(ids(200 + number))
    made.again(table).append(ids(300))
    table = made.again(table)
    table.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()
    table.append(ids(301))
    table.maintenance.expire_snapshots().by_id(first).commit()
    table.append(ids(302))
    assert row_ids(made.again(table)) == [1, 301, 302]
    name = table.name()
    catalog.drop_table(name)
    with catalog.coordinator.latch(tuple(name)) as latch:
        assert latch.note == ""
    again = catalog.create_table(name, SCHEMA)
    again.append(ids(1))
    made.stock.drop_table(name)  # the note stays, of a table that is gone
    catalog.create_table(name, SCHEMA).append(ids(1))
    renamed = (made.namespace, f"r{uuid.uuid4().hex[:8]}")
    catalog.rename_table(name, renamed)
    catalog.load_table(renamed).append(ids(2))
    catalog.rename_table(renamed, name)
    catalog.load_table(name).append(ids(3))
    assert "were overwritten" not in caplog.text
    assert row_ids(catalog.load_table(name)) == [1, 2, 3]


def test_a_note_of_another_version_is_as_none(made: Kit, caplog: pytest.LogCaptureFixture) -> None:
    table = made.table(ids(1))
    for text in ("nonsense", json.dumps({"head": {"later": 1}, "lost": []})):
        with coordinated(made.catalog).coordinator.latch(tuple(table.name())) as latch:
            latch.leave(text)
        table.append(ids(2))
    assert caplog.text.count("another version") == 2
    assert note_of(coordinated(made.catalog), table).head is not None
