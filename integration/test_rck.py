"""Iceberg's REST Compatibility Kit passes on every store; ``make rck`` prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.rck.__main__ import holds
from integration.rck.stores import NAMES


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("store", NAMES)
def test_the_kit_passes(store: str, tmp_path: Path) -> None:
    assert holds(store, tmp_path)
