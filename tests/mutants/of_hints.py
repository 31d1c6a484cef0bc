"""Mutants of what a person is told: the hints and exit codes of errors, and what the page keeps up to date."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_MISTAKES = "tests/cli/test_mistakes.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "hints-a-setting-without-accepted-values-has-none",
        "cli/failures.py",
        'return text if "accepted" in error.details else f"{text}; {_ADVICE[kind]}"',
        "return text",
        f"{_MISTAKES}test_each_error_of_the_tree_says_what_to_do[ConfigError]",
    ),
    Mutant(
        "hints-an-error-of-the-system-that-is-not-known-has-none",
        "cli/failures.py",
        "{_HINTS.get(error.errno or 0, _ANY_HINT)}",
        "{_HINTS.get(error.errno or 0, '')}",
        f"{_MISTAKES}test_an_error_of_something_else_says_what_to_do",
    ),
    Mutant(
        "hints-a-dead-database-is-a-wrong-setting",
        "cli/failures.py",
        "case LockError() | CommitError() | MetastoreUnavailable() | DatabaseUnavailable():",
        "case LockError() | CommitError() | MetastoreUnavailable():",
        f"{_MISTAKES}test_a_service_that_can_not_be_reached_has_one_exit_code",
    ),
    Mutant(
        "hints-a-database-that-refuses-the-login-is-a-wrong-setting",
        "catalog/sql.py",
        "(DatabaseUnavailable if is_unavailable else ConfigError)",
        "ConfigError",
        f"{_MISTAKES}test_a_mistake_is_answered_by_a_sentence_and_a_hint[a wrong password]",
    ),
    Mutant(
        "hints-a-missing-package-of-spark-has-none",
        "spark/__init__.py",
        "raise missing(error) from None",
        "raise",
        f"{_MISTAKES}test_a_mistake_in_python_is_answered_by_an_error_with_a_hint",
    ),
    Mutant(
        "hints-a-missing-package-of-sql-has-none",
        "sql/__init__.py",
        "raise missing(error) from None",
        "raise",
        f"{_MISTAKES}test_a_mistake_in_python_is_answered_by_an_error_with_a_hint",
    ),
    Mutant(
        "a-table-cuts-what-it-should-fold",
        "cli/fitting.py",
        "return folded(text, width) if column.folds else column.cut(text, width)",
        "return column.cut(text, width)",
        "tests/cli/test_tables.py::test_a_table_fits_its_screen",
    ),
    Mutant(
        "a-page-without-authentication-is-not-read-only",
        "rest/settings.py",
        "return self.authentication is None if self.ui.read_only is None else self.ui.read_only",
        "return bool(self.ui.read_only)",
        "tests/rest/test_settings.py::test_a_page_without_authentication_is_read_only_unless_the_settings_say_otherwise",
    ),
    Mutant(
        "the-page-does-not-show-what-may-be-free",
        "ui/pages.py",
        '"maybe_freed": error.maybe_freed, ',
        '"maybe_freed": (), ',
        "tests/ui/test_pages.py::test_a_page_shows_which_locks_were_freed_and_which_may_have_been",
    ),
    Mutant(
        "the-page-does-not-look-at-leases-again",
        "ui/looking.py",
        "leases = _leases(self._catalog)",
        "leases: Sequence[HiveLease] = ()",
        "tests/ui/test_watching.py::test_a_lease_that_begins_and_one_that_ends_are_seen",
    ),
)
