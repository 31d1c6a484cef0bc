"""The oracle of rows: a program that was printed can be run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from commit_coord.testing.rows.many import Rig, draw_and_run, run_again
from commit_coord.testing.rows.program import loads


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(stack)


def test_a_program_that_was_printed_does_the_same_again(rig: Rig) -> None:
    program, found = draw_and_run(rig, 1, Counter())
    assert program == loads(str(program))
    assert str(found) == str(run_again(rig, program))
