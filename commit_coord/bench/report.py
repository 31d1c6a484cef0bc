"""The results as JSON, as a Markdown table and as pictures. A suite that was not run keeps its earlier results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from commit_coord.bench.hive import KINDS

Results = dict[str, dict[str, Any]]
"""Suite → its figures, with ``machine`` and ``command``."""


def load(folder: Path) -> Results:
    """Return what earlier runs left in *folder*."""
    path = folder / "results.json"
    found: Results = orjson.loads(path.read_bytes()) if path.exists() else {}
    return found


def save(folder: Path, results: Results) -> None:
    """Write ``results.json`` and ``results.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    text = orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    (folder / "results.json").write_bytes(text)
    (folder / "results.md").write_text(render(results))


def render(results: Results) -> str:
    """Return the Markdown document."""
    lines = [
        "# Results",
        "",
        "Written by `commit-coord bench`; what each figure means is in [README](../README.md).",
        "",
    ]
    sections: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]]]] = {
        "commits": ("Commits a second", _commits),
        "hive": ("Commits a second on a Hive Metastore", _hive),
        "rest": ("Through the REST server", _rest),
        "groups": ("One swap for all that wait", _groups),
        "migration": ("Before and after a move", _migration),
        "steady": ("Appends in a row", _steady),
        "cost": ("The cost of one commit", _cost),
        "locks": ("Locks", _locks),
        "kill": ("Nothing lost", _kill),
        "spark": ("PySpark", _spark),
        "large": ("Large tables", _large),
    }
    for name, (title, section) in sections.items():
        if name in results:
            found = results[name]
            lines += [f"## {title}", "", f"`{found['command']}`", "", *section(found), *_machine(found["machine"])]
    return "\n".join(lines)


def _grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    def line(cells: Sequence[object]) -> str:
        return "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"

    return [line(head), line(["---", *("---:" for _ in head[1:])]), *map(line, rows), ""]


def _bars(bars: dict[str, Any]) -> list[str]:
    return _grid(("bar", "measured"), bars.items())


def _gave_up(found: dict[str, Any]) -> list[str]:
    return [line for what, why in found.get("gave_up", {}).items() for line in (f"Gave up: {what}: {why}.", "")]


def _commits(found: dict[str, Any]) -> list[str]:
    text = (
        f"{found['seconds']:g} s a cell on tables with {found['snapshots_before']} snapshots. Milliseconds are of "
        "acknowledged appends. *proved*: as many snapshots were added as appends were acknowledged, in one unbroken "
        "chain, with their rows, and no lock is left."
    )
    head = (
        *("tables, writers", "catalog", "acknowledged/s", "p50 ms", "p99 ms", "failed", "CPU ms each"),
        *("appends a swap", "proved"),
    )
    rows = [
        (
            f"{cell['layout']}, {cell['writers']}",
            cell["kind"],
            cell["per_second"],
            cell["p50_ms"],
            cell["p99_ms"],
            cell["failed"],
            cell["cpu_ms_each"],
            cell["attempts_per_swap"],
            "yes" if cell["proved"] else "NO",
        )
        for cell in sorted(found["cells"], key=lambda c: (c["layout"], c["writers"], c["kind"]))
    ]
    return [text, "", *_grid(head, rows), *_bars(found["bars"]), "![commits](commits.png)", ""]


def _hive(found: dict[str, Any]) -> list[str]:
    usual, longest = found["seconds"], max(cell["seconds"] for cell in found["cells"])
    longer = f"; {longest:g} s where several writers with PyIceberg's defaults share one" if longest > usual else ""
    text = (
        f"{usual:g} s a cell on tables with {found['snapshots_before']} snapshots{longer}. "
        "*attempts each*: tries to change a table, by acknowledged append; "
        "below 1 where one carries several. *proved*: as for *commits*, and each data file is there, for every catalog."
    )
    head = (
        *("tables, writers", "catalog", "acknowledged/s", "p50 ms", "p99 ms", "max ms", "acknowledged"),
        *("attempts each", "failed", "proved"),
    )
    order = {kind: number for number, kind in enumerate(KINDS)}
    rows = [
        (
            f"{cell['layout']}, {cell['writers']}",
            cell["kind"],
            *(cell[name] for name in ("per_second", "p50_ms", "p99_ms", "max_ms", "acknowledged", "attempts_each")),
            ", ".join(f"{count} {error}" for error, count in cell["errors"].items()) or 0,
            "yes" if cell["proved"] else "NO",
        )
        for cell in sorted(found["cells"], key=lambda c: (c["layout"], c["writers"], order[c["kind"]]))
    ]
    missing = [f"NOT measured: {', '.join(found['missing'])}.", ""] if found["missing"] else []
    return [text, "", *_grid(head, rows), *missing, *_gave_up(found), *_bars(found["bars"]), "![hive](hive.png)", ""]


