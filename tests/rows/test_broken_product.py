"""The oracle of rows finds faults of the product: each program finds nothing until the code is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import DataScan, ManifestGroupPlanner, upsert_util
from pyiceberg.types import LongType, NestedField

from commit_coord.catalog import orphans
from commit_coord.sql import definitions, inserts, matching, partitions
from commit_coord.table import compaction, deletion
from commit_coord.table import matching as table_matching
from commit_coord.testing.table_files.observed import local
from commit_coord.testing.table_files.state import Partition
from tests.proof.rows.many import Rig, kind_of
from tests.proof.rows.model.conditions import Always
from tests.proof.rows.model.operations import (
    Append,
    DeleteValues,
    MakeRef,
    Orphans,
    SqlUpdate,
    Upsert,
)
from tests.proof.rows.model.table_statements import (
    SqlAddPartition,
    SqlDropPartition,
    SqlDropRef,
    SqlExpire,
    SqlInsertPartition,
    SqlMakeRef,
    SqlRollback,
    SqlTruncatePartition,
)
from tests.proof.rows.program import Program, Step

COLUMNS = tuple(NestedField(number, name, LongType(), required=False) for number, name in ((1, "k"), (2, "a")))
ONE, TWO = (("k", 1),), (("k", 2),)
APPENDS = tuple(Append("a", rows) for rows in (({"k": 1, "a": 1}, {"k": 2, "a": 2}), ({"k": 3, "a": 3},), ({"k": 4},)))
Break = Callable[[pytest.MonkeyPatch], None]


def program(*steps: Step, **about: Any) -> Program:
    return Program("off", COLUMNS, (Partition(1, "identity", "k"),), steps=(*APPENDS, *steps), **about)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def every_row_lies_in_it(patch: pytest.MonkeyPatch) -> None:
    for module in (partitions, inserts):
        patch.setattr(module, "partition_filter", lambda *_: AlwaysTrue())


def each_spelling_is_another_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partitions, "canonical", lambda location: location)


def hidden_files_are_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(partitions, "is_hidden", lambda _: False)


def every_ref_is_made_at_the_head(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(definitions, "_snapshot", lambda table, _: table.current_snapshot())


def no_ref_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(definitions, "drop_ref", lambda *_: None)


def clock_is_a_year_ahead(patch: pytest.MonkeyPatch) -> None:
    real = definitions.roll_back
    patch.setattr(definitions, "roll_back", lambda one, table: real(replace(one, to=_earlier(one.to)), table))


def _earlier(to: Any) -> Any:
    return to if isinstance(to, int) else to.replace(year=to.year + 1)


def one_more_snapshot_goes(patch: pytest.MonkeyPatch) -> None:
    real = definitions.expire_snapshots
    patch.setattr(
        definitions, "expire_snapshots", lambda one, table: real(replace(one, retain_last=one.retain_last - 1), table)
    )


def no_other_table_is_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orphans, "_others", lambda *_: iter(()))
    patch.setattr(orphans, "_refuse_unknown", lambda *_: None)


def a_location_has_one_spelling(patch: pytest.MonkeyPatch) -> None:
    listed = orphans._listed

    def as_hadoop_writes_it(io: Any, location: str) -> Iterator[orphans.Orphan]:
        for one in listed(io, location):
            yield replace(one, path=f"file:{local(one.path)}")

    patch.setattr(orphans, "_listed", as_hadoop_writes_it)
    patch.setattr(orphans, "_keys_of", lambda location: [location])


def deletes_by_value_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    def files(scan: DataScan) -> Any:
        snapshot = scan.snapshot()
        manifests = snapshot.manifests(scan.io) if snapshot is not None else []
        planner = ManifestGroupPlanner(scan.table_metadata, scan.io, scan.row_filter, scan.case_sensitive, scan.options)
        return planner.plan_files([one for one in manifests if not one.content])

    for module in (matching, deletion, compaction):
        patch.setattr(module, "files_to_rewrite", files)


def a_null_key_is_lost(patch: pytest.MonkeyPatch) -> None:
    real = table_matching.new
    patch.setattr(upsert_util, "create_match_filter", lambda *_: AlwaysTrue())
    patch.setattr(
        table_matching,
        "new",
        lambda rows, found, keys: real(rows, found, keys).drop_null(),
    )


BROKEN: list[tuple[Break, Program, str]] = [
    (every_row_lies_in_it, program(SqlDropPartition("a", (ONE,))), "SqlDropPartition wrong"),
    (every_row_lies_in_it, program(SqlTruncatePartition("a", ONE)), "SqlTruncatePartition wrong"),
    (
        every_row_lies_in_it,
        program(SqlInsertPartition("a", ONE, ("a",), ((7,),), overwrite=True)),
        "SqlInsertPartition wrong",
    ),
    (
        each_spelling_is_another_file,
        program(
            SqlAddPartition("a", TWO, ({"k": 2, "a": 5},), "f"),
            SqlAddPartition("b", TWO, ({"k": 2, "a": 5},), "f", "doubled", lenient=True),
        ),
        "SqlAddPartition wrong",
    ),
    (
        hidden_files_are_taken,
        program(SqlAddPartition("a", TWO, ({"k": 2, "a": 5},), "f")),
        "SqlAddPartition wrong",
    ),
    (every_ref_is_made_at_the_head, program(SqlMakeRef("a", "r", "tag", back=1)), "SqlMakeRef wrong"),
    (
        no_ref_is_dropped,
        program(MakeRef("a", "r", "branch"), SqlDropRef("a", "r", "branch")),
        "SqlDropRef wrong",
    ),
    (clock_is_a_year_ahead, program(SqlRollback("a", 1, timed=True)), "SqlRollback wrong"),
    (one_more_snapshot_goes, program(SqlExpire("a", last=2)), "SqlExpire took others"),
    (no_other_table_is_looked_for, program(Orphans("a"), neighbour="same"), "Orphans landed"),
    (no_other_table_is_looked_for, program(Orphans("a"), neighbour="inside"), "Orphans landed"),
    (no_other_table_is_looked_for, program(Orphans("a"), neighbour="data"), "Orphans landed"),
    (no_other_table_is_looked_for, program(Orphans("a"), neighbour="foreign"), "Orphans landed"),
    (a_location_has_one_spelling, program(Orphans("a"), spelling="doubled"), "Orphans refused"),
    (
        deletes_by_value_are_passed_over,
        program(DeleteValues("s", ("a",), ({"a": 1},)), SqlUpdate("a", Always(), (("a", 9),))),
        "SqlUpdate wrong",
    ),
    (a_null_key_is_lost, program(Upsert("a", ({"k": None, "a": 8},), ("k",))), "Upsert wrong"),
]


@pytest.mark.parametrize("broken, written, kind", BROKEN, ids=[f"{one.__name__}-{kind}" for one, _, kind in BROKEN])
def test_a_fault_of_the_product_is_found(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, broken: Break, written: Program, kind: str
) -> None:
    assert kind_of(rig, written) == ""
    broken(monkeypatch)
    assert kind_of(rig, written) == kind
