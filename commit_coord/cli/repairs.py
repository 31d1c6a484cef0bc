"""``commit-coord repair`` and ``orphans``."""

from __future__ import annotations

from typing import Annotated

import typer

from commit_coord.cli import recovery
from commit_coord.cli.catalogs import Choice, opened, table_resource
from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE, YES
from commit_coord.cli.output import DEBUG, JSON, Output


def repair(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    since: Annotated[
        list[str],
        typer.Option("--from", help="The last metadata file that was lost; may be repeated.", metavar="LOCATION"),
    ] = [],  # noqa: B006 - typer reads it, nobody changes it
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; show what would be restored or forgotten.")
    ] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Restore nothing, and delete the notes of lost commits from the lock service."),
    ] = False,
    yes: YES = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Restore commits that a writer without commit_coord has overwritten. Shows them first, and asks.

    It finds them by the notes in the lock service (not with `hms` and `none`) and by --from, a location that the error
    in the log names. An append is restored as a commit on the current head, with the same files and the same request
    id; it lands once, however often you run this. Overwrites, deletes and schema changes are listed with what to do.
    Exit code 1 while such commits are listed; --forget ends that.
    """
    output = Output(as_json=as_json)
    if forget and since:
        raise CommandFailed(
            "--from names what to restore, and --forget restores nothing: leave one of them out",
            ExitCode.USAGE,
            "usage",
        )
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        resource = table_resource(found, table)
        if forget:
            recovery.forget_lost(output, found, resource, dry_run=dry_run, yes=yes)
        else:
            recovery.repair_table(output, found, resource, since, dry_run=dry_run, yes=yes)


def orphans(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete them, after a question.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only files that are older than this: 3d, 12h, 90m.", metavar="AGE")
    ] = "3d",
    force: Annotated[
        bool,
        typer.Option("--force", help="Allow an age under one hour; this may delete uncommitted files of slow writers."),
    ] = False,
    dropped: Annotated[
        list[str],
        typer.Option(
            "--dropped",
            help="A table that lay in this location and was dropped: files of it may be removed. Give TABLE's own UUID "
            "to say that no other catalog has TABLE. May be repeated.",
            metavar="UUID",
        ),
    ] = [],  # noqa: B006 - typer reads it, nobody changes it
    yes: YES = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """List, and with --delete remove, files below a table's location that no table of the catalog refers to.

    If there are any, the manifests of all tables of the catalog are read. If a metadata file of an unknown table lies
    there, the command refuses: the table may be one of another catalog.

    Files that a running writer may still publish stay: the command first waits for the writers that hold the commit
    latch or wait for it, and keeps every file that is younger than an operation with locks on the table. A writer
    that has not yet requested the latch is unknown; so AGE must be longer than any writer takes from its first file to
    its commit.
    """
    output = Output(as_json=as_json)
    older_than_ms = recovery.age_ms(older_than)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        resource = table_resource(found, table)
        recovery.remove_orphans(
            output,
            found,
            resource,
            older_than_ms=older_than_ms,
            force=force,
            dropped=dropped,
            delete=delete,
            yes=yes,
        )