def _rest(found: dict[str, Any]) -> list[str]:
    text = (
        f"{found['seconds']:g} s a cell on one table with {found['snapshots_before']} snapshots, on HMS 2.3.10 on "
        "Derby; the server and the library lock in ZooKeeper. *tries each*: commits that were sent, by acknowledged "
        "append. *server CPU ms*: of the REST server, by acknowledged append. *proved*: as for *hive*."
    )
    head = (
        *("writers", "catalog", "acknowledged/s", "p50 ms", "p99 ms", "max ms", "tries each", "409", "failed"),
        *("CPU ms each", "server CPU ms", "proved"),
    )
    rows = [
        (
            cell["writers"],
            cell["kind"],
            *(cell[name] for name in ("per_second", "p50_ms", "p99_ms", "max_ms", "attempts_each")),
            cell["statuses"].get("409", 0) if "statuses" in cell else None,
            ", ".join(f"{count} {error}" for error, count in cell["errors"].items()) or 0,
            cell["cpu_ms_each"],
            cell.get("server_cpu_ms_each"),
            "yes" if cell["proved"] else "NO",
        )
        for cell in sorted(found["cells"], key=lambda c: (c["writers"], c["kind"]))
    ]
    costs = found["costs"]
    asked = (
        f"Processor milliseconds of the server for one request, over {costs['requests']} of each; the metadata that is "
        f"loaded has {costs['metadata_bytes']} bytes."
    )
    kinds = {
        "load": "load, gzip",
        "load_without_gzip": "load, without gzip",
        "not_modified": "load, 304",
        "append": "commit of an append (PyIceberg)",
        "library_append": "an append through the library, with its files: the writer's process",
    }
    table = _grid(("request", "CPU ms"), [(text, costs[name]) for name, text in kinds.items()])
    shown = ("server", "acknowledged/s", "server CPU ms")
    written = _grid(
        shown, [(kind, each["per_second"], each["server_cpu_ms_each"]) for kind, each in found["written"].items()]
    )
    sent = "The same appends, but all their files were written before the clock; sent over 16 connections."
    grids = [*_grid(head, rows), sent, "", *written, asked, "", *table]
    return [text, "", *grids, *_gave_up(found), *_bars(found["bars"])]


def _groups(found: dict[str, Any]) -> list[str]:
    text = (
        f"{found['seconds']:g} s a cell, those of the bars four times as long, on tables with "
        f"{found['snapshots_before']} snapshots, of metastores with a tenth. *CPU ms*: of the writers, of the "
        "metastore, by acknowledged append. *proved*: as for *hive*."
    )
    head = (
        *("where, writers", "commits", "acknowledged/s", "swaps/s", "appends a swap", "p50 ms", "p99 ms", "max ms"),
        *("CPU ms", "of HMS", "latch held p50 ms", "failed", "proved"),
    )
    names = ("per_second", "swaps_per_second", "attempts_per_swap", "p50_ms", "p99_ms", "max_ms", "cpu_ms_each")
    rows = [
        (
            f"{cell['where']}, {cell['layout']}, {cell['writers']} {cell['how']}",
            cell["kind"],
            *(cell[name] or None for name in names),
            cell.get("HMS_cpu_ms_each"),
            cell["latch_held_ms_p50"],
            cell["failed"],
            "yes" if cell["proved"] else "NO",
        )
        for cell in sorted(found["cells"], key=lambda c: (c["where"], c["layout"], c["how"], c["writers"], c["kind"]))
    ]
    alters = [
        f"{where}: alters alone, on a condition that holds: {', '.join(f'{v:g}/s of {n}' for n, v in rates.items())}."
        for where, rates in found["alters"].items()
    ]
    profile = found["profile"]
    steps = [
        (step, f"{ms / profile['swaps']:.2f}", f"{cpu_ms / profile['swaps']:.2f}", f"{times / profile['swaps']:.2f}")
        for step, (times, ms, cpu_ms) in sorted(profile.get("phases", {}).items())
    ]
    shown = (
        [
            f"Where the time goes, {profile['writers']} processes on a metastore, by swap:",
            "",
            *_grid(("step", "ms", "CPU ms", "times"), steps),
        ]
        if steps
        else []
    )
    return [
        *(text, "", *_grid(head, rows), *alters, "", *shown, *_gave_up(found), *_bars(found["bars"])),
        *("![groups](groups.png)", ""),
    ]


