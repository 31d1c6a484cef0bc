"""Files of a transaction, written down as they are created so that a failure leaves none behind."""

from __future__ import annotations

import copy

from pyiceberg.io import FileIO, OutputFile

from commit_coord.coordinator import delete_quietly


def recording(io: FileIO, created: list[str]) -> FileIO:
    """Return *io* with the locations of new files written down in *created* before they exist.

    A copy of the object with one attribute in front: PyIceberg asks for the class of a FileIO to choose its readers.
    """
    recording = copy.copy(io)
    new_output = io.new_output

    def record(location: str) -> OutputFile:
        created.append(location)
        return new_output(location)

    recording.new_output = record  # type: ignore[method-assign]
    return recording


def delete_all(io: FileIO, created: list[str]) -> None:
    """Delete what was *created* and forget it: it is proven that nothing refers to it."""
    for path in created:
        delete_quietly(io, path)
    created.clear()
