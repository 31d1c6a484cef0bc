"""Mutants of catalogs and of what maintains their tables."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SEVERAL = "tests/catalog/test_several_tables.py::"
_AFTER = "tests/coordinator/test_after_the_swap.py::test_"
_VIEWS = "tests/catalog/test_views.py::"
_BROKEN = "tests/catalog/test_broken_connections.py::test_no_broken_connection_misjudges_a_change"
_LOST = "test_no_change_hits_what_another_client_made_while_its_reply_was_lost"
_HITS_SQL, _HITS_HIVE = (
    f"tests/{file}.py::{_LOST}" for file in ("catalog/test_broken_connections", "hive/test_answers")
)
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
        "a-metadata-file-of-another-phase-is-registered",
        "catalog/metastore/properties.py",
        "        if registered != there:\n",
        "        if registered.epoch > there.epoch:\n",
        "tests/hive/test_migration.py::"
        "test_a_metadata_file_of_another_phase_is_not_registered_in_the_place_of_the_table",
    ),
    Mutant(
        "another-table-denies-a-creation",
        "coordinator/publishing.py",
        "                if plan.base in log:\n",
        "                if plan.base in log or plan.base is None:\n",
        "tests/coordinator/test_lost_replies.py::test_a_creation_is_not_denied_when_another_table_has_its_name",
    ),
    Mutant(
        "a-creation-that-is-overtaken-on-a-metastore-is-in-doubt",
        "catalog/hive.py",
        "self.pointers.create(new, location, taken=SwapResult.MOVED)",
        "self.pointers.create(new, location)",
        "tests/hive/test_answers.py::test_a_creation_that_another_client_overtakes_is_a_conflict",
    ),
    Mutant(
        "a-registration-whose-reply-was-lost-is-not-looked-for",
        "catalog/base.py",
        "                case SwapResult.LOST_REPLY if not self._is_seen(table, metadata_location):\n",
        "                case SwapResult.LOST_REPLY:\n",
        "tests/catalog/test_broken_connections.py::test_a_registration_whose_reply_was_lost_is_looked_for",
    ),
    Mutant(
        "a-registration-is-sent-as-pyiceberg-sends-it",
        "catalog/base.py",
        "                self._add(table, metadata_location, registered)\n",
        "                super().register_table(identifier, metadata_location)\n",
        "tests/catalog/test_broken_connections.py::test_a_registration_whose_reply_was_lost_is_looked_for",
    ),
    Mutant(
        "an-old-plan-brings-deleted-rows-back",
        "coordinator/planning.py",
        "        if run.is_repair and (known :=",
        "        if run.is_repair and not pointer and (known :=",
        "tests/catalog/test_overwritten.py::test_an_old_plan_does_not_bring_rows_back_that_were_deleted_since[memory]",
    ),
    Mutant(
        "a-plan-is-older-than-the-history",
        "coordinator/planning.py",
        '        return Refusal(\n            reason="the search for lost commits is out of date',
        '        return None and Refusal(\n            reason="the search for lost commits is out of date',
        "tests/catalog/test_overwritten.py::test_a_plan_that_is_older_than_the_history_is_refused[memory]",
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
        "catalog/creating.py",
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
        "coordinator/multi_table.py",
        "        for certain in (Where.IN_LOG, Where.NOT_IN_LOG, Where.UNDECIDED):\n",
        "        for certain in (Where.UNDECIDED,):\n",
        f"{_SEVERAL}test_a_lost_swap_that_another_commit_has_overtaken_in_one_table_lands_anew[memory]",
    ),
    Mutant(
        "a-repeat-of-several-is-looked-up",
        "coordinator/multi_table.py",
        "        if landed:\n",
        "        if False:\n",
        f"{_SEVERAL}test_a_repeat_that_one_table_alone_remembers_lands_nothing[memory]",
    ),
    Mutant(
        "a-refusal-in-one-table-refuses-all",
        "coordinator/multi_table.py",
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
        "                except (MetastoreUnavailable, MetaError, MetastoreServerFailed):\n",
        "                except ZeroDivisionError:\n",
        f"{_ANSWERS}[none-honoured-creation_with_rows]",
    ),
    Mutant(
        "what-follows-a-creation-looks-like-its-failure",
        "catalog/creating.py",
        "            return self._made(table, place, metadata)\n",
        "            return self.load_table(table)\n",
        f"{_ANSWERS}[none-honoured-creation]",
    ),
    Mutant(
        "what-follows-a-registration-looks-like-its-failure",
        "catalog/base.py",
        "                return self._made(table, metadata_location, registered)\n",
        "                return self.load_table(table)\n",
        f"{_ANSWERS}[none-honoured-registration]",
    ),
    Mutant(
        "what-follows-a-rename-looks-like-its-failure",
        "catalog/base.py",
        "            except Exception as error:\n                raise CommitStateUnknown(\n"
        '                    "the table was renamed,',
        "            except ZeroDivisionError as error:\n                raise CommitStateUnknown(\n"
        '                    "the table was renamed,',
        f"{_ANSWERS}[none-honoured-rename]",
    ),
    Mutant(
        "one-refusal-of-a-rename-proves-that-it-is-none",
        "catalog/metastore/pointers.py",
        "                if refusals or altered.tableName != name or altered.dbName != table[0]:\n",
        "                if False:\n",
        f"{_ANSWERS}[none-honoured-rename]",
    ),
    Mutant(
        "a-drop-that-a-server-repeats-finds-no-table",
        "catalog/metastore/administration.py",
        "except (LostReply, MetaError, MetastoreServerFailed, NoSuchObject) as error:\n",
        "except (LostReply, MetaError, MetastoreServerFailed) as error:\n",
        f"{_ANSWERS}[none-honoured-drop]",
    ),
    Mutant(
        "a-drop-whose-reply-was-lost-is-a-drop-sql",
        "catalog/sql_changes.py",
        "        if result is SwapResult.LOST_REPLY:\n",
        "        if False:\n",
        f"{_BROKEN}[drop_of_a_table-for good]",
    ),
    Mutant(
        "a-rename-without-a-condition-takes-no-lock",
        "catalog/metastore/administration.py",
        "CompareAndSet.HONOURED and not is_locked:",
        "CompareAndSet.HONOURED and is_locked:",
        "tests/unit/test_administration.py::test_a_rename_without_a_condition_takes_no_commit_back",
    ),
    Mutant(
        "the-file-of-a-creation-in-doubt-is-deleted",
        "catalog/sql.py",
        "        if result is SwapResult.MOVED:\n            raise TableAlreadyExistsError",
        "        if result is not SwapResult.SWAPPED:\n            raise TableAlreadyExistsError",
        "tests/catalog/test_broken_connections.py::test_a_creation_whose_reply_was_lost_keeps_the_metadata_file",
    ),
    Mutant(
        "repair-restores-again-what-has-left-the-files",
        "catalog/repair/histories.py",
        "request_id in self._published or any(",
        "any(",
        "tests/catalog/test_overwritten.py::test_what_was_restored_and_is_in_no_file_any_more_is_not_added_again",
    ),
    Mutant(
        "repair-forgets-what-it-has-not-shown",
        "catalog/repair/__init__.py",
        "forget(coordinator, repair.table, repair.looked_at)",
        "forget(coordinator, repair.table)",
        "tests/catalog/test_overwritten.py::test_what_is_lost_while_a_user_is_asked_is_not_forgotten",
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
        "                self.place_for_swap(table, location)\n        except Exception:\n",
        "                self.place_for_swap(table, location)\n        except LockServiceUnavailable:\n",
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
        "a-drop-whose-reply-was-lost-is-sent-again-sql",
        "catalog/sql_changes.py",
        "            if result is not SwapResult.MOVED or location is not None or self._pointer(name) == base:\n",
        "            if result is SwapResult.SWAPPED:\n",
        f"{_HITS_SQL}[drop_of_a_view]",
    ),
    Mutant(
        "a-drop-whose-reply-was-lost-is-sent-again-hive",
        "catalog/metastore/administration.py",
        "            self._client.drop_table(database, name, deleteData=False)\n        except (",
        "            try:\n                self._client.drop_table(database, name, deleteData=False)\n"
        "            except LostReply:\n                self._client.drop_table(database, name, deleteData=False)\n"
        "        except (",
        f"{_HITS_HIVE}[none-honoured-drop_of_a_view]",
    ),
    Mutant(
        "a-rename-is-sent-again-for-another-table",
        "catalog/metastore/administration.py",
        "                if sent and (there is not None or sent.isdisjoint(pointers)):\n",
        "                if sent and (there is not None or found is None):\n",
        f"{_HITS_HIVE}[none-honoured-rename]",
    ),
    Mutant(
        "a-rename-in-doubt-is-not-sent-again",
        "catalog/metastore/administration.py",
        "                if sent and (there is not None or sent.isdisjoint(pointers)):\n",
        "                if sent:\n",
        "tests/unit/test_administration.py::"
        "test_a_rename_is_sent_again_for_the_table_that_others_have_changed_meanwhile[view]",
    ),
    Mutant(
        "what-landed-in-one-table-is-planned-again-in-another",
        "coordinator/multi_table.py",
        "        if landed:\n",
        "        if landed and all(isinstance(result, NothingToSwap) for result in results):\n",
        f"{_SEVERAL}test_a_repeat_is_answered_whatever_became_of_another_table_since[memory-meanwhile-appends-forget]",
    ),
    Mutant(
        "a-table-that-was-dropped-since-puts-its-commit-in-doubt",
        "coordinator/multi_table.py",
        "        except NoSuchTableError:\n            return None\n",
        "        except ZeroDivisionError:\n            return None\n",
        f"{_SEVERAL}test_a_repeat_is_answered_whatever_became_of_another_table_since[memory-meanwhile-appends-drop]",
    ),
    Mutant(
        "a-missing-file-is-a-refusal",
        "coordinator/planning.py",
        "            # Raise, do not refuse:",
        "            return str(error)  # Raise, do not refuse:",
        "tests/catalog/test_commit_requests.py::test_a_file_that_is_missing_denies_no_other_copy_of_a_commit",
    ),
    Mutant(
        "the-first-attempt-does-not-count",
        "hms/calls.py",
        "                if first:\n",
        "                if False:\n",
        "tests/unit/test_hms_calls.py::test_the_time_and_the_server_of_the_first_attempt_count",
    ),
)
