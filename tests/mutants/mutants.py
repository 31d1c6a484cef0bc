"""The code with one thing wrong, and the test that notices.

A mutant is one textual edit. The file must contain its old text exactly once, so a developer who moves the code
moves the mutant along. Each is killed by one named test of ``make test``, so that nothing of this is noticed only at
night.
``make mutants`` tries all of them, each in a copy of the repository.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tests.mutants import (
    of_access,
    of_catalogs,
    of_files,
    of_hints,
    of_locks,
    of_requests,
    of_rest,
    of_rows,
    of_spark,
    of_sql,
    of_transactions,
)
from tests.mutants.mutant import ROOT, Mutant

if TYPE_CHECKING:
    import pytest

_PARTS = ("commit_coord", "tests", "docs", "pyproject.toml")


_MOVE = "tests/hive/test_answers.py::test_no_answer_of_a_service_misjudges_a_move[hms-to-zookeeper-honoured-"
_MOVES = "tests/sim/test_moves.py::test_a_table_moves_whichever_client_is_stopped_or_dies_when"
_ANY_LINE_OF_PUTTING_OFF = (
    "tests/unit/test_interrupts.py::test_an_interrupt_at_any_line_is_that_interrupt_and_no_other_error"
)
_PROTOCOL = "tests/unit/test_commit_protocol.py::"
_GROUPS = "tests/coordinator/test_groups.py::"
_LOST = "tests/coordinator/test_lost_replies.py::"
_SIM = "tests/sim/test_simulation.py::test_runs_under_one_kind_of_fault_keep_every_promise"
_SEEDS = "tests/sim/test_simulation.py::test_runs_keep_every_promise"
_MACHINE = "tests/sim/test_lock_machine.py::test_what_is_granted_is_what_the_queue_says"
_CARRY = "tests/contract/test_lock_managers.py::TestLockManagersThatCarry::"
_LOCKS = "tests/contract/test_lock_managers.py::TestLockManagers::"

MUTANTS = (
    # ZooKeeper: what the simulator asks of it.
    Mutant(
        "zookeeper-entry-in-doubt",
        "locks/zookeeper/queue.py",
        'raise OfferLost("the lock service is unreachable; the offer may have been taken", locks=request) from error',
        "raise",
        "tests/contract/test_zookeeper.py::test_an_offer_that_entered_unheard_is_in_doubt",
    ),
    Mutant(
        "zookeeper-takes-by-a-lease-that-ended",
        "locks/zookeeper/queue.py",
        """        if nodes is None:
            return ()  # The lease was lost, and the heartbeat has removed the request.
