"""Waits for the tasks that a failed job of Spark leaves running."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

from pyspark.sql import SparkSession

from commit_coord.spark.files import Target, delete_folder

logger = logging.getLogger(__name__)

_WAIT_S = 60.0
"""Spark kills a Python worker that goes on for ``spark.python.task.killTimeout``, which is 2 s."""
_PAUSE_S = 0.05


def delete_failed(spark: SparkSession, target: Target) -> None:
    """Delete the files of a job that failed before its commit began, as far as possible."""
    try:
        wait_for_tasks_of_failed_jobs(spark)
    finally:
        delete_folder(target)


def wait_for_tasks_of_failed_jobs(spark: SparkSession) -> None:
    """Return when no task of a failed job runs any more, after a minute at the latest. Never raises an ``Exception``.

    Call it before the files of a failed job are deleted:

    1. A task fails, and its job with it. Spark asks the other tasks to end, and does not wait for them.
    2. The folder of the job is deleted.
    3. One of the other tasks finishes a file, in a new folder of the same name. It would stay there for ever.
    """
    deadline = time.monotonic() + _WAIT_S
    try:
        while _runs_a_task_of_a_failed_stage(spark, deadline):
            if time.monotonic() > deadline:
                logger.warning("tasks of a failed job still run; files that they write now are in no table")
                return
            time.sleep(_PAUSE_S)
    except Exception:
        logger.warning("it is not known whether tasks of the failed job still run", exc_info=True)


def _runs_a_task_of_a_failed_stage(spark: SparkSession, deadline: float) -> bool:
    context, jvm, gateway = spark._jsparkSession.sparkContext(), cast(Any, spark._jvm), cast(Any, spark._sc._gateway)
    # The error of a job overtakes the events that say which of its tasks run.
    context.listenerBus().waitUntilEmpty(max(1, int(1000 * (deadline - time.monotonic()))))
    failed = jvm.java.util.List.of(jvm.org.apache.spark.status.api.v1.StageStatus.FAILED)
    quantiles = gateway.new_array(jvm.double, 0)
    stages = context.statusStore().stageList(failed, False, False, quantiles, jvm.java.util.List.of())
    return any(stages.apply(number).numActiveTasks() for number in range(stages.size()))
