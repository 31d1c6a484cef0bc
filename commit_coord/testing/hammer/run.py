"""Starts the writers, kills some of them, has faults done to the servers, and ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from commit_coord.config import COALESCE
from commit_coord.testing.fleet import Fleet, ForkedWriter, holds_within
from commit_coord.testing.hammer.proof import Report, prove
from commit_coord.testing.hammer.writers import (
    COLUMNS,
    SPEC,
    TABLE,
    count_acknowledged,
    evolve_table,
    forked,
    open_catalog,
    outcomes,
    write,
    write_plain,
)
from commit_coord.testing.plain import Tidier


def hammer(
    folder: Path,
    *,
    writers: int,
    appends: int,
    kill_every_s: float | None = None,
    kills_max: int | None = None,
    faults: Sequence[Callable[[], object]] = (),
    seed: int = 0,
    properties: Mapping[str, str] | None = None,
    table_properties: Mapping[str, str] | None = None,
    coalesce: bool = False,
    plain: int = 0,
    evolve: bool = False,
    rest_s: float = 0.0,
    timeout_s: float = 900.0,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Have *writers* processes append *appends* times each to a new table, and prove that the table is right.

    Args:
        folder: Empty; database, warehouse and logs go there.
        writers: Slots, each one process at a time.
        appends: To be acknowledged in each slot.
        kill_every_s: Kill one writer with SIGKILL, chosen with *seed*, every so many seconds, and replace it; later
            when none has begun to append since it was started.
        kills_max: Stop killing after so many.
        faults: What is done to the servers while the writers write: each once, in this order, at equal parts of the
            acknowledgements. So a share of these comes after the last fault, and only if the writers go on.
        seed: Of the choice.
        properties: Of the catalog, in addition to ``uri`` and ``warehouse``.
        table_properties: Of the table.
        coalesce: Whether appends of one commit share a snapshot.
        plain: Further processes that write with PyIceberg's own ``HiveCatalog``; killed like them.
        evolve: A process adds and drops a column and a partition field, again and again, while the writers write.
        rest_s: How long a writer rests after an append, in the mean. Who reads the table before it locks it, as
            PyIceberg does, never lands a commit while others lock it first and never rest.
        timeout_s: Give up after so long; the report then says so.
        say: Takes lines about the progress.
    """
    given = dict(properties or {})
    catalog = open_catalog(folder, given)
    catalog.create_namespace_if_not_exists(TABLE[0])
    of_table = {**(table_properties or {}), COALESCE: str(coalesce).lower()}
    catalog.create_table(TABLE, COLUMNS, partition_spec=SPEC, properties=of_table)
    began, kills, dice = time.monotonic(), 0, random.Random(seed)  # noqa: S311 - dice, no secret

    def start(slot: int) -> ForkedWriter:
        if slot < writers:
            return forked(write, folder, slot, appends, given, rest_s)
        return forked(write_plain, folder, slot, given)

    ours, others = (Fleet[int, ForkedWriter](start) for _ in range(2))
    ours.start(*range(writers))
    others.start(*range(writers, writers + plain))
    stop = folder / "stop"
    evolving = forked(evolve_table, folder, stop, given) if evolve else None
    if evolving is not None:  # else short runs of the writers might see no change
        holds_within(
            lambda: evolving.exit_code is not None or catalog.load_table(TABLE).metadata.current_schema_id, timeout_s
        )
    tidier = Tidier(given.get("uri", "")) if plain else None
    next_kill = began + kill_every_s if kill_every_s else None
    done = 0
    broken: list[str] = []
    tried_at_start: dict[int, int] = {}
    try:
        while running := ours.running():
            if time.monotonic() - began > timeout_s:
                broken.append(f"not done after {timeout_s:.0f} s: slots {sorted(running)}")
                break
            time.sleep(0.02)  # the subject: how often the run looks after its processes
            for slot, code in others.exit_codes().items():
                if code is not None:
                    others.start(slot)  # it ends itself when the outcome of an append is unknown
            if tidier is not None:
                tidier.tidy([process.pid for process in others.running().values()])
            if done < len(faults):
                found = count_acknowledged(folder, writers)
                if found * (len(faults) + 1) >= writers * appends * (done + 1):
                    faults[done]()
                    done += 1
                    say(f"fault {done} was done from {found} acknowledged to {count_acknowledged(folder, writers)}")
            if kills == kills_max:
                next_kill = None
            if next_kill is not None and kill_every_s and time.monotonic() >= next_kill:
                # Only one that has tried something since it was started: on a slow machine starts alone would be
                # killed otherwise, which proves nothing and never ends.
                alive = [*ours.running(), *others.running()]
                tried = {slot: len(outcomes(folder, slot).tried) for slot in alive}
                busy = [slot for slot in sorted(alive) if tried[slot] > tried_at_start.get(slot, 0) + 1]
                if not busy:
                    continue
                victim = dice.choice(busy)
                (ours if victim < writers else others).replace(victim)
                tried_at_start[victim] = tried[victim]
                kills += 1
                next_kill = max(next_kill + kill_every_s, time.monotonic())
                say(f"killed {kills}, acknowledged {count_acknowledged(folder, writers)}")
        broken += [
            f"the writer of slot {slot} ended with status {code}" for slot, code in ours.exit_codes().items() if code
        ]
    finally:
        ours.stop()
        others.stop()
        if evolving is not None:
            stop.touch()
            if code := evolving.wait():
                broken.append(f"the process that changes the table ended with status {code}")
        if tidier is not None:
            tidier.close()
    seconds = time.monotonic() - began
    if done < len(faults):
        broken.append(f"{done} of {len(faults)} faults were done")
    report = prove(catalog, folder, writers, plain, appends, seconds, kills, done, broken)
    catalog.close()
    return report
