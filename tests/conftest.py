"""What all tests share: servers, each started once, when the first test asks for it, and limits for hangs."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["commit_coord.testing.servers", "tests.limits"]

# Each run draws the same examples: a change fails for what it changes. `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile("repeated", derandomize=True)
hypothesis.settings.load_profile("repeated")

LONGEST = (
    *(
        "contract/test_lock_managers",
        "sim/test_simulation",
        "rows/test_rows",
        "catalog/test_outages",
        "spark/test_rows",
    ),
    *("catalog/test_pyiceberg_behaviour", "contract/test_zookeeper", "hive/test_catalog", "sql/test_statements"),
    *("cli/test_cli", "catalog/test_serial_pairs", "catalog/test_transactions", "catalog/test_isolation"),
    *(
        "spark/test_write",
        "sql/test_rows",
        "sql/test_more_statements",
        "spark/test_programs",
        "coordinator/test_groups",
    ),
    *("hive/test_migration", "spark/test_datasource", "spark/test_roundtrip", "catalog/test_row_filters"),
    *("catalog/test_pickling", "hive/test_guard", "contract/test_hive_lock_table", "catalog/test_bad_input"),
    *("bench/test_bench", "spark/test_lock_lifetime", "contract/test_etcd", "catalog/test_left_open"),
    *("catalog/test_carried_entries", "hive/test_locks", "sim/test_rows", "catalog/test_rows_by_partition"),
    *("contract/test_hive_lease", "sql/test_clauses", "catalog/test_request_ids", "test_model"),
    *("spark/test_any_table", "mutants/test_mutants", "faults/test_slice", "catalog/test_filters_agree"),
)
"""The files whose tests take longest, the longest first."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest files run first: a long one that begins last keeps one process busy when the others are done."""
    here = Path(__file__).parent
    places = {here / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
