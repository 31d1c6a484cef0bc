"""``commit-coord serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commit_coord.cli.catalogs import require_configured
from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.output import DEBUG, JSON, Output
from commit_coord.config import default_catalog_name


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
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Serve catalogs to every engine that speaks Iceberg's REST protocol, until SIGTERM or Ctrl-C.

    Their commits wait in the same queues as those of the library. At the end, what runs is finished, the rest is
    refused, and no lock is left.
    """
    from commit_coord.rest import Serving, check, read_settings, validated
    from commit_coord.rest import serve as run

    output = Output(as_json=as_json)
    settings = read_settings(config) if config else {}
    flags = {"host": host, "port": port, "processes": processes, "threads": threads}
    settings |= {name: value for name, value in flags.items() if value is not None}
    named = catalogs or settings.get("catalogs") or [default_catalog_name()]
    serving = validated(Serving, settings | {"catalogs": named}, config)
    for name in serving.catalogs:
        require_configured(name, {}, "add it to .pyiceberg.yaml")
    check(serving)

    def ready(url: str) -> None:
        output.answer(
            {"url": url, "catalogs": serving.catalogs},
            f"serving {', '.join(serving.catalogs)} at {url}",
        )
        output.console.file.flush()

    try:
        run(serving, ready)
    except OSError as error:
        raise CommandFailed(
            f"can't listen on {serving.host}:{serving.port}: {error.strerror}", ExitCode.FAILED, "port"
        ) from error
