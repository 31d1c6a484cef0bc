"""What PyIceberg's client sends when a transaction commits. PyIceberg has no public name for it."""

from __future__ import annotations

from typing import Any

from pyiceberg.table import Transaction
from pyiceberg.table.update import TableRequirement, TableUpdate


def sent_by(transaction: Transaction) -> tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]:
    """Return the requirements and the updates."""
    return tuple(transaction._requirements), tuple(transaction._updates)


def body_of(transaction: Transaction) -> dict[str, Any]:
    """Return them as the body of a request."""
    requirements, updates = sent_by(transaction)
    return {
        "requirements": [each.model_dump(mode="json", exclude_none=True) for each in requirements],
        "updates": [each.model_dump(mode="json", exclude_none=True) for each in updates],
    }
