"""Pictures of the results: ours blue, PyIceberg orange, Java green, each with markers of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from commit_coord.bench import groups, hive
from commit_coord.bench.cells import LAYOUTS
from commit_coord.bench.tables import KINDS
from commit_coord.protocol.migration import Phase

_BLUE, _ORANGE, _GREEN = "#0072B2", "#D55E00", "#009E73"
"""Of Okabe and Ito's palette, made for eyes that tell red from green badly."""

_LOOKS = {
    "commit_coord": {"color": _BLUE, "marker": "o", "label": "commit_coord"},
    "pyiceberg": {"color": _ORANGE, "marker": "s", "label": "PyIceberg SqlCatalog"},
}

_HIVE_LOOKS = {
    kind: {"color": color, "marker": marker, "label": kind, "markerfacecolor": color if filled else "white"}
    for kind, color, marker, filled in zip(
        hive.KINDS,
        (_BLUE, _BLUE, _ORANGE, _ORANGE, _GREEN, _GREEN, _GREEN, _GREEN),
        "oossvv^^",
        (True, False) * 4,
        strict=True,
    )
}


_GROUP_LOOKS = {
    groups.QUEUE: {"color": _BLUE, "marker": "o"},
    groups.SINGLE: {"color": _BLUE, "marker": "o", "markerfacecolor": "white", "linestyle": "--"},
    **{kind: {key: value for key, value in looks.items() if key != "label"} for kind, looks in _HIVE_LOOKS.items()},
}

_PHASE_LOOKS = {
    Phase.HMS: {"color": _ORANGE, "marker": "s"},
    Phase.BOTH: {"color": _GREEN, "marker": "^"},
    Phase.ZOOKEEPER: {"color": _BLUE, "marker": "o"},
}


def draw(folder: Path, results: dict[str, dict[str, Any]]) -> list[Path]:
    """Write a PNG for every suite that has one; return their paths."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 120})
    drawn = []
    for name, figure in (
        ("commits", _commits),
        ("hive", _hive),
        ("groups", _groups),
        ("migration", _migration),
        ("cost", _cost),
        ("locks", _locks),
    ):
        if name in results:
            path = folder / f"{name}.png"
            figure(results[name]).savefig(path, bbox_inches="tight")
            drawn.append(path)
    return drawn


def _commits(found: dict[str, Any]) -> Any:
    return _appends(found, _LOOKS, annotated=tuple(KINDS), quantiles=("p50", "p99"), scale="linear")


def _hive(found: dict[str, Any]) -> Any:
    annotated = (hive.OURS[0], hive.PYICEBERG[0])
    return _appends(found, _HIVE_LOOKS, annotated=annotated, quantiles=("p99",), scale="log")


def _groups(found: dict[str, Any]) -> Any:
    """Draw rates by the number of writers: of one table, a panel for each place and kind of writer."""
    from matplotlib.figure import Figure

    shown = [cell for cell in found["cells"] if cell["layout"] == LAYOUTS[0] and cell["per_second"]]
    places = sorted({(cell["where"], cell["how"]) for cell in shown})
    figure = Figure(figsize=(11, 4 * ((len(places) + 1) // 2)), layout="constrained")
    panels = list(figure.subplots((len(places) + 1) // 2, 2, squeeze=False).flat)
    figure.suptitle("Appends of 10 rows to one table, acknowledged a second")
    counts = sorted({cell["writers"] for cell in shown})
    for panel, (where, how) in zip(panels, places, strict=False):
        for kind, looks in _GROUP_LOOKS.items():
            cells = sorted(
                (
                    c
                    for c in shown
                    # A process with one thread is shown for both.
                    if c["where"] == where and c["kind"] == kind and (c["how"] == how or c["writers"] == 1)
                ),
                key=lambda c: c["writers"],
            )
            if cells:
                panel.plot([c["writers"] for c in cells], [c["per_second"] for c in cells], label=kind, **looks)
        if limit := found["alters"].get(where, {}).get("1 tables"):
            panel.axhline(limit, color="grey", linestyle=":", label="alters of the metastore alone")
        panel.set_title(f"{where}, {how}", fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}")
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.xaxis.set_tick_params(which="minor", bottom=False)
        panel.grid(axis="y", which="both", alpha=0.3)
        panel.set_xlabel("writers")
        panel.legend(frameon=False, fontsize=8)
    for panel in panels[len(places) :]:
        panel.set_visible(False)
    return figure


def _migration(found: dict[str, Any]) -> Any:
    """Draw what commits cost in each phase, by the number of writers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(f"One table before, during and after its move, {found['server']}")
    counts = sorted({cell["writers"] for cell in found["cells"]})
    for panel, (name, title) in zip(
        figure.subplots(2, 2, sharex=True).flat,
        (
            ("per_second", "acknowledged appends a second"),
            ("p99_ms", "milliseconds until acknowledged, p99"),
            ("lock_requests_per_second", "requests a second to the metastore, for locks"),
            ("lock_statements_per_second", "statements a second of its database, to locks' tables"),
        ),
        strict=True,
    ):
        for phase, looks in _PHASE_LOOKS.items():
            cells = sorted((c for c in found["cells"] if c["kind"] == phase), key=lambda c: c["writers"])
            panel.plot([c["writers"] for c in cells], [c[name] for c in cells], label=phase, **looks)
        panel.set_title(title, fontsize=10)
        panel.set_xscale("log", base=2)
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.minorticks_off()
        if name == "p99_ms":
            panel.set_yscale("log")
            panel.yaxis.set_major_formatter("{x:g}")
        else:
            panel.set_ylim(bottom=0)
        panel.grid(axis="y", alpha=0.3)
        panel.set_xlabel("writer processes")
    figure.axes[0].legend(frameon=False)
    return figure


