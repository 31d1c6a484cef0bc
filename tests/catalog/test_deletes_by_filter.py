"""A delete takes the rows that a scan with its filter shows, and no other: of a null most filters are not true."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import expressions as E
from pyiceberg.expressions.parser import parse
from pyiceberg.transforms import parse_transform

from commit_coord.table.deletion import without_matches

LEAVES = [
    parse(text)
    for text in (
        "x >= 2.0",
        "x < 2.0",
        "x == 2.0",
        "x != 2.0",
        "x in (1.0, 2.0)",
        "x not in (1.0, 2.0)",
        "x is null",
        "x is not null",
        "x is nan",
        "x is not nan",
        "y == 1",
        "y is null",
    )
]
PAIRS = [E.And(a, b) for a, b in combinations(LEAVES, 2)] + [E.Or(a, b) for a, b in combinations(LEAVES, 2)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table with every pair of values of two columns, nulls and NaN among them."""
    import commit_coord

    place = tmp_path_factory.mktemp("deletes")
    catalog = commit_coord.load_catalog("t", uri=f"coord+sqlite:///{place}/c.db", warehouse=f"file://{place}/w")
    catalog.create_namespace("db")
    pairs = list(product((None, 1.0, 2.0, 3.0, float("nan")), (None, 1, 2)))
    rows = pa.table(
        {
            "id": pa.array(range(len(pairs)), pa.int64()),
            "x": pa.array([x for x, _ in pairs], pa.float64(), from_pandas=False),
            "y": pa.array([y for _, y in pairs], pa.int64()),
        }
    )
    made = catalog.create_table("db.t", rows.schema)
    made.append(rows)
    yield made
    catalog.close()


@pytest.mark.parametrize("row_filter", [*LEAVES, *map(E.Not, LEAVES), *PAIRS, *map(E.Not, PAIRS)], ids=str)
def test_a_delete_takes_the_rows_that_a_scan_shows(table: Any, row_filter: E.BooleanExpression) -> None:
    every = set(table.scan().to_arrow()["id"].to_pylist())
    shown = set(table.scan(row_filter).to_arrow()["id"].to_pylist())
    left = set(every)
    for _, files in without_matches(
        table.metadata, table.io, table.scan().plan_files(), row_filter, case_sensitive=True
    ):
        left = set()
        for file in files:
            with table.io.new_input(file.file_path).open() as stream:
                left |= set(pq.read_table(stream)["id"].to_pylist())
    assert every - shown == left


@pytest.mark.parametrize("row_filter", ["x == 0.0", "x <= 0.0", "x < 5.0", "x in (0.0, 1.0)", "x >= 0.0"])
def test_nan_stays_where_numbers_are_deleted(table: Any, row_filter: str) -> None:
    """Bounds leave NaN out, and PyIceberg's writer does not count it: a file of such bounds is not dropped whole."""
    name = ("db", "nan")
    rows = pa.table({"x": pa.array([0.0, float("nan")], pa.float64(), from_pandas=False)})
    other = table.catalog.create_table(name, rows.schema)
    try:
        other.append(rows)
        other.delete(row_filter)
        (left,) = other.scan().to_arrow()["x"].to_pylist()
        assert math.isnan(left)
    finally:
        table.catalog.drop_table(name)


VIEWS = [
    (pa.string_view(), ["a", None, "c"]),
    (pa.binary_view(), [b"a", None, b"c"]),
    (pa.list_(pa.string_view()), [["a"], None, []]),
    (pa.list_(pa.string_view(), 1), [["a"], None, ["c"]]),
    (pa.large_list(pa.binary_view()), [[b"a"], None, []]),
    (pa.map_(pa.string_view(), pa.string_view()), [[("a", "b")], None, []]),
    (pa.struct([("t", pa.list_(pa.string_view()))]), [{"t": ["a"]}, None, {"t": None}]),
    (pa.dictionary(pa.int32(), pa.string_view()), ["a", None, "c"]),
]


@pytest.mark.parametrize("kind, values", VIEWS, ids=[str(kind) for kind, _ in VIEWS])
@pytest.mark.parametrize("streamed", [False, True])
def test_rows_of_arrow_views_are_deleted_and_replaced(
    catalog: Any, kind: pa.DataType, values: list[Any], *, streamed: bool
) -> None:
    """Arrow filters no views, and its reader makes them again of files that were written of them."""
    column = pa.array(values).cast(pa.string_view()).dictionary_encode() if pa.types.is_dictionary(kind) else values
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": pa.array(column, kind)})
    table = catalog.create_table("db.views", rows.schema)
    table.append(rows.to_reader() if streamed else rows)
    table.delete("id == 1")
    table.overwrite(rows.slice(1, 1), "id == 2")
    table.upsert(rows, ["id"])
    assert sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"]) == rows.to_pylist()


@pytest.mark.parametrize("transform", ["identity", "bucket[4]", "truncate[1]"])
def test_rows_of_arrow_views_lie_in_partitions(catalog: Any, transform: str) -> None:
    rows = pa.table({"v": pa.array(["aa", "b", None], pa.string_view())})
    table = catalog.create_table("db.views", rows.schema)
    with table.update_spec() as update:
        update.add_field("v", parse_transform(transform))
    table.append(rows)
    assert table.scan("v == 'aa'").to_arrow()["v"].to_pylist() == ["aa"]
    table.delete("v == 'aa'")
    assert sorted(table.scan().to_arrow()["v"].to_pylist(), key=str) == [None, "b"]
