"""Writes ``docs/cli.md`` from the application: ``python -m commit_coord.cli.reference > docs/cli.md``."""

from __future__ import annotations

import inspect
import re
from typing import Any, cast

from typer.main import get_command

from commit_coord.cli.app import app
from commit_coord.cli.exit_codes import MEANINGS


def render() -> str:
    """Return the document."""
    group = cast(Any, get_command(app))
    lines = [
        "# Command line",
        "",
        "`commit-coord COMMAND --help` says the same in the terminal. This page is written by",
        "`python -m commit_coord.cli.reference`.",
        "",
        "Catalogs come from PyIceberg's ordinary configuration (`.pyiceberg.yaml`, `PYICEBERG_CATALOG__…`); what",
        "`--uri`, `--warehouse` and `--property` say overrides it. No command creates a database file, except `demo`,",
        "`bench` and `local up`, in folders of their own, and `pyiceberg`, which is PyIceberg's. In a database that is",
        "there, the first command that connects makes the tables that the catalog and its locks need.",
        "",
        "With `--json`, stdout contains exactly one JSON document; progress and errors go to stderr. A failed",
        'command prints `{"error": {"kind", "message", "exit_code"}}`. If a release by force fails halfway, `"freed"`',
        'in the same document lists what was released, and `"maybe_freed"` what may have been.',
        "",
        "`commit-coord --version` prints the version. `commit-coord --install-completion` has your shell (bash, zsh,",
        "fish) complete commands and options; `--show-completion` prints what it would install.",
        "",
        "Passwords in URLs, and the values of properties whose names suggest a secret, are shown as `***`.",
        "",
    ]
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        below = getattr(command, "commands", {"": command})  # a group's, else the command itself
        for last, each in below.items():
            lines += _command(f"{name} {last}".strip(), each)
    lines += [
        "## Exit codes",
        "",
        "| code | meaning |",
        "| --- | --- |",
        *(f"| {int(code)} | {text} |" for code, text in MEANINGS.items()),
        "",
        "An error is one line, `error: …`, and says what to do. Above an error in a statement is the line of the",
        "statement, with a caret under the place. `--debug` shows the traceback as well.",
        "What each error of the library means is in [errors.md](errors.md).",
    ]
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join(["commit-coord", name, *(p.metavar or p.name.upper() for p in arguments)])
    lines = [f"## `{usage}`", "", *inspect.cleandoc(command.help or "").splitlines(), ""]
    if arguments or options:
        lines += ["| | |", "| --- | --- |"]
        lines += [f"| `{_cell(p.metavar or p.name.upper())}` | {_cell(p.help)} |" for p in arguments]
        lines += [f"| {_spelling(p)} | {_cell(p.help)}{_default(p)} |" for p in options]
        lines.append("")
    return lines


def _spelling(option: Any) -> str:
    spellings = ", ".join(f"`{text}`" for text in sorted(option.opts, key=len, reverse=True))
    if option.is_flag:
        return spellings
    return f"{spellings} `{option.metavar or option.name.upper()}`"


def _default(option: Any) -> str:
    return "" if option.is_flag or option.default in (None, "", [], ()) else f" Default: {option.default}."


def _cell(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", r"\|")


if __name__ == "__main__":
    print(render(), end="")
