"""``commit-coord serve``."""

from __future__ import annotations

from typing import Annotated

import typer

from commit_coord.cli.failures import CommandFailed, ExitCode
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
    host: Annotated[str, typer.Option(help="Where to listen: a loopback address.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Where to listen; 0 takes a free port.", min=0, max=65535)] = 8181,
    processes: Annotated[int, typer.Option(help="How many processes serve the port.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="How many requests a process carries out at once.", min=1)] = 32,
    as_json: JSON = False,
    debug: DEBUG = False,
) -> None:
    """Serve catalogs to every engine that speaks Iceberg's REST protocol, until SIGTERM or Ctrl-C.

    Their commits wait in the same queues as those of the library. At the end, what runs is finished, the rest is
    refused, and no lock is left.
    """
    from commit_coord.rest import Serving, check
    from commit_coord.rest import serve as run

    output = Output(as_json=as_json)
    serving = Serving(
        catalogs=tuple(dict.fromkeys(catalogs)) or (default_catalog_name(),),
        host=host,
        port=port,
        processes=processes,
        threads=threads,
    )
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
        raise CommandFailed(f"can't listen on {host}:{port}: {error.strerror}", ExitCode.FAILED, "port") from error
