"""Reports which locks were freed, and which ones may have been, when a forced release fails halfway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from commit_coord.errors import LockRefused, PartlyFreed
from commit_coord.locks.base import Interrupted
from commit_coord.model import LockEntry

_NAMED = 3
"""Maximum number of requests in the message; the error has the locks of all requests."""


class NotRemoved(Exception):
    """The request is there, and is not to be removed any more."""


class FreedLocks(list[LockEntry]):
    """The locks that a block has freed by force."""

    def __init__(self) -> None:
        super().__init__()
        self.maybe: list[LockEntry] = []
        """Locks of which it is not known whether they are free, or will be soon."""

    def free(
        self,
        entries: Sequence[LockEntry],
        remove: Callable[[], bool],
        *,
        repeat: Callable[[Callable[[], bool]], bool] | None = None,
        unknown: tuple[type[Exception], ...] = (Interrupted,),
    ) -> bool:
        """Remove one request, and add its *entries* if it is gone; return whether it is.

        A request that is gone after a lost reply counts as freed. Its owner may have released it at that moment, but
        otherwise a forced release that took place would never be reported.

        Args:
            entries: The locks of the request.
            remove: Removes it; returns False if it was not there, or was not to be removed; raises ``NotRemoved`` if it
                is there, although an earlier call may have been carried out.
            repeat: Repeats *remove* while it is interrupted, where its False says that the request is gone; None for
                one call.
            unknown: Errors after which the request may be gone. After another one it is there.
        """
        in_doubt = False

        def attempt() -> bool:
            nonlocal in_doubt
            try:
                return remove()
            except unknown:
                in_doubt = True
                raise

        try:
            is_gone = (attempt() if repeat is None else repeat(attempt)) or in_doubt
        except NotRemoved:
            return False
        except BaseException as error:
            if in_doubt or not isinstance(error, Exception):
                self.maybe.extend(entries)
            raise
        if is_gone:
            self.extend(entries)
        return is_gone


@contextmanager
def telling_what_was_freed() -> Iterator[FreedLocks]:
    """Yield a list to which the block adds the locks that it has freed.

    Raises:
        PartlyFreed: The block failed after something had been freed, or may have been; then the list is complete.
    """
    freed = FreedLocks()
    try:
        yield freed
    except BaseException as error:
        freed.extend(getattr(error, "freed", ()))
        freed.maybe.extend(getattr(error, "maybe_freed", ()))
        if not isinstance(error, Exception):
            # An interrupt stays what it is, and has what it met, for the block around this one.
            vars(error).update(freed=tuple(freed), maybe_freed=tuple(freed.maybe))
            raise
        cause = (error.__cause__ or error) if isinstance(error, PartlyFreed) else error
        if not freed and not freed.maybe:
            raise
        raise PartlyFreed(
            _what_happened(freed, cause),
            freed=freed,
            maybe_freed=freed.maybe,
            requests=_ids(freed),
            unknown=_ids(freed.maybe),
            cause=str(cause) or type(cause).__name__,
        ) from cause


def _what_happened(freed: FreedLocks, cause: BaseException) -> str:
    if freed.maybe:
        return "the lock service failed, and it is not known whether some locks were freed"
    if isinstance(cause, LockRefused):
        return "a part of the locks was freed, and the release of another one was refused"
    return "the lock service failed after a part of the locks had been freed"


def _ids(entries: Iterable[LockEntry]) -> str | None:
    ids = list(dict.fromkeys(entry.request_id for entry in entries))
    more = [f"{len(ids) - _NAMED:,} more"] if len(ids) > _NAMED else []
    return ", ".join([*ids[:_NAMED], *more]) or None
