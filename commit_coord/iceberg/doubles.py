"""Doubles in manifests are read with all their digits.

PyIceberg's compiled Avro decoder reads a double through a C float: 0.1 becomes 0.10000000149. Doubles are in manifests
only as values of partitions. A filter then finds no row in such a partition; and a commit that writes the entries of a
manifest anew would store the wrong value for good.
"""

from __future__ import annotations

import struct
from functools import cache

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.reader import DoubleReader

_DOUBLE = struct.Struct("<d")


@cache
def read_whole_doubles() -> None:
    """Have PyIceberg read doubles with 64 bits, in this process."""

    def read(self: DoubleReader, decoder: BinaryDecoder) -> float:
        value: float = _DOUBLE.unpack(decoder.read(_DOUBLE.size))[0]
        return value

    DoubleReader.read = read  # type: ignore[method-assign]
