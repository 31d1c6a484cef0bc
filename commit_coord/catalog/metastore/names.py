"""Names as a metastore keeps them."""

from __future__ import annotations

from commit_coord.catalog.names import NoSuchName

_TRIMMED = "".join(map(chr, range(0x21)))
"""The characters that Java's ``String.trim`` removes."""

_CATALOG_MARKER = "@"
"""Begins the name of a database with the name of its catalog: ``@hive#sales``, since Hive 3."""


def folded(database: str, *names: str) -> tuple[str, ...]:
    """Return the names of a database, and of what is in it, as the metastore keeps them: in lower case.

    The only place of the catalog that folds. ``MetastoreClient`` folds what it sends, for callers that know of none.

    A metastore also trims names, and finds a database of its default catalog with and without the catalog's name.
    Each of these spellings would have a lock of its own, so one table would have several latches. They are refused.

    Source: Hive ``StringUtils.normalizeIdentifier``, ``MetaStoreUtils.parseDbName``.

    Raises:
        NoSuchName: The metastore would look for another name than this one.
    """
    for name in (database, *names):
        if name != name.strip(_TRIMMED):
            raise NoSuchName(f"a name can't begin or end with a blank or control character: {name!r}")
    if database.startswith(_CATALOG_MARKER):
        raise NoSuchName(f"the name of a database can't begin with {_CATALOG_MARKER}: {database!r}")
    return tuple(name.lower() for name in (database, *names))
