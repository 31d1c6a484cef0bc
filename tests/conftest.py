"""What all tests share: servers, each started once, when the first test asks for it, and limits for hangs."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from zlib import crc32

import hypothesis
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["commit_coord.testing.servers", "tests.limits", "tests.neighbour"]

# Each run draws the same examples: a change fails for what it changes. `--hypothesis-profile=default` draws more of
# them, and others.
hypothesis.settings.register_profile("repeated", derandomize=True, max_examples=20)
hypothesis.settings.load_profile("repeated")

LONGEST = (
    "packaging/test_packaging",
    *("cli/test_mistakes", "ui/test_pages", "ui/test_browser"),
    *("sim/test_rest", "rest/test_idempotency", "hive/test_answers", "rest/test_repeats", "rest/test_rebase"),
    *("contract/test_lock_managers", "sim/test_simulation", "rows/test_rows", "catalog/test_outages"),
    *("spark/test_rows", "spark/test_write", "catalog/test_pyiceberg_behaviour", "contract/test_zookeeper"),
    *("hive/test_catalog", "sql/test_statements", "cli/test_cli", "catalog/test_serial_pairs"),
    *("catalog/test_transactions", "catalog/test_isolation", "sql/test_rows", "sql/test_more_statements"),
    *("coordinator/test_groups", "hive/test_migration", "catalog/test_row_filters", "catalog/test_pickling"),
    *("hive/test_guard", "contract/test_hive_lock_table", "catalog/test_bad_input", "bench/test_bench"),
    *("contract/test_etcd", "catalog/test_left_open", "catalog/test_carried_entries", "hive/test_locks"),
    *("sim/test_rows", "catalog/test_rows_by_partition", "contract/test_hive_lease", "sql/test_clauses"),
    *("catalog/test_request_ids", "test_model", "mutants/test_mutants", "faults/test_slice"),
    *("catalog/test_filters_agree",),
)
"""The files whose tests take longest, the longest first."""


ONE_OF = {
    40: "catalog/test_broken_connections hive/test_answers",
    30: "catalog/test_parquet_types catalog/test_places coordinator/test_after_the_swap",
    20: "rest/test_idempotency rest/test_repeats",
    16: "catalog/test_bad_input catalog/test_serial_pairs spark/test_stale_frames",
    12: """
        catalog/test_calls_between catalog/test_pickling catalog/test_pyiceberg_behaviour catalog/test_row_filters
        contract/test_hive_lock_table rest/test_rebase sim/test_rest spark/test_roundtrip spark/test_rows
        spark/test_write sql/test_rows
    """,
    9: "cli/test_mistakes hive/test_guard sim/test_simulation unit/test_smaller_installs",
    8: "catalog/test_kept_arguments rest/test_after_the_change rest/test_usable",
    6: """
        catalog/test_several_tables catalog/test_transactions contract/test_etcd contract/test_lease
        contract/test_lock_managers contract/test_zookeeper coordinator/test_groups hive/test_migration rest/test_tls
        rest/test_turns spark/test_datasource spark/test_filters test_leaks test_security ui/test_browser
    """,
    4: """
        catalog/test_carried_entries catalog/test_isolation catalog/test_required_values
        contract/test_partly_freed rest/test_fuzz sql/test_clauses sql/test_more_statements sql/test_statements
    """,
    3: """
        catalog/test_column_names catalog/test_deletes_by_filter catalog/test_evolved_tables catalog/test_exact
        catalog/test_lowest_partitions catalog/test_outages catalog/test_request_ids catalog/test_row_deletes
        rest/test_programs rest/test_required_columns spark/test_any_table
        spark/test_listings spark/test_transforms test_model
    """,
    2: """
        catalog/test_left_open catalog/test_merged_manifests catalog/test_operation_locks catalog/test_overwritten
        catalog/test_pyiceberg_seam catalog/test_several_drawn catalog/test_stale_handles cli/test_cli
        cli/test_tables contract/test_hive_lease coordinator/test_fenced_commits hive/test_catalog hive/test_names
        rest/test_columns rest/test_delivery rest/test_wire rows/test_constants spark/test_names test_untested
    """,
    1: """
        mutants/test_mutants rows/test_broken_product rows/test_rows test_architecture test_docs test_manual
        test_time_limits
    """,
}
"""Of the cases of each test in these files, a run of CI tries one of so many, and ``make test-all`` tries all.

