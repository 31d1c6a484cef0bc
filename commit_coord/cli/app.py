"""The commands of ``commit-coord``. Each gathers, asks the layers below, prints, and ends with a documented code."""

from __future__ import annotations

import io
import os
import select
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.importing import importing
from commit_coord.cli.logs import warnings_in_one_line, warnings_with_tracebacks
from commit_coord.cli.output import json
from commit_coord.model import is_encodable
from commit_coord.version import __version__

_UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""typer keeps a click of its own since 0.16 or uses the installed one; either way this is its ``UsageError``."""


_PASSES_ALL: Any = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
}
"""A command that hands all of its arguments to another program."""


@dataclass(frozen=True, slots=True)
class _Command:
    """Where a command is, so that a list of the commands imports none of them.

    Args:
        place: Its module and function, or typer's object with the commands below it.
        summary: A line for the list.
        options: How typer makes it.
    """

    place: str
    summary: str
    options: Mapping[str, Any] = field(default_factory=dict)


_COMMANDS: Mapping[str, _Command] = MappingProxyType(
    {
        "locks": _Command("locks:locks", "List locks: who holds what, who waits, and since when."),
        "unlock": _Command("locks:unlock", "Release locks by force."),
        "reap": _Command("locks:reap", "Release the locks of owners that have ended."),
        "sql": _Command("statements:sql", "Run statements on tables and their locks."),
        "commits": _Command("commits:commits", "Show the history of a table."),
        "repair": _Command("repairs:repair", "Restore commits that another writer has overwritten."),
        "orphans": _Command("repairs:orphans", "List or delete files that no snapshot needs."),
        "config": _Command("settings:config", "Show every property, its value and its source."),
        "migrate": _Command("migrate:migrate", "Move tables from the metastore's locks to ZooKeeper."),
        "serve": _Command("serving:serve", "Serve catalogs to every engine, through Iceberg's REST protocol."),
        "ui": _Command("serving:ui", "Show locks, tables and requests in a browser."),
        "pyiceberg": _Command("programs:pyiceberg", "Run PyIceberg's own command line.", _PASSES_ALL),
        "local": _Command("local:local", "Run a metastore, ZooKeeper and PostgreSQL on this machine."),
        "demo": _Command("programs:demo", "Load real data with a dozen writers at once, and prove it right."),
        "bench": _Command("programs:bench", "Measure commits, locks and rows.", _PASSES_ALL),
    }
)


_OWN_LOGS = ("serve", "pyiceberg", "demo", "bench")
"""Commands that log in their own way: a server's log has whole tracebacks."""


@dataclass(frozen=True, slots=True)
class _Completion:
    """A word that completes a line; typer's own class is click's or typer's, as its version goes.

    Args:
        value: The word.
        help: The description that shells show.
        type: That it is no file.
    """

    value: str
    help: str
    type: str = "plain"


@cache
def _loaded(name: str) -> Any:
    """Return the command *name*, as typer makes it."""
    module, _, attribute = _COMMANDS[name].place.partition(":")
    try:
        with importing():
            found = getattr(import_module(f"commit_coord.cli.{module}"), attribute)
    except ImportError:
        raise
    except Exception:
        from commit_coord.config import known_catalogs

        known_catalogs()  # PyIceberg reads its configuration when it is imported; this says what is wrong with it
        raise
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, **_COMMANDS[name].options)(found)
        found = alone
    command = get_command(found)
    command.name = name
    return command


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
        own_logs = "--debug" in given or (given and given[0] in _OWN_LOGS)
        logs = warnings_with_tracebacks() if own_logs else warnings_in_one_line()
        try:
            if unreadable := next((text for text in given if not is_encodable(text)), None):
                raise CommandFailed(
                    f"the argument {unreadable!r} is not UTF-8; check the encoding of the terminal or the script",
                    ExitCode.USAGE,
                    "usage",
                )
            with logs:
                code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
            sys.stdout.flush()  # a full disk or a closed pipe is an error of the command, not of the interpreter's end
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every error becomes a line and a code
            code = _report(error, given)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else ExitCode.OK)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer would end at once where these come to its own ``main``."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None
        except BrokenPipeError as error:
            if not _is_broken(sys.stdout):  # it is another one, as of a lock service
                raise CommandFailed(
                    "a connection broke; check that the services of the catalog are up, and before you repeat the "
                    "command, check what it has already done",
                    ExitCode.FAILED,
                    "input-output",
                ) from error
            _lose_output()  # who reads, as `head`, has seen enough
            return ExitCode.OK

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that *args* begin with, or say which one may have been meant."""
        if args and args[0] not in _COMMANDS and (close := get_close_matches(args[0], _COMMANDS, n=1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, which is imported now."""
        return _loaded(cmd_name) if cmd_name in _COMMANDS else None

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the names that begin with *incomplete*. No command is imported: a shell asks with each TAB."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            _Completion(name, command.summary) for name, command in _COMMANDS.items() if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in _COMMANDS.items()])


def _report(error: BaseException, given: Sequence[str]) -> ExitCode:
    if "--debug" in given:
        traceback.print_exception(error)
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the whole help
        typer.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
        return ExitCode.USAGE
    done: dict[str, Any] = {}
    if isinstance(error, typer.Abort | KeyboardInterrupt):
        code, kind, message, shown = ExitCode.INTERRUPTED, "interrupted", "interrupted", "interrupted"
    elif isinstance(error, _UsageError):
        code, kind = ExitCode.USAGE, "usage"
        text = error.format_message().rstrip(".")  # type: ignore[attr-defined]
        unit = getattr(getattr(error, "param", None), "metavar", None)  # such as SECONDS
        hint = f"expected {unit}; --help" if unit and unit not in text else "--help"
        message = f"{text[:1].lower()}{text[1:]}{'' if text.endswith('?') else ';'} {hint} shows what there is"
        shown = f"error: {message}"
    else:
        from commit_coord.cli.failures import explain  # it knows the errors of PyIceberg and SQLAlchemy

        failure = explain(error)
        code, kind, message, shown = failure.code, failure.kind, failure.message, failure.shown
        if failure.freed or failure.maybe_freed:
            from commit_coord.cli.views import lock_record

            done["freed"] = [lock_record(entry) for entry in failure.freed]
            done["maybe_freed"] = [lock_record(entry) for entry in failure.maybe_freed]
    if sys.stdout is not None and _is_broken(sys.stdout):
        _lose_output()
        if isinstance(error, BrokenPipeError):
            return ExitCode.OK
        given = ()
    typer.echo(shown, err=True)
    if "--json" in given:
        typer.echo(json({"error": {"kind": kind, "message": message, "exit_code": int(code)}, **done}))
    return code


def _is_broken(stream: TextIO) -> bool:
    """Return whether *stream* can't be written to: what is left for it does not fit, or its reader has gone."""
    try:
        stream.flush()
        # A write that fails may leave nothing to be flushed.
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except io.UnsupportedOperation:  # it is no file of the system
        return False
    except OSError:
        return True


def _lose_output() -> None:
    """Lose what is left for stdout, which can't be written to: the interpreter would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="commit-coord",
    cls=_Commands,
    help="Show and release the locks of a catalog, show its commits and its settings, move its tables to another lock "
    "service, serve a catalog through Iceberg's REST protocol, run the demo and the bench.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"commit-coord {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Have typer make a group: its commands are found by :class:`_Commands`."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    app(args=list(argv) if argv is not None else None, prog_name="commit-coord")
    raise AssertionError("typer exits")
