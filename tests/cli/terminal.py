"""A real terminal, as large as a test wants it: tmux runs a command in it, and returns the text on its screen."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from commit_coord.testing.contract import PATIENCE
from commit_coord.testing.fleet import holds_within
from commit_coord.testing.servers import untested

needs_terminal = pytest.mark.skipif(
    shutil.which("tmux") is None,
    reason=untested("the command line in a terminal", "tmux is not installed: bash .ci/setup.sh tmux"),
)

GOLDEN = Path(__file__).parent / "golden"
"""Screens as they are expected."""


def assert_golden(name: str, screen: Sequence[str]) -> None:
    """Compare *screen* with the file *name*; ``GOLDEN=write`` in the environment writes the file."""
    file = GOLDEN / f"{name}.txt"
    text = "\n".join(screen) + "\n"
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text)
    assert file.read_text() == text


class Terminal:
    """Runs a command in a terminal, and keeps the screen when the command has ended.

    Args:
        command: The command. Its exit code is the last line of the screen: ``ended: 0``.
        columns: How wide.
        lines: How high.
        environment: For the command, besides that of the test.
    """

    def __init__(
        self, command: Sequence[str], *, columns: int, lines: int = 24, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tty"))
        drop = {"TMUX", "TMUX_PANE", "COLUMNS", "LINES", "NO_COLOR"}
        self._environment = {key: value for key, value in os.environ.items() if key not in drop}
        self._environment |= {"TMUX_TMPDIR": str(self._folder), "HOME": str(self._folder)}
        self._environment |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        self._environment |= environment or {}
        shell = f"trap : INT; {shlex.join(command)}; echo ended: $?; exec cat"  # the shell outlives Ctrl-C
        size = ("-x", str(columns), "-y", str(lines))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "sh", "-c", shell)
        self._tmux("set-option", "-g", "status", "off")
        self.resize(columns, lines)  # the status line took one

    def screen(self) -> list[str]:
        """Return the lines of the screen, without the blanks at their ends and the empty lines below."""
        return [line.rstrip() for line in self._tmux("capture-pane", "-p").rstrip().split("\n")]

    def shows(self, condition: Callable[[str], object]) -> list[str]:
        """Return the screen as soon as *condition* holds of its text."""
        seen: list[str] = []

        def holds() -> bool:
            seen[:] = self.screen()
            return bool(condition("\n".join(seen)))

        assert holds_within(holds, PATIENCE, every_s=0.05), "\n".join(seen)
        return seen

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal narrower, wider, lower or higher."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def press(self, *keys: str) -> None:
        """Press keys, by their names in tmux: ``C-c``, ``Enter``, or a text."""
        # A semicolon at the end of an argument would separate two commands of tmux.
        self._tmux("send-keys", *(f"{key[:-1]}\\;" if key.endswith(";") else key for key in keys))

    def __enter__(self) -> Self:
        """Return the terminal itself."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it, and end what runs in it."""
        self._tmux("kill-server")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-u", *arguments], env=self._environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
