"""Calls of another thread: to the locks a thread is one client, however many catalogs it has."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def elsewhere(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what *call* returns, or raise what it raises, in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call, *args, **kwargs).result()
