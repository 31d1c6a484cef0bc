"""The interactive shell of ``commit-coord sql``: history, completion, statements of several lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.cli.exit_codes import EndedBySignal
from commit_coord.sql.grammar import says_something, split, statements

_WORDS = (
    "ADD", "ALTER TABLE", "CASCADE", "CHANGE", "COLUMNS", "CONCATENATE", "CREATE BRANCH", "CREATE DATABASE",
    "CREATE TABLE", "CREATE TAG", "DELETE FROM", "DESCRIBE", "DROP", "DROP BRANCH", "DROP DATABASE",
    "DROP FORCE LEASE", "DROP TABLE", "DROP TAG", "EXCLUSIVE", "EXECUTE EXPIRE_SNAPSHOTS", "EXECUTE ROLLBACK",
    "EXPLAIN LOCKS", "EXTENDED", "FROM", "HELP", "IF EXISTS", "IF NOT EXISTS", "INSERT INTO", "INSERT OVERWRITE",
    "LOCATION", "LOCK DATABASE", "LOCK TABLE", "PARTITION", "PARTITIONED BY", "RENAME TO", "REPLACE COLUMNS",
    "RETAIN", "SELECT", "SET FILEFORMAT", "SET PARTITION SPEC", "SET SERDE", "SET SERDEPROPERTIES",
    "SET TBLPROPERTIES", "SHARED", "SHOW DATABASES", "SHOW LEASE", "SHOW LOCKS", "SHOW TABLES", "STORED AS",
    "TBLPROPERTIES", "TOUCH PARTITION", "TRUNCATE TABLE", "UNLOCK DATABASE", "UNLOCK TABLE", "UNSET TBLPROPERTIES",
    "UPDATE", "VALUES", "WHERE",
)  # fmt: skip

_HISTORY = Path("~/.commit_coord_history")


_AT_ONCE = ("help", "quit", "exit")
"""Words that need no ``;``."""


def typed(catalog: CoordinatedCatalog) -> Iterable[str]:
    """Yield the statements that are typed, each up to its ``;``, until Ctrl-D."""
    session: PromptSession[str] = PromptSession(
        history=_history(_HISTORY.expanduser()),
        completer=_Names(lambda: names(catalog)),
        multiline=True,
        key_bindings=_enter(),
        prompt_continuation=lambda width, line, wraps: "> ".rjust(width),
    )
    while True:
        try:
            text = session.prompt("commit-coord> ")
        except EndedBySignal:
            raise
        except KeyboardInterrupt:
            continue  # what was typed is given up, as in every shell
        except EOFError:
            return
        for statement in statements([text]):
            if statement.rstrip(";").strip().lower() in ("quit", "exit"):
                return
            yield statement


def _history(file: Path) -> History:
    """Return the history in *file*; where that can't be written, one that ends with the shell."""
    writable = os.access(file if file.exists() else file.parent, os.W_OK)
    return FileHistory(str(file)) if writable else InMemoryHistory()


def is_complete(text: str) -> bool:
    """Return whether Enter ends *text*: nothing but comments is left behind its last ``;``, or it needs none."""
    return text.strip().lower() in _AT_ONCE or not says_something(split(text)[-1])


def _enter() -> KeyBindings:
    """Return what the Enter key does: it ends a complete statement, else it begins a new line."""
    keys = KeyBindings()

    @keys.add("enter")
    def pressed(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


def names(catalog: CoordinatedCatalog) -> list[str]:
    """Return the tables of *catalog*."""
    return [".".join(table) for database in catalog.list_namespaces() for table in catalog.list_tables(database)]


class _Names(Completer):
    """Completes the words of statements and the names of tables, which are listed once."""

    def __init__(self, listed: Callable[[], list[str]]) -> None:
        self._listed = listed
        self._known: list[str] | None = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield what the user may type here."""
        begun = document.get_word_before_cursor(WORD=True)
        if not begun:
            return
        if self._known is None:
            self._known = []
            with suppress(Exception):  # a shell without completion works, too
                self._known = self._listed()
        for word in (*_WORDS, *self._known):
            if word.lower().startswith(begun.lower()):
                yield Completion(word, start_position=-len(begun))
