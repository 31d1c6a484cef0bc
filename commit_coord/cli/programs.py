"""Programs that ``commit-coord`` starts: PyIceberg's command line, the demo and the bench."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated

import typer

from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.output import DEBUG, JSON


def pyiceberg(context: typer.Context) -> None:
    """Run PyIceberg's own command line, which then opens `coord+` URIs; see `commit-coord pyiceberg --help`."""
    from commit_coord.config import known_catalogs

    known_catalogs()  # PyIceberg reads its configuration when it is imported; this says what is wrong with it
    from pyiceberg.cli.console import run

    from commit_coord.catalog import open_coord_uris

    open_coord_uris()
    run(args=context.args, prog_name="commit-coord pyiceberg")


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
            help="`embedded`: one SQLite file. `hive`: a real Hive Metastore and a real ZooKeeper, started for it. "
            "`rest`: PySpark writes with SQL through `commit-coord serve`, on a real Hive Metastore.",
            metavar="BACKEND",
        ),
    ] = "embedded",
    seed: Annotated[
        int,
        typer.Option(help="Seed of the random choices: which writer is killed, how long writers pause.", metavar="N"),
    ] = 1,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Load real data with a dozen concurrent PySpark and PyIceberg writers, kill one, and prove the result.

    Exit code 0 only if every proof holds.
    """
    from commit_coord.demo import Backend, DemoFailed, FolderInUse, NotInstalled, run

    if backend not in tuple(Backend):
        raise CommandFailed(f"unknown backend {backend!r}; choose {' or '.join(Backend)}", ExitCode.USAGE, "usage")
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


def bench(context: typer.Context) -> None:
    """Measure commits, locks and rows for each second; `commit-coord bench --help` lists the options."""
    try:
        run_bench = importlib.import_module("commit_coord.bench").main
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("commit_coord"):
            raise
        raise CommandFailed("this installation has no bench", ExitCode.MISSING, "missing") from error
    code = run_bench([argument for argument in context.args if argument != "--debug"])
    raise typer.Exit(int(code or 0))
