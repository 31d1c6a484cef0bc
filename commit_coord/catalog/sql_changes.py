"""A change in the database of a SQL catalog, in one transaction that is sent once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from commit_coord.protocol.commit import SwapResult

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Connected(Protocol):
    """Runs work on a connection of its own; see ``CoordinatedSqlCatalog``."""

    def __call__(self, work: Callable[[Connection], T]) -> T:
        """Return the result of *work*, which must have changed nothing if it raises."""
        ...


def send_once(connected: Connected, change: Callable[[Connection], bool], what: str) -> SwapResult:
    """Execute *change* and commit it.

    1. COMMIT succeeds.   2. The connection breaks, and to give it back fails.   3. *connected* tries again: the change
    would find itself in the database; or no connection is to be had.   So all that follows COMMIT is a lost reply.

    Args:
        connected: Runs work in the database, and tries it again if its connection breaks.
        change: Returns whether the database is as the change expects it. If it is not, the change is rolled back.
        what: What is changed, for the log.

    Raises:
        Exception: Nothing was committed, and never will be.
    """
    is_sent = False

    def work(connection: Connection) -> SwapResult:
        nonlocal is_sent
        if is_sent:
            return SwapResult.LOST_REPLY
        try:
            if not change(connection):
                return SwapResult.MOVED
        except IntegrityError:
            return SwapResult.MOVED
        is_sent = True
        try:
            connection.commit()
        except Exception:
            logger.warning("the reply to a change of %s was lost", what, exc_info=True)
            return SwapResult.LOST_REPLY
        return SwapResult.SWAPPED

    try:
        return connected(work)
    except Exception:  # also of the pool, which waits in vain for another connection
        if not is_sent:
            raise
        logger.warning("the connection of a change of %s broke after its COMMIT", what, exc_info=True)
        return SwapResult.LOST_REPLY
