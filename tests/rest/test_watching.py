"""What can be seen of a server: health, readiness, metrics, the access log, spans; and its limits."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client import REGISTRY

from commit_coord.errors import LockServiceUnavailable
from commit_coord.events import CommitEnded, Event
from commit_coord.model import CommitStatus, Resource
from commit_coord.rest import Serving
from commit_coord.rest.settings import Authentication, Limits
from commit_coord.rest.watching import Readiness
from commit_coord.testing.fleet import holds_within
from tests.limits import PATIENCE
from tests.rest.asgi import InProcess, configure
from tests.rest.kit import SCHEMA, Server, ids, path_of, served
from tests.rest.lost_replies import new_key
from tests.ui.kit import page

_SET = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    """Where the access log is."""
    return tmp_path / "access.jsonl"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: Path) -> Iterator[InProcess]:
    """A server with the namespace ``db`` and the table ``t``."""
    configure(monkeypatch, tmp_path, "shop")
    serving = Serving(catalogs=("shop",), threads=4, access_log=str(logged), limits=Limits(max_commits_per_table=2))
    with InProcess(serving) as server:
        assert 200 == server.ask("POST", "/v1/shop/namespaces", {"namespace": ["db"]}).status
        schema = json.loads(SCHEMA.model_dump_json())
        assert 200 == server.ask("POST", "/v1/shop/namespaces/db/tables", {"name": "t", "schema": schema}).status
        yield server


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an access log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- the access log ------------------------------------------------------------------------------------------


def test_each_request_is_a_line_of_the_access_log(server: InProcess, logged: Path) -> None:
    answer = server.ask("GET", path_of("db", "t"), headers={"x-request-id": "mine-1"})
    line = lines(logged)[-1]
    assert answer.headers["x-request-id"] == line["request_id"] == "mine-1"
    assert ("GET", "/v1/{prefix}/namespaces/{namespace}/tables/{table}") == (line["method"], line["route"])
    assert ("shop", "db.t", 200, len(answer.body)) == (line["catalog"], line["table"], line["status"], line["bytes"])
    assert 0 <= line["wait_ms"] <= line["duration_ms"]
    assert "127.0.0.1" == line["address"]


def test_a_request_id_that_could_break_a_log_is_replaced(server: InProcess) -> None:
    answer = server.ask("GET", "/v1/config", headers={"x-request-id": 'a"b c'})
    assert re.fullmatch(r"[0-9a-f-]{36}", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    "odd", ["%0A", "%0D%0A", "%1B%5B2J", "%C2%85", "%C2%9B31m", "%E2%80%A8", "%E2%80%AEgnp", "%FF"]
)
def test_a_line_of_the_access_log_has_printable_letters_alone(server: InProcess, logged: Path, odd: str) -> None:
    """Whatever a client names."""
    server.ask("GET", path_of("db", "t"))
    server.ask("GET", f"/v1/shop/namespaces/d{odd}b/tables/t{odd}t")
    text = logged.read_bytes().decode()
    assert all(map(str.isprintable, text.removesuffix("\n").split("\n"))), ascii(text)


def test_requests_that_reach_no_route_are_lines_too(server: InProcess, logged: Path) -> None:
    server.ask("GET", "/nowhere")
    server.ask("GET", "/v1/config", headers={"host": "example.org"})
    assert [404, 403] == [line["status"] for line in lines(logged)[-2:]]


def test_the_line_of_a_commit_says_how_long_it_waited_for_the_table(server: InProcess, logged: Path) -> None:
    catalog = server.catalog
    with catalog.coordinator.latch(("db", "t"), statement="in the way"):
        committing = threading.Thread(target=server.ask, args=("POST", path_of("db", "t"), _SET))
        committing.start()
        assert holds_within(lambda: len(catalog.show_locks(Resource.table(("db", "t")))) == 2, 30, every_s=0.02)
    committing.join()
    line = lines(logged)[-1]
    assert 200 == line["status"]
    assert 0 < line["wait_ms"] <= line["duration_ms"]


# -- limits --------------------------------------------------------------------------------------------------


def test_commits_beyond_the_limit_of_a_table_are_refused_and_reads_of_it_are_not(server: InProcess) -> None:
    catalog = server.catalog
    path = path_of("db", "t")

    async def ask_all() -> list[int]:
        commits = [asyncio.ensure_future(server.asked("POST", path, _SET)) for _ in range(2)]
        await asyncio.sleep(0)
        refused = await server.asked("POST", path, _SET)
        assert (429, "1") == (refused.status, refused.headers["retry-after"])
        assert "2 changes of db.t run or wait" in refused.error[2]
        assert 200 == (await server.asked("GET", path)).status
        assert 404 == (await server.asked("POST", path_of("db", "other"), _SET)).status
        latch.__exit__(None, None, None)
        return [(await commit).status for commit in commits]

    latch = catalog.coordinator.latch(("db", "t"), statement="in the way")
    latch.__enter__()
    assert [200, 200] == server.run(ask_all())
    assert 200 == server.ask("POST", path, _SET).status


def test_the_limit_of_a_table_counts_transactions_too(server: InProcess) -> None:
    catalog = server.catalog
    one = ("POST", path_of("db", "t"), _SET)
    change = {"identifier": {"namespace": ["db"], "name": "t"}, **_SET}
    several = ("POST", "/v1/shop/transactions/commit", {"table-changes": [change]})

    async def ask_all() -> list[int]:
        commits = [asyncio.ensure_future(server.asked(*request)) for request in (one, several)]
        await asyncio.sleep(0)
        beyond = [asyncio.ensure_future(server.asked(*request)) for request in (one, several)]
        await asyncio.sleep(0)
        refused = [commit.done() and commit.result().status for commit in beyond]
        latch.__exit__(None, None, None)
        assert [429, 429] == refused
        return [(await commit).status for commit in commits]

    latch = catalog.coordinator.latch(("db", "t"), statement="in the way")
    latch.__enter__()
    assert [200, 204] == server.run(ask_all())
    assert [200, 204] == [server.ask(*request).status for request in (one, several)]


# -- health and readiness ------------------------------------------------------------------------------------


def test_a_server_that_lives_says_so_to_everybody(server: InProcess) -> None:
    assert (200, {"alive": True}) == ((answer := server.ask("GET", "/health")).status, answer.json)


def test_a_server_is_ready_while_catalogs_and_lock_services_answer(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commit_coord.rest.watching._READY_FOR_S", 0)
    answer = server.ask("GET", "/ready")
    assert (200, {"ready": True, "catalogs": {"shop": "answers"}}) == (answer.status, answer.json)
    catalog = server.catalog

    def fail(*_: Any) -> Any:
        raise LockServiceUnavailable("gone")

    monkeypatch.setattr(catalog, "show_locks", fail)
    answer = server.ask("GET", "/ready")
    assert (503, "the lock service does not answer") == (answer.status, answer.json["catalogs"]["shop"])
    monkeypatch.setattr(catalog, "namespace_exists", fail)
    assert "the catalog does not answer" == server.ask("GET", "/ready").json["catalogs"]["shop"]


def test_a_service_that_hangs_is_asked_once_and_its_server_is_not_ready(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commit_coord.rest.application._READY_TIMEOUT_S", 0.1)
    go_on, asked = threading.Event(), []

    def hang(_: Readiness) -> Any:
        asked.append(1)
        go_on.wait(PATIENCE)

    monkeypatch.setattr(Readiness, "answer", hang)
    assert [503, 503] == [server.ask("GET", "/ready").status for _ in range(2)]
    assert [1] == asked
    go_on.set()


def test_a_server_that_stops_is_not_ready(server: InProcess) -> None:
    server.application.stop()
    assert 503 == server.ask("GET", "/ready").status
    assert 200 == server.ask("GET", "/health").status


# -- metrics -------------------------------------------------------------------------------------------------


def metric(text: bytes, name: str, **labels: str) -> float:
    """Return the value of a metric, summed over the labels that are not given."""
    found = [line.rpartition(" ") for line in text.decode().splitlines() if re.match(rf"{name}[{{ ]", line)]
    return sum(float(value) for key, _, value in found if all(f'{k}="{v}"' in key for k, v in labels.items()))


def test_metrics_count_requests_and_what_happens_in_the_catalogs(server: InProcess) -> None:
    table = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
    before = server.ask("GET", "/metrics").body
    assert 200 == server.ask("POST", path_of("db", "t"), _SET).status
    assert 404 == server.ask("POST", path_of("db", "none"), _SET).status
    answer = server.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")

    def grown(name: str, **labels: str) -> float:
        return metric(answer.body, name, **labels) - metric(before, name, **labels)

    requests = "commit_coord_rest_requests_total"
    assert 1 == grown(requests, route=table, method="POST", status="200")
    assert 1 == grown(requests, route=table, method="POST", status="404")
    assert 2 == grown("commit_coord_rest_request_seconds_count", route=table)
    assert 1 == grown("commit_coord_commits_total", catalog="shop", status="SUCCESS")
    assert 1 == metric(answer.body, "commit_coord_rest_requests_in_work")


_UNMET = {
    "a schema id": {"type": "assert-current-schema-id", "current-schema-id": 7},
    "a branch": {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
    "a spec id": {"type": "assert-default-spec-id", "default-spec-id": 7},
    "the table's id": {"type": "assert-table-uuid", "uuid": "01234567-0123-4123-8123-0123456789ab"},
    "no table": {"type": "assert-create"},
}
_UNFIT = {
    "no such spec": {"action": "set-default-spec", "spec-id": 7},
    "a schema that lacks the columns of the table's": {"action": "set-current-schema", "schema-id": 7},
}
_REFUSED = [
    *(pytest.param([unmet], _SET["updates"], id=f"requires {name}") for name, unmet in _UNMET.items()),
    *(pytest.param([], [unfit], id=name) for name, unfit in _UNFIT.items()),
]


@pytest.mark.parametrize("has_key", [False, True], ids=["without a key", "with a key"])
@pytest.mark.parametrize("several", [False, True], ids=["commit", "transaction"])
@pytest.mark.parametrize("requirements, updates", _REFUSED)
def test_each_refused_commit_is_counted_and_the_page_knows_its_request(
    server: InProcess, requirements: list[Any], updates: list[Any], *, several: bool, has_key: bool
) -> None:
    """Whoever finds out that it can't land: the coordinator, or the server before it asks the coordinator."""
    change = {"requirements": requirements, "updates": updates}
    heard: list[Event] = []
    server.catalog.events.subscribe(heard.append)
    before = server.ask("GET", "/metrics").body
    path = path_of("db", "t")
    if several:
        path = "/v1/shop/transactions/commit"
        change = {"table-changes": [{"identifier": {"namespace": ["db"], "name": "t"}, **change}]}
    answer = server.ask("POST", path, change, headers={"idempotency-key": new_key()} if has_key else {})
    assert answer.status in (400, 409), answer.body
    after = server.ask("GET", "/metrics").body
    grown = {
        status: metric(after, "commit_coord_commits_total", catalog="shop", status=status)
        - metric(before, "commit_coord_commits_total", catalog="shop", status=status)
        for status in CommitStatus
    }
    assert {CommitStatus.SUCCESS: 0, CommitStatus.FAILURE: 1, CommitStatus.UNKNOWN: 0} == grown
    assert "Refused:" in page(server, "/ui/shop/table?namespace=db&name=t").text
    (ended,) = [event for event in heard if isinstance(event, CommitEnded)]
    assert "FAILURE" in page(server, f"/ui/shop/request?id={ended.request_id}").text


