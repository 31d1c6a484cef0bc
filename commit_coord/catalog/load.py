"""Opens a coordinated catalog, or says why not; never an uncoordinated one."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.config import COORDINATED_URI_PREFIX, configure, default_catalog_name, given_properties
from commit_coord.errors import ConfigError
from commit_coord.extras import install

_CLASSES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "CoordinatedSqlCatalog": ("sql", "sqlite, postgresql", install("postgres")),
        "CoordinatedHiveCatalog": ("hive", "thrift", install("hive")),
    }
)
"""Class → its module, which is PyIceberg's ``type`` too; the schemes of its URIs; what its drivers are."""


def load_catalog(name: str | None = None, **properties: Any) -> CoordinatedCatalog:
    """Return the catalog *name*, coordinated.

    PyIceberg's ``load_catalog`` reads ``py-catalog-impl`` from its arguments only: set in a file or in the environment
    it is ignored, and a plain catalog comes back. This function reads all three.

    Args:
        name: As in ``.pyiceberg.yaml``; None takes ``default-catalog``, else ``default``.
        properties: Before the environment, before the file.

    Raises:
        ConfigError: A setting is unknown, malformed or missing, or asks for a catalog that is not coordinated.
    """
    name = name or default_catalog_name()
    given = given_properties(name, properties)
    known = {path: cls for cls, (module, _, _) in _CLASSES.items() for path in _paths(cls, module)}
    impl = given.get("py-catalog-impl")
    if impl is not None and impl not in known:
        raise ConfigError(
            "this catalog class is not coordinated",
            key="py-catalog-impl",
            value=impl,
            accepted=", ".join(f"commit_coord.catalog.{cls}" for cls in _CLASSES),
        )
    kind = given.get("type")
    if kind is not None and kind not in (module for module, _, _ in _CLASSES.values()):
        raise ConfigError("this catalog type is not coordinated", key="type", value=kind, accepted="sql, hive")
    configure(name, properties)
    scheme = given["uri"].removeprefix(COORDINATED_URI_PREFIX).split(":", 1)[0].split("+", 1)[0]
    for cls, (module, schemes, _) in _CLASSES.items():
        if scheme in schemes.split(", "):
            if impl is not None and known[impl] != cls:
                raise ConfigError(
                    "two settings contradict each other",
                    key="py-catalog-impl",
                    value=impl,
                    other="uri",
                    other_value=scheme,
                )
            if kind not in (None, module):
                raise ConfigError(
                    "two settings contradict each other", key="type", value=kind, other="uri", other_value=scheme
                )
            catalog: CoordinatedCatalog = catalog_class(cls)(name, **properties)
            return catalog
    raise ConfigError(
        "no coordinated catalog for this uri",
        key="uri",
        value=f"{scheme}:…",
        accepted="coord+sqlite:, coord+postgresql:, coord+thrift:",
    )


def catalog_class(name: str) -> type[Any]:
    """Return the class *name*; its module is imported now, since its drivers may not be installed.

    Raises:
        ConfigError: They are not.
    """
    module, _, install = _CLASSES[name]
    try:
        found: type[Any] = getattr(import_module(f"commit_coord.catalog.{module}"), name)
    except ModuleNotFoundError as error:
        # PyIceberg turns a ModuleNotFoundError of a catalog class into a plain "could not initialize".
        raise ConfigError(f"a package is missing: {error}", key="uri", accepted=install) from error
    return found


def _paths(cls: str, module: str) -> tuple[str, str]:
    return f"commit_coord.catalog.{cls}", f"commit_coord.catalog.{module}.{cls}"
