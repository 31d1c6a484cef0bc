"""Executes commits: the imperative shell around :mod:`commit_coord.protocol.commit`.

``coordinator`` is the way in. ``services`` is what the commits of a catalog share. One commit is a ``run`` of the
protocol: ``commit`` drives its effects, ``planning`` decides what becomes of the attempt on the head, ``groups``
carries the attempts of others along, ``publishing`` writes, swaps and looks for what was swapped, and ``outcome`` turns
the verdict into a result or an error. ``several`` and ``views`` are runs of the same protocol, for several tables at
once and for a view.
"""

from commit_coord.coordinator.coordinator import Coordinator
from commit_coord.coordinator.several import Change
from commit_coord.coordinator.stores import Committed, PointerStore, Replanner, Swap, delete_quietly

__all__ = ["Change", "Committed", "Coordinator", "PointerStore", "Replanner", "Swap", "delete_quietly"]
