"""Programs, steps and conditions that were printed, read again."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg import types

from commit_coord.testing.rows import spark
from commit_coord.testing.rows.model import conditions, operations, state, table_statements
from commit_coord.testing.rows.program import Look, Program


def loads(text: str) -> Program:
    """Return the program that was printed as *text*."""
    found = python(text)
    assert isinstance(found, Program)
    return found


def python(text: str) -> Any:
    """Return the program, step or condition that was printed as *text*."""
    names: dict[str, Any] = {"nan": math.nan, "inf": math.inf, "Decimal": Decimal, "UUID": UUID, "datetime": dt}
    for module in (types, conditions, state, operations, table_statements, spark):
        names |= vars(module)
    names |= {"Program": Program, "Look": Look}
    return eval(text, names)  # noqa: S307 - a program of one's own # nosec B307
