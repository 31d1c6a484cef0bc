"""Coordinated catalogs, and the documented way to open one."""

from commit_coord.catalog.load import load_catalog
from commit_coord.catalog.sql import CoordinatedSqlCatalog

__all__ = ["CoordinatedSqlCatalog", "load_catalog"]
