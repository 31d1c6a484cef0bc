"""Mutants of catalogs and of what maintains their tables."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEVERAL = "tests/catalog/test_several_tables.py::"
_VIEWS = "tests/catalog/test_views.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "purge-of-shared-files",
        "catalog/base.py",
        "            refuse_shared_files(table)\n",
        "",
        "tests/catalog/test_purging.py::test_a_table_that_shares_its_files_is_not_purged[memory-false]",
    ),
    Mutant(
        "namespace-with-an-empty-level",
        "catalog/base.py",
        "self.operating(Operation.CREATE_DATABASE, self._namespace_identifier(namespace))",
        "self.operating(Operation.CREATE_DATABASE, MetastoreCatalog.identifier_to_tuple(namespace))",
        "tests/catalog/test_names.py::test_a_namespace_with_an_empty_level_is_refused[memory-create_namespace-()]",
    ),
    Mutant(
        "level-of-dots",
        "catalog/names.py",
        "    if not all(level.strip() for level in levels):\n",
        "    if not levels:\n",
        "tests/catalog/test_names.py::test_a_table_below_a_level_of_dots_is_not_there[memory]",
    ),
    Mutant(
        "table-without-a-name",
        "catalog/names.py",
        "        if not name:\n            raise NoSuchName(",
        "        if name is None:\n            raise NoSuchName(",
        "tests/catalog/test_names.py::test_no_table_is_made_without_a_name[memory]",
    ),
    Mutant(
        "creation-without-its-request-id",
        "iceberg/rebase.py",
        "snapshot=_marked(update.snapshot, attempt, generation)",
        "snapshot=update.snapshot",
        "tests/cli/test_cli.py::test_the_commit_that_creates_a_table_with_rows_is_one_commit_with_its_request_id",
    ),
    Mutant(
        "commits-of-snapshots-alone",
        "cli/views.py",
        "        snapshots + others, key",
        "        snapshots, key",
        "tests/cli/test_cli.py::test_commits_without_a_snapshot_are_listed_with_their_request_ids",
    ),
    Mutant(
        "coord-uri-by-name",
        "catalog/by_name.py",
        '    if properties.get("uri", "").startswith(COORDINATED_URI_PREFIX):\n',
        "    if False:\n",
        "tests/catalog/test_by_name.py::test_pyiceberg_s_load_catalog_opens_coordinated_catalogs_by_name_once_told",
    ),
    Mutant(
        "an-expired-append-is-metadata",
        "cli/views.py",
        '"metadata" if none_is_missing else "unknown"',
        '"metadata"',
        "tests/cli/test_cli.py::test_an_append_whose_snapshot_was_expired_is_no_change_of_metadata[2]",
    ),
    Mutant(
        "a-commit-hidden-by-its-millisecond",
        "cli/views.py",
        '        if not record["request_id"]:\n',
        "        if True:\n",
        "tests/cli/test_cli.py::test_commits_of_one_millisecond_are_all_listed",
    ),
    Mutant(
        "a-location-is-judged-before-its-namespace",
        "catalog/base.py",
        "        resolved: str = super()._resolve_table_location(location, database_name, table_name)\n",
        "        if location is None and database_name == '..':\n"
        "            raise ValueError(database_name)\n"
        "        resolved: str = super()._resolve_table_location(location, database_name, table_name)\n",
        "tests/hive/test_names.py::test_a_table_below_a_level_of_dots_has_no_namespace_rather_than_no_location",
    ),
    Mutant(
        "several-pointers-one-by-one",
        "catalog/sql.py",
        "                    return SwapResult.MOVED  # what was swapped before it is rolled back\n",
        "                    return SwapResult.MOVED\n                connection.commit()\n",
        f"{_SEVERAL}test_an_unmodified_writer_that_moves_one_table_moves_nothing_half[memory]",
    ),
    Mutant(
        "one-table-in-its-log-is-all-in-theirs",
        "coordinator/several.py",
        "        for certain in (Where.IN_LOG, Where.NOT_IN_LOG, Where.UNDECIDED):\n",
        "        for certain in (Where.UNDECIDED,):\n",
        f"{_SEVERAL}test_a_lost_swap_that_another_commit_has_overtaken_in_one_table_lands_anew[memory]",
    ),
    Mutant(
        "a-repeat-of-several-is-looked-up",
        "coordinator/several.py",
        "            for member in self._members:\n                member.planned = Answered(",
        "            for member in ():\n                member.planned = Answered(",
        f"{_SEVERAL}test_a_repeat_that_one_table_alone_remembers_lands_nothing[memory]",
    ),
    Mutant(
        "a-refusal-in-one-table-refuses-all",
        "coordinator/several.py",
        "        for kind in (WrongLatch, Refusal, NeedsReplan):\n",
        "        for kind in (WrongLatch, NeedsReplan):\n",
        f"{_SEVERAL}test_a_refusal_names_the_table_that_it_comes_from[memory]",
    ),
    Mutant(
        "a-name-is-used-once",
        "coordinator/views.py",
        "            made = self._change(head)\n",
        "            made = self._change(None)\n",
        f"{_VIEWS}test_a_name_is_used_once[memory]",
    ),
    Mutant(
        "views-compare-and-set",
        "catalog/sql_views.py",
        '    f"WHERE {_KEY} AND metadata_location = :base"\n',
        '    f"WHERE {_KEY}"\n',
        f"{_VIEWS}test_a_stranger_s_commit_before_the_swap_is_followed[memory]",
    ),
    Mutant(
        "a-view-that-was-followed",
        "coordinator/views.py",
        "        if plan.location in (pointer, previous):\n",
        "        if plan.location == pointer:\n",
        f"{_VIEWS}test_a_lost_swap_that_a_stranger_has_followed_is_found_out[memory-landed]",
    ),
)
