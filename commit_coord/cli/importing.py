"""Imports much at once, which is most of what a command does."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage in the block: an import makes hardly any, and the search takes a fifth of its time.

    What exists at the end of the block stays for good: later searches do not go through it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
