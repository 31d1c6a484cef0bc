"""A server in this process, and another client of its catalog that takes locks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.rest import Serving
from commit_coord.rest.settings import Authentication, Ui
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, ids


@pytest.fixture
def audit_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The audit log of the catalog ``shop``, which is configured."""
    configure(monkeypatch, tmp_path, "shop")
    path = tmp_path / "audit.jsonl"
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__COMMIT_COORD__AUDIT_LOG", str(path))
    return path


@pytest.fixture
def shop(audit_log: Path) -> Iterator[CoordinatedCatalog]:
    """A client of the catalog, with the table ``db.orders``, which has two commits."""
    catalog = commit_coord.load_catalog("shop")
    try:
        catalog.create_namespace("db")
        table = catalog.create_table("db.orders", SCHEMA)
        table.append(ids(1, 2))
        table.append(ids(3))
        yield catalog
    finally:
        catalog.close()


@pytest.fixture
def server(shop: CoordinatedCatalog) -> Iterator[InProcess]:
    """A server without authentication, on whose page everybody may change everything."""
    with InProcess(Serving(catalogs=("shop",), threads=2, ui=Ui(read_only=False))) as server:
        yield server


@pytest.fixture
def guarded(shop: CoordinatedCatalog, tmp_path: Path) -> Iterator[InProcess]:
    """A server with an administrator, and a reader of the namespace ``db``. Their tokens are their names."""
    grants = {
        "ann": '{ shop = "administer" }',
        "bob": '{ "shop/db" = "read" }',
        "eve": "{ }",
        "most": '{ shop = "administer", "shop/secret" = "none" }',
    }
    (tmp_path / "clients.toml").write_text(
        "".join(
            f'[{name}]\ntoken-sha256 = "{hashlib.sha256(name.encode()).hexdigest()}"\ngrants = {granted}\n'
            for name, granted in grants.items()
        )
    )
    authentication = Authentication(clients=tmp_path / "clients.toml")
    with InProcess(Serving(catalogs=("shop",), threads=2, authentication=authentication)) as server:
        yield server
