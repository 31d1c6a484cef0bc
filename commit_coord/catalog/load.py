"""Opens a coordinated catalog, or says why not; never an uncoordinated one."""

from __future__ import annotations

from typing import Any

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.config import COORDINATED_URI_PREFIX, configure, default_catalog_name, given_properties
from commit_coord.errors import ConfigError

_ACCEPTED_IMPL = "commit_coord.catalog.CoordinatedSqlCatalog"


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
    impl = given.get("py-catalog-impl", _ACCEPTED_IMPL)
    if impl not in (_ACCEPTED_IMPL, "commit_coord.catalog.sql.CoordinatedSqlCatalog"):
        raise ConfigError(
            "this catalog class is not coordinated", key="py-catalog-impl", value=impl, accepted=_ACCEPTED_IMPL
        )
    if given.get("type", "sql") != "sql":
        raise ConfigError("this catalog type is not coordinated", key="type", value=given["type"], accepted="sql")
    configure(name, properties)
    scheme = given["uri"].removeprefix(COORDINATED_URI_PREFIX).split(":", 1)[0].split("+", 1)[0]
    if scheme not in ("sqlite", "postgresql"):
        raise ConfigError(
            "no coordinated catalog for this uri",
            key="uri",
            value=f"{scheme}:…",
            accepted="coord+sqlite:, coord+postgresql:",
        )
    return CoordinatedSqlCatalog(name, **properties)
