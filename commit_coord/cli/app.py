"""The commands of ``commit-coord``. Each gathers, asks the layers below, prints, and ends with a documented code."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text
from typer.core import TyperGroup

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.cli import recovery, views
from commit_coord.cli.catalogs import Choice, checked, known_catalogs, opened
from commit_coord.cli.failures import CommandFailed, ExitCode, explain
from commit_coord.cli.local import local
from commit_coord.cli.migrate import migrate
from commit_coord.cli.options import CATALOG as _CATALOG
from commit_coord.cli.options import PROPERTY as _PROPERTY
from commit_coord.cli.options import URI as _URI
from commit_coord.cli.options import WAREHOUSE as _WAREHOUSE
from commit_coord.cli.options import WHY as _WHY
from commit_coord.cli.output import DEBUG, JSON, Output, json, table
from commit_coord.cli.tree import Watch, lock_tree
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.config import Configuration, configure
from commit_coord.errors import ConfigError, LockServiceUnavailable
from commit_coord.iceberg.attempt import request_uuid
from commit_coord.locks.base import PAGE
from commit_coord.locks.registry import create_lock_manager
from commit_coord.model import LockEntry, LockState, Resource

if TYPE_CHECKING:
    from commit_coord.sql import Answer

_REQUEST_ID_LENGTH = 8
"""As many letters of a request id are enough to name it, if only one begins so; the tables print as many."""

_PIPE_LINES = 1000
"""Lines of a tree that goes into a pipe or a file."""

_AROUND_THE_TREE = 5
"""Lines of a terminal for the title, the header, how to end it, and the cursor; a long title takes two."""

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer keeps a click of its own since 0.16 or uses the installed one; either way this is its ``UsageError``."""


class _Commands(TyperGroup):
    """Turns every error into one line on stderr and an exit code; ``--debug`` shows the traceback too."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error becomes a line and a code
            code = _report(error, given)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else ExitCode.OK)


def _report(error: BaseException, given: Sequence[str]) -> ExitCode:
    if "--debug" in given:
        traceback.print_exception(error)
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        typer.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    if isinstance(error, _UsageError):
        message = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
            typer.echo(message, err=True)
            return ExitCode.USAGE
        code, kind = ExitCode.USAGE, "usage"
        message = f"{message[:1].lower()}{message[1:].rstrip('.')}; --help shows what there is"
    else:
        failure = explain(error)
        code, kind, message = failure.code, failure.kind, failure.message
    typer.echo(f"error: {message}", err=True)
    if "--json" in given:
        typer.echo(json({"error": {"kind": kind, "message": message, "exit_code": int(code)}}))
    return code


app = typer.Typer(
    name="commit-coord",
    cls=_Commands,
    help="Look at and free the locks of a catalog, see its commits and its settings, move its tables to another lock "
    "service, run the demo and the bench.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_YES = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    app(args=list(argv) if argv is not None else None, prog_name="commit-coord")
    raise AssertionError("typer exits")


# -- locks -------------------------------------------------------------------------------------------------


@app.command()
def locks(
    catalog: Annotated[str | None, typer.Argument(metavar="[CATALOG]", help="The catalog's name.")] = None,
    table: Annotated[str | None, typer.Argument(metavar="[TABLE]", help="Only this NAMESPACE.TABLE.")] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05, metavar="SECONDS")] = 0.5,
    times: Annotated[int, typer.Option(help="How many looks; 0 is until Ctrl-C.", min=0, metavar="N")] = 0,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Who holds and who waits for which lock, since when, until when, blocked by whom.

    With one argument that has a dot and is no known catalog, it is taken as the TABLE.

    --watch shows a tree: databases, tables, partitions, at each the holders and behind them the waiters. What waits
    longest is opened first; what the terminal has no room for is counted. Into a pipe one tree follows the other; with
    --json, one JSON document a line.
    """
    output = Output(as_json=as_json)
    if name is not None:
        if table is not None and catalog != name:
            raise CommandFailed(f"two catalogs are named: {catalog!r} and {name!r}", ExitCode.USAGE, "usage")
        catalog, table = name, table or (catalog if catalog != name else None)
    elif table is None and catalog is not None and "." in catalog and catalog not in known_catalogs():
        catalog, table = None, catalog
    choice = Choice(name=catalog, uri=uri, warehouse=warehouse, properties=properties)
    with opened(choice) as found:
        _refuse_what_nobody_sees(found)
        resource = _table_resource(found, table) if table else None
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
    watch, looks = Watch(), 0
    live = None if output.as_json or not output.console.is_terminal else Live(console=output.console, screen=False)
    with nullcontext() if live is None else live, suppress(KeyboardInterrupt):  # that is how a watch ends
        while True:
            started = SYSTEM_CLOCK.now()
            try:
                look = _look(catalog, resource)
            except LockServiceUnavailable as error:
                if live is None:
                    raise
                live.update(Text(f"{explain(error).message}; looking again\nCtrl-C ends", style="yellow"), refresh=True)
            else:
                watch.look(look.entries, now_ms=look.at_ms)
                if output.as_json:
                    output.answer(look.document)
                else:
                    lines = _PIPE_LINES if live is None else max(1, output.console.height - _AROUND_THE_TREE)
                    tree = lock_tree(look.entries, watch, now_ms=look.at_ms, title=look.title, lines=lines)
                    if live is None:
                        output.console.print(tree)
                    else:
                        live.update(Group(tree, Text("Ctrl-C ends", style="dim")), refresh=True)
                sys.stdout.flush()
            looks += 1
            if looks == times:
                return
            # A look at very many locks takes a while: at least as long the service, and we, do something else.
            time.sleep(max(every, SYSTEM_CLOCK.now() - started))


