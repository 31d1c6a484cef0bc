"""Mutants of the lock managers and of the owners of locks."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PROCESS = "tests/test_process.py::"

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
)

MUTANTS: tuple[Mutant, ...] = (*_LOCKS,)