""",
        "        assert nodes is not None\n",
        f"{_CARRY}test_a_lease_that_ended_takes_nothing[zookeeper]",
    ),
    Mutant(
        "zookeeper-retract-of-what-is-taken",
        "locks/zookeeper/offers.py",
        'node.data.startswith(b"\\n") and ',
        "",
        f"{_SIM}[impatience in ZooKeeper-51]",
    ),
    Mutant(
        "zookeeper-release-on-the-way-out",
        "locks/zookeeper/queue.py",
        "            self._keeper.give_back(ticket)\n",
        "            pass\n",
        f"{_SIM}[interrupts in ZooKeeper-1]",
    ),
    # The guards that the models are named after.
    Mutant(
        "compare-and-set",
        "catalog/sql.py",
        'previous_metadata_location = :base "\n    f"WHERE {KEY} AND metadata_location = :base"\n',
        'previous_metadata_location = :base "\n    f"WHERE {KEY}"\n',
        f"{_GROUPS}test_a_stranger_s_commit_before_the_swap_moves_the_whole_group[memory]",
    ),
    Mutant(
        "ensure-active",
        "protocol/commit.py",
        "            yield EnsureActive()\n",
        "",
        f"{_PROTOCOL}test_an_undisturbed_commit_takes_each_step_once",
    ),
    Mutant(
        "a-lease-is-asked-about",
        "locks/keeping.py",
        "        self.keeper.ensure_active(self.ticket, max_age_ms)\n",
        "        return\n",
        f"{_LOCKS}test_a_stalled_holder_loses_its_lease[lease-sqlite]",
    ),
    Mutant(
        "release-by-the-owner-only",
        "locks/sql/statements.py",
        "    WHERE r.request_id = :request_id AND r.place = :place\n      AND (:forced = 1",
        "    WHERE r.place = (SELECT min(o.place) FROM commit_coord_requests o)\n      AND (:forced = 1",
        f"{_MACHINE}[LeaseMachine]",
    ),
    Mutant(
        "base-read-under-the-latch",
        "coordinator/planning.py",
        "        pointer = services.store.pointer(attempt.table)\n",
        "        pointer = attempt.base_location\n",
        f"{_GROUPS}test_a_stranger_s_commit_before_the_swap_moves_the_whole_group[memory]",
    ),
    Mutant(
        "the-base-of-the-plan-is-compared",
        "coordinator/publishing.py",
        "            return store.swap(table, plan.base, plan.location)\n",
        "            return store.swap(table, store.pointer(table), plan.location)\n",
        f"{_SEEDS}[1]",
    ),
    Mutant(
        "unknown-is-kept",
        "protocol/commit.py",
        "                if result is SwapResult.MOVED:\n                    continue\n        yield Pause(check)\n"
        "    return CommitStatus.UNKNOWN\n",
        "                if result is SwapResult.MOVED:\n                    continue\n        yield Pause(check)\n"
        "    return CommitStatus.FAILURE\n",
        f"{_PROTOCOL}test_what_cannot_be_found_out_is_unknown_and_keeps_every_file",
    ),
    # The protocol.
    Mutant(
        "a-lost-reply-is-no-failure",
        "protocol/commit.py",
        "    if result is SwapResult.MOVED:\n        return CommitStatus.FAILURE\n    assert",
        "    if result is not SwapResult.SWAPPED:\n        return CommitStatus.FAILURE\n    assert",
        f"{_PROTOCOL}test_a_lost_reply_that_had_landed_is_a_success",
    ),
    Mutant(
        "the-old-head-proves-nothing",
        "protocol/commit.py",
        "            case Where.NOT_IN_LOG:\n                return CommitStatus.FAILURE\n"
        "            case Where.STILL_BASE:\n",
        "            case Where.NOT_IN_LOG | Where.STILL_BASE:\n                return CommitStatus.FAILURE\n"
        "            case Where.UNDECIDED if False:\n",
        f"{_PROTOCOL}test_what_cannot_be_found_out_is_unknown_and_keeps_every_file",
    ),
    Mutant(
        "moved-on-a-repeat-may-be-our-own-work",
        "protocol/commit.py",
        "                if result is SwapResult.MOVED:\n                    continue\n",
        "                if result is SwapResult.MOVED:\n                    return CommitStatus.FAILURE\n",
        f"{_PROTOCOL}test_a_repeated_swap_that_finds_the_pointer_moved_asks_the_log_whose_work_it_was",
    ),
    Mutant(
        "a-refused-repeat-disproves-nothing",
        "protocol/commit.py",
        "                    result = SwapResult.LOST_REPLY\n",
        "                    return CommitStatus.FAILURE\n",
        f"{_PROTOCOL}test_a_repeated_swap_that_is_refused_does_not_disprove_the_first_one",
    ),
    Mutant(
        "an-offer-is-taken-back-before-a-failure",
        "protocol/commit.py",
        "            in_doubt = in_doubt or not retracted\n",
        "",
        f"{_PROTOCOL}test_a_failure_is_proven_only_if_the_offer_could_be_taken_back",
    ),
    Mutant(
        "an-offer-that-was-taken-is-looked-for",
        "coordinator/commit.py",
        "        self._run.may_be_carried |= not certain\n",
        "",
        "tests/coordinator/test_shared_snapshots.py::test_a_carried_request_whose_holder_was_gone_keeps_its_files[lease]",
    ),
    Mutant(
        "a-lost-offer-is-not-made-again",
        "protocol/commit.py",
        "yield AcquireLatch(offering=not in_doubt)\n",
        "yield AcquireLatch(offering=True)\n",
        f"{_PROTOCOL}test_an_offer_that_was_lost_is_not_offered_again_and_the_table_is_looked_at",
    ),
    Mutant(
        "doubt-outlives-a-lock-that-was-not-granted",
        "protocol/commit.py",
        "            return _doubted(failure) if in_doubt else failure\n",
        "            return failure\n",
        f"{_PROTOCOL}test_after_an_offer_was_lost_no_failure_is_proven",
    ),
    Mutant(
        "an-interrupt-releases",
        "protocol/commit.py",
        "        finally:\n            yield Release(verdict)\n",
        "        except ZeroDivisionError:\n            raise\n        yield Release(verdict)\n",
        f"{_PROTOCOL}test_an_interrupt_while_writing_releases_and_discards",
    ),
    Mutant(
        "files-in-doubt-are-kept",
        "protocol/commit.py",
        "        if status is not CommitStatus.FAILURE:\n            return Verdict(status=status",
        "        if status is not CommitStatus.FAILURE:\n            yield Discard(planned)\n"
        "            return Verdict(status=status",
        f"{_PROTOCOL}test_what_cannot_be_found_out_is_unknown_and_keeps_every_file",
    ),
    Mutant(
        "a-swap-is-confirmed",
        "protocol/commit.py",
        "            status = yield from _confirmed(limits, planned)\n",
        "            pass\n",
        f"{_PROTOCOL}test_a_swap_that_was_written_over_before_the_latch_was_taken_again_is_tried_on_the_new_head",
    ),
    Mutant(
        "what-cannot-be-confirmed-is-no-failure",
        "protocol/commit.py",
        "            where = Where.UNDECIDED\n",
        "            where = Where.NOT_IN_LOG\n",
        f"{_PROTOCOL}test_a_swap_that_nobody_can_confirm_is_unknown_and_keeps_its_files",
    ),
    Mutant(
        "a-latch-that-was-lost-is-taken-again",
        "protocol/commit.py",
        "and latches < limits.latches:\n",
        "and latches < 0:\n",
        f"{_PROTOCOL}test_a_latch_that_is_lost_before_the_swap_is_taken_again",
    ),
    # Who performs it.
    Mutant(
        "one-s-own-append-is-looked-for",
        "coordinator/planning.py",
        "        if (own := self._own_snapshot(pointer)) is not None:\n",
        "        if (own := None) is not None:\n",
        f"{_GROUPS}test_a_swap_that_comes_in_late_carries_its_members_once[lease]",
    ),
    Mutant(
        "one-s-own-file-is-looked-for-first",
        "coordinator/publishing.py",
        "                if plan.location in log:\n                    return Where.IN_LOG\n",
        "",
        f"{_LOST}test_a_lost_reply_to_a_change_that_a_stranger_built_on_is_a_success",
    ),
    Mutant(
        "offers-in-doubt-are-not-given-back",
        "coordinator/groups.py",
        "        if not self._taken or verdict is None or verdict.status is CommitStatus.UNKNOWN:\n",
        "        if not self._taken or verdict is None:\n",
        f"{_GROUPS}test_after_an_unknown_swap_no_member_s_failure_is_proven[lease]",
    ),
    Mutant(
        "each-carried-attempt-follows-the-one-before",
        "coordinator/groups.py",
        "                result = planner.rebase(attempt, last.rebased.metadata, None)\n",
        "                result = planner.rebase(attempt, head, None)\n",
        f"{_GROUPS}test_one_swap_publishes_a_snapshot_for_each_that_waited_in_their_order[lease]",
    ),
    Mutant(
        "only-what-fell-out-of-the-log-is-deleted",
        "coordinator/outcome.py",
        " if entry.metadata_file not in kept]:\n",
        "]:\n",
        f"{_SEEDS}[1]",
    ),
    Mutant(
        "a-named-request-is-looked-up",
        "coordinator/planning.py",
        "        if attempt.repeatable and (entry := self.landed_before(attempt, pointer)):\n",
        "        if False and (entry := self.landed_before(attempt, pointer)):\n",
        "tests/catalog/test_request_ids.py::test_racing_repeats_of_one_request_land_once",
    ),
    Mutant(
        "a-repeat-that-was-not-looked-up-is-in-doubt",
        "coordinator/outcome.py",
        "    if not run.attempt.repeatable or _excludes_other_commits(verdict):\n",
        "    if True:\n",
        "tests/catalog/test_request_ids.py::test_a_repeat_that_cannot_look_its_request_up_promises_nothing",
    ),
    Mutant(
        "no-two-tries-share-a-file",
        "coordinator/planning.py",
        "fresh=not (self._used_plain_name or attempt.repeatable))\n",
        "fresh=True)\n",
        f"{_LOST}test_a_latch_that_is_taken_again_writes_no_file_twice",
    ),
    Mutant(
        "an-operation-needs-its-locks",
        "coordinator/commit.py",
        "        if self._operation_lease is None:\n            return\n",
        "        return\n",
        "tests/catalog/test_compaction.py::test_a_compaction_that_lost_its_lease_never_publishes",
    ),
    Mutant(
        "a-writer-that-lost-the-latch-looks-again",
        "coordinator/publishing.py",
        "        return self.locate(plan) if plan.location in self._maybe_overwritten else Where.IN_LOG\n",
        "        return Where.IN_LOG\n",
        f"{_SIM}[foreign lockers-1]",
    ),
    Mutant(
        "statements-need-no-metastore",
        "sql/operations.py",
        "from commit_coord.catalog.metastore.serde import",
        "from commit_coord.catalog.metastore.hive_table import",
        "tests/unit/test_smaller_installs.py::test_commands_work_with_the_extra_that_they_need_alone[sql]",
    ),
    # Locks.
    Mutant(
        "what-was-freed-is-told",
        "locks/sql/table.py",
        "with telling_what_was_freed() as freed:\n            for (scope,",
        "freed = __import__('commit_coord.locks.forcing').locks.forcing.FreedLocks()\n"
        "        if True:\n            for (scope,",
        "tests/contract/test_partly_freed.py::"
        "test_a_release_by_force_that_fails_midway_tells_what_it_has_released[lease-sqlite-1]",
    ),
    Mutant(
        "what-may-have-been-freed-is-told",
        "locks/forcing.py",
        "                self.maybe.extend(entries)\n",
        "                pass\n",
        "tests/contract/test_partly_freed.py::"
        "test_whatever_a_release_by_force_meets_it_tells_what_is_free_and_what_may_be"
        "[lease-sqlite-before lasts-unlock]",
    ),
    Mutant(
        "what-is-gone-after-a-lost-reply-is-told",
        "locks/forcing.py",
        " or in_doubt\n        except",
        "\n        except",
        "tests/contract/test_partly_freed.py::"
        "test_whatever_a_release_by_force_meets_it_tells_what_is_free_and_what_may_be[zookeeper-before-unlock]",
    ),
    Mutant(
        "an-interrupt-has-what-was-freed",
        "locks/forcing.py",
        "            vars(error).update(freed=tuple(freed), maybe_freed=tuple(freed.maybe))\n",
        "",
        "tests/observing/test_observing.py::"
        "test_whatever_may_have_been_freed_is_recorded_emitted_and_counted[before interrupts-unlock]",
    ),
    Mutant(
        "a-request-that-is-deleted-in-part-may-be-free",
        "locks/zookeeper/view.py",
        "            if not removed:\n                raise\n",
        "            raise\n",
        "tests/unit/test_forcing.py::test_a_request_that_zookeeper_has_deleted_in_part_may_be_free",
    ),
    Mutant(
        "what-waits-in-a-process-is-freed-in-its-turn",
        "locks/hms/table.py",
        "                if request_id in waiting and not freed:\n",
        "                if not request_ids:\n",
        "tests/unit/test_forcing.py::test_what_waits_for_a_metastore_in_this_process_is_freed_in_its_turn",
    ),
    Mutant(
        "leases-that-are-dropped-by-force-are-written-down",
        "locks/hive_lease.py",
        "with self._forcing() as freed:",
        "with telling_what_was_freed() as freed:",
        "tests/observing/test_observing.py::"
        "test_whatever_may_have_been_freed_is_recorded_emitted_and_counted[before lasts-drop lease]",
    ),
    Mutant(
        "an-adoption-that-is-refused-leaves-the-guard",
        "catalog/hive.py",
        "        with _lock_adopted(self, table), loaded.transaction() as tx:\n",
        "        self._guard_locks.free(self._guard_locks.of(table))\n"
        "        with _lock_adopted(self, table), loaded.transaction() as tx:\n",
        "tests/hive/test_guard.py::"
        "test_an_adoption_writes_down_that_it_frees_the_guard_and_one_that_is_refused_leaves_it",
    ),
    Mutant(
        "an-adoption-declares-nothing",
        "catalog/hive.py",
        "            tx.set_properties({LOCK_IMPL: chosen})\n            if chosen in COMMON_LOCK:\n",
        "            if chosen in COMMON_LOCK:\n",
        "tests/hive/test_guard.py::"
        "test_an_adoption_writes_down_that_it_frees_the_guard_and_one_that_is_refused_leaves_it",
    ),
    Mutant(
        "what-was-dropped-before-is-a-stranger",
        "locks/hive_lease.py",
        "            lease = next(iter(self._live(lease_id)), None)\n",
        "            lease = self._one(lease_id)\n            _refuse_strangers(lease, dropped)\n",
        "tests/contract/test_hive_lease.py::"
        "test_what_was_dropped_before_its_reply_was_lost_is_no_stranger[lease-sqlite-a part]",
    ),
    Mutant(
        "a-lease-counts-from-when-it-was-asked-for",
        "locks/keeping.py",
        "                ticket.last_confirmed_at = max(ticket.last_confirmed_at, sent)\n",
        "                ticket.last_confirmed_at = self._clock.now()\n",
        "tests/sim/test_lock_machine.py::test_a_lease_is_believed_in_no_longer_than_it_is_kept",
    ),
    Mutant(
        "a-lease-ends-by-the-holder-s-own-clock",
        "protocol/lease.py",
        "    if now - last_confirmed_at >= lease:\n",
        "    if now - last_confirmed_at >= 2 * lease:\n",
        "tests/unit/test_lock_model.py::test_a_lease_is_lost_by_the_holders_own_clock",
    ),
    Mutant(
        "only-what-has-expired-is-removed",
        "locks/sql/statements.py",
        '_EXPIRED = "(r.expires_at IS NOT NULL AND (r.clock <> :clock OR r.expires_at <= {now}))"\n',
        '_EXPIRED = "(r.expires_at IS NOT NULL AND (r.clock <> :clock OR r.expires_at <= {now} + 10000))"\n',
        f"{_SIM}[slow answers-1]",
    ),
    Mutant(
        "shared-locks-stand-together",
        "locks/sql/statements.py",
        "        WHERE l.request_id = {request}.request_id AND l.mode = 'X'\n",
        "        WHERE l.request_id = {request}.request_id\n",
        f"{_LOCKS}test_a_release_grants_all_readers_behind_it[lease-sqlite]",
    ),
    Mutant(
        "an-offer-is-taken-once",
        "locks/sql/statements.py",
        "WHERE p.request_id = n.request_id AND p.taken IS NULL)),\n",
        "WHERE p.request_id = n.request_id)),\n",
        f"{_CARRY}test_a_holder_that_settles_nothing_leaves_doubt[lease-sqlite]",
    ),
    Mutant(
        "an-offer-that-was-taken-stays-taken",
        "locks/sql/statements.py",
        "WHERE request_id = :request_id AND taken IS NULL\n      AND NOT EXISTS",
        "WHERE request_id = :request_id\n      AND NOT EXISTS",
        f"{_CARRY}test_an_offer_that_was_taken_waits_for_its_answer[lease-sqlite]",
    ),
    Mutant(
        "who-holds-is-not-ended-by-a-late-answer",
        "locks/sql/statements.py",
        '"DELETE FROM commit_coord_requests WHERE request_id IN {{ids}} AND {_HOLDER}"',
        '"DELETE FROM commit_coord_requests WHERE request_id IN {{ids}}"',
        f"{_CARRY}test_a_holder_that_was_freed_ends_nobody[lease-sqlite]",
    ),
    Mutant(
        "only-the-taker-gives-back",
        "locks/sql/statements.py",
        "WHERE request_id IN {ids} AND taken = :place",
        "WHERE request_id IN {ids}",
        "tests/contract/test_lease.py::test_a_release_that_is_done_again_gives_nothing_back_that_the_next_holder_took",
    ),
    Mutant(
        "an-offer-in-doubt-does-not-enter-again",
        "locks/sql/queue.py",
        "        if request.offer:\n            raise self._gone(request)\n        if self._clock",
        "        if self._clock",
        f"{_CARRY}test_a_waiter_that_is_freed_by_force_does_not_know[lease-sqlite]",
    ),
    Mutant(
        "the-deadline-waits-for-an-offer-that-was-taken",
        "locks/acquiring.py",
        "        if not request.offer or self.queue.retract(request):\n            raise LockTimeout(",
        "        if True:\n            raise LockTimeout(",
        f"{_CARRY}test_an_offer_that_was_taken_waits_for_its_answer[memory]",
    ),
    Mutant(
        "a-removal-wakes-who-waited",
        "locks/memory_space.py",
        "        for place in self._watchers.get(ticket.place, ()):\n",
        "        for place in ():\n",
        f"{_MACHINE}[MemoryMachine]",
    ),
    Mutant(
        "a-waiter-that-left-frees-the-way",
        "locks/memory_space.py",
        "                del places[index]\n",
        "                pass\n",
        f"{_MACHINE}[MemoryMachine]",
    ),
    Mutant(
        "an-offer-in-memory-is-taken-once",
        "locks/memory_space.py",
        "                if not other.request.offer or other.taken or other.retracted or len(offers) == limit:\n",
        "                if not other.request.offer or other.retracted or len(offers) == limit:\n",
        f"{_CARRY}test_a_holder_that_settles_nothing_leaves_doubt[memory]",
    ),
    Mutant(
        "an-offer-in-memory-stays-taken",
        "locks/memory_space.py",
        "            ticket.retracted = not ticket.taken\n",
        "            ticket.retracted = True\n",
        f"{_CARRY}test_an_offer_that_was_taken_waits_for_its_answer[memory]",
    ),
    Mutant(
        "the-nearest-blocker-conflicts",
        "protocol/contention.py",
        "before and not compatible(mode, other)",
        "before",
        "tests/unit/test_lock_model.py::test_the_nearest_blocker_is_the_last_conflict_before",
    ),
    Mutant(
        "who-finds-its-row-may-have-been-taken-along",
        "locks/sql/queue.py",
        "        self.tickets[request.request_id].was_contended = True\n        return blocker\n",
        "        return blocker\n",
        "tests/contract/test_lease.py::test_an_offer_that_was_taken_while_its_reply_was_lost_is_in_doubt",
    ),
    Mutant(
        "who-finds-its-nodes-may-have-been-taken-along",
        "locks/zookeeper/entering.py",
        "        ticket.was_contended = True\n        return self._look_again(ticket, part, patience)\n",
        "        return self._look_again(ticket, part, patience)\n",
        "tests/contract/test_zookeeper.py::test_an_offer_that_was_taken_before_its_entry_was_heard_of_is_in_doubt",
    ),
    Mutant(
        "doubt-outlives-the-request",
        "locks/zookeeper/queue.py",
        "                    if ticket.doubtful:\n",
        "                    if False:\n",
        "tests/contract/test_zookeeper.py::test_an_offer_in_doubt_is_in_doubt_when_its_request_is_freed_by_force",
    ),
    Mutant(
        "an-offer-goes-with-its-request",
        "locks/zookeeper/service.py",
        "        self.session.delete_each([one.path for one in own])\n",
        "",
        "tests/contract/test_zookeeper.py::test_the_offer_of_a_request_that_is_freed_by_force_goes_with_it",
    ),
    Mutant(
        "a-repeat-does-not-deny-what-is-on-its-way",
        "coordinator/outcome.py",
        "    return verdict.cause is Cause.CONFLICT and verdict.plan is None\n",
        "    return True\n",
        "tests/coordinator/test_lost_replies.py::test_a_repeat_that_fails_does_not_deny_what_is_on_its_way",
    ),
    # What follows what.
    Mutant(
        "what-read-data-is-planned-again",
        "iceberg/rebase.py",
        "    if moved and attempt.reads_data:\n",
        "    if False:\n",
        "tests/catalog/test_serial_pairs.py::test_two_stale_operations_end_as_a_serial_order",
    ),
    Mutant(
        "a-property-that-was-changed-is-not-overwritten",
        "iceberg/rebase.py",
        "        if now not in (read, wanted.get(key)):\n",
        "        if False:\n",
        f"{_SEEDS}[1]",
    ),
    Mutant(
        "another-table-of-the-name-is-another-table",
        "iceberg/rebase.py",
        "    if attempt.table_uuid != str(head.table_uuid):\n",
        "    if False:\n",
        "tests/catalog/test_bad_input.py::test_a_table_made_again_while_a_writer_works_refuses_the_writer",
    ),
    Mutant(
        "an-append-has-the-next-number-of-the-head",
        "iceberg/rebase.py",
        "        sequence_number=head.next_sequence_number(),\n",
        "        sequence_number=attempt.base_sequence_number + 1,\n",
        f"{_GROUPS}test_one_swap_publishes_a_snapshot_for_each_that_waited_in_their_order[lease]",
    ),
    Mutant(
        "an-append-stands-on-the-head",
        "iceberg/rebase.py",
        "        head=parent.manifest_list if parent is not None else None,\n",
        "        head=None,\n",
        f"{_SEEDS}[1]",
    ),
    Mutant(
        "the-head-goes-into-the-log",
        "iceberg/rebase.py",
        "        changed = fast_metadata.logged(changed, head, head_location)\n",
        "        pass\n",
        f"{_SEEDS}[1]",
    ),
    # The metastore's locks.
    Mutant(
        "a-reader-steps-back",
        "locks/hms/queue.py",
        "        if not older:\n",
        "        if older or True:\n",
        f"{_SIM}[a metastore-1]",
    ),
    Mutant(
        "a-second-place-is-released",
        "locks/hms/calls.py",
        "                        if not self._is_place(request_id, lock.lock_id):\n",
        "                        if False:\n",
        f"{_SIM}[a metastore-1]",
    ),
    Mutant(
        "a-heartbeat-is-waited-for",
        "locks/hms/heartbeat_log.py",
        "    return asked - seen >= agent.lease_ms / 1000 or",
        "    return asked - seen >= agent.lease_ms / 3000 or",
        f"{_SIM}[stalls in a metastore-1]",
    ),
    # A table that moves between two lock services.
    Mutant(
        "the phase is not compared under the latch",
        "locks/migration/lease.py",
        "        if managers_of(state.phase, self.request) == managers_of(phase, self.request):\n",
        "        if state.epoch >= 0:\n",
        _MOVES,
    ),
    Mutant(
        "the second lock is not taken",
        "locks/migration/taking.py",
        '                offer = ""\n',
        "                return\n",
        _MOVES,
    ),
    Mutant(
        "an operator does not compare the epoch",
        "catalog/migration/operator.py",
        "properties_read={key: metadata.properties.get(key) for key in changes},",
        "properties_read={},",
        _MOVES,
    ),
    Mutant(
        "a-move-that-was-interrupted-was-refused",
        "catalog/migration/operator.py",
        'stage, why = "unknown", "interrupted"',
        'stage, why = "refused", "interrupted"',
        f"{_MOVE}both to zookeeper]",
    ),
    Mutant(
        "a-table-that-was-moved-is-read-again",
        "catalog/migration/operator.py",
        "        return self._seen(table, committed.metadata)\n",
        "        return self._state(table)\n",
        f"{_MOVE}hms to both]",
    ),
    Mutant(
        "a-step-without-a-known-outcome-failed",
        "catalog/migration/operator.py",
        "                Outcome.UNKNOWN, f",
        "                Outcome.FAILED, f",
        f"{_MOVE}both to hms]",
    ),
    Mutant(
        "a-migration-that-fails-midway-says-nothing",
        "cli/migrate.py",
        "        if changed or new or isinstance(error, KeyboardInterrupt):\n",
        "        if isinstance(error, KeyboardInterrupt):\n",
        "tests/cli/test_cli.py::test_a_migration_that_fails_midway_says_which_tables_were_moved[advance]",
    ),
    Mutant(
        "a-repair-that-fails-midway-did-nothing",
        "catalog/repair/__init__.py",
        "        if not restored:\n",
        "        if restored is not None:\n",
        "tests/catalog/test_overwritten.py::test_a_repair_that_fails_midway_tells_what_it_brought_back"
        "[lease-CommitNotApplied]",
    ),
    Mutant(
        "an-audit-log-of-utf-8-alone",
        "observing/audit.py",
        "printable(json.dumps(line, ensure_ascii=False))",
        "json.dumps(line, ensure_ascii=False)",
        "tests/observing/test_observing.py::test_a_reason_in_bytes_that_are_no_text_is_written_down",
    ),
    Mutant(
        "an interrupted operator goes on to the next tables",
        "catalog/migration/operator.py",
        "            if interrupted.is_set():\n",
        "            if interrupted.is_set() and not tables:\n",
        "tests/cli/test_cli.py::test_ctrl_c_ends_a_migration_and_says_which_tables_were_moved",
    ),
    Mutant(
        "an interrupt while a thread starts is an error of the thread",
        "interrupts.py",
        "cause is None or isinstance(cause, Exception)",
        "cause is None or isinstance(cause, BaseException)",
        "tests/unit/test_interrupts.py::test_an_interrupt_while_the_thread_starts_is_no_error_of_the_thread",
    ),
    Mutant(
        "an interrupt waits longer than its patience",
        "interrupts.py",
        "has_ended.get(timeout=patience_s)",
        "has_ended.get(timeout=None)",
        "tests/unit/test_interrupts.py::test_an_interrupt_waits_no_longer_than_its_patience",
    ),
    *of_access.MUTANTS,
    *of_files.MUTANTS,
    *of_hints.MUTANTS,
    *of_transactions.MUTANTS,
    *of_sql.MUTANTS,
    *of_rest.MUTANTS,
    *of_rows.MUTANTS,
    *of_spark.MUTANTS,
    *of_catalogs.MUTANTS,
    *of_locks.MUTANTS,
    *of_requests.MUTANTS,
)

CONTROL = Mutant("nothing", "errors.py", "class LockError(", "class LockError(", f"{_SIM}[stalls-1]")
"""The code as it is, which must pass: else everything would be called killed."""


# Trying them.


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Yield so many copies of what a test needs."""
    with tempfile.TemporaryDirectory(prefix="commit-coord-mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(count):
            place = Path(folder) / str(number)
            place.mkdir()
            for part in _PARTS:
                if (ROOT / part).is_dir():
                    shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / part, place / part)
            free.put(place)
        yield free


