"""Checks the variants, prints a line for each, and writes docs/model.md when all of them were checked."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.proof.model.page import is_whole, page
from tests.proof.model.tlc import Result, check
from tests.proof.model.variants import VARIANTS


def main() -> int:
    """Return 0 when every variant does what it says."""
    parser = argparse.ArgumentParser(prog="make model", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="VARIANT", help="only these")
    parser.add_argument("--small", action="store_true", help="only those that take seconds")
    parser.add_argument("--page", type=Path, help="where to write the page")
    options = parser.parse_args()
    unknown = set(options.names) - {variant.name for variant in VARIANTS}
    if unknown:
        parser.error(f"no such variant: {', '.join(sorted(unknown))}")
    results = []
    for variant in VARIANTS:
        if (options.names and variant.name not in options.names) or (options.small and not variant.small):
            continue
        results.append(check(variant))
        print(_line(results[-1]), flush=True)
    surprises = sum(not result.expected for result in results)
    if surprises:
        print(f"{surprises} of {len(results)} variants did not do what they should")
        return 1
    print(f"{len(results)} variants as expected")
    if options.page and is_whole(results):
        options.page.write_text(page(results))
        print(f"written: {options.page}")
    return 0


def _line(result: Result) -> str:
    if result.broken is None:
        found = f"all hold, {result.states:,} states"
    else:
        found = f"broken in {len(result.steps)} steps: {result.broken}"
    if result.never:
        found += f", never taken: {', '.join(result.never)}"
    surprise = "" if result.expected else f"   SURPRISE: expected {result.variant.breaks or 'all to hold'}"
    return f"{result.variant.name:28} {result.seconds:5.1f} s  {found}{surprise}"


if __name__ == "__main__":
    sys.exit(main())
