"""Mutants of the lock managers and of the owners of locks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PROCESS = "tests/test_process.py::"

_ANY_NAME = (
    "tests/contract/test_lock_managers.py::TestLockManagers::"
    "test_a_name_excludes_as_any_other_or_is_refused_in_words_before_anything_is_locked"
)

_ANY_OWNER = "tests/contract/test_lock_managers.py::TestLockManagers::test_an_owner_may_say_anything_of_itself"

_ABANDONED = (
    "tests/contract/test_zookeeper.py::test_a_lock_statement_that_is_killed_elsewhere_while_it_waits_locks_nothing"
)
_OF_ZOOKEEPER = "tests/contract/test_zookeeper.py::"

_CONTRACT = "tests/contract/test_lock_managers.py::TestLockManagers::"

_OUTAGE = "tests/catalog/test_outages.py::test_a_commit_whose_lock_service_is_away_has_not_landed_and_leaves_no_file"

_LOCKS = (
    Mutant(
        "a-lock-that-is-interrupted-on-its-way-stays",
        "locks/queue_manager.py",
        "        except BaseException:\n            self.give_up(acquire.request)\n            raise\n",
        "        except BaseException:\n            raise\n",
        "tests/unit/test_memory_locks.py::test_a_lock_of_a_lock_statement_that_is_interrupted_on_its_way_is_given_back",
    ),
    Mutant(
        "an-idle-heartbeat-sleeps-as-it-was-configured",
        "locks/keeping.py",
        "idle=lambda: service.interval,",
        "idle=lambda: service.settings.heartbeat_interval_ms / 2000,",
        "tests/unit/test_heartbeat.py::"
        "test_zookeeper_s_heartbeat_sleeps_as_the_session_allows_that_the_servers_agreed_to",
    ),
    Mutant(
        "a-metastore-lists-names-as-they-were-sent",
        "locks/hms/names.py",
        "tuple(name.lower() for name in resource.path[:2])",
        "tuple(name for name in resource.path[:2])",
        "tests/hive/test_locks.py::test_a_remote_holder_that_stopped_is_freed_by_its_waiter[names of a SQL catalog]",
    ),
    Mutant(
        "a-list-that-arrives-late-ends-the-search",
        "locks/hms/calls.py",
        "            if asked >= until:\n",
        "            if self._clock.now() >= until:\n",
        "tests/unit/test_hms_orphans.py::test_a_list_that_arrives_late_does_not_end_the_search",
    ),
    Mutant(
        "what-proc-does-not-show-has-ended",
        "process.py",
        "            raise\n        return False\n    return state in _ENDED",
        "            raise\n        return True\n    return state in _ENDED",
        f"{_PROCESS}test_a_process_that_proc_does_not_show_is_not_dead[2]",
    ),
    Mutant(
        "a-heartbeat-ends-with-a-listener-that-exits",
        "locks/heartbeat.py",
        "            except BaseException:\n                # One beat",
        "            except Exception:\n                # One beat",
        "tests/unit/test_heartbeat.py::test_a_beat_that_fails_is_not_the_last",
    ),
    Mutant(
        "a-heartbeat-that-ended-is-not-replaced",
        "locks/heartbeat.py",
        "                if self._thread is threading.current_thread():\n                    self._thread = None\n",
        "                pass\n",
        "tests/unit/test_heartbeat.py::test_a_thread_that_ended_is_replaced",
    ),
    Mutant(
        "a-lost-lease-is-told-before-it-is-forgotten",
        "locks/keeping.py",
        "        if not lease._change(state, reason or",
        "        if not lease._transition(state, reason or",
        "tests/contract/test_lease.py::test_a_lost_lease_whose_listener_ends_the_thread_is_extended_no_more",
    ),
    Mutant(
        "a-holder-that-was-freed-ends-requests",
        "locks/memory_space.py",
        "        if self._tickets.get(holder.request.request_id) is not holder:\n",
        "        if not holder:\n",
        "tests/unit/test_memory_locks.py::test_a_holder_that_is_freed_and_does_not_know_it_yet_ends_nobody",
    ),
    Mutant(
        "both-locks-stay-after-an-error",
        "locks/migration/manager.py",
        "    except BaseException:\n        lease.release()\n        raise\n",
        "    except BaseException:\n        raise\n",
        "tests/unit/test_migration.py::test_an_error_after_the_locks_are_taken_leaves_none",
    ),
    Mutant(
        "a-lock-statement-that-is-interrupted-keeps-its-lock",
        "sql/session.py",
        "                self.catalog.locks.unlock(request_id=request.request_id)\n            except LockError:",
        "                pass\n            except LockError:",
        "tests/sql/test_more_statements.py::test_a_lock_that_is_interrupted_at_any_line_locks_nothing",
    ),
    Mutant(
        "a-removal-in-postgresql-fails-with-its-waking",
        "locks/sql/requests.py",
        "if not named or self._may_be_there(request):",
        "if True:",
        "tests/contract/test_lease.py::test_locks_are_given_back_when_nobody_can_be_woken",
    ),
    Mutant(
        "a-process-of-another-user-has-ended",
        "process.py",
        "    except ProcessLookupError:\n        return True",
        "    except OSError:\n        return True",
        f"{_PROCESS}test_a_process_that_proc_does_not_show_is_not_dead[13]",
    ),
    Mutant(
        "command-names-are-text",
        "process.py",
        '.read_bytes().rpartition(b") ")[2].split()',
        '.read_text().encode().rpartition(b") ")[2].split()',
        f"{_PROCESS}test_a_command_name_is_any_bytes",
    ),
    Mutant(
        "names-are-not-trimmed-by-the-metastore",
        "catalog/metastore/names.py",
        "        if name != name.strip(_TRIMMED):\n",
        "        if not name:\n",
        "tests/hive/test_names.py::"
        "test_another_name_that_the_metastore_takes_for_a_table_is_refused_before_anything_is_locked[{}-t\\t]",
    ),
    Mutant(
        "names-lock-as-they-are-typed",
        "catalog/hive.py",
        "Resource((*folded(*names), *(key.lower() + equals + value for key, equals, value in levels)))",
        "resource",
        "tests/hive/test_names.py::test_a_lock_on_a_name_keeps_out_every_other_spelling[drop_namespace]",
    ),
    Mutant(
        "another-spelling-is-another-table-to-a-plan",
        "catalog/migration/sightings.py",
        "table=table.lower(),",
        "table=table,",
        "tests/hive/test_names.py::test_a_writer_that_locks_a_name_as_typed_is_reported_with_its_spelling",
    ),
    Mutant(
        "a-name-becomes-sql",
        "hms/locks.py",
        "            if _UNSAFE.search(name):",
        "            if False:",
        f"{_ANY_NAME}[hms]",
    ),
    Mutant(
        "what-an-owner-says-is-stored-as-it-is",
        "process.py",
        'return text.encode("utf-8", "replace").decode().replace("\\0", "?")',
        "return text",
        f"{_ANY_OWNER}[lease-postgresql]",
    ),
    Mutant(
        "what-an-owner-says-becomes-sql",
        "locks/hms/names.py",
        'text.translate(_UNQUOTED).encode("ascii", "replace")',
        'text.encode("ascii", "replace")',
        f"{_ANY_OWNER}[hms]",
    ),
    Mutant(
        "a-long-name-goes-into-an-index",
        "locks/sql/requests.py",
        "    if len(text) <= longest:",
        "    if text:",
        f"{_ANY_NAME}[lease-postgresql]",
    ),
    Mutant(
        "what-was-not-sent-is-in-doubt",
        "locks/zookeeper/queue.py",
        "if not request.offer or not sent or self.retract(request):",
        "if not request.offer or self.retract(request):",
        f"{_OUTAGE}[zookeeper-never reached]",
    ),
    Mutant(
        "a-connection-that-is-refused-is-in-doubt",
        "locks/sql/queue.py",
        "        self.requests.retries.until(deadline, self.requests.store.connection.reach)\n",
        "",
        f"{_OUTAGE}[lease-reached before]",
    ),
    Mutant(
        "a-heartbeat-waits-for-one-server",
        "locks/hms/service.py",
        "self.metastore.within(self.lease_seconds * _ANSWERED)",
        "self.metastore.within(3600)",
        "tests/hive/test_locks.py::test_one_metastore_of_two_that_hangs_costs_no_lease",
    ),
    Mutant(
        "heartbeats-of-others-are-known-while-a-client-waits",
        "locks/hms/service.py",
        "_REMEMBERED = 10\n",
        "_REMEMBERED = 0\n",
        "tests/contract/test_lock_managers.py::TestLockManagers::"
        "test_waits_that_are_shorter_than_a_lease_end_a_stalled_holder[hms]",
    ),
    Mutant(
        "a-release-waits-for-a-hung-server",
        "locks/hms/service.py",
        "with translated(ticket.request), self.metastore.within(BRIEFLY):",
        "with translated(ticket.request):",
        "tests/hive/test_locks.py::test_a_release_does_not_wait_for_a_metastore_that_hangs",
    ),
    Mutant(
        "a-closed-client-forgets-what-it-could-not-release",
        "locks/keeping.py",
        "            self._release_late()\n\n\ndef _is_suspect",
        "\n\ndef _is_suspect",
        "tests/hive/test_locks.py::test_a_client_that_is_closed_gives_back_what_it_could_not_release_before",
    ),
    Mutant(
        "parameters-are-those-of-an-earlier-read",
        "hms/client.py",
        """            return self._caller.repeat("get_table_req", GetTableRequest(dbName=db, tblName=table)).table
