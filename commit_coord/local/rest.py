"""``commit-coord serve`` on a loopback port, for a catalog that is given by its properties."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from commit_coord.local.server import LOOPBACK, LocalServer


class RestServer(LocalServer):
    """A REST server in front of one catalog.

    Args:
        catalog: The name of the catalog; clients give it as ``warehouse``.
        properties: Of the catalog.
        folder: See :class:`LocalServer`.
        port: See :class:`LocalServer`.
        options: Further options of ``commit-coord serve``.
    """

    _start_timeout_s: ClassVar[float] = 30

    def __init__(
        self,
        catalog: str,
        properties: Mapping[str, str],
        folder: Path | None = None,
        port: int | None = None,
        *,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(folder, port)
        self.name = f"commit-coord serve --catalog {catalog}"
        self._catalog = catalog
        self._properties = dict(properties)
        self._options = options

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://{LOOPBACK}:{self.port}"

    def healthy(self) -> bool:
        """Whether it can reach its catalog and the lock service."""
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=10):  # noqa: S310 # nosec B310 - our own server
                return True
        except OSError:
            return False

    def _prepare(self) -> None:
        configuration = self.folder / ".pyiceberg.yaml"
        configuration.touch(mode=0o600)  # a URI may have a password in it
        lines = (f"    {key}: {value}\n" for key, value in self._properties.items())
        configuration.write_text(f"catalog:\n  {self._catalog}:\n{''.join(lines)}")

    def _command(self) -> Sequence[str]:
        return [
            *("env", f"PYICEBERG_HOME={self.folder}"),
            *(sys.executable, "-m", "commit_coord.cli", "serve", "--catalog", self._catalog),
            *("--host", LOOPBACK, "--port", str(self.port), *self._options),
        ]
