"""Operators that move a table, and are killed at one step after the other."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from enum import Enum
from typing import Any

import commit_coord
from commit_coord.catalog.hive import CoordinatedHiveCatalog
from commit_coord.catalog.migration import Migration, Outcome
from commit_coord.hms.calls import MetastoreCaller
from commit_coord.locks.zookeeper.client import ZooKeeperSession
from commit_coord.protocol.migration import Phase
from commit_coord.testing.fleet import ForkedWriter

TableName = tuple[str, str]

_SENT = ("lock", "unlock", "alter_table_with_environment_context")
"""Calls to the metastore that change something."""

_PATIENCE_S = 180
"""For a metastore that may be starting again."""


class End(Enum):
    """How an operator ended."""

    KILLED = -signal.SIGKILL
    DONE = 0
    """It had done its work before."""
    REFUSED = 1
    """It could not do its work, as when a server was away."""


def killed_at(step: int, properties: Mapping[str, str], table: TableName, target: Phase) -> End:
    """Move *table* to *target* in a process that is killed when *step* requests that change something were answered."""
    return End(ForkedWriter(_move_until, step, dict(properties), table, target).wait(_PATIENCE_S))


def _move_until(step: int, properties: dict[str, str], table: TableName, target: Phase) -> None:
    done = 0

    def counted(original: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            try:
                return original(*arguments, **options)
            finally:
                if counts(*arguments):
                    done += 1
                    if done == step:
                        os.kill(os.getpid(), signal.SIGKILL)

        return call

    caller: Any = MetastoreCaller
    caller._call = counted(MetastoreCaller._call, lambda _, name, *__: name in _SENT)
    session: Any = ZooKeeperSession
    session.multi = counted(ZooKeeperSession.multi, lambda *_: True)
    with closing(_open(properties)) as catalog:
        moved = Migration(catalog).move(table, target)
    os._exit((End.DONE if moved.phase is target else End.REFUSED).value)


def bring(properties: Mapping[str, str], table: TableName, target: Phase) -> Phase | None:
    """Move *table* to *target*, trying again for as long as a server may be away; return the phase that it is in."""
    with closing(_open(properties)) as catalog:
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            moved = Migration(catalog).move(table, target)
            is_there = moved.phase is target and moved.outcome in (Outcome.CHANGED, Outcome.THERE)
            if is_there or time.monotonic() > give_up:
                return moved.phase


def move_dying(
    properties: Mapping[str, str], table: TableName, start: Phase, ways: Sequence[Phase], died: Counter[str]
) -> None:
    """Move *table* from *start* along *ways*; at each of their steps an operator is killed, and all begins anew.

    Each death is counted in *died*, by its way.

    Raises:
        AssertionError: A table could not be brought back to where its move began.
    """
    for target in ways:
        step, end = 1, End.REFUSED
        while end is not End.DONE:
            end = killed_at(step, properties, table, target)
            if end is End.KILLED:
                died[f"{start} to {target}"] += 1
                step += 1
            if end is not End.DONE:
                reached = bring(properties, table, start)  # so that the next one dies one step later
                assert reached is start, f"{reached} instead of {start}"
        start = target


def _open(properties: Mapping[str, str]) -> CoordinatedHiveCatalog:
    catalog = commit_coord.load_catalog("operator", **properties)
    assert isinstance(catalog, CoordinatedHiveCatalog)
    return catalog
