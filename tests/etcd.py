"""An etcd server, from the operating system's package."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import urllib3

from commit_coord.local.server import LOOPBACK, LocalServer, NotInstalled, free_ports


class EtcdServer(LocalServer):
    """One etcd server with its JSON gateway."""

    name = "etcd"

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://{LOOPBACK}:{self.port}"

    def healthy(self) -> bool:
        """Whether it answers, and can write."""
        try:
            answer = urllib3.request("GET", f"{self.url}/health", timeout=2.0, retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return answer.status == 200 and answer.json() == {"health": "true"}

    def _prepare(self) -> None:
        if shutil.which("etcd") is None:
            raise NotInstalled("etcd is not installed: apt-get install etcd-server")

    def _command(self) -> Sequence[str]:
        (peers,) = free_ports(1)
        return [
            "etcd",
            f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls=http://{LOOPBACK}:{peers}",
            "--logger=zap",
            "--log-level=warn",
        ]
