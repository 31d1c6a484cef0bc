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
    "ADD", "ALTER TABLE", "CASCADE", "CHANGE", "COLUMNS", "CONCATENATE", "CREATE BRANCH", "CREATE DATABASE",
    "CREATE TABLE", "CREATE TAG", "DELETE FROM", "DROP", "DROP BRANCH", "DROP DATABASE", "DROP FORCE LEASE",
    "DROP TABLE", "DROP TAG", "EXCLUSIVE", "EXECUTE EXPIRE_SNAPSHOTS", "EXECUTE ROLLBACK", "EXPLAIN LOCKS",
    "EXTENDED", "FROM", "IF EXISTS", "IF NOT EXISTS", "INSERT INTO", "INSERT OVERWRITE", "LOCATION", "LOCK DATABASE",
    "LOCK TABLE", "PARTITION", "PARTITIONED BY", "RENAME TO", "REPLACE COLUMNS", "RETAIN", "SELECT", "SET FILEFORMAT",
    "SET PARTITION SPEC", "SET SERDE", "SET SERDEPROPERTIES", "SET TBLPROPERTIES", "SHARED", "SHOW LEASE",
    "SHOW LOCKS", "STORED AS", "TBLPROPERTIES", "TOUCH PARTITION", "TRUNCATE TABLE", "UNLOCK DATABASE",
    "UNLOCK TABLE", "UNSET TBLPROPERTIES", "UPDATE", "VALUES", "WHERE",
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
