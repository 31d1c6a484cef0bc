"""The mutants fit the code, and some of them are killed; `make mutants` kills all."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.mutants import MUTANTS

SLICE = 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_a_test(mutant: Mutant) -> None:
    """Its file contains its text once, the code compiles, and the test is there."""
    compile(mutant.applied(), mutant.file, "exec")
    path, *names = mutant.test.partition("[")[0].split("::")
    texts = [(ROOT / path).read_text()]
    if "test_lock_managers" in path:
        texts += [(ROOT / "commit_coord" / "testing" / file).read_text() for file in ("carrying.py", "contract.py")]
    for name in names:
        assert any(re.search(rf"^ *(def|class) {name}\b", text, re.MULTILINE) for text in texts)


def test_the_case_that_a_mutant_names_is_there() -> None:
    named = {mutant.test for mutant in MUTANTS if "[" in mutant.test}
    files = sorted({test.partition("::")[0] for test in named})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-p", "no:randomly", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [] == sorted(named - set(done.stdout.splitlines()))


def test_what_a_mutant_names_is_there(tmp_path: Path) -> None:
    """A name that was changed since would end the test with a NameError, which proves nothing."""
    for number, mutant in enumerate(MUTANTS):
        tmp_path.joinpath(f"m{number}.py").write_text(mutant.applied())
    command = ["ruff", "check", "--isolated", "--select", "F821", "--output-format", "json", str(tmp_path)]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout)
    assert [] == [(MUTANTS[int(Path(one["filename"]).stem[1:])].name, one["message"]) for one in found]


def test_names_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


@pytest.mark.timeout(240)
def test_some_mutants_are_killed() -> None:
    """Others at each run; what random order is seeded with seeds the choice. One of them may run in a circle."""
    chosen = random.sample([mutant.name for mutant in MUTANTS if "/unit/" in mutant.test], SLICE)
    # A process of its own: this one has imported what a mutant changes.
    command = [sys.executable, "-m", "tests.mutants.mutants", "--processes", "1", *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_all_mutants_are_killed() -> None:
    """As `make mutants`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants.mutants"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
