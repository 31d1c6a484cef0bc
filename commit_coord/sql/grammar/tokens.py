"""The words of a statement, read from left to right. Every error says where, and what was expected there."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from sqlglot import expressions as sql
from sqlglot.dialects.hive import Hive
from sqlglot.errors import SqlglotError
from sqlglot.parsers.hive import HiveParser
from sqlglot.tokenizer_core import Token, TokenType

from commit_coord.errors import StatementError


class Dialect(Hive):
    """Hive's words, all of them: sqlglot takes what follows SHOW or EXPLAIN for one text."""

    class Tokenizer(Hive.Tokenizer):
        """Hive's, with ``X'00ff'`` for bytes, as in Spark."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        HEX_STRINGS: ClassVar[list[str | tuple[str, str]]] = [("x'", "'"), ("X'", "'")]

    class Parser(HiveParser):
        """Hive's, whose casts keep the length of VARCHAR and CHAR."""

        def _parse_types(
            self,
            check_func: bool = False,
            schema: bool = True,
            allow_identifiers: bool = True,
            with_collation: bool = False,
        ) -> sql.Expr | None:
            return super()._parse_types(check_func, True, allow_identifiers, with_collation)


del Dialect.Tokenizer._COMMENTS["{#"]  # of a template language: what was left of it is an error, and no comment

CONSTANTS = frozenset({TokenType.STRING, TokenType.NUMBER})
"""Words that can't be names."""

QUOTED = frozenset({TokenType.STRING, TokenType.IDENTIFIER})
"""Words that mean nothing but themselves, whatever marks are in them."""


_NO_ITEM = frozenset(
    {
        TokenType.R_PAREN,
        TokenType.SEMICOLON,
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.LIMIT,
    }
)
"""What a comma has behind it where something was left out."""


def tokenize(text: str) -> list[Token]:
    """Return the words of *text*.

    Raises:
        StatementError: A quote or a comment has no end, a name has no letters, or a comma nothing behind it.
    """
    try:
        tokens = Dialect().tokenize(text)
    except SqlglotError:
        raise StatementError("invalid statement: a quote or a comment has no end", statement=text) from None
    _refuse_gaps(text, tokens)
    return tokens


def semicolons(text: str) -> list[int]:
    """Return where each ``;`` of *text* ends; those in quotes and comments do not count.

    There are none as long as a quote or a comment has no end.
    """
    try:
        tokens = Dialect().tokenize(text)
    except SqlglotError:
        return []
    return [token.end + 1 for token in tokens if token.token_type is TokenType.SEMICOLON]


def _refuse_gaps(text: str, tokens: list[Token]) -> None:
    """Refuse names without a letter, and commas with nothing between them: sqlglot reads ``(1, , 2)`` as ``(1, 2)``."""
    before = TokenType.SEMICOLON
    for token in tokens:
        kind = token.token_type
        if kind is TokenType.IDENTIFIER and not token.text:
            raise StatementError("a name must not be empty", position=position(text, token), statement=text)
        if (kind is TokenType.COMMA and before in {TokenType.COMMA, TokenType.L_PAREN}) or (
            kind in _NO_ITEM and before is TokenType.COMMA
        ):
            raise StatementError(
                f"expected a name or value, found {token.text!r}", position=position(text, token), statement=text
            )
        before = kind
    if before is TokenType.COMMA:
        raise StatementError("expected a name or value, found the end", position="end", statement=text)


def located(error: StatementError, text: str) -> StatementError:
    """Return *error* with the position in the statement *text* of what it is about, if that can be found."""
    if "position" in error.details:
        return error
    tokens = Dialect().tokenize(text)
    for key in ("value", "column", "partition", "name", "table", "database"):
        named = str(error.details.get(key, "")).rpartition(".")[2] if key == "table" else error.details.get(key, "")
        for token in tokens:
            if token.text.lower() == str(named).lower():
                error.details |= {"position": position(text, token), "statement": text}
                return error
    if clause := re.match(r"(?!SELECT\b)\w+", str(error.details.get("found", ""))):
        for token in tokens:
            if token.text.upper().split()[:1] == [clause[0].upper()]:
                error.details |= {"position": position(text, token), "statement": text}
                return error
    return error


def position(text: str, token: Token) -> str:
    """Return where *token* begins, for people."""
    before = text[: token.start]
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


class TokenReader:
    """Reads a statement's words.

    Args:
        text: The statement.
        tokens: Its words.
    """

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0
        """The number of the next word."""

    @property
    def next(self) -> Token | None:
        """The next word; None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def wrong(self, expected: str) -> StatementError:
        """Return what to raise when something else was expected here."""
        token = self.next
        found, where = "the end", "end"
        if token is not None:
            found, where = f"{token.text!r}", position(self.text, token)
        return StatementError(f"expected {expected}, found {found}", position=where, statement=self.text)

    def sees(self, *words: str) -> bool:
        """Return whether *words* come next."""
        coming = self.tokens[self.at : self.at + len(words)]
        return len(coming) == len(words) and all(
            token.token_type not in QUOTED and " ".join(token.text.upper().split()) == word
            for token, word in zip(coming, words, strict=True)
        )

    def skip(self, *words: str) -> bool:
        """Step over *words* if they come next; return whether they did."""
        if not self.sees(*words):
            return False
        self.at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Step over *words*, which must come next."""
        for word in words:
            if not self.skip(word):
                raise self.wrong(word)

    def end(self) -> None:
        """Return at the end of the statement."""
        if self.next is not None:
            raise self.wrong("the end")

    def one(self, expected: str, accepts: Callable[[Token], bool]) -> Token:
        """Step over the next word if *accepts* says so, and return it."""
        token = self.next
        if token is None or not accepts(token):
            raise self.wrong(expected)
        self.at += 1
        return token

    def identifier(self, what: str) -> str:
        """Return the next word as a name; any word may be one, as in Hive where it is quoted."""
        token = self.one(
            what,
            lambda token: (
                token.token_type is TokenType.IDENTIFIER
                or (token.token_type not in CONSTANTS and (token.text[0].isalpha() or token.text[0] == "_"))
            ),
        )
        return token.text

    def string(self, what: str) -> str:
        """Return the next word, which is quoted."""
        return self.one(what, lambda token: token.token_type is TokenType.STRING).text

    def whole_number(self, expected: str, *, least: int) -> int:
        """Return the next word as a number of *least* or more."""
        token = self.one(
            expected,
            lambda token: (
                token.token_type is TokenType.NUMBER and token.text.isdecimal() and least <= int(token.text) < 2**63
            ),
        )
        return int(token.text)
