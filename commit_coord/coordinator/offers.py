"""Attempts as offers in a lock service, so that the holder of the latch can publish them."""

from __future__ import annotations

from collections.abc import Callable

import orjson
from pyiceberg.io import FileIO

from commit_coord.iceberg.attempt import Attempt

MAX = 64 * 1024
"""Maximum bytes of an attempt in a lock service; the offer of a larger attempt only names a file with it."""

_IN_FILE = b'{"file":'
"""Prefix of an offer that only names the file of its attempt."""


def file_of(attempt: Attempt) -> str:
    """Return the location of the file for an attempt that is too large for a lock service."""
    return f"{folder_of(attempt)}/{attempt.request_id}.attempt.json"


def folder_of(attempt: Attempt) -> str:
    """Return the folder of the metadata that *attempt* was planned on; "" if it creates the table."""
    return (attempt.base_location or "").rpartition("/")[0]


def in_file(data: bytes, location: str, io: FileIO) -> str:
    """Write the attempt *data* at *location*, and return the offer that names it."""
    with io.new_output(location).create(overwrite=True) as output:
        output.write(data)
    return (_IN_FILE + orjson.dumps([location, len(data)]) + b"}").decode()


def read(text: str, room: int, file_io: Callable[[str], FileIO]) -> tuple[Attempt, int] | None:
    """Return the offered attempt and its size in bytes; None if the size is more than *room*.

    Raises:
        Exception: It can't be read.
    """
    data = text.encode()
    location, size = orjson.loads(data)["file"] if data.startswith(_IN_FILE) else (None, len(data))
    if size > room:
        return None
    if location is not None:
        with file_io(location).new_input(location).open() as stream:
            data = stream.read()
    return Attempt.from_json(data), size
