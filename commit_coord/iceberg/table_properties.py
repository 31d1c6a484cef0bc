"""Properties of a table whose value is a number, or true or false, and values that are neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from pyiceberg.table import TableProperties
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.properties import property_as_bool, property_as_int

from commit_coord.config import BLIND_APPENDS, COALESCE
from commit_coord.errors import CommitCoordError, ConfigError

GC_ENABLED = "gc.enabled"
"""Table property of Iceberg's: with ``false`` the files of the table are not to be deleted, they may be another's."""

NUMBERS = (
    TableProperties.PARQUET_ROW_GROUP_LIMIT,
    TableProperties.PARQUET_PAGE_SIZE_BYTES,
    TableProperties.PARQUET_PAGE_ROW_LIMIT,
    TableProperties.PARQUET_DICT_SIZE_BYTES,
    TableProperties.PARQUET_COMPRESSION_LEVEL,
    TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
    TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
    TableProperties.MANIFEST_TARGET_SIZE_BYTES,
    TableProperties.MANIFEST_MIN_MERGE_COUNT,
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
    TableProperties.MAX_SNAPSHOT_AGE_MS,
    TableProperties.MIN_SNAPSHOTS_TO_KEEP,
    TableProperties.COMMIT_NUM_RETRIES,
    TableProperties.COMMIT_MIN_RETRY_WAIT_MS,
    TableProperties.COMMIT_MAX_RETRY_WAIT_MS,
    TableProperties.COMMIT_TOTAL_RETRY_TIME_MS,
)
"""The properties that PyIceberg or this package read as a whole number."""

FLAGS = (
    TableProperties.OBJECT_STORE_ENABLED,
    TableProperties.WRITE_OBJECT_STORE_PARTITIONED_PATHS,
    TableProperties.MANIFEST_MERGE_ENABLED,
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED,
    GC_ENABLED,
    COALESCE,
    BLIND_APPENDS,
)
"""The properties that PyIceberg or this package read as true or false."""


def refuse_unreadable(
    properties: Mapping[str, str], before: Mapping[str, str] = EMPTY_DICT, keys: Iterable[str] = NUMBERS + FLAGS
) -> None:
    """Return if each of *properties* has a value that can be read, or the value that it had *before*.

    Raises:
        ConfigError: One of *keys* is to be a number and is none, or to be true or false and is neither.
    """
    for key in keys:
        value = properties.get(key)
        if value is None or value == before.get(key):
            continue
        try:
            if key in FLAGS:
                property_as_bool({key: value}, key, False)
            else:
                property_as_int({key: value}, key)
        except ValueError as error:
            accepted = "true or false" if key in FLAGS else "a whole number"
            raise ConfigError(
                "invalid property of the table: set another value", key=key, value=value, accepted=accepted
            ) from error


@contextmanager
def in_words(properties: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Replace PyIceberg's error about an unreadable property by one that names the accepted values.

    Args:
        properties: Returns the properties that the block reads.

    Raises:
        ConfigError: As :func:`refuse_unreadable`.
    """
    try:
        yield
    except CommitCoordError:
        raise
    except ValueError as error:
        refuse_unreadable(properties(), keys=[key for key in NUMBERS + FLAGS if key in str(error)])
        raise


def flag(properties: Mapping[str, str], key: str, default: bool, *, unreadable: bool) -> bool:
    """Return the value of a property: *default* if it is not set, *unreadable* if it is neither true nor false."""
    try:
        return property_as_bool(dict(properties), key, default)
    except ValueError:
        return unreadable


def as_number(properties: Mapping[str, str], key: str, default: int) -> int:
    """Return the value of a property, *default* if it is not set, or is 0.

    Raises:
        ConfigError: It is no whole number.
    """
    refuse_unreadable(properties, keys=(key,))
    return property_as_int(dict(properties), key, default) or default
