"""``commit-coord locks``, ``unlock`` and ``reap``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.cli import views
from commit_coord.cli.catalogs import Choice, opened, table_resource
from commit_coord.cli.exit_codes import CommandFailed, ExitCode, until_ctrl_c
from commit_coord.cli.fitting import FittingTable
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE, WHY, YES
from commit_coord.cli.output import DEBUG, JSON, Output, confirmed
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import known_catalogs
from commit_coord.errors import LockServiceUnavailable
from commit_coord.locks.base import PAGE
from commit_coord.model import LockEntry, LockState, Reach, Resource

if TYPE_CHECKING:
    from commit_coord.cli.tree import WaiterWatch

_DAY = 86_400

_PIPE_LINES = 1000
"""Lines of a tree that goes into a pipe or a file."""

_AROUND_THE_TREE = 5
"""Lines of a terminal for the title, the header, how to end it, and the cursor; a long title takes two."""


def locks(
    catalog: Annotated[str | None, typer.Argument(metavar="[CATALOG]", help="The catalog's name.")] = None,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this NAMESPACE.TABLE.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two listings.", min=0.05, metavar="SECONDS")] = 0.5,
    times: Annotated[int, typer.Option(help="How many listings; 0: until Ctrl-C.", min=0, metavar="N")] = 0,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """List locks: who holds or waits for which lock, since when, until when, and which request blocks it.

    A single argument that contains a dot and is not the name of a known catalog is the TABLE.

    --watch shows a tree of databases, tables and partitions, each with its holders and, behind them, its waiters. The
    objects with the longest waits are expanded first; objects for which the terminal has no room are counted. In a
    pipe, one tree follows the other; with --json, each line is one JSON document.
    """
    output = Output(as_json=as_json)
    if not every <= _DAY:  # nan, too
        raise CommandFailed(f"--every takes at most a day: {_DAY:,} seconds", ExitCode.USAGE, "usage")
    if name is not None:
        if table is not None and catalog != name:
            raise CommandFailed(
                f"two catalogs are named: {catalog!r} and {name!r}; leave one of them out", ExitCode.USAGE, "usage"
            )
        catalog, table = name, table or (catalog if catalog != name else None)
    elif table is None and catalog is not None and "." in catalog and catalog not in known_catalogs():
        catalog, table = None, catalog
    choice = Choice(name=catalog, uri=uri, warehouse=warehouse, properties=properties)
    with opened(choice) as found:
        refuse_locks_of_a_process(found)
        resource = table_resource(found, table) if table else None
        if not watch:
            _show_locks(output, found, resource)
            return
        _watch_locks(output, found, resource, every=every, times=times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a catalog's lock manager listed at one moment."""

    catalog: CoordinatedCatalog
    resource: Resource | None
    at_ms: int
    entries: Sequence[LockEntry]

    @property
    def document(self) -> dict[str, Any]:
        return {
            "catalog": self.catalog.name,
            "lock_manager": self.catalog.settings.lock_impl,
            "at_ms": self.at_ms,
            "locks": [views.lock_record(entry) for entry in self.entries],
        }

    def tree(self, watch: WaiterWatch, lines: int) -> FittingTable:
        from commit_coord.cli.tree import lock_tree

        watch.look(self.entries, now_ms=self.at_ms)
        return lock_tree(self.entries, watch, now_ms=self.at_ms, title=self.title, lines=lines)

    @property
    def title(self) -> str:
        place = f"catalog {self.catalog.name}" + (f", {self.resource}" if self.resource else "")
        title = f"{place} ({self.catalog.settings.lock_impl})"
        held = sum(entry.state is LockState.ACQUIRED for entry in self.entries)
        return f"{title}: {held:,} held, {len(self.entries) - held:,} waiting" if self.entries else title


def _look(catalog: CoordinatedCatalog, resource: Resource | None) -> _Look:
    entries = catalog.show_locks(resource)
    return _Look(catalog=catalog, resource=resource, at_ms=SYSTEM_CLOCK.wall_ms(), entries=entries)


def _show_locks(output: Output, catalog: CoordinatedCatalog, resource: Resource | None) -> None:
    if not output.as_json:
        pages = catalog.lock_pages(resource)
        first = next(pages, ())
        if len(first) >= PAGE:
            _show_pages(output, catalog, chain([first], pages))
            return
    look = _look(catalog, resource)
    if output.as_json:
        output.answer(look.document)
    else:
        output.console.print(views.lock_table(look.entries, now_ms=look.at_ms, title=look.title))


