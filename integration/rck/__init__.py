"""Iceberg's REST Compatibility Kit against ``commit-coord serve``: ``python -m integration.rck``, ``make rck``.

The kit is Java's: it drives its own REST client through the tests of catalogs and views. What it skips, it skips on
every server that has no nested namespaces without a parent, or that joins levels with dots.
"""
