"""Programs, steps and conditions that were printed, read again."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

from pyiceberg import types

from commit_coord.testing.table_files import state
from tests.proof.rows import spark
from tests.proof.rows.model import conditions, operations, table_statements
from tests.proof.rows.program import Look, Program


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