def killed(mutant: Mutant, place: Path) -> tuple[bool | None, str]:
    """Return whether the mutant's test fails in the copy at *place* once the mutant is there, and by what.

    None: undecided. The test came to no end, or ended by something that is no answer to the mutant: its fixtures
    failed, its time limit struck, or the mutant's own text can't run.

    Raises:
        RuntimeError: The test could not be run.
    """
    path = place / "commit_coord" / mutant.file
    path.write_text(mutant.applied())
    end = place / "end"
    end.unlink(missing_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    process = context.Process(target=_test, args=(mutant.test, place))
    try:
        process.start()
        process.join(600.0)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None, "no end"
    finally:
        path.write_text((ROOT / "commit_coord" / mutant.file).read_text())
    if process.exitcode == _PASSED:
        return False, "nothing"
    if process.exitcode != _FAILED:
        raise RuntimeError(f"{mutant.name}: pytest ended with {process.exitcode}\n{(place / 'log').read_text()}")
    phase, kind, words = end.read_text().split("\n", 2)
    answers = phase == "call" and kind not in _NO_ANSWER and not words.startswith("Timeout")
    return True if answers else None, kind if phase == "call" else f"{kind} in {phase}"


_ENDS = {True: "killed", False: "SURVIVED", None: "UNDECIDED"}

_NO_ANSWER = {"NameError", "UnboundLocalError", "SyntaxError", "ImportError", "ModuleNotFoundError"}
"""What a mutant whose text can't run raises."""

_PASSED, _FAILED = 70, 71
"""Nothing else that ends a process has these."""


_IMPORTED = ["pytest", "pyarrow.parquet", "pyiceberg.catalog.sql", "pyiceberg.io.pyarrow", "fastavro", "orjson"]
"""What the tests need and no mutant changes: imported once."""


class _Hasty:
    """A plugin of pytest. Whether a test fails, and by what, is all that is asked: no time for a small example."""

    def __init__(self, end: Path) -> None:
        self._end = end

    def pytest_configure(self) -> None:
        import hypothesis

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("hasty", phases=phases, database=None)
        hypothesis.settings.load_profile("hasty")

    def pytest_exception_interact(self, call: pytest.CallInfo[object]) -> None:
        assert call.excinfo is not None
        if self._end.exists():
            return  # What comes later, as a fixture that ends, follows from it.
        error: BaseException = call.excinfo.value
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._end.write_text(f"{call.when}\n{type(error).__name__}\n{error}")


def _test(test: str, place: Path) -> None:
    """Run *test* in the copy at *place*, in this process; leave with pytest's status."""
    with (place / "log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    assert "commit_coord" not in sys.modules
    os.chdir(place)
    sys.path.insert(0, str(place))
    os.environ["PYTHONPATH"] = str(place)  # also what the test starts has the mutant, in whatever folder
    sys.dont_write_bytecode = True
    import pytest

    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", test]
    status = pytest.main(arguments, plugins=[_Hasty(place / "end")])
    found = Path(sys.modules["commit_coord"].__file__ or "")
    sys.stdout.flush()
    assert found.is_relative_to(place)
    os._exit({0: _PASSED, 1: _FAILED}.get(int(status), int(status)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants, print a table; 1 when one survives."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="only these")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    survivors = []

    def attempt(mutant: Mutant) -> tuple[bool | None, str, float]:
        place, began = free.get(), time.monotonic()
        try:
            return *killed(mutant, place), time.monotonic() - began
        finally:
            free.put(place)

    with copies(options.processes) as free, ThreadPoolExecutor(options.processes) as pool:
        if attempt(CONTROL)[0] is not False:
            print("the code as it is does not pass")
            return 1
        for mutant, (dead, by, seconds) in zip(chosen, pool.map(attempt, chosen), strict=True):
            print(f"{_ENDS[dead]:9} {seconds:5.1f} s  {mutant.name:48} {by:24} {mutant.test}", flush=True)
            if not dead:
                survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants were killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