def _refuse_what_nobody_sees(catalog: CoordinatedCatalog) -> None:
    if catalog.locks.guarantees.reach == "process":
        raise CommandFailed(
            f"the '{catalog.settings.lock_impl}' lock manager lives inside of each process: nobody else can see or "
            "free its locks; use lock-impl=lease",
            ExitCode.REFUSED,
            "not-visible",
        )


def _table_resource(catalog: CoordinatedCatalog, table: str) -> Resource:
    identifier = tuple(part for part in table.split(".") if part)
    if len(identifier) < 2 or not catalog.table_exists(identifier):
        raise CommandFailed(
            f"there is no table {table!r} in catalog {catalog.name!r}; a table is named NAMESPACE.TABLE",
            ExitCode.REFUSED,
            "not-found",
        )
    return Resource.table(identifier)


# -- unlock ------------------------------------------------------------------------------------------------


@app.command()
def unlock(
    what: Annotated[
        str, typer.Argument(metavar="LOCK", help="A request id or its first 8 letters, or a resource: db/table/k=v.")
    ],
    why: _WHY = "",
    yes: _YES = False,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Free locks by force: one request, or every request that locks exactly this resource.

    The owners find their leases lost. A commit that one of them is in the middle of is still safe: its swap is
    conditional. An operation that relies on its lock is not, so look first whether the owner is gone.
    """
    output = Output(as_json=as_json)
    if as_json and not yes:
        raise CommandFailed("--json can't ask: give --yes as well", ExitCode.USAGE, "usage")
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        _refuse_what_nobody_sees(found)
        request_id, resource, doomed = _chosen(found, what)
        if not yes:
            now = SYSTEM_CLOCK.wall_ms()
            output.notes.print(views.lock_table(doomed, now_ms=now, title="This frees by force"))
            if not typer.confirm("Free?", err=True):
                raise CommandFailed("nothing was freed", ExitCode.REFUSED, "not-confirmed")
        freed = found.unlock(request_id=request_id, resource=resource, why=why)
        if not freed:
            raise CommandFailed(
                f"nothing was freed: {what!r} was given back in the meantime", ExitCode.REFUSED, "not-found"
            )
        lines = [Text(f"freed {views.lock_line(entry)}") for entry in freed]
        output.answer({"freed": [views.lock_record(entry) for entry in freed]}, *lines)


def _chosen(catalog: CoordinatedCatalog, what: str) -> tuple[str | None, Resource | None, list[LockEntry]]:
    """Return what ``unlock`` is asked for: a request id or a resource, and the locks that it frees."""
    entries = catalog.show_locks()
    if len(what) >= _REQUEST_ID_LENGTH:
        ids = sorted({entry.request_id for entry in entries if entry.request_id.startswith(what)})
        if len(ids) > 1:
            raise CommandFailed(
                f"{what!r} begins {len(ids)} request ids: {', '.join(ids)}; give one of them whole",
                ExitCode.USAGE,
                "ambiguous",
            )
        if ids:
            return ids[0], None, [entry for entry in entries if entry.request_id == ids[0]]
    for resource in map(catalog.spelled, _resources(what)):
        named = [entry for entry in entries if catalog.is_on(entry, resource)]
        requests = {entry.request_id for entry in named if not entry.guard or catalog.is_left(entry)}
        if requests:
            return None, resource, [entry for entry in entries if entry.request_id in requests]
    raise CommandFailed(
        f"there is no lock {what!r}: neither a request id nor a locked resource; `commit-coord locks` lists them",
        ExitCode.REFUSED,
        "not-found",
    )


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


# -- reap --------------------------------------------------------------------------------------------------


@app.command()
def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Free nothing; say what would be freed.")] = False,
    why: _WHY = "",
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Free the locks and the places in queues that dead owners left: their lease is over, or their process has ended.

    Nothing of a live owner is touched, and nothing of LOCK statements, guards and other programs. Nobody has to run
    this: whoever waits for a dead owner frees its locks. It tidies what nobody waits for. Of a Hive Metastore's locks
    heartbeats are watched, for up to a lease.
    """
    output = Output(as_json=as_json)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        _refuse_what_nobody_sees(found)
        dead = found.reap(dry_run=dry_run, why=why)
        verb = "would free" if dry_run else "freed"
        lines = [Text(f"{verb} {views.lock_line(entry)}: {views.cause_of_death(entry)}") for entry in dead]
        requests = len({entry.request_id for entry in dead})
        summary = f"{verb} {len(dead):,} locks of {requests:,} requests" if dead else "nobody dead left a lock"
        records = [{**views.lock_record(entry), "because": views.cause_of_death(entry)} for entry in dead]
        output.answer({"dry_run": dry_run, "freed": records}, *lines, Text(summary))


# -- sql ---------------------------------------------------------------------------------------------------


@app.command()
def sql(
    statement: Annotated[
        str | None, typer.Argument(help="SHOW LOCKS, LOCK TABLE, ALTER TABLE …; without one, a shell opens.")
    ] = None,
    database: Annotated[str, typer.Option("--database", "-d", help="Of tables that name none.")] = "default",
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="SHOW LOCKS in thirteen columns, with who waits for whom.")
    ] = False,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Run a statement of Hive's on the tables and their locks, or open a shell; from a pipe, one statement a line.

    On a terminal the answer is a table; into a pipe it is what Hive prints, with tabs between.
    """
    from commit_coord.sql import Session

    output = Output(as_json=as_json)
    if statement is None and as_json:
        raise CommandFailed("--json takes one statement", ExitCode.USAGE, "usage")
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        session = Session(found, database=database, all_columns=all_columns)
        if statement is not None:
            _answer(output, session.run(statement))
            return
        if not sys.stdin.isatty():  # A script: it ends with the first error.
            for line in filter(str.strip, sys.stdin):
                _answer(output, session.run(line))
            return
        from commit_coord.cli.shell import statements

        for text in statements(found):
            try:
                _answer(output, session.run(text))
            except Exception as error:  # noqa: BLE001 - one statement's error does not end the shell
                output.note(f"error: {explain(error).message}")


def _answer(output: Output, answer: Answer) -> None:
    if output.as_json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        output.answer({"columns": list(answer.columns), "rows": rows})
    elif output.console.is_terminal and len(answer.columns) > 1:
        shown = table(*answer.columns)
        for row in answer.rows:
            shown.add_row(*("NULL" if value is None else Text(str(value)) for value in row))
        output.console.print(shown)
    else:
        for line in answer.lines:
            typer.echo(line)  # rich would make blanks of the tabs


# -- commits -----------------------------------------------------------------------------------------------


@app.command()
def commits(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    request_id: Annotated[str | None, typer.Option("--request-id", help="Did this one land?", metavar="ID")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="The newest so many; 0 is all.", min=0, metavar="N")] = 20,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """The history of a table: when, which snapshot, operation, rows, request id, generation, writer. Newest first.

    Commits without a snapshot (create, schema, properties) are those that the table's metadata log still has.

    With --request-id: exit code 0 when that commit landed, 1 when it is not known to have landed.
    """
    output = Output(as_json=as_json)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        _table_resource(found, table)
        if request_id is not None:
            _answer_landed(output, found, table, request_id)
            return
        loaded = found.load_table(table)
        history = views.history(loaded.metadata, loaded.metadata_location)
        records = history[:limit] if limit else history
        title = f"{table}: {len(history)} commits" + (
            f", the newest {len(records)} (-n 0 shows all)" if len(records) < len(history) else ""
        )
        document = {"catalog": found.name, "table": table, "total": len(history), "commits": records}
        output.answer(document, views.commit_table(records, title=title, wide=output.console.width >= 118))


def _answer_landed(output: Output, catalog: CoordinatedCatalog, table: str, text: str) -> None:
    request_id = request_uuid(_whole_id(catalog, table, text))
    entry = catalog.coordinator.find(tuple(table.split(".")), request_id)
    if entry is None:
        raise CommandFailed(
            f"request {text!r} is not known to have landed in {table}. If its writer still runs, it may yet; "
            "if it has ended, the write can be repeated with the same request id",
            ExitCode.REFUSED,
            "not-found",
        )
    ids = ", ".join(str(snapshot_id) for snapshot_id in entry.snapshot_ids) or "no snapshot"
    output.answer(
        {
            "landed": True,
            "request_id": request_id,
            "table": entry.table,
            "snapshot_ids": list(entry.snapshot_ids),
            "metadata_location": entry.metadata_location,
        },
        Text(f"landed in {entry.table}: {ids}"),
        Text(f"published by {entry.metadata_location}"),
    )


def _whole_id(catalog: CoordinatedCatalog, table: str, text: str) -> str:
    """Return the one request id of the table's history that begins with *text*, or *text* itself."""
    if not _REQUEST_ID_LENGTH <= len(text) < len(str(uuid.UUID(int=0))):
        return text
    loaded = catalog.load_table(table)
    known = (record["request_id"] or "" for record in views.history(loaded.metadata, loaded.metadata_location))
    ids = {one for listed in known for one in listed.split(",") if one.startswith(text.lower())}
    return ids.pop() if len(ids) == 1 else text


