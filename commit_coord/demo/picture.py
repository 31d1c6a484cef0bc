"""The picture of a run: every commit of every writer over time, every wait for a latch, and the kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commit_coord.demo.board import Board
from commit_coord.demo.run import DRIVERS, IMPATIENT, table_of, writers_of

_COLOURS = {
    "flights": ("#0072B2", "PySpark: flights"),
    "weather": ("#009E73", "PyIceberg: weather"),
    "planes": ("#CC79A7", "PyIceberg: planes"),
    "airports": ("#E69F00", "PyIceberg: airports"),
    "departures": ("#5F5F5F", "PyIceberg: departures (hot table)"),
}
"""Okabe and Ito's palette, which people who see colours differently tell apart, and grey for the many."""

_RED = "#D55E00"
_MARKS = {"flights": "D", "weather": "o", "planes": "^", "airports": "s", "departures": "o"}


def timeline(board: Board) -> dict[str, Any]:
    """Return what the picture shows, as data: seconds since the start, waits in milliseconds."""
    kill = board.kill
    return {
        "writers": {
            name: {
                "table": table_of(name),
                "begun": [round(at, 3) for at in state.begun],
                "commits": [[round(at, 3), wait] for at, wait in state.commits],
                "refused": [[round(at, 3), wait] for at, wait in state.refused],
                "ended": state.ended,
            }
            for name, state in board.writers.items()
        },
        "queue": [[round(at, 3), waiting] for at, waiting in board.queue],
        "killed": None
        if kill is None
        else {
            "process": kill.process,
            "at": kill.at,
            "acknowledged": kill.acknowledged,
            "started_again": kill.started_again,
        },
    }


def draw(board: Board, path: Path, *, title: str) -> None:
    """Write the picture to *path*."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    style: dict[Any, Any] = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.family": "DejaVu Sans",
    }
    with mpl.rc_context(style):
        figure, (top, bottom) = plt.subplots(
            2, 1, figsize=(12, 9.5), dpi=130, sharex=True, height_ratios=(3, 2), layout="constrained"
        )
        _commits(top, board)
        _waits(bottom, board)
        for axes in (top, bottom):
            _kill(axes, board)
            axes.grid(axis="x", color="#E6E6E6", linewidth=0.7)
            axes.set_axisbelow(True)
        bottom.set_xlabel("seconds since the writers were let go")
        bottom.set_xlim(left=0)
        figure.suptitle(title, fontsize=13, fontweight="bold")
        handles, labels = bottom.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, markerscale=1.6)
        figure.savefig(path)
        plt.close(figure)


def _commits(axes: Any, board: Board) -> None:
    names = list(board.writers)
    for row, name in enumerate(names):
        state = board.writers[name]
        table = table_of(name)
        colour = _COLOURS[table][0]
        if state.begun:
            stop = state.ended if state.ended is not None else max([at for at, _ in state.commits], default=None)
            cut = board.kill.at if board.kill is not None and len(state.begun) > 1 else None
            done_before = cut is not None and bool(state.commits) and state.commits[0][0] <= cut
            spans = [(state.begun[0], state.commits[0][0] if done_before else cut if cut is not None else stop)]
            if cut is not None and not done_before:
                spans.append((state.begun[-1], stop))
            for begin, end in spans:
                if end is not None:
                    axes.hlines(row, begin, end, color=colour, linewidth=4 if table == "flights" else 1, alpha=0.3)
            if cut is not None and not done_before:
                axes.plot([cut], [row], marker="X", color=_RED, markersize=9, linestyle="none", zorder=4)
        times = [at for at, _ in state.commits]
        big = table == "flights"
        axes.plot(
            times, [row] * len(times), linestyle="none", color=colour, zorder=3,
            marker="D" if big else "|", markersize=8 if big else 9, markeredgewidth=0.8,
        )  # fmt: skip
        late = [at for at, _ in state.refused]
        axes.plot(late, [row + 0.3] * len(late), linestyle="none", marker="x", color=_RED, markersize=4, zorder=3)
    labels = [f"{name}{' (impatient)' if name == IMPATIENT else ''}" for name in names]
    axes.set_yticks(range(len(names)), labels, fontsize=9)
    for label, name in zip(axes.get_yticklabels(), names, strict=True):
        label.set_color(_COLOURS[table_of(name)][0] if table_of(name) != "departures" else "#404040")
    axes.set_ylim(len(names) - 0.4, -2.4)
    axes.tick_params(axis="y", length=0)
    axes.set_title("Every commit, by writer", loc="left", fontsize=11)
    for process in list(DRIVERS)[:-1]:
        axes.axhline(names.index(writers_of(process)[-1]) + 0.5, color="#D0D0D0", linewidth=0.8, linestyle=(0, (1, 3)))


def _waits(axes: Any, board: Board) -> None:
    order = ("departures", "weather", "planes", "airports", "flights")
    for table in order:
        colour, label = _COLOURS[table]
        points = [
            (at, max(wait, 0.1))
            for name, state in board.writers.items()
            if table_of(name) == table
            for at, wait in state.commits
            if wait is not None
        ]
        size = {"departures": 16, "flights": 55}.get(table, 16)
        axes.scatter(
            [at for at, _ in points], [wait for _, wait in points], s=size, color=colour, label=label,
            marker=_MARKS[table], alpha=0.45 if table == "departures" else 0.85, linewidths=0,
            zorder=4 if table == "flights" else 3,
        )  # fmt: skip
    refused = [(at, max(wait or 0.1, 0.1)) for state in board.writers.values() for at, wait in state.refused]
    axes.scatter(
        [at for at, _ in refused], [wait for _, wait in refused], s=18, color=_RED, marker="x", linewidths=1,
        label=f"refused: {IMPATIENT} waits no longer", zorder=3,
    )  # fmt: skip
    if board.commits:  # a logarithm of nothing is an error
        axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("milliseconds")
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.7)
    axes.set_title("How long each commit waited for its table's latch (log scale)", loc="left", fontsize=11)


def _kill(axes: Any, board: Board) -> None:
    kill = board.kill
    if kill is None:
        return
    axes.axvline(kill.at, color=_RED, linewidth=1.2, linestyle="--", zorder=2)
    if kill.started_again is not None:
        axes.axvspan(kill.at, kill.started_again, color=_RED, alpha=0.06, linewidth=0)
    if axes.get_title(loc="left").startswith("Every"):
        axes.annotate(
            f"SIGKILL: {kill.process}, {kill.acknowledged} of {len(DRIVERS[kill.process])} months acknowledged",
            xy=(kill.at, -1.9), xytext=(6, 0), textcoords="offset points", color=_RED, va="center", fontsize=9,
        )  # fmt: skip
        if kill.started_again is not None:
            axes.annotate(
                "started again", xy=(kill.started_again, -1.0), xytext=(6, 0), textcoords="offset points",
                color=_RED, va="center", fontsize=9,
            )  # fmt: skip
