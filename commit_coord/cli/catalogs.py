"""Opens the catalog that the command line and PyIceberg's configuration name. Never creates one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.load import catalog_class, load_catalog
from commit_coord.cli.exit_codes import CommandFailed, EndedBySignal, ExitCode
from commit_coord.cli.importing import importing
from commit_coord.config import (
    COORDINATED_URI_PREFIX,
    configure,
    default_catalog_name,
    given_properties,
    known_catalogs,
)
from commit_coord.model import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A catalog as the command line names it.

    Args:
        name: None takes PyIceberg's default.
        uri: Before what the configuration says.
        warehouse: Likewise.
        properties: ``key=value`` texts, likewise.
    """

    name: str | None
    uri: str | None
    warehouse: str | None
    properties: Sequence[str]

    @property
    def catalog(self) -> str:
        """The catalog's name."""
        return self.name or default_catalog_name()

    def arguments(self) -> dict[str, str]:
        """Return the properties that the command line gives.

        Raises:
            CommandFailed: One of them has no ``=``.
        """
        given = {}
        for text in self.properties:
            key, separator, value = text.partition("=")
            if not separator or not key:
                raise CommandFailed(f"{text!r} is no property; give --property key=value", ExitCode.USAGE, "usage")
            given[key] = value
        if self.uri is not None:
            given["uri"] = self.uri
        if self.warehouse is not None:
            given["warehouse"] = self.warehouse
        return given


def require_configured(name: str, arguments: Mapping[str, str], hint: str) -> None:
    """Check that the catalog *name* has an address, in PyIceberg's configuration or in *arguments*.

    Raises:
        CommandFailed: It has none; *hint* says what to do.
    """
    if not given_properties(name, arguments).get("uri"):
        known = ", ".join(known_catalogs()) or "none"
        raise CommandFailed(
            f"no catalog {name!r} is configured (known: {known}): {hint}", ExitCode.USAGE, "unknown-catalog"
        )


def checked(choice: Choice) -> dict[str, str]:
    """Return the arguments of *choice*, after the checks that need no connection.

    Raises:
        CommandFailed: The catalog is not configured, or its SQLite file is not there.
        ConfigError: A setting is wrong.
    """
    arguments = choice.arguments()
    require_configured(choice.catalog, arguments, "add it to .pyiceberg.yaml, or give --uri and --warehouse")
    return arguments


@contextmanager
def opened(choice: Choice) -> Iterator[CoordinatedCatalog]:
    """Open the catalog of *choice*, which must be there already, and close it again.

    In the block SIGTERM and SIGHUP interrupt as Ctrl-C does: what the command waits for or holds is given back.

    Raises:
        CommandFailed: The catalog is not configured, or its SQLite file is not there.
        ConfigError: A setting is wrong, or the database can't be reached.
        EndedBySignal: One of the signals came.
    """
    arguments = checked(choice)
    configuration = configure(choice.catalog, arguments)
    address = configuration.properties["uri"].removeprefix(COORDINATED_URI_PREFIX)
    _refuse_missing_file(address)
    _import_class("CoordinatedHiveCatalog" if address.startswith("thrift:") else "CoordinatedSqlCatalog")
    with _ended_by_signals():
        catalog = load_catalog(choice.catalog, **arguments)
        try:
            yield catalog
        finally:
            catalog.close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Raise :class:`EndedBySignal` at SIGTERM and SIGHUP, unless our parent had them ignored (nohup)."""

    def end(number: int, frame: object) -> None:
        for one in changed:
            signal.signal(one, signal.SIG_IGN)  # a closed terminal sends it twice; the second would interrupt the end
        raise EndedBySignal

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    changed = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        changed = []  # Python allows it to the main thread alone.
    try:
        for number in changed:
            signal.signal(number, end)
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])


@cache
def _import_class(name: str) -> None:
    with importing():
        catalog_class(name)


def _refuse_missing_file(address: str) -> None:
    """SQLite makes the file that it does not find: a typing error would become an empty catalog."""
    if not address.startswith(("sqlite:", "sqlite+")):
        return
    from sqlalchemy import make_url  # a catalog on a metastore does without it
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(address)
    except (ArgumentError, ValueError):  # the latter: a port that is no number
        return  # opening it will say what is wrong
    file = url.database
    if not file or file.startswith((":", "file:")):
        return
    if not Path(file).exists():
        raise CommandFailed(
            f"there is no database {file}: check the uri (an absolute path has four slashes, coord+sqlite:////…)",
            ExitCode.USAGE,
            "no-database",
        )


def table_resource(catalog: CoordinatedCatalog, table: str) -> Resource:
    """Return what *table*, ``NAMESPACE.TABLE``, locks.

    Raises:
        CommandFailed: There is no such table.
    """
    identifier = tuple(part for part in table.split(".") if part)
    if len(identifier) < 2 or not catalog.table_exists(identifier):
        raise CommandFailed(
            f"there is no table {table!r} in catalog {catalog.name!r}; check the name: NAMESPACE.TABLE",
            ExitCode.REFUSED,
            "not-found",
        )
    return Resource.table(identifier)
