"""What should not be, and errors that say so in words."""

from __future__ import annotations

import pyiceberg.exceptions

from commit_coord.errors import CommitCoordError


class Finding(Exception):
    """What should not be.

    Args:
        kind: Stable: findings of one kind probably have one cause.
        text: What was expected and what came.
    """

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text
        super().__init__(f"{kind}: {text}")


class Spoilt(Exception):
    """Nothing more can be checked in the table: above all, a late client of PyIceberg's broke it by itself."""


ALONE = "PyIceberg alone: "
"""What a finding's kind begins with where none of our code had a part in it."""

_WORDS = (
    CommitCoordError,
    ValueError,
    NotImplementedError,
    *(
        thing
        for thing in vars(pyiceberg.exceptions).values()
        if isinstance(thing, type) and issubclass(thing, Exception)
    ),
)


def in_words(error: Exception) -> bool:
    """Return whether *error* was raised on purpose, and says something."""
    return isinstance(error, _WORDS) and bool(str(error))
