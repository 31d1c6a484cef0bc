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
        "Everything else (`uri`, `warehouse`, `s3.*`, …) is PyIceberg's and goes through unchanged. Put `coord+` in",
        "front of the URI: plain PyIceberg then refuses the catalog instead of opening it without coordination.",
        "An unknown or malformed setting is an error at start.",
        "",
        "`Could not infer the catalog type from the uri: coord+…` and",
        "`Can't load plugin: sqlalchemy.dialects:coord.…` are such refusals: a program opened the catalog through",
        "PyIceberg's own `load_catalog`. In a program of your own call `commit_coord.load_catalog`. Where a library",
        "makes the call (dlt, for example), call `commit_coord.catalog.open_coord_uris()` before, or hand the library",
        "`py-catalog-impl` as an argument; PyIceberg ignores that key in `.pyiceberg.yaml` and in the environment.",
        "`commit-coord pyiceberg …` is PyIceberg's command line for such catalogs.",
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
        "## Of a table",
        "",
        "Set by `table.transaction().set_properties(...)` or when the table is created; every writer reads them there.",
        "",
        "| property | value | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| `{p.key}` | {p.type} | `{p.default}` | {p.description} |" for p in TABLE_PROPERTIES]
    return "\n".join(lines) + "\n"
