"""The page about the faults, from the results of all cells that were ever run; see ``docs/faults.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.proof.faults.cell import RECOVERY_S
from tests.proof.faults.injuries import INJURIES, Injury
from tests.proof.faults.rigs import CLIENT_TIMEOUT_S, CONFIGURATIONS, LEASE_S, Configuration

_HEAD = f"""\
# Faults on real servers

Written by `make faults`; do not edit. Eight writers of mixed kinds (appends, overwrites and deletes under locks of
partitions, in some cells a Spark application) work on one table while something breaks. Afterwards their logs are
held against the table's files. In the column of REST the writers are clients of two servers behind one port, four
in PyIceberg and four in Iceberg Java, and twice as many while replies are lost. What is promised is in
[guarantees](guarantees.md); what tests of this kind have
found, in the [track record](TRACK_RECORD.md).

```
make faults                                                       # every cell
make faults ARGS="--only kill-writer --on zookeeper --seed 7"     # one of them
make faults ARGS=--kills                                          # 10,000 commits, a SIGKILL every two seconds
```

The command ends with 1 when a promise of `commit_coord` does not hold: an acknowledged operation that is lost or
doubled, a refused one that is there, a lock that the next writer does not get within one lease and 5 s, a lock that
stands a lease later (a request may come to its server when its sender has ended), a file that a snapshot names and that
is missing, nothing acknowledged within one lease and 5 s ({RECOVERY_S:.0f} s) of the end of a fault.
PyIceberg's own catalogs are run for comparison, by the same writers without the locks of operations, with short waits
between many tries for their lock; their figures fail nothing. They take more than half of the time.

How it is done: leases last {LEASE_S:.0f} s, a call to the metastore may take {CLIENT_TIMEOUT_S:.0f} s. Servers, \
writers and the fault live
in a network and a mount namespace of their own, where packets are dropped by `iptables` and disks are small tmpfs
(which is why no `fsync` costs anything here); cells that need these are not run without root on Linux, `ip` and
`iptables`. Slow networks, lost and late answers are made by a TCP proxy: `netem` is not in every kernel. A step of the
clock is one of Python's clocks in the writer (`time`, PyIceberg's `datetime`), not the kernel's. The out-of-memory kill
is the kernel's own, in a memory control group. "In Swap" is right before a database's COMMIT.
"""

_COLUMNS = (
    ("acknowledged", "acked"),
    ("unanswered", "unanswered"),
    ("lost", "lost"),
    ("doubled", "doubled"),
    ("refused_present", "refused, there"),
    ("leaked", "locks left"),
    ("missing", "files missing"),
    ("wrong_rows", "wrong rows"),
    ("orphans", "orphans"),
)


def page(results: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        results: ``machine``, ``kills`` and ``cells`` by ``configuration/fault``.
    """
    cells: Mapping[str, Any] = results.get("cells", {})
    parts = [
        _HEAD,
        f"Machine: {results.get('machine', 'unknown')}. The load of one minute before each cell is in its row.\n",
    ]
    parts += ["## Does it hold?\n", *_overview(cells)]
    parts += ["## 10,000 commits under kills\n", *_kills(results.get("kills"))]
    for configuration in CONFIGURATIONS.values():
        parts += [f"## {configuration.title}\n", *_details(configuration, cells)]
    parts += ["## Cells that make no sense\n", *_senseless()]
    return "\n".join(parts) + "\n"


def _overview(cells: Mapping[str, Any]) -> Iterator[str]:
    yield "Time until something was acknowledged after the fault was over; what did not hold is in its place.\n"
    yield f"| fault | {' | '.join(one.title for one in CONFIGURATIONS.values())} |"
    yield f"|---|{'---|' * len(CONFIGURATIONS)}"
    for injury in INJURIES.values():
        words = [_verdict(injury, configuration, cells) for configuration in CONFIGURATIONS.values()]
        yield f"| `{injury.name}` | {' | '.join(words)} |"
    yield f"| *all of them took* | {' | '.join(_took(one, cells) for one in CONFIGURATIONS.values())} |"
    yield ""
    yield from (f"* `{injury.name}`: {injury.title}" for injury in INJURIES.values())
    yield ""


