"""Jobs of Spark that write files: if one fails, or is interrupted, its tasks are ended and its files deleted."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, cast

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql import SparkSession

from commit_coord.spark.files import Target, delete_folder

logger = logging.getLogger(__name__)

_WAIT_S = 30.0
"""Spark kills a Python worker that goes on for ``spark.python.task.killTimeout``, which is 2 s."""
_EVENTS_MS = 5000
_PAUSE_S = 0.05


@contextmanager
def deleted_if_failed(spark: SparkSession, target: Target) -> Iterator[None]:
    """Run jobs of this thread, which write below the folder of *target*; if the block fails, delete the folder.

    The tasks of jobs that have begun end before, or half a minute goes by:

    1. A task fails, and its job with it: Spark asks the other tasks to end, and does not wait for them. Or the driver
    is interrupted, and the job goes on.   2. The folder of the job is deleted.   3. One of the tasks finishes a file,
    in a new folder of the same name. It would stay there for ever.

    What Spark begins after an interrupt, because it was still planning, is not ended; ``orphans`` finds its files.
    """
    context, tag = spark.sparkContext, _new_tag(spark)
    if tag is not None:
        context.addJobTag(tag)
    try:
        yield
    except BaseException as error:
        _clean(context, tag, target)
        # Py4J closes the connection of this thread after these errors, and after no other one.
        if isinstance(error, Exception | KeyboardInterrupt):
            _remove(context, tag)
        raise
    _remove(context, tag)


def _new_tag(spark: SparkSession) -> str | None:
    """Return a tag for the jobs of this thread; None if Spark can't tell its jobs from those of other threads.

    That is with ``PYSPARK_PIN_THREAD=false``, where a thread of the JVM works for several threads of Python.
    """
    pinned = isinstance(cast(Any, spark.sparkContext)._gateway, ClientServer)
    return f"commit-coord-{uuid.uuid4().hex}" if pinned else None


def _remove(context: SparkContext, tag: str | None) -> None:
    if tag is not None:
        with suppress(Exception):  # The context has been stopped.
            context.removeJobTag(tag)


def _clean(context: SparkContext, tag: str | None, target: Target) -> None:
    # An exception of a signal handler may leave the answer of a call unread in this thread's connection to the JVM: the
    # next call would take it for its own. Another thread has another connection.
    cleaner = Thread(target=_delete, args=(context, tag, target), name="commit-coord-failed-job", daemon=True)
    try:
        cleaner.start()
    except RuntimeError:  # no more threads
        delete_folder(target)
    else:
        cleaner.join(2 * _WAIT_S)


def _delete(context: SparkContext, tag: str | None, target: Target) -> None:
    try:
        if tag is not None:
            _end_tasks(context, tag)
    except Exception:
        logger.warning("it is not known whether tasks of the failed job still run", exc_info=True)
    delete_folder(target)


def _end_tasks(context: SparkContext, tag: str) -> None:
    """End the jobs with *tag*; return when none of their tasks runs any more, or after half a minute."""
    deadline = time.monotonic() + _WAIT_S
    java = cast(Any, context)._jsc.sc()
    context.cancelJobsWithTag(tag)  # first of all: a job that ends with success would be committed meanwhile
    # The error of a job overtakes the events that say what runs. Where they come later than this, what is known counts.
    with suppress(Exception):
        java.listenerBus().waitUntilEmpty(_EVENTS_MS)
    tracker = java.statusTracker()
    while _is_running(tracker, tag):
        if time.monotonic() > deadline:
            logger.warning("tasks of a failed job still run; files that they write now are in no table")
            return
        time.sleep(_PAUSE_S)
        context.cancelJobsWithTag(tag)  # what began meanwhile


def _is_running(tracker: Any, tag: str) -> bool:
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForTag(tag)]
    jobs = [job.get() for job in jobs if job.isDefined()]
    stages = [tracker.getStageInfo(number) for job in jobs for number in job.stageIds()]
    return any(str(job.status()) == "RUNNING" for job in jobs) or any(
        stage.isDefined() and stage.get().numActiveTasks() for stage in stages
    )
