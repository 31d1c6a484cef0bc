"""What the logs and the table say together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.io.pyarrow import PyArrowFileIO

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.config import COALESCE
from commit_coord.iceberg import manifest_list
from commit_coord.iceberg.rebase import REQUEST_ID
from commit_coord.testing.fleet import Outcomes
from commit_coord.testing.hammer.writers import MARK, ROWS, TABLE, outcomes, rows_of
from commit_coord.testing.history import Answer, Append, check_files, check_line, check_places, check_snapshots
from commit_coord.testing.table_files.metadata import faults_of_head
from commit_coord.testing.table_files.observed import Files, Observed
from commit_coord.testing.table_files.values import Row

_LINE = 200
"""Metadata files that are read back from the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was done and what was found.

    Args:
        seconds: From the first process to the last proof but one (starts included, the scan of the rows not).
        kills: Processes that were killed.
        faults: Done to the servers.
        stalled_s: The longest time in which no append was acknowledged.
        acknowledged: Appends that were acknowledged to a log.
        unanswered: Appends that were tried and whose answer no log has: their process was killed.
        unanswered_landed: How many of these are in the table.
        snapshots: In the table.
        failures: Errors that writers met, by name; each is one refused append.
        plain: What writers that know nothing of us got as answers: how often, by name.
        changes: Schemas and partition specs that the table got after it was made.
        locks_left: Right after the last process ended.
        broken: What does not hold, in words; empty is the proof.
    """

    seconds: float
    kills: int
    faults: int
    stalled_s: float
    acknowledged: int
    unanswered: int
    unanswered_landed: int
    snapshots: int
    failures: dict[str, int]
    plain: dict[str, int]
    changes: int
    locks_left: int
    broken: tuple[str, ...] = field(default=())


def prove(
    catalog: CoordinatedCatalog,
    folder: Path,
    writers: int,
    plain: int,
    appends: int,
    seconds: float,
    kills: int,
    faults: int,
    broken: list[str],
) -> Report:
    """Hold what the logs say against the table."""
    left = catalog.locks.locks()
    if left:
        broken.append(f"locks left: {', '.join(str(entry.resource) for entry in left)}")
    logs = [outcomes(folder, slot) for slot in range(writers + plain)]
    ours, others = logs[:writers], logs[writers:]
    tried = {mark for log in logs for mark in log.tried}
    acked = {mark: one.snapshot_id for log in logs for mark, one in log.acknowledged.items()}
    refused = {mark for log in logs for mark in log.refused}
    unanswered = tried - acked.keys() - refused - {mark for log in logs for mark in log.unknown}
    # From the file alone, so that a mistake of the library can't hide itself.
    location = catalog.load_table(TABLE).metadata_location
    body: dict[str, Any] = json.loads(_local(location).read_bytes())
    found = catalog.load_table(TABLE)
    rows = Counter(found.scan().to_arrow()["mark"].to_pylist())
    snapshots = {snapshot["snapshot-id"] for snapshot in body["snapshots"]}
    places: dict[str, list[int]] = {}
    if body["properties"][COALESCE] == "true":
        # Which snapshot a row came with nobody can tell; the one that was answered must be there.
        for mark, times in rows.items():
            answered = acked.get(mark) or 0
            places[mark] = [answered if answered in snapshots else 0] * (times // ROWS)
    else:
        for snapshot in body["snapshots"]:
            places.setdefault(str(snapshot["summary"].get(MARK)), []).append(snapshot["snapshot-id"])
    done = sum(len(log.acknowledged) for log in ours)
    if done != writers * appends:
        broken.append(f"{done} acknowledged instead of {writers * appends}")
    answers = dict.fromkeys(tried, Answer.UNKNOWN) | dict.fromkeys(acked, Answer.ACKNOWLEDGED)
    answers |= dict.fromkeys(refused, Answer.REFUSED)
    appends_tried = [Append(mark=mark, answer=answer, snapshot_id=acked.get(mark)) for mark, answer in answers.items()]
    broken += check_places(appends_tried, places)
    broken += check_snapshots(body)
    line, uneven = check_line(location, lambda path: json.loads(_local(path).read_bytes()), files=_LINE)
    lists = [snapshot["manifest-list"] for snapshot in body["snapshots"]]
    manifests = [one.manifest_path for one in manifest_list.read(PyArrowFileIO(), lists[-1])] if lists else []
    broken += uneven
    broken += check_files([*line, *lists, *manifests], lambda path: _local(path).exists())  # the rows need the others
    of_others = {mark for log in others for mark in log.tried}
    summaries = [snapshot["summary"] for snapshot in body["snapshots"]]
    requests = Counter(
        one
        for summary in summaries
        for one in ([summary[MARK]] if summary.get(MARK) in of_others else summary[REQUEST_ID].split(","))
    )
    broken += [
        f"the request {request_id} is there {times} times" for request_id, times in requests.items() if times > 1
    ]
    files = Counter(task.file.file_path for task in found.scan().plan_files())
    broken += [f"the file {path} is there {times} times" for path, times in files.items() if times > 1]
    if not len(requests) == len(files) == sum(map(len, places.values())):
        broken.append(f"{len(requests)} requests and {len(files)} files for {sum(map(len, places.values()))} appends")
    if rows != Counter({mark: ROWS * len(found) for mark, found in places.items()}):
        broken.append("the rows are not those of the snapshots")
    broken += wrong_rows(location, places)
    return Report(
        seconds=round(seconds, 2),
        kills=kills,
        faults=faults,
        stalled_s=round(
            max(
                (b - a for a, b in pairwise(sorted(one.at for log in logs for one in log.acknowledged.values()))),
                default=0,
            ),
            2,
        ),
        acknowledged=done,
        unanswered=len(unanswered),
        unanswered_landed=sum(len(places.get(mark, ())) for mark in unanswered),
        snapshots=len(snapshots),
        failures=dict(Counter(error for log in ours for error in _errors(log))),
        plain=dict(
            Counter(error for log in others for error in (*["acknowledged"] * len(log.acknowledged), *_errors(log)))
        ),
        changes=len(body["schemas"]) + len(body["partition-specs"]) - 2,
        locks_left=len(left),
        broken=tuple(broken),
    )


def _errors(log: Outcomes) -> list[str]:
    return [*log.refused.values(), *log.unknown.values()]


def wrong_rows(location: str, places: Mapping[str, Sequence[int]]) -> list[str]:
    """Return what is wrong in the table's rows, and in what its metadata says of them."""
    seen = Observed(location, Files())
    wanted: Counter[Row] = Counter()
    for mark, times in places.items():
        wanted.update(tuple(enumerate(row.values(), 1)) for row in rows_of(mark).to_pylist() * len(times))
    found = seen.state.of()
    broken = [f"the row {row} is missing" for row in (wanted - found)]
    broken += [f"the row {row} is there, and nobody wrote it" for row in (found - wanted)]
    return broken[:10] + [f"the metadata: {fault}" for fault in faults_of_head(seen)][:10]


def _local(path: str) -> Path:
    return Path(unquote(urlsplit(path).path))
