"""Compresses with gzip what consists mostly of parts that were compressed before.

The history of a table is nearly all of its metadata, and a commit adds one entry to it. To compress all of it anew for
each commit would take several milliseconds. What is compressed without a look at the text before it may come behind
any text, so each long part is compressed for itself and kept, and the parts are put together to one member.

Source: RFC 1951, "Compressed block format"; RFC 1952, "Member format"; zlib's manual, ``Z_FULL_FLUSH``.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence

_LEVEL = 1
"""The next level saves a tenth of the bytes and takes twice the time."""
_LONG = 4096
"""Bytes of a part that is kept. Shorter ones are compressed together, since each part adds some bytes of its own."""
_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
"""A member without a name and a time, compressed fast, of no particular system."""


class Compressor:
    """Compresses, and keeps the compressed parts that were used last. Thread safe.

    Args:
        max_bytes: The size of what is kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: OrderedDict[bytes, bytes] = OrderedDict()
        """By the text of the part. The parts of a history stay the same objects, whose hash is known."""
        self._lock = threading.Lock()

    def gzip(self, text: bytes, history: Sequence[bytes] = ()) -> bytes:
        """Return *text* and what follows it in the format gzip.

        Args:
            text: It is new, so it is not kept.
            history: Parts that come again in later texts.
        """
        pieces, short = [_HEAD], [text]
        checksum, length = zlib.crc32(text), len(text)
        for part in history:
            checksum, length = zlib.crc32(part, checksum), length + len(part)
            if len(part) < _LONG:
                short.append(part)
                continue
            pieces.append(_deflated(short, zlib.Z_FULL_FLUSH))
            pieces.append(self._deflated(part))
            short = []
        pieces.append(_deflated(short, zlib.Z_FINISH))
        pieces.append(struct.pack("<LL", checksum, length & 0xFFFFFFFF))
        return b"".join(pieces)

    def _deflated(self, part: bytes) -> bytes:
        with self._lock:
            if (kept := self._kept.get(part)) is not None:
                self._kept.move_to_end(part)
                return kept
        made = _deflated([part], zlib.Z_FULL_FLUSH)
        with self._lock:
            if part not in self._kept:
                self._kept[part] = made
                self._bytes += len(part) + len(made)
            while self._bytes > self._max_bytes:
                oldest, its = self._kept.popitem(last=False)
                self._bytes -= len(oldest) + len(its)
        return made


def _deflated(parts: Sequence[bytes], end: int) -> bytes:
    """Return *parts*, compressed together without a look at what is before them; *end* is zlib's way to end it."""
    if not parts and end != zlib.Z_FINISH:
        return b""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"".join([*map(deflate.compress, parts), deflate.flush(end)])
