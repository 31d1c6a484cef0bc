"""The protocols as models: a slice that takes seconds, and the documents that name them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.proof.model.page import HEAD, digest, page
from tests.proof.model.tlc import check
from tests.proof.model.variants import FREE, LIVE, VARIANTS

ROOT = Path(__file__).parents[1]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
MODEL = (ROOT / "docs" / "model.md").read_text()
BY_NAME = {variant.name: variant for variant in VARIANTS}


@pytest.mark.parametrize(
    "name",
    [
        "commit-2",
        "lease",
        "lease-from-answer",
        "no-cas",
        "no-ensure-active",
        "lost-is-refused",
        "no-retract",
        "rest-turns",
        "rest-no-turns",
        "rest-no-checkpoints",
    ],
)
def test_a_protocol_holds_and_breaks_without_a_guard(name: str) -> None:
    """The slice of `make model` that takes seconds."""
    result = check(BY_NAME[name])
    assert (result.broken, result.never) == (BY_NAME[name].breaks, [])
    assert bool(result.steps) == (result.broken is not None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_page_is_what_the_models_say() -> None:
    """All of `make model`: every variant does what it says, and the page shows it."""
    results = [check(variant) for variant in VARIANTS]
    assert [result.variant.name for result in results if not result.expected] == []
    assert page(results) == MODEL


def test_the_page_is_of_these_models() -> None:
    """A developer who changes a specification or a variant runs `make model`."""
    assert f"<!-- made from {digest()} -->" in MODEL
    assert MODEL.startswith(HEAD)


def test_every_guard_is_taken_away_once() -> None:
    """Each constant that switches a guard is FALSE in a variant that must break."""
    for module in {variant.module.name: variant.module for variant in VARIANTS}.values():
        broken = [each.changes for each in VARIANTS if each.module is module and each.breaks]
        guards = {name for name, value in module.constants.items() if value is True} - {"Locking", "Groups"}
        assert {name for name in guards if not any(changes.get(name) is False for changes in broken)} == set()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`([\w/]+\.py::\w+)`", GUARANTEES))))
def test_a_test_that_the_guarantees_name_is_there(named: str) -> None:
    path, _, name = named.partition("::")
    assert re.search(rf"^\s*(def|class) {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_what_the_guarantees_say_of_the_models_is_there() -> None:
    promises = {name for variant in VARIANTS for name in (*variant.module.promises, *variant.module.steps)}
    promises.add(LIVE)
    assert set(re.findall(r"\*\*(\w+)\*\*", GUARANTEES)) <= promises
    assert set(re.findall(r"`((?:no-|migration-|foreign-)[\w-]+)`", GUARANTEES)) <= BY_NAME.keys()
    assert {variant.breaks for variant in VARIANTS} - {None, FREE} <= promises
