"""``commit-coord local``: real servers on this machine's loopback, up until they are stopped."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.fitting import FittingTable, ScreenColumn
from commit_coord.cli.output import DEBUG, JSON, Output
from commit_coord.errors import ConfigError
from commit_coord.local import ServerFailed, keeper
from commit_coord.local.hms import VERSIONS
from commit_coord.local.keeper import AlreadyUp, NotUp, StackState, Up
from commit_coord.local.stack import Wanted

local = typer.Typer(
    name="local",
    add_completion=False,
    help="A Hive Metastore, ZooKeeper and PostgreSQL on this machine, on loopback only, to try things out.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_FOLDER = Annotated[
    Path | None,
    typer.Option(
        help="The folder of their data. Without it, a temporary folder, which `down` removes.", metavar="FOLDER"
    ),
]


@local.command()
def up(
    hms: Annotated[
        str, typer.Option(help=f"The Hive Metastore's version: {', '.join(VERSIONS)}.", metavar="VERSION")
    ] = "2.3.10",
    zookeeper: Annotated[
        int, typer.Option(help="How many ZooKeeper servers: 0, 1, 3 or 5; with 0, HMS keeps the locks.", metavar="N")
    ] = 1,
    postgres: Annotated[
        bool, typer.Option("--postgres", help="Keep HMS's database in PostgreSQL instead of Derby.")
    ] = False,
    folder: _FOLDER = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Do not return; stop the servers on Ctrl-C or SIGTERM.")
    ] = False,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Start the servers, wait until they answer, and write a PyIceberg configuration that uses them.

    HMS 2.3.10 and ZooKeeper come from PySpark's jars, other versions from Maven. Each server listens on its usual
    port, or on another one if that is taken. The servers continue when this command returns; `down` stops them.
    """
    output = Output(as_json=as_json)
    place = _place(folder)
    wanted = Wanted(hms=hms, zookeeper=zookeeper, postgres=postgres)
    try:
        if foreground:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # while they start it ends us as Ctrl-C does
            with keeper.keep(place, wanted, temporary=folder is None, say=output.inform) as state:
                keeper.await_end(partial(_announce, output, state))
                output.inform("stopping")
        else:
            _show(output, keeper.up(place, wanted, temporary=folder is None, say=output.inform))
    except AlreadyUp as error:
        raise CommandFailed(str(error), ExitCode.REFUSED, "already-up") from error
    except ServerFailed as error:
        if error.log:
            output.inform(error.log)
        raise


@local.command()
def status(folder: _FOLDER = None, as_json: JSON = False, debug: DEBUG = False) -> None:
    """Show which servers are up, their addresses, and whether each answers.

    Exit code 0 if all of them answer, 1 if none is up, 3 if one does not answer.
    """
    output = Output(as_json=as_json)
    state = _found(folder)
    if not all(_show(output, state)):
        raise typer.Exit(ExitCode.FAILED)


@local.command()
def logs(
    server: Annotated[
        str | None, typer.Argument(metavar="[SERVER]", help="Only this server: hms, zookeeper, postgres.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many of the last lines.", min=1, metavar="N")] = 20,
    folder: _FOLDER = None,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Show the end of each server's log."""
    output = Output(as_json=as_json)
    state = _found(folder)
    chosen = [found for found in state.servers if server in (None, found.kind)]
    if not chosen:
        kinds = ", ".join(sorted({found.kind for found in state.servers}))
        raise CommandFailed(f"there is no {server!r}; up are: {kinds}", ExitCode.REFUSED, "not-found")
    ends = {found.log: Path(found.log).read_text(errors="replace").splitlines()[-lines:] for found in chosen}
    shown = [Text(line) for found in chosen for line in (f"== {found.name}: {found.log}", *ends[found.log])]
    records = [{"server": found.name, "log": found.log, "lines": ends[found.log]} for found in chosen]
    output.answer({"logs": records}, *shown)


@local.command()
def down(folder: _FOLDER = None, as_json: JSON = False, debug: DEBUG = False) -> None:
    """Stop the servers. Their data stays in FOLDER; a temporary folder is removed."""
    output = Output(as_json=as_json)
    state = _found(folder)
    keeper.down(Path(state.folder))
    rest = "nothing is left" if state.temporary else f"their data is in {state.folder}"
    output.answer(
        {"stopped": [server.name for server in state.servers], "folder": None if state.temporary else state.folder},
        Text(f"stopped {', '.join(server.name for server in state.servers)}; {rest}"),
    )


def _place(folder: Path | None) -> Path:
    if folder is None:
        return keeper.default_folder()
    if folder.exists() and not folder.is_dir():
        raise ConfigError("the folder is a file", folder=folder, accepted="--folder FOLDER")
    return folder.absolute()


def _found(folder: Path | None) -> StackState:
    try:
        return keeper.status(_place(folder))
    except NotUp as error:
        raise CommandFailed(str(error), ExitCode.REFUSED, "not-up") from error


def _announce(output: Output, state: StackState) -> None:
    _show(output, state)
    output.console.file.flush()


_SERVERS = (
    ScreenColumn("server", 0, least=12),
    ScreenColumn("address", 2),
    ScreenColumn("pid", 3, right=True),
    ScreenColumn("answers", 1),
    ScreenColumn("log", 0, least=20, folds=True),
)


def server_table(servers: Sequence[Up], healthy: Sequence[bool]) -> FittingTable:
    """Return a table of *servers*, and whether each answers."""
    shown = FittingTable(_SERVERS)
    for server, answers in zip(servers, healthy, strict=True):
        shown.add_row(server.name, server.address, str(server.pid), "yes" if answers else "NO", server.log)
    return shown


def _show(output: Output, state: StackState) -> list[bool]:
    """Print what is up; return of each server whether it answers."""
    healthy = [server.healthy() for server in state.servers]
    shown = server_table(state.servers, healthy)
    use = f"export PYICEBERG_HOME={shlex.quote(state.folder)}"
    records: list[dict[str, Any]] = [
        {"server": server.name, "kind": server.kind, "address": server.address, "pid": server.pid, "log": server.log}
        | {"healthy": answers}
        for server, answers in zip(state.servers, healthy, strict=True)
    ]
    document = {
        "folder": state.folder,
        "temporary": state.temporary,
        "servers": records,
        "configuration": state.configuration,
        "use": use,
        "properties": state.properties,
    }
    output.answer(
        document,
        shown,
        "",
        Text(f"{state.configuration}:"),
        Text(Path(state.configuration).read_text().rstrip()),
        "",
        Text(f"To use it:  {use}"),
    )
    return healthy
