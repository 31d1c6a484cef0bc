"""The REST server as a local server: it answers, is stopped, started again, and killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from commit_coord.local import RestServer, ServerFailed


def test_it_serves_its_catalog_again_after_it_was_killed(tmp_path: Path) -> None:
    properties = {"uri": f"coord+sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with RestServer("shop", properties, tmp_path / "server") as server:
        RestCatalog("client", uri=server.url, warehouse="shop").create_namespace("sales")
        assert server.healthy()
        server.kill()
        assert not server.healthy()
        server.start()
        assert [("sales",)] == RestCatalog("client", uri=server.url, warehouse="shop").list_namespaces()
    assert not server.running


def test_what_keeps_it_from_starting_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="commit-coord serve --catalog shop ended with code"):
        RestServer("shop", {"uri": "nothing://"}, tmp_path).start()
