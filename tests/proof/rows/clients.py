"""Clients: catalogs on one database."""

from __future__ import annotations

import io
import logging
import os
import sqlite3
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pyiceberg.catalog.sql import SqlCatalog

import commit_coord
from commit_coord.events import CommitEnded, Event
from commit_coord.model import CommitStatus
from commit_coord.testing.table_files.observed import Files
from tests.proof.rows.doing import NAMESPACE, Doing

OURS = ("a", "b")
"""The clients with catalogs of ours."""


@dataclass
class Clients:
    """Catalogs on one database, for many programs.

    Args:
        folder: Where everything lies.
        locks: ``operation-locks`` of ours.
    """

    folder: Path
    locks: str
    catalogs: dict[str, Any] = field(default_factory=dict)
    refused: Counter[str] | None = None
    """How often our events have reported that the commit of a request id was refused; None: nobody hears them."""
    lock_impl: ClassVar[str] = "memory"

    def __post_init__(self) -> None:
        """Open them."""
        self.database, self.refused = self.folder / "catalog.db", Counter()
        uri, warehouse = f"sqlite:///{self.database}", f"file://{self.folder}/warehouse"
        for name in OURS:
            self.catalogs[name] = commit_coord.load_catalog(
                "rows",
                uri=f"coord+{uri}",
                warehouse=warehouse,
                **{
                    "lock-impl": self.lock_impl,
                    "operation-locks": self.locks,
                    "lock.acquire-timeout-ms": "150",
                },
            )
            self.catalogs[name].events.subscribe(self._hear)
        self.catalogs["s"] = SqlCatalog("rows", uri=uri, warehouse=warehouse)
        self.catalogs["s"].create_namespace(NAMESPACE)
        self._connection = sqlite3.connect(self.database)

    def _hear(self, event: Event) -> None:
        if self.refused is not None and isinstance(event, CommitEnded) and event.status == CommitStatus.FAILURE:
            self.refused[event.request_id] += 1

    def pointer(self, table: str) -> str | None:
        """Return where the metadata of *table* is."""
        found = self._connection.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", (table,)
        ).fetchone()
        return found and str(found[0])

    def doing(self, folder: Path, files: Files) -> Any:
        """Return what does operations."""
        return Doing(folder, files)

    def close(self) -> None:
        """Close them."""
        self._connection.close()
        for catalog in self.catalogs.values():
            catalog.close()


@contextmanager
def clients(locks: str, folder: Path | None = None) -> Iterator[Clients]:
    """Yield clients in *folder*, which stays, or in one of their own, in memory where there is such a place."""
    if folder is not None:
        folder.mkdir(parents=True)
        kept = Clients(folder, locks)
        try:
            yield kept
        finally:
            kept.close()
        return
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rows-", dir=memory) as own:
        made = Clients(Path(own), locks)
        try:
            yield made
        finally:
            made.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep to ourselves what PyIceberg prints, logs and warns of when it refuses something."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


_MEMORY = "/dev/shm"
