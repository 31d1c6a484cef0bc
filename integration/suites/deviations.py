"""Where our catalogs do otherwise than PyIceberg's, in PyIceberg's own tests, and why.

A key is the id of a test, without its parameters where all of its cases deviate. ``sql`` are the tests on SQL catalogs,
``hive`` those on a metastore.
"""

from __future__ import annotations

DEVIATIONS: dict[str, dict[str, str]] = {"sql": {}, "hive": {}}
