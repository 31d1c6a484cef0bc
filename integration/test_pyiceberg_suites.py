"""PyIceberg's own suites, run on our catalogs: what passes on PyIceberg's catalogs passes on ours.

The suites come from PyIceberg's source distribution, pinned by its hash. They run on PyIceberg's own classes; what
passes there runs on ours in the same way (``suites/shim.py``). A test that passes on theirs and not on ours is a
deviation: ``suites/deviations.py`` declares it with its reason, or this fails. A declared one that passes fails too.
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

pytestmark = pytest.mark.timeout(3600)

PACKAGES = Path(__file__).parent / "suites" / "packages.txt"
SUITES = (
    "tests/catalog/test_base.py",
    "tests/catalog/test_catalog_behaviors.py",
    "tests/catalog/test_sql.py",
    "tests/cli",
    "tests/integration",
    "tests/table",
)
FEWEST = {"sql": 1_650, "hive": 80}
"""Fewer passing tests on PyIceberg's own catalogs mean that the shim is broken, not that all is well."""


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the suites, and in ``packages`` what they import."""
    folder = tmp_path_factory.mktemp("suites")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    fetch = ["download", "--require-hashes", "--no-deps", "--no-binary", "pyiceberg", "-r", str(PACKAGES), "-d"]
    subprocess.run([*pip, *fetch, str(folder)], check=True)
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", folder / "packages", *folder.glob("*.whl")], check=True
    )
    [archive] = folder.glob("pyiceberg-*.tar.gz")
    name = archive.name.removesuffix(".tar.gz")
    unpack = ["tar", "--extract", "--gzip", "--file", str(archive), "--directory", str(folder)]
    subprocess.run([*unpack, f"{name}/tests", f"{name}/pyproject.toml"], check=True)
    shutil.move(folder / name, folder / "suites")
    yield folder
    shutil.rmtree(folder)


def outcomes(kind: str, folder: Path, hms: str, only: str = "") -> dict[str, tuple[str, str]]:
    """Run the suites on the catalogs of *kind* and return how each test ended, and why.

    Args:
        kind: ``stock`` or ``ours``.
        folder: For the results, in that which the fixture made.
        hms: The URI of a metastore for the tests that use one; without it the others run.
        only: The kind whose failures are left out.
    """
    place = folder / kind
    place.mkdir(parents=True)
    found = place / "outcomes.json"
    environment = os.environ | {
        "SUITES_KIND": kind,
        "SUITES_HMS": hms,
        "SUITES_FOLDER": str(place),
        "SUITES_OUTCOMES": str(found),
        "SUITES_ONLY": str(folder / only / found.name) if only else "",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(folder.parent / "packages")]),
    }
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "integration.suites.shim"]
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", "-q", "--tb=short", "--timeout=300", *SUITES]
    ran = subprocess.run(
        command, cwd=folder.parent / "suites", env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (0, 1), ran.stdout[-5000:] + ran.stderr[-5000:]
    ended: dict[str, tuple[str, str]] = {}
    for line in found.read_text().splitlines():
        each = json.loads(line)
        if ended.get(each["test"], ("passed", ""))[0] == "passed":
            ended[each["test"]] = (each["outcome"], each["why"])
    return ended


@pytest.mark.parametrize("catalog", ["sql", pytest.param("hive", marks=pytest.mark.hms)])
def test_what_passes_on_pyiceberg_s_catalogs_passes_on_ours_or_is_declared(
    catalog: str, suites: Path, servers: Servers
) -> None:
    def hms() -> str:
        if catalog != "hive":
            return ""
        uri: str = servers.metastore().uri  # PyIceberg can't read a table on Hive 4, which lacks its `get_table`
        return uri

    folder = suites / catalog
    stock = outcomes("stock", folder, hms())
    ours = outcomes("ours", folder, hms(), only="stock")
    works = [test for test, (outcome, _) in stock.items() if outcome == "passed"]
    assert len(works) >= FEWEST[catalog]
    assert ours.keys() >= set(works)

    deviations = DEVIATIONS[catalog]
    failed = {test for test in works if ours[test][0] != "passed"}
    declared = {test for test in works if _key(test) in deviations or test in deviations}
    undeclared = "\n\n".join(f"{test}\n{ours[test][1]}" for test in sorted(failed - declared))
    print(f"{len(works) - len(failed)} of {len(works)} pass on ours; {len(failed)} deviate")
    assert not undeclared, undeclared
    assert sorted(declared - failed) == [], "these are declared, and pass"
    assert sorted(deviations.keys() - {*works, *map(_key, works)}) == [], (
        "these are declared, and there is no such test"
    )


def _key(test: str) -> str:
    """Return the id of *test* without its parameters."""
    return test.partition("[")[0]
