"""Iceberg's REST protocol in front of coordinated catalogs: ``commit-coord serve``."""

from commit_coord.rest.server import check, serve
from commit_coord.rest.settings import Serving, read_settings, validated

__all__ = ["Serving", "check", "read_settings", "serve", "validated"]
