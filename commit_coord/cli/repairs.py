"""``commit-coord repair`` and ``orphans``."""

from __future__ import annotations

from typing import Annotated

import typer

from commit_coord.cli import recovery
from commit_coord.cli.catalogs import Choice, opened, table_resource
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE, YES
from commit_coord.cli.output import DEBUG, JSON, Output


def repair(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    since: Annotated[
        list[str],
        typer.Option("--from", help="The last metadata file that was lost; may be repeated.", metavar="LOCATION"),
    ] = [],  # noqa: B006 - typer reads it, nobody changes it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Bring nothing back; say what would be.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Bring nothing back, and have the lock service forget what was lost.")
    ] = False,
    yes: YES = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Bring back commits that a writer without our rules overwrote. Shows them first, and asks.

    They are known from what the lock service remembers (not with `hms` and `none`) and from --from, which the error in
    the log names. An append comes back as a commit on the present head: the same files, the same request id, once,
    however often this is run. Overwrites, deletes and schema changes are listed with what to do.
    """
    output = Output(as_json=as_json)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        resource = table_resource(found, table)
        if forget:
            recovery.forget_lost(output, found, resource, yes=yes)
        else:
            recovery.repair_table(output, found, resource, since, dry_run=dry_run, yes=yes)


def orphans(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; asks first.")] = False,
    older_than: Annotated[
        str, typer.Option("--older-than", help="Only files written before that: 3d, 12h, 90m.", metavar="AGE")
    ] = "3d",
    force: Annotated[
        bool, typer.Option("--force", help="Take an age below an hour. A slower writer's files would be lost.")
    ] = False,
    yes: YES = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """List, and with --delete remove, files below a table's location that no commit refers to.

    Spared is what a writer at work may still publish: it is waited for those that hold or wait for the commit latch,
    and nothing is taken that is younger than an operation with locks on the table. Before it asks for the latch nobody
    knows of a writer; so AGE must be longer than any of them takes from its first file to its commit.
    """
    output = Output(as_json=as_json)
    older_than_ms = recovery.age_ms(older_than)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        resource = table_resource(found, table)
        recovery.remove_orphans(
            output, found, resource, older_than_ms=older_than_ms, force=force, delete=delete, yes=yes
        )
