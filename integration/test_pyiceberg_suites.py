"""PyIceberg's own suites, run on our catalogs: what passes on PyIceberg's catalogs passes on ours.

The suites come from PyIceberg's source distribution, pinned by its hash. Each runs twice, on PyIceberg's own classes
and on ours (``suites/shim.py``), in the same way. A test that passes on theirs and not on ours is a deviation:
``suites/deviations.py`` declares it with its reason, or this fails. A declared one that passes fails as well.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import Servers
from integration.suites.deviations import DEVIATIONS

pytestmark = [pytest.mark.hms, pytest.mark.timeout(3600)]

PACKAGES = Path(__file__).parent / "suites" / "packages.txt"
SUITES = (
    "tests/catalog/test_base.py",
    "tests/catalog/test_catalog_behaviors.py",
    "tests/catalog/test_sql.py",
    "tests/cli",
    "tests/integration",
    "tests/table",
)
FEWEST = 1_500
"""Fewer passing tests on PyIceberg's own catalogs mean that the shim is broken, not that all is well."""


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the suites, and in ``packages`` what they import."""
    folder = tmp_path_factory.mktemp("suites")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    fetch = ["download", "--require-hashes", "--no-deps", "--no-binary", "pyiceberg", "-r", PACKAGES, "-d", folder]
    subprocess.run([*pip, *fetch], check=True)
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", folder / "packages", *folder.glob("*.whl")], check=True
    )
    [archive] = folder.glob("pyiceberg-*.tar.gz")
    name = archive.name.removesuffix(".tar.gz")
    unpack = ["tar", "--extract", "--gzip", "--file", archive, "--directory", folder]
    subprocess.run([*unpack, f"{name}/tests", f"{name}/pyproject.toml"], check=True)
    shutil.move(folder / name, folder / "suites")
    yield folder
    shutil.rmtree(folder)


def outcomes(kind: str, folder: Path, hms: str) -> dict[str, tuple[str, str]]:
    """Run the suites on the catalogs of *kind* and return how each test ended, and why."""
    place = folder / kind
    place.mkdir()
    found = place / "outcomes.json"
    environment = os.environ | {
        "SUITES_KIND": kind,
        "SUITES_HMS": hms,
        "SUITES_FOLDER": str(place),
        "SUITES_OUTCOMES": str(found),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(folder / "packages")]),
    }
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "integration.suites.shim"]
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", "-q", "--tb=short", "--timeout=300", *SUITES]
    ran = subprocess.run(command, cwd=folder / "suites", env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stdout[-5000:] + ran.stderr[-5000:]
    ended: dict[str, tuple[str, str]] = {}
    for line in found.read_text().splitlines():
        each = json.loads(line)
        if ended.get(each["test"], ("passed", ""))[0] == "passed":
            ended[each["test"]] = (each["outcome"], each["why"])
    return ended


def test_what_passes_on_pyiceberg_s_catalogs_passes_on_ours_or_is_declared(suites: Path, servers: Servers) -> None:
    stock = outcomes("stock", suites, servers.metastore().uri)
    ours = outcomes("ours", suites, servers.metastore().uri)
    works = [test for test, (outcome, _) in stock.items() if outcome == "passed"]
    assert len(works) >= FEWEST
    assert ours.keys() >= set(works)

    failed = {test for test in works if ours[test][0] != "passed"}
    declared = {test for test in works if _declared(test)}
    undeclared = "\n\n".join(f"{test}\n{ours[test][1]}" for test in sorted(failed - declared))
    print(f"{len(works) - len(failed)} of {len(works)} pass on ours; {len(failed)} deviate")
    assert not undeclared, undeclared
    assert sorted(declared - failed) == [], "these are declared, and pass"
    assert sorted(key for key in DEVIATIONS if not any(_declared(test) == key for test in works)) == []


def _declared(test: str) -> str | None:
    """Return the key of the table that covers *test*: its id, or its id without the parameters."""
    return next((key for key in (test, test.partition("[")[0]) if key in DEVIATIONS), None)
