"""The stopwatch of the bench replaces functions by their names, which nothing else checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_APPENDS = """
import json, sys
from pathlib import Path
from commit_coord.bench.phases import Phases
from commit_coord.bench.tables import NAMESPACE, ROWS, open_catalog

catalog = open_catalog("commit_coord", Path(sys.argv[1]))
catalog.create_namespace_if_not_exists(NAMESPACE)
table = catalog.create_table((NAMESPACE, "t"), ROWS.schema, properties={"commit.manifest-merge.enabled": "true"})
stopwatch = Phases()
for _ in range(3):
    table.append(ROWS)
print(json.dumps({step: times for step, (times, _, _) in stopwatch.totals().items()}))
"""


def test_the_stopwatch_sees_every_step_of_three_appends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _APPENDS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    seen = json.loads(done.stdout)
    every_time = {
        "prepare: append()",
        "prepare: append(): PyIceberg",
        "prepare: append(): write data file",
        "prepare: attempt",
        "prepare: attempt: write manifest",
        "prepare: attempt: merge",
        "coordinator.commit",
        "acquire latch",
        "release latch",
        "under latch: plan: rebase",
        "under latch: plan: rebase: apply updates",
        "under latch: plan: read head",
        "under latch: write: manifest list",
        "under latch: write: dump metadata",
    }
    assert {step for step, times in seen.items() if times >= 3} >= every_time
