"""Runs the kit on one store after the other. Ends with 1 if a test fails unexpectedly, or too few tests pass."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from integration.rck.kit import run
from integration.rck.stores import NAMES, store

_CATALOG = "rck"

EXPECTED: Mapping[str, Mapping[str, str]] = {}
"""Store → test → why it fails there."""

LEAST_PASSED: Mapping[str, int] = {"sqlite": 144, "postgres": 144}
"""Store → how many tests have to pass. Without it, a kit that skips everything would pass."""


@contextmanager
def served(properties: Mapping[str, str]) -> Iterator[str]:
    """Serve a catalog with *properties*, and yield the URL."""
    environment = {f"PYICEBERG_CATALOG__{_CATALOG.upper()}__{key.upper()}": value for key, value in properties.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "commit_coord.cli", "serve", "--catalog", _CATALOG, "--port", "0", "--json"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _has_views(url: str) -> bool:
    with urllib.request.urlopen(f"{url}/v1/config", timeout=60) as answer:  # noqa: S310 # nosec B310 - our own server
        return any(endpoint.endswith("/views") for endpoint in json.load(answer)["endpoints"])


def holds(name: str, reports: Path, only: Sequence[str] = ()) -> bool:
    """Run the kit on the store *name*, print what became of its tests, and return whether that is as it should be."""
    with store(name) as properties, served(properties) as url:
        tests = run(url, _CATALOG, reports, views=_has_views(url), only=only)
    count = {outcome: sum(test.outcome == outcome for test in tests) for outcome in ("passed", "failed", "skipped")}
    print(f"{name}: {', '.join(f'{number} {outcome}' for outcome, number in count.items())}", flush=True)
    failed = [test for test in tests if test.outcome == "failed"]
    for test in failed:
        print(f"  {test.name}: {EXPECTED.get(name, {}).get(test.name, test.message[:300])}", flush=True)
    for test in tests:
        if test.outcome == "skipped":
            print(f"  skipped: {test.name}: {test.message[:300]}", flush=True)
    least = 1 if only else LEAST_PASSED.get(name, 1)
    if count["passed"] < least:
        print(f"  only {count['passed']} tests passed; at least {least} have to", flush=True)
    return count["passed"] >= least and all(test.name in EXPECTED.get(name, {}) for test in failed)


def main() -> int:
    """Run the kit; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m integration.rck", description=__doc__)
    parser.add_argument("stores", nargs="*", metavar="STORE", help=f"of {', '.join(NAMES)} (default: sqlite)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEST", help="ViewCatalogTests.listViews, or a class"
    )
    parser.add_argument("--reports", type=Path, default=Path("dist/rck"), help="a folder for JUnit's reports")
    arguments = parser.parse_args()
    stores = arguments.stores or ["sqlite"]
    if unknown := sorted(set(stores) - set(NAMES)):
        parser.error(f"no such store: {', '.join(unknown)}")
    # A list, so that each store is tried.
    held = [holds(name, arguments.reports / name, arguments.only) for name in stores]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
