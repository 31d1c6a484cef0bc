"""Whether a change may have been carried out in spite of an error. Only where the error came tells that.

1. We send a change.   2. A signal handler raises an error, of any type and at any line: a job's time limit is over.
3. The change is carried out.   So the type of an error proves nothing; a refusal is proven by what got the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from commit_coord.errors import CommitError, CommitStateUnknown


class _Thread(threading.local):
    is_open = False


_THREAD = _Thread()


def is_open() -> bool:
    """Return whether a change of this thread was sent, and no answer has proven that it never will be executed."""
    return _THREAD.is_open


def opens() -> None:
    """Note that a change is sent next."""
    _THREAD.is_open = True


def ends() -> None:
    """Note that what was sent was not executed and never will be."""
    _THREAD.is_open = False


@contextmanager
def sending(*proofs: type[Exception]) -> Iterator[None]:
    """Send a change in the block. It was not executed, and never will be, if the block raises one of *proofs*.

    That proves nothing of what was sent before it, and may still be carried out.
    """
    before = is_open()
    opens()
    try:
        yield
    except proofs:
        _THREAD.is_open = before
        raise


@contextmanager
def watching() -> Iterator[None]:
    """Begin without doubt; what was in doubt before the block is in doubt after it."""
    before = _THREAD.is_open
    ends()
    try:
        yield
    finally:
        _THREAD.is_open = before


@contextmanager
def deciding(what: str, **facts: str) -> Iterator[None]:
    """Raise ``CommitStateUnknown`` for an error in the block that leaves it open whether *what*."""
    with watching():
        try:
            yield
        except CommitError:
            raise
        except Exception as error:
            if not is_open():
                raise
            raise CommitStateUnknown(
                f"an unexpected error came after the change was sent, so it is not known whether {what}; look before "
                "you repeat the call",
                **facts,
            ) from error
