"""The commands of the proof refuse what would prove nothing, and say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.mutants import mutants
from tests.proof import soak
from tests.proof.faults import __main__ as faults
from tests.proof.sim import __main__ as sim


@pytest.mark.parametrize(
    "main, arguments, why",
    [
        (sim.main, ["--runs", "0"], "RUNS and --processes are 1 or more"),
        (sim.main, ["--processes", "-1"], "RUNS and --processes are 1 or more"),
        (sim.main, ["--moves", "1", "--seed", "1000000"], "of these runs there are 6,435: SEED is one of 1 to 6435"),
        (mutants.main, ["nope", "a-reader-steps-back"], "no such mutant: nope"),
        (
            faults.main,
            ["--only", "cut-both", "--on", "memory"],
            "cut-both makes no sense on memory: there is no server",
        ),
        (faults.main, ["--kills", "--commits", "7"], "--commits is 8 or more"),
        (soak.main, ["--minutes", "1"], "2 samples behind the warm-up tell nothing"),
        (soak.main, ["--writers", "1"], "--writers is 2 or more"),
    ],
)
def test_what_would_prove_nothing_is_refused(
    main: Callable[[list[str]], Any], arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