The name of the test and ``DRAWN`` decide which. In other files, it tries one in twelve cases of a test
that has four or more.
"""

SLICED_TOGETHER = {
    "spark/test_rows",
    "spark/test_write",
    "spark/test_datasource",
    "spark/test_names",
    "spark/test_roundtrip",
    "spark/test_stale_frames",
    "cli/test_mistakes",
    "ui/test_browser",
    "catalog/test_outages",
    "contract/test_zookeeper",
    "hive/test_catalog",
    "hive/test_guard",
    "hive/test_migration",
    "unit/test_smaller_installs",
}
"""Files in ``ONE_OF`` whose cases count together, and not those of each test: most of their tests have one case."""

LONG = (
    r"catalog/test_(catalog_calls|filters_agree|tables_made_with_rows).py::",
    r"catalog/test_evolved_tables.py::test_rows_land_under_what_they_were_written_for_or_not_at_all",
    r"catalog/test_outages.py::test_a_commit_whose_lock_service_is_away",
    r"catalog/test_pyiceberg_behaviour.py::test_calls_warn_and_leave_snapshots_and_rows",
    r"catalog/test_required_values.py::test_what_is_missing_is_found_at_any_depth",
    r"catalog/test_rows_by_partition.py::test_each_row_is_written_once",
    r"observing/test_dashboard.py::test_each_query",
    r"rest/test_idempotency.py::test_another_server_knows_what_the_first_one_answered",
    r"rest/test_lost_replies.py::",
    r"rest/test_processes.py::test_two_processes_serve_one_port",
    r"rest/test_stopping.py::test_a_stop_waits_neither",
    r"sim/test_moves.py::test_a_table_moves_whichever_client",
    r"sim/test_rows.py::test_rows_are_what_a_serial_order_gives",
    r"sim/test_simulation.py::test_a_seed_repeats_its_history_in_any_process",
    r"spark/test_compaction.py::test_a_table_is_compacted_by_sparks_tasks",
    r"spark/test_lock_lifetime.py::test_(a_job_that_is_cancelled|spark_calls_abort)",
    r"spark/test_names.py::test_a_table_of_sparks_sql",
    r"spark/test_(programs|streams).py::",
    r"sql/test_clauses.py::test_no_argument_of_an_expression",
)
"""Tests of 20 seconds and more: of them all, a run of CI tries one in ``ONE_OF_LONG``."""

ONE_OF_LONG = 20

DRAWN = int(os.environ.get("DRAW", "0"))
"""Which of the cases a run tries: ``make test DRAW=1`` tries the next ones, and so on until all were tried."""

_LONG = "long"

LEFT_OUT = (
    # Of what is tried with each kind of server, one kind.
    r"test_outages.py::.*(a_statement_ends|a_call_that_changes).*\[(lease|zookeeper)",
    r"test_outages.py::.*a_commit_whose_lock_service_is_away.*\[lease",
    r"test_lock_managers.py::TestLockManagers::.*hms-apart",  # with offers it is tried in each run
    r"test_lock_managers.py::.*test_an_interrupt_at_any_line.*(hms|lease-postgresql)",
    r"test_zookeeper.py::test_who_steps_apart_for_hive",
    r"test_many.py::test_all_pairs_of_commands.*zookeeper",
    r"test_after_the_swap.py::.*\[hms",
    r"hive/test_catalog.py::test_a_change_that_the_metastore_forbids",
    r"hive/test_locks.py::test_who_was_not_answered",  # a slow machine: the first waiter itself was silent for a lease
    r"rest/test_processes.py::test_(the_more_often_a_process_dies|a_connection_stays_open)",
    r"spark/test_sessions.py::test_a_time_limit_that_strikes",
    r"spark/test_rows.py::test_a_checkpoint_that_was_deleted.*\[format with a name",
    r"spark/test_rows.py::test_renamed_columns_have_their_values.*\[enableNested",
    r"spark/test_write.py::test_target_file_size_and_codec",
    r"spark/test_names.py::test_(settings_of_spark_configure|a_write_that_names_no_table)",
    r"cli/test_mistakes.py::.*a_document\[a dead ZooKeeper",
    r"cli/test_mistakes.py::test_a_full_disk_for_the_tables",
    r"ui/test_browser.py::test_(a_page_of_a_large_catalog|everything_is_reached_by_keyboard)",
    r"ui/test_browser.py::test_axe_finds_no_violation_where_a_table_moves.*phone",
    r"rows/test_rows.py::test_the_same_seeds_are_the_same_programs",
    r"sim/test_(rest|rows).py::test_a_seed_repeats_its_history",  # as that of test_simulation.py does
    r"sim/test_rest.py::test_runs_under_one_kind_of_fault.*(short logs|replaced)",
    r"test_outages.py::test_a_commit_whose_lock_service_is_away.*\[hms-reached before",
    r"spark/test_lock_lifetime.py::test_a_driver_that_is_killed.*\[fast",
    r"spark/test_rows.py::test_(a_struct_that_is_null.*|a_checkpoint_that_was_deleted.*)\[format\]",
    r"spark/test_listings.py::test_what_can_not_be_listed",
    r"test_model.py::test_a_protocol_holds.*commit-2",
    r"test_soak.py::test_the_page_and_the_picture",
    r"hive/test_catalog.py::test_a_value_that_is_too_long",
    r"rest/test_processes.py::test_a_process_that_dies_is_replaced",
    r"rest/test_watching.py::test_any_of_several_processes",
    r"bench/test_bench.py::test_waiting_for_a_lock_in_zookeeper",
    r"cli/test_tree.py::test_a_hundred_thousand_locks",
    r"cli/test_mistakes.py::test_(ctrl_c_in_a_statement|a_question_that_nobody|an_audit_log_in_a_folder)",
    r"cli/test_mistakes.py::.*a_hint\[a dead ZooKeeper",
    r"cli/test_local.py::test_a_day_of_servers",
    r"mutants/test_mutants.py::test_the_case_that_a_mutant_names",  # a run of the mutants fails, too
)
"""Tests for which a run of CI has no time; ``make test-all`` runs them, too."""


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Call slow what a run of CI has no time for, and have the longest files run first.

    A long file that begins last keeps one process busy when the others are done.
    """
    here, cases = Path(__file__).parent, defaultdict(list)
    long = re.compile("|".join(LONG))
    together = {here / f"{name}.py" for name in SLICED_TOGETHER}
    for item in items:
        if re.search("|".join(LEFT_OUT), item.nodeid):
            item.add_marker(pytest.mark.slow)
        elif item.get_closest_marker("slow") is None:
            test = item.nodeid.partition("[")[0]
            file = test.partition("::")[0]
            cases[_LONG if long.search(item.nodeid) else file if item.path in together else test].append(item)
    every = {here / f"{name}.py": number for number, names in ONE_OF.items() for name in names.split()}
    for test, alike in cases.items():
        number = min(
            ONE_OF_LONG if test == _LONG else every.get(alike[0].path, 12 if len(alike) > 3 else 1), len(alike)
        )
        tried = (crc32(test.encode()) + DRAWN) % number  # not the first of each: that would be one kind of catalog
        for place, item in enumerate(alike):
            if place % number != tried:
                item.add_marker(pytest.mark.slow)
    yield
    places = {here / f"{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


class OfTwoSessions(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives whole files to processes, and those of Spark to two of them, so that two start a session and not all.

    Args:
        config: pytest's.
        log: Of xdist.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if not file.startswith("tests/spark/"):
            return file
        return f"Spark {Path(file).stem in FIRST_SESSION}"


FIRST_SESSION = {"test_rows", "test_programs", "test_lock_lifetime", "test_any_table", "test_sessions"}
"""Half of what the files of Spark take."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Take our own when files are dealt out."""
    return OfTwoSessions(config, log) if config.getvalue("dist") == "loadfile" else None
