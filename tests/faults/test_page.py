"""docs/faults.md is what the results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.proof.faults.injuries import INJURIES
from tests.proof.faults.page import page
from tests.proof.faults.rigs import CONFIGURATIONS

ROOT = Path(__file__).parents[2]


def cell(**findings: int) -> dict[str, Any]:
    found = dict.fromkeys(
        (
            "acknowledged",
            "unanswered",
            "lost",
            "doubled",
            "refused_present",
            "leaked",
            "missing",
            "wrong_rows",
            "orphans",
        ),
        0,
    )
    return {
        "findings": {**found, **findings, "errors": {}},
        "recovered_s": 1.0,
        "stalled_s": 1.0,
        "done": {},
        "broken": [],
        "seed": 1,
        "load": 1.0,
        "at": "2026-01-01T00:00:00+0000",
    }


def row(text: str, name: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
    return [word.strip() for word in line.split("|")[2:-1]]


def test_the_page_is_that_of_the_results() -> None:
    """Else: make faults ARGS=--render."""
    results = json.loads((ROOT / "bench" / "results" / "faults.json").read_text())
    assert (ROOT / "docs" / "faults.md").read_text() == page(results)


def test_a_cell_that_was_not_run_says_so() -> None:
    left_out = {"not_run": "needs namespaces"}
    shown = row(page({"cells": {"hms/cut-both": left_out}}), "cut-both")
    assert ["–", *["not run"] * 2, "not run: needs namespaces", "not run", "–", *["not run"] * 2] == shown


@pytest.mark.parametrize("what", ["lost", "doubled", "refused_present", "leaked", "missing", "wrong_rows"])
def test_what_does_not_hold_is_in_the_overview(what: str) -> None:
    assert "**1 " in row(page({"cells": {"hms/none": cell(**{what: 1})}}), "none")[3]
    assert row(page({"cells": {"hms/none": cell(orphans=1)}}), "none")[3] == "1.0 s"


def test_every_cell_is_run_or_has_its_reason() -> None:
    """Nothing is left out in silence."""
    for injury in INJURIES.values():
        assert injury.title
        assert injury.not_on.keys() <= CONFIGURATIONS.keys()
        assert all(injury.not_on.values())
