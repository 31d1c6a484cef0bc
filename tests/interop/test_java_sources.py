"""Each Java source of the project can be compiled: programs that run for minutes are not the first to try."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commit_coord.local.java import compile_java, find_java, pyspark_jars
from tests.interop.test_jdbc_catalog import RUNTIME, jar

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("commit_coord/bench/java", "tests/proof/faults/java", "tests/interop")


@pytest.mark.jvm
@pytest.mark.parametrize("folder", _FOLDERS)
def test_java_sources_can_be_compiled(folder: str, tmp_path: Path) -> None:
    class_path = os.pathsep.join(map(str, [jar(RUNTIME), *pyspark_jars("*.jar")]))
    compile_java(find_java(range(17, 23)), sorted((_ROOT / folder).glob("*.java")), class_path, tmp_path)
    assert list(tmp_path.glob("*.class"))


def test_every_folder_with_java_sources_is_compiled() -> None:
    """That of Flink's client needs Flink, and is compiled in ``integration/clients``."""
    found = {
        path.parent.relative_to(_ROOT).as_posix()
        for top in ("commit_coord", "tests")
        for path in (_ROOT / top).rglob("*.java")
    }
    assert set(_FOLDERS) == found
