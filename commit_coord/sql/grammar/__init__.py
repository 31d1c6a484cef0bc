"""Statements from text: sqlglot's Hive dialect for queries and types, and what it lacks of Hive's locks and tables.

``scripts`` divides a text into statements; ``statement`` chooses by the first words; ``locks``, ``tables``, ``alter``
and ``rows`` read what follows, from the ``parts`` that they share, word by word (``tokens``); ``expressions`` hands
queries to sqlglot.
"""

from commit_coord.sql.grammar.scripts import says_something, split, statements
from commit_coord.sql.grammar.statement import parse
from commit_coord.sql.grammar.tokens import located

__all__ = ["located", "parse", "says_something", "split", "statements"]
