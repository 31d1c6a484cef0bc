"""``commit-coord serve`` and ``commit-coord ui``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commit_coord.cli.catalogs import Choice, opened, require_configured
from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.locks import refuse_locks_of_a_process
from commit_coord.cli.options import CATALOG, PROPERTY, URI, WAREHOUSE
from commit_coord.cli.output import DEBUG, JSON, Output
from commit_coord.config import default_catalog_name

if TYPE_CHECKING:
    from commit_coord.rest import Serving


def serve(
    catalogs: Annotated[
        list[str],
        typer.Option(
            "--catalog",
            "-c",
            help="The catalog's name in PyIceberg's configuration; may be repeated. Clients choose one with "
            "`warehouse=NAME`; the first one is the default.",
            metavar="NAME",
        ),
    ] = [],  # noqa: B006 - typer reads it, nobody changes it
    config: Annotated[
        Path | None,
        typer.Option(help="A file of settings; what is given here goes before it. See docs/rest.md.", metavar="FILE"),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Where to listen. Default: 127.0.0.1.", metavar="ADDRESS", show_default=False)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Where to listen; 0 takes a free port. Default: 8181.", min=0, max=65535, show_default=False),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="How many processes serve the port. Default: 1.", min=1, show_default=False)
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            help="How many reads a process carries out at once, and how many commits. Default: 32.",
            min=1,
            show_default=False,
        ),
    ] = None,
    administer: Annotated[
        bool,
        typer.Option(
            "--administer",
            help="Allow to free locks and to move tables on the web page, also without authentication: then everybody "
            "on this machine may.",
        ),
    ] = False,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Serve catalogs to every engine that speaks Iceberg's REST protocol, until SIGTERM or Ctrl-C.

    Their commits wait in the same queues as those of the library. At the end, what runs is finished, the rest is
    refused, and no lock is left.
    """
    from commit_coord.rest import Serving, check, read_settings, validated

    output = Output(as_json=as_json)
    settings = read_settings(config) if config else {}
    flags = {"host": host, "port": port, "processes": processes, "threads": threads}
    settings |= {name: value for name, value in flags.items() if value is not None}
    named = catalogs or settings.get("catalogs") or [default_catalog_name()]
    serving = validated(Serving, settings | {"catalogs": named}, config)
    if administer:
        serving = serving.model_copy(update={"ui": serving.ui.model_copy(update={"read_only": False})})
    for name in serving.catalogs:
        require_configured(name, {}, "add it to .pyiceberg.yaml")
    check(serving)

    def ready(url: str) -> None:
        page = f"{url}/ui/" if serving.ui.enabled else None
        output.answer(
            {"url": url, "catalogs": serving.catalogs, "ui": page, "read_only": serving.page_is_read_only},
            f"serving {', '.join(serving.catalogs)} at {url}",
            *([f"the web page is at {page}{', read-only' if serving.page_is_read_only else ''}"] if page else []),
        )
        output.console.file.flush()

    _run(serving, ready)


def ui(
    port: Annotated[
        int, typer.Option(help="Where to listen, on 127.0.0.1; 0 takes a free port.", min=0, max=65535)
    ] = 8182,
    administer: Annotated[
        bool, typer.Option("--administer", help="Allow to free locks and to move tables; else the page is read-only.")
    ] = False,
    name: CATALOG = None,
    uri: URI = None,
    warehouse: WAREHOUSE = None,
    properties: PROPERTY = [],  # noqa: B006 - typer reads it, nobody changes it
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Show the locks, tables and requests of a catalog in a browser, until Ctrl-C. Needs no server.

    The page is reachable from this machine only, by all of its users. `commit-coord serve` serves the same page at
    /ui, with authentication if it has one.
    """
    from commit_coord.rest import Serving, check

    output = Output(as_json=as_json)
    choice = Choice(name=name, uri=uri, warehouse=warehouse, properties=properties)
    with opened(choice) as catalog:
        refuse_locks_of_a_process(catalog)
    serving = Serving.model_validate(
        {
            "catalogs": (choice.catalog,),
            "port": port,
            "rest": False,
            "properties": choice.arguments(),
            "ui": {"read_only": not administer},
        }
    )
    check(serving)

    def ready(url: str) -> None:
        message = f"the page of {choice.catalog} is at {url}/ui/; Ctrl-C ends it"
        output.answer({"catalog": choice.catalog, "ui": f"{url}/ui/", "read_only": not administer}, message)
        output.console.file.flush()

    _run(serving, ready)


def _run(serving: Serving, ready: Callable[[str], None]) -> None:
    from commit_coord.rest import serve

    try:
        serve(serving, ready)
    except OSError as error:
        raise CommandFailed(
            f"can't listen on {serving.host}:{serving.port}: {error.strerror}; choose another one with --port",
            ExitCode.FAILED,
            "port",
        ) from error
