"""Where two columns differ by case alone, a name means the one that has it, and no call takes the other one.

Else a name means the only column that has it in another case; where two have, the call is refused and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import parser
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType

from commit_coord.errors import CommitConflict, StatementError
from commit_coord.iceberg.values import Misfit, fit
from commit_coord.sql import Session
from tests.catalog.kit import Kit, rows

CASES = [
    (("a", "A"), "a", 0),
    (("a", "A"), "A", 1),
    (("A", "a"), "a", 1),
    (("A", "a"), "A", 0),
    (("ab", "aB"), "ab", 0),
    (("ab", "aB"), "aB", 1),
    (("ab", "other"), "AB", 0),
    (("other", "aB"), "ab", 1),
    (("ab", "aB"), "AB", None),
    (("aB", "ab"), "Ab", None),
]
"""Two columns, a name, and which of the two it means; None: it is refused."""


def made(memory: Kit, columns: tuple[str, str], *, partitioned: bool = False) -> Any:
    """Return a table of two columns and ``v``: a row with 1 in the first one has v = 0, in the second one v = 1."""
    fields = [NestedField(at, name, LongType(), required=True) for at, name in enumerate(columns, 1)]
    spec = PartitionSpec(*(PartitionField(at, 999 + at, IdentityTransform(), columns[at - 1]) for at in (1, 2)))
    return memory.table(
        of(columns, (1, 2, 0), (2, 1, 1)),
        schema=Schema(*fields, NestedField(3, "v", LongType())),
        partition_spec=spec if partitioned else PartitionSpec(),
    )


def of(columns: tuple[str, str], *given: tuple[int, int, int]) -> pa.Table:
    schema = pa.schema([*(pa.field(name, pa.int64(), False) for name in columns), pa.field("v", pa.int64())])
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in given], schema)


def run(table: Any, text: str) -> str:
    """Return what a statement answers, in which {t} is the table."""
    session = Session(table.catalog, database=table.name()[0])
    return "\n".join(session.run(text.replace("{t}", table.name()[-1])).lines)


def gone(table: Any) -> int:
    """Return the v of the row that is not there any more."""
    return 1 if 0 in table.refresh().scan().to_arrow()["v"].to_pylist() else 0


def names_of(table: Any) -> tuple[str, str]:
    first, second = table.schema().column_names[:2]
    return first, second


def updated(table: Any, name: str) -> int:
    with table.transaction() as tx:
        tx.update_rows(parser.parse(f"{name} = 1"), lambda found: found.set_column(2, "v", pa.array([7], pa.int64())))
    return gone(table)


def upserted(table: Any, name: str) -> int:
    table.upsert(of(names_of(table), (1, 1, 7)), [name], case_sensitive=False)
    return gone(table)


def overwritten(table: Any, name: str) -> int:
    table.overwrite(of(names_of(table), (9, 9, 7)), f"{name} = 1", case_sensitive=False)
    return gone(table)


def deleted(table: Any, name: str) -> int:
    table.delete(f"{name} = 1", case_sensitive=False)
    return gone(table)


def scanned(table: Any, name: str) -> int:
    (found,) = table.scan(f"{name} = 1", case_sensitive=False).to_arrow()["v"].to_pylist()
    return int(found)


def projected(table: Any, name: str) -> int:
    (found,) = table.scan(selected_fields=(name,), case_sensitive=False).to_arrow().column_names
    return names_of(table).index(found)


def partitioned_by(table: Any, name: str) -> int:
    with table.update_spec(case_sensitive=False) as changes:
        changes.add_field(name, "identity")
    return int(table.spec().fields[0].source_id) - 1


def sorted_by(table: Any, name: str) -> int:
    with table.update_sort_order(case_sensitive=False) as changes:
        changes.asc(name, IdentityTransform())
    return int(table.sort_order().fields[0].source_id) - 1


def explained(table: Any, name: str) -> int:
    with table.update_schema(case_sensitive=False) as changes:
        changes.update_column(name, doc="this")
    return [field.doc for field in table.schema().fields].index("this")


def united(table: Any, name: str) -> int:
    with table.update_schema(case_sensitive=False) as changes:
        changes.union_by_name(Schema(NestedField(1, name, LongType(), doc="this")))
    return [field.doc for field in table.schema().fields].index("this")


def identified(table: Any, name: str) -> int:
    with table.update_schema(case_sensitive=False) as changes:
        changes.set_identifier_fields(name)
    return int(table.schema().identifier_field_ids[0]) - 1


def stated(text: str) -> Callable[[Any, str], int]:
    def way(table: Any, name: str) -> int:
        run(table, text.replace("NAME", name))
        return gone(table)

    return way


def queried(table: Any, name: str) -> int:
    return int(run(table, "SELECT v FROM {t} WHERE " + f"{name} = 1"))


def partitioned_in_sql(table: Any, name: str) -> int:
    run(table, "ALTER TABLE {t} SET PARTITION SPEC " + f"({name})")
    return int(table.refresh().spec().fields[0].source_id) - 1


@dataclass(frozen=True)
class Way:
    """A call that takes a name and returns which column it took, 0 or 1; and its error for an ambiguous name."""

    call: Callable[[Any, str], int]
    refusal: type[Exception] = StatementError
    partitioned: bool = False


WAYS = {
    "update_rows": Way(updated),
    "upsert": Way(upserted),
    "overwrite": Way(overwritten),
    "delete": Way(deleted),
    "a scan": Way(scanned, ValidationError),
    "a projection": Way(projected, ValidationError),
    "partition fields": Way(partitioned_by, ValidationError),
    "the sort order": Way(sorted_by, ValidationError),
    "update_column": Way(explained, ValidationError),
    "union_by_name": Way(united, ValidationError),
    "identifier fields": Way(identified, ValidationError),
    "SELECT": Way(queried),
    "DELETE": Way(stated("DELETE FROM {t} WHERE NAME = 1")),
    "UPDATE": Way(stated("UPDATE {t} SET v = 7 WHERE NAME = 1")),
    "SET PARTITION SPEC": Way(partitioned_in_sql),
    "DROP PARTITION": Way(stated("ALTER TABLE {t} DROP PARTITION (NAME=1)"), partitioned=True),
    "TRUNCATE of a partition": Way(stated("TRUNCATE TABLE {t} PARTITION (NAME=1)"), partitioned=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_means_the_column_that_has_it_else_the_only_one_in_another_case(memory: Kit, way: str) -> None:
    for columns, name, meant in CASES:
        table = made(memory, columns, partitioned=WAYS[way].partitioned)
        if meant is not None:
            assert WAYS[way].call(table, name) == meant, (columns, name)
            continue
        before = memory.again(table).metadata_location
        with pytest.raises(WAYS[way].refusal, match="ambiguous"):
            WAYS[way].call(table, name)
        assert memory.again(table).metadata_location == before


def test_a_column_is_not_added_next_to_two_that_have_its_name_in_another_case(memory: Kit) -> None:
    table = made(memory, ("ab", "aB"))
    with pytest.raises(ValidationError, match="ambiguous"), table.update_schema(case_sensitive=False) as changes:
        changes.add_column("AB", LongType())
    assert memory.again(table).schema().column_names == ["ab", "aB", "v"]


def test_a_read_is_refused_whose_name_has_become_ambiguous(memory: Kit) -> None:
    """As of the snapshot that was read, the name had one meaning."""
    table = memory.table(schema=Schema(NestedField(1, "ab", LongType())))
    table.append(pa.table({"ab": [1]}))
    read = table.current_snapshot().snapshot_id
    with table.update_schema() as changes:
        changes.add_column("aB", LongType())
    table.append(pa.table({"ab": [2], "aB": pa.array([2], pa.int64())}))
    with pytest.raises(CommitConflict, match="ambiguous"), table.transaction() as tx:
        tx.depends_on("AB = 1", read_at=read, case_sensitive=False)
        tx.append(pa.table({"ab": [3], "aB": pa.array([3], pa.int64())}))
    assert rows(memory.again(table)) == [(1, None), (2, 2)]


def test_two_partition_columns_that_differ_by_case_alone_are_both_named(memory: Kit) -> None:
    table = made(memory, ("a", "A"), partitioned=True)
    table.append(of(("a", "A"), (1, 1, 2)))
    run(table, "ALTER TABLE {t} DROP PARTITION (A=2, a=1)")
    run(table, "INSERT INTO {t} PARTITION (A=5, a=6) VALUES (9)")
    assert rows(memory.again(table)) == [(1, 1, 2), (2, 1, 1), (6, 5, 9)]


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE {t} DROP PARTITION (P=1, p=2)", "INSERT INTO {t} PARTITION (p=1, P=2) VALUES (1)"]
)
def test_a_partition_column_that_gets_two_values_is_refused(memory: Kit, statement: str) -> None:
    """By two spellings of its name."""
    schema = Schema(NestedField(1, "p", LongType()), NestedField(2, "v", LongType()))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"))
    table = memory.table(pa.table({"p": [1, 2], "v": [1, 2]}), schema=schema, partition_spec=spec)
    with pytest.raises(StatementError, match="more than one value"):
        run(table, statement)
    assert rows(memory.again(table)) == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"A": 2, "a": 1}, {"a": 1, "A": 2}),
        ({"a": 1}, {"a": 1, "A": None}),
        ({"A": 1}, {"a": None, "A": 1}),
    ],
)
def test_fields_of_a_struct_that_differ_by_case_alone_get_their_own_values(
    given: dict[str, int], expected: dict[str, int | None]
) -> None:
    kind = StructType(NestedField(1, "a", LongType()), NestedField(2, "A", LongType()))
    assert fit(given, kind) == expected


@pytest.mark.parametrize(
    "names, given, reason",
    [
        (("ab", "aB"), {"AB": "x"}, "ambiguous"),
        (("ab",), {"AB": "x", "ab": "y"}, "more than one value"),
        (("ab",), {"b": "x"}, "has no field b"),
    ],
)
def test_a_struct_whose_names_do_not_say_which_field_is_meant_is_refused(
    names: tuple[str, ...], given: dict[str, str], reason: str
) -> None:
    kind = StructType(*(NestedField(at, name, StringType()) for at, name in enumerate(names, 1)))
    with pytest.raises(Misfit, match=reason):
        fit(given, kind)