def test_a_commit_whose_outcome_is_not_known_is_counted_so(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if that is found out before the coordinator is asked: nobody can read the table."""

    def fail(*_: object) -> None:
        raise ValueError("the file is cut off")

    before = server.ask("GET", "/metrics").body
    monkeypatch.setattr("commit_coord.coordinator.services.Services.load", fail)
    assert 500 <= server.ask("POST", path_of("db", "t"), _SET).status
    after = server.ask("GET", "/metrics").body
    unknown = {"catalog": "shop", "status": "UNKNOWN"}
    assert 1 == metric(after, "commit_coord_commits_total", **unknown) - metric(
        before, "commit_coord_commits_total", **unknown
    )


def test_metrics_are_for_those_who_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, tmp_path, "shop")
    (tmp_path / "clients.toml").write_text(f'[prometheus]\ntoken-sha256 = "{"0" * 64}"\n')
    serving = Serving(catalogs=("shop",), authentication=Authentication(clients=tmp_path / "clients.toml"))
    with InProcess(serving) as server:
        assert [401, 200] == [server.ask("GET", path).status for path in ("/metrics", "/health")]


def test_any_of_several_processes_answers_with_the_sum_of_all() -> None:
    with served("--processes", "2") as server:
        for _ in range(40):  # each on a connection of its own, so both processes serve some
            assert 200 == server.ask("GET", "/v1/config").status

        def counted() -> float:
            body = server.ask("GET", "/metrics").body
            return metric(body, "commit_coord_rest_requests_total", route="/v1/config")

        assert [40.0, 40.0, 40.0] == [counted() for _ in range(3)]
        in_work = metric(server.ask("GET", "/metrics").body, "commit_coord_rest_requests_in_work")
        assert 1 == in_work


def test_every_metric_and_every_field_of_the_access_log_is_in_the_document(server: InProcess, logged: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    named = {metric.name for metric in REGISTRY.collect() if metric.name.startswith("commit_coord_rest_")}
    listed = {name.removesuffix("_total") for name in re.findall(r"^\| `(commit_coord_rest_\w+)", text, re.MULTILINE)}
    assert named == listed
    assert [] == [field for field in lines(logged)[-1] if f"`{field}`" not in text]


# -- spans ---------------------------------------------------------------------------------------------------


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps the spans; the provider of the process can be set once, so it is left alone."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return kept


def test_the_spans_of_a_commit_join_the_trace_of_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter
) -> None:
    configure(monkeypatch, tmp_path, "shop")
    monkeypatch.setenv("PYICEBERG_CATALOG__SHOP__COMMIT_COORD__TRACES", "opentelemetry")
    traceparent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with InProcess(Serving(catalogs=("shop",), threads=2)) as server:
        server.ask("POST", "/v1/shop/namespaces", {"namespace": ["db"]})
        schema = json.loads(SCHEMA.model_dump_json())
        server.ask("POST", "/v1/shop/namespaces/db/tables", {"name": "t", "schema": schema})
        exporter.clear()
        assert 200 == server.ask("POST", path_of("db", "t"), _SET, headers=traceparent).status
        assert 404 == server.ask("GET", path_of("db", "none")).status
    spans = {span.name: span for span in exporter.get_finished_spans()}
    requests = [span for span in exporter.get_finished_spans() if span.name == "commit_coord.request"]
    request = requests[0]
    assert 0x0AF7651916CD43DD8448EB211C80319C == request.context.trace_id
    assert request.parent is not None
    assert 0xB7AD6B7169203331 == request.parent.span_id
    commit = spans["commit_coord.commit"]
    assert commit.parent is not None
    assert request.context.span_id == commit.parent.span_id
    assert request.attributes is not None
    assert 200 == request.attributes["http.response.status_code"]
    assert "POST" == request.attributes["http.request.method"]
    assert StatusCode.ERROR != requests[1].status.status_code


# -- a real server -------------------------------------------------------------------------------------------


def test_a_server_logs_and_counts_what_a_client_does(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text('access-log = "' + str(tmp_path / "access.jsonl") + '"\n')
    with served("--config", str(tmp_path / "serve.toml")) as server:
        _work(server)
        assert 200 == server.ask("GET", "/ready").status
        assert 0 < metric(server.ask("GET", "/metrics").body, "commit_coord_commits_total", catalog="shop")
    written = lines(tmp_path / "access.jsonl")
    assert {"db.t"} == {line["table"] for line in written if line["table"].startswith("db.")}
    assert len({line["request_id"] for line in written}) == len(written)


def _work(server: Server) -> None:
    client = server.client()
    client.create_namespace("db")
    client.create_table(("db", "t"), SCHEMA).append(ids(1))