def _show_pages(output: Output, catalog: CoordinatedCatalog, pages: Iterable[Sequence[LockEntry]]) -> None:
    """Show thousands of locks as they are read, resource by resource: the first ones need not wait for the last."""
    count = 0
    for page in pages:
        last = count + len(page)
        title = f"catalog {catalog.name} ({catalog.settings.lock_impl}): locks {count + 1:,} to {last:,}"
        output.console.print(views.lock_table(page, now_ms=SYSTEM_CLOCK.wall_ms(), title=title))
        count = last
    output.console.print(f"{count:,} locks")


def _watch_locks(
    output: Output, catalog: CoordinatedCatalog, resource: Resource | None, *, every: float, times: int
) -> None:
    """Show the tree again and again: on a terminal in place and no higher than it, else one below the other."""
    from commit_coord.cli.tree import WaiterWatch

    watch = WaiterWatch()
    looks = _looks(catalog, resource, every=every, times=times)
    with until_ctrl_c():
        if output.as_json or not output.console.is_terminal:
            for look in looks:
                if isinstance(look, LockServiceUnavailable):
                    raise look
                if output.as_json:
                    output.answer(look.document)
                else:
                    output.console.print(look.tree(watch, _PIPE_LINES))
                sys.stdout.flush()
            return
        _watch_on_screen(output, looks, watch)


def _watch_on_screen(output: Output, looks: Iterable[_Look | LockServiceUnavailable], watch: WaiterWatch) -> None:
    from rich.live import Live

    from commit_coord.cli.failures import explain

    last: FittingTable | None = None
    try:
        # The alternate screen: a terminal that gets narrower does not fold its lines, and all of it is drawn again.
        with Live(console=output.console, screen=True) as live:
            for look in looks:
                if isinstance(look, LockServiceUnavailable):
                    shown: RenderableType = Text(f"{explain(look).message}; looking again", style="yellow")
                else:
                    shown = last = look.tree(watch, max(1, output.console.height - _AROUND_THE_TREE))
                live.update(Group(shown, Text("Ctrl-C ends", style="dim")), refresh=True)
    finally:
        if last is not None:
            output.console.print(last)  # so that it can be read after the end


def _looks(
    catalog: CoordinatedCatalog, resource: Resource | None, *, every: float, times: int
) -> Iterator[_Look | LockServiceUnavailable]:
    """Yield what each look shows, or why it could not; *every* seconds, *times* times, without end if that is 0."""
    for number in count(1):
        started = SYSTEM_CLOCK.now()
        try:
            look: _Look | LockServiceUnavailable = _look(catalog, resource)
        except LockServiceUnavailable as error:
            look = error
        yield look
        if number == times:
            return
        # A look at very many locks takes a while: at least as long the service, and we, do something else.
        SYSTEM_CLOCK.sleep(max(every, SYSTEM_CLOCK.now() - started))


def refuse_locks_of_a_process(catalog: CoordinatedCatalog) -> None:
    """Return if the locks of other processes can be listed.

    Raises:
        CommandFailed: Each process keeps its locks in its own memory.
    """
    if catalog.locks.guarantees.reach == Reach.PROCESS:
        raise CommandFailed(
            f"the '{catalog.settings.lock_impl}' lock manager is in the memory of each process: no other process "
            "can list or free its locks; use lock-impl=lease",
            ExitCode.REFUSED,
            "not-visible",
        )


