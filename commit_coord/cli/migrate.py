"""``commit-coord migrate``: tables from the metastore's locks to ZooKeeper, and back, while everybody writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.cli import migration_views as views
from commit_coord.cli.catalogs import Choice, opened
from commit_coord.cli.exit_codes import CommandFailed, ExitCode, until_ctrl_c
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE, WHY
from commit_coord.cli.output import DEBUG, JSON, Output, duration
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.protocol.migration import MIGRATING, Phase

if TYPE_CHECKING:
    from commit_coord.catalog.migration import Migration, Moved
    from commit_coord.catalog.migration.sightings import SeenWriters

migrate = typer.Typer(
    name="migrate",
    add_completion=False,
    help="Move tables from the metastore's locks to ZooKeeper, and back, while all writers continue.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_TABLES = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLES]...", help="DATABASE.TABLE, or DATABASE for all its tables; * and ? are wildcards."
    ),
]
_ALL = Annotated[bool, typer.Option("--all", help="All tables of the metastore.")]
_WINDOW = Annotated[
    float,
    typer.Option(
        help="How long to watch the metastore's locks for writers that take no other lock; commits of such writers "
        "count if they are not older than this.",
        min=0,
        metavar="SECONDS",
    ),
]
_WAIT = Annotated[
    float, typer.Option(help="How long to try again if writers or operations prevent it.", min=0, metavar="SECONDS")
]

_AGAIN = 1.0
"""Seconds between two tries of ``--wait``, in addition to the window."""


@migrate.command()
def plan(
    tables: _TABLES = None,
    all_: _ALL = False,
    window: _WINDOW = 30.0,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Show the planned steps for each table, and its writers. Changes nothing.

    It watches the metastore's locks for --window seconds, and counts them.
    """
    output = Output(as_json=as_json)
    with _migration(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as migration:
        chosen = migration.tables(_patterns(tables, all_))
        seen = _watched(output, migration, window)
        statuses = migration.statuses(chosen, seen, window_s=window)
        document = {
            "lock_requests_per_s": views.rate(seen),
            "watched_s": round(seen.seconds, 1),
            "tables": [views.status_record(one) for one in statuses],
        }
        rate = f"{views.rate(seen):.1f}" if seen.locks is not None else "too few to count"
        shown = views.plan_table(statuses)
        output.answer(document, shown, f"lock requests a second in the metastore: {rate}", views.counts(statuses))


@migrate.command()
def start(
    tables: _TABLES = None,
    all_: _ALL = False,
    wait: _WAIT = 0.0,
    why: WHY = "",
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Move tables from phase `hms` to `both`: writers take both locks. Writers of all kinds continue.

    Tables that are in a later phase already stay there, so this can always be repeated. If a database is named, its new
    tables start in phase `both` from now on.
    """
    output = Output(as_json=as_json)
    choice = Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)
    with _migration(choice, why) as migration:
        patterns = _patterns(tables, all_)
        _move(output, migration, patterns, Phase.BOTH, window=None, force=False, wait=wait, back=False)


@migrate.command()
def advance(
    tables: _TABLES = None,
    all_: _ALL = False,
    window: _WINDOW = 30.0,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Advance although writers with only the metastore's lock were seen; their commits will fail.",
        ),
    ] = False,
    wait: _WAIT = 0.0,
    why: WHY = "",
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Move tables from phase `both` to `zookeeper`: writers take ZooKeeper's lock only.

    Refused for a table if a writer that takes only the metastore's lock was seen within --window (the answer names
    it), or while an operation holds locks only in the metastore. --wait tries again.
    """
    output = Output(as_json=as_json)
    choice = Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)
    with _migration(choice, why) as migration:
        patterns = _patterns(tables, all_)
        _move(output, migration, patterns, Phase.ZOOKEEPER, window=window, force=force, wait=wait)


@migrate.command()
def abort(
    tables: _TABLES = None,
    all_: _ALL = False,
    wait: _WAIT = 0.0,
    why: WHY = "",
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Move tables back to phase `hms`, from any phase: from `zookeeper` through `both`."""
    output = Output(as_json=as_json)
    choice = Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)
    with _migration(choice, why) as migration:
        patterns = _patterns(tables, all_)
        _move(output, migration, patterns, Phase.HMS, window=None, force=False, wait=wait)


@migrate.command()
def status(
    tables: _TABLES = None,
    all_: _ALL = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two reports.", min=0.2, metavar="SECONDS")] = 2.0,
    times: Annotated[int, typer.Option(help="How many reports; 0: until Ctrl-C.", min=0, metavar="N")] = 0,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Show each table: phase, epoch, writers and their locks, coordinated commits and waits by phase, progress.

    Uncoordinated writers are shown if their locks are in the metastore at this moment (with --watch: between two
    reports), or if their commits are in the last minute of the table's history.
    """
    output = Output(as_json=as_json)
    with _migration(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as migration:
        patterns = _patterns(tables, all_)
        live = Live(console=output.console) if watch and not as_json and output.console.is_terminal else None
        looks = 0
        with nullcontext() if live is None else live, until_ctrl_c():
            while True:
                seen = migration.watch(every if looks else 0.0)
                statuses = migration.statuses(migration.tables(patterns), seen, window_s=60)
                looks += 1
                if live is not None:
                    live.update(Group(views.status_table(statuses), views.counts(statuses)), refresh=True)
                else:
                    document = {"tables": [views.status_record(one) for one in statuses]}
                    output.answer(document, views.status_table(statuses), views.counts(statuses))
                if not watch or looks == times:
                    break


@migrate.command()
def verify(
    tables: _TABLES = None,
    all_: _ALL = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Check that each table is as its phase requires: its properties, guard and locks. Exit code 1 if one is not."""
    output = Output(as_json=as_json)
    with _migration(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as migration:
        found = [migration.verify(one) for one in migration.tables(_patterns(tables, all_))]
        records = [
            {
                "table": one.table,
                "phase": one.state and one.state.phase,
                "epoch": one.state and one.state.epoch,
                "problems": list(one.problems),
            }
            for one in found
        ]
        output.answer({"tables": records}, views.verified_table(found))
        if any(one.problems for one in found):
            raise typer.Exit(ExitCode.REFUSED)


@contextmanager
def _migration(choice: Choice, why: str = "") -> Iterator[Migration]:
    with opened(choice) as catalog:
        if not catalog.configuration.properties["uri"].startswith("thrift:"):
            raise CommandFailed(
                f"the catalog {catalog.name!r} is not on a metastore, so there is nothing to move; to change its lock "
                "manager, stop its writers and run `commit-coord config --adopt-locks`",
                ExitCode.USAGE,
                "usage",
            )
        if catalog.settings.lock_impl != MIGRATING:
            raise CommandFailed(
                f"the catalog {catalog.name!r} uses the lock manager '{catalog.settings.lock_impl}'. To move tables, "
                f"open it with lock-impl={MIGRATING} and lock.uri=ZOOKEEPER, as the writers do",
                ExitCode.USAGE,
                "usage",
            )
        yield _of(catalog, why)


def _of(catalog: CoordinatedCatalog, why: str) -> Migration:
    from commit_coord.catalog.hive import CoordinatedHiveCatalog
    from commit_coord.catalog.migration import Migration

    assert isinstance(catalog, CoordinatedHiveCatalog)
    return Migration(catalog, why=why)


def _patterns(tables: Sequence[str] | None, all_: bool) -> list[str]:
    if bool(tables) is all_:
        raise CommandFailed("name tables or databases, or say --all", ExitCode.USAGE, "usage")
    return list(tables) if tables else ["*"]


def _watched(output: Output, migration: Migration, seconds: float) -> SeenWriters:
    if seconds >= 1:
        output.inform(f"watching the metastore's locks for {duration(seconds * 1000)}")
    return migration.watch(seconds)


def _move(
    output: Output,
    migration: Migration,
    patterns: Sequence[str],
    target: Phase,
    *,
    window: float | None,
    force: bool,
    wait: float,
    back: bool = True,
) -> None:
    """Move, show the progress, answer, and end with the code that fits."""
    from commit_coord.catalog.migration import Outcome

    until = SYSTEM_CLOCK.now() + wait
    done: dict[str, Moved] = {}
    defaults: list[str] = []
    good = (Outcome.CHANGED, Outcome.THERE)
    with _reporting_done_moves(output, done, defaults):
        migration.tables(patterns)  # before anything is changed: one of them may name no table
        if target is not Phase.ZOOKEEPER:
            migration.set_defaults(patterns, target, on_set=defaults.append)
        left = migration.tables(patterns)  # also those that were made before the default was set
        while True:
            seen = _watched(output, migration, window) if window is not None and not force else None
            with _progress(output, len(left), done) as progress:
                migration.move_all(
                    left, target, seen=seen, window_s=window or 0.0, force=force, back=back, on_moved=progress
                )
            left = [one for one in left if done[".".join(one)].outcome is Outcome.WAITS]
            if not left or SYSTEM_CLOCK.now() >= until:
                break
            output.inform(f"{len(left)} of {len(done)} tables wait, such as {'.'.join(left[0])}: trying again")
            SYSTEM_CLOCK.sleep(_AGAIN)
        moved = [done[key] for key in sorted(done)]
        if target is Phase.ZOOKEEPER and all(one.outcome in good for one in moved):
            migration.set_defaults(patterns, target, on_set=defaults.append)
        document = {"target": target, "tables": [views.moved_record(one) for one in moved]}
        output.answer(document, views.moved_table(moved))
    outcomes = {one.outcome for one in moved}
    if Outcome.UNKNOWN in outcomes:
        raise typer.Exit(ExitCode.UNKNOWN)
    if Outcome.FAILED in outcomes:
        raise typer.Exit(ExitCode.FAILED)
    if outcomes - {*good}:
        raise typer.Exit(ExitCode.REFUSED)


@contextmanager
def _reporting_done_moves(output: Output, done: Mapping[str, Moved], defaults: Sequence[str]) -> Iterator[None]:
    """Say at Ctrl-C and at an error what is *done*: a command that ends so has no other answer."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        changed = sorted(one.table for one in done.values() if one.after not in (one.before, None))
        new = f"new tables of {', '.join(sorted(defaults))} begin in the new phase; " if defaults else ""
        if changed or new or isinstance(error, KeyboardInterrupt):
            what = "interruption" if isinstance(error, KeyboardInterrupt) else "error"
            output.inform(
                f"moved before the {what}: {', '.join(changed) or 'no table'}; {new}repeat the command to go on"
            )
        raise


@contextmanager
def _progress(output: Output, total: int, done: dict[str, Moved]) -> Iterator[Callable[[Moved], None]]:
    """Show how many of *total* tables are moved, each of which is put into *done*."""
    columns = (
        TextColumn("moving"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=output.notes, transient=True) as progress:
        task = progress.add_task("moving", total=total, last="")

        def moved(one: Moved) -> None:
            done[one.table] = replace(one, before=done.get(one.table, one).before)
            progress.update(task, advance=1, last=f"{one.table} {one.outcome}")

        yield moved
