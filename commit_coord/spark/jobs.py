"""Jobs of Spark that write files: if one fails, or is interrupted, its tasks are ended and its files deleted."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from py4j.clientserver import ClientServer
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

from commit_coord.interrupts import to_its_end
from commit_coord.spark.files import Target, delete_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WAIT_S = 30.0
_KILL_S = 3.0
"""Spark kills a Python worker that goes on for ``spark.python.task.killTimeout``, which is 2 s."""
_EVENTS_MS = 5000
_PAUSE_S = 0.05


def run_jobs(spark: SparkSession, target: Target, work: Callable[[], T]) -> T:
    """Return what *work* returns, whose jobs write below the folder of *target*; if it fails, delete the folder.

    The tasks of the jobs end before, or half a minute goes by:

    1. A task fails, and its job with it: Spark asks the other tasks to end, and does not wait for them.   2. The folder
    is deleted.   3. One of the tasks finishes a file, in a new folder of the same name. It would stay there for ever.

    Called by the main thread, which alone runs signal handlers, *work* has a thread of its own:

    1. A signal handler raises an error while the JVM plans, runs or commits a job.   2. The job goes on, and nobody
    knows when it ends; and its answer stays unread in the thread's connection to the JVM, whose next call takes it for
    its own.   So the error hits a thread that only waits, which cancels the jobs until the other one is back.

    Any other thread does *work* itself: Spark interrupts that of a stream which is stopped.
    """
    context, pinned = spark.sparkContext, isinstance(cast(Any, spark.sparkContext)._gateway, ClientServer)
    # Else (PYSPARK_PIN_THREAD=false) a thread of the JVM works for several threads of Python, and would give the tag to
    # the jobs of others. So nothing is cancelled: an error of a signal handler waits for the job, or half a minute.
    tag = f"commit-coord-{uuid.uuid4().hex}" if pinned else None
    is_interrupted = has_ended = False

    def tagged() -> T:
        if tag is None:
            return work()
        context.addJobTag(tag)
        try:
            return work()
        finally:
            with suppress(Exception):  # the context has been stopped
                context.removeJobTag(tag)

    # Without pinned threads `inheritable_thread_target` returns what it is given.
    is_main = threading.current_thread() is threading.main_thread()
    inherited = inheritable_thread_target(spark)(tagged) if pinned and is_main else tagged

    def run() -> T:
        nonlocal has_ended
        try:
            result = inherited()
            if is_interrupted:
                raise InterruptedError("nobody takes the files")
            return result
        except BaseException:
            _end_tasks(context, tag)
            delete_folder(target)
            raise
        finally:
            has_ended = True

    def cancel() -> None:
        nonlocal is_interrupted
        is_interrupted = True
        deadline = time.monotonic() + _WAIT_S
        while not has_ended and time.monotonic() < deadline:
            if tag is not None:
                with suppress(Exception):  # the context has been stopped
                    context.cancelJobsWithTag(tag)  # also what Spark begins after an interrupt, because it planned it
            time.sleep(_PAUSE_S)

    if not is_main:
        return run()
    try:
        return to_its_end(run, on_interrupt=cancel, patience_s=_PAUSE_S)
    except BaseException:
        if has_ended:  # 1. The jobs have ended with success.   2. A signal handler raises an error in this thread.
            delete_folder(target)
        raise


def _end_tasks(context: SparkContext, tag: str | None) -> None:
    """Return when no task of the jobs with *tag* runs any more, or after half a minute; None waits some seconds."""
    if tag is None:
        time.sleep(_KILL_S)  # nobody knows which tasks are those
        return
    try:
        deadline, java = time.monotonic() + _WAIT_S, cast(Any, context)._jsc.sc()
        # The error of a job overtakes the events that say what runs. Where they come later than this, what is known
        # counts.
        with suppress(Exception):
            java.listenerBus().waitUntilEmpty(_EVENTS_MS)
        tracker = java.statusTracker()
        while _is_running(tracker, tag):
            if time.monotonic() > deadline:
                logger.warning("tasks of a failed job still run; files that they write now are in no table")
                return
            context.cancelJobsWithTag(tag)
            time.sleep(_PAUSE_S)
    except Exception:
        logger.warning("it is not known whether tasks of the failed job still run", exc_info=True)


def _is_running(tracker: Any, tag: str) -> bool:
    jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForTag(tag)]
    jobs = [job.get() for job in jobs if job.isDefined()]
    stages = [tracker.getStageInfo(number) for job in jobs for number in job.stageIds()]
    return any(str(job.status()) == "RUNNING" for job in jobs) or any(
        stage.isDefined() and stage.get().numActiveTasks() for stage in stages
    )
