"""What writers leave in the run folder: synced notes of acknowledgements, and lines of JSON that tell what happens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commit_coord.demo.run import Run
from commit_coord.events import CommitEnded, Event, Events
from commit_coord.testing.fleet import SyncedLog, whole_lines

Record = dict[str, Any]


class Notebook:
    """The notes of one writer process. Thread safe.

    Args:
        run: The run.
        process: The process, by its name in the run.
        start: Which start of that process this is; each has files of its own.
    """

    def __init__(self, run: Run, process: str, start: int) -> None:
        name = f"{process}.{start}"
        self._process = process
        self._lock = threading.Lock()
        self._events = (run.folder / "events" / f"{name}.jsonl").open("a", encoding="utf-8")
        self._logs = {
            kind: SyncedLog(run.folder / kind / f"{name}.log") for kind in ("acknowledged", "refused", "unknown")
        }
        self._ended: dict[str, CommitEnded] = {}

    def __enter__(self) -> Notebook:
        """Return the notebook itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close its files."""
        self._events.close()
        for log in self._logs.values():
            log.close()

    def watch(self, events: Events) -> None:
        """Keep what *events* says of each commit until its writer tells of it."""

        def keep(event: Event) -> None:
            if isinstance(event, CommitEnded):
                with self._lock:
                    self._ended[event.request_id] = event

        events.subscribe(keep)

    def tell(self, kind: str, **facts: Any) -> None:
        """Write a line of what happened, for the parent's display. Not synced: it proves nothing."""
        line = json.dumps({"kind": kind, "t": time.monotonic(), "process": self._process, **facts})
        with self._lock:
            self._events.write(line + "\n")
            self._events.flush()

    def acknowledged(self, writer: str, table: str, request_id: str, rows: int, *, answered: bool = False) -> None:
        """Note that *request_id* was acknowledged. When this returns the note is on disk."""
        self._logs["acknowledged"].line(request_id, table, rows)
        facts = self._facts(request_id)
        self.tell("commit", writer=writer, request_id=request_id, rows=rows, answered=answered, **facts)

    def refused(self, writer: str, table: str, request_id: str, reason: str) -> None:
        """Note that *request_id* was refused for good."""
        self._logs["refused"].line(request_id, table, 0)
        self.tell("refused", writer=writer, request_id=request_id, reason=reason, **self._facts(request_id))

    def unknown(self, writer: str, table: str, request_id: str) -> None:
        """Note that the outcome of *request_id* is unknown."""
        self._logs["unknown"].line(request_id, table, 0)
        self.tell("unknown", writer=writer, request_id=request_id, **self._facts(request_id))

    def _facts(self, request_id: str) -> Record:
        with self._lock:
            event = self._ended.pop(request_id, None)
        if event is None:
            return {}
        return {
            "waited_ms": round(event.waited_ms, 3),
            "held_ms": round(event.held_ms, 3),
            "tries": event.tries,
            "rebased": event.rebased,
        }


def noted(run: Run, kind: str, process: str = "*") -> list[tuple[str, str]]:
    """Return (request id, table) of every note of *kind*, of all starts of *process*, or of all processes."""
    found = []
    for path in sorted((run.folder / kind).glob(f"{process}.*.log")):
        found += [(line.split()[0], line.split()[1]) for line in whole_lines(path)]
    return found


class Tail:
    """Follows every events file of the run."""

    def __init__(self, run: Run) -> None:
        self._folder = run.folder / "events"
        self._read: dict[Path, int] = {}

    def news(self) -> Iterator[Record]:
        """Yield the records since the last call; an incomplete line comes with a later call."""
        found = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            found += [json.loads(line) for line in whole.splitlines()]
        yield from sorted(found, key=lambda record: record["t"])
