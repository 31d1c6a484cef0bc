"""What the kernel was told about a connection."""

from __future__ import annotations

import socket


def silence_ms(handle: int) -> int:
    """Return how long the other end may be silent until the kernel calls it gone, 0 when it is never asked."""
    with socket.fromfd(handle, socket.AF_INET, socket.SOCK_STREAM) as found:
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return 0
        idle, interval, count = (
            found.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        return (idle + interval * count) * 1000
