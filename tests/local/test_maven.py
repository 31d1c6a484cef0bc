"""Jars through Maven: fetched once, whole or not at all, and a clear word when it can't be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from commit_coord.errors import ConfigError
from commit_coord.local.maven import maven_archive, maven_jar, maven_jars


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of this test's own, and no ``mvn`` but what the test puts on PATH."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "cache"


def install_mvn(tmp_path: Path, script: str) -> None:
    """Put a program on PATH that does *script* for ``mvn``; ``$to`` is the folder where the jars should go."""
    mvn = tmp_path / "mvn"
    mvn.write_text(
        f"#!/bin/sh\nfor word; do case $word in -DoutputDirectory=*) to=${{word#*=}};; esac; done\n{script}\n"
    )
    mvn.chmod(0o755)


@pytest.mark.parametrize("coordinates", ["", "a:b", "a:b:c:d", "a::c"])
def test_malformed_coordinates(coordinates: str) -> None:
    """The message says what they look like."""
    with pytest.raises(ConfigError, match="accepted='group:artifact:version'"):
        maven_jar(coordinates)
    with pytest.raises(ConfigError, match="accepted='group:artifact:version:tar.gz:classifier'"):
        maven_archive(coordinates)


def test_without_maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="accepted='apt-get install maven'"):
        maven_jars("a:b:1")


def test_fetched_once(tmp_path: Path) -> None:
    """The second call finds the first one's jar, without Maven."""
    install_mvn(tmp_path, 'echo jar > "$to/b-1.jar"')
    jar = maven_jar("a:b:1")
    install_mvn(tmp_path, "exit 1")

    assert jar == maven_jar("a:b:1")
    assert "jar\n" == jar.read_text()


def test_failure_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    """What Maven said is in the message, and half a download is not taken for a whole one."""
    install_mvn(tmp_path, 'echo half > "$to/b-1.jar"; echo "no such artifact"; exit 1')
    with pytest.raises(ConfigError, match="could not be fetched.*no such artifact"):
        maven_jars("a:b:1", "a:c:1")

    assert [] == [path for path in cache.rglob("*") if path.is_file()]


def test_archive_is_unpacked(tmp_path: Path) -> None:
    """What is in it, not the file itself."""
    install_mvn(
        tmp_path,
        'mkdir -p "$to/inside" && echo one > "$to/inside/file" && tar -C "$to" -czf "$to/b-1-bin.tar.gz" inside '
        '&& rm -r "$to/inside"',
    )
    unpacked = maven_archive("a:b:1:tar.gz:bin")

    assert "one\n" == (unpacked / "file").read_text()
    assert ["inside"] == [path.name for path in unpacked.parent.iterdir()]
