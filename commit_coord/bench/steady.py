"""Small appends in a row, and nothing else: do they get slower, and do manifests pile up?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commit_coord.bench.cells import ratio
from commit_coord.bench.tables import NAMESPACE, ROWS, open_catalog
from commit_coord.iceberg import manifest_list

_PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    # Each metadata file holds the whole history: the old ones would fill any disk.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


def run(folder: Path, *, appends: int, block: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Have one writer append *appends* times; return what each *block* of appends took.

    Args:
        folder: Where the tables are.
        appends: How many.
        block: Appends that are measured together, at least twice.
        say: Called with each line of progress.
    """
    catalog = open_catalog("commit_coord", folder)
    catalog.create_table((NAMESPACE, "warm"), ROWS.schema).append(ROWS)
    table = catalog.create_table((NAMESPACE, "steady"), ROWS.schema, properties=_PROPERTIES)
    blocks: list[dict[str, Any]] = []
    for first in range(0, appends, block):
        began, cpu, longest, most = time.perf_counter(), time.process_time(), 0.0, 0
        for _ in range(block):
            start = time.perf_counter()
            table.append(ROWS)
            longest = max(longest, time.perf_counter() - start)
            most = max(most, _manifests(table))
        blocks.append(
            {
                "appends": first + block,
                "ms_each": round((time.perf_counter() - began) * 1000 / block, 2),
                "cpu_ms_each": round((time.process_time() - cpu) * 1000 / block, 2),
                "longest_ms": round(longest * 1000, 1),
                "most_manifests": most,
                "metadata_bytes": Path(table.metadata_location.removeprefix("file://")).stat().st_size,
            }
        )
        say(", ".join(f"{name} {value}" for name, value in blocks[-1].items()))
    snapshots = len(table.metadata.snapshots)
    catalog.close()
    return {
        "block": block,
        "blocks": blocks,
        "snapshots": snapshots,
        "bars": {
            "5: the last appends, times the first (at most 2)": ratio(blocks[-1]["ms_each"], blocks[0]["ms_each"]),
            "5: the same in CPU time": ratio(blocks[-1]["cpu_ms_each"], blocks[0]["cpu_ms_each"]),
            "5: most manifests (at most 100)": max(b["most_manifests"] for b in blocks),
        },
    }


def _manifests(table: Any) -> int:
    return manifest_list.count(table.io, table.current_snapshot().manifest_list)
