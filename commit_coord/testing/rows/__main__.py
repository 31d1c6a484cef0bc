"""Runs random programs; each that fails is made as small as it still fails, and printed."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from commit_coord.testing.rows.program import Dice, Program, View, by_stock, loads, mix, step, table
from commit_coord.testing.rows.run import Clients, Finding, Run, Spoilt, clients
from commit_coord.testing.rows.shrink import smallest

_STEPS = (4, 12)


class Rig:
    """Clients for each way of locking, opened when a program asks for them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Clients] = {}

    def of(self, locks: str) -> Clients:
        """Return clients that lock so."""
        if locks not in self._made:
            self._made[locks] = self._stack.enter_context(clients(locks))
        return self._made[locks]


def draw_and_run(rig: Rig, seed: int, counts: Counter[str]) -> tuple[Program, Finding | None]:
    """Draw a program while it runs, and return it with what was found."""
    dice = Dice(seed)
    program, often = table(dice), mix(dice)
    run: Run | None = None
    try:
        run = Run(rig.of(program.locks), program, counts)
        for _ in range(dice.number(*_STEPS)):
            made = step(dice, View(run.state, run.base, run.slots), often)
            program = replace(program, steps=(*program.steps, made))
            run.step(made)
    except Finding as found:
        return program, found
    except Spoilt:
        counts["ended by what PyIceberg alone broke"] += 1
    finally:
        if run is not None:
            run.close()
    return program, None


def run_again(rig: Rig, program: Program, *, strict: bool = True) -> Finding | None:
    """Run a program that is known, and return what was found."""
    run: Run | None = None
    try:
        run = Run(rig.of(program.locks), program)
        for one in program.steps:
            run.step(one)
    except Finding as found:
        return found
    except Spoilt:
        return None
    except (LookupError, TypeError, ValueError, AttributeError):
        if not strict:
            return None  # what is left of the program makes no sense
        raise
    finally:
        if run is not None:
            run.close()
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="make rows", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next one has the next seed")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--program", type=Path, help="a printed program, to be run again")
    parser.add_argument("--whole", action="store_true", help="print failing programs as they were drawn")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        rig = Rig(stack)
        if options.program:
            found = run_again(rig, loads(options.program.read_text()))
            print(found or "nothing found")
            return 1 if found else 0
        return _run_many(rig, options.seed, options.runs, reduce=not options.whole)


def _tell(rig: Rig, seed: int, program: Program, found: Finding, *, reduce: bool) -> None:
    """Print a program that failed, as small as it still fails in the same way."""
    if reduce:

        def fails(one: Program) -> bool:
            again = run_again(rig, one, strict=False)
            return again is not None and again.kind == found.kind

        program = smallest(program, fails)
        found = run_again(rig, program, strict=False) or found
        alone = run_again(rig, by_stock(program), strict=False)
        if alone is not None and alone.kind == found.kind:
            print("PyIceberg alone does the same:")
    print(f"seed {seed}: {found}\n{program}\n", flush=True)


def _run_many(rig: Rig, seed: int, runs: int, *, reduce: bool) -> int:
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    first: dict[str, int] = {}
    began = time.monotonic()
    digest = hashlib.sha256()
    for one in range(seed, seed + runs):
        try:
            program, found = draw_and_run(rig, one, counts)
        except Exception:  # noqa: BLE001 - the oracle's own mistake
            traceback.print_exc()
            print("seed", one)
            kinds["oracle"] += 1
            continue
        digest.update(str(program).encode())
        if found is not None:
            alone = run_again(rig, by_stock(program), strict=False)
            if alone is not None and alone.kind == found.kind:
                found.kind = f"PyIceberg alone: {found.kind}"
            kinds[found.kind] += 1
            if found.kind not in first:
                first[found.kind] = one
                if found.kind.startswith("PyIceberg alone"):
                    continue
                _tell(rig, one, program, found, reduce=reduce)
    seconds = time.monotonic() - began
    for name, number in sorted(counts.items()):
        print(f"{number:8,} {name}")
    for kind, number in kinds.most_common():
        print(f"{number:8,} {kind} (first: {first.get(kind)})")
    print(
        f"{runs:,} programs in {seconds:.0f} s ({1000 * seconds / runs:.0f} ms each); digest {digest.hexdigest()[:14]}"
    )
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
