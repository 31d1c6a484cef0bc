"""One run of the demo: who writes what where, under which request ids. Parent and writers agree by this module."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.load import load_catalog
from commit_coord.demo.backend import CATALOG, Backend

NAMESPACE = "nyc"
DRIVERS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"spark-1": (1, 2, 3, 4), "spark-2": (5, 6, 7, 8), "spark-3": (9, 10, 11, 12)}
)
"""PySpark driver processes, each with the months that it writes."""

REFERENCE: Mapping[str, int] = MappingProxyType({"weather": 144, "planes": 240, "airports": 120})
"""Tables that one PyIceberg process each appends, with the rows of a batch."""

FEEDS = ("feed-1", "feed-2", "feed-3", "feed-4")
"""Processes that append to the hot table ``departures``."""

IMPATIENT = "feed-4"
"""The one that does not wait: it is refused, and comes back with a new request."""

FEED_BATCHES = 150
FEED_ROWS = 20
REST_FEEDS: Mapping[str, int] = MappingProxyType({"feed-1": 10, "feed-2": 5, "feed-3": 10, "feed-4": 1})
"""Batches of a commit where PySpark writes through the REST server: ``feed-1`` is a stream of Spark, ``feed-2``
PyIceberg's REST client, ``feed-3`` PyIceberg's own catalog on the metastore."""

SPAN_SECONDS = 15.0
"""The pauses of a PyIceberg writer, all of them together: it writes about as long as the PySpark writers do."""

HEAD_START, FOLLOW = 0.25, 0.6
"""PyIceberg writers slow down (four times) when they have done more than ``HEAD_START + FOLLOW × share of months
done`` of their work: so the last month, too, meets other writers, however slow the machine is."""

STATEMENTS = ("INSERT", "MERGE", "UPDATE", "DELETE")
"""What a month of flights is written with where PySpark writes with SQL."""

READER = "reader"
MARK = "demo.request-id"
"""Summary property of a commit that does not go through the library; see :meth:`Run.request_id`."""

TABLES = ("flights", "weather", "planes", "airports", "departures")

_NAMESPACE = uuid.UUID("6f2a1c1e-5f4e-5b57-8a55-1d3a1d0c9b6e")


class DemoFailed(Exception):
    """The job could not be carried out; nothing is running any more. The message says why and where to look."""


class FolderInUse(Exception):
    """The folder for the run holds something already, or can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run folder and what all processes of the run know.

    Args:
        folder: Holds everything: catalog, tables, source, notes, logs, picture.
        seed: Of all that is left to chance.
        run_id: Makes the request ids of this run its own.
        backend: What it runs on.
        properties: Of the catalog.
        url: Of the REST server; empty where there is none.
    """

    folder: Path
    seed: int
    run_id: str
    backend: Backend
    properties: Mapping[str, str]
    url: str = ""

    @classmethod
    def load(cls, folder: Path) -> Run:
        """Return the run that :meth:`save` wrote."""
        known = json.loads((folder / "run.json").read_text())
        return cls(**{**known, "folder": folder, "backend": Backend(known["backend"])})

    def save(self) -> None:
        """Write what the writers need to know, and make the folders."""
        for name in ("source", "events", "acknowledged", "refused", "unknown", "logs", "spark"):
            (self.folder / name).mkdir()
        document = {**asdict(self), "folder": str(self.folder)}
        (self.folder / "run.json").write_text(json.dumps(document))

    def catalog(self, **more: str) -> CoordinatedCatalog:
        """Open the run's catalog."""
        properties: dict[str, Any] = {**self.properties, **more}
        return load_catalog(CATALOG, **properties)

    def source(self, name: str) -> Path:
        """Return the Parquet file of a source table (``weather``, ``flights-07``)."""
        return self.folder / "source" / f"{name}.parquet"

    def gate(self, name: str) -> Path:
        """Return the file whose appearance opens a gate: ``go`` for the writers, ``read`` for the reader."""
        return self.folder / name

    def share_done(self) -> float:
        """Return the share of the months that the parent has seen acknowledged."""
        try:
            return float((self.folder / "progress").read_text() or 0)
        except FileNotFoundError:
            return 0.0

    def tell_share_done(self, share: float) -> None:
        """Tell the writers, for their pace. Replaced as a whole: nobody reads half of it."""
        part = self.folder / "progress.part"
        part.write_text(str(share))
        part.rename(self.folder / "progress")

    def request_id(self, writer: str, number: int = 0, tries: int = 0) -> str:
        """Return the request id of a piece of work: the same in every process, also in one that starts again."""
        return str(uuid.uuid5(_NAMESPACE, f"{self.run_id}/{writer}/{number}/{tries}"))


def commits_of_a_month(backend: Backend) -> int:
    """Return in how many commits a month of flights is written."""
    return len(STATEMENTS) if backend is Backend.REST else 1


def mark_of(snapshot: Mapping[str, Any]) -> str | None:
    """Return what its writer calls a snapshot that did not come through the library; None where it says nothing."""
    summary = snapshot["summary"]
    if (query := summary.get("spark.sql.streaming.queryId")) is not None:
        return epoch_mark(query, summary["spark.sql.streaming.epochId"])
    return summary.get(MARK) or (
        compaction_mark(snapshot["snapshot-id"]) if summary["operation"] == "replace" else None
    )


def epoch_mark(query: str, epoch: int | str) -> str:
    """Return what an epoch of a Spark stream is called."""
    return f"{query}/{epoch}"


def compaction_mark(snapshot_id: int) -> str:
    """Return what a compaction is called: Spark's procedures take no properties."""
    return f"compaction/{snapshot_id}"


def commit_rows(backend: Backend, writer: str) -> int:
    """Return how many rows a PyIceberg writer, or a feed, appends at once."""
    if writer in FEEDS:
        return FEED_ROWS * (REST_FEEDS[writer] if backend is Backend.REST else 1)
    return REFERENCE[writer]


def month_writer(month: int) -> str:
    """Return the name of the PySpark writer of *month*."""
    return f"flights-{month:02d}"


def table_id(name: str) -> str:
    """Return the identifier of one of the run's tables."""
    return f"{NAMESPACE}.{name}"


def writers_of(process: str) -> tuple[str, ...]:
    """Return the names of the writers in *process*."""
    return tuple(month_writer(month) for month in DRIVERS[process]) if process in DRIVERS else (process,)


def table_of(writer: str) -> str:
    """Return the table that *writer* writes."""
    if writer.startswith("flights-"):
        return "flights"
    return "departures" if writer in FEEDS else writer


PROCESSES = (*DRIVERS, *REFERENCE, *FEEDS)
WRITERS = tuple(writer for process in PROCESSES for writer in writers_of(process))
