"""Lets programs that open catalogs through PyIceberg's ``load_catalog`` open ours: its command line, dlt, and others.

PyIceberg has no entry point for catalog classes, and it reads ``py-catalog-impl`` from arguments alone. So a program
that names a catalog of the configuration can't open a ``coord+`` URI, unless its process has registered that with
PyIceberg.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyiceberg.catalog
from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType
from pyiceberg.typedef import RecursiveDict

from commit_coord.catalog.load import load_catalog
from commit_coord.config import COORDINATED_URI_PREFIX

_infer = pyiceberg.catalog.infer_catalog_type


def open_coord_uris() -> None:
    """Have PyIceberg's ``load_catalog`` open ``coord+`` URIs in this process, as :func:`load_catalog` does.

    Every other URI is opened as before. May be called twice.
    """
    if pyiceberg.catalog.infer_catalog_type is _infer_also_ours:
        return
    pyiceberg.catalog.infer_catalog_type = _infer_also_ours
    for kind in (CatalogType.SQL, CatalogType.HIVE):
        AVAILABLE_CATALOGS[kind] = partial(_open, AVAILABLE_CATALOGS[kind])


def _infer_also_ours(name: str, catalog_properties: RecursiveDict) -> CatalogType | None:
    uri = catalog_properties.get("uri")
    if isinstance(uri, str):
        catalog_properties = {**catalog_properties, "uri": uri.removeprefix(COORDINATED_URI_PREFIX)}
    return _infer(name, catalog_properties)


def _open(theirs: Callable[[str, dict[str, str]], Catalog], name: str, properties: dict[str, str]) -> Catalog:
    if properties.get("uri", "").startswith(COORDINATED_URI_PREFIX):
        return load_catalog(name, **properties)
    return theirs(name, properties)
