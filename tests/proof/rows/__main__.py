"""Runs random programs; each that fails is made as small as it still fails, and printed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.proof.rows.findings import ALONE
from tests.proof.rows.many import Outcome, Rig, kind_of, run_again, run_many
from tests.proof.rows.printed import loads
from tests.proof.rows.shrink import smallest


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="make rows", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next one has the next seed")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--program", type=Path, help="a printed program, to be run again")
    parser.add_argument("--whole", action="store_true", help="print failing programs as they were drawn")
    parser.add_argument("--keep", type=Path, help="a folder for the first failing program of each kind, as drawn")
    parser.add_argument("--spark", action="store_true", help="with a client on Spark, in one process")
    options = parser.parse_args(arguments)
    if min(options.runs, options.processes) < 1:
        parser.error("RUNS and --processes are 1 or more")
    if options.program and not options.program.is_file():
        parser.error(f"there is no program {options.program}")
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        rig = _rig(stack, spark=options.spark)
        if options.program:
            found = run_again(rig, loads(options.program.read_text()))
            print(found or "nothing found")
            return 1 if found else 0

        def tell(one: Outcome) -> None:
            if options.keep and one.program:
                (options.keep / f"{one.seed}.txt").write_text(f"{one.program}\n")
            _tell(rig, one, reduce=not options.whole)

        began = time.monotonic()
        seeds = range(options.seed, options.seed + options.runs)
        done = run_many(seeds, options.processes, tell, rig if options.spark else None)
        seconds = time.monotonic() - began
    each = 1000 * seconds / done.runs
    print(f"{done}\n{done.runs:,} programs in {seconds:.0f} s ({each:.0f} ms each); digest {done.digest}")
    return 1 if any(not kind.startswith(ALONE) for kind in done.kinds) else 0


def _rig(stack: ExitStack, *, spark: bool) -> Rig:
    if not spark:
        return Rig(stack)
    from tests.proof.rows.spark_client import SparkRig  # which loads Spark

    return SparkRig(stack)


def _tell(rig: Rig, one: Outcome, *, reduce: bool) -> None:
    """Print a program that failed, as small as it still fails in the same way."""
    if one.kind.startswith(ALONE):
        return
    text, program = one.text, one.program
    if reduce and program:
        small = smallest(loads(program), lambda less: kind_of(rig, less) == one.kind)
        program, text = str(small), str(run_again(rig, small, strict=False) or text)
    print(f"seed {one.seed}: {text}\n{program}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
