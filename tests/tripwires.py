"""Classes that nobody may import, and hosts that nobody may connect to."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from commit_coord.iceberg.storage import CLASSES

_numbers = itertools.count(1)

HOSTS = ("s3.endpoint", "s3.proxy-uri", "s3.signer.uri", "gcs.service.host", "adls.blob-storage-authority", "hdfs.host")
"""Properties that name hosts; a file store sends requests there, and the secrets of the catalog with them."""


@dataclass(frozen=True, slots=True)
class Tripwire:
    """A module that can be imported, and says so; and an address that says whether somebody connects to it."""

    module: str
    listener: socket.socket

    @property
    def properties(self) -> dict[str, str]:
        """Properties of a table that name the class or the address."""
        address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        return {**dict.fromkeys(CLASSES, f"{self.module}.Trap"), **dict.fromkeys(HOSTS, address)}

    def check(self) -> None:
        """Assert that nobody has imported the module or connected to the address."""
        assert self.module not in sys.modules, "a class that a table names was imported"
        self.listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            self.listener.accept()


@contextmanager
def tripwire(folder: Path, patched: pytest.MonkeyPatch) -> Iterator[Tripwire]:
    """Yield a tripwire, and check it at the end."""
    module = f"tripwire_{next(_numbers)}"
    (folder / f"{module}.py").write_text("class Trap:\n    def __init__(self, *given): pass\n")
    patched.syspath_prepend(str(folder))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Tripwire(module, listener)
        yield made
        made.check()
