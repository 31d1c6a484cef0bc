"""Mutants of the lock managers and of the owners of locks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PROCESS = "tests/test_process.py::"

_ANY_NAME = (
    "tests/contract/test_lock_managers.py::TestLockManagers::"
    "test_a_name_excludes_as_any_other_or_is_refused_in_words_before_anything_is_locked"
)

_LOCKS = (
    Mutant(
        "what-proc-does-not-show-has-ended",
        "process.py",
        "    except OSError:\n        return False\n    return state in _ENDED",
        "    except OSError:\n        return True\n    return state in _ENDED",
        f"{_PROCESS}test_a_process_that_proc_does_not_show_is_not_dead[2]",
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
        "names-lock-as-they-are-typed",
        "catalog/hive.py",
        "Resource((*folded(*resource.path[:2]), *resource.path[2:]))",
        "resource",
        "tests/hive/test_names.py::test_a_lock_on_a_name_keeps_out_whoever_spells_it_otherwise[drop_namespace]",
    ),
    Mutant(
        "another-spelling-is-another-table-to-a-plan",
        "catalog/sightings.py",
        "table=table.lower(),",
        "table=table,",
        "tests/hive/test_names.py::test_a_writer_that_locks_a_name_as_typed_is_reported_with_its_spelling",
    ),
    Mutant(
        "a-name-becomes-sql",
        "hms/client.py",
        "            if _UNSAFE.search(name):",
        "            if False:",
        f"{_ANY_NAME}[hms]",
    ),
    Mutant(
        "a-long-name-goes-into-an-index",
        "locks/lease.py",
        "    if len(text) <= _LONGEST:",
        "    if text:",
        f"{_ANY_NAME}[lease-postgresql]",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*_LOCKS,)