# -- repair and orphans ------------------------------------------------------------------------------------


@app.command()
def repair(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    since: Annotated[
        list[str],
        typer.Option("--from", help="The last metadata file that was lost; may be repeated.", metavar="LOCATION"),
    ] = [],  # noqa: B006 - typer reads it, nobody changes it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Bring nothing back; say what would be.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Bring nothing back, and have the lock service forget what was lost.")
    ] = False,
    yes: _YES = False,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Bring back commits that a writer without our rules overwrote. Shows them first, and asks.

    They are known from what the lock service remembers (not with `hms` and `none`) and from --from, which the error in
    the log names. An append comes back as a commit on the present head: the same files, the same request id, once,
    however often this is run. Overwrites, deletes and schema changes are listed with what to do.
    """
    output = Output(as_json=as_json)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        resource = _table_resource(found, table)
        if forget:
            recovery.forget_lost(output, found, resource, yes=yes)
        else:
            recovery.repair_table(output, found, resource, since, dry_run=dry_run, yes=yes)


@app.command()
def orphans(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; asks first.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only files written before that: 3d, 12h, 90m.", metavar="AGE")
    ] = "3d",
    force: Annotated[
        bool, typer.Option("--force", help="Take an age below an hour. A slower writer's files would be lost.")
    ] = False,
    yes: _YES = False,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """List, and with --delete remove, files below a table's location that no commit refers to.

    Spared is what a writer at work may still publish: it is waited for those that hold or wait for the commit latch,
    and nothing is taken that is younger than an operation with locks on the table. Before it asks for the latch nobody
    knows of a writer; so AGE must be longer than any of them takes from its first file to its commit.
    """
    output = Output(as_json=as_json)
    older_than_ms = recovery.age_ms(older_than)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        resource = _table_resource(found, table)
        recovery.remove_orphans(
            output, found, resource, older_than_ms=older_than_ms, force=force, delete=delete, yes=yes
        )


# -- config ------------------------------------------------------------------------------------------------


@app.command()
def config(
    catalog: Annotated[str | None, typer.Argument(metavar="[CATALOG]", help="The catalog's name.")] = None,
    adopt_locks: Annotated[
        bool, typer.Option("--adopt-locks", help="Forget which lock manager the catalog, or the TABLE, was used with.")
    ] = False,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Also what protects this NAMESPACE.TABLE of a metastore.", metavar="TABLE"),
    ] = None,
    yes: _YES = False,
    name: _CATALOG = None,
    uri: _URI = None,
    warehouse: _WAREHOUSE = None,
    properties: _PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Every property, its value and where it came from, and what the lock manager guarantees. Opens nothing.

    Of a Hive Metastore it also tries out what the server can do: a scratch view and a scratch lock, removed at once.

    --table: also how writers of each kind get along on that table; this opens the catalog.

    --adopt-locks: after every process that uses the catalog was stopped, let the next one declare its lock manager. On
    a metastore each table has its own: --table names it, and it is declared to use the one that is configured now.
    """
    output = Output(as_json=as_json)
    if catalog is not None and name is not None and catalog != name:
        raise CommandFailed(f"two catalogs are named: {catalog!r} and {name!r}", ExitCode.USAGE, "usage")
    choice = Choice(name=catalog or name, uri=uri, warehouse=warehouse, properties=properties)
    arguments = checked(choice)
    if adopt_locks:
        _adopt_locks(output, choice, arguments, table, yes=yes)
        return
    configuration = configure(choice.catalog, arguments)
    settings = configuration.settings
    with create_lock_manager(
        settings.lock_impl, settings.lock_uri, space=configuration.name, options=settings.lock_options
    ) as manager:
        guarantees = manager.guarantees
    records = views.config_records(configuration)
    document = {
        "catalog": configuration.name,
        "properties": records,
        "lock_manager": settings.lock_impl,
        "guarantees": {name: getattr(guarantees, name) for name in guarantees.__dataclass_fields__},
    }
    parts = [
        views.config_table(records, title=f"catalog {configuration.name}"),
        "",
        views.guarantee_table(guarantees, title=f"the lock manager '{settings.lock_impl}' promises"),
    ]
    if configuration.properties["uri"].startswith("thrift:"):
        from commit_coord.cli.metastore import metastore_record, metastore_table

        found = metastore_record(configuration)
        document["metastore"] = found
        parts += ["", metastore_table(found)]
    if table is not None:
        from commit_coord.cli.metastore import protection_record, protection_table

        with _on_metastore(choice, configuration) as opened_catalog:
            protection = opened_catalog.protection(_table_resource(opened_catalog, table).path)
        document["table"] = protection_record(protection)
        parts += ["", protection_table(protection)]
    output.answer(document, *parts)


