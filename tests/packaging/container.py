"""A fresh container, in which a stranger walks through the documents: bare Debian, and what the README says one needs.

Any image of Debian 12 or later does: ``debian:bookworm-slim``, or where no image registry is reached, what
``bash docker/base.sh commit-coord-base`` makes of Debian's packages. The container reaches Debian, the Python Package
Index and Maven Central as any container of this machine does, and is removed at the end.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEEDED = "apt-get install --no-install-recommends python3 python3-venv default-jre-headless"
"""Python 3.11 or later and, for PySpark, Java 17 or later."""

_CLONE = "/opt/clone"
_TIMES = "/opt/times.json"


class Container:
    """A container that runs.

    Args:
        name: What Docker calls it.
        image: What it was made of.
    """

    def __init__(self, name: str, image: str) -> None:
        self._name = name
        self._image = image

    def _runs(self, command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        typed = ["docker", "exec", "--interactive", self._name, "bash", "-c", command]
        return subprocess.run(typed, check=True, **{"stdin": subprocess.DEVNULL, **options})

    def described(self) -> str:
        """Return what it is, in a sentence's words."""
        release = self._runs(". /etc/os-release; echo $PRETTY_NAME", capture_output=True).stdout.decode().strip()
        return f"a fresh container of `{self._image}` ({release}); the first block below installs what it lacks"

    def install(self) -> float:
        """Install what is needed, and return how many seconds that took."""
        began = time.monotonic()
        self._runs(f"apt-get -qq update && DEBIAN_FRONTEND=noninteractive {NEEDED} -qq --yes >/dev/null")
        return time.monotonic() - began

    def walk(self, sdist: Path, documents: Sequence[str]) -> Mapping[str, Any]:
        """Walk through *documents*, or all, in the sources of *sdist*, and return the times that the walk wrote.

        Raises:
            CalledProcessError: A block failed.
        """
        with sdist.open("rb") as archive:
            self._runs(f"mkdir {_CLONE} && tar -xz -C {_CLONE} --strip-components 1", stdin=archive)
        self._runs(f"cd {_CLONE} && exec python3 -m tests.packaging.walk --here {_TIMES} {' '.join(documents)}")
        times: Mapping[str, Any] = json.loads(self._runs(f"cat {_TIMES}", capture_output=True).stdout)
        return times


@contextmanager
def fresh(image: str) -> Iterator[Container]:
    """Yield a new container of *image*."""
    # Its first process waits for all that others leave behind; nothing that ended stays.
    command = ["docker", "run", "--detach", "--rm", image, "bash", "-c", "sleep infinity & wait"]
    name = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    try:
        yield Container(name, image)
    finally:
        subprocess.run(["docker", "kill", name], check=False, stdout=subprocess.DEVNULL)
