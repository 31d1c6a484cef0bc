"""Stores the files of offers next to the files of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlparse

from pyiceberg.io import FileIO
from pyiceberg.utils.concurrent import ExecutorFactory

from commit_coord.errors import MetastoreUnavailable

Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function with each of several values, and returns the results in their order."""


class Compares(Protocol):
    """Knows whether the metastore heeds the condition of a swap."""

    def compare_and_set(self) -> bool:
        """See :meth:`~commit_coord.catalog.metastore.servers.Servers.compare_and_set`."""
        ...


class StoredOffers:
    """See :class:`~commit_coord.locks.hms.offers.OfferFiles`.

    Args:
        file_io: Returns the file store for a location.
        servers: What the metastore's servers can do.
        each: Asks a store for several files; by default at the same time, unless they are on this machine.
    """

    def __init__(self, file_io: Callable[[str], FileIO], servers: Compares, each: Each | None = None) -> None:
        self._file_io, self._servers, self._each = file_io, servers, each or _at_once

    @property
    def allowed(self) -> bool:
        """See :attr:`OfferFiles.allowed`."""
        try:
            return self._servers.compare_and_set()
        except MetastoreUnavailable:
            return False

    def read(self, locations: Sequence[str]) -> Sequence[bytes | Exception | None]:
        """See :meth:`OfferFiles.read`."""
        return list(self._each(self._read, locations))

    def write(self, files: Mapping[str, bytes]) -> None:
        """See :meth:`OfferFiles.write`."""
        list(self._each(lambda location: self._write(location, files[location]), list(files)))

    def delete(self, locations: Sequence[str]) -> None:
        """See :meth:`OfferFiles.delete`."""
        list(self._each(self._delete, locations))

    def _read(self, location: str) -> bytes | Exception | None:
        try:
            if (path := _path(location)) is not None:
                # A waiter looks for files a hundred times a second: PyArrow needs 170 µs to say that there is none.
                with open(path, "rb") as file:
                    return file.read()
            with self._file_io(location).new_input(location).open() as stream:
                return stream.read()
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - whatever a file store raises
            return error

    def _write(self, location: str, data: bytes) -> None:
        with self._file_io(location).new_output(location).create(overwrite=True) as stream:
            stream.write(data)

    def _delete(self, location: str) -> None:
        with suppress(FileNotFoundError):
            self._file_io(location).delete(location)


def _at_once(function: Callable[[Any], Any], values: Sequence[Any]) -> Iterable[Any]:
    if len(values) < 2 or _path(values[0]) is not None:
        return map(function, values)
    return ExecutorFactory.get_or_create().map(function, values)


def _path(location: str) -> str | None:
    """Return the path of a file on this machine; None if it is elsewhere, or if file stores disagree where."""
    uri = urlparse(location)
    if uri.query or uri.fragment:
        return None  # PyArrow cuts these off, fsspec takes them for a part of the name.
    if not uri.scheme:
        return location
    return uri.path if uri.scheme == "file" else None
