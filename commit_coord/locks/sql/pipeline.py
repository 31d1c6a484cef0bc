"""A transaction that leaves for PostgreSQL as a whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg


@contextlib.contextmanager
def sent_at_once(db: psycopg.Connection[Any]) -> Iterator[None]:
    """Send everything that the block executes by one system call.

    psycopg's pipeline sends each statement when it is executed, and has no public way to hold it back. Then a client
    that is stopped between two statements would keep the counter row locked. So the method of the pipeline that sends
    is replaced while the block runs. It is private; the tests that stop a client between two statements notice when
    psycopg changes it.
    """
    with db.pipeline() as pipeline:
        pipeline._communicate_gen = lambda: iter(())  # type: ignore[method-assign, return-value, assignment]
        try:
            yield
        finally:
            del pipeline._communicate_gen
            commands = list(pipeline.command_queue)
            pipeline.command_queue.clear()

            def send() -> None:
                for command in commands:
                    command()

            pipeline.command_queue.append(send)
