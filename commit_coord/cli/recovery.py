"""What ``repair`` and ``orphans`` show and ask."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text

from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.catalog.orphans import Orphan, Orphans
from commit_coord.catalog.repair import LostCommit, Repair
from commit_coord.cli.exit_codes import CommandFailed, ExitCode
from commit_coord.cli.fitting import FittingTable, ScreenColumn
from commit_coord.cli.output import Output, confirmed, duration, moment
from commit_coord.cli.views import short
from commit_coord.errors import InvalidArguments
from commit_coord.iceberg.overwrites import Acknowledged
from commit_coord.model import Resource
from commit_coord.units import size

_SHOWN = 50
"""Files of a listing for people; ``--json`` has all."""

_REQUEST_IDS = "to repeat a forgotten commit, use a new request id: a request with the old one may count as landed"

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def repair_table(
    output: Output, catalog: CoordinatedCatalog, on: Resource, since: Sequence[str], *, dry_run: bool, yes: bool
) -> None:
    """Show what was lost, ask, and bring it back."""
    name = ".".join(on.path)
    found = catalog.find_lost(name, since)
    records = [_lost_record(commit) for commit in found.commits]
    document: dict[str, Any] = {"catalog": catalog.name, "table": name, "dry_run": dry_run, "lost": records}
    if not found.commits:
        output.answer({**document, "restored": 0}, Text(f"{name}: nothing is known to be lost"))
        return
    shown = lost_table(found.commits, title=f"{name}: {len(found.commits)} commits were overwritten")
    todo = f"{len(found.restorable)} can be brought back, {len(found.by_hand)} have to be done again"
    if dry_run or not found.restorable:
        output.answer({**document, "restored": 0}, shown, Text(todo))
        _end_if_left(found, dry_run=dry_run)
        return
    _confirmed(output, shown, f"Bring back {len(found.restorable)} commits?", yes=yes)
    restored: list[LostCommit] = []
    try:
        catalog.repair(found, on_restored=restored.append)
    except KeyboardInterrupt:
        output.inform(f"brought back before the interruption: {len(restored)} of {len(found.restorable)} commits")
        raise
    rows, files = sum(one.rows for one in restored), sum(one.files for one in restored)
    lines = [Text(f"brought back {len(restored)} commits: {rows:,} rows in {files:,} files")]
    if found.by_hand:
        lines.append(
            Text(
                f"{len(found.by_hand)} have to be done again; `commit-coord repair {name} --forget` ends their listing"
            )
        )
    output.answer({**document, "restored": len(restored)}, *([] if not yes else [shown]), *lines)
    _end_if_left(found, dry_run=dry_run)


def _end_if_left(found: Repair, *, dry_run: bool) -> None:
    """End with a code of its own when commits are left that the user has to make again."""
    if found.by_hand and not dry_run:
        raise typer.Exit(ExitCode.REFUSED)


def forget_lost(output: Output, catalog: CoordinatedCatalog, on: Resource, *, dry_run: bool, yes: bool) -> None:
    """Show what the lock service remembers as lost, ask, and have it forget that."""
    name = ".".join(on.path)
    lost = catalog.forget_lost(name, dry_run=True)
    if lost and (warning := _forgetting_loses(catalog, name)):
        output.inform(f"warning: {warning}")
    if lost and not dry_run:
        question = f"Forget what was lost of {name}?"
        _confirmed(output, Text("\n".join(f"lost: {one}" for one in lost)), question, yes=yes)
    forgotten = () if dry_run else catalog.forget_lost(name, [one.location for one in lost])
    document = {"lost": [_note_record(one) for one in lost], "forgotten": [_note_record(one) for one in forgotten]}
    output.answer(
        {"catalog": catalog.name, "table": name, "dry_run": dry_run, **document},
        *(Text(f"would forget {one}") for one in lost if dry_run),
        *(Text(f"forgot {one}") for one in forgotten),
        Text(f"{name}: {len(forgotten)} forgotten"),
        *([Text(_REQUEST_IDS)] if forgotten else []),
    )


def _forgetting_loses(catalog: CoordinatedCatalog, name: str) -> str:
    """Return what of the table *name* should be brought back before it is forgotten, "" if nothing."""
    try:
        count = len(catalog.find_lost(name).restorable)
    except InvalidArguments as error:
        return f"it is not known what can be brought back: {error}"
    return f"{count} commits can be brought back first: `commit-coord repair {name}`" if count else ""


def _note_record(note: Acknowledged) -> dict[str, Any]:
    return {"location": note.location, "request_id": note.request_id}


def remove_orphans(
    output: Output,
    catalog: CoordinatedCatalog,
    on: Resource,
    *,
    older_than_ms: int,
    force: bool,
    dropped: Sequence[str],
    delete: bool,
    yes: bool,
) -> None:
    """Show the orphans of a table; with *delete*, ask and delete them."""
    name = ".".join(on.path)
    found = catalog.find_orphans(name, older_than_ms=older_than_ms, force=force, dropped=dropped)
    document: dict[str, Any] = {
        "catalog": catalog.name,
        "table": name,
        "location": found.location,
        "looked_at": found.looked_at,
        "too_young": found.young,
        "at_work": found.at_work,
    }
    age = duration(older_than_ms)
    summary = f"{name}: {len(found.files):,} of {found.looked_at:,} files ({size(found.size)}) are not referenced"
    spared = f"spared: {found.young:,} younger than {age}, {found.at_work:,} of operations at work"
    if not delete or not found.files:
        files = [_orphan_record(one) for one in found.files]
        output.answer(
            {**document, "orphans": files, "deleted": 0, "not_deleted": []},
            orphan_table(found),
            Text(summary),
            Text(spared),
        )
        return
    _confirmed(output, orphan_table(found), f"Delete {len(found.files):,} files ({size(found.size)})?", yes=yes)
    gone: list[Orphan] = []
    try:
        deleted = catalog.delete_orphans(found, on_deleted=gone.append)
    except KeyboardInterrupt:
        output.inform(f"deleted before the interruption: {len(gone):,} of {len(found.files):,} files")
        raise
    files = [_orphan_record(one) for one in deleted.files]
    done = f"{name}: deleted {len(deleted.files):,} files ({size(deleted.size)})"
    undeleted = [one.path for one in deleted.undeleted]
    output.answer(
        {**document, "orphans": files, "deleted": len(files), "not_deleted": undeleted},
        Text(done),
        *(Text(f"could not be deleted, see the warning: {path}") for path in undeleted),
        Text(spared),
    )
    if undeleted:
        raise typer.Exit(ExitCode.FAILED)


def age_ms(text: str) -> int:
    """Return a length of time such as ``3d``, ``12h``, ``90m`` or ``30s`` in milliseconds."""
    match = re.fullmatch(r"(\d+)\s*([smhd])", text.strip())
    if match is None:
        raise CommandFailed(
            f"invalid length of time: {text!r}; examples are 3d, 12h, 90m and 30s", ExitCode.USAGE, "usage"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def _confirmed(output: Output, shown: RenderableType, question: str, *, yes: bool) -> None:
    if yes:
        return
    if output.as_json:
        raise CommandFailed("--json can't ask for confirmation: add --yes", ExitCode.USAGE, "usage")
    output.notes.print(shown)
    if not confirmed(question):
        raise CommandFailed("nothing was changed", ExitCode.REFUSED, "not-confirmed")


def _lost_record(commit: LostCommit) -> dict[str, Any]:
    return {
        "when": moment(commit.at_ms),
        "request_id": commit.request_id or None,
        "snapshot_ids": list(commit.snapshot_ids),
        "operation": commit.operation,
        "files": commit.files,
        "rows": commit.rows,
        "metadata_location": commit.location,
        "state": _state(commit),
        "advice": commit.advice or None,
    }


def _state(commit: LostCommit) -> str:
    return "restored" if commit.restored else "restorable" if commit.restorable else "by hand"


_LOST = (
    ScreenColumn("when", 2),
    ScreenColumn("operation", 1),
    ScreenColumn("files", 4, right=True),
    ScreenColumn("rows", 3, right=True),
    ScreenColumn("request", 0, least=8),
    ScreenColumn("what becomes of it", 0, least=24, folds=True),
)


def lost_table(commits: Sequence[LostCommit], *, title: str) -> FittingTable:
    """Return a table of lost commits."""
    made = FittingTable(_LOST, title)
    words = {"restored": "is in the table again", "restorable": "brought back as an append"}
    for commit in commits:
        made.add_row(
            moment(commit.at_ms).partition(".")[0],
            commit.operation,
            f"{commit.files:,}",
            f"{commit.rows:,}",
            short(commit.request_id) or "–",
            Text(words.get(_state(commit), commit.advice)),
        )
    return made


def _orphan_record(orphan: Orphan) -> dict[str, Any]:
    return {"path": orphan.path, "size": orphan.size, "modified": moment(orphan.modified_ms)}


_ORPHANS = (
    ScreenColumn("written", 2),
    ScreenColumn("bytes", 1, right=True),
    ScreenColumn("file", 0, least=30, folds=True),
)


def orphan_table(found: Orphans) -> RenderableType:
    """Return a table of files, "" if there are none."""
    if not found.files:
        return ""
    more = len(found.files) - _SHOWN
    title = f"below {found.location}" + (f", the oldest {_SHOWN}; --json lists all" if more > 0 else "")
    made = FittingTable(_ORPHANS, title)
    for one in found.files[:_SHOWN]:
        below = one.path[len(found.location.rstrip("/")) + 1 :]
        made.add_row(moment(one.modified_ms).partition(".")[0], f"{one.size:,}", Text(below))
    return made