def _verdict(injury: Injury, configuration: Configuration, cells: Mapping[str, Any]) -> str:
    if injury.why_not(configuration):
        return "–"
    cell = cells.get(f"{configuration.name}/{injury.name}")
    if cell is None:
        return "not run"
    if why := cell.get("not_run"):
        return f"not run: {why}"
    found, recovered = cell["findings"], cell["recovered_s"]
    wrong = [f"{found[key]} {title}" for key, title in _COLUMNS[2:-1] if found[key]]
    if recovered is None:
        wrong.append("never recovers")
    elif recovered > RECOVERY_S:
        wrong.append(f"{recovered:.0f} s")
    if cell["broken"] and not wrong:
        wrong.append(cell["broken"][0].split(":")[0])
    return f"**{', '.join(wrong)}**" if wrong else f"{recovered:.1f} s"


def _took(configuration: Configuration, cells: Mapping[str, Any]) -> str:
    of_it = [cells.get(f"{configuration.name}/{injury}", {}) for injury in INJURIES]
    return f"{sum(cell.get('seconds', 0.0) for cell in of_it) / 60:.0f} min"


def _details(configuration: Configuration, cells: Mapping[str, Any]) -> Iterator[str]:
    names = ["fault", *(title for _, title in _COLUMNS), "longest pause", "goes on after"]
    yield f"| {' | '.join(names)} | errors of writers | done | seed, load, date |"
    yield f"|---|{'---:|' * (len(_COLUMNS) + 2)}---|---|---|"
    for injury in INJURIES.values():
        if injury.why_not(configuration):
            continue
        cell = cells.get(f"{configuration.name}/{injury.name}")
        if cell is None or cell.get("not_run"):
            why = "not run" + (f": {cell['not_run']}" if cell else "")
            yield f"| `{injury.name}` | {' | '.join([''] * (len(_COLUMNS) + 2))} | {why} | | |"
            continue
        figures = [f"{cell['findings'][key]}" for key, _ in _COLUMNS]
        back = "never" if cell["recovered_s"] is None else f"{cell['recovered_s']:.1f} s"
        times = [f"{cell['stalled_s']:.1f} s", back]
        done = ", ".join(f"{what} ×{count}" if count > 1 else what for what, count in sorted(cell["done"].items()))
        row = [*figures, *times, _named(cell["findings"]["errors"]), done]
        yield f"| `{injury.name}` | {' | '.join(row)} | {cell['seed']}, {cell['load']}, {cell['at'][:16]} |"
    yield ""
    broken = [(one, cells.get(f"{configuration.name}/{one}", {})) for one in INJURIES]
    shown = [f"* `{name}`: {_shortened(words)}" for name, cell in broken for words in cell.get("broken", [])[:3]]
    if shown:
        yield "What did not hold (the first three of each cell):\n"
        yield from shown
        yield ""


def _shortened(words: str) -> str:
    return words if len(words) < 300 else f"{words[:300]}…"


def _named(errors: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(errors.items()))


def _kills(kills: Mapping[str, Any] | None) -> Iterator[str]:
    if kills is None:
        yield "Not run.\n"
        return
    report = kills["report"]
    proof = (
        f"Does not hold: {'; '.join(report['broken'])}." if report["broken"] else "Each is in the table exactly once."
    )
    yield (
        f"ZooKeeper (three servers) and a Hive Metastore 2.3.10, eight writers, one SIGKILL every two seconds: "
        f"{report['acknowledged']:,} appends acknowledged in {report['seconds']:.0f} s, {report['kills']} kills, "
        f"{report['unanswered']} unanswered ({report['unanswered_landed']} of them in the table), "
        f"{report['locks_left']} locks left, longest pause {report['stalled_s']} s, refused: "
        f"{_named(report['failures']) or 'none'}. "
        f"{proof} "
        f"(seed {kills['seed']}, load before {kills['load']}, {kills['at'][:16]})\n"
    )


def _senseless() -> Iterator[str]:
    yield "| configuration | fault | why |"
    yield "|---|---|---|"
    for configuration in CONFIGURATIONS.values():
        reasons: dict[str, list[str]] = {}
        for injury in INJURIES.values():
            if why := injury.why_not(configuration):
                reasons.setdefault(why, []).append(f"`{injury.name}`")
        for why, names in reasons.items():
            yield f"| {configuration.title} | {', '.join(names)} | {why} |"
