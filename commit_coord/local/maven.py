"""Jars from Maven Central, through the ``mvn`` command, kept in the user's cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from commit_coord.errors import ConfigError

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_TIMEOUT_S = 600


def maven_jar(coordinates: str) -> Path:
    """Return the jar of *coordinates*, ``group:artifact:version``, alone; the first call fetches it.

    Raises:
        ConfigError: The coordinates are malformed, ``mvn`` is not installed, or the jar could not be fetched.
    """
    parts = coordinates.split(":")
    if len(parts) != 3 or not all(parts):
        raise ConfigError("not Maven coordinates", coordinates=coordinates, accepted="group:artifact:version")
    group, artifact, version = parts
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "commit-coord" / "maven"
    jar = cache / group / f"{artifact}-{version}.jar"
    if jar.is_file():
        return jar
    mvn = shutil.which("mvn")
    if mvn is None:
        raise ConfigError(
            "mvn is needed to fetch a jar and is not installed",
            coordinates=coordinates,
            accepted="apt-get install maven",
        )
    # Two steps: the goal `copy` resolves into the local repository and copies from there, but gives the file
    # its own name only; the final rename makes the cache entry appear whole or not at all.
    partial = jar.parent / f".partial-{os.getpid()}"
    command = [
        mvn,
        "--batch-mode",
        "--quiet",
        f"{_PLUGIN}:copy",
        f"-Dartifact={coordinates}",
        f"-DoutputDirectory={partial}",
        "-Dmdep.useBaseVersion=true",
    ]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        fetched = partial / jar.name
        if ended.returncode or not fetched.is_file():
            raise ConfigError(
                "a jar could not be fetched through Maven",
                coordinates=coordinates,
                output=(ended.stdout + ended.stderr)[-2000:].strip(),
            )
        fetched.replace(jar)
    except subprocess.TimeoutExpired as error:
        raise ConfigError("Maven did not answer in time", coordinates=coordinates, seconds=_TIMEOUT_S) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return jar