@contextmanager
def _on_metastore(choice: Choice, configuration: Configuration) -> Iterator[Any]:
    if not configuration.properties["uri"].startswith("thrift:"):
        raise CommandFailed(
            "--table is for catalogs on a metastore: in an SQL catalog every writer compares and sets",
            ExitCode.USAGE,
            "usage",
        )
    with opened(choice) as found:
        yield found


def _adopt_locks(output: Output, choice: Choice, arguments: dict[str, str], table: str | None, *, yes: bool) -> None:
    if output.as_json and not yes:
        raise CommandFailed("--json can't ask: give --yes as well", ExitCode.USAGE, "usage")
    configuration = configure(choice.catalog, arguments)
    if table is not None:
        _adopt_table(output, choice, configuration, table, yes=yes)
        return
    if configuration.properties["uri"].startswith("thrift:"):
        raise CommandFailed(
            "on a metastore each table declares its own lock manager: name it with --table", ExitCode.USAGE, "usage"
        )
    # What load_catalog would say against this catalog counts here too; that others declared another lock manager
    # is what we are here for.
    declared = "none"
    try:
        with opened(choice) as found:
            declared = f"{found.settings.lock_impl}, as these settings say"
    except ConfigError as error:
        if "declared" not in error.details and "declared_by" not in error.details:
            raise
        declared = str(error.details.get("declared", error.details.get("declared_by")))
    if not yes:
        _confirm_stopped(output, f"Catalog {choice.catalog!r} is declared to use: {declared}.")
    CoordinatedSqlCatalog.adopt_locks(choice.catalog, **arguments)
    output.answer(
        {"catalog": choice.catalog, "adopted": True, "was": declared},
        Text(f"catalog {choice.catalog}: the next process that opens it declares its lock manager"),
    )


