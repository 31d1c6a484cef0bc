"""Whether a client takes what the server sends it."""

from __future__ import annotations

import asyncio
import socket
import struct

_LOOKS = 4
"""How often one looks within the time limit."""
_TCP_INFO = struct.Struct("=24xI92xQ16xI")
"""In Linux' ``struct tcp_info``: the packets in flight, the bytes that the peer has taken, and those not sent yet."""
_NO_LINGER = struct.pack("ii", 1, 0)


class Delivery:
    """Cuts a connection off whose client takes nothing of what was sent to it. For one event loop.

    A client that takes a little now and then is slow, and goes on. The kernel is asked what was taken: a transport
    knows what it keeps itself, but not what is in the buffers below it, and with TLS the next one is as long as the
    answer.

    Args:
        transport: The connection.
        limit_ms: How long the client may take nothing, at least; one more look passes until the cut.
    """

    def __init__(self, transport: asyncio.Transport, limit_ms: int) -> None:
        self._transport = transport
        self._every_s = limit_ms / 1000 / _LOOKS
        self._timer: asyncio.TimerHandle | None = None
        self._taken = self._looks_in_vain = 0

    def sent(self) -> None:
        """Note that something was sent: look from now on, until all of it is taken or :meth:`end` is called."""
        if self._timer is None:
            self._looks_in_vain = 0
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def end(self) -> None:
        """Look no more: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def is_complete(self) -> bool:
        """Whether the client has taken all that was sent, as far as this machine knows."""
        is_waiting, _ = self._measured()
        return not is_waiting

    def _look(self) -> None:
        self._timer = None
        is_waiting, taken = self._measured()
        is_progress, self._taken = taken != self._taken, taken
        self._looks_in_vain = self._looks_in_vain + 1 if is_waiting and not is_progress else 0
        if self._looks_in_vain > _LOOKS:
            self._cut()
        # Also if nothing waits: perhaps the kernel has just now become free for more.
        elif is_waiting or is_progress:
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def _cut(self) -> None:
        connection = self._transport.get_extra_info("socket")
        if connection is not None:  # else the kernel would keep its part
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def _measured(self) -> tuple[bool, int]:
        """Return whether something waits for the client, and a number that changes when it takes something."""
        kept = self._transport.get_write_buffer_size()
        connection = self._transport.get_extra_info("socket")
        if connection is None or not hasattr(socket, "TCP_INFO"):  # elsewhere than on Linux
            return kept > 0, -kept
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:  # it is being closed
            return False, self._taken
        in_flight, taken, unsent = _TCP_INFO.unpack(info)
        return kept + in_flight + unsent > 0, taken
