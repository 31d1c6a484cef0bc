"""Tells what was released by force when that ends halfway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from commit_coord.errors import PartlyFreed
from commit_coord.model import LockEntry

_NAMED = 3
"""Requests that the error names; it has the locks of all."""


@contextmanager
def telling_what_was_freed() -> Iterator[list[LockEntry]]:
    """Give a list, to which the block adds what it has freed.

    Raises:
        PartlyFreed: The block failed after something had been freed; then the list is complete.
    """
    freed: list[LockEntry] = []
    try:
        yield freed
    except Exception as error:
        cause: BaseException = error
        if isinstance(error, PartlyFreed):
            freed += error.freed
            cause = error.__cause__ or error
        if not freed:
            raise
        ids = list(dict.fromkeys(entry.request_id for entry in freed))
        more = [f"{len(ids) - _NAMED:,} more"] if len(ids) > _NAMED else []
        raise PartlyFreed(
            "the lock service failed after a part of the locks had been freed",
            freed=freed,
            requests=", ".join([*ids[:_NAMED], *more]),
            cause=str(cause) or type(cause).__name__,
        ) from cause
