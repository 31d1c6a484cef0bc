"""Mutants of catalogs and of what maintains their tables."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEVERAL = "tests/catalog/test_several_tables.py::"
_AFTER = "tests/coordinator/test_after_the_swap.py::test_"
_VIEWS = "tests/catalog/test_views.py::"
_BROKEN = "tests/catalog/test_broken_connections.py::test_no_broken_connection_misjudges_a_change"
_ANSWERS = "tests/hive/test_answers.py::test_no_answer_of_a_metastore_misjudges_a_change"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a-namespace-that-two-clients-create",
        "catalog/sql.py",
        '            raise NamespaceAlreadyExistsError(f"Namespace {namespace} already exists") from error\n',
        "            raise\n",
        "tests/catalog/test_calls_between.py::test_a_call_between_two_statements_of_another_ends_in_words"
        "[create_namespace-create_namespace-False-nothing there]",
    ),
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
        "coordinator/history.py",
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
        "coordinator/history.py",
        '"metadata" if none_is_missing else "unknown"',
        '"metadata"',
        "tests/cli/test_cli.py::test_an_append_whose_snapshot_was_expired_is_no_change_of_metadata[2]",
    ),
    Mutant(
        "a-commit-hidden-by-its-millisecond",
        "coordinator/history.py",
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
        "                    return False  # what was swapped before it is rolled back\n",
        "                    return False\n                connection.commit()\n",
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
        "        if landed:\n",
        "        if False:\n",
        f"{_SEVERAL}test_a_repeat_that_one_table_alone_remembers_lands_nothing[memory]",
    ),
    Mutant(
        "a-refusal-in-one-table-refuses-all",
        "coordinator/several.py",
        "        for kind in (Refusal, NeedsReplan):\n",
        "        for kind in (NeedsReplan,):\n",
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
    Mutant(
        "what-a-swap-raises-proves-a-failure",
        "protocol/commit.py",
        "            if (yield Locate(planned)) is not Where.IN_LOG:\n",
        "            if True:\n",
        _AFTER + "no_failure_after_the_swap_looks_like_a_commit_that_did_not_land[sqlite]",
    ),
    Mutant(
        "an-error-after-the-swap-proves-a-failure",
        "coordinator/driving.py",
        "        if not is_sent():\n",
        "        if True:\n",
        _AFTER + "no_failure_after_the_swap_looks_like_a_commit_that_did_not_land[sqlite]",
    ),
    Mutant(
        "an-error-of-a-table-after-its-commit",
        "table/committing.py",
        "        except Exception as error:\n            raise CommitStateUnknown(\n",
        "        except ZeroDivisionError as error:\n            raise CommitStateUnknown(\n",
        _AFTER + "no_failure_after_the_swap_looks_like_a_commit_that_did_not_land[sqlite]",
    ),
    Mutant(
        "a-property-is-true-or-an-error",
        "coordinator/outcome.py",
        'payload.base is None or asked.strip().lower() != "true" or',
        'payload.base is None or not {"true": True, "false": False}[asked] or',
        _AFTER + "a_property_that_is_neither_true_nor_false_fails_no_commit_that_has_landed[sqlite-enabled]",
    ),
    Mutant(
        "a-swap-that-is-not-sent-again-proves-a-failure",
        "catalog/metastore/pointers.py",
        "                if refusals:  # Of the change that was refused before this one, nothing is proven.\n",
        "                if False:\n",
        f"{_ANSWERS}[none-honoured-append]",
    ),
    Mutant(
        "a-creation-that-is-not-sent-again-proves-a-failure",
        "catalog/metastore/pointers.py",
        "                if refusals:  # Of the creation that was refused before this one, nothing is proven.\n",
        "                if False:\n",
        f"{_ANSWERS}[none-honoured-creation_with_rows]",
    ),
    Mutant(
        "one-refusal-of-a-creation-proves-a-failure",
        "catalog/metastore/pointers.py",
        "                if len(refusals) > 1:  # as in :meth:`alter`\n",
        "                if True:\n",
        f"{_ANSWERS}[none-honoured-creation_of_a_view]",
    ),
    Mutant(
        "a-creation-that-can-not-be-looked-up-proves-a-failure",
        "catalog/metastore/pointers.py",
        "                except (MetastoreUnavailable, MetaError, ServerFailed):\n",
        "                except ZeroDivisionError:\n",
        f"{_ANSWERS}[none-honoured-creation_with_rows]",
    ),
    Mutant(
        "a-rename-without-a-condition-takes-no-lock",
        "catalog/metastore/administration.py",
        "CompareAndSet.HONOURED and not is_locked:",
        "CompareAndSet.HONOURED and is_locked:",
        "tests/unit/test_administration.py::test_a_rename_without_a_condition_takes_no_commit_back",
    ),
    Mutant(
        "a-creation-in-doubt-is-a-failure",
        "catalog/metastore/administration.py",
        "                if not in_doubt:\n",
        "                if True:\n",
        f"{_ANSWERS}[none-honoured-creation]",
    ),
    Mutant(
        "a-table-without-its-guard-is-not-there",
        "catalog/metastore/guards.py",
        "                self.stand_for_swap(table, location)\n        except Exception:\n",
        "                self.stand_for_swap(table, location)\n        except LockServiceUnavailable:\n",
        f"{_ANSWERS}[memory-honoured-creation_with_rows]",
    ),
    Mutant(
        "a-full-pool-after-a-commit-is-a-failure",
        "catalog/sql_changes.py",
        "    except Exception:  # also of the pool",
        "    except IntegrityError:  # also of the pool",
        "tests/unit/test_sql_changes.py::test_a_failure_after_the_commit_is_a_lost_reply",
    ),
    Mutant(
        "a-change-of-the-database-is-sent-twice",
        "catalog/sql_changes.py",
        "        if is_sent:\n            return SwapResult.LOST_REPLY\n",
        "",
        f"{_BROKEN}[replacement_of_a_view-once]",
    ),
    Mutant(
        "what-breaks-after-a-commit-proves-a-failure",
        "catalog/sql_changes.py",
        "        if not is_sent:\n            raise\n",
        "        raise\n",
        f"{_BROKEN}[append-for good]",
    ),
    Mutant(
        "a-drop-in-doubt-has-failed",
        "catalog/sql_views.py",
        "            if not lost:\n                raise\n",
        "            raise\n",
        f"{_BROKEN}[drop_of_a_view-for good]",
    ),
    Mutant(
        "a-refusal-in-one-table-denies-what-landed",
        "coordinator/several.py",
        "        if landed:\n",
        "        if landed and not any(isinstance(result, Refusal | NeedsReplan) for result in results):\n",
        f"{_SEVERAL}test_a_repeat_is_answered_whatever_became_of_another_table_since[memory-deletes-lose_a_column]",
    ),
    Mutant(
        "a-table-that-was-dropped-since-puts-its-commit-in-doubt",
        "coordinator/several.py",
        "        except NoSuchTableError:\n            return None\n",
        "        except ZeroDivisionError:\n            return None\n",
        f"{_SEVERAL}test_a_repeat_is_answered_whatever_became_of_another_table_since[memory-appends-drop]",
    ),
    Mutant(
        "a-missing-file-is-a-refusal",
        "coordinator/planning.py",
        "            # Not returned as a reason:",
        "            return str(error)  # Not returned as a reason:",
        "tests/catalog/test_commit_requests.py::test_a_file_that_is_missing_denies_no_other_copy_of_a_commit",
    ),
)
