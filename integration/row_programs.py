"""Random programs whose rows Spark writes or reads, each in a process of its own: a session is one of its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

from tests.proof.rows import kept, many
from tests.proof.rows.engines import ENGINES

P = ParamSpec("P")
R = TypeVar("R")


def apart(work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what *work* returns in a new process.

    1. A test makes a session with Iceberg's runtime, for all tests.   2. Another one asks for a session, gets that one,
    and stops it in the end.   3. What comes next finds none of its catalogs.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(work, *args, **kwargs).result()


def on_spark(seeds: Sequence[int]) -> tuple[list[str], Counter[str], list[str]]:
    """Run programs with a client on Spark; return the kinds of findings, what was counted, and the findings."""
    from tests.proof.rows.spark_client import SparkRig

    with ExitStack() as stack:
        reports: list[str] = []
        done = many.run_many(
            seeds, 1, lambda one: reports.append(f"{one.seed} {one.text}\n{one.program}"), SparkRig(stack)
        )
    return list(done.kinds), Counter(done.counts), reports


def read_by_all(folder: Path, seeds: Sequence[int]) -> tuple[int, list[str], list[str]]:
    """Run programs, and have every engine read their tables; return how many, findings, and differences."""
    reports: list[str] = []
    made, findings = kept.run_and_keep(folder, seeds)
    differences = kept.read_all(folder, list(ENGINES), reports.append)
    return made, findings, reports if differences else []
