"""Mutants of Hive's statements: literals, and queries that are planned again."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_ROWS = "tests/sql/test_rows.py::"
_MEANWHILE = f"{_ROWS}test_rows_that_were_appended_meanwhile_are_seen"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "sql-numbers-through-float",
        "sql/constants.py",
        "            return number(text)\n",
        "            return float(text)\n",
        f"{_ROWS}test_a_decimal_is_stored_and_found_as_it_was_written",
    ),
    Mutant(
        "sql-partition-numbers-through-float",
        "sql/parse.py",
        "        found = number(token.text)\n",
        "        found = float(token.text)\n",
        f"{_ROWS}test_a_partition_s_literal_is_exact",
    ),
    Mutant(
        "sql-minus-rounds-to-the-context",
        "sql/constants.py",
        "return value.copy_negate()",
        "return -value",
        f"{_ROWS}test_a_decimal_of_38_digits_is_compared_digit_by_digit",
    ),
    Mutant(
        "sql-values-are-rounded-to-fit",
        "iceberg/values.py",
        "    if beside:\n        raise Misfit(",
        "    if found is None:\n        raise Misfit(",
        f"{_ROWS}test_a_literal_that_its_column_can_t_hold_is_refused_with_words",
    ),
    Mutant(
        "sql-required-may-be-null",
        "iceberg/values.py",
        "    if value is None and field.required:\n",
        "    if value is None and field.required and field.field_type.is_struct:\n",
        f"{_ROWS}test_a_literal_that_its_column_can_t_hold_is_refused_with_words",
    ),
    Mutant(
        "sql-query-not-run-again",
        "sql/rows.py",
        "transaction.perform(plan, Operation.OVERWRITE if statement.overwrite else Operation.APPEND)",
        "plan(transaction)",
        _MEANWHILE,
    ),
    Mutant(
        "sql-update-not-planned-again",
        "sql/rows.py",
        "transaction.perform(plan, Operation.UPDATE)",
        "plan(transaction)",
        f"{_ROWS}test_a_statement_that_had_nothing_to_do_looks_again",
    ),
    Mutant(
        "sql-delete-not-planned-again",
        "sql/rows.py",
        "transaction.perform(plan, Operation.DELETE)",
        "plan(transaction)",
        f"{_ROWS}test_a_statement_that_had_nothing_to_do_looks_again",
    ),
    Mutant(
        "sql-query-reads-an-old-target",
        "sql/rows.py",
        "return target if found.metadata.table_uuid == target.metadata.table_uuid else found",
        "return table if found.metadata.table_uuid == target.metadata.table_uuid else found",
        _MEANWHILE,
    ),
    Mutant(
        "sql-update-reads-an-old-schema",
        "sql/rows.py",
        "ArrowScan(table.metadata, table.io, table.schema(), E.AlwaysTrue())",
        "ArrowScan(table.metadata, table.io, table.metadata.schemas[0], E.AlwaysTrue())",
        f"{_ROWS}test_update_after_a_column_was_added_or_two_swapped_their_names_keeps_every_value",
    ),
    Mutant(
        "sql-between-two-values-of-a-type",
        "sql/filters.py",
        'return Compared(field, "<=" if operator in {"<", "<="} else ">", below)',
        "return Compared(field, operator, below)",
        f"{_ROWS}test_where_has_three_truth_values",
    ),
    Mutant(
        "sql-two-truth-values",
        "sql/filters.py",
        "reduce(pc.and_kleene,",
        "reduce(pc.and_,",
        f"{_ROWS}test_where_has_three_truth_values",
    ),
    Mutant(
        "sql-not-like-is-like",
        "sql/filters.py",
        'return Negated(found) if like.args.get("negate") else found',
        "return found",
        f"{_ROWS}test_where_has_three_truth_values",
    ),
    Mutant(
        "sql-nan-above-nothing",
        "sql/filters.py",
        "return pc.or_(found, pc.is_nan(column)) if",
        "return found if",
        f"{_ROWS}test_nan_equals_itself_and_is_above_all_numbers",
    ),
    Mutant(
        "sql-files-of-nan-are-skipped",
        "sql/filters.py",
        "return E.Or(found, E.IsNaN(term=name)) if floating else found",
        "return found",
        f"{_ROWS}test_nan_is_found_in_a_file_whose_bounds_are_below",
    ),
    Mutant(
        "sql-registered-twice",
        "sql/operations.py",
        "if _locates(statement) else set()",
        "if not _locates(statement) else set()",
        f"{_ROWS}test_a_location_is_registered_once",
    ),
)
