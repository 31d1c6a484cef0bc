"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

CATALOG = Annotated[
    str | None,
    typer.Option("--catalog", "-c", help="The catalog's name in PyIceberg's configuration.", metavar="NAME"),
]
URI = Annotated[
    str | None,
    typer.Option(
        "--uri", help="The catalog's database or metastore: coord+sqlite:///…, coord+thrift://…", metavar="URI"
    ),
]
WAREHOUSE = Annotated[str | None, typer.Option("--warehouse", help="The location of the tables.", metavar="LOCATION")]
PROPERTY = Annotated[
    list[str], typer.Option("--property", "-p", help="A catalog property; may be repeated.", metavar="KEY=VALUE")
]
WHY = Annotated[str, typer.Option("--why", help="The reason, for the audit log.", metavar="TEXT")]
YES = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
