"""One server for each module; its tables tell the tests apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.kit import Server, served

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with the namespace ``db``; it must end well, and leave no lock."""
    with served("--catalog", "second") as server:
        server.client().create_namespace("db")
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> RestCatalog:
    """PyIceberg's own client."""
    return server.client()


@pytest.fixture
def name() -> tuple[str, str]:
    """A name that no table has."""
    return ("db", f"t{next(_numbers)}")


@pytest.fixture
def named() -> Callable[[str], str]:
    """Returns names that nothing has."""
    return lambda stem: f"{stem}{next(_numbers)}"
