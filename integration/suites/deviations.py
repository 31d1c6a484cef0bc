"""Where our catalogs do otherwise than PyIceberg's, in PyIceberg's own tests, and why.

A key is the id of a test, without its parameters where all of its cases deviate. ``sql`` are the tests on SQL catalogs,
``hive`` those on a metastore.
"""

from __future__ import annotations

_BEHAVIOURS = "tests/catalog/test_catalog_behaviors.py::"
_SQL = "tests/catalog/test_sql.py::"
_CATALOG = "tests/integration/test_catalog.py::"
_READS = "tests/integration/test_reads.py::"
_REST = "tests/integration/test_rest_schema.py::"
_WRITES = "tests/integration/test_writes/test_writes.py::"
_CONSOLE = "tests/cli/test_console.py::"
_RETRY = "tests/table/test_commit_retry.py::"

_SCHEMAS = "two clients that add different columns both land: the second change is made on the schema of the first"
_SPECS = "two clients that add different partition fields both land: the second change is made on the spec of the first"
_MERGE = "manifests are merged later than after each append, since a merge costs as much as the history is long"
_RETRIES = (
    "no commit is retried by PyIceberg's loop, which the test watches: commits wait for each other, and one that "
)
_RETRIES += "meets another is planned again under the latch"
_ENTRY = "the test puts a fault into `commit_table`; tables of ours commit through the coordinator, not through it"
_PREDICATE = (
    "a delete by a filter is planned again on the table as it is, so it deletes what was appended meanwhile too"
)
_SEES = (
    "the delete takes its lock and then reads the table, so it sees the other client's delete and finds no row left, "
)
_SEES += "which PyIceberg tells by a warning"
_MAPPED = "the table has a name mapping, by which a file without field ids would show a dropped column as the new one"
_OWN = "a transaction follows what its own table object commits meanwhile, so both columns are added"
_NAN = "NaN is unequal to every number, as the scan with this filter shows: it is replaced with the rows that match"
_MARK = "the mark by which a namespace without properties is kept is not shown as one of them, as in Iceberg Java"
_NAMED = "the message names the table with its namespace"
_DECLARED = "a new table on a metastore says in a property of its own which lock manager its writers use"

DEVIATIONS: dict[str, dict[str, str]] = {
    "sql": {
        "tests/catalog/test_base.py::test_catalog_repr": "the text names the class, and ours is another one",
        f"{_BEHAVIOURS}test_concurrent_commit_table": _SCHEMAS,
        f"{_BEHAVIOURS}test_load_empty_namespace_properties": _MARK,
        f"{_BEHAVIOURS}test_create_namespace_with_null_properties": "UpdatesDoNotFit names the constraint",
        f"{_BEHAVIOURS}test_merge_manifests_local_file_system": _MERGE,
        f"{_SQL}test_creation_with_no_uri": "our ConfigError says which URIs there are",
        f"{_SQL}test_creation_with_unsupported_uri": "our ConfigError says which URIs there are",
        f"{_CONSOLE}test_rename_table_does_not_exists": _NAMED,
        f"{_CONSOLE}test_json_rename_table_does_not_exists": _NAMED,
        f"{_CATALOG}test_update_schema_conflict": _SCHEMAS,
        f"{_CATALOG}test_update_table_spec_conflict": _SPECS,
        f"{_WRITES}test_merge_manifests": _MERGE,
        f"{_WRITES}test_avro_compression_codecs": "manifest lists are always deflated; the property is for manifests",
        f"{_WRITES}test_append_to_non_existing_branch": "refused with the same error class, in words of ours",
        f"{_RETRY}test_commit_retry_on_commit_failed": _RETRIES,
        f"{_RETRY}test_commit_retry_on_non_main_branch": _RETRIES,
        f"{_RETRY}test_concurrent_delete_append_retries_successfully": _RETRIES,
        f"{_RETRY}test_manifest_list_cleanup_on_retry": _RETRIES,
        f"{_RETRY}test_retry_exhaustion_raises_commit_failed": _RETRIES,
        f"{_RETRY}test_uncommitted_manifests_tracked_correctly": _RETRIES,
        f"{_RETRY}test_reusing_a_failed_transaction_cannot_publish_deleted_files": _ENTRY,
        f"{_RETRY}test_unknown_commit_outcome_keeps_the_committed_files": _ENTRY,
        f"{_RETRY}test_concurrent_append_delete_raises_validation_exception": _PREDICATE,
        f"{_RETRY}test_delete_that_matched_nothing_at_staging_still_validates": _PREDICATE,
        f"{_RETRY}test_snapshot_isolation_allows_concurrent_append_delete": _PREDICATE,
        f"{_RETRY}test_snapshot_isolation_delete_does_not_remove_rows_it_never_saw": _PREDICATE,
        "tests/integration/test_deletes.py::test_delete_overwrite_table_with_nan": _NAN,
        "tests/table/test_upsert.py::test_upsert_with_struct_field_as_join_key": (
            "refused as well, before rows are compared, with our StatementError that names the column"
        ),
        f"{_REST}test_delete_then_add": _MAPPED,
        f"{_REST}test_delete_then_add_nested": _MAPPED,
        f"{_REST}test_schema_evolution_via_transaction": _OWN,
        f"{_RETRY}test_clean_all_uncommitted_on_validation_exception": _SEES,
        f"{_RETRY}test_concurrent_delete_delete_raises_validation_exception": _SEES,
        f"{_RETRY}test_manifest_list_cleanup_on_abort": _SEES,
    },
    "hive": {
        f"{_CATALOG}test_update_table_spec_conflict": _SPECS,
        f"{_READS}test_hive_locking": "refused with the same error class, in words of ours that name the lock holder",
        f"{_READS}test_table_properties": _DECLARED,
        f"{_READS}test_table_properties_dict": _DECLARED,
    },
}
