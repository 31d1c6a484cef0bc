"""A slow machine fails no test: limits are for what hangs."""

from __future__ import annotations

import ast
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_timeout

from tests import limits
from tests.mutants.mutant import ROOT

_WAITS = {"wait", "join", "result", "communicate", "run", "start", "get", "hammer", "soon"}
_LIMITS = {"timeout", "timeout_s"}
_SHORT = 2.0
"""Seconds: a pause, or what must not come; not a limit."""

_POLLS = {("commit_coord/testing/fleet/waiting.py", "holds_within"), ("tests/processes.py", "until_async")}
"""The files and functions that wait for what sends no event; whatever waits for it calls them."""

_SUBJECT = re.compile(r"# the subject: \S")
"""On the line of a sleep: that time goes by is what is tested, or what a program does that is slow or keeps a pace."""

_CLIENTS = {"MetastoreAccess", "client_of"}
"""What talks to a metastore: a client leaves a server that is slower than its limit for the next one."""

_CLOCKS = {"monotonic", "now", "perf_counter"}


def _reads_a_clock(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _CLOCKS


def _is_narrow(node: ast.expr, least: float = 1.0) -> bool:
    return (
        isinstance(node, ast.Constant) and isinstance(node.value, int | float) and least < node.value < limits.PATIENCE
    )


def _nodes(text: str, words: Iterable[str]) -> list[ast.AST]:
    """Return the nodes of a module, or none if it has none of the *words*: to parse them all takes minutes."""
    return list(ast.walk(ast.parse(text))) if any(word in text for word in words) else []


def _timed(path: Path) -> list[str]:
    """Return where *path* asks a clock whether some seconds of its own are over, whatever the machine has to do."""
    found = []
    for node in _nodes(path.read_text(), _CLOCKS):
        match node:
            case ast.Assign(value=ast.BinOp(left=left, op=ast.Add(), right=right)):
                narrow = _reads_a_clock(left) and _is_narrow(right, _SHORT)
            case ast.Compare(left=left, ops=operators, comparators=values):
                asked = [
                    (one, limit)
                    for one, operator, limit in zip([left, *values], operators, values, strict=False)
                    if isinstance(operator, ast.Lt | ast.LtE)
                ]
                narrow = any(
                    isinstance(one, ast.BinOp) and _reads_a_clock(one.left) and _is_narrow(limit)
                    for one, limit in asked
                )
            case _:
                continue
        if narrow:
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def _narrow(path: Path) -> list[str]:
    """Return where *path* gives up a wait after some seconds of its own."""
    found = []
    tree = ast.parse(path.read_text())
    named = {
        target.id: one.value.value
        for one in tree.body
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if getattr(node.func, "attr", getattr(node.func, "id", "")) not in _WAITS:
            continue
        limits_of = [*node.args[:1], *(k.value for k in node.keywords if k.arg in _LIMITS)]
        seconds = [
            one.value if isinstance(one, ast.Constant) else named.get(getattr(one, "id", "")) for one in limits_of
        ]
        if any(isinstance(one, int | float) and _SHORT < one < limits.PATIENCE for one in seconds):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def _impatient(path: Path) -> list[str]:
    """Return where *path* opens a client that takes a slow metastore for one that never answers."""
    found = []
    for node in _nodes(path.read_text(), _CLIENTS | {"hive.client-timeout-ms"}):
        match node:
            case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in _CLIENTS:
                texts = [one.value for one in keywords if one.arg == "timeout_ms"]
            case ast.Dict(keys=keys, values=values):
                texts = [
                    value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == "hive.client-timeout-ms"
                ]
            case _:
                continue
        limits_ms = [int(str(text.value)) for text in texts if isinstance(text, ast.Constant)]
        if any(_SHORT * 1000 <= limit_ms < limits.PATIENCE * 1000 for limit_ms in limits_ms):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def _is_brief(node: ast.expr) -> bool:
    """Return whether *node* is some seconds, or a random part: neither none nor as many as a limit has."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return 0 < value < limits.PATIENCE
        case ast.BinOp(op=ast.Mult() | ast.Div()):
            return True
        case _:
            return False


def _is_pause(node: ast.AST) -> bool:
    """Return whether *node* lets time go by: a sleep, or a wait of some seconds for what is not to come meanwhile."""
    match node:
        case ast.Call(func=ast.Attribute(attr="sleep", value=ast.Name("asyncio")), args=[ast.Constant(value=0)]):
            return False  # it only lets others go on
        case ast.Call(func=ast.Attribute(attr="sleep", value=ast.Name(id="clock") | ast.Attribute(attr="clock"))):
            return False  # of a process in the simulator
        case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep")):
            return True
        case ast.ImportFrom(names=names):
            return any(name.name == "sleep" for name in names)
        case (
            ast.Expr(value=ast.Call(func=ast.Attribute(attr="wait" | "join"), args=[seconds]))
            | ast.Assert(
                test=ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Attribute(attr="wait"), args=[seconds]))
            )
        ):
            return _is_brief(seconds)
        case _:
            return False


def _sleeps(name: str, text: str) -> list[str]:
    """Return where the file *name* sleeps, but for the shared helpers, and for what is marked as the subject."""
    lines, nodes, found = text.splitlines(), _nodes(text, ("sleep", "wait(", "join(")), set[int]()
    polls = [one for one in nodes if (name, getattr(one, "name", "")) in _POLLS]
    passed = {id(inside) for poll in polls for inside in ast.walk(poll)}
    passed |= {  # docstrings
        id(one.value) for one in nodes if isinstance(one, ast.Expr) and not isinstance(one.value, ast.Call)
    }
    for node in nodes:
        if id(node) in passed:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a program, perhaps
            numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found |= {number for number in numbers if re.search(r"\bsleep\(", lines[number - 1])}
        elif isinstance(node, ast.expr | ast.stmt) and _is_pause(node):
            found.add(node.lineno)
    return [f"{name}:{number}" for number in sorted(found) if not _SUBJECT.search(lines[number - 1])]


def test_no_test_sleeps_but_where_the_time_that_goes_by_is_the_subject() -> None:
    """It turns a clock, or it waits for the thing itself; so do the programs and the kit that it uses."""
    folders = ("tests", "integration", "commit_coord/testing")
    files = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
    assert [] == [place for path in files for place in _sleeps(str(path.relative_to(ROOT)), path.read_text())]


@pytest.mark.parametrize(
    "line, is_found",
    [
        ("time.sleep(0.5)", True),
        ("sleep(s)", True),
        ("from time import sleep", True),
        ("from asyncio import sleep as pause", True),
        ("SYSTEM_CLOCK.sleep(1)", True),
        ("super().sleep(1)", True),
        ("asyncio.sleep(0.01)", True),
        ("asyncio.sleep(0)", False),
        ("process.clock.sleep(3.0)", False),
        ("program = 'import time; time.sleep(1)'", True),
        ("'A docstring: time.sleep(1).'", False),
        ("threading.Event().wait(0.3)", True),
        ("threading.Event().wait(600)", False),
        ("stop.wait(dice.random() * 2)", True),
        ("thread.join(0.01)", True),
        ("thread.join(PATIENCE)", False),
        ("assert not granted.wait(0.1)", True),
        ("assert granted.wait(0.1)", False),
        ("while not over.wait(0.1): look()", False),
        ("time.sleep(0.5)  # until it is there", True),
        ("time.sleep(0.5)  # the subject:", True),
        ("time.sleep(0.5)  # the subject: a server that is slow", False),
    ],
)
def test_a_sleep_is_found_if_it_is_not_marked(line: str, is_found: bool) -> None:
    assert ["tests/planted.py:2"] * is_found == _sleeps("tests/planted.py", f'"""Of a test."""\n{line}\n')


def test_the_shared_helpers_alone_may_poll() -> None:
    helper, place = "def {}():\n    time.sleep(every_s)\n", "commit_coord/testing/fleet/waiting.py"
    assert [] == _sleeps(place, helper.format("holds_within"))
    assert [f"{place}:2"] == _sleeps(place, helper.format("another"))
    assert ["tests/another.py:2"] == _sleeps("tests/another.py", helper.format("holds_within"))


def test_no_wait_for_another_thread_or_process_has_a_narrow_limit_of_its_own() -> None:
    files = [*ROOT.glob("tests/**/*.py"), ROOT / "commit_coord/testing/contract.py"]
    assert [] == [place for path in sorted(files) for place in _narrow(path)]


def test_no_clock_is_asked_for_seconds_that_a_busy_machine_needs_more_of() -> None:
    """What must come is waited for with patience, and what must not take long has a limit that follows the load."""
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("commit_coord/testing/*.py")]
    assert [] == [place for path in sorted(files) for place in _timed(path)]


def test_no_client_of_a_metastore_leaves_a_server_because_the_machine_is_slow() -> None:
    files = ROOT.glob("tests/**/*.py")
    assert [] == [place for path in sorted(files) for place in _impatient(path)]


def test_a_test_may_take_longer_the_more_the_machine_has_to_do() -> None:
    assert 360 == limits.allowed_s(120, load=0.5, processors=2)
    assert 2400 == limits.allowed_s(120, load=20, processors=2)


def test_a_limit_that_has_passed_strikes_only_when_the_load_does_not_explain_it(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with much to do the test goes on, and is looked at again."""
    struck: list[Any] = []
    load = [1000.0]
    monkeypatch.setattr(pytest_timeout, "timeout_sigalrm", lambda *arguments: struck.append(arguments))
    monkeypatch.setattr(limits, "STRIKES", [])
    monkeypatch.setattr(os, "getloadavg", lambda: (load[0], 0.0, 0.0))
    item: Any = SimpleNamespace(nodeid="a test")
    own = request.node.cancel_timeout
    own()
    try:
        assert limits.pytest_timeout_set_timer(item, SimpleNamespace(method="signal", timeout=60.0))
        signal.raise_signal(signal.SIGALRM)
        assert (0, []) == (limits.strikes(), struck)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 60
        load[0] = -1000.0
        monkeypatch.setattr(limits, "LEAST", 0)
        signal.raise_signal(signal.SIGALRM)
        assert (1, 1) == (limits.strikes(), len(struck))
    finally:
        item.cancel_timeout()
