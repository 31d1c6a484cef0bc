"""Executes commits: the imperative shell around :mod:`commit_coord.protocol.commit`.

``coordinator`` is the entry point. ``services`` holds what the commits of a catalog share. One commit is one run of
the protocol, and ``run`` contains its state. ``commit`` executes its effects, ``planning`` applies the attempt to the
head, ``groups`` adds the attempts of waiting writers, ``publishing`` writes files, swaps the pointer and checks whether
the swap landed, and ``outcome`` turns the verdict into a result or an error. ``multi_table`` and ``views`` run the same
protocol for a commit to several tables, and for a commit to a view.
"""

from commit_coord.coordinator.coordinator import Coordinator
from commit_coord.coordinator.multi_table import TableAttempt
from commit_coord.coordinator.stores import Committed, PointerStore, PointerSwap, Replanner, delete_quietly, new_file

__all__ = [
    "Committed",
    "Coordinator",
    "PointerStore",
    "PointerSwap",
    "Replanner",
    "TableAttempt",
    "delete_quietly",
    "new_file",
]
