"""The capabilities of the servers of a metastore."""

from __future__ import annotations

import logging
from collections.abc import Callable

from commit_coord.hms.probe import Capabilities, CompareAndSet

logger = logging.getLogger(__name__)


class Servers:
    """The servers of one metastore.

    Args:
        ask: Returns what the server in use can do; see :meth:`~commit_coord.hms.probe.Probe.capabilities`.
    """

    def __init__(self, ask: Callable[[], Capabilities]) -> None:
        self._ask = ask
        self._warned: set[str] = set()

    def capabilities(self) -> Capabilities:
        """Return what the server in use can do; warn once for each server that can't compare and set.

        Raises:
            MetastoreUnavailable: No server could be asked.
        """
        found = self._ask()
        if found.compare_and_set is not CompareAndSet.HONOURED and found.server not in self._warned:
            self._warned.add(found.server)
            logger.warning(
                "the metastore %s (version %s) can't compare and set (%s): commits hold its lock and check the "
                "table before and after; a writer that stalls past its lock can still overwrite one. "
                "HIVE-26882 and HIVE-28121 mend it",
                found.server,
                found.version,
                found.compare_and_set,
            )
        return found

    def compare_and_set(self) -> bool:
        """Return whether the server in use honours the condition of a swap.

        Raises:
            MetastoreUnavailable: No server could be asked.
        """
        return self.capabilities().compare_and_set is CompareAndSet.HONOURED