def _adopt_table(output: Output, choice: Choice, configuration: Configuration, table: str, *, yes: bool) -> None:
    with _on_metastore(choice, configuration) as found:
        identifier = _table_resource(found, table).path
        declared = found.protection(identifier).declared
        if not yes:
            _confirm_stopped(output, f"Table {table} is declared to use: {declared or 'nothing yet'}.")
        found.adopt_locks(identifier)
    own = configuration.settings.lock_impl
    output.answer(
        {"catalog": choice.catalog, "table": table, "adopted": True, "was": declared, "is": own},
        Text(f"table {table}: its writers use the lock manager {own!r} from now on"),
    )


def _confirm_stopped(output: Output, declared: str) -> None:
    output.note(declared)
    if not typer.confirm("Have all processes that use it been stopped?", err=True):
        raise CommandFailed("nothing was changed", ExitCode.REFUSED, "not-confirmed")


# -- migrate -----------------------------------------------------------------------------------------------


app.add_typer(migrate)


# -- PyIceberg's own command line ----------------------------------------------------------------------------


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def pyiceberg(context: typer.Context) -> None:
    """PyIceberg's own command line, which opens `coord+` URIs here; `commit-coord pyiceberg --help` says more."""
    from pyiceberg.cli.console import run

    from commit_coord.catalog import open_coord_uris

    open_coord_uris()
    run(args=context.args, prog_name="commit-coord pyiceberg")


