"""Iceberg Java's own appends through the REST server: threads of unmodified clients on one table."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from commit_coord.local.java import LOG4J, compile_java, find_java, pyspark_jars
from tests.interop.test_jdbc_catalog import RUNTIME, jar
from tests.rest.kit import SCHEMA, Server, served

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the namespace ``db``."""
    with served() as server:
        server.client().create_namespace("db")
        yield server


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs ``Appends``."""
    folder = tmp_path_factory.mktemp("java")
    program = find_java(range(17, 23))
    class_path = os.pathsep.join(map(str, [jar(RUNTIME), *pyspark_jars("*.jar")]))
    compile_java(program, [Path(__file__).with_name("Appends.java")], class_path, folder)
    (folder / "log4j2.properties").write_text(LOG4J.replace("=warn", "=error"))
    log = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
    return [str(program), "-Xmx256m", log, "-cp", f"{folder}{os.pathsep}{class_path}", "Appends"]


def _run(java: list[str], *arguments: object) -> tuple[list[str], list[str]]:
    """Return the files that were acknowledged, and what was said of others."""
    done = subprocess.run([*java, *map(str, arguments)], capture_output=True, text=True, check=True, timeout=280)
    lines = done.stdout.splitlines()
    acknowledged = [line.removeprefix("acknowledged ") for line in lines if line.startswith("acknowledged ")]
    return acknowledged, [line for line in lines if not line.startswith("acknowledged ")]


def _files(server: Server, name: str) -> Counter[str]:
    table = server.client().load_table(("db", name))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return Counter(
        Path(entry.data_file.file_path).stem
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    )


@pytest.mark.parametrize("kind", ["fast", "merge", "both"])
def test_declared_appends_never_try_again(server: Server, java: list[str], kind: str) -> None:
    properties = {"commit.retry.num-retries": "0", "commit.manifest.min-count-to-merge": "4"}
    server.client().create_table(("db", kind), SCHEMA, properties=properties)
    acknowledged, others = _run(java, server.url, kind, kind, "blind", 6, 8)
    assert not others
    assert Counter(acknowledged) == _files(server, kind)
    assert 48 == len(acknowledged)


def test_appends_that_are_not_declared_try_twice_at_most(server: Server, java: list[str]) -> None:
    server.client().create_table(("db", "undeclared"), SCHEMA, properties={"commit.retry.num-retries": "1"})
    acknowledged, others = _run(java, server.url, "undeclared", "both", "", 8, 5)
    assert Counter(acknowledged) == _files(server, "undeclared")
    assert not others