""",
        """            found = self._caller.repeat("get_table_req", GetTableRequest(dbName=db, tblName=table)).table
            first = self.__dict__.setdefault("first", {})
            return first.setdefault((db, table, found.parameters.get("metadata_location")), found)
""",
        "tests/hive/test_catalog.py::test_a_parameter_that_is_set_while_a_commit_is_prepared_stays",
    ),
    Mutant(
        "a-guard-outlives-its-table",
        "locks/hms/guard.py",
        "        if left or (left is None and doubted):\n",
        "        if False:\n",
        "tests/hive/test_guard.py::test_the_guard_of_a_table_that_another_client_dropped_goes_while_its_writers_live",
    ),
    Mutant(
        "a-latch-alone-has-another-answer",
        "catalog/locking.py",
        "        with before_a_change():\n            return self.coordinator.latch",
        "        with nullcontext():\n            return self.coordinator.latch",
        "tests/catalog/test_outages.py::test_a_call_that_changes_the_catalog_ends_in_an_outage_as_a_commit_does[lease]",
    ),
    Mutant(
        "a-statement-has-another-answer",
        "sql/session.py",
        "with self.catalog.lock_change(missing, statement=text):",
        "with self.catalog.lock_operation(missing, statement=text):",
        "tests/catalog/test_outages.py::test_a_statement_ends_in_an_outage_as_a_commit_does[lease]",
    ),
    Mutant(
        "locks-are-explained-before-they-are-lifted",
        "sql/session.py",
        "return self.catalog.lock_request(locks, statement=text).locks if locks else ()",
        "return locks",
        "tests/sql/test_statements.py::test_locks_are_explained_as_they_are_taken_where_there_are_too_many[memory]",
    ),
    Mutant(
        "a-long-name-loses-its-lock",
        "locks/sql/table.py",
        "        return Resource.parse(stored(resource))\n",
        "        return resource\n",
        "tests/sql/test_statements.py::test_a_partition_is_unlocked_by_its_name_however_long_that_is[lease-700]",
    ),
    Mutant(
        "a-long-name-is-not-unlocked",
        "catalog/locking.py",
        "not self.is_on(entry, resource)",
        "entry.resource != resource",
        "tests/cli/test_cli.py::test_unlock_finds_a_lock_whose_name_the_lock_service_cuts_off",
    ),
    Mutant(
        "what-was-granted-since-it-was-shown-is-freed",
        "catalog/locking.py",
        " if (e.request_id in had_waited) == (e.request_id in waiting)}",
        "}",
        "tests/cli/test_cli.py::test_unlock_leaves_a_waiter_that_was_granted_while_it_asked",
    ),
    Mutant(
        "what-was-freed-before-an-error-is-not-written-down",
        "catalog/locking.py",
        "                yield freed\n        finally:\n            if freed or",
        "                yield freed\n        except PermissionError:\n            raise\n"
        "        else:\n            if freed or",
        "tests/observing/test_observing.py::"
        "test_what_was_freed_before_the_lock_service_failed_is_recorded_and_emitted[unlock]",
    ),
    Mutant(
        "a-lock-that-can-not-be-looked-for-was-not-freed",
        "locks/sql/requests.py",
        "        except LockServiceUnavailable:\n            return True\n",
        "        except ZeroDivisionError:\n            return True\n",
        "tests/contract/test_partly_freed.py::"
        "test_whatever_a_release_by_force_meets_it_tells_what_is_free_and_what_may_be"
        "[lease-sqlite-before lasts refuses-unlock]",
    ),
    Mutant(
        "a-note-of-a-forced-release-is-left",
        "locks/hms/forced_release_notes.py",
        "                    self._metastore.unlock(note.lock_id)\n        return facts\n",
        "                    pass\n        return facts\n",
        "tests/hive/test_locks.py::test_a_note_of_a_forced_release_goes_when_its_waiter_has_read_it_or_after_an_hour",
    ),
    Mutant(
        "a-lock-of-a-transaction-keeps-the-others",
        "locks/hms/table.py",
        "                    continue\n                for ticket in list(self._tickets.values()):\n",
        "                    break\n                for ticket in list(self._tickets.values()):\n",
        "tests/unit/test_forcing.py::test_a_lock_of_a_transaction_keeps_no_other_lock",
    ),
    Mutant(
        "notes-of-dead-waiters-stay-for-ever",
        "locks/hms/forced_release_notes.py",
        "if note.heartbeat_ms < now_ms - FORCED_RELEASE_LIFETIME_MS:",
        "if note.heartbeat_ms < 0:",
        "tests/hive/test_locks.py::test_a_note_of_a_forced_release_goes_when_its_waiter_has_read_it_or_after_an_hour",
    ),
    Mutant(
        "two-clocks-say-that-a-lease-is-over",
        "locks/hms/table.py",
        "            left = left if left > 0 else None\n",
        "",
        "tests/hive/test_catalog.py::test_a_live_waiter_of_another_machine_is_spared_whatever_the_clocks_say",
    ),
    Mutant(
        "a-long-name-is-listed-twice",
        "locks/migration/sides.py",
        "key = *_key(entry), entry.scope",
        "key = entry.request_id, entry.resource, entry.scope",
        "tests/contract/test_lock_managers.py::TestLockManagers::test_a_lock_is_listed_and_freed_by_a_name_of_any_length[hms-to-zookeeper-both]",
    ),
    Mutant(
        "guards-wait-for-a-look",
        "locks/hms/guard.py",
        "            self._quietly(table, partial(self._keep, table, guard))\n",
        "            self._look_after(table)\n            self._quietly(table, partial(self._keep, table, guard))\n",
        "tests/hive/test_guard.py::test_an_outage_of_the_file_store_lets_no_guard_run_out[takes long]",
    ),
    Mutant(
        "an-error-of-one-table-ends-the-beat",
        "locks/hms/guard.py",
        "        except Exception as error:  # noqa: BLE001 - of a metastore",
        "        except LockServiceUnavailable as error:  # of a metastore",
        "tests/hive/test_guard.py::test_an_outage_of_the_file_store_lets_no_guard_run_out[fails]",
    ),
    Mutant(
        "a-table-that-can-not-be-read-stops-the-reaper",
        "catalog/metastore/guards.py",
        "            return self._looked_at(table)\n        except Exception:\n",
        "            return self._looked_at(table)\n        except ZeroDivisionError:\n",
        "tests/hive/test_guard.py::test_a_table_that_can_not_be_read_keeps_its_guard_and_stops_no_other_from_being_freed",
    ),
)

_ZOOKEEPER = (
    Mutant(
        "zookeeper-comes-back-because-it-left",
        "locks/zookeeper/queue.py",
        "            part.withdrawn = True\n",
        "            part.withdrawn = False\n",
        "tests/sim/test_zookeeper.py::test_a_waiter_behind_a_lock_of_hive_withdraws_once_and_comes_when_that_is_gone",
    ),
    Mutant(
        "zookeeper-sleeps-until-a-parent-is-due",
        "locks/zookeeper/service.py",
        "return min(_UNUSED / 4, self.interval) if",
        "return _UNUSED / 4 if",
        "tests/sim/test_zookeeper.py::test_a_lease_that_is_granted_while_nothing_else_is_held_is_kept",
    ),
    Mutant(
        "zookeeper-wipes-marks-of-other-nodes",
        "locks/zookeeper/entering.py",
        "[CheckNode(part.marker), change]",
        "[change]",
        "tests/contract/test_zookeeper.py::test_a_mark_on_a_parent_that_was_made_anew_is_not_wiped",
    ),
    Mutant(
        "a-crash-undoes-what-was-freed-by-force",
        "locks/sql/requests.py",
        "            durable=durable,\n",
        "            durable=False,\n",
        "tests/sim/test_dead_holders.py"
        "::test_a_lock_that_was_freed_by_force_has_one_holder_after_its_server_has_crashed",
    ),
    Mutant(
        "what-was-removed-without-a-wake-up-failed",
        "locks/sql/sqlite.py",
        '                raise Interrupted("the lock database failed", url=',
        '                raise LockServiceUnavailable("the lock database failed", url=',
        "tests/contract/test_lease.py::test_steps_that_landed_are_no_failure_when_nobody_can_be_woken[lease-sqlite]",
    ),
    Mutant(
        "a-crash-brings-a-lock-of-a-statement-back",
        "locks/sql/service.py",
        "durable=request.explicit,",
        "durable=False,",
        "tests/sim/test_dead_holders.py"
        "::test_the_lock_of_a_lock_statement_does_not_come_back_when_the_server_crashes_after_its_release",
    ),
    Mutant(
        "each-time-namespace-has-its-own-time",
        "locks/sql/sqlite.py",
        "int(self.clock.now() * 1000) - self._ahead_ms",
        "int(self.clock.now() * 1000)",
        "tests/contract/test_lease.py::test_a_holder_is_alive_in_every_time_namespace",
    ),
    Mutant(
        "zookeeper-offers-twice-when-it-steps-apart",
        "locks/zookeeper/queue.py",
        "        if ticket.offers and not self.retract(ticket.request):\n            # Keep",
        "        if False:\n            # Keep",
        "tests/contract/test_zookeeper.py"
        "::test_who_steps_apart_for_hive_does_not_publish_an_offer_that_was_taken_again",
    ),
    Mutant(
        "a-guard-waits-for-a-hung-server",
        "locks/hms/guard.py",
        "        with self._metastore.within(self._patience), _translated(table):\n",
        "        with _translated(table):\n",
        "tests/hive/test_guard.py::test_nothing_waits_for_long_for_a_metastore_that_hangs[remove]",
    ),
    Mutant(
        "an-outage-has-two-answers",
        "catalog/locking.py",
        "    except LockServiceUnavailable as error:\n        raise CommitLockFailed",
        "    except ZeroDivisionError as error:\n        raise CommitLockFailed",
        "tests/catalog/test_outages.py::test_a_call_that_changes_the_catalog_ends_in_an_outage_as_a_commit_does[lease]",
    ),
    Mutant(
        "an-engine-that-nobody-disposes-of",
        "catalog/sql.py",
        "        weakref.finalize(self, self.engine.dispose).atexit = False\n",
        "",
        "tests/catalog/test_left_open.py::test_a_catalog_that_nobody_closed_is_closed_when_it_is_collected[postgres]",
    ),
    Mutant(
        "a-released-latch-keeps-its-client",
        "locks/memory.py",
        "partial(_tell, weakref.ref(self._leases), request.request_id)",
        "lambda: self._leases.lost(request.request_id)",
        "tests/unit/test_memory_locks.py::test_what_is_noted_of_a_lease_keeps_no_client_alive",
    ),
    Mutant(
        "a-dead-holder-keeps-its-lock-for-three-leases",
        "locks/hms/heartbeat_log.py",
        "asked - seen >= agent.lease_ms / 1000",
        "asked - seen >= 3 * agent.lease_ms / 1000",
        "tests/sim/test_dead_holders.py::"
        "test_a_waiter_has_the_lock_of_a_dead_holder_one_lease_after_its_last_word[hms-1.0-operation]",
    ),
    Mutant(
        "zookeeper-counts-from-the-last-answer",
        "locks/zookeeper/service.py",
        "        return min(ticket.last_confirmed_at, self.session.heard.since)",
        "        return ticket.last_confirmed_at",
        "tests/sim/test_zookeeper.py::test_a_lease_is_believed_in_no_longer_than_the_leader_keeps_its_session",
    ),
    Mutant(
        "zookeeper-hears-of-a-packet-at-once",
        "locks/zookeeper/session_age.py",
        "answered <= sent - relay:",
        "answered <= sent:",
        "tests/unit/test_zookeeper_heard.py::test_a_client_never_believes_that_the_leader_heard_of_it_later_than_it_did",
    ),
    Mutant(
        "zookeeper-packets-outlive-their-connection",
        "locks/zookeeper/session_age.py",
        "            self._packets.clear()\n",
        "",
        "tests/unit/test_zookeeper_heard.py::test_a_packet_of_an_earlier_connection_is_nothing_to_go_by",
    ),
    Mutant(
        "zookeeper-lives-on-when-dropped",
        "locks/zookeeper/connection.py",
        "        opening.ends_with(self)\n",
        "",
        "tests/contract/test_zookeeper.py::test_a_client_that_nobody_closed_ends_its_session_and_its_threads",
    ),
    Mutant(
        "zookeeper-a-first-listing-waits-briefly",
        "locks/zookeeper/table.py",
        "            self._session.begin()\n            entries",
        "            entries",
        "tests/contract/test_zookeeper.py::test_the_first_listing_waits_for_servers_that_are_busy",
    ),
    Mutant(
        "names-that-a-metastore-trims-have-locks-of-their-own",
        "catalog/metastore/names.py",
        "if name != name.strip(_TRIMMED):",
        "if name != name.strip():",
        "tests/hive/test_names.py::test_another_name_that_the_metastore_takes_for_a_table_is_refused_before_anything_is_locked[{}\\x01-t]",
    ),
    Mutant(
        "partition-keys-as-typed",
        "catalog/hive.py",
        "(key.lower() + equals",
        "(key + equals",
        "tests/hive/test_names.py::test_a_partition_is_one_however_its_key_is_spelled_and_not_however_its_value_is",
    ),
    Mutant(
        "waits-for-its-own-other-catalog",
        "locks/held.py",
        "lease.request.request_id == blocker.request_id:",
        "False:",
        "tests/contract/test_lock_managers.py::TestLockManagers::"
        "test_a_thread_does_not_wait_for_what_it_holds_by_another_client[memory]",
    ),
    Mutant(
        "a-name-that-no-service-can-store",
        "model.py",
        "if not all(map(is_encodable, self.path)):",
        "if False:",
        "tests/unit/test_lock_model.py::test_a_name_that_is_no_text_is_refused_in_words",
    ),
    Mutant(
        "a-pickled-catalog-forgets-the-environment",
        "config/reading.py",
        "origins=origins, given=given",
        "origins=origins, given=dict(arguments)",
        "tests/catalog/test_pickling.py::test_what_is_set_in_the_environment_travels_too",
    ),
)

_CARRYING = "tests/contract/test_lock_managers.py::TestLockManagersThatCarry::"
_GROUPS = "tests/hive/test_groups.py::"
_FILES = "locks/hms/offers.py"

_OFFERS = (
    Mutant(
        "an-offer-is-looked-for-once",
        _FILES,
        "if isinstance(found, bytes)]",
        "if one]",
        f"{_GROUPS}test_an_offer_that_its_owner_takes_back_while_it_is_marked_is_not_taken",
    ),
    Mutant(
        "an-owner-looks-for-no-mark",
        _FILES,
        "                return mark is None\n",
        "                return True\n",
        f"{_CARRYING}test_an_offer_that_was_taken_waits_for_its_answer[hms-apart]",
    ),
    Mutant(
        "an-owner-looks-for-a-mark-too-early",
        _FILES,
        """            self._files.delete([_offer(request, own)])
        except""",
        """            early = self._files.read([_mark(request, own, published.round)])[0]
            self._files.delete([_offer(request, own)])
            if early is None:
                return True
        except""",
        f"{_GROUPS}test_an_offer_that_is_marked_while_its_owner_takes_it_back_is_in_doubt_or_not_taken",
    ),
    Mutant(
        "an-offer-that-comes-late",
        _FILES,
        """            self._in_doubt.add(request.request_id)
            logger""",
        "            logger",
        f"{_GROUPS}test_an_offer_whose_writing_was_not_confirmed_is_in_doubt",
    ),
    Mutant(
        "a-doubt-ends-with-the-grant",
        "locks/hms/manager.py",
        "            if granted is None:\n                self._own.ended(request)\n",
        "            self._own.ended(request)\n",
        f"{_GROUPS}test_an_offer_whose_writing_was_not_confirmed_is_in_doubt",
    ),
    Mutant(
        "offers-without-compare-and-set",
        _FILES,
        "bool(request.offers_at) and files.allowed",
        "bool(request.offers_at)",
        f"{_GROUPS}test_no_offers_are_made_where_a_late_swap_overwrites",
    ),
    Mutant(
        "a-group-overtakes-who-only-locks",
        _FILES,
        "                break  # It has no offer, or none yet. No later request may overtake it.\n",
        "                continue\n",
        f"{_GROUPS}test_a_request_of_another_program_ends_a_group",
    ),
    Mutant(
        "an-offer-is-taken-twice",
        _FILES,
        "            if mark not in (None, own):\n",
        "            if not own:\n",
        f"{_CARRYING}test_a_holder_that_settles_nothing_leaves_doubt[hms-apart]",
    ),
    Mutant(
        "a-mark-that-can-not-be-read-is-none",
        _FILES,
        "            if mark not in (None, own):\n",
        "            if isinstance(mark, bytes) and mark != own:\n",
        f"{_GROUPS}test_a_mark_that_can_not_be_read_belongs_to_another_holder",
    ),
    Mutant(
        "what-a-thread-took-is-offered-to-others",
        "locks/hms/queue.py",
        "if self._turns.retract(request) and self._own.publish(request)",
        "if self._own.publish(request)",
        f"{_GROUPS}test_what_a_thread_of_the_own_process_has_taken_is_offered_to_nobody_else",
    ),
    Mutant(
        "a-returned-offer-is-over",
        _FILES,
        "            if outcome != _RETURNED:\n                return number",
        "            if mark or outcome != _RETURNED:\n                return number",
        f"{_CARRYING}test_an_offer_that_was_returned_may_be_taken_again[hms-apart]",
    ),
    Mutant(
        "who-offers-nothing-is-told",
        _FILES,
        "following is not None and isinstance(files.read([_offer(request, following)])[0], bytes)",
        "following is not None",
        f"{_GROUPS}test_a_request_that_offers_nothing_leaves_no_file",
    ),
    Mutant(
        "a-grant-after-the-answer",
        "locks/hms/queue.py",
        """                self._looked_at_files(request, UNLISTED_BLOCKER)
                self._own.granted""",
        "                self._own.granted",
        f"{_GROUPS}test_a_waiter_that_is_granted_after_it_was_carried_takes_the_answer",
    ),
    Mutant(
        "a-holder-that-was-freed-reports",
        "locks/hms/queue.py",
        "                    self.ensure_active(0)\n",
        "                    pass\n",
        f"{_CARRYING}test_a_holder_that_was_freed_ends_nobody[hms-apart]",
    ),
)

_EXPLICIT = (
    Mutant(
        "unlock-frees-statements-that-wait",
        "sql/session.py",
        "if entry.explicit and entry.state is LockState.ACQUIRED]",
        "if entry.explicit]",
        "tests/sql/test_more_statements.py::test_unlock_frees_what_is_locked_and_no_statement_that_waits",
    ),
    Mutant(
        "a-lock-statement-is-endless-while-it-waits",
        "locks/sql/statements.py",
        ":lease_ms, :clock, {now} + :lease_ms\n",
        ":lease_ms, :clock, CASE WHEN :explicit = 1 THEN NULL ELSE {now} + :lease_ms END\n",
        f"{_CONTRACT}test_a_lock_statement_that_is_killed_while_it_waits_locks_nothing[lease-sqlite-a waiter]",
    ),
    Mutant(
        "a-statement-of-another-host-is-never-abandoned",
        "locks/zookeeper/view.py",
        "        if data.shows_its_wait and waits is None:\n",
        "        if False:\n",
        f"{_ABANDONED}[reap]",
    ),
    Mutant(
        "a-waiter-does-not-look-for-an-abandoned-statement",
        "locks/zookeeper/queue.py",
        "        if blocker.explicit:\n            watch =",
        "        if False:\n            watch =",
        f"{_ABANDONED}[a waiter]",
    ),
    Mutant(
        "a-statement-shows-its-wait-in-one-session",
        "locks/zookeeper/entering.py",
        "if ticket.shows_its_wait and ticket.session != self._session.number:",
        "if False:",
        "tests/contract/test_zookeeper.py::test_a_lock_statement_waits_on_after_its_session_was_lost[False]",
    ),
    Mutant(
        "a-statement-found-again-is-of-the-present-session",
        "locks/zookeeper/entering.py",
        "                ticket.session = _NO_SESSION\n",
        "                pass\n",
        "tests/contract/test_zookeeper.py::"
        "test_a_lock_statement_whose_first_reply_was_lost_with_its_session_waits_for_its_grant",
    ),
    Mutant(
        "what-is-not-removed-counts-as-freed",
        "locks/forcing.py",
        "        except NotRemoved:\n            return False\n",
        "        except NotRemoved:\n            is_gone = in_doubt\n",
        "tests/unit/test_forcing.py::test_what_is_there_after_a_lost_reply_was_not_freed",
    ),
    Mutant(
        "a-statement-that-waits-again-is-removed",
        "locks/zookeeper/view.py",
        "return [CreateNode(statement, ephemeral=True), DeleteNode(statement), delete]",
        "return [DeleteNode(path)]",
        "tests/contract/test_zookeeper.py::test_a_lock_statement_that_was_found_abandoned_and_waits_again_is_not_removed",
    ),
    Mutant(
        "an-earlier-session-s-end-is-the-next-one-s",
        "locks/zookeeper/connection.py",
        "            if opening is not self.opening:\n                return\n            match",
        "            match",
        f"{_OF_ZOOKEEPER}test_what_an_earlier_session_reports_late_is_nothing_to_the_next_one[lost-a close]",
    ),
    Mutant(
        "a-call-begins-a-session-after-the-close",
        "locks/zookeeper/connection.py",
        "                if self.is_over:\n                    raise self.refusals.ended()\n",
        "",
        f"{_OF_ZOOKEEPER}test_a_call_that_is_stuck_when_its_client_is_closed_begins_no_session[locks]",
    ),
    Mutant(
        "a-packet-is-as-large-as-its-names",
        "locks/zookeeper/layout.py",
        "if total + size > limit and total:",
        "if False:",
        "tests/unit/test_zookeeper_layout.py::test_what_is_read_or_deleted_together_fits_into_a_packet[1300]",
    ),
    Mutant(
        "a-wait-is-published-before-it-is-sent",
        "locks/zookeeper/deadlocks.py",
        "            ticket.tells = UNHEARD\n",
        "            ticket.tells = place\n",
        f"{_OF_ZOOKEEPER}test_a_deadlock_is_found_though_a_wait_was_published_unheard[the packet]",
    ),
    Mutant(
        "a-wait-outlives-its-session",
        "locks/zookeeper/deadlocks.py",
        "CreateNode(path, data, ephemeral=True)",
        "CreateNode(path, data)",
        f"{_OF_ZOOKEEPER}test_a_published_wait_ends_with_its_session",
    ),
    Mutant(
        "a-wait-outlives-its-request",
        "locks/zookeeper/service.py",
        "        if ticket.tells is not None:\n",
        "        if False:\n",
        f"{_OF_ZOOKEEPER}test_a_published_wait_whose_deletion_failed_is_deleted_with_its_request",
    ),
    Mutant(
        "all-offers-are-taken-in-one-packet",
        "locks/zookeeper/offers.py",
        "zip(locks, waiting, offers[fitting], strict=False)",
        "zip(locks, waiting, offers, strict=False)",
        f"{_OF_ZOOKEEPER}test_large_offers_are_taken_as_many_as_a_packet_holds",
    ),
    Mutant(
        "the-first-user-keeps-out-all-others",
        "locks/zookeeper/connection.py",
        "return self._shared_rights if path == SHARED else self._rights",
        "return self._rights",
        f"{_OF_ZOOKEEPER}test_two_users_share_the_servers_and_not_their_locks",
    ),
    Mutant(
        "sigterm-kills-a-command",
        "cli/catalogs.py",
        "if handler is signal.SIG_DFL]",
        "if False]",
        "tests/cli/test_mistakes.py::test_a_signal_in_a_statement_that_waits_leaves_nothing_behind",
    ),
    Mutant(
        "a-thread-has-a-name-for-each-client",
        "locks/sql/manager.py",
        "            database.agent = lambda: held.agent\n",
        "",
        f"{_CONTRACT}test_a_deadlock_ends_the_youngest_request[lease-sqlite-two clients each]",
    ),
    Mutant(
        "a-lock-statement-is-over-as-it-was-listed",
        "locks/hms/heartbeat_log.py",
        "        return had_ended\n",
        "        return ended\n",
        "tests/unit/test_dead_lock_statements.py::"
        "test_a_lock_statement_is_over_if_it_still_waits_after_its_process_has_ended",
    ),
    Mutant(
        "memory-reads-the-uri-as-it-is-spelled",
        "locks/memory_space.py",
        "SPACES.setdefault((_one_spelling(uri), space)",
        "SPACES.setdefault((uri, space)",
        "tests/unit/test_memory_locks.py::test_every_spelling_of_a_file_names_the_same_locks",
    ),
    Mutant(
        "a-forked-child-locks-in-its-own-memory",
        "locks/memory.py",
        "if self._opened_in != os.getpid():",
        "if False:",
        "tests/unit/test_memory_locks.py::test_a_forked_child_is_refused_what_its_parent_may_hold",
    ),
    Mutant(
        "a-signal-handler-s-error-is-the-system-s",
        "process.py",
        "    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))",
        "    return False",
        "tests/unit/test_interrupts.py::test_an_error_of_a_signal_handler_is_recognized",
    ),
    Mutant(
        "an-argument-may-be-any-bytes",
        "cli/app.py",
        "if not is_encodable(text)), None)",
        "if False), None)",
        "tests/cli/test_mistakes.py::test_an_argument_that_is_not_utf_8_is_refused_by_every_command",
    ),
)

_MIGRATION, _HIVE = "tests/unit/test_migration.py::", "tests/hive/test_migration.py::"

_MOVES = (
    Mutant(
        "a-guard-is-of-a-name",
        "locks/hms/guard.py",
        "is_known = guard is not None and guard.table_uuid == table_uuid",
        "is_known = guard is not None",
        "tests/hive/test_guard.py::"
        "test_a_writer_guards_the_next_table_of_a_name_that_it_knows_as_guarded[is_dropped-is_created]",
    ),
    Mutant(
        "a-lost-reply-hands-a-table-back",
        "catalog/metastore/swaps.py",
        "(result is SwapResult.LOST_REPLY and self._pointers.location(table) == location)",
        "result is SwapResult.LOST_REPLY",
        f"{_HIVE}test_whatever_becomes_of_a_step_a_table_in_phase_zookeeper_has_its_guard[_is_lost_before]",
    ),
    Mutant(
        "a-name-gets-any-table",
        "catalog/metastore/phases.py",
        "        left = [] if self._locks is None else",
        "        left = [] if table else",
        f"{_HIVE}test_an_operation_lock_on_a_name_excludes_all_others_whatever_table_gets_the_name"
        "[_another_is_renamed_to_it-with a table]",
    ),
    Mutant(
        "a-free-name-is-locked-as-a-table-is",
        "locks/migration/beliefs.py",
        "Phase.BOTH if state.is_free and request.scope is LockScope.OPERATION else state.phase",
        "state.phase",
        f"{_HIVE}test_a_name_that_was_locked_in_one_phase_stays_locked_when_its_table_is_dropped[zookeeper]",
    ),
    Mutant(
        "the-lock-manager-of-a-move-is-set-by-hand",
        "catalog/metastore/phases.py",
        "        for key in (LOCK_PHASE, LOCK_EPOCH, *((LOCK_IMPL,) if self._locks is not None else ())):\n"
        "            # The first",
        "        for key in (LOCK_PHASE, LOCK_EPOCH):\n            # The first",
        f"{_MIGRATION}test_nothing_but_a_move_changes_what_a_table_says_of_its_move",
    ),
    Mutant(
        "a-new-table-begins-where-it-likes",
        "catalog/metastore/phases.py",
        "            if given.get(key) not in (None, accepted.get(key)):",
        "            if False:",
        f"{_MIGRATION}test_a_new_table_is_in_the_phase_of_its_database_whatever_it_is_given",
    ),
    Mutant(
        "a-new-table-needs-no-compare-and-set",
        "catalog/metastore/phases.py",
        "if self._locks is not None and phase is not Phase.HMS and not self._servers.compare_and_set():",
        "if False:",
        f"{_MIGRATION}test_on_a_server_that_does_not_compare_no_new_table_leaves_the_metastores_locks",
    ),
    Mutant(
        "a-table-of-a-third-service-moves",
        "catalog/metastore/phases.py",
        "if before.get(LOCK_IMPL) not in (None, *(phase.lock_impl for phase in Phase)):",
        "if False:",
        f"{_MIGRATION}test_a_move_does_not_begin_at_a_table_whose_writers_lock_in_a_third_service",
    ),
    Mutant(
        "the-registry-of-writers-knows-one-version",
        "locks/migration/writers.py",
        "for key, value in found.items() if key in known}",
        "for key, value in found.items() if known}",
        f"{_MIGRATION}test_what_a_later_version_adds_to_the_registry_of_writers_is_passed_over",
    ),
    Mutant(
        "the-first-old-snapshot-ends-the-window",
        "catalog/migration/sightings.py",
        "            continue  # not the end",
        "            break  # not the end",
        f"{_MIGRATION}test_every_snapshot_in_the_window_counts_in_whatever_order_they_are",
    ),
    Mutant(
        "a-long-name-holds-up-a-move",
        "locks/migration/sides.py",
        "kept = {_key(entry) for manager",
        "kept = {(entry.request_id, entry.resource) for manager",
        f"{_HIVE}test_a_lock_that_is_held_in_both_services_holds_up_no_move_however_long_its_name_is",
    ),
    Mutant(
        "a-guard-on-a-free-name-stays",
        "catalog/metastore/guards.py",
        "        except NoSuchTableError:\n            declared = None\n",
        "        except NoSuchIcebergTableError:\n            declared = None\n",
        f"{_HIVE}test_a_guard_that_was_left_on_a_free_name_is_removed_by_the_next_client_that_uses_the_name[_creates]",
    ),
    Mutant(
        "a-lock-that-nobody-sees-is-granted",
        "catalog/hive.py",
        "self._writer_properties.refuse_others(table, self.pointers.found(table).parameters)",
        "self.pointers.found(table)",
        f"{_HIVE}test_an_operation_lock_that_no_writer_of_the_phase_would_see_is_refused[hms]",
    ),
    Mutant(
        "an-adoption-is-refused-its-locks",
        "catalog/hive.py",
        "        with _lock_adopted(self, table), loaded.transaction() as tx:\n",
        "        with loaded.transaction() as tx:\n",
        "tests/hive/test_guard.py::"
        "test_an_adoption_writes_down_that_it_frees_the_guard_and_one_that_is_refused_leaves_it",
    ),
    Mutant(
        "an-outage-after-the-wait-is-no-error-of-locks",
        "catalog/hive.py",
        "        except MetastoreUnavailable as error:\n",
        "        except ZeroDivisionError as error:\n",
        f"{_HIVE}test_a_metastore_that_fails_while_a_change_takes_its_locks_leaves_none_and_changes_nothing",
    ),
    Mutant(
        "notes-stay-in-a-phase",
        "locks/migration/manager.py",
        "        return self.zookeeper.acquire(request, deadline=deadline)\n",
        "        return self.acquire(request, deadline=deadline)\n",
        f"{_HIVE}test_a_rename_moves_what_is_noted_of_a_table_whatever_the_phase_of_free_names[zookeeper]",
    ),
    Mutant(
        "all-snapshots-are-read",
        "catalog/migration/sightings.py",
        "        if snapshot.timestamp_ms < since_ms - _SKEW_MS:\n",
        "        if False:\n",
        f"{_MIGRATION}test_a_day_before_the_window_the_search_of_a_history_ends",
    ),
    Mutant(
        "a-metastore-s-tables-are-locked-in-another-one",
        "catalog/hive.py",
        "    if set(MetastoreClient.of(lock_uri).addresses).isdisjoint(own.addresses):",
        "    if not lock_uri:",
        "tests/hive/test_guard.py::test_the_metastores_locks_are_those_of_the_tables_metastore",
    ),
    Mutant(
        "a-database-declares-any-phase",
        "catalog/metastore/phases.py",
        "    if (phase := properties.get(LOCK_PHASE)) and phase not in list(Phase):",
        '    if phase := "":',
        f"{_HIVE}test_a_database_declares_a_known_phase_or_none",
    ),
    Mutant(
        "a-managed-table-is-renamed",
        "catalog/metastore/administration.py",
        'parameters.get("EXTERNAL", "").upper() != "TRUE"',
        "not parameters",
        "tests/unit/test_administration.py::"
        "test_a_managed_table_keeps_its_name_because_the_metastore_would_move_its_folder",
    ),
)

_JOINED = (
    Mutant(
        "an-offer-that-landed-is-carried-again",
        "coordinator/groups.py",
        "if not attempt.repeatable and own.head is not None and planner.append_in(attempt, own.head) is not None:",
        "if not attempt:",
        "tests/coordinator/test_shared_snapshots.py::test_an_offer_that_is_taken_a_second_time_is_there_once[memory]",
    ),
)

_CLOSED_AND_BUSY = (
    Mutant(
        "zookeeper-a-lock-statement-of-a-closed-client-blocks-nobody",
        "locks/zookeeper/deadlocks.py",
        "(data.agent != agent or one in held or data.lease_ms is None)",
        "(data.agent != agent or one in held)",
        _OF_ZOOKEEPER + "test_a_thread_that_waits_for_a_lock_statement_of_its_own_is_refused",
    ),
    Mutant(
        "zookeeper-a-busy-server-is-an-old-one",
        "locks/zookeeper/bulk.py",
        "                except KazooTimeoutError:\n                    pass",
        "                except KazooTimeoutError:\n                    self._connection.multi_read = False",
        _OF_ZOOKEEPER + "test_a_server_that_is_too_busy_to_answer_is_not_taken_for_an_old_one",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_CLOSED_AND_BUSY, *_JOINED, *_MOVES, *_EXPLICIT, *_LOCKS, *_ZOOKEEPER, *_OFFERS)
