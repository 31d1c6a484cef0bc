"""``python -m commit_coord.testing.hammer``: runs the hammer once."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from commit_coord.testing.hammer import hammer


def main(arguments: list[str] | None = None) -> int:
    """Run the hammer, print the report as JSON; 1 when the proof failed."""
    parser = argparse.ArgumentParser(prog="python -m commit_coord.testing.hammer", description=__doc__)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--appends", type=int, default=200, help="for each writer")
    parser.add_argument("--kill-every-s", type=float, help="kill one with SIGKILL this often, and replace it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coalesce", action="store_true", help="appends of one commit share a snapshot")
    parser.add_argument("--evolve", action="store_true", help="another process changes columns and partitions")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="commit-coord-hammer-") as folder:
        report = hammer(
            Path(folder),
            writers=given.writers,
            appends=given.appends,
            kill_every_s=given.kill_every_s,
            seed=given.seed,
            coalesce=given.coalesce,
            evolve=given.evolve,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps(asdict(report), indent=2))
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
