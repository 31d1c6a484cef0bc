"""Where the answer goes: a JSON document or a table on stdout; everything else on stderr."""

from __future__ import annotations

import sys
from typing import Annotated, Any, TextIO

import orjson
import typer
from rich.console import Console

from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.units import duration, moment

__all__ = ["DEBUG", "JSON", "Output", "confirmed", "duration", "json", "moment"]

JSON = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything else on stderr.")]
DEBUG = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_PIPE_WIDTH = 10_000


class Output:
    """The two streams of one command.

    Args:
        as_json: One JSON document on stdout and nothing else there.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console, self.notes = _console(sys.stdout), _console(sys.stderr)

    def answer(self, document: Any, *shown: Any) -> None:
        """Print *document* as JSON, or *shown* for people."""
        if self.as_json:
            typer.echo(json(document))
        else:
            for item in shown:
                self.console.print(item)

    def inform(self, text: str) -> None:
        """Say something that is no part of the answer."""
        self.notes.print(text, soft_wrap=True, markup=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command how it ends; rich would exit."""
        raise BrokenPipeError


def _console(stream: TextIO) -> Console:
    # Into a pipe or a file: as wide as it needs, lines are for grep.
    return _Console(file=stream, highlight=False, width=None if stream.isatty() else _PIPE_WIDTH)


def confirmed(question: str) -> bool:
    """Ask on stderr, and return whether the answer is yes.

    Raises:
        CommandFailed: No user can answer: the input is at its end.
    """
    try:
        return typer.confirm(question, err=True)
    except typer.Abort as error:
        if isinstance(error.__context__, EOFError):
            raise CommandFailed("the question was not answered: add --yes", ExitCode.USAGE, "usage") from None
        raise


def json(document: Any) -> str:
    """Return *document* as one line of JSON."""
    return orjson.dumps(document, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
