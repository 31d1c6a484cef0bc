"""Queries and other text that sqlglot reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import sqlglot
from sqlglot import expressions as sql
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from commit_coord.errors import StatementError
from commit_coord.sql.clauses import unknown
from commit_coord.sql.grammar.tokens import CONSTANTS, Dialect, TokenReader, position


def parsed(reader: TokenReader, kinds: tuple[type[sql.Expr], ...], what: str) -> sql.Expr:
    """Return what is left as sqlglot reads it, one of *kinds*."""
    first = reader.next
    assert first is not None
    ends = [token for token in reader.tokens if token.token_type is TokenType.SEMICOLON]
    end = ends[0].start if ends else len(reader.text)
    # What comes before is blanked out, so that sqlglot counts lines and columns as we do.
    before = "".join(mark if mark == "\n" else " " for mark in reader.text[: first.start])
    try:
        found = sqlglot.parse_one(before + reader.text[first.start : end], dialect=Dialect)
    except ParseError as error:
        raise _invalid(what, error.errors[0], reader.text) from None
    except IndexError:
        raise StatementError(f"invalid {what}: MAP takes pairs", statement=reader.text) from None
    except SqlglotError:
        raise StatementError(f"invalid {what}", statement=reader.text) from None
    if not isinstance(found, kinds):
        raise reader.wrong(f"a {what}")
    begun, reader.at = (
        reader.at,
        next((i for i, token in enumerate(reader.tokens) if token in ends), len(reader.tokens)),
    )
    _refuse_what_is_lost(reader, reader.tokens[begun : reader.at], found)
    return found


def _invalid(what: str, wrong: Mapping[str, Any], text: str) -> StatementError:
    """Return the error about the place that sqlglot calls *wrong*; its words name its own classes and tokens."""
    found = wrong["highlight"] or ""
    description = str(wrong["description"])
    if description.startswith("Required keyword"):
        reason = f"something is missing after {found!r}"
    elif expected := re.match(r"(?:Expected|Expecting) (.+?)(?: but got <Token.*)?$", description, re.DOTALL):
        reason = f"expected {expected[1]}, found {found!r}"
    else:
        reason = f"unexpected {found!r}"
    place = f"line {wrong['line']}, column {(wrong['col'] or 1) - len(found) + 1}"
    return StatementError(f"invalid {what}: {reason}", position=place, statement=text)


def _refuse_what_is_lost(reader: TokenReader, tokens: list[Token], found: sql.Expr) -> None:
    """Refuse a constant that sqlglot read over, such as the last one of ``NAMED_STRUCT('a', 1, 'b')``."""
    kept = Counter(str(node.this) for node in found.find_all(sql.Literal, sql.Identifier))
    for before, token in pairwise([tokens[0], *tokens]):
        if token.token_type not in CONSTANTS or before.token_type is TokenType.DOT:  # .5 is two words.
            continue
        kept[token.text] -= 1
        if kept[token.text] >= 0:
            continue
        if unknown(found) is not None:
            return  # It is refused anyhow.
        raise StatementError(
            f"unexpected {token.text!r}",
            position=position(reader.text, token),
            statement=reader.text,
        )
