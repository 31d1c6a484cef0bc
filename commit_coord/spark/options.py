"""The options of ``format("commit_coord")``, and the settings of Spark that name a catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from commit_coord.errors import ConfigError

PREFIX = "catalog."
"""In front of an option it makes a catalog property of it."""

OPTIONS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "table": ("read, write, stream", "The table, `namespace.table`. `load(…)` and `save(…)` take it as well."),
        "path": ("read, write, stream", "The same; it is what `load(…)` and `save(…)` set."),
        "catalog": ("read, write, stream", "The name of the catalog. Default: the default catalog."),
        "catalog.…": ("read, write, stream", "A catalog property, such as `catalog.uri`; before all other sources."),
        "branch": ("read, write, stream", "The branch. Default: `main`. A read also takes a tag."),
        "snapshot-id": ("read", "Read this snapshot."),
        "as-of-timestamp": ("read", "Read the last snapshot of this time, in milliseconds since the epoch."),
        "row-filter": ("read", "Read the rows that match this text of PyIceberg, such as `day = '2026-01-01'`."),
        "overwrite-filter": ("overwrite", "Which rows `mode('overwrite')` replaces. Default: all."),
        "overwrite-mode": (
            "overwrite",
            "`static` (default), or `dynamic`: replace the partitions that the rows are in.",
        ),
        "reads": ("write", "Which rows the new ones depend on (a filter, `nothing`). Default: those replaced or read."),
        "read-at": ("write", "The snapshot in which they were read, `-1` if there was none. Default: what Spark read."),
        "request-id": ("write", "Names the write. A write with the same id that has landed is not repeated."),
        "writer-id": ("stream", "Names the stream. Default: the id of its query, which the checkpoint keeps."),
        "checkpointlocation": ("stream", "Spark's own."),
        "queryname": ("stream", "Spark's own."),
    }
)
"""Option → what it is for, and what it means. An overwrite is a write, too; a stream is none."""

OPERATIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "a read": frozenset({"read"}),
        "an append": frozenset({"write"}),
        "an overwrite": frozenset({"write", "overwrite"}),
        "a stream": frozenset({"stream"}),
    }
)
"""Operation → what the options are for that it takes."""

LISTING_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "resource": "Only this and what lies in it: `db`, `db/table`, `db/table/k=v`. `load(…)` takes it as well.",
        "path": "The same; it is what `load(…)` sets.",
        "catalog": OPTIONS["catalog"][1],
        "catalog.…": OPTIONS["catalog.…"][1],
    }
)
"""Option of ``format("commit_coord.locks")`` and ``format("commit_coord.leases")`` → what it means."""

TABLE_KEYS = "option."
"""Spark puts this in front of the options of ``CREATE TABLE … USING commit_coord OPTIONS (…)``."""

TABLE_OPTIONS = frozenset(key for key, (used, _) in OPTIONS.items() if "read" in used) - {"catalog.…"}
"""Those that such a table keeps."""

_OPENED = re.compile(r"coord\+|thrift:|sqlite:|postgresql(\+\w+)?:")
"""How the URIs begin that ``commit_coord.load_catalog`` opens."""


def check_applies(options: Iterable[str], operation: str) -> None:
    """Return if each of *options* says something of *operation*.

    Raises:
        ConfigError: One does not, so that it would be ignored.
    """
    for key in options:
        used = OPTIONS["catalog.…" if key.startswith(PREFIX) else key][0]
        if OPERATIONS[operation].isdisjoint(used.split(", ")):
            raise ConfigError(f"this option has no meaning for {operation}: leave it out", key=key, is_for=used)


def markdown() -> str:
    """Return the options as a table for the manual."""
    rows = [f"| `{key}` | {used} | {meaning} |" for key, (used, meaning) in OPTIONS.items()]
    return "\n".join(["| option | for | meaning |", "|---|---|---|", *rows])


def help_text() -> str:
    """Return the options for ``help()``."""
    return "\n".join(f"        {key} ({used}): {meaning.replace('`', '')}" for key, (used, meaning) in OPTIONS.items())


def listing_markdown() -> str:
    """Return the options of the listings as a table for the manual."""
    rows = [f"| `{key}` | {meaning} |" for key, meaning in LISTING_OPTIONS.items()]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def listing_help() -> str:
    """Return the options of the listings for ``help()``."""
    return "\n".join(f"        {key}: {meaning.replace('`', '')}" for key, meaning in LISTING_OPTIONS.items())


def catalog_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of Spark's *settings* that say something of a catalog."""
    return {key: value for key, value in settings.items() if key.startswith("spark.sql.catalog.")}


def spark_properties(settings: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the properties that Spark's settings ``spark.sql.catalog.<name>.*`` give the catalog *name*.

    Iceberg's JVM runtime reads the same keys. If they describe a catalog that is opened only there (through REST, JDBC,
    Glue, a Hadoop folder), they say nothing of ours.
    """
    mine = f"spark.sql.catalog.{name}"
    found = {key[len(mine) + 1 :]: value for key, value in settings.items() if key.startswith(f"{mine}.")}
    uri = found.get("uri")
    is_ours = mine not in settings if uri is None else _OPENED.match(uri) is not None
    return found if is_ours else {}
