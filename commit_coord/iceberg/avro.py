"""Avro object container files, taken apart and put together block by block.

Source: Avro specification, "Object Container Files".
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


def _deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)  # raw, as Avro has it
    return compressor.compress(data) + compressor.flush()


CODECS: dict[bytes, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    b"null": (bytes, bytes),
    b"deflate": (_deflate, lambda data: zlib.decompress(data, wbits=-15)),
}
"""Compress and decompress; lists with another codec are decoded and written anew."""

MAGIC = b"Obj\x01"


class Block(NamedTuple):
    """A block of an Avro file: where it begins, its records, where and how long its payload is."""

    begin: int
    records: int
    payload: int
    size: int

    @property
    def end(self) -> int:
        """The end of the block, after its sync marker."""
        return self.payload + self.size + 16


def header(data: bytes) -> tuple[dict[str, bytes], int]:
    """Return the metadata of the file *data* and where its first block begins.

    Raises:
        ValueError: It is no Avro file, or it ends inside its header.
    """
    if not data.startswith(MAGIC):
        raise ValueError("not an Avro file")
    try:
        return _header(data)
    except IndexError:
        raise ValueError("the Avro file is truncated: it ends inside its header") from None


def _header(data: bytes) -> tuple[dict[str, bytes], int]:
    meta: dict[str, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = _read_long(data, at)
        if count == 0:
            return meta, at + 16
        if count < 0:  # a negative count is followed by the size of the pairs
            count, (_, at) = -count, _read_long(data, at)
        for _ in range(count):
            size, at = _read_long(data, at)
            key, at = data[at : at + size].decode(), at + size
            size, at = _read_long(data, at)
            meta[key], at = data[at : at + size], at + size


def blocks(data: bytes, at: int) -> Iterator[Block]:
    """Yield the blocks of the file *data*, whose first begins at *at*; nothing is decoded.

    Raises:
        ValueError: The file is truncated. PyIceberg's decoder would read whatever the memory holds behind the end.
    """
    while at < len(data):
        count, payload = _read_long(data, at)
        size, payload = _read_long(data, payload)
        found = Block(at, count, payload, size)
        yield found
        at = found.end
    if at > len(data):
        raise ValueError(f"the Avro file is truncated: it has {len(data)} bytes, and its last block ends after {at}")


def without_empty_blocks(data: bytes) -> bytes:
    """Return the file *data* without blocks of no records: PyIceberg's reader takes the first one for the end."""
    _, start = header(data)
    found = list(blocks(data, start))
    if all(block.records for block in found):
        return data
    return data[:start] + b"".join(data[block.begin : block.end] for block in found if block.records)


def hidden(data: bytes) -> int:
    """Return how many records of the file *data* follow an empty block, where PyIceberg does not see them."""
    found = [block.records for block in blocks(data, header(data)[1])]
    return sum(found[found.index(0) :]) if 0 in found else 0


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at *at* and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _long(len(data)) + data


def put_together(meta: Mapping[str, bytes], sync: bytes, body: bytes) -> bytes:
    """Return a file with *meta* as its metadata and *body*, blocks that end in *sync*."""
    pairs = b"".join(_sized(key.encode()) + _sized(value) for key, value in meta.items())
    return MAGIC + _long(len(meta)) + pairs + _long(0) + sync + body


def block(count: int, payload: bytes, sync: bytes) -> bytes:
    """Return a block of *count* records, encoded one behind the other and compressed as *payload*."""
    return _long(count) + _sized(payload) + sync
