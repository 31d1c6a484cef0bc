"""Every metadata file that lands is held against what must be so in any table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commit_coord.testing.table_files.metadata import faults
from commit_coord.testing.table_files.observed import Files, Observed

Faults = Callable[[Observed, Observed | None], Iterator[str]]


class Landed:
    """The metadata files of one table, in their order.

    Args:
        look: Yields what is wrong in one, given the one before.
    """

    def __init__(self, look: Faults = faults) -> None:
        self._look = look
        self._files = Files()
        self._last: Observed | None = None

    def check(self, location: str) -> None:
        """Raise AssertionError if a file is wrong that landed since the last call, up to the one at *location*."""
        last = self._last.location if self._last is not None else None
        if location == last:
            return
        log = Observed(location, self._files).raw.get("metadata-log", [])
        between = [entry["metadata-file"] for entry in log]
        if last in between:
            between = between[between.index(last) + 1 :]
        for each in (*between, location):
            now = Observed(each, self._files)
            found = list(self._look(now, self._last))
            assert not found, (each, found)
            self._last = now