def _appends(
    found: dict[str, Any],
    kinds: Mapping[str, dict[str, str]],
    *,
    annotated: Sequence[str],
    quantiles: Sequence[str],
    scale: str,
) -> Any:
    """Draw rates and latencies by the number of writers, of one table and of one table each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True)
    figure.suptitle(
        f"Appends of 10 rows to tables with {found['snapshots_before']} snapshots, {found['seconds']:g} s a cell"
    )
    counts = sorted({cell["writers"] for cell in found["cells"]})
    for column, layout in enumerate(LAYOUTS):
        rate, latency = panels[0][column], panels[1][column]
        for kind, looks in kinds.items():
            cells = sorted(
                (c for c in found["cells"] if c["kind"] == kind and (c["layout"] == layout or c["writers"] == 1)),
                key=lambda c: c["writers"],
            )
            x = [c["writers"] for c in cells]
            # Nothing at all has no place on a logarithmic scale: the line has a gap there.
            rate.plot(x, [c["per_second"] if c["per_second"] or scale == "linear" else None for c in cells], **looks)
            for c in cells if kind in annotated else ():
                rate.annotate(
                    f"{c['per_second']:.3g}",
                    (c["writers"], c["per_second"]),
                    xytext=(0, 8),
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                    color=looks["color"],
                )
            for quantile in quantiles:
                last = {"linestyle": "--", "markerfacecolor": "white"} if quantile != quantiles[0] else {}
                label = {"label": f"{looks['label']}, {quantile}"}
                latency.plot(x, [c[f"{quantile}_ms"] for c in cells], **{**looks, **label, **last})
        rate.set_title(layout)
        if scale == "linear":
            rate.set_ylim(bottom=0)
        for axes in (rate, latency) if scale == "log" else (latency,):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter("")
        rate.margins(y=0.18)
        latency.set_xscale("log", base=2)
        latency.set_xticks(counts, [str(count) for count in counts])
        latency.minorticks_off()
        latency.set_xlabel("writer processes")
        for panel in (rate, latency):
            panel.grid(axis="y", alpha=0.3)
    panels[0][0].set_ylabel("acknowledged appends a second")
    panels[1][0].set_ylabel(f"milliseconds until acknowledged{', p99' if quantiles == ('p99',) else ''}")
    if len(quantiles) > 1:
        panels[0][0].legend(frameon=False)
        panels[1][0].legend(frameon=False, fontsize=9)
    else:
        lines, labels = panels[0][0].get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _cost(found: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    figure.suptitle(f"One append by the number of snapshots, median of {found['repeats']}")
    for panel, state in zip(panels, ("warm", "fresh"), strict=True):
        for kind in KINDS:
            cells = sorted(
                (c for c in found["cells"] if c["kind"] == kind and c["process"] == state), key=lambda c: c["snapshots"]
            )
            looks = _LOOKS[kind]
            panel.plot([c["snapshots"] for c in cells], [c["ms"] for c in cells], **looks)
            for c in cells:
                panel.annotate(
                    f"{c['ms']:.3g} ms",
                    (c["snapshots"], c["ms"]),
                    xytext=(0, 8),
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                    color=looks["color"],
                )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.margins(x=0.12, y=0.15)
        ticks = sorted({c["snapshots"] for c in found["cells"]})
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
        panel.set_title("in a warm process" if state == "warm" else "in a fresh process: load and append")
        panel.set_xlabel("snapshots before it")
        panel.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("milliseconds")
    panels[0].legend(frameon=False)
    return figure


def _locks(found: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    rate, wake = figure.subplots(1, 2)
    labels = [cell["manager"] for cell in found["cells"]]
    places = range(len(labels))
    bars = (
        ("alone_per_second", "one client", "#0072B2", "", -0.2),
        ("contended_per_second", f"{found['contenders']} contenders, together", "#56B4E9", "//", 0.2),
    )
    for key, label, color, hatch, offset in bars:
        drawn = rate.barh(
            [place + offset for place in places],
            [cell[key] for cell in found["cells"]],
            0.38,
            label=label,
            color=color,
            hatch=hatch,
            edgecolor="white",
        )
        rate.bar_label(drawn, fmt="{:,.0f}", padding=3, fontsize=9)
    rate.set_xscale("log")
    rate.margins(x=0.2)
    rate.set_yticks(places, labels)
    rate.invert_yaxis()
    rate.set_xlabel("acquire and release, times a second")
    rate.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2, fontsize=9)
    waits = [cell for cell in found["cells"] if cell["wake_p50_ms"] is not None]
    for key, label, color, hatch, offset in (
        ("wake_p50_ms", "p50", "#D55E00", "", -0.2),
        ("wake_p99_ms", "p99", "#E69F00", "//", 0.2),
    ):
        drawn = wake.barh(
            [place + offset for place in range(len(waits))],
            [cell[key] for cell in waits],
            0.38,
            label=label,
            color=color,
            hatch=hatch,
            edgecolor="white",
        )
        wake.bar_label(drawn, fmt="{:.2f}", padding=3, fontsize=9)
    wake.set_yticks(range(len(waits)), [cell["manager"] for cell in waits])
    wake.invert_yaxis()
    wake.margins(x=0.15)
    wake.set_xlabel("milliseconds from the release until a waiter is granted")
    wake.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2, fontsize=9)
    return figure
