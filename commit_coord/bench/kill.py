"""Every acknowledged append exactly once: with nobody disturbed, and with a writer killed every second."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commit_coord.testing.hammer import hammer


def run(folder: Path, *, writers: int, appends: int, seed: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Hammer one table twice and return both reports; ``broken`` is empty where everything holds."""
    runs = {}
    for label, kill_every_s in (("undisturbed", None), ("one killed every second", 1.0)):
        place = folder / label.replace(" ", "-")
        place.mkdir(parents=True)
        report = asdict(hammer(place, writers=writers, appends=appends, kill_every_s=kill_every_s, seed=seed, say=say))
        if kill_every_s is None:
            # Without kills nothing may be refused and nothing may be in the table that was not acknowledged.
            if report["failures"]:
                report["broken"] += (f"refused: {report['failures']}",)
            if report["snapshots"] != writers * appends:
                report["broken"] += (f"{report['snapshots']} snapshots",)
        report["per_second"] = round(report["acknowledged"] / report["seconds"], 1)
        say(f"{label}: {report}")
        runs[label] = report
        shutil.rmtree(place)
    return {"writers": writers, "appends": appends, "seed": seed, "runs": runs}
