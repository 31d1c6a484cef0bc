"""The files of offers, in the stores of the tables' files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol
from urllib.parse import urlparse

from pyiceberg.io import FileIO

from commit_coord.errors import MetastoreUnavailable


class Compares(Protocol):
    """Knows what becomes of the condition of a swap."""

    def compare_and_set(self) -> bool:
        """See :meth:`~commit_coord.catalog.metastore.servers.Servers.compare_and_set`."""
        ...


class StoredOffers:
    """See :class:`~commit_coord.locks.hms.offers.OfferFiles`.

    Args:
        file_io: Returns the file store for a location.
        servers: What the metastore's servers can do.
    """

    def __init__(self, file_io: Callable[[str], FileIO], servers: Compares) -> None:
        self._file_io, self._servers = file_io, servers

    @property
    def allowed(self) -> bool:
        """See :attr:`OfferFiles.allowed`."""
        try:
            return self._servers.compare_and_set()
        except MetastoreUnavailable:
            return False

    def read(self, location: str) -> bytes | None:
        """See :meth:`OfferFiles.read`."""
        uri = urlparse(location)
        try:
            if uri.scheme in ("", "file"):
                # A waiter looks for a file a hundred times a second: PyArrow needs 170 µs to say that there is none.
                with open(uri.path, "rb") as file:
                    return file.read()
            with self._file_io(location).new_input(location).open() as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def write(self, location: str, data: bytes) -> None:
        """See :meth:`OfferFiles.write`."""
        with self._file_io(location).new_output(location).create(overwrite=True) as stream:
            stream.write(data)

    def delete(self, location: str) -> None:
        """See :meth:`OfferFiles.delete`."""
        with suppress(FileNotFoundError):
            self._file_io(location).delete(location)
