"""The catalogs that Spark jobs name: each is opened once in a process and stays open."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import commit_coord
from commit_coord.config import default_catalog_name, given_properties
from commit_coord.spark.options import spark_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from commit_coord.catalog.base import CoordinatedCatalog

_opened: dict[tuple[str, frozenset[tuple[str, str]]], CoordinatedCatalog] = {}
_guard = threading.Lock()


def opened(name: str | None, properties: Mapping[str, str]) -> CoordinatedCatalog:
    """Return the catalog *name* with *properties* on top of its configuration; the same one for the same settings.

    Raises:
        ConfigError: As :func:`commit_coord.load_catalog`.
    """
    name = name or default_catalog_name()
    key = name, frozenset(given_properties(name, properties).items())
    with _guard:
        if key not in _opened:
            _opened[key] = commit_coord.load_catalog(name, **properties)
        return _opened[key]


def named(spark: SparkSession, name: str | None) -> CoordinatedCatalog:
    """Return the catalog *name* as PyIceberg's configuration and the settings of *spark* describe it.

    Raises:
        ConfigError: As :func:`commit_coord.load_catalog`.
    """
    name = name or default_catalog_name()
    return opened(name, spark_properties(spark.conf.getAll, name))
