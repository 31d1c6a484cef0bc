"""The tables of commands on narrow and wide screens: nothing is folded into single letters.

The expected tables are the files in ``golden``. ``GOLDEN=write pytest tests/cli`` writes them again.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from commit_coord.catalog.metastore.protection import Protection
from commit_coord.catalog.migration import Moved, Outcome, TableStatus, Verified
from commit_coord.catalog.migration.sightings import Sighting, WriterKind
from commit_coord.catalog.orphans import Orphan, Orphans
from commit_coord.catalog.repair import LostCommit
from commit_coord.cli.fitting import WholeTable, folded
from commit_coord.cli.local import server_table
from commit_coord.cli.metastore import metastore_table, protection_table
from commit_coord.cli.migration_views import moved_table, plan_table, status_table, verified_table
from commit_coord.cli.recovery import lost_table, orphan_table
from commit_coord.cli.views import commit_table, config_table, guarantee_table, lock_table
from commit_coord.hms.probe import CompareAndSet
from commit_coord.local.keeper import Up
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import LockEntry, LockMode, LockScope, LockState, Owner, Resource
from commit_coord.protocol.migration import LOCK_IMPL, Phase, State
from commit_coord.sql.show import show_all_columns
from tests.cli.terminal import assert_golden

AT_MS = 1_767_225_600_000
WIDTHS = range(60, 201)
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


AIRFLOW = Owner(user="airflow", host="etl-07.example.org", pid=31337, application="nightly_load.py")
LONG = "shop_of_the_north/sales_of_all_regions/region=north-east/day=2026-01-02"
CLOUD = Owner(
    user="svc-airflow-production",
    host="ip-10-0-117-230.eu-central-1.compute.internal",
    pid=1_234_567,
    application="spark",
    statement="INSERT OVERWRITE sales_of_all_regions PARTITION (day='2026-01-02') SELECT * FROM staged",
)


def lock(resource: str, state: LockState = LockState.ACQUIRED, owner: Owner = AIRFLOW) -> LockEntry:
    """Return a lock."""
    return LockEntry(
        resource=Resource.parse(resource),
        mode=LockMode.EXCLUSIVE,
        scope=LockScope.OPERATION,
        state=state,
        owner=owner,
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


def locks(resource: str, owner: Owner) -> RenderableType:
    """Return the table of ``locks``."""
    holder, waiter = lock(resource, owner=owner), lock("shop", LockState.WAITING)
    entries = [holder, replace(waiter, request_id="22222222-0000", blocked_by=holder.request_id)]
    return lock_table(entries, now_ms=AT_MS + 90_000, title="catalog shop (lease): 1 held, 1 waiting")


def configuration() -> RenderableType:
    """Return the table of ``config``."""
    uri = "coord+postgresql+psycopg://ann@database.north.example.org:5432/catalog_of_the_shop"
    records = [
        {"property": "lock.heartbeat-interval-ms", "value": "3000", "from": "default"},
        {"property": "lock.zk.connection-timeout-ms", "value": "10000", "from": "environment"},
        {"property": "lock.retry", "value": "[exponential]", "from": "arguments"},
        {"property": "uri", "value": uri, "from": "file"},
    ]
    return config_table(records, title="catalog shop")


def promises() -> RenderableType:
    """Return what ``config`` shows of the lock manager."""
    with create_lock_manager("memory", "", space="shop", options={}) as manager:
        return guarantee_table(manager.guarantees, title="the lock manager 'memory' promises")


def metastore() -> RenderableType:
    """Return what ``config`` shows of a metastore."""
    record = {
        "servers": ["thrift://metastore-1.example.org:9083", "thrift://metastore-2.example.org:9083"],
        "server": "thrift://metastore-1.example.org:9083",
        "version": "2.3.10",
        "compare_and_set": "ignored",
        "tried": False,
        "locks": False,
        "locks_reason": "hive.support.concurrency is not set, so the metastore grants none",
        "exclusive_write": False,
    }
    return metastore_table(record)


def protection() -> RenderableType:
    """Return what ``config --table`` shows."""
    declared = {LOCK_IMPL: "zookeeper"}
    guard = lock("shop/sales")
    compare_and_set = CompareAndSet.IGNORED
    return protection_table(
        Protection(table=SALES, properties=declared, lock_impl="hms", compare_and_set=compare_and_set, guard=guard)
    )


def commit_history() -> RenderableType:
    """Return the table of ``commits``."""
    common = {"when": "2026-01-01T00:00:00.123Z", "deleted_rows": 0, "current": False, "writer": None}
    records = [
        {
            **common,
            "snapshot_id": 3_051_729_675_574_597_004,
            "operation": "overwrite",
            "added_rows": 1_200_000,
            "deleted_rows": 300,
            "current": True,
            "request_id": "11111111-0000-0000-0000-000000000000,22222222-0000-0000-0000-000000000000",
            "generation": 12_345,
            "writer": "airflow@etl-07.example.org pid 31337",
        },
        {
            **common,
            "snapshot_id": 7,
            "operation": "append",
            "added_rows": 1,
            "request_id": None,
            "generation": None,
        },
        {
            **common,
            "snapshot_id": None,
            "operation": "unknown",
            "added_rows": 0,
            "request_id": "33333333-0000",
            "generation": 1,
        },
    ]
    return commit_table(records, title=f"{SALES}: 3 commits", wide=False)


TABLES: Mapping[str, RenderableType] = {
    "locks-of-a-partition": locks(LONG, AIRFLOW),
    "locks-in-a-cloud": locks("shop/sales", CLOUD),
    "config": configuration(),
    "config-guarantees": promises(),
    "config-metastore": metastore(),
    "config-table": protection(),
    "commits": commit_history(),
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


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_its_screen(name: str, width: int) -> None:
    assert_golden(f"{name}-{width}", printed(TABLES[name], width))


@pytest.mark.parametrize("name", TABLES)
def test_on_every_screen_no_line_is_too_wide_and_no_word_is_folded_into_single_letters(name: str) -> None:
    words = set(" ".join(printed(TABLES[name], 10_000)).split())
    for width in WIDTHS:
        lines = printed(TABLES[name], width)
        assert max(map(len, lines)) <= width
        pieces = set(" ".join(lines).split()) - words
        assert [piece for piece in pieces if len(piece) < 3 and "…" not in piece] == [], width


@pytest.mark.parametrize("resource", ["shop/sales", "shop/sales/region=north-east/day=2026-01-02", LONG])
@pytest.mark.parametrize("owner", [AIRFLOW, CLOUD], ids=["short", "long"])
def test_on_every_screen_the_resource_and_the_owner_of_a_lock_are_complete(resource: str, owner: Owner) -> None:
    who = f"{owner.user}@{owner.host} pid {owner.pid}"
    for width in WIDTHS:
        _, _, *lines = printed(locks(resource, owner), width)
        letters = "".join("".join(lines).split())
        assert resource in "".join(line.split()[0] for line in lines if not line.startswith(" ")), width
        assert who.replace(" ", "") in letters, width
        assert all(text in letters for text in ("holds", "11111111", "waits", "22222222")), width


TEXTS = st.lists(st.sampled_from(["a", "bb", "/", "語", " ", " " * 9, "\n", "\t"]), max_size=60).map("".join)


@given(text=TEXTS, width=st.integers(6, 30))
def test_a_folded_text_has_the_same_letters_and_fits(text: str, width: int) -> None:
    lines = folded(Text(text), width).plain.split("\n")
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in lines)
    words = text.split()
    assert [piece for line in lines for piece in line.split() if piece not in words and len(piece) < 3] == []


def test_nothing_of_an_answer_is_lost_on_a_narrow_screen() -> None:
    """Columns next to each other or below each other: the letters are the same."""
    narrow, wide = ("".join(printed(TABLES["show-locks"], width)) for width in (60, 10_000))
    for text in ("region=north-east/day=2026-01-02", "etl-07.example.org", "blocked_by"):
        assert text in wide
        assert text.replace(" ", "") in narrow.replace(" ", "")
