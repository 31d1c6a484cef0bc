"""The configuration of a catalog.

``properties`` has one row for each property with its aliases, ``values`` the closed sets, ``aliases`` the texts of Hive
and Iceberg, ``settings`` the values for one catalog and what they must fulfil together, ``reading`` finds them, and
``page`` writes ``docs/configuration.md``: ``python -m commit_coord.config`` prints it.
"""

from commit_coord.config.page import render
from commit_coord.config.properties import BLIND_APPENDS, COALESCE, PROPERTIES, TABLE_PROPERTIES
from commit_coord.config.property import Property
from commit_coord.config.reading import (
    COORDINATED_URI_PREFIX,
    configure,
    default_catalog_name,
    given_properties,
    known_catalogs,
)
from commit_coord.config.settings import Configuration, Settings
from commit_coord.config.values import (
    CompareAndSetSetting,
    LockImpl,
    LockPolicy,
    MetricsExporter,
    OperationLocks,
    Origin,
    TracesExporter,
    ZooKeeperAuth,
)

__all__ = [
    "BLIND_APPENDS",
    "COALESCE",
    "COORDINATED_URI_PREFIX",
    "PROPERTIES",
    "TABLE_PROPERTIES",
    "CompareAndSetSetting",
    "Configuration",
    "LockImpl",
    "LockPolicy",
    "MetricsExporter",
    "OperationLocks",
    "Origin",
    "Property",
    "Settings",
    "TracesExporter",
    "ZooKeeperAuth",
    "configure",
    "default_catalog_name",
    "given_properties",
    "known_catalogs",
    "render",
]
