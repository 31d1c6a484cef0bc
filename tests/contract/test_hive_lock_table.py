"""The Hive manual's lock table, held against what every lock manager really locks and keeps out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from commit_coord.locks.handover import HandoverLockManager
from commit_coord.model import LockMode, Resource
from commit_coord.protocol.hierarchy import Operation, Partition, operation_locks
from commit_coord.protocol.modes import compatible
from commit_coord.testing.contract import Service, blocked, request, soon

S, X = LockMode.SHARED, LockMode.EXCLUSIVE
T1, T2 = Resource(("db", "t1")), Resource(("db", "t2"))
P1: Partition = ["p=1"]

Statement = Sequence[tuple[Operation, Resource, Sequence[Partition]]]

SELECT_P1 = (Operation.SELECT, T1, [P1])

# The manual's 17 rows: command, what it does, the locks as the manual writes them. Row 16 holds S on T1 by the
# manual's own rule about parents, which its table leaves out.
ROWS: list[tuple[str, Statement, str]] = [
    ("select .. T1 partition P1", [SELECT_P1], "S t1, S t1/p=1"),
    (
        "insert into T2(partition P2) select .. T1 partition P1",
        [(Operation.INSERT, T2, [["p=2"]]), SELECT_P1],
        "S t1, S t1/p=1, S t2, X t2/p=2",
    ),
    (
        "insert into T2(partition P.Q) select .. T1 partition P1",
        [(Operation.INSERT, T2, [["p=2", "q=3"]]), SELECT_P1],
        "S t1, S t1/p=1, S t2, S t2/p=2, X t2/p=2/q=3",
    ),
    ("alter table T1 rename T2", [(Operation.RENAME, T1, [])], "X t1"),
    ("alter table T1 add cols", [(Operation.ADD_COLUMNS, T1, [])], "X t1"),
    ("alter table T1 replace cols", [(Operation.REPLACE_COLUMNS, T1, [])], "X t1"),
    ("alter table T1 change cols", [(Operation.CHANGE_COLUMNS, T1, [])], "X t1"),
    ("alter table T1 concatenate", [(Operation.CONCATENATE, T1, [])], "X t1"),
    ("alter table T1 add partition P1", [(Operation.ADD_PARTITION, T1, [P1])], "S t1, X t1/p=1"),
    ("alter table T1 drop partition P1", [(Operation.DROP_PARTITION, T1, [P1])], "S t1, X t1/p=1"),
    ("alter table T1 touch partition P1", [(Operation.TOUCH_PARTITION, T1, [P1])], "S t1, X t1/p=1"),
    ("alter table T1 set serdeproperties", [(Operation.SET_SERDE_PROPERTIES, T1, [])], "S t1"),
    ("alter table T1 set serializer", [(Operation.SET_SERIALIZER, T1, [])], "S t1"),
    ("alter table T1 set file format", [(Operation.SET_FILE_FORMAT, T1, [])], "S t1"),
    ("alter table T1 set tblproperties", [(Operation.SET_TABLE_PROPERTIES, T1, [])], "X t1"),
    ("alter table T1 partition P1 concatenate", [(Operation.CONCATENATE_PARTITION, T1, [P1])], "S t1, X t1/p=1"),
    ("drop table T1", [(Operation.DROP_TABLE, T1, [])], "X t1"),
]

# What the manual says outside of its table.
MORE: list[tuple[str, Statement, str]] = [
    ("select .. T1, not partitioned", [(Operation.SELECT, T1, [])], "S t1"),
    ("insert into T1, not partitioned", [(Operation.INSERT, T1, [])], "X t1"),
    ("insert into T1 of what T1 has", [(Operation.INSERT, T1, [["p=2"]]), SELECT_P1], "S t1, S t1/p=1, X t1/p=2"),
    ("insert overwrite T1 partition P1 from itself", [(Operation.INSERT, T1, [P1]), SELECT_P1], "S t1, X t1/p=1"),
    ("insert into T1 partition (p)", [(Operation.INSERT, T1, [[None]])], "X t1"),
    ("insert into T1 partition (p=1, q)", [(Operation.INSERT, T1, [["p=1", None]])], "S t1, X t1/p=1"),
    ("insert into T1 partition (p, q=1)", [(Operation.INSERT, T1, [[None, "q=1"]])], "X t1"),
    ("drop partition prefix", [(Operation.DROP_PARTITION, T1, [["p=1"]])], "S t1, X t1/p=1"),
]


@pytest.mark.parametrize("command, statement, expected", ROWS + MORE, ids=[row[0] for row in ROWS + MORE])
def test_a_command_holds_what_the_manual_says(
    service: Service, command: str, statement: Statement, expected: str
) -> None:
    """The command's locks are listed as held, keep out what conflicts with each of them, and nothing else."""
    manager, other = service.open(), service.open()
    wanted = request(
        *(
            (mode, resource)
            for operation, table, partitions in statement
            for resource, mode in operation_locks(operation, table, partitions)
        ),
        statement=command,
    )
    assert expected == str(wanted).replace("db/", "")
    with manager.acquire(wanted, deadline=soon()):
        listed = [f"{entry.mode.letter} {entry.resource}" for entry in other.locks(Resource(("db",)))]
        assert (str(wanted).split(", ") if manager.guarantees.mutual_exclusion else []) == listed
        for resource, held in wanted.locks:
            for mode in LockMode:
                assert _conflicts(manager, mode, held) == blocked(other, request((mode, resource)))
        assert not blocked(other, request((X, Resource(("db", "t3")))))
    assert [] == list(other.locks(Resource(("db",))))


def test_the_manual_has_seventeen_rows() -> None:
    """None was forgotten."""
    assert 17 == len(ROWS)


def test_a_prefix_keeps_out_what_is_below_it_and_nothing_else(service: Service) -> None:
    """X on p=1 conflicts with every p=1/q=…, since those hold their prefix in S; p=2/q=… is free."""
    manager, other = service.open(), service.open()
    prefix, below = Resource((*T1.path, "p=1")), Resource((*T1.path, "p=1", "q=1"))
    neighbour = Resource((*T1.path, "p=2", "q=1"))
    exclusive = manager.guarantees.mutual_exclusion
    with manager.acquire(request((X, prefix)), deadline=soon()):
        assert [exclusive, exclusive] == [blocked(other, request((mode, below))) for mode in LockMode]
        assert not blocked(other, request((X, neighbour)))
    with manager.acquire(request((X, below)), deadline=soon()):
        assert exclusive == blocked(other, request((X, prefix)))
        assert not blocked(other, request((S, prefix)))


def _conflicts(manager: HandoverLockManager, requested: LockMode, held: LockMode) -> bool:
    return manager.guarantees.mutual_exclusion and not compatible(requested, held)
