"""Many connections to one table: so many commits wait as the limit allows, in their order, and the others hear 429."""

from __future__ import annotations

import http.client
import json
import re
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from commit_coord.testing.contract import until
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Server, ids, path_of, served

TABLE = ("db", "t")


def _in_work(server: Server) -> int:
    """Return how many requests run or wait, without the one that asks."""
    text = server.ask("GET", "/metrics").body.decode()
    found = re.search(r"^commit_coord_rest_requests_in_work\S* (\S+)$", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1])) - 1


@pytest.mark.parametrize(
    "connections, limit", [(80, 40), pytest.param(500, 256, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_a_crowd_waits_in_order_up_to_the_limit_and_the_rest_gets_retry_after(
    connections: int, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__LOCK__ACQUIRE_TIMEOUT_MS", "600000")
    config = tmp_path / "serve.toml"
    # Several threads would ask for the latch at the same time.
    config.write_text(f"threads = 1\n[limits]\nmax-commits-per-table = {limit}\n", encoding="utf-8")
    with served("--config", str(config)) as server:
        client = server.client()
        client.create_namespace("db")
        table = client.create_table(TABLE, SCHEMA)
        appends = [Held.append(table, ids(number)) for number in range(limit)]
        last = appends[-1]
        address = urlsplit(server.url)
        waiting = []
        with server.library() as catalog, catalog.coordinator.latch(TABLE, statement="in the way"):
            for number in range(connections):
                append = appends[number] if number < limit else last
                connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
                connection.request("POST", path_of(*TABLE), json.dumps(append.document), BLIND)
                waiting.append(connection)
                if number < limit:
                    until(lambda: _in_work(server) == number + 1, "the request is there")  # noqa: B023 - called here
            refused = [connection.getresponse() for connection in waiting[limit:]]
            assert {429} == {answer.status for answer in refused}
            assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
            assert limit == _in_work(server)
        answers = Counter(connection.getresponse().status for connection in waiting[:limit])
        for connection in waiting:
            connection.close()
        assert {200: limit} == answers
        chain = [snapshot.snapshot_id for snapshot in client.load_table(TABLE).snapshots()]
        assert [append.snapshot_id for append in appends] == chain
