"""Mutants of transactions and tables: what a call has read, and what it may be planned again for."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TX = "table/transaction.py"
_ISOLATION = "tests/catalog/test_isolation.py::test_"
_CREATED = "tests/catalog/test_created_files.py::test_"
_STALE = "tests/catalog/test_stale_handles.py::test_what_stale_handles_commit_is_what_a_serial_order_gives"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "an-expiry-knows-the-refs-of-its-base-alone",
        "iceberg/rebase.py",
        "protected = {ref.snapshot_id for ref in head.refs.values()}",
        "protected = set[int]()",
        "tests/catalog/test_expiry.py::"
        "test_a_stale_expiry_spares_the_snapshots_that_others_refer_to_meanwhile[id-branch]",
    ),
    Mutant(
        "rows-computed-from-old-ones-land",
        _TX,
        "            if change is not None:\n",
        "            if change is None and not head:\n",
        _ISOLATION + "rows_that_were_computed_from_old_ones_are_refused",
    ),
    Mutant(
        "rows-computed-from-old-ones-land-the-generator",
        _TX,
        "            if change is not None:\n",
        "            if change is None and not head:\n",
        _STALE,
    ),
    Mutant(
        "a-lock-hides-that-a-handle-is-stale",
        _TX,
        "        self._seen = seen or self._base\n",
        "        self._seen = self._base\n",
        _STALE,
    ),
    Mutant(
        "a-delete-and-an-append-in-one-transaction-are-no-overwrite",
        _TX,
        "*(self._removed if self._rows_given else ())",
        "*(() if self._rows_given else ())",
        _STALE,
    ),
    Mutant(
        "a-refused-call-moves-the-handle-to-the-head",
        "table/table.py",
        "            self.metadata, self.metadata_location = seen\n            raise\n",
        "            raise\n",
        _ISOLATION + "the_same_rows_are_refused_again",
    ),
    Mutant(
        "a-snapshot-that-is-gone-proves-that-nothing-changed",
        "table/isolation.py",
        "        if snapshot is None:\n            return f",
        "        if snapshot is None:\n            return None and f",
        _ISOLATION + "a_snapshot_that_is_gone_is_no_proof",
    ),
    Mutant(
        "a-compaction-is-a-change-of-rows",
        "table/isolation.py",
        "snapshot.summary.operation is Operation.REPLACE",
        "snapshot.summary.operation is None",
        _ISOLATION + "a_compaction_is_no_change",
    ),
    Mutant(
        "snapshot-isolation-is-planned-on-the-head",
        _TX,
        "            self._move_to(*self._seen)\n",
        "            pass\n",
        _ISOLATION + "snapshot_isolation_keeps_what_was_added_and_refuses_what_was_removed",
    ),
    Mutant(
        "a-stale-delete-that-found-nothing-is-acknowledged",
        _TX,
        "            self._look_again()\n",
        "            pass\n",
        _ISOLATION + "a_stale_call_that_finds_nothing_looks_at_the_table_as_it_is",
    ),
    Mutant(
        "a-stale-delete-that-found-nothing-is-acknowledged-the-generator",
        _TX,
        "            self._look_again()\n",
        "            pass\n",
        _STALE,
    ),
    Mutant(
        "a-schema-is-known-by-its-id",
        _TX,
        "or self._evolves() or not self._only_appends()",
        "or not self._only_appends()",
        _ISOLATION + "a_name_that_a_stale_handle_gives_is_the_one_that_it_meant",
    ),
    Mutant(
        "an-update-reads-with-the-columns-of-the-last-snapshot",
        "table/isolation.py",
        "    return metadata.model_copy(update=",
        "    return metadata if branch in metadata.refs else metadata.model_copy(update=",
        _ISOLATION + "rows_are_read_with_the_columns_that_the_table_has_now",
    ),
    Mutant(
        "an-upsert-matches-with-the-columns-of-the-last-snapshot",
        _TX,
        "        if self._matching and self._depth == 1:\n",
        "        if self._matching and self._depth == 99:\n",
        _ISOLATION + "rows_are_read_with_the_columns_that_the_table_has_now",
    ),
    Mutant(
        "a-name-may-mean-another-column",
        _TX,
        "        if self._by_name and (name :=",
        "        if not head and (name :=",
        _ISOLATION + "a_name_that_means_another_column_now_is_refused",
    ),
    Mutant(
        "a-lock-ends-with-the-collector",
        _TX,
        "            if outermost and self._autocommit and not self._sent:\n                self._unlock()\n",
        "            if outermost and self._autocommit and not self._sent:\n",
        _ISOLATION + "no_lock_stays_while_somebody_keeps_the_error",
    ),
    Mutant(
        "a-table-that-was-made-again-keeps-the-lock",
        _TX,
        "            except BaseException:\n                self._unlock()\n                raise\n\n    def _see",
        "            except BaseException:\n                raise\n\n    def _see",
        _ISOLATION + "no_lock_stays_while_somebody_keeps_the_error",
    ),
    Mutant(
        "a-transaction-ignores-a-refresh-of-its-table",
        _TX,
        "        if shown is self._shown:\n            return\n",
        "        if shown is self._shown or True:\n            return\n",
        _ISOLATION + "a_transaction_follows_a_refresh_of_its_table",
    ),
    Mutant(
        "files-stay-when-the-attempt-cant-be-made",
        _TX,
        "            attempt = self._attempt() if self._updates or self._pending is not None else None\n"
        "        except BaseException:\n            self._abandon()\n",
        "            attempt = self._attempt() if self._updates or self._pending is not None else None\n"
        "        except BaseException:\n            self._unlock()\n",
        _ISOLATION + "files_of_a_call_that_fails_before_its_attempt_are_deleted",
    ),
    Mutant(
        "a-column-that-partitions-need-is-dropped-in-vain",
        _TX,
        "        if any(isinstance(update, _EVOLUTIONS) for update in updates):\n            try:\n",
        "        if not updates:\n            try:\n",
        _ISOLATION + "a_column_that_partitions_or_orders_need_is_kept_with_pyicebergs_error",
    ),
    Mutant(
        "a-branch-stands-on-nothing",
        _TX,
        "        if branch not in self._table.metadata.refs:\n",
        "        if not branch:\n",
        _ISOLATION + "a_branch_needs_a_snapshot_to_stand_on",
    ),
    Mutant(
        "a-filter-that-no-column-can-meet-is-a-raw-error",
        _TX,
        "    except (TypeError, ArithmeticError, KeyError) as error:\n        raise StatementError",
        "    except LookupError as error:\n        raise StatementError",
        _ISOLATION + "a_filter_that_a_column_can_not_meet_is_refused_with_words",
    ),
    Mutant(
        "reads-of-a-column-that-never-was",
        "table/transaction.py",
        "        self._refuse_unknown_columns(row_filter, case_sensitive)\n        read =",
        "        read =",
        _ISOLATION + "reads_of_a_column_that_never_was_are_refused",
    ),
    Mutant(
        "a-change-of-nothing-on-an-old-table-is-acknowledged",
        _TX,
        "            elif not updates:\n                self._reads = True",
        "            elif not updates:\n                self._reads |= False",
        _ISOLATION + "a_change_of_nothing_holds_on_the_table_as_it_is_or_is_refused",
    ),
    Mutant(
        "a-column-that-a-stale-handle-makes-the-first-one-is-not",
        _TX,
        "            elif not updates:\n                self._reads = True",
        "            elif not updates:\n                self._reads |= False",
        _ISOLATION + "a_column_is_the_first_one_when_a_stale_handle_was_told_so",
    ),
    Mutant(
        "a-schema-change-means-whatever-has-the-name-by-now",
        "table/calls.py",
        "            transaction._names_columns(seen=self._seen)\n",
        "",
        _ISOLATION + "a_change_of_a_column_that_has_another_name_now_is_refused",
    ),
    Mutant(
        "a-builder-forgets-which-columns-its-caller-saw",
        "table/calls.py",
        "            transaction._names_columns(seen=self._seen)\n",
        "            transaction._names_columns()\n",
        _ISOLATION + "a_builder_keeps_to_the_columns_that_its_caller_saw_when_the_table_is_refreshed",
    ),
    Mutant(
        "a-schema-change-is-compared-with-what-a-lock-has-shown",
        "table/calls.py",
        "self._operation, look=False)",
        "self._operation)",
        _ISOLATION + "what_somebody_else_has_changed_is_not_changed_by_a_stale_handle",
    ),
    Mutant(
        "a-property-is-compared-with-what-a-lock-has-shown",
        _TX,
        "            self._refuse_overlap(self._base[0])\n",
        "",
        _ISOLATION + "what_somebody_else_has_changed_is_not_changed_by_a_stale_handle",
    ),
    Mutant(
        "a-thread-goes-on-to-create-files-of-a-call-that-has-failed",
        "table/created_files.py",
        "            if self._abandoned:\n",
        "            if self._abandoned is None:\n",
        _CREATED + "a_file_that_another_thread_begins_after_the_failure_is_not_created",
    ),
    Mutant(
        "files-are-deleted-while-they-are-written",
        "table/created_files.py",
        "                self._changed.wait_for(lambda: all(",
        "                self._changed.wait_for(lambda: True or all(",
        _CREATED + "what_another_thread_is_writing_is_deleted_when_it_is_written",
    ),
    Mutant(
        "the-reason-of-a-refusal-is-only-in-its-cause",
        "table/table.py",
        "could not be prepared: {type(error).__name__}: {error}",
        "could not be prepared",
        "tests/catalog/test_bad_input.py::test_why_files_can_not_be_committed_is_said",
    ),
)
