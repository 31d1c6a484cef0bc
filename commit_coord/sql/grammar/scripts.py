"""Several statements, one after the other: each ends with a ``;``, and may have several lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from commit_coord.errors import StatementError
from commit_coord.sql.grammar.tokens import semicolons, tokenize


def statements(lines: Iterable[str], *, whole: bool = False) -> Iterator[str]:
    """Yield each statement in *lines* as soon as its ``;`` is read, and at the end what has none.

    Args:
        lines: A script, or what was typed.
        whole: Refuse what has none: where a script was cut off, ``DELETE FROM t WHERE …`` may be ``DELETE FROM t``.

    Raises:
        StatementError: The last statement has none.
    """
    begun = ""
    for line in lines:
        begun += line if line.endswith("\n") else f"{line}\n"
        if ";" in line:
            *ended, begun = split(begun)
            yield from filter(says_something, ended)
    if says_something(begun):
        if whole:
            raise StatementError(
                "the last statement has no `;`, so the script may have been cut off, and it was not run; add the `;`, "
                "or close the quote or comment before it",
                position="end",
                statement=begun,
            )
        yield begun.strip()


def split(text: str) -> list[str]:
    """Return the statements that end in *text*, each with its ``;``, and then what is left, perhaps nothing."""
    places = semicolons(text)
    return [text[start:end].strip() for start, end in zip([0, *places], places, strict=False)] + [
        text[places[-1] :].lstrip() if places else text
    ]


def says_something(text: str) -> bool:
    """Return whether there is more in *text* than blanks, comments and a ``;``."""
    try:
        return bool([token for token in tokenize(text) if token.text != ";"])
    except StatementError:
        return True  # reading it says what is wrong
