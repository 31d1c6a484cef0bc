"""Runs simulations, one seed after the other; the first that fails is made smaller, told, and can be replayed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence

from tests.proof.sim.many import Shown, Which, every_move, run_all
from tests.proof.sim.plan import Plan
from tests.proof.sim.run import Outcome

_FAILURES = 3
"""After so many a run of many seeds ends."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when every run kept every promise."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next one has the next seed")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", action="store_true", help="the history of the last run, also of one that kept all")
    parser.add_argument(
        "--moves",
        type=int,
        default=0,
        metavar="N",
        help="instead: a table moves between two lock services, and processes are struck N times, at every step",
    )
    parser.add_argument("--rows", action="store_true", help="instead: writers write rows, and these are proved right")
    parser.add_argument("--rest", action="store_true", help="instead: clients write through two REST servers")
    options = parser.parse_args(arguments)
    if min(options.runs, options.processes) < 1 or options.moves < 0:
        parser.error("RUNS and --processes are 1 or more, --moves 0 or more")
    if sum(map(bool, (options.moves, options.rows, options.rest))) > 1:
        parser.error("--moves, --rows and --rest are kinds of runs: choose one")
    which = Which(strikes=options.moves, rows=options.rows, rest=options.rest)
    replay = f" ARGS='--moves {options.moves}'" if options.moves else ""
    replay += " ARGS=--rows" if options.rows else " ARGS=--rest" if options.rest else ""
    if options.moves:
        there = len(every_move(options.moves))
        if not 1 <= options.seed <= there:
            parser.error(f"of these runs there are {there:,}: SEED is one of 1 to {there}")
        options.runs = min(options.runs, there + 1 - options.seed)
    shown, began = Shown(), time.monotonic()
    told = began
    for some in run_all(options.seed, options.runs, options.processes, which):
        shown += some
        for seed in some.failed:
            print(f"run {seed} failed", flush=True)
        now = time.monotonic()
        if now - told > 10 and shown.runs < options.runs:
            told = now
            print(
                f"{shown.runs:,} of {options.runs:,} runs, {now - began:.0f} s, {len(shown.failed)} failed", flush=True
            )
        if len(shown.failed) >= _FAILURES:
            break
    for seed in sorted(shown.failed)[:_FAILURES]:
        _tell(which, which.plan(seed), replay)
    if options.show and not shown.failed:
        _print(which.simulate(which.plan(options.seed + options.runs - 1)))
    seconds = time.monotonic() - began
    tally = shown.tally
    print(
        f"{shown.runs:,} runs in {seconds:.0f} s ({1000 * seconds / shown.runs:.1f} ms each): "
        f"{tally['acknowledged']:,} {'calls' if options.rows else 'appends'} acknowledged, "
        f"{tally['refused']:,} refused, {tally['unknown']:,} unknown; "
        f"{len(shown.failed)} runs failed; digest of the histories {shown.digest:014x}"
    )
    return 1 if shown.failed else 0


def _tell(which: Which, plan: Plan, arguments: str) -> None:
    """Print a run that failed, as small as it still fails, and how to see it again."""
    smallest = which.simulate(plan)
    while smaller := next(filter(lambda one: one.broken, map(which.simulate, smallest.plan.smaller())), None):
        smallest = smaller
    _print(smallest)
    print(f"replay: make sim SEED={plan.seed} RUNS=1{arguments}\n")


def _print(outcome: Outcome) -> None:
    print(f"run {outcome.plan.seed}")
    print(outcome.plan)
    for number, event in enumerate(outcome.history, 1):
        print(f"{number:4}. {event}")
    for promise in outcome.broken:
        print(f"broken: {promise}")


if __name__ == "__main__":
    sys.exit(main())
