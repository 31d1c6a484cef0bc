"""Where the served catalog keeps its pointers: each store, started and ended."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from commit_coord.local import HiveMetastore, PostgresServer

Properties = Mapping[str, str]


@contextmanager
def _sqlite(folder: Path) -> Iterator[Properties]:
    yield {"uri": f"coord+sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@contextmanager
def _postgres(folder: Path) -> Iterator[Properties]:
    with PostgresServer() as server:
        yield {"uri": f"coord+{server.database('catalog').url}", "warehouse": f"file://{folder}/warehouse"}


@contextmanager
def _hms(folder: Path, version: str, *, on_postgres: bool) -> Iterator[Properties]:
    if not on_postgres:
        with HiveMetastore(None, version) as hms:
            yield {"uri": f"coord+{hms.uri}", "warehouse": hms.warehouse}
        return
    with PostgresServer() as server, HiveMetastore(None, version, postgres=server) as hms:
        yield {"uri": f"coord+{hms.uri}", "warehouse": hms.warehouse}


@contextmanager
def store(name: str) -> Iterator[Properties]:
    """Start the store *name*, and yield the properties of a catalog on it."""
    with tempfile.TemporaryDirectory(prefix="coord-rck-") as text:
        folder = Path(text)
        match name:
            case "sqlite":
                opening = _sqlite(folder)
            case "postgres":
                opening = _postgres(folder)
            case _:
                version = name.removeprefix("hms-")
                opening = _hms(folder, version, on_postgres=not version.startswith("2."))
        with opening as properties:
            yield properties


NAMES = ("sqlite", "postgres", "hms-2.3.10", "hms-4.0.1")
"""The stores that the kit is run on."""
