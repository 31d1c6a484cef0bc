"""What is built can be installed, and what the documents print can be typed."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from commit_coord.demo.processes import iceberg_runtime
from commit_coord.local.server import free_ports
from commit_coord.version import __version__
from tests.packaging.walk import (
    DLT,
    MIGRATION,
    PYSPARK,
    README,
    ROOT,
    SPARK_SQL,
    TUTORIAL,
    Block,
    blocks,
    build,
    offline,
    reader,
)


def _without_spark(block: Block) -> bool:
    return "spark" not in block.code or "pip install" in block.code


def _first_minutes(block: Block) -> bool:
    return block.heading in ("Five minutes", "PySpark")


def _on_sqlite(block: Block) -> bool:
    return not block.heading.startswith("8.")


def _all(_: Block) -> bool:
    return True


PARTS: dict[str, tuple[tuple[str, ...], Callable[[Block], bool]]] = {
    "README and maintenance without Spark": (("README.md", "docs/maintenance.md"), _without_spark),
    "README's first minutes": (("README.md",), _first_minutes),
    "tutorial on SQLite": (TUTORIAL, _on_sqlite),
    "tutorial of PySpark": (PYSPARK, _all),
    "guide to dlt": (DLT, _all),
}
"""Documents → the blocks of them that take least. A run of CI types one of these parts, ``make test-all`` all."""

SOURCES = ("sources", "sources with the extra local", "sdist", "wheel")
"""What can be installed. A run of CI installs one of these, ``make test-all`` all."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the seed of the run draw one part and one source; the others are slow."""
    seed = metafunc.config.getoption("randomly_seed", 0)
    for name, cases in {"part": [*PARTS], "source": SOURCES}.items():
        if name in metafunc.fixturenames:
            drawn = random.Random(f"{name} {seed}").choice(cases)
            marks = {case: () if case == drawn else (pytest.mark.slow,) for case in cases}
            metafunc.parametrize(name, [pytest.param(case, marks=marks[case]) for case in cases])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel."""
    return build(tmp_path_factory.mktemp("dist"))


def test_the_sdist_contains_sources_tests_and_documents(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "pyproject.toml", "docs/index.md", "tests/test_docs.py", "Makefile"} <= names


def test_the_wheel_contains_the_package_alone(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        names = archive.namelist()
        metadata = archive.read(f"commit_coord-{__version__}.dist-info/METADATA").decode()
    assert {"commit_coord", f"commit_coord-{__version__}.dist-info"} == {name.split("/")[0] for name in names}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "commit_coord").rglob("*") if path.is_file()}
    assert {"commit_coord/py.typed", "commit_coord/ui/templates/base.html"} <= sources
    packed = {name for name in names if name.startswith("commit_coord/")}
    assert {name for name in sources if "/__pycache__/" not in name} == packed
    assert f"\nVersion: {__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_the_wheel_contains_of_the_test_kit_what_has_a_reason(built: tuple[Path, Path]) -> None:
    """Its other users, as the proofs, are in ``tests``."""
    with zipfile.ZipFile(built[1]) as archive:
        paths = [Path(name).parts for name in archive.namelist() if name.startswith("commit_coord/testing/")]
    section = (ROOT / "docs" / "ARCHITECTURE.md").read_text().partition("\n### `testing`\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (`.*?`) \| .*\w.* \| .*\w.* \|$", section, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {path[2].removesuffix(".py") for path in paths} - {"__init__"} == listed


@pytest.mark.timeout(300)
def test_what_is_installed_runs_where_the_sources_are_not(
    built: tuple[Path, Path], tmp_path: Path, source: str
) -> None:
    """In a clean environment, which finds the locked packages, and pip there finds that none is missing."""
    given = {"sdist": str(built[0]), "wheel": str(built[1]), "sources": ".", "sources with the extra local": ".[local]"}
    place = tmp_path / "env"
    environment = {"PATH": "/usr/bin:/bin", **offline(place)}
    pip = [sys.executable, "-m", "pip", "--python", str(place)]
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(place)],
        [*pip, "install", "--quiet", given[source]],
    ):
        subprocess.run(command, cwd=ROOT, check=True, env=environment, capture_output=True)
    version = [str(place / "bin" / "commit-coord"), "--version"]
    done = subprocess.run(version, cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    assert f"commit-coord {__version__}\n" == done.stdout
    where = [str(place / "bin" / "python"), "-c", "import commit_coord; print(commit_coord.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env={}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(place))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_blocks_of_a_document_run_as_printed(part: str) -> None:
    documents, wanted = PARTS[part]
    with reader(index=False) as made:
        assert made.walk(documents, wanted) >= 5


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_block_of_the_readme_runs_as_printed() -> None:
    """And those of the pages that continue it, and of a tutorial that is done in the same folder after it."""
    with reader(index=False) as made:
        assert made.walk(README) >= 20
        assert made.walk(PYSPARK) >= 10


@pytest.mark.hms
@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_block_of_the_tutorial_runs_as_printed() -> None:
    with reader(index=False) as made:
        assert made.walk(TUTORIAL) > 15
    assert 2 == sum("160 rows in 160 snapshots" in shown for shown in made.shown)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_block_of_the_tutorial_of_pyspark_runs_as_printed() -> None:
    with reader(index=False) as made:
        assert made.walk(PYSPARK) >= 10
    for printed in ("refused: stale-read", "26 visits", "6 rows", "8 rows"):
        assert any(printed in shown for shown in made.shown), printed


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_block_of_the_tutorial_of_spark_sql_runs_as_printed() -> None:
    """With a free port. Maven fetches the jar first: then Spark finds it in Maven's folder, where no network is."""
    iceberg_runtime()
    (port,) = free_ports(1)
    instead = {
        "127.0.0.1:8181": f"127.0.0.1:{port}",
        "serve --catalog shop": f"serve --catalog shop --port {port}",
    }
    with reader(index=False, instead=instead) as made:
        assert made.walk(SPARK_SQL) >= 7
    shown = "\n".join(made.shown)
    assert "1\ttea\n2\trice\n3\tsalt\n" in shown
    assert all(operation in made.shown[-1] for operation in ("append", "overwrite")), made.shown[-1]


@pytest.mark.slow
@pytest.mark.hms
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
def test_every_block_of_the_tutorial_of_a_move_runs_as_printed() -> None:
    with reader(index=False) as made:
        assert made.walk(MIGRATION) >= 10
    appends, rows = re.findall(r"(\d+) appends; (\d+) rows", "\n".join(made.shown))[0]
    assert appends == rows


def test_blocks_are_left_out_for_a_reason() -> None:
    walked = (*README, *TUTORIAL, *PYSPARK, *SPARK_SQL, *MIGRATION, *DLT)
    assert {path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/tutorials/*.md")} <= {*walked}
    left_out = [block.place for document in walked for block in blocks(ROOT / document) if block.left_out]
    assert 4 == len(left_out), left_out
