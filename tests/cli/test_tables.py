"""The tables of commands on narrow and wide screens: nothing is folded into single letters.

The expected tables are the files in ``golden``. ``GOLDEN=write pytest tests/cli`` writes them again.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import partial

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from commit_coord.catalog.migration import Moved, Outcome, TableStatus, Verified
from commit_coord.catalog.migration.sightings import Sighting, WriterKind
from commit_coord.catalog.orphans import Orphan, Orphans
from commit_coord.catalog.repair import LostCommit
from commit_coord.cli.fitting import WholeTable
from commit_coord.cli.local import server_table
from commit_coord.cli.migration_views import moved_table, plan_table, status_table, verified_table
from commit_coord.cli.recovery import lost_table, orphan_table
from commit_coord.local.keeper import Up
from commit_coord.model import LockEntry, LockMode, LockScope, LockState, Owner, Resource
from commit_coord.protocol.migration import Phase, State
from commit_coord.sql.show import show_all_columns
from tests.cli.terminal import assert_golden

AT_MS = 1_767_225_600_000
SALES, TARGETS = "shop_of_the_north.sales_of_all_regions", "shop.targets"
JAVA = Sighting(table=SALES, kind=WriterKind.JAVA, who="spark@etl-07.example.org", how="commit", times=3, last_ms=AT_MS)
PLAIN = Sighting(
    table=SALES,
    kind=WriterKind.LOCK_ONLY,
    who="airflow@etl-07.example.org pid 31337",
    how="lock",
    times=12,
    last_ms=AT_MS,
)
STATUSES = [
    TableStatus(table=SALES, state=State(phase=Phase.BOTH, epoch=2), sightings=[JAVA, PLAIN]),
    TableStatus(table=TARGETS, state=None, problem="its metadata file is gone: restore it, or drop the table"),
]
MOVED = [
    Moved(
        table=SALES,
        before=State(phase=Phase.HMS, epoch=1),
        after=State(phase=Phase.HMS, epoch=1),
        outcome=Outcome.REFUSED,
        reason="airflow@etl-07.example.org pid 31337 takes only the metastore's lock: stop it, or give --force",
        took_ms=1530,
    ),
    Moved(
        table=TARGETS,
        before=State(phase=Phase.HMS, epoch=1),
        after=State(phase=Phase.BOTH, epoch=2),
        outcome=Outcome.CHANGED,
        took_ms=210,
    ),
]
VERIFIED = [
    Verified(
        table=SALES, state=State(phase=Phase.BOTH, epoch=2), problems=["the guard is missing: repeat `migrate start`"]
    ),
    Verified(table=TARGETS, state=State(phase=Phase.ZOOKEEPER, epoch=3), problems=[]),
]


def lock(resource: str, state: LockState = LockState.ACQUIRED) -> LockEntry:
    """Return a lock."""
    return LockEntry(
        resource=Resource.parse(resource),
        mode=LockMode.EXCLUSIVE,
        scope=LockScope.OPERATION,
        state=state,
        owner=Owner(user="airflow", host="etl-07.example.org", pid=31337, application="nightly_load.py"),
        request_id="11111111-0000-0000-0000-000000000000",
        generation=None,
        requested_at_ms=AT_MS,
        expires_in_ms=30_000,
    )


def all_columns() -> RenderableType:
    """Return what ``SHOW LOCKS`` shows with ``--all-columns``."""
    answer = show_all_columns([lock("shop/sales/region=north-east/day=2026-01-02"), lock("shop", LockState.WAITING)])
    rows = [[Text("NULL" if value is None else str(value)) for value in row] for row in answer.rows]
    return WholeTable(answer.columns, rows)


lost_commit = partial(LostCommit, location="file:///a", snapshot_ids=(7,), at_ms=AT_MS)


def lost() -> RenderableType:
    """Return the table of ``repair``."""
    by_hand = "it deleted rows: read the table, and delete them again"
    return lost_table(
        [
            lost_commit(request_id="22222222-0000", operation="append", files=3, rows=1_200_000, restored=True),
            lost_commit(request_id="", operation="overwrite", files=12, rows=40, advice=by_hand),
        ],
        title=f"{SALES}: 2 commits were overwritten",
    )


def orphans() -> RenderableType:
    """Return the table of ``orphans``."""
    location = "s3://warehouse/shop/sales"
    files = tuple(
        Orphan(path=f"{location}/{name}", size=size, modified_ms=AT_MS)
        for name, size in (
            ("data/region=north-east/day=2026-01-02/00000-0-11111111-0000.parquet", 1_234_567),
            ("metadata/snap-1.avro", 4_321),
        )
    )
    return orphan_table(Orphans(table=("shop", "sales"), location=location, files=files, looked_at=10))


def servers() -> RenderableType:
    """Return the table of ``local status``."""
    folder = "/tmp/commit-coord-1000-local/servers"
    made = [
        Up(kind="hms", name="HMS 2.3.10", address="127.0.0.1:9083", port=9083, pid=31337, folder=folder, log=log)
        for log in (f"{folder}/metastore/hms.log", f"{folder}/zookeeper.log")
    ]
    return server_table(made, [True, False])


TABLES: Mapping[str, RenderableType] = {
    "show-locks": all_columns(),
    "migrate-plan": plan_table(STATUSES),
    "migrate-status": status_table(STATUSES),
    "migrate-moved": moved_table(MOVED),
    "migrate-verify": verified_table(VERIFIED),
    "repair": lost(),
    "orphans": orphans(),
    "local-status": servers(),
}


def printed(table: RenderableType, width: int) -> Sequence[str]:
    """Return the lines of *table* on a screen of *width* columns."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [60, 200])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_its_screen(name: str, width: int) -> None:
    assert_golden(f"{name}-{width}", printed(TABLES[name], width))


@pytest.mark.parametrize("name", TABLES)
def test_no_line_is_wider_than_the_screen(name: str) -> None:
    for width in range(60, 201):
        assert max(map(len, printed(TABLES[name], width))) <= width


def test_nothing_of_an_answer_is_lost_on_a_narrow_screen() -> None:
    """Columns next to each other or below each other: the letters are the same."""
    narrow, wide = ("".join(printed(TABLES["show-locks"], width)) for width in (60, 10_000))
    for text in ("region=north-east/day=2026-01-02", "etl-07.example.org", "blocked_by"):
        assert text in wide
        assert text.replace(" ", "") in narrow.replace(" ", "")
