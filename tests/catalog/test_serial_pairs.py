"""Two stale operations end as some serial order of the two, or exactly one is refused.

The oracle runs both operations one after the other, on fresh tables, in both orders, each on the table as it is then.
What is compared is what a user can see: rows of each branch, columns, partition fields, properties, branches and tags.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Transaction
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, StringType

from commit_coord import CommitConflict, CommitNotApplied
from tests.catalog.kit import NO_MATCH, SCHEMA, Kit, frame, ids, kit, names, orphans, rows

pytestmark = pytest.mark.filterwarnings(f"ignore:{NO_MATCH}")

BY_S = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "s"))

Operation = Callable[[Any], None]


def append(*numbers: int, branch: str = "main") -> Operation:
    return lambda table: table.append(ids(*numbers), branch=branch)


def overwrite(df: pa.Table, where: str, branch: str = "main") -> Operation:
    return lambda table: table.overwrite(df, where, branch=branch)


def delete(where: str, branch: str = "main") -> Operation:
    return lambda table: table.delete(where, branch=branch)


def upsert(*pairs: tuple[int, str]) -> Operation:
    return lambda table: table.upsert(frame(*pairs), ["id"])


def insert(*pairs: tuple[int, str]) -> Operation:
    return lambda table: table.upsert(frame(*pairs), ["id"], when_matched_update_all=False)


def dynamic(*pairs: tuple[int, str]) -> Operation:
    return lambda table: table.dynamic_partition_overwrite(frame(*pairs))


def schema(change: Callable[[Any], Any]) -> Operation:
    def run(table: Any) -> None:
        with table.update_schema() as changes:
            change(changes)

    return run


def spec(change: Callable[[Any], Any]) -> Operation:
    def run(table: Any) -> None:
        with table.update_spec() as changes:
            change(changes)

    return run


def order(column: str) -> Operation:
    def run(table: Any) -> None:
        with table.update_sort_order() as changes:
            changes.asc(column, IdentityTransform())

    return run


def properties(**values: str) -> Operation:
    return transaction(lambda tx: tx.set_properties(values))


def without(*keys: str) -> Operation:
    return transaction(lambda tx: tx.remove_properties(*keys))


def transaction(*steps: Callable[[Any], Any]) -> Operation:
    """Return an operation of several steps, which also serves as a part of a transaction that is open already."""

    def run(table: Any) -> None:
        with nullcontext(table) if isinstance(table, Transaction) else table.transaction() as tx:
            for step in steps:
                step(tx)

    return run


def expire_all(table: Any) -> None:
    """Expire what no branch or tag needs."""
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def tag_first(table: Any) -> None:
    """Put a tag and a branch on the oldest snapshot."""
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "first").create_branch(first, "old").commit()


def branch_first(name: str) -> Operation:
    return lambda table: table.manage_snapshots().create_branch(table.snapshots()[0].snapshot_id, name).commit()


def rollback(table: Any) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()


def two_snapshots(table: Any) -> None:
    table.append(ids(1, 2))
    table.append(ids(3))


def partitions(table: Any) -> None:
    table.append(frame((1, "a"), (2, "b")))
    table.append(frame((3, "a")))


def dev_branch(table: Any) -> None:
    two_snapshots(table)
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "dev").commit()
    table.append(ids(50), branch="dev")


V1 = {"format-version": "1"}
MERGE = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


@dataclass(frozen=True)
class Pair:
    """Two operations.

    Args:
        name: In the test's id.
        one: The first.
        two: The second, planned on the same table.
        prepare: Fills the table.
        create: Arguments of create_table.
        both: Both must land, in either order of arrival.
    """

    name: str
    one: Operation
    two: Operation
    prepare: Operation = two_snapshots
    create: dict[str, Any] = field(default_factory=dict)
    both: bool = False

    @property
    def staged(self) -> bool:
        """Whether both can be planned in a transaction."""
        return not self.name.startswith(("expiry", "rollback", "branch", "drop of a branch"))


def many(add: int) -> Operation:
    def run(table: Any) -> None:
        two_snapshots(table)
        for number in range(add):
            table.append(ids(100 + number))

    return run


PAIRS = [
    Pair("append, append", append(10), append(11), both=True),
    Pair("append, append, version 1", append(10), append(11), create={"properties": V1}, both=True),
    Pair("append, append on an empty table", append(10), append(11), prepare=lambda table: None, both=True),
    Pair("append, append on a merging table", append(10), append(11), many(3), {"properties": MERGE}, both=True),
    Pair("insert, insert of one key", insert((9, "x")), insert((9, "y"))),
    Pair("insert, insert into an empty table", insert((9, "x")), insert((9, "y")), prepare=lambda table: None),
    Pair("insert, append of one key", insert((9, "x")), append(9)),
    Pair("upsert, upsert of one key", upsert((1, "x")), upsert((1, "y"))),
    Pair("upsert, upsert of two keys", upsert((1, "x")), upsert((3, "y")), both=True),
    Pair("upsert, append", upsert((1, "x"), (8, "x")), append(8)),
    Pair("overwrite of nothing, append of its rows", overwrite(ids(20), "id = 9"), append(9)),
    Pair("overwrite of nothing, twice", overwrite(frame((9, "x")), "id = 9"), overwrite(frame((9, "y")), "id = 9")),
    Pair(
        "overwrite of nothing on an empty table, append",
        overwrite(ids(20), "id = 9"),
        append(9),
        prepare=lambda table: None,
    ),
    Pair("overwrite, append into it", overwrite(ids(20), "id >= 2"), append(5)),
    Pair("overwrite, append next to it", overwrite(ids(20), "id = 1"), append(5), both=True),
    Pair("overwrite of everything, append", overwrite(ids(20), "id >= 0"), append(5)),
    Pair("overwrite, overwrite of one file", overwrite(ids(20), "id = 1"), overwrite(ids(30), "id = 2")),
    Pair("overwrite, overwrite of the same rows", overwrite(ids(20), "id = 1"), overwrite(ids(30), "id = 1")),
    Pair("delete, append of its rows", delete("id = 1"), append(1)),
    Pair("delete of nothing, append of its rows", delete("id = 9"), append(9)),
    Pair("delete of a whole file, append into it", delete("id >= 3"), append(4)),
    Pair("delete, delete of the same rows", delete("id = 1"), delete("id = 1")),
    Pair("delete, delete in one file", delete("id = 1"), delete("id = 2")),
    Pair("delete, overwrite of the same rows", delete("id = 1"), overwrite(ids(20), "id = 1")),
    Pair("delete, overwrite that brings its rows", delete("id = 1"), overwrite(frame((1, "again")), "id = 3")),
    Pair("delete, upsert of the same row", delete("id = 1"), upsert((1, "x"))),
    Pair("delete of nothing and append, append", transaction(
        lambda tx: tx.delete("id = 9"), lambda tx: tx.append(ids(20))), append(9)),
    Pair("dynamic, dynamic on one partition", dynamic((10, "a")), dynamic((20, "a")), partitions,
         {"partition_spec": BY_S}),
    Pair("dynamic, dynamic on two partitions", dynamic((10, "a")), dynamic((20, "b")), partitions,
         {"partition_spec": BY_S}, both=True),
    Pair("dynamic on a new partition, twice", dynamic((10, "n")), dynamic((20, "n")), partitions,
         {"partition_spec": BY_S}),
    Pair("dynamic, append into the partition", dynamic((10, "a")), lambda t: t.append(frame((11, "a"))), partitions,
         {"partition_spec": BY_S}),
    Pair("append, append to two branches", append(10), append(11, branch="dev"), dev_branch, both=True),
    Pair("append, append that make two branches", append(10, branch="a"), append(11, branch="b"), both=True),
    Pair("append, append that make one branch", append(10, branch="a"), append(11, branch="a"), both=True),
    Pair("delete on a branch, append to main", delete("id >= 1", branch="dev"), append(10), dev_branch, both=True),
    Pair("one transaction on two branches, append to the second", transaction(
        lambda tx: tx.delete("id = 1"), lambda tx: tx.delete("id >= 50", branch="dev")),
        append(51, branch="dev"), dev_branch),
    Pair("one transaction on two branches, append to the first", transaction(
        lambda tx: tx.delete("id = 1"), lambda tx: tx.delete("id >= 50", branch="dev")),
        append(1), dev_branch),
    Pair("one transaction of two appends on two branches, append", transaction(
        lambda tx: tx.append(ids(60)), lambda tx: tx.append(ids(61), branch="dev")),
        append(51, branch="dev"), dev_branch),
    Pair("schema: two columns", schema(lambda c: c.add_column("x", LongType())),
         schema(lambda c: c.add_column("y", LongType())), both=True),
    Pair("schema: two columns of one name", schema(lambda c: c.add_column("x", LongType())),
         schema(lambda c: c.add_column("x", LongType()))),
    Pair("schema: one column of two types", schema(lambda c: c.add_column("x", LongType())),
         schema(lambda c: c.add_column("x", StringType()))),
    Pair("schema: rename and doc of one column", schema(lambda c: c.rename_column("s", "t")),
         schema(lambda c: c.update_column("s", doc="text"))),
    Pair("schema: rename, rename", schema(lambda c: c.rename_column("s", "t")),
         schema(lambda c: c.rename_column("s", "u"))),
    Pair("schema: rename, add of the new name", schema(lambda c: c.rename_column("s", "t")),
         schema(lambda c: c.add_column("t", LongType()))),
    Pair("schema: rename, add of the old name", schema(lambda c: c.rename_column("s", "t")),
         schema(lambda c: c.add_column("s2", LongType())), both=True),
    Pair("schema: drop, update", schema(lambda c: c.delete_column("s")),
         schema(lambda c: c.update_column("s", doc="text"))),
    Pair("schema: drop, drop", schema(lambda c: c.delete_column("s")), schema(lambda c: c.delete_column("s"))),
    Pair("schema: move, add", schema(lambda c: c.move_first("s")), schema(lambda c: c.add_column("x", LongType()))),
    Pair("schema: widen, widen", schema(lambda c: c.update_column("i", LongType())),
         schema(lambda c: c.update_column("i", LongType(), doc="wide")),
         prepare=schema(lambda c: c.add_column("i", IntegerType()))),
    Pair("schema, append", schema(lambda c: c.add_column("x", LongType())), append(10), both=True),
    Pair("schema: drop, append", schema(lambda c: c.delete_column("s")), append(10)),
    Pair("schema: rename, overwrite by the old name", schema(lambda c: c.rename_column("s", "t")),
         overwrite(ids(20), "s = '1'")),
    Pair("schema, overwrite", schema(lambda c: c.add_column("x", LongType())), overwrite(ids(20), "id = 1")),
    Pair("schema: drop, partition by it", schema(lambda c: c.delete_column("s")), spec(lambda c: c.add_identity("s"))),
    Pair("schema: drop, sort by it", schema(lambda c: c.delete_column("s")), order("s")),
    Pair("spec: two fields", spec(lambda c: c.add_identity("s")), spec(lambda c: c.add_identity("id"))),
    Pair("spec: one field twice", spec(lambda c: c.add_identity("s")), spec(lambda c: c.add_identity("s"))),
    Pair("spec: one name, two columns", spec(lambda c: c.add_field("s", IdentityTransform(), "p")),
         spec(lambda c: c.add_field("id", IdentityTransform(), "p"))),
    Pair("spec: drop, rename", spec(lambda c: c.remove_field("s")), spec(lambda c: c.rename_field("s", "r")),
         create={"partition_spec": BY_S}),
    Pair("spec, append", spec(lambda c: c.add_identity("s")), append(10), both=True),
    Pair("spec, overwrite", spec(lambda c: c.add_identity("s")), overwrite(ids(20), "id = 1")),
    Pair("spec replaced by one of the same width, overwrite",
         spec(lambda c: c.remove_field("s").add_identity("id")), overwrite(frame((20, "a")), "id = 1"),
         lambda t: t.append(frame((1, "a"), (2, "a"))), {"partition_spec": BY_S}),
    Pair("spec, dynamic overwrite", spec(lambda c: c.remove_field("s")), dynamic((10, "a")), partitions,
         {"partition_spec": BY_S}),
    Pair("sort order, append", order("s"), append(10), both=True),
    Pair("sort order, sort order", order("s"), order("id")),
    Pair("properties: two keys", properties(a="1"), properties(b="2"), both=True),
    Pair("properties: one key", properties(a="1"), properties(a="2")),
    Pair("properties: one key and value", properties(a="1"), properties(a="1"), both=True),
    Pair("properties: set, remove", properties(a="2"), without("a"), create={"properties": {"a": "1"}}),
    Pair("properties: remove, remove", without("a"), without("a"), create={"properties": {"a": "1"}}),
    Pair("properties, append", properties(a="1"), append(10), both=True),
    Pair("a format upgrade, append", transaction(lambda tx: tx.upgrade_table_version(2)), append(10),
         create={"properties": {"format-version": "1"}}, both=True),
    Pair("a format upgrade, delete", transaction(lambda tx: tx.upgrade_table_version(2)), delete("id = 1"),
         create={"properties": {"format-version": "1"}}),
    Pair("expiry, branch and tag on what expires", expire_all, tag_first),
    Pair("expiry, append", expire_all, append(10), both=True),
    Pair("expiry, delete", expire_all, delete("id = 1"), both=True),
    Pair("expiry, expiry", expire_all, expire_all),
    Pair("expiry, rollback", expire_all, rollback),
    Pair("rollback, append", rollback, append(10)),
    Pair("rollback, rollback", rollback, rollback),
    Pair("branch, branch of one name", branch_first("x"), branch_first("x")),
    Pair("branch, branch", branch_first("x"), branch_first("y"), both=True),
    Pair("branch, append to it", branch_first("x"), append(10, branch="x")),
    Pair("drop of a branch, append to it", lambda t: t.manage_snapshots().remove_branch("dev").commit(),
         append(51, branch="dev"), dev_branch),
    Pair("a transaction of sort order and upsert, append", transaction(
        lambda tx: tx.update_sort_order().asc("s", IdentityTransform()).commit(),
        lambda tx: tx.upsert(frame((1, "x")), ["id"])), append(10)),
    Pair("a transaction of a tag and upsert, append", transaction(
        lambda tx: ManageSnapshots(tx).create_tag(tx.table_metadata.snapshots[0].snapshot_id, "t").commit(),
        lambda tx: tx.upsert(frame((1, "x")), ["id"])), append(10)),
    Pair("a transaction of schema and append, append", transaction(
        lambda tx: tx.update_schema().add_column("x", LongType()).commit(),
        lambda tx: tx.append(pa.table({"id": [9], "s": ["9"], "x": [9]}))), append(10), both=True),
    Pair("a transaction of schema and append, schema", transaction(
        lambda tx: tx.update_schema().add_column("x", LongType()).commit(),
        lambda tx: tx.append(pa.table({"id": [9], "s": ["9"], "x": [9]}))),
        schema(lambda c: c.add_column("y", LongType()))),
    Pair("a transaction of property and append, append", transaction(
        lambda tx: tx.set_properties(a="1"), lambda tx: tx.append(ids(9))), append(10), both=True),
]  # fmt: skip


def visible(table: Any) -> dict[str, Any]:
    """Return what a user sees of *table*."""
    metadata = table.metadata

    def plain(branch: str) -> list[Any]:
        scan = table.scan()
        data = (scan if branch == "main" else scan.use_ref(branch)).to_arrow()
        return sorted((tuple(sorted(row.items())) for row in data.to_pylist()), key=repr)

    return {
        "rows": {name: plain(name) for name in metadata.refs},
        "refs": {name: ref.snapshot_ref_type.value for name, ref in metadata.refs.items()},
        "columns": [(f.name, str(f.field_type), f.required, f.doc) for f in metadata.schema().fields],
        "partitions": sorted((f.name, str(f.transform), metadata.schema().find_column_name(f.source_id))
                             for f in metadata.spec().fields),
        "order": [(f.source_id, str(f.direction)) for f in table.sort_order().fields],
        "properties": {k: v for k, v in metadata.properties.items() if not k.startswith("write.")},
        "version": metadata.format_version,
        "snapshots": len(metadata.snapshots) if "expire" in metadata.properties.get("compare", "") else None,
    }  # fmt: skip


def outcome(operation: Operation, table: Any) -> BaseException | None:
    """Run *operation*; return the refusal, if it was one."""
    try:
        operation(table)
    except Exception as error:  # noqa: BLE001 - what makes no sense on the table as it is, in either order
        return error
    return None


def made(kit: Kit, pair: Pair) -> Any:
    table = kit.catalog.create_table(kit.identifier(), SCHEMA, **pair.create)
    pair.prepare(table)
    return table


_serial: dict[tuple[str, str], list[tuple[dict[str, Any], list[bool]]]] = {}
"""By catalog, since new tables of a metastore have a property of their own, and pair."""


def serial(kit: Kit, pair: Pair) -> list[tuple[dict[str, Any], list[bool]]]:
    """Return (state, which of the two made sense) for each order: the oracle."""
    known = (kit.name, pair.name)
    if known not in _serial:
        found = []
        for first, second in ((0, 1), (1, 0)):
            table = made(kit, pair)
            landed = [True, True]
            for turn in (first, second):
                landed[turn] = outcome((pair.one, pair.two)[turn], kit.again(table)) is None
            found.append((visible(kit.again(table)), landed))
        _serial[known] = found
    return _serial[known]


def alone(kit: Kit, pair: Pair, which: int) -> dict[str, Any]:
    """Return the state when only one of the two came."""
    table = made(kit, pair)
    assert outcome((pair.one, pair.two)[which], kit.again(table)) is None
    return visible(kit.again(table))


def judge(kit: Kit, pair: Pair, table: Any, errors: list[BaseException | None]) -> None:
    """Assert that the pair ended as some serial order, or that one alone landed and the other was refused."""
    end = visible(kit.again(table))
    orders = serial(kit, pair)
    shown = [type(error).__name__ if error else "landed" for error in errors]
    assert names(orphans(kit.again(table))) == [], f"left behind: {shown}"
    assert kit.held() == []
    if errors == [None, None]:
        assert end in [state for state, landed in orders if landed == [True, True]], (
            f"no serial order explains it: {end}"
        )
        return
    assert not pair.both, f"both had to land: {shown} {errors}"
    assert errors.count(None) == 1, f"exactly one is refused: {shown} {errors}"
    refused = next(error for error in errors if error is not None)
    which = errors.index(None)
    senseless = any(landed[1 - which] is False for _, landed in orders)
    assert isinstance(refused, CommitConflict) or senseless, f"not a refusal: {refused!r}"
    assert end == alone(kit, pair, which)


@pytest.fixture(scope="module", params=["memory", pytest.param("hms", marks=[pytest.mark.hms, pytest.mark.slow])])
def unlocked(request: pytest.FixtureRequest) -> Iterator[Kit]:
    """A catalog without operation locks: conflicts are found at the commit, or not at all."""
    uri = request.getfixturevalue("hms").uri if request.param == "hms" else None
    with kit(request.param, uri, **{"operation-locks": "off"}) as made:
        yield made


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
@pytest.mark.parametrize("turn", ["one first", "two first"])
def test_two_stale_operations_end_as_a_serial_order(unlocked: Kit, pair: Pair, turn: str) -> None:
    """Where it can be done, both are planned in full before either commits."""
    table = made(unlocked, pair)
    order = (0, 1) if turn == "one first" else (1, 0)
    stale = [unlocked.again(table), unlocked.again(table)]
    errors: list[BaseException | None] = [None, None]
    if pair.staged:
        transactions = [mine.transaction() for mine in stale]
        for which in order:
            assert outcome((pair.one, pair.two)[which], transactions[which]) is None
        for which in order:
            errors[which] = outcome(lambda tx: tx.commit_transaction(), transactions[which])
    else:
        for which in order:
            errors[which] = outcome((pair.one, pair.two)[which], stale[which])
    assert errors[order[0]] is None, f"the first was refused although it was alone: {errors[order[0]]!r}"
    judge(unlocked, pair, table, errors)


@pytest.mark.parametrize("locks", ["locked", "unlocked"])
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.staged][:30], ids=lambda pair: pair.name)
def test_two_operations_at_one_time_end_as_a_serial_order(locks: str, memory: Kit, unlocked: Kit, pair: Pair) -> None:
    kit = memory if locks == "locked" else unlocked
    table = made(kit, pair)
    errors: list[BaseException | None] = [None, None]
    barrier = threading.Barrier(2)

    def run(which: int, mine: Any) -> None:
        barrier.wait()
        errors[which] = outcome((pair.one, pair.two)[which], mine)

    threads = [threading.Thread(target=run, args=(which, kit.again(table))) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    judge(kit, pair, table, errors)


# A writer during a drop, a rename, a purge.


@pytest.mark.parametrize("end", ["drop", "purge", "rename", "made again"])
def test_a_stale_writer_during_the_end_of_its_table_is_refused(memory: Kit, end: str) -> None:
    table = made(memory, PAIRS[0])
    stale = [memory.again(table) for _ in range(3)]
    new = memory.identifier()
    match end:
        case "drop" | "made again":
            memory.catalog.drop_table(table.name())
        case "purge":
            memory.catalog.purge_table(table.name())
        case "rename":
            memory.catalog.rename_table(table.name(), new)
    if end == "made again":
        memory.catalog.create_table(table.name(), SCHEMA)
    for writer, operation in zip(stale, (append(10), overwrite(ids(20), "id = 1"), properties(a="1")), strict=True):
        with pytest.raises((CommitConflict, NoSuchTableError, ValueError), match=r"(?i)dropped|exist|uuid"):
            operation(writer)
    assert memory.held() == []
    if end == "rename":
        moved = memory.catalog.load_table(new)
        assert pc.sum(moved.scan().to_arrow()["id"]).as_py() == 6
        assert names(orphans(moved)) == []
    elif end == "made again":
        again = memory.again(table)
        assert rows(again) == []
    else:
        with pytest.raises(NoSuchTableError):
            memory.again(table)


def test_writers_and_renames_at_one_time_lose_nothing(memory: Kit) -> None:
    table = made(memory, PAIRS[0])
    first, second = table.name(), memory.identifier()
    landed: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = 1000
        while not stop.is_set():
            for name in (first, second):
                number += 1
                try:
                    memory.catalog.load_table(name).append(ids(number))
                    landed.append(number)
                except (NoSuchTableError, CommitNotApplied):
                    pass

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            memory.catalog.rename_table(first, second)
            memory.catalog.rename_table(second, first)
    finally:
        stop.set()
        thread.join()
    final = memory.catalog.load_table(first)
    assert sorted(r[0] for r in rows(final)) == sorted([1, 2, 3, *landed])
    assert names(orphans(final)) == []
    assert memory.held() == []
