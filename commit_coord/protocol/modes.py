"""Which lock modes are compatible on one resource.

Source: Hive wiki "Locking", the compatibility matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from commit_coord.model import LockMode

S, X = LockMode.SHARED, LockMode.EXCLUSIVE

COMPATIBLE: Mapping[tuple[LockMode, LockMode], bool] = MappingProxyType(
    {
        # (requested, existing)
        (S, S): True,
        (S, X): False,
        (X, S): False,
        (X, X): False,
    }
)

assert all(COMPATIBLE[one, other] == COMPATIBLE[other, one] for one, other in COMPATIBLE), (
    "who is first decides nothing"
)


def compatible(requested: LockMode, existing: LockMode) -> bool:
    """Return whether *requested* is compatible with *existing* on the same resource."""
    return COMPATIBLE[requested, existing]


def stronger(one: LockMode, other: LockMode) -> LockMode:
    """Return the mode that covers both."""
    return one if one is X else other


assert all(
    compatible(mode, stronger(one, other)) <= min(compatible(mode, one), compatible(mode, other))
    for one, other in COMPATIBLE
    for mode in LockMode
), "what the weaker mode keeps out, the stronger one keeps out"
