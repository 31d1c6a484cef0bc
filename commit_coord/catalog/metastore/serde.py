"""Names of table properties that say how Hive reads and writes rows. Statements set them on any catalog."""

from __future__ import annotations

SERDE_LIB = "hive.serde.lib"
"""The table property that names the class with which Hive reads and writes rows."""

SERDE_PROPERTY = "hive.serde.property."
"""Prefix of the table properties that are parameters of that class."""
