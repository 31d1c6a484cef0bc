"""What is recorded of a Parquet file covers every row group of it, or is left out.

Parquet's writers leave out the least and the greatest value of a row group where one of the two is long (4 KiB), and
Java's the number of NULLs, too. PyIceberg merges what the other groups have: a filter then overlooks rows of this
group. And it fails where a date or a time is none of Python's, or where the letter after the last one of a bound
is a surrogate, which no text can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from commit_coord.iceberg.mends import Mends


def mend(mends: Mends, reader: ModuleType) -> None:
    """Have *reader*, PyIceberg's module for Arrow, record nothing of a column that it does not know of all rows."""
    counts = reader.MetricsMode(reader.MetricModeTypes.COUNTS)

    def complete_only(collect: Callable[..., Any]) -> Callable[..., Any]:
        def collected(
            parquet_metadata: Any, stats_columns: Mapping[int, Any], parquet_column_mapping: Mapping[str, int]
        ) -> Any:
            try:
                made = collect(parquet_metadata, stats_columns, parquet_column_mapping)
            except (OverflowError, ValueError):
                beyond = {parquet_column_mapping[one.path_in_schema] for one in _beyond_python(parquet_metadata)}
                if not beyond:
                    raise
                bounded = {
                    key: replace(one, mode=counts) if key in beyond else one for key, one in stats_columns.items()
                }
                made = collect(parquet_metadata, bounded, parquet_column_mapping)
            if parquet_metadata.num_row_groups > 1:
                for chunk in _chunks(parquet_metadata):
                    field_id, known = parquet_column_mapping[chunk.path_in_schema], chunk.statistics
                    if known is None or not known.has_null_count:
                        made.null_value_counts.pop(field_id, None)
                    if known is None or not (
                        known.has_min_max or (known.has_null_count and known.null_count == chunk.num_values)
                    ):
                        made.column_aggregates.pop(field_id, None)
            return made

        return collected

    mends.wrap(reader, "data_file_statistics_from_parquet_metadata", complete_only)
    mends.wrap(reader, "truncate_upper_bound_text_string", _over_the_surrogates)


def _over_the_surrogates(real: Any) -> Any:
    def cut(text: str, width: int | None) -> str | None:
        found: str | None = real(text, width)
        return found and found.replace("\ud800", "\ue000")

    return cut


def _chunks(footer: Any) -> Iterator[Any]:
    """Yield what *footer* says of each column in each row group."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        yield from (group.column(position) for position in range(footer.num_columns))


def _beyond_python(footer: Any) -> Iterator[Any]:
    """Yield the columns of row groups whose least or greatest value is a date or a time that Python does not have."""
    for chunk in _chunks(footer):
        try:
            _ = chunk.statistics and (chunk.statistics.min, chunk.statistics.max)
        except (OverflowError, ValueError):
            yield chunk
        except NotImplementedError:
            continue  # PyIceberg takes such a column for one without statistics
