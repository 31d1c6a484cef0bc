"""Reads a table with every reader, and compares with what the model says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from commit_coord.testing.table_files.observed import Observed
from commit_coord.testing.table_files.state import State, leaves, value_at
from tests.proof.rows.differences import bags_differ
from tests.proof.rows.findings import Finding
from tests.proof.rows.model.conditions import Always, Compare, IsNull, Where, bound
from tests.proof.rows.read import limits, readers


def read_with_all(head: Observed, state: State, where: Where, counts: Counter[str]) -> None:
    """Read a table with every reader, and compare with what the model says.

    Args:
        head: The table.
        state: What the model says of it.
        where: Which rows.
        counts: Learns what was read by whom.

    Raises:
        Finding: A reader does not find the rows.
    """
    schema = head.schema
    if not state.fields.fields:
        return  # no reader counts the rows of a table without columns
    try:
        matches = bound(where, state.fields)
    except LookupError:
        return
    except Exception:  # noqa: BLE001 - of a column that went
        return
    expected = Counter(filter(matches, state.of().elements()))
    for name, read in readers.READERS.items():
        if limit := next(_LIMITS[name](head, where), "") if name in _LIMITS else "":
            counts[f"not read by {name}: {limit}"] += 1
            continue
        counts[f"read by {name}"] += 1
        try:
            found = read(head.location, schema, where)
        except Exception as error:
            if why := limits.known(name, error):
                counts[f"not read by {name}: {why}"] += 1
                continue
            raise Finding(
                f"{name} can't read {type(error).__name__}", f"{where}: {type(error).__name__}: {error}"
            ) from error
        wanted = expected
        if name == "pyiceberg":
            wanted, found = (readers.as_pyiceberg_shows(one, state.fields) for one in (expected, found))
        if found != wanted:
            scan = "scan" if isinstance(where, Always) else "filter"
            raise Finding(f"{name} {scan}", f"{where}: {bags_differ(wanted, found)}")


def telling(state: State) -> Iterator[Where]:
    """Yield a condition on each column of single values, that some row of the table satisfies if one has a value."""
    rows = sorted(state.of(), key=repr)
    for at, (path, field_ids) in enumerate(leaves(state.fields)):
        values = [
            value
            for row in rows
            if (value := value_at(row, field_ids)) is not None and not (isinstance(value, float) and math.isnan(value))
        ]
        turn = (at + len(rows)) % 3
        if not values or turn == 0:
            yield IsNull(path)
        else:
            yield Compare(path, "==" if turn == 1 else "<=", values[at % len(values)])


_LIMITS: dict[str, Callable[[Observed, Where], Iterator[str]]] = {
    "duckdb": limits.duckdb,
    "pyiceberg": limits.pyiceberg,
    "ours": limits.ours,
}
