"""The interactive shell of ``commit-coord sql``: history, completion, one statement after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from commit_coord.catalog.base import CoordinatedCatalog

_WORDS = (
    "ADD", "ALTER TABLE", "CHANGE", "COLUMNS", "CONCATENATE", "DATABASE", "DROP", "DROP FORCE LEASE", "DROP TABLE",
    "EXCLUSIVE", "EXPLAIN LOCKS", "EXTENDED", "FROM", "IF EXISTS", "INSERT INTO", "INSERT OVERWRITE", "LOCATION",
    "LOCK DATABASE", "LOCK TABLE", "PARTITION", "RENAME TO", "REPLACE COLUMNS", "SELECT", "SET FILEFORMAT", "SET SERDE",
    "SET SERDEPROPERTIES", "SET TBLPROPERTIES", "SHARED", "SHOW LEASE", "SHOW LOCKS", "TOUCH PARTITION",
    "UNLOCK DATABASE", "UNLOCK TABLE", "UNSET TBLPROPERTIES", "VALUES", "WHERE",
)  # fmt: skip

_HISTORY = Path("~/.commit_coord_history")


def statements(catalog: CoordinatedCatalog) -> Iterable[str]:
    """Yield what is typed, each up to its ``;`` or the end of its line, until Ctrl-D."""
    session: PromptSession[str] = PromptSession(
        history=FileHistory(str(_HISTORY.expanduser())), completer=_Names(lambda: names(catalog))
    )
    while True:
        try:
            text = session.prompt("commit-coord> ").strip()
        except KeyboardInterrupt:
            continue  # what was typed is given up, as in every shell
        except EOFError:
            return
        if text.rstrip(";").lower() in ("quit", "exit"):
            return
        if text:
            yield text


def names(catalog: CoordinatedCatalog) -> list[str]:
    """Return the tables of *catalog*."""
    return [".".join(table) for database in catalog.list_namespaces() for table in catalog.list_tables(database)]


class _Names(Completer):
    """Completes the words of statements and the names of tables, which are listed once."""

    def __init__(self, listed: Callable[[], list[str]]) -> None:
        self._listed = listed
        self._known: list[str] | None = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield what may stand here."""
        begun = document.get_word_before_cursor(WORD=True)
        if not begun:
            return
        if self._known is None:
            self._known = self._listed()
        for word in (*_WORDS, *self._known):
            if word.lower().startswith(begun.lower()):
                yield Completion(word, start_position=-len(begun))
