"""Prints how much processor time commands take here: ``python -m tests.proof.figures``.

A command is run several times; the least counts, because the machine may do something else, too. Nothing is compared
with a limit: `make figures` prints today's figures for people who read them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import commit_coord

_TRIES = 5


def cpu_s(command: Sequence[str]) -> float:
    """Return how many seconds of processor time *command* and its children take.

    Raises:
        CalledProcessError: It fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "commit_coord.cli", *command], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.proof.figures")
    parser.add_argument("--tries", type=int, default=_TRIES, help="how often each command runs (default: %(default)s)")
    tries = parser.parse_args(argv).tries
    with tempfile.TemporaryDirectory() as folder:
        uri = f"coord+sqlite:///{folder}/catalog.db"
        commit_coord.load_catalog("shop", uri=uri, warehouse=folder).close()
        for command in (["--help"], ["locks", "--help"], ["locks", "--catalog", "shop", "--uri", uri]):
            shown = " ".join(word for word in command if word != uri)
            least = min(cpu_s(command) for _ in range(tries))
            print(f"commit-coord {shown}: {least:.2f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
