"""``commit-coord sql``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from commit_coord.cli.catalogs import Choice, opened
from commit_coord.cli.exit_codes import CommandFailed, EndedBySignal, ExitCode
from commit_coord.cli.failures import explain
from commit_coord.cli.fitting import WholeTable
from commit_coord.cli.logs import one_line
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE
from commit_coord.cli.output import DEBUG, JSON, Output

if TYPE_CHECKING:
    from commit_coord.sql import Answer, Session


def sql(
    statement: Annotated[
        str | None, typer.Argument(help="SELECT, SHOW LOCKS, ALTER TABLE …; without one, a shell opens.")
    ] = None,
    database: Annotated[
        str, typer.Option("--database", "-d", help="The database of tables that are named without one.")
    ] = "default",
    all_columns: Annotated[
        bool,
        typer.Option(
            "--all-columns", help="SHOW LOCKS with thirteen columns, which also show which request waits for which."
        ),
    ] = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Run Hive's statements on the tables and their locks, or open a shell. `commit-coord sql help` lists them.

    In a shell and in a pipe, each statement ends with a `;` and may have several lines. A script ends with its first
    error; a last statement without `;` is one, because the script may have been cut off. On a terminal the answer is a
    table; in a pipe it is what Hive prints, separated by tabs.
    """
    from commit_coord.sql import Session
    from commit_coord.sql.grammar import statements

    output = Output(as_json=as_json)
    if statement is None and as_json:
        raise CommandFailed("--json takes one statement", ExitCode.USAGE, "usage")
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        session = Session(found, database=database, all_columns=all_columns)
        if statement is not None:
            texts = list(statements([statement])) or [statement]
            if as_json and len(texts) > 1:
                raise CommandFailed("--json takes one statement", ExitCode.USAGE, "usage")
            _run(output, session, iter(texts))
            return
        if not sys.stdin.isatty():
            _run(output, session, statements(sys.stdin, whole=True))
            return
        from commit_coord.cli.shell import typed

        for text in typed(found):
            try:
                _written(output, text, session.run(text))
            except Exception as error:  # noqa: BLE001 - one statement's error does not end the shell
                output.inform(explain(error).shown)
            except EndedBySignal:
                raise
            except KeyboardInterrupt:
                output.inform("interrupted")


def _run(output: Output, session: Session, texts: Iterator[str]) -> None:
    """Run a script, which ends with its first error.

    Raises:
        CommandFailed: Nobody reads its answers any more, and statements are left.
    """
    for text in texts:
        answer = session.run(text)
        try:
            _written(output, text, answer)
        except BrokenPipeError:
            if (left := next(texts, None)) is None:
                raise
            raise CommandFailed(
                f"the output was closed, so the script ended before {one_line(left)!r}; "
                "send the output to a file to run all of it",
                ExitCode.FAILED,
                "input-output",
            ) from None


def _written(output: Output, text: str, answer: Answer) -> None:
    """Write the *answer* of the statement *text*.

    Raises:
        BrokenPipeError: Nobody reads it.
        CommandFailed: It can't be written. The user must not take that for an error of the statement.
    """
    try:
        _answer(output, answer)
    except BrokenPipeError:
        raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandFailed(
            f"{one_line(text)!r} was carried out, and its answer could not be written: {reason.lower()}; do not repeat "
            "it, and continue a script with the statement after it",
            ExitCode.FAILED,
            "input-output",
        ) from error


def _answer(output: Output, answer: Answer) -> None:
    if output.as_json:
        records = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        output.answer({"columns": list(answer.columns), "rows": records})
    elif output.console.is_terminal and len(answer.columns) > 1:
        texts = [[Text("NULL" if value is None else str(value)) for value in row] for row in answer.rows]
        output.console.print(WholeTable(answer.columns, texts))
    else:
        for line in answer.lines:
            typer.echo(line)  # rich would make blanks of the tabs
