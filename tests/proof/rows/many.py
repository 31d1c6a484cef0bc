"""Draws and runs programs, one after the other or in several processes, and sums up what came of them."""

from __future__ import annotations

import hashlib
import multiprocessing
import multiprocessing.util
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace

from tests.proof.rows.clients import Clients, clients
from tests.proof.rows.draw.dice import Dice
from tests.proof.rows.draw.evolutions import View
from tests.proof.rows.draw.steps import Mix, mix, step
from tests.proof.rows.draw.tables import placed, table
from tests.proof.rows.findings import Finding, Spoilt
from tests.proof.rows.program import Program, Step
from tests.proof.rows.run import Run

_STEPS = (4, 12)

_EACH_S = 60.0
"""Seconds between two lines of a log about how far it is."""


class Rig:
    """Clients for each way of locking, opened when a program asks for them."""

    run = Run

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._made: dict[str, Clients] = {}

    def of(self, locks: str) -> Clients:
        """Return clients that lock so."""
        if locks not in self._made:
            self._made[locks] = self._stack.enter_context(clients(locks))
        return self._made[locks]

    def table(self, dice: Dice) -> Program:
        """Return a program without steps."""
        return placed(dice, table(dice))

    def step(self, dice: Dice, view: View, often: Mix, *, last: bool) -> Step:
        """Return what is done next; *last* in a program."""
        return step(dice, view, often)


def draw_and_run(rig: Rig, seed: int, counts: Counter[str]) -> tuple[Program, Finding | None]:
    """Draw a program while it runs, and return it with what was found."""
    dice = Dice(seed)
    program, often = rig.table(dice), mix(dice)
    run: Run | None = None
    try:
        run = rig.run(rig.of(program.locks), program, counts)
        for left in reversed(range(dice.number(*_STEPS))):
            made = rig.step(dice, run.view(), often, last=not left)
            program = replace(program, steps=(*program.steps, made))
            run.step(made)
        run.end()
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
        run = rig.run(rig.of(program.locks), program)
        for one in program.steps:
            run.step(one)
        run.end()
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


def kind_of(rig: Rig, program: Program) -> str:
    """Return the kind of what a program finds that is known; "" for nothing."""
    found = run_again(rig, program, strict=False)
    return found.kind if found is not None else ""


# Many programs.


@dataclass(frozen=True)
class Outcome:
    """What came of one seed.

    Args:
        seed: Which.
        program: As it was drawn, printed; "" when the oracle itself failed.
        kind: Of the finding; "" when there is none. Begins with ``PyIceberg alone`` where no code of ours had a part.
        text: What was found.
        counts: What was exercised.
    """

    seed: int
    program: str = ""
    kind: str = ""
    text: str = ""
    counts: Counter[str] = field(default_factory=Counter)


def outcome(rig: Rig, seed: int) -> Outcome:
    """Draw and run one program."""
    counts: Counter[str] = Counter()
    try:
        program, found = draw_and_run(rig, seed, counts)
        if found is None:
            return Outcome(seed, str(program), counts=counts)
        return Outcome(seed, str(program), found.kind, str(found), counts)
    except Exception:  # noqa: BLE001 - the oracle's own mistake
        return Outcome(seed, kind="oracle", text=traceback.format_exc(), counts=counts)


_rig: Rig


def _start() -> None:
    """Open the clients of a process; they end with it."""
    global _rig  # noqa: PLW0603 - one per process
    stack = ExitStack()
    _rig = Rig(stack)
    multiprocessing.util.Finalize(None, stack.close, exitpriority=10)


def _outcome(seed: int) -> Outcome:
    return outcome(_rig, seed)


@contextmanager
def outcomes(seeds: Sequence[int], processes: int, rig: Rig | None = None) -> Iterator[Iterator[Outcome]]:
    """Yield what comes of *seeds*, in their order, run by so many processes, or with *rig* in this one."""
    if rig is not None or processes == 1:
        with ExitStack() as stack:
            clients = rig or Rig(stack)
            yield (outcome(clients, seed) for seed in seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start) as pool:
        try:
            yield pool.map(_outcome, seeds)
        finally:
            pool.shutdown(cancel_futures=True)


@dataclass
class Summary:
    """What came of many programs.

    Args:
        runs: How many there were.
        counts: What was exercised.
        kinds: Findings of each kind.
        first: The first one of each kind.
    """

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    first: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with no program."""
        self._digest = hashlib.sha256()

    def add(self, one: Outcome) -> None:
        """Count one more."""
        self.runs += 1
        self.counts += one.counts
        self._digest.update(one.program.encode() + one.kind.encode())
        if one.kind:
            self.kinds[one.kind] += 1
            self.first.setdefault(one.kind, one)

    @property
    def digest(self) -> str:
        """Return a text that is the same for the same programs and findings."""
        return self._digest.hexdigest()[:14]

    def __str__(self) -> str:
        """Return all but the programs."""
        lines = [f"{number:8,} {name}" for name, number in sorted(self.counts.items())]
        lines += [f"{n:8,} {kind} (first: {self.first[kind].seed})" for kind, n in self.kinds.most_common()]
        return "\n".join(lines)


def run_many(seeds: Sequence[int], processes: int, tell: Callable[[Outcome], None], rig: Rig | None = None) -> Summary:
    """Run the programs of *seeds*, and *tell* of the first finding of each kind. Ctrl-C sums up what ran so far."""
    found, progress = Summary(), _Progress(len(seeds))
    with outcomes(seeds, processes, rig) as made, suppress(KeyboardInterrupt):
        for one in made:
            new = one.kind and one.kind not in found.first
            found.add(one)
            progress.show(found)
            if new:
                tell(one)
    return found


class _Progress:
    """Shows how many of *runs* are done: on a terminal at once, in a log by a line each minute."""

    def __init__(self, runs: int) -> None:
        self._runs, self._began, self._shown = runs, time.monotonic(), time.monotonic()

    def show(self, found: Summary) -> None:
        """Show it if it is time to."""
        now, at_once = time.monotonic(), sys.stderr.isatty()
        if not at_once and now < self._shown + _EACH_S:
            return
        self._shown = now
        left_s = (now - self._began) / found.runs * (self._runs - found.runs)
        findings = sum(found.kinds.values())
        text = f"{found.runs:,} of {self._runs:,} programs, {findings:,} findings, {left_s / 60:.0f} min left"
        begin, end = ("\r\033[K", "\n" if found.runs == self._runs else "") if at_once else ("", "\n")
        print(f"{begin}{text}", end=end, file=sys.stderr, flush=True)
