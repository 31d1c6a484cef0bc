"""Coordinated catalogs, and the documented way to open one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commit_coord.catalog.by_name import open_coord_uris
from commit_coord.catalog.load import catalog_class, load_catalog

if TYPE_CHECKING:
    from commit_coord.catalog.hive import CoordinatedHiveCatalog
    from commit_coord.catalog.sql import CoordinatedSqlCatalog

__all__ = ["CoordinatedHiveCatalog", "CoordinatedSqlCatalog", "load_catalog", "open_coord_uris"]


def __getattr__(name: str) -> Any:
    if name in ("CoordinatedHiveCatalog", "CoordinatedSqlCatalog"):  # imported late: a process needs one of them
        return catalog_class(name)
    raise AttributeError(name)