def _migration(found: dict[str, Any]) -> list[str]:
    text = (
        f"{found['seconds']:g} s a cell, on {found['server']}, one table with {found['snapshots_before']} snapshots; "
        "all writers have `lock-impl=hms-to-zookeeper`. Requests to the metastore are counted by a proxy before it, "
        "statements to its database by that one's log, all a second. *idle*: catalogs that have written, and do "
        "nothing."
    )
    head = (
        *("phase", "writers", "acknowledged/s", "p50 ms", "p99 ms", "failed", "requests/s", "for locks"),
        *("statements/s", "to locks' tables", "proved"),
    )
    counts = ("requests_per_second", "lock_requests_per_second", "statements_per_second", "lock_statements_per_second")
    rows = [
        (
            cell["kind"],
            *(cell[name] for name in ("writers", "per_second", "p50_ms", "p99_ms", "failed", *counts)),
            "yes" if cell["proved"] else "NO",
        )
        for cell in sorted(found["cells"], key=lambda c: c["writers"])
    ]
    rows += [(cell["kind"], "idle", *[None] * 4, *(cell[name] for name in counts), None) for cell in found["idle"]]
    return [text, "", *_grid(head, rows), *_bars(found["bars"]), "![migration](migration.png)", ""]


def _steady(found: dict[str, Any]) -> list[str]:
    text = (
        f"One writer, tables of a SQL catalog on SQLite with `commit.manifest-merge.enabled`; {found['snapshots']:,} "
        "snapshots in the end, none was expired."
    )
    head = ("appends", "ms each", "CPU ms each", "longest ms", "most manifests", "metadata file")
    rows = [
        (
            f"{block['appends']:,}",
            *(block[name] for name in ("ms_each", "cpu_ms_each", "longest_ms", "most_manifests")),
            f"{block['metadata_bytes']:,}",
        )
        for block in found["blocks"]
    ]
    return [text, "", *_grid(head, rows), *_bars(found["bars"])]


def _cost(found: dict[str, Any]) -> list[str]:
    text = (
        f"Medians of {found['repeats']} commits. *fresh*: a new interpreter; imports and the opening of the catalog "
        "lie before the clock, load and append behind it; *process ms* is the whole process."
    )
    head = ("process, snapshots", "catalog", "ms", "CPU ms", "bytes written", "of it load ms", "process ms")
    rows = [
        (
            f"{cell['process']}, {cell['snapshots']:,}",
            cell["kind"],
            cell["ms"],
            cell["cpu_ms"],
            f"{cell['bytes']:,.0f}",
            cell["load_ms"],
            cell.get("process_ms"),
        )
        for cell in sorted(found["cells"], key=lambda c: (c["process"], c["snapshots"], c["kind"]))
    ]
    imports = _grid(("a fresh interpreter", "CPU ms"), found["imports"].items()) if "imports" in found else []
    return [text, "", *_grid(head, rows), *imports, *_bars(found["bars"]), *_gave_up(found), "![cost](cost.png)", ""]


def _locks(found: dict[str, Any]) -> list[str]:
    count = found["contenders"]
    head = (
        "manager",
        "cycles/s alone",
        f"with {count}",
        "least, most of one",
        "wake-up p50 ms",
        "p99 ms",
        "waiting: requests/s",
        "what",
    )
    rows = [
        (
            cell["manager"],
            cell["alone_per_second"],
            cell["contended_per_second"],
            f"{cell['contended_least']}, {cell['contended_most']}",
            cell["wake_p50_ms"],
            cell["wake_p99_ms"],
            _waiting(cell),
            cell["remark"],
        )
        for cell in found["cells"]
    ]
    missing = [f"NOT measured: {', '.join(found['missing'])}.", ""] if found["missing"] else []
    bars = _bars(found["bars"]) if found.get("bars") else []
    return [*_grid(head, rows), *missing, *_large_requests(found), *_gave_up(found), *bars, "![locks](locks.png)", ""]