def unlock(
    what: Annotated[
        str,
        typer.Argument(
            metavar="LOCK",
            help="A request id or its first 8 letters, or a resource: db, db.table, db/table/key=value.",
        ),
    ],
    waiters: Annotated[bool, typer.Option("--waiters", help="Also release the requests that wait for it.")] = False,
    guard: Annotated[bool, typer.Option("--guard", help="Also release the guard of the table.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Release nothing; show what would be released.")] = False,
    why: WHY = "",
    yes: YES = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Release locks by force: one request, or every request that holds a lock on exactly this resource.

    The requests of live owners that wait for the resource stay, unless you give --waiters. A request that is released
    while it waits ends with an error that names you.

    A holder loses its lock lease. If it is in the middle of a commit, the commit is still safe, because its swap is
    conditional. An operation that relies on its lock is not safe, so first check that the owner has ended.

    A request that has changed since it was shown is left: it waited and was granted the lock meanwhile, or it has
    ended.

    --guard: the guard of a table on a Hive Metastore blocks writers that know only the metastore's locks. The next
    commit to the table sets it again.
    """
    output = Output(as_json=as_json)
    if as_json and not yes and not dry_run:
        raise CommandFailed("--json can't ask for confirmation: add --yes or --dry-run", ExitCode.USAGE, "usage")
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        refuse_locks_of_a_process(found)
        doomed = found.unlock(**_unlock_arguments(found, what), waiters=waiters, guard=guard, dry_run=True)
        if not doomed:
            raise _nothing_to_free(found, what)
        if dry_run:
            _answer_freed(output, doomed, dry_run=True)
            return
        if not yes:
            title = "This frees by force"
            output.notes.print(views.lock_table(doomed, now_ms=SYSTEM_CLOCK.wall_ms(), title=title))
            if not confirmed("Free?"):
                raise CommandFailed("nothing was freed", ExitCode.REFUSED, "not-confirmed")
        freed = found.unlock(shown=doomed, why=why)
        if not freed:
            raise CommandFailed(
                f"nothing was freed: the requests that {what!r} names were released or granted in the meantime; "
                "`commit-coord locks` lists the locks",
                ExitCode.REFUSED,
                "not-found",
            )
        gone = {entry.request_id for entry in freed}
        _answer_freed(output, freed, left=[entry for entry in doomed if entry.request_id not in gone], dry_run=False)


def _answer_freed(
    output: Output, entries: Sequence[LockEntry], *, left: Sequence[LockEntry] = (), dry_run: bool
) -> None:
    verb = "would free" if dry_run else "freed"
    lines = [Text(f"{verb} {views.lock_line(entry)}") for entry in entries]
    lines += [Text(f"left {views.lock_line(entry)}: it was released or granted in the meantime") for entry in left]
    freed, kept = ([views.lock_record(entry) for entry in some] for some in (entries, left))
    output.answer({"dry_run": dry_run, "freed": freed, "left": kept}, *lines)


def _unlock_arguments(catalog: CoordinatedCatalog, what: str) -> dict[str, Any]:
    """Return the request or the resource that *what* names, as :meth:`CoordinatedCatalog.unlock` takes it.

    Raises:
        CommandFailed: It names none, or several requests.
    """
    entries = catalog.show_locks()
    if len(what) >= views.REQUEST_ID_LENGTH:
        ids = sorted({entry.request_id for entry in entries if entry.request_id.startswith(what)})
        if len(ids) > 1:
            raise CommandFailed(
                f"{what!r} is the beginning of {len(ids)} request ids: {', '.join(ids)}; give one of them whole",
                ExitCode.USAGE,
                "ambiguous",
            )
        if ids:
            return {"request_id": ids[0]}
    for resource in map(catalog.spelled, _resources(what)):
        if any(catalog.is_on(entry, resource) for entry in entries):
            return {"resource": resource}
    raise CommandFailed(
        f"there is no lock {what!r}: neither a request id nor a locked resource; `commit-coord locks` lists them",
        ExitCode.REFUSED,
        "not-found",
    )


def _nothing_to_free(catalog: CoordinatedCatalog, what: str) -> CommandFailed:
    """Return the error about a resource on which there are only requests that *unlock* spares."""
    arguments = _unlock_arguments(catalog, what)
    helpful = [
        option
        for option in ("--waiters", "--guard")
        if catalog.unlock(**arguments, waiters=option == "--waiters", guard=option == "--guard", dry_run=True)
    ]
    spared = {"--waiters": "requests that wait", "--guard": "the table's guard"}
    there = " and ".join(spared[option] for option in helpful) or "no lock any more"
    hint = f"; add {' and '.join(helpful)} to free that" if helpful else ""
    return CommandFailed(f"nobody holds {what!r}, there is only: {there}{hint}", ExitCode.REFUSED, "not-found")


def _resources(text: str) -> list[Resource]:
    """Return what *text* may name: a path, or a table as ``NAMESPACE.TABLE``."""
    try:
        found = [Resource.parse(text)]
    except ValueError:
        return []
    namespace, dot, table = text.rpartition(".")
    if "/" not in text and dot and namespace and table:
        found.append(Resource((namespace, table)))
    return found


def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Release nothing; show what would be released.")] = False,
    why: WHY = "",
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Release the locks of dead owners, and their places in queues: their lease is over, or their process has ended.

    Locks of live owners, granted LOCK statements, guards, and locks of other programs stay. This command is never
    necessary: a writer that waits for a dead owner releases the locks of that owner. It removes locks for which nobody
    waits. On a Hive Metastore it watches the heartbeats of the locks, for up to one lease time.
    """
    output = Output(as_json=as_json)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        refuse_locks_of_a_process(found)
        dead = found.reap(dry_run=dry_run, why=why)
        verb = "would free" if dry_run else "freed"
        lines = [Text(f"{verb} {views.lock_line(entry)}: {views.cause_of_death(entry)}") for entry in dead]
        requests = len({entry.request_id for entry in dead})
        summary = f"{verb} {len(dead):,} locks of {requests:,} requests" if dead else "no dead owner left a lock"
        records = [{**views.lock_record(entry), "because": views.cause_of_death(entry)} for entry in dead]
        output.answer({"dry_run": dry_run, "freed": records}, *lines, Text(summary))
