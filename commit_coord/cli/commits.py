"""``commit-coord commits``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.cli import views
from commit_coord.cli.catalogs import Choice, opened, table_resource
from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE
from commit_coord.cli.output import DEBUG, JSON, Output
from commit_coord.coordinator.history import history, is_beginning, request_ids_that_begin
from commit_coord.iceberg.attempt import request_uuid


def commits(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="NAMESPACE.TABLE.")],
    request_id: Annotated[
        str | None, typer.Option("--request-id", help="Show whether the commit with this id has landed.", metavar="ID")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="How many, the newest first; 0: all.", min=0, metavar="N")
    ] = 20,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Show the history of a table: time, snapshot, operation, rows, request id, generation, writer. Newest first.

    Commits without a snapshot (create, schema, properties) are shown if the table's metadata log still contains them.

    With --request-id: exit code 0 if that commit has landed, 1 if it is not known to have landed.
    """
    output = Output(as_json=as_json)
    with opened(Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)) as found:
        table_resource(found, table)
        if request_id is not None:
            _answer_landed(output, found, table, request_id)
            return
        loaded = found.load_table(table)
        every = history(loaded.metadata, loaded.metadata_location)
        records = every[:limit] if limit else every
        title = f"{table}: {len(every)} commits" + (
            f", the newest {len(records)} (-n 0 shows all)" if len(records) < len(every) else ""
        )
        document = {"catalog": found.name, "table": table, "total": len(every), "commits": records}
        output.answer(document, views.commit_table(records, title=title, wide=output.console.width >= 118))


def _answer_landed(output: Output, catalog: CoordinatedCatalog, table: str, text: str) -> None:
    request_id = request_uuid(_whole_id(catalog, table, text))
    entry = catalog.coordinator.find(tuple(table.split(".")), request_id)
    if entry is None:
        raise CommandFailed(
            f"request {text!r} is not known to have landed in {table}. If its writer still runs, wait: it may "
            "still land. If the writer has ended, repeat the write with the same request id"
            + ("; first ask with its whole id: only that is in the journal" if is_beginning(text) else ""),
            ExitCode.REFUSED,
            "not-found",
        )
    ids = ", ".join(str(snapshot_id) for snapshot_id in entry.snapshot_ids) or "no snapshot"
    output.answer(
        {
            "landed": True,
            "request_id": request_id,
            "table": entry.table,
            "snapshot_ids": list(entry.snapshot_ids),
            "metadata_location": entry.metadata_location,
        },
        Text(f"landed in {entry.table}: {ids}"),
        Text(f"published by {entry.metadata_location}"),
        *([Text(f"by the request {request_id}: compare it, others may begin so")] if is_beginning(text) else []),
    )


def _whole_id(catalog: CoordinatedCatalog, table: str, text: str) -> str:
    """Return the one request id of the table's history that begins with *text*; *text* itself if none does.

    Raises:
        CommandFailed: Several begin so.
    """
    if not is_beginning(text):
        return text
    loaded = catalog.load_table(table)
    ids = sorted(request_ids_that_begin(text, loaded.metadata, loaded.metadata_location))
    if len(ids) > 1:
        raise CommandFailed(
            f"{text!r} is the beginning of {len(ids)} request ids: {', '.join(ids)}; give one of them whole",
            ExitCode.USAGE,
            "ambiguous",
        )
    return ids[0] if ids else text
