"""Files in the folder of a table that nothing refers to."""

from __future__ import annotations

import os
from collections.abc import Iterable

from commit_coord.testing.table_files import metadata, observed
from commit_coord.testing.table_files.observed import Observed


def on_disk(head: Observed) -> set[str]:
    """Return all files in the folder of the table."""
    location = observed.local(head.raw["location"])
    return {os.path.join(folder, name) for folder, _, names in os.walk(location) for name in names}


class Leftovers:
    """What a table's folder has that the table has never referred to."""

    def __init__(self) -> None:
        self._reached: set[str] = set()
        self._known: set[str] = set()
        self._merges = False

    def refer(self, head: Observed) -> None:
        """Note what the table refers to now."""
        self._reached |= set(metadata.reachable(head))

    def allow(self, paths: Iterable[str]) -> None:
        """Note files that may be there: they were written for a later commit."""
        self._known |= set(paths)

    def new(self, head: Observed) -> set[str]:
        """Return files that nothing refers to, which no earlier call returned; from now on they are known."""
        found = on_disk(head) - self._reached
        self._merges |= head.raw.get("properties", {}).get("commit.manifest-merge.enabled") == "true"
        if self._merges:
            # PyIceberg leaves a manifest that it wrote and merged into another one before the commit.
            found = {path for path in found if not path.endswith(".avro")}
        new, self._known = found - self._known, self._known | found
        return new
