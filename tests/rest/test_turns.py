"""Clients that are refused and come back, over HTTP: each needs one more try, however many there are."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import CommitTableResponse

from commit_coord.local.server import by_load
from tests.processes import until
from tests.rest.held import BLIND, Held
from tests.rest.kit import SCHEMA, Response, Server, ids, row_ids, served

Name = tuple[str, str]


class Counting(RestCatalog):
    """PyIceberg's client, which counts its commits."""

    tries = 0

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        """Count it."""
        self.tries += 1
        answer: CommitTableResponse = super().commit_table(*arguments)
        return answer


@pytest.fixture(scope="module")
def patient() -> Iterator[Server]:
    """A server that reserves a turn for as long as a client on a busy machine takes to come back."""
    with ExitStack() as ending:
        with pytest.MonkeyPatch.context() as patch:  # no longer than it starts: other servers of these tests are not so
            patch.setenv("PYICEBERG_CATALOG__SHOP__COMMIT__RESERVED_TURN_MS", "120000")
            server = ending.enter_context(served())
        server.client().create_namespace("db")
        yield server


def test_undeclared_appends_of_many_clients_need_two_tries_each(patient: Server, name: Name) -> None:
    patient.client().create_table(name, SCHEMA)
    clients, rounds = 8, 5
    start = threading.Barrier(clients)

    def work(number: int) -> list[int]:
        own, tries = Counting("rest", uri=patient.url), []
        start.wait()
        for turn in range(rounds):
            before = own.tries
            own.load_table(name).append(ids(number * 100 + turn))
            tries.append(own.tries - before)
        return tries

    with ThreadPoolExecutor(clients) as pool:
        tries = Counter(count for each in pool.map(work, range(clients)) for count in each)
    assert clients * rounds == len(row_ids(patient.client().load_table(name)))
    assert max(tries) <= 2, tries


def test_a_client_that_never_comes_back_stops_the_others_for_one_turn(
    server: Server, client: RestCatalog, name: Name
) -> None:
    table = client.create_table(name, SCHEMA)
    gone = Held.append(table, ids(1))
    table.append(ids(2))
    assert 409 == gone.send(server).status
    began = time.monotonic()
    assert 200 == Held.append(client.load_table(name), ids(3)).send(server, BLIND).status
    waited_s = time.monotonic() - began
    assert 1 < waited_s < by_load(10)
    assert [2, 3] == row_ids(client.load_table(name))


def test_who_comes_back_goes_before_who_came_meanwhile(patient: Server, name: Name) -> None:
    client = patient.client()
    table = client.create_table(name, SCHEMA)
    refused = Held.append(table, ids(1))
    table.append(ids(2))
    assert 409 == refused.send(patient).status
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(Held.append(table, ids(3)).send, patient, BLIND)
        until(lambda: patient.in_work() == 1, "the other commit has come")
        back = Held.append(client.load_table(name), ids(1))
        back.snapshot["snapshot-id"] = back.document["updates"][1]["snapshot-id"] = refused.snapshot_id
        assert 200 == back.send(patient).status
        assert 200 == other.result().status
    found = client.load_table(name)
    order = [snapshot.snapshot_id for snapshot in found.snapshots()]
    assert refused.snapshot_id == order[1]
    assert 3 == len(order)


def test_a_transaction_that_comes_back_goes_first_in_all_its_tables(patient: Server, name: Name) -> None:
    client = patient.client()
    tables = [client.create_table((name[0], f"{name[1]}{part}"), SCHEMA) for part in "ab"]
    refused = [Held.append(table, ids(1)) for table in tables]
    tables[0].append(ids(2))
    assert 409 == _send_all(patient, refused).status
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(Held.append(tables[1], ids(3)).send, patient, BLIND)
        until(lambda: patient.in_work() == 1, "the other commit has come")
        again = [Held.append(client.load_table(table.name()), ids(1)) for table in tables]
        for before, now in zip(refused, again, strict=True):
            now.snapshot["snapshot-id"] = now.document["updates"][1]["snapshot-id"] = before.snapshot_id
        assert 204 == _send_all(patient, again).status
        assert 200 == other.result().status
    first = client.load_table(tables[1].name()).snapshots()[0]
    assert refused[1].snapshot_id == first.snapshot_id
    assert [[1, 2], [1, 3]] == [row_ids(client.load_table(table.name())) for table in tables]


def _send_all(server: Server, parts: list[Held]) -> Response:
    changes = [{"identifier": {"namespace": [part.table[0]], "name": part.table[1]}, **part.document} for part in parts]
    return server.ask("POST", "/v1/shop/transactions/commit", {"table-changes": changes})


@pytest.mark.parametrize("headers", [{}, BLIND])
def test_commits_to_other_tables_do_not_wait(
    server: Server, client: RestCatalog, name: Name, headers: dict[str, str]
) -> None:
    table, other = client.create_table(name, SCHEMA), client.create_table((name[0], f"{name[1]}o"), SCHEMA)
    gone = Held.append(table, ids(1))
    table.append(ids(2))
    assert 409 == gone.send(server).status
    held, began = Held.append(other, ids(1)), time.monotonic()
    assert 200 == held.send(server, headers).status
    assert time.monotonic() - began < by_load(1.5)


def test_who_comes_back_is_taken_although_the_line_of_its_table_is_full(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("[limits]\nmax-commits-per-table = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_CATALOG__SHOP__COMMIT__RESERVED_TURN_MS", "120000")
        with served("--config", str(tmp_path / "serve.toml")) as server, ThreadPoolExecutor(1) as pool:
            client = server.client()
            client.create_namespace("db")
            table = client.create_table(("db", "t"), SCHEMA)
            refused = Held.append(table, ids(1))
            table.append(ids(2))
            assert 409 == refused.send(server).status
            other = pool.submit(Held.append(table, ids(3)).send, server, BLIND)
            until(lambda: server.in_work() == 1, "the other commit has come")
            until(lambda: Held.append(table, ids(4)).send(server, BLIND).status == 429, "a full line")
            back = Held.append(client.load_table(("db", "t")), ids(1))
            back.snapshot["snapshot-id"] = back.document["updates"][1]["snapshot-id"] = refused.snapshot_id
            assert 200 == back.send(server).status
            assert 200 == other.result().status
