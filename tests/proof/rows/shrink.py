"""Makes a program that failed smaller, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.proof.rows.model.conditions import Always, And, Not, Or
from tests.proof.rows.model.operations import Race, Transact
from tests.proof.rows.program import Program, Step

Fails = Callable[[Program], bool]


def smallest(program: Program, fails: Fails, *, tries: int = 250) -> Program:
    """Return *program* with whatever can be left out left out, so that it still *fails*."""
    left = tries

    def allowed(one: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(one)

    while left > 0 and (found := next(filter(allowed, smaller(program)), None)):
        program = found
    return program


def smaller(program: Program) -> Iterator[Program]:
    """Yield programs that are a little smaller, the greatest leaps first."""
    steps = program.steps
    size = len(steps) // 2
    while size:
        for start in range(0, len(steps), size):
            yield replace(program, steps=steps[:start] + steps[start + size :])
        size //= 2
    for at, one in enumerate(steps):
        for simpler in _simpler(one):
            yield replace(program, steps=(*steps[:at], simpler, *steps[at + 1 :]))
    if program.properties:
        yield replace(program, properties={})
    for at in range(len(program.spec)):
        yield replace(program, spec=program.spec[:at] + program.spec[at + 1 :])
    for at, column in enumerate(program.columns):
        if len(program.columns) > 1 and column.field_id not in {p.source for p in program.spec}:
            yield replace(program, columns=program.columns[:at] + program.columns[at + 1 :])
        if column.required:
            optional = column.model_copy(update={"required": False})
            yield replace(program, columns=(*program.columns[:at], optional, *program.columns[at + 1 :]))
    if program.locks != "off":
        yield replace(program, locks="off")
    if program.version == 1:
        yield replace(program, version=2)
    if program.spelling:
        yield replace(program, spelling="")
    if program.neighbour:
        yield replace(program, neighbour="")


def _simpler(step: Step) -> Iterator[Any]:
    if isinstance(step, Race):
        yield step.one
        yield from step.others
        for simpler in _simpler(step.one):
            yield replace(step, one=simpler)
        for at, other in enumerate(step.others):
            for simpler in _simpler(other):
                yield replace(step, others=(*step.others[:at], simpler, *step.others[at + 1 :]))
        return
    if isinstance(step, Transact):
        yield from step.calls
        for at, call in enumerate(step.calls):
            yield replace(step, calls=step.calls[:at] + step.calls[at + 1 :])
            for simpler in _simpler(call):
                yield replace(step, calls=(*step.calls[:at], simpler, *step.calls[at + 1 :]))
        return
    there: Any = step
    for name in ("rows", "values", "sets", "lines", "clauses"):
        items = getattr(step, name, ())
        for at in range(len(items)):
            if len(items) > 1 or name == "rows":
                yield replace(there, **{name: items[:at] + items[at + 1 :]})
    for at, row in enumerate(getattr(step, "rows", ())):
        for key in row:
            if row[key] is not None:
                less = {other: value for other, value in row.items() if other != key}
                yield replace(there, rows=(*there.rows[:at], less, *there.rows[at + 1 :]))
    condition = getattr(step, "where", None)
    if isinstance(condition, And | Or):
        yield replace(there, where=condition.left)
        yield replace(there, where=condition.right)
    if isinstance(condition, Not):
        yield replace(there, where=condition.inner)
    if condition is not None and not isinstance(condition, Always):
        yield replace(there, where=Always())
    if getattr(step, "client", None) == "b":
        yield replace(there, client="a")
