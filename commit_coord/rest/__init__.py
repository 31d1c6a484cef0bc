"""Iceberg's REST protocol in front of coordinated catalogs: ``commit-coord serve``."""

from commit_coord.rest.server import Serving, check, serve

__all__ = ["Serving", "check", "serve"]
