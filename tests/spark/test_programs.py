"""A few random programs with a client on Spark; ``make rows ARGS=--spark`` and the integration tests run many."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession

from tests.proof.rows.findings import ALONE
from tests.proof.rows.many import outcome
from tests.proof.rows.spark_client import SparkRig


@pytest.mark.timeout(300)
def test_rows_are_right_with_a_client_on_spark(spark: SparkSession) -> None:
    with ExitStack() as stack:
        rig = SparkRig(stack, spark)
        found = [outcome(rig, seed) for seed in SEEDS]

    assert not [one.text for one in found if one.kind and not one.kind.startswith(ALONE)]
    assert sum(one.counts["SparkWrite landed"] for one in found) > 1


SEEDS = (4, 9)
"""Short ones, of which each writes through Spark."""