def _waiting(cell: dict[str, Any]) -> str | None:
    if "idle_per_second" not in cell:
        return None
    pings = f", {cell['idle_pings_per_second']} pings" if cell["idle_pings_per_second"] else ""
    return f"{cell['idle_per_second']}{pings}"


def _large_requests(found: dict[str, Any]) -> list[str]:
    if "listed" not in found:  # figures of an earlier version
        return []
    text = (
        f"{found['partitions']:,} partitions of one table in one request; *again*: when they had been locked before; "
        f"*list all*: {found['listed']:,} such locks of many requests, *first page*: of the same list read page by "
        "page; *one*: to lock one more partition on an empty service, and with all those locks on other tables and "
        "on its own, as multiples of that."
    )
    names = (
        *("acquire_ms", "again_ms", "list_ms", "release_ms", "list_all_ms"),
        *("first_page_ms", "one_ms", "one_elsewhere", "one_same_table"),
    )
    head = (
        *("manager", "acquire ms", "again ms", "list them ms", "release ms", "list all ms"),
        *("first page ms", "one ms", "other tables ×", "own table ×"),
    )
    rows = [(cell["manager"], *(cell.get(name) for name in names)) for cell in found["large"]]
    return [text, "", *_grid(head, rows)]


def _kill(found: dict[str, Any]) -> list[str]:
    text = f"{found['writers']} processes × {found['appends']} appends on one SQLite-backed table."
    head = ("run", "acknowledged", "snapshots", "kills", "unanswered (landed)", "refused", "locks left", "/s", "holds")
    rows = [
        (
            label,
            run["acknowledged"],
            run["snapshots"],
            run["kills"],
            f"{run['unanswered']} ({run['unanswered_landed']})",
            sum(run["failures"].values()),
            run["locks_left"],
            run["per_second"],
            "NO: " + "; ".join(run["broken"][:3]) if run["broken"] else "yes",
        )
        for label, run in found["runs"].items()
    ]
    return [text, "", *_grid(head, rows)]


def _spark(found: dict[str, Any]) -> list[str]:
    rows = [(key, value) for key, value in _flat(found) if not key.startswith(("machine", "command"))]
    return _grid(("figure", "value"), rows)


def _large(found: dict[str, Any]) -> list[str]:
    text = (
        f"Each operation by {found['repeats']} fresh processes, the median (one that takes more than 10 s: by one "
        "process), after the same operation on a small table. The manifests, manifest lists and metadata files are "
        "written by the code that every commit uses, and are the same for all libraries. Of the data files only those "
        "of the partition that is compacted exist: no other operation opens a data file of the table. An append and an "
        f"overwrite write a real file of {found['rows']} rows. *peak*: of the whole process, as the kernel counts it "
        "(VmHWM), with the interpreter or the JVM (its heap may grow to 4 GiB). *read*, *written*: what was handed to "
        "the calls of the kernel. *pyiceberg* runs as this package mends it. Each cell: the smaller size → the larger "
        "one, and by how much that is more."
    )
    figures = {"ms": "ms", "CPU ms": "cpu_ms", "peak MiB": "peak_mib", "KiB read": "read_kib"}
    figures |= {"KiB written": "written_kib"}
    lines = [text, ""]
    for case in found["cases"]:
        lines += [f"*{case['name']}*: {case['small']} → {case['large']}.", ""]
        if case["many"]:
            lines += [f"*append_files*: one commit of {case['many']:,} files, of which only the metadata exists.", ""]
        rows = [
            (row["operation"], row["kind"], *(_grown(row, name) for name in figures.values())) for row in case["rows"]
        ]
        lines += _grid(("operation", "library", *figures), rows)
    return [*lines, *_bars(found["bars"])]


def _grown(row: dict[str, Any], name: str) -> str:
    if any(row["gave_up"]):
        return "gave up"
    small, large = (f"{value:,.0f}" if value >= 100 else f"{value:g}" for value in row[name])
    return f"{small} → {large} (×{row['grows'].get(name, '–')})"


def _flat(value: Any, prefix: str = "") -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{prefix}.{key}" if prefix else key)]
    if isinstance(value, list):
        return [pair for number, inner in enumerate(value) for pair in _flat(inner, f"{prefix}.{number}")]
    return [(prefix, value)]


def _machine(machine: dict[str, Any]) -> list[str]:
    return ["", "*" + ", ".join(f"{key} {value}" for key, value in machine.items()) + "*", ""]
