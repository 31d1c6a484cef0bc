"""The oracle of rows: random programs find nothing, and what once found something finds nothing again."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pyarrow as pa
import pytest

from commit_coord import load_catalog
from commit_coord.table.data_files import data_files
from commit_coord.testing.table_files.metadata import faults
from commit_coord.testing.table_files.observed import Files, Observed
from tests.limits import some
from tests.proof.rows.findings import ALONE
from tests.proof.rows.many import Rig, draw_and_run, outcome, run_again
from tests.proof.rows.printed import loads

HERE = Path(__file__).parent
KEPT = sorted((HERE / "programs").glob("*.txt"))

CHUNKS, EACH = 6, 20


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", some(range(2), range(2, CHUNKS)))
def test_random_programs_find_nothing(rig: Rig, chunk: int) -> None:
    """The same programs at each run."""
    for seed in range(chunk * EACH + 1, chunk * EACH + EACH + 1):
        one = outcome(rig, seed)
        assert not one.kind or one.kind.startswith(ALONE), f"seed {seed}: {one.text}\n{one.program}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_program_that_once_found_something_finds_nothing(rig: Rig, path: Path) -> None:
    assert str(run_again(rig, loads(path.read_text()))) == "None"


def test_a_program_that_was_printed_does_the_same_again(rig: Rig) -> None:
    program, found = draw_and_run(rig, 1, Counter())
    assert program == loads(str(program))
    assert str(found) == str(run_again(rig, program))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_partition_of_negative_zero_is_found(tmp_path: Path, zero: float) -> None:
    """One partition, 0.0, holds zeros of both signs; readers overlook rows in another one."""
    rows = pa.table({"x": [0.0, -0.0, math.nan]})
    with closing(load_catalog("judged", uri=f"coord+sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}")) as db:
        db.create_namespace("db")
        table = db.create_table("db.t", rows.schema)
        with table.update_spec() as spec:
            spec.add_identity("x")
        files = list(data_files(table.metadata, rows, table.io))
        for file in files:
            file.partition[0] = zero if file.partition[0] == 0 else math.nan
        table.commit_files(files)
        found = list(faults(Observed(table.metadata_location, Files()), None))
    assert (["a file lies in x=-0.0, and has a row of 0.0"] if math.copysign(1, zero) < 0 else []) == found


@pytest.mark.timeout(300)
def test_the_same_seeds_are_the_same_programs() -> None:
    """Whatever the order of sets, and however many processes run them."""
    command = [sys.executable, "-m", "tests.proof.rows", "--seed", "7", "--runs", "2", "--whole"]
    digests = set()
    for salt, processes in (("1", "1"), ("2", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        done = subprocess.run(
            [*command, "--processes", processes], env=environment, capture_output=True, text=True, check=False
        )
        assert "; digest " in done.stdout, done.stdout + done.stderr
        digests.add(done.stdout.rpartition("; digest ")[2])
    assert len(digests) == 1
