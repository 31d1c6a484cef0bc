"""``docs/configuration.md``, made from the table of properties."""

from __future__ import annotations

from commit_coord.config.properties import PROPERTIES, TABLE_PROPERTIES


def render() -> str:
    """Return ``docs/configuration.md``."""
    lines = [
        "# Configuration",
        "",
        "Catalog properties, given as arguments of `commit_coord.load_catalog`, in the environment",
        "(`PYICEBERG_CATALOG__<NAME>__LOCK__ACQUIRE_TIMEOUT_MS`) or in `.pyiceberg.yaml`, in this order of precedence.",
        "All other properties (`uri`, `warehouse`, `s3.*`, …) belong to PyIceberg and are passed on unchanged. Put",
        "`coord+` in front of the URI: plain PyIceberg then refuses the catalog instead of opening it without",
        "coordination. An unknown or malformed setting is an error when a catalog is opened.",
        "",
        "PyIceberg refuses with one of these messages:",
        "`Could not infer the catalog type from the uri: coord+…`,",
        "`Can't load plugin: sqlalchemy.dialects:coord.…`. They mean that a program opened the catalog with",
        "PyIceberg's own `load_catalog`. In your own program call `commit_coord.load_catalog`. If a library makes the",
        "call (dlt, for example), call `commit_coord.catalog.open_coord_uris()` before, or pass `py-catalog-impl` to",
        "the library as an argument; PyIceberg ignores that key in `.pyiceberg.yaml` and in the environment.",
        "`commit-coord pyiceberg …` is PyIceberg's command line for such catalogs.",
        "",
        "Files are opened with the properties of the catalog alone: `s3.*`, `gcs.*`, `adls.*`, `hdfs.*` and",
        "`py-io-impl` in the properties of a table are ignored. `write.py-location-provider.impl` in the properties of",
        "the catalog allows a class; it is used for the tables that name the same class",
        "([security.md](security.md#properties-of-tables)).",
        "",
        "| property | value | default | meaning | also called |",
        "| --- | --- | --- | --- | --- |",
    ]
    for prop in PROPERTIES:
        default = f"`{prop.default}`" if prop.default is not None else ""
        aliases = ", ".join(f"`{alias}`" for alias in prop.aliases)
        lines.append(f"| `{prop.key}` | {prop.type} | {default} | {prop.description} | {aliases} |")
    lines += [
        "",
        "## Properties of a table",
        "",
        "Set them with `table.transaction().set_properties(...)` or when you create the table; every writer reads them",
        "from the table.",
        "",
        "| property | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{p.key}` | {p.type} | `{p.default}` | {p.description} |" for p in TABLE_PROPERTIES]
    return "\n".join(lines) + "\n"