# -- local, demo and bench ---------------------------------------------------------------------------------


app.add_typer(local)


@app.command()
def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            help="An empty or new folder for the run. Without it, a temporary one, which is kept.", metavar="FOLDER"
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="`embedded`: one SQLite file. `hive`: a real Hive Metastore and a real ZooKeeper, started for it.",
            metavar="BACKEND",
        ),
    ] = "embedded",
    seed: Annotated[
        int, typer.Option(help="Of what is left to chance: who is killed, how long writers think.", metavar="N")
    ] = 1,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """A dozen concurrent PySpark and PyIceberg writers load real data, one is killed, and the result is proved.

    Exit code 0 only if every proof holds.
    """
    from commit_coord.demo import Backend, DemoFailed, FolderInUse, NotInstalled, run

    if backend not in tuple(Backend):
        raise CommandFailed(f"unknown backend {backend!r}: it is {' or '.join(Backend)}", ExitCode.USAGE, "usage")
    try:
        proved = run(folder=folder, backend=Backend(backend), seed=seed, as_json=as_json)
    except NotInstalled as error:
        raise CommandFailed(str(error), ExitCode.MISSING, "missing") from error
    except FolderInUse as error:
        raise CommandFailed(str(error), ExitCode.USAGE, "usage") from error
    except KeyboardInterrupt as error:
        raise CommandFailed("interrupted; every process was ended", ExitCode.INTERRUPTED, "interrupted") from error
    except DemoFailed as error:
        raise CommandFailed(str(error), ExitCode.FAILED, "writer-failed") from error
    if not proved:
        raise typer.Exit(ExitCode.REFUSED)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Measure commits, locks and rows a second; `commit-coord bench --help` lists what it takes."""
    try:
        run_bench = importlib.import_module("commit_coord.bench").main
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("commit_coord"):
            raise
        raise CommandFailed("this installation has no bench", ExitCode.MISSING, "missing") from error
    code = run_bench([argument for argument in context.args if argument != "--debug"])
    raise typer.Exit(int(code or 0))
