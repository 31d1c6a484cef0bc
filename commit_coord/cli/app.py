"""The commands of ``commit-coord``. Each gathers, asks the layers below, prints, and ends with a documented code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from commit_coord.cli import commits, locks, programs, repairs, serving, settings, statements
from commit_coord.cli.failures import ExitCode, explain
from commit_coord.cli.local import local
from commit_coord.cli.migrate import migrate
from commit_coord.cli.output import json

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
    help="Show and release the locks of a catalog, show its commits and its settings, move its tables to another lock "
    "service, serve a catalog through Iceberg's REST protocol, run the demo and the bench.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PASSES_ALL: Any = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
}
"""A command that hands all of its arguments to another program."""

app.command()(locks.locks)
app.command()(locks.unlock)
app.command()(locks.reap)
app.command()(statements.sql)
app.command()(commits.commits)
app.command()(repairs.repair)
app.command()(repairs.orphans)
app.command()(settings.config)
app.add_typer(migrate)
app.command()(serving.serve)
app.command(**_PASSES_ALL)(programs.pyiceberg)
app.add_typer(local)
app.command()(programs.demo)
app.command(**_PASSES_ALL)(programs.bench)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    app(args=list(argv) if argv is not None else None, prog_name="commit-coord")
    raise AssertionError("typer exits")
