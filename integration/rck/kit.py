"""Fetches the kit, runs it against a URL, and reads its reports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET  # reports of our own run # nosec B405

from commit_coord.local.maven import maven_class_path

_POM = Path(__file__).with_name("pom.xml")
_TESTS = "org.apache.iceberg.rest.RESTCompatibilityKit"
_LIMIT_S = 900

_ABOUT_THE_SERVER = {
    "rck.local": "false",
    "rck.purge-test-namespaces": "true",
    "rck.requires-namespace-create": "true",
    "rck.supports-names-with-dot": "false",  # PyIceberg's SQL catalog joins the levels of a namespace with dots
}


@dataclass(frozen=True, slots=True)
class Test:
    """What became of a test of the kit."""

    name: str
    outcome: str
    message: str = ""


def run(url: str, warehouse: str, reports: Path, *, views: bool, only: Sequence[str] = ()) -> list[Test]:
    """Run the kit against the server at *url*, and return what became of each test.

    Args:
        url: Of the server.
        warehouse: The catalog.
        reports: A folder for the console's output and JUnit's reports.
        views: Whether the server has views.
        only: Names of tests, as ``ViewCatalogTests.listViews``, or of classes of tests; without them, all.

    Raises:
        RuntimeError: The kit did not run; its output is in the error.
    """
    jars = maven_class_path(_POM)
    (console,) = (jar for jar in jars if jar.name.startswith("junit-platform-console"))
    settings = {**_ABOUT_THE_SERVER, "uri": f"{url}/", "rck.warehouse": warehouse, "warehouse": warehouse}
    classes = [f"{_TESTS}CatalogTests", *([f"{_TESTS}ViewCatalogTests"] if views else [])]
    selected = [_selecting(name) for name in only] or [f"--select-class={name}" for name in classes]
    reports.mkdir(parents=True, exist_ok=True)
    command = [
        *("java", "-Xmx800m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
        *(f"-D{key}={value}" for key, value in settings.items()),
        *("-jar", str(console), "execute", "--disable-banner", "--disable-ansi-colors", "--details=tree"),
        *("--class-path", os.pathsep.join(str(jar) for jar in jars if jar != console)),
        *("--reports-dir", str(reports), *selected),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    (reports / "console.txt").write_text(ended.stdout + ended.stderr)
    found = [test for report in sorted(reports.glob("TEST-*jupiter.xml")) for test in _read(report)]
    if not found:
        raise RuntimeError(f"the kit ran no test: {(ended.stdout + ended.stderr)[-2000:]}")
    return found


def _selecting(name: str) -> str:
    kind, _, method = name.partition(".")
    return f"--select-method={_TESTS}{kind}#{method}()" if method else f"--select-class={_TESTS}{kind}"


def _read(report: Path) -> list[Test]:
    tests = []
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 # nosec B314 - our own run wrote it
        kind = case.get("classname", "").rsplit(".", 1)[-1].removeprefix("RESTCompatibilityKit")
        name = f"{kind}.{case.get('name')}"
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            tests.append(Test(name, "failed", (failure.get("message") or failure.get("type") or "").strip()))
        elif (skipped := case.find("skipped")) is not None:
            tests.append(Test(name, "skipped", (skipped.get("message") or skipped.text or "").strip()))
        else:
            tests.append(Test(name, "passed"))
    return tests
