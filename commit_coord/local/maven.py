"""Jars and archives from Maven Central, through the ``mvn`` command, kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape  # it writes, and parses nothing # nosec B406

from commit_coord.errors import ConfigError

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_TIMEOUT_S = 600

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}
</dependencies></project>
"""

_DEPENDENCY = """\
<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""


def maven_jar(coordinates: str) -> Path:
    """Return the jar of *coordinates*, ``group:artifact:version``, alone; the first call fetches it.

    Raises:
        ConfigError: The coordinates are malformed, ``mvn`` is not installed, or the jar could not be fetched.
    """
    group, artifact, version = _parts(coordinates, "group:artifact:version")
    folder = _cached(f"{group}/{artifact}-{version}", lambda partial: _copy(coordinates, partial))
    return folder / f"{artifact}-{version}.jar"


def maven_jars(*coordinates: str) -> Sequence[Path]:
    """Return the jars of all *coordinates*, none of what they need in turn; the first call fetches them.

    Raises:
        ConfigError: As for :func:`maven_jar`.
    """
    parts = [_parts(each, "group:artifact:version") for each in coordinates]

    def fetch(partial: Path) -> None:
        pom = partial / "pom.xml"
        dependencies = "\n".join(_DEPENDENCY.format(*map(escape, each)) for each in parts)
        pom.write_text(_POM.format(dependencies=dependencies))
        _maven(", ".join(coordinates), f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={partial}", "-f", str(pom))

    key = hashlib.sha256(" ".join(coordinates).encode()).hexdigest()[:16]
    folder = _cached(f"jars/{key}", fetch)
    return [folder / f"{artifact}-{version}.jar" for _, artifact, version in parts]


def maven_class_path(pom: Path) -> Sequence[Path]:
    """Return the jars of the dependencies of *pom*, and of what they need in turn; the first call fetches them.

    Raises:
        ConfigError: As for :func:`maven_jar`.
    """

    def fetch(partial: Path) -> None:
        _maven(str(pom), f"{_PLUGIN}:copy-dependencies", f"-DoutputDirectory={partial}", "-f", str(pom))

    folder = _cached(f"class-path/{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}", fetch)
    return sorted(folder.glob("*.jar"))


def maven_archive(coordinates: str) -> Path:
    """Return the folder that the archive *coordinates*, ``group:artifact:version:tar.gz:classifier``, unpacks to.

    Raises:
        ConfigError: As for :func:`maven_jar`.
    """
    group, artifact, version, kind, classifier = _parts(coordinates, "group:artifact:version:tar.gz:classifier")

    def fetch(partial: Path) -> None:
        _copy(coordinates, partial)
        archive = partial / f"{artifact}-{version}-{classifier}.{kind}"
        # Python's own tarfile wants an argument that 3.11.3 and earlier do not know.
        subprocess.run(["tar", "--extract", "--gzip", "--file", archive, "--directory", partial], check=True)
        archive.unlink()

    [unpacked] = _cached(f"{group}/{artifact}-{version}-{classifier}", fetch).iterdir()
    return unpacked


def _parts(coordinates: str, accepted: str) -> list[str]:
    parts = coordinates.split(":")
    if len(parts) != accepted.count(":") + 1 or not all(parts):
        raise ConfigError("not Maven coordinates", coordinates=coordinates, accepted=accepted)
    return parts


def _cached(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the folder *name* of the cache; *fetch* fills it the first time, in a folder of another name.

    The final rename makes it appear whole or not at all, and of two processes that fetch the same, one wins.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "commit-coord" / "maven"
    folder = cache / name
    if folder.is_dir():
        return folder
    partial = folder.parent / f".partial-{folder.name}-{os.getpid()}"
    partial.mkdir(parents=True, exist_ok=True)
    try:
        fetch(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _copy(coordinates: str, folder: Path) -> None:
    # The goal `copy` resolves into the local repository and copies from there.
    options = (f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}", "-Dmdep.useBaseVersion=true")
    _maven(coordinates, f"{_PLUGIN}:copy", *options)


def _maven(coordinates: str, *arguments: str) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise ConfigError(
            "mvn is needed to fetch a jar and is not installed",
            coordinates=coordinates,
            accepted="apt-get install maven",
        )
    command = [mvn, "--batch-mode", "--quiet", *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ConfigError("Maven did not answer in time", coordinates=coordinates, seconds=_TIMEOUT_S) from error
    if ended.returncode:
        raise ConfigError(
            "a jar could not be fetched through Maven",
            coordinates=coordinates,
            output=(ended.stdout + ended.stderr)[-2000:].strip(),
        )
