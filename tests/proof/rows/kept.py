"""Tables that programs leave behind, kept with the rows that the model expects, and engines that read them again.

``make rows-readers`` runs programs and keeps their tables in a folder. ``tables.jsonl`` has one line per table: its
metadata file, and *looks*: a condition and the rows that satisfy it, by column names. Then every engine reads every
table, each in one session, by a full scan and with each condition.

An engine has limits: what it can't read, or reads wrongly, whatever wrote the table. They are found by reading, and
named in ``LIMITS``. Each engine is asked for every table all the same; a difference is explained where a limit of the
engine says so, and counted. The last line sums it up, and one difference that nothing explains is a failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from commit_coord.testing.table_files.values import Row
from tests.proof.rows.clients import Clients, clients
from tests.proof.rows.draw.dice import Dice
from tests.proof.rows.draw.steps import mix, step
from tests.proof.rows.draw.tables import table
from tests.proof.rows.engine_limits import limit
from tests.proof.rows.engines import ENGINES, Engine
from tests.proof.rows.findings import ALONE, Finding, Spoilt
from tests.proof.rows.kept_tables import TABLES, Kept, Look, keep, kept
from tests.proof.rows.read.readers import Bag
from tests.proof.rows.run import Run

STEPS = (4, 12)
"""Of a program: at least and at most."""


def run_and_keep(folder: Path, seeds: Sequence[int]) -> tuple[int, list[str]]:
    """Run a program for each of *seeds* and keep their tables in *folder*; return how many there are, and findings.

    A program with a finding leaves none.
    """
    made, findings = 0, list[str]()
    with ExitStack() as stack:
        places: dict[str, Clients] = {}
        for seed in seeds:
            dice = Dice(seed)
            program, often = table(dice), mix(dice)
            if program.locks not in places:
                places[program.locks] = stack.enter_context(clients(program.locks, folder / program.locks))
            run = Run(places[program.locks], program)
            try:
                for _ in range(dice.number(*STEPS)):
                    run.step(step(dice, run.view(), often))
            except Spoilt:
                run.close()
            except Finding as found:
                run.close()
                if not found.kind.startswith(ALONE):
                    findings.append(f"seed {seed}: {found}")
            else:
                keep(folder, seed, run.head.location, run.state)
                made += 1
    return made, findings


# Reading all of them.


@dataclass
class Tally:
    """What came of reading tables with one engine.

    Args:
        tables: How many it was asked for.
        whole: Of these, on which it agreed with the model in every look.
        looks: How many there were.
        agreed: Looks in which it agreed.
        explained: Differences, and looks that it refused, by the limit of the engine that explains them.
        unexplained: Differences that nothing explains.
    """

    tables: int = 0
    whole: int = 0
    looks: int = 0
    agreed: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return it as lines."""
        counts = (
            f"{self.tables:,} tables, {self.whole:,} of them as the model says in every look; {self.looks:,} looks, "
            f"{self.agreed:,} agree, {self.explained.total():,} are explained, {len(self.unexplained):,} are not"
        )
        return "\n".join([counts, *(f"    {number:,} {reason}" for reason, number in self.explained.most_common())])


def compare(name: str, engine: Engine, table: Kept, tally: Tally) -> None:
    """Have *engine* answer every look at a table, and add to *tally* what differs from the model."""
    agreed = 0
    for look, answer in _answers(engine, table):
        if answer == look.rows:
            agreed += 1
        elif reason := limit(name, table, look, answer):
            tally.explained[reason] += 1
        else:
            tally.unexplained.append(f"{name}: seed {table.seed}, {table.location}: {_different(look, answer)}")
    tally.tables += 1
    tally.looks += len(table.looks)
    tally.agreed += agreed
    tally.whole += agreed == len(table.looks)


def _answers(engine: Engine, table: Kept) -> Iterator[tuple[Look, Bag | Exception]]:
    """Yield what *engine* answers to each look: rows or an error."""
    try:
        yield from zip(table.looks, engine(table), strict=True)
    except Exception as error:  # noqa: BLE001 - that it can't read the table is what is looked for
        if len(table.looks) == 1:
            yield table.looks[0], error
            return
        for look in table.looks:  # one by one: some of them it can answer
            yield from _answers(engine, replace(table, looks=[look]))


def _different(look: Look, answer: Bag | Exception) -> str:
    if isinstance(answer, Exception):
        return f"{look.where} can't be read: {type(answer).__name__}: {str(answer)[:500]}"
    return f"{look.where}: missing {_few(look.rows - answer)}, not expected {_few(answer - look.rows)}"


def _few(rows: Bag) -> str:
    some: list[Row] = list(rows.elements())
    return f"{some[:3]} of {len(some)}" if some else "nothing"


def read_all(folder: Path, names: Sequence[str], say: Callable[[str], None] = print) -> int:
    """Read every table in *folder* with the engines of these names.

    Returns:
        How many differences nothing explains.
    """
    tallies: dict[str, Tally] = {}
    for name in names:
        began = time.monotonic()
        tally = tallies[name] = Tally()
        with ExitStack() as stack:
            engine = ENGINES[name](stack)
            for table in kept(folder):
                shown = len(tally.unexplained)
                compare(name, engine, table, tally)
                for different in tally.unexplained[shown:]:
                    say(different)
        say(f"{name}: {tally} ({time.monotonic() - began:.0f} s)")
    unexplained = sum(len(tally.unexplained) for tally in tallies.values())
    say(
        f"{max((tally.tables for tally in tallies.values()), default=0):,} tables, {len(names)} readers "
        f"({', '.join(names)}): {sum(tally.agreed for tally in tallies.values()):,} looks agree with the model, "
        f"{sum(tally.explained.total() for tally in tallies.values()):,} are explained by a limit of the reader, "
        f"{unexplained:,} are not explained"
    )
    return unexplained


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 when all engines read what the model expects."""
    parser = argparse.ArgumentParser(prog="make rows-readers", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the tables; those that are in it already are read again")
    parser.add_argument("--seed", type=int, default=1, help="of the first program; the next one has the next seed")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--engine", choices=sorted(ENGINES), action="append", help="instead of all")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs is 1 or more")
    findings: list[str] = []
    if not (options.folder / TABLES).exists():
        made, findings = run_and_keep(options.folder.absolute(), range(options.seed, options.seed + options.runs))
        print(*findings, f"{options.runs:,} programs left {made:,} tables", sep="\n", flush=True)
    unread = read_all(options.folder, options.engine or list(ENGINES))
    return 1 if findings or unread else 0


if __name__ == "__main__":
    sys.exit(main())
