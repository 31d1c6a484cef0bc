"""Times and sizes as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(ms: int) -> str:
    """Return milliseconds since the epoch as a time of day in UTC that sorts."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def duration(ms: float) -> str:
    """Return a length of time in one or two units: ``350 ms``, ``4.2 s``, ``3 min 5 s``, ``2 h 10 min``."""
    if ms < 1000:
        return f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    """Return a number of bytes: ``512 bytes``, ``4.2 KiB``, ``1.3 GiB``."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
