"""``commit-coord config``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.text import Text

from commit_coord.catalog.sql import CoordinatedSqlCatalog
from commit_coord.cli import views
from commit_coord.cli.catalogs import Choice, checked, opened, table_resource
from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE, YES
from commit_coord.cli.output import DEBUG, JSON, Output, confirmed
from commit_coord.config import Configuration, configure
from commit_coord.errors import ConfigError
from commit_coord.locks.registry import create_lock_manager


def config(
    catalog: Annotated[str | None, typer.Argument(metavar="[CATALOG]", help="The catalog's name.")] = None,
    adopt_locks: Annotated[
        bool, typer.Option("--adopt-locks", help="Forget the declared lock manager of the catalog, or of the TABLE.")
    ] = False,
    table: Annotated[
        str | None,
        typer.Option("--table", help="Also show what protects this NAMESPACE.TABLE of a metastore.", metavar="TABLE"),
    ] = None,
    yes: YES = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Show every property with its value and its source, and the guarantees of the lock manager. Opens no catalog.

    On a Hive Metastore it also tests what the server can do, with a temporary view and a temporary lock.

    --table: also show which kinds of writers can write to that table at the same time; this opens the catalog.

    --adopt-locks: stop all processes that use the catalog, then run this; the next process declares its lock manager.
    On a metastore each table has its own declaration: name the table with --table, and the configured lock manager is
    declared for it.
    """
    output = Output(as_json=as_json)
    if catalog is not None and name is not None and catalog != name:
        raise CommandFailed(
            f"two catalogs are named: {catalog!r} and {name!r}; leave one of them out", ExitCode.USAGE, "usage"
        )
    choice = Choice(name=catalog or name, uri=uri, warehouse=warehouse, properties=properties)
    arguments = checked(choice)
    if adopt_locks:
        _adopt_locks(output, choice, arguments, table, yes=yes)
        return
    configuration = configure(choice.catalog, arguments)
    settings = configuration.settings
    with create_lock_manager(
        settings.lock_impl, settings.lock_uri, space=configuration.name, options=settings.lock_options
    ) as manager:
        guarantees = manager.guarantees
    records = views.config_records(configuration)
    document = {
        "catalog": configuration.name,
        "properties": records,
        "lock_manager": settings.lock_impl,
        "guarantees": {name: getattr(guarantees, name) for name in guarantees.__dataclass_fields__},
    }
    parts = [
        views.config_table(records, title=f"catalog {configuration.name}"),
        "",
        views.guarantee_table(guarantees, title=f"the lock manager '{settings.lock_impl}' promises"),
    ]
    if configuration.properties["uri"].startswith("thrift:"):
        from commit_coord.cli.metastore import metastore_record, metastore_table

        found = metastore_record(configuration)
        document["metastore"] = found
        parts += ["", metastore_table(found)]
    if table is not None:
        from commit_coord.cli.metastore import protection_record, protection_table

        with _on_metastore(choice, configuration) as opened_catalog:
            protection = opened_catalog.protection(table_resource(opened_catalog, table).path)
        document["table"] = protection_record(protection)
        parts += ["", protection_table(protection)]
    output.answer(document, *parts)


@contextmanager
def _on_metastore(choice: Choice, configuration: Configuration) -> Iterator[Any]:
    if not configuration.properties["uri"].startswith("thrift:"):
        raise CommandFailed(
            "--table is for catalogs on a metastore; leave it out: in an SQL catalog every writer compares and sets",
            ExitCode.USAGE,
            "usage",
        )
    with opened(choice) as found:
        yield found


def _adopt_locks(output: Output, choice: Choice, arguments: dict[str, str], table: str | None, *, yes: bool) -> None:
    if output.as_json and not yes:
        raise CommandFailed("--json can't ask for confirmation: add --yes", ExitCode.USAGE, "usage")
    configuration = configure(choice.catalog, arguments)
    if table is not None:
        _adopt_table(output, choice, configuration, table, yes=yes)
        return
    if configuration.properties["uri"].startswith("thrift:"):
        raise CommandFailed(
            "on a metastore each table declares its own lock manager: name it with --table", ExitCode.USAGE, "usage"
        )
    # What load_catalog would say against this catalog counts here too; that others declared another lock manager
    # is what we are here for.
    declared = "none"
    try:
        with opened(choice) as found:
            declared = f"{found.settings.lock_impl}, as these settings say"
    except ConfigError as error:
        if "declared" not in error.details and "declared_by" not in error.details:
            raise
        declared = str(error.details.get("declared", error.details.get("declared_by")))
    if not yes:
        _confirm_stopped(output, f"Catalog {choice.catalog!r} is declared to use: {declared}.")
    CoordinatedSqlCatalog.adopt_locks(choice.catalog, **arguments)
    output.answer(
        {"catalog": choice.catalog, "adopted": True, "was": declared},
        Text(f"catalog {choice.catalog}: the next process that opens it declares its lock manager"),
    )


def _adopt_table(output: Output, choice: Choice, configuration: Configuration, table: str, *, yes: bool) -> None:
    with _on_metastore(choice, configuration) as found:
        identifier = table_resource(found, table).path
        declared = found.protection(identifier).declared
        if not yes:
            _confirm_stopped(output, f"Table {table} is declared to use: {declared or 'nothing yet'}.")
        found.adopt_locks(identifier)
    own = configuration.settings.lock_impl
    output.answer(
        {"catalog": choice.catalog, "table": table, "adopted": True, "was": declared, "is": own},
        Text(f"table {table}: its writers use the lock manager '{own}' from now on"),
    )


def _confirm_stopped(output: Output, declared: str) -> None:
    output.inform(declared)
    if not confirmed("Have all processes that use it been stopped?"):
        raise CommandFailed("nothing was changed", ExitCode.REFUSED, "not-confirmed")
