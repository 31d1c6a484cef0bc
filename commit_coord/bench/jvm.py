"""Workers of the bench that run in Java, on Iceberg's own code: ``java/*.java``, compiled here, run by any Java."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from commit_coord.local.java import LOG4J, compile_java, find_java, pyspark_jars

_JAVA = range(17, 23)
"""Hadoop asks the JVM's security manager who it is, and there is none since Java 23."""

_SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))


LARGE = ("-Xmx4g", "-XX:TieredStopAtLevel=4")
"""Options of a worker that has much to do: more memory, and both compilers."""


def java_worker(folder: Path, runtime: Path) -> tuple[str, ...]:
    """Return the command of a worker on *runtime*, the Iceberg JVM runtime; its classes go into *folder*.

    Raises:
        NotInstalled: Java or PySpark is missing.
        ServerFailed: It was not compiled.
    """
    folder.mkdir(parents=True)
    java = find_java(_JAVA)
    class_path = os.pathsep.join(map(str, [runtime, *pyspark_jars("*.jar")]))
    compile_java(java, _SOURCES, class_path, folder)
    (folder / "log4j2.properties").write_text(LOG4J.replace("=warn", "=error"))
    return (
        # Without the second compiler: a worker ends before that has paid, and sixteen of them have two processors.
        *(str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
        f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}",
        *("-cp", f"{folder}{os.pathsep}{class_path}", "Worker"),
    )


def with_options(command: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """Return the *command* of a worker with further *options* of Java, which prevail over those that it has."""
    return (*command[:-1], *options, command[-1])
