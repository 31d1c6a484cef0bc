"""On what was measured: processor, memory, kernel, versions. No host name, no path, no user."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sqlite3
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("commit-coord", "pyiceberg", "pyarrow", "fastavro", "sqlalchemy", "pyspark")


def describe() -> dict[str, str | int | float]:
    """Return what a reader needs to judge the figures."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory GiB": _memory_gib(),
        "kernel": f"{platform.system()} {platform.release()}",
        "load before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: _version(name) for name in _PACKAGES},
        "java": _java(),
    }


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process and its children have used so far.

    Source: proc(5), ``utime`` and ``stime``.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]
    return own + sum(cpu_s(int(child)) for child in children)


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # Run from a checkout that is on the path and not installed, or an extra that is not needed here.
        return "not installed" if package != "commit-coord" else "checkout"


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        return "not installed"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', output)
    return found[1] if found else "unknown"
