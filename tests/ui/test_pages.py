"""The page as HTML: what it shows, whom it lets do what, and what it never runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import commit_coord
from commit_coord.catalog.base import CoordinatedCatalog
from commit_coord.errors import (
    CommitLockFailed,
    CommitNotApplied,
    LockServiceUnavailable,
    MetastoreUnavailable,
    PartlyFreed,
)
from commit_coord.events import CommitEnded, Event
from commit_coord.iceberg.attempt import request_uuid, table_names
from commit_coord.locks.hive_lease import LeaseObject
from commit_coord.model import LockEntry, LockMode, LockState, Resource
from commit_coord.rest import Serving
from commit_coord.rest.browsing import route_of
from commit_coord.rest.settings import Ui
from commit_coord.ui import freeing, rendering
from tests.rest.asgi import InProcess
from tests.rest.kit import SCHEMA, ids
from tests.ui.kit import HOSTILE, Html, cookie, page, send

X = LockMode.EXCLUSIVE
ORDERS = Resource(("db", "orders"))


@pytest.fixture
def held(shop: CoordinatedCatalog) -> Iterator[LockEntry]:
    """A lock that a client holds on ``db.orders``."""
    with shop.lock_operation({ORDERS: X}, statement="nightly load"):
        yield shop.show_locks(ORDERS)[0]


def audited(path: Path) -> list[dict[str, Any]]:
    """Return the lines of the audit log."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- Now ---------------------------------------------------------------------------------------------------


def test_the_page_shows_the_holder(server: InProcess, held: LockEntry) -> None:
    """The holder is shown with its object, statement, process and request."""
    text = page(server, "/ui/shop/").text
    for part in ("db / orders", "nightly load", f"process {held.owner.pid}", held.request_id[:8], "1 held, 0 waiting"):
        assert part in text


def test_the_page_says_that_nobody_holds_a_lock(server: InProcess) -> None:
    """An empty list is a sentence."""
    assert "Nobody holds a lock." in page(server, "/ui/shop/").text


def test_one_catalog_is_shown_at_once(server: InProcess) -> None:
    """The address of the page leads to the locks of the only catalog."""
    answer = server.ask("GET", "/ui/")
    assert (303, "/ui/shop/") == (answer.status, answer.headers["location"])


def test_leases_are_shown(server: InProcess, shop: CoordinatedCatalog) -> None:
    """A lease has its number, its object and its end."""
    number = shop.leases.grab_lease([LeaseObject.of(ORDERS)], 60)
    assert f"lease {number} exclusive on db / orders" in page(server, "/ui/shop/").text


def test_an_unknown_page_is_a_page(server: InProcess) -> None:
    """What does not exist is said in words, with a way back."""
    assert "There is no such catalog." in page(server, "/ui/nothing/", 404).text
    assert "There is no such page." in page(server, "/ui/shop/nothing", 404).text
    assert ["/ui/shop/"] == page(server, "/ui/shop/nothing", 404).links("/ui/shop/")[-1:]


def test_a_lock_service_that_fails_is_a_sentence(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says that the service does not answer, and shows no traceback."""

    def fail(*_: object) -> None:
        raise LockServiceUnavailable("the database does not answer")

    monkeypatch.setattr(CoordinatedCatalog, "show_locks", fail)
    text = page(server, "/ui/shop/", 503).text
    assert "the database does not answer" in text
    assert "Traceback" not in text


# -- Free --------------------------------------------------------------------------------------------------


def test_a_confirmed_request_is_freed_and_audited(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, audit_log: Path
) -> None:
    """Who types the letters of the request frees it; the audit log has the reason."""
    link = page(server, "/ui/shop/").links("/free")[0]
    fields = page(server, link).form()

    answer = send(server, "/ui/shop/free", {**fields, "confirm": held.request_id[:8], "why": "its host\nis gone"})

    assert "1 lock was freed" in Html(answer.body).text
    assert [] == list(shop.show_locks(ORDERS))
    (line,) = audited(audit_log)
    assert ("unlock", "its host is gone", held.request_id) == (line["how"], line["why"], line["request_id"])


def test_without_a_file_no_audit_log_is_promised(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who freed what is then in the log of the server alone."""
    catalog = server.catalog
    monkeypatch.setattr(catalog, "settings", replace(catalog.settings, commit_coord_audit_log=""))
    fields = page(server, f"/ui/shop/free?request={held.request_id}").form() | {"confirm": held.request_id[:8]}
    assert "The log of the server says who" in Html(send(server, "/ui/shop/free", fields).body).text


@pytest.mark.parametrize("typed", ["", "yes", "00000000"])
def test_nothing_is_freed_without_the_confirmation(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, audit_log: Path, typed: str
) -> None:
    """Another word changes nothing, and the page asks again."""
    fields = page(server, f"/ui/shop/free?request={held.request_id}").form()
    answer = send(server, "/ui/shop/free", {**fields, "confirm": typed})
    assert 400 == answer.status
    assert "Nothing was changed" in Html(answer.body).text
    assert 1 == len(shop.show_locks(ORDERS))
    assert [] == audited(audit_log)


def test_what_has_changed_since_is_confirmed_again(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, audit_log: Path
) -> None:
    """A confirmation is for the locks that the page showed, and for no others."""
    path = f"/ui/shop/free?request={held.request_id}"
    fields = page(server, path).form() | {"confirm": held.request_id[:8]}
    listed = shop.show_locks()
    with pytest.MonkeyPatch.context() as patch:
        other = replace(held, resource=Resource(("db", "people")))
        patch.setattr(CoordinatedCatalog, "show_locks", lambda *_: [*listed, other])
        answer = send(server, "/ui/shop/free", fields)
        assert 409 == answer.status
        assert "not as this page showed it" in Html(answer.body).text
        assert "db / people" in Html(answer.body).text
    assert 1 == len(shop.show_locks(ORDERS))
    assert [] == audited(audit_log)
    assert 200 == send(server, "/ui/shop/free", fields).status


def test_a_waiter_that_has_its_turn_after_the_last_look_is_left(shop: CoordinatedCatalog, held: LockEntry) -> None:
    """The form was sent in time; the release looks once more."""
    place: Any = SimpleNamespace(catalog=shop, visitor=SimpleNamespace(name=""))
    assert [] == list(freeing.free(place, [replace(held, state=LockState.WAITING)], ""))
    assert [held.request_id] == [entry.request_id for entry in freeing.free(place, [held], "")]


def test_more_dead_owners_than_shown_are_confirmed_again(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks whose owner has died since the page was shown are not released with the others."""
    fields = page(server, "/ui/shop/reap").form() | {"confirm": "reap"}
    monkeypatch.setattr("commit_coord.process.SystemHost.is_dead", lambda _, process: process == held.owner.process)
    assert 409 == send(server, "/ui/shop/reap", fields).status
    assert 1 == len(shop.show_locks(ORDERS))


def test_what_was_freed_before_an_error_is_reported(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence of the error is shown as it is."""

    def fail(*_: object, **__: object) -> None:
        raise LockServiceUnavailable("some locks were freed, and then the service did not answer")

    fields = page(server, f"/ui/shop/free?request={held.request_id}").form() | {"confirm": held.request_id[:8]}
    monkeypatch.setattr(CoordinatedCatalog, "unlock", fail)
    assert "some locks were freed, and then" in Html(send(server, "/ui/shop/free", fields).body).text


def test_what_a_freed_commit_risks_depends_on_the_store(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a swap that compares, or while that can't be asked, no commit is said to be safe."""
    path = f"/ui/shop/free?request={held.request_id}"
    assert "A commit in progress stays safe" in page(server, path).text
    monkeypatch.setattr(CoordinatedCatalog, "swaps_are_conditional", lambda _: False)
    assert "may overwrite another one" in page(server, path).text

    def fail(_: object) -> None:
        raise MetastoreUnavailable("no server answers")

    monkeypatch.setattr(CoordinatedCatalog, "swaps_are_conditional", fail)
    text = page(server, path).text
    assert "may overwrite another one" in text
    assert "stays safe" not in text


def test_a_lock_on_the_whole_database_is_on_the_page_of_a_table(server: InProcess, shop: CoordinatedCatalog) -> None:
    """It locks the table, too; a shared one, which the locks on other tables take, does not."""
    path = "/ui/shop/table?namespace=db&name=orders"
    with shop.lock_operation({Resource(("db", "people")): X}, statement="elsewhere"):
        assert "Nobody holds a lock on this table" in page(server, path).text
    with shop.lock_operation({Resource(("db",)): X}, statement="whole database"):
        page(server, "/ui/shop/reap")  # looks again, however new the last look is
        assert "whole database" in page(server, path).text
        assert "Nobody holds a lock" not in page(server, path).text


def test_the_left_behind_guard_of_a_table_is_listed_before_it_is_released(
    server: InProcess, held: LockEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not one of a dead owner, and goes along with those."""
    guard = replace(held, guard=True, explicit=True, request_id="left-behind")
    monkeypatch.setattr(CoordinatedCatalog, "show_locks", lambda *_: [guard])
    assert "left-behind" not in page(server, "/ui/shop/reap").text
    monkeypatch.setattr(CoordinatedCatalog, "is_left", lambda _, entry: entry.guard)
    text = page(server, "/ui/shop/reap").text
    assert "Guards of tables that are gone" in text
    assert "request left-behind" in text


@pytest.mark.parametrize("proof", ["", "0" * 64, "é"])
def test_a_form_of_another_page_frees_nothing(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, proof: str
) -> None:
    """A form without the proof of this server is refused."""
    fields = {"request": held.request_id, "confirm": held.request_id[:8], "proof": proof}
    assert 403 == send(server, "/ui/shop/free", fields).status
    assert 403 == send(server, "/ui/shop/reap", {"confirm": "reap", "proof": proof}).status
    assert 1 == len(shop.show_locks(ORDERS))


def test_a_request_of_another_origin_is_refused(server: InProcess, held: LockEntry) -> None:
    """Also with the right proof; but a link on another page may lead here."""
    fields = page(server, f"/ui/shop/free?request={held.request_id}").form() | {"confirm": held.request_id[:8]}
    foreign = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    refused = send(server, "/ui/shop/free", fields, headers=foreign)
    assert 403 == refused.status
    assert "may not ask this server" in Html(refused.body).text
    assert "text/html" in refused.headers["content-type"]
    assert 403 == server.ask("GET", "/ui/shop/", headers=foreign).status
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert 200 == server.ask("GET", "/ui/shop/", headers=followed).status
    assert 403 == server.ask("GET", "/ui/shop/", headers=followed | {"sec-fetch-dest": "iframe"}).status
    assert 403 == send(server, "/ui/shop/free", fields, headers=followed).status


@pytest.mark.parametrize("read_only", [None, True])
def test_a_read_only_page_changes_nothing(
    shop: CoordinatedCatalog,
    held: LockEntry,
    audit_log: Path,
    monkeypatch: pytest.MonkeyPatch,
    read_only: bool | None,
) -> None:
    """It has no button, and refuses each form that another page would accept. So is a page without authentication."""
    monkeypatch.setattr("commit_coord.process.SystemHost.is_dead", lambda _, process: process == held.owner.process)
    with InProcess(Serving(catalogs=("shop",), threads=2, ui=Ui(read_only=False))) as server:
        proofs = vars(server.application._browsing)["_pages"]._proofs
        free = page(server, f"/ui/shop/free?request={held.request_id}").form() | {"confirm": held.request_id[:8]}
        reap = page(server, "/ui/shop/reap").form() | {"confirm": "reap"}
    with InProcess(Serving(catalogs=("shop",), threads=2, ui=Ui(read_only=read_only))) as server:
        shown = page(server, "/ui/shop/")
        assert [] == shown.links("/free")
        assert "Read-only: " in shown.text
        assert "--administer" in shown.text
        page(server, f"/ui/shop/free?request={held.request_id}", 403)
        vars(server.application._browsing)["_pages"]._proofs = proofs  # else the forms are refused for their proof
        move = {"proof": free["proof"], "target": "both", "confirm": "orders", "shown": "hms 0"}
        for path, fields in (("free", free), ("reap", reap), ("table?namespace=db&name=orders", move)):
            answer = send(server, f"/ui/shop/{path}", fields)
            assert 403 == answer.status
            assert "Only an administrator" in Html(answer.body).text
    assert 1 == len(shop.show_locks(ORDERS))
    assert [] == [line for line in audited(audit_log) if line["how"] != "access refused"]


def test_the_locks_of_a_dead_owner_are_marked_and_reaped(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, audit_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says that the owner is dead, and releases its locks once that is confirmed."""
    monkeypatch.setattr("commit_coord.process.SystemHost.is_dead", lambda _, process: process == held.owner.process)
    shown = page(server, "/ui/shop/")
    assert "dead: its process has ended" in shown.text
    for path in ("table?namespace=db&name=orders", f"request?id={held.request_id}", f"free?request={held.request_id}"):
        assert "dead: its process has ended" in page(server, f"/ui/shop/{path}").text
    fields = page(server, shown.links("/reap")[0]).form()

    assert 400 == send(server, "/ui/shop/reap", {**fields, "confirm": "no"}).status
    assert "Freed" in Html(send(server, "/ui/shop/reap", {**fields, "confirm": "reap"}).body).text

    assert [] == list(shop.show_locks(ORDERS))
    assert ["reap"] == [line["how"] for line in audited(audit_log)]


@pytest.mark.parametrize("page_of", ["free", "reap"])
def test_a_page_shows_which_locks_were_freed_and_which_may_have_been(
    server: InProcess, shop: CoordinatedCatalog, held: LockEntry, monkeypatch: pytest.MonkeyPatch, page_of: str
) -> None:
    """The lock service failed in the middle; the page names the reason too."""
    path = f"/ui/shop/{page_of}?request={held.request_id}"
    fields = page(server, path).form() | {"confirm": held.request_id[:8] if page_of == "free" else "reap"}
    unknown = replace(held, resource=Resource(("db", "unknown")))

    def fail(*_: object, **__: object) -> None:
        raise PartlyFreed("the lock service failed", freed=[held], maybe_freed=[unknown])

    monkeypatch.setattr(CoordinatedCatalog, "unlock", fail)
    monkeypatch.setattr(CoordinatedCatalog, "reap", fail)

    answer = send(server, f"/ui/shop/{page_of}", fields)

    assert 503 == answer.status
    text = Html(answer.body).text
    assert "Not everything was freed the lock service failed 1 lock was freed." in text
    assert text.index("db / orders") < text.index("It is not known of this lock whether it was freed:")
    assert text.index("It is not known of this lock") < text.index("db / unknown")


# -- Table and request -------------------------------------------------------------------------------------


def test_the_page_of_a_table_shows_its_commits_and_files(server: InProcess) -> None:
    """The commits with their groups, the number and size of the files, and how many are small."""
    text = page(server, "/ui/shop/table?namespace=db&name=orders").text
    for part in (
        "Nobody holds a lock on this table or on its whole database.",
        "2 × 1",
        "data files 2",
        "small 2 below",
        "append",
        "+2",
    ):
        assert part in text


def test_a_manifest_of_too_many_files_is_not_read(server: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is there, and says that there are more files."""
    monkeypatch.setattr("commit_coord.ui.tables._MOST_FILES", 0)
    monkeypatch.setattr("commit_coord.iceberg.manifests.entries_of", lambda *_: pytest.fail("it was read"))
    text = page(server, "/ui/shop/table?namespace=db&name=orders").text
    assert "data files 0 and more" in text
    assert "The others were not counted" in text


def test_commits_through_the_server_have_waits_and_reasons(server: InProcess) -> None:
    """What this process has carried out is shown with its waits, and what was refused with the reason."""
    catalog = server.catalog
    for status, reason in (("SUCCESS", ""), ("FAILURE", "the column was dropped"), ("UNKNOWN", "no answer came")):
        catalog.events.emit(
            CommitEnded(
                table="db.orders",
                tables=(("db", "orders"),),
                request_id=f"{status}-request",
                status=status,
                waited_ms=40,
                held_ms=2,
                tries=1,
                rebased=False,
                reason=reason,
            )
        )
    text = page(server, "/ui/shop/table?namespace=db&name=orders").text
    assert "commits 3 wait, p50 40 ms wait, p99 40 ms" in text
    assert "Refused: 1 × the column was dropped May have landed" in text
    assert text.index("May have landed") < text.index("1 × no answer came")
    assert "the column was dropped" in page(server, "/ui/shop/request?id=FAILURE-request").text


def test_a_refused_commit_tells_its_reason(shop: CoordinatedCatalog) -> None:
    """The event at the end of a commit says why it did not land."""
    heard: list[Event] = []
    impatient = commit_coord.load_catalog("shop", **{"lock.acquire-timeout-ms": "100"})
    impatient.events.subscribe(heard.append)
    table = impatient.load_table("db.orders")
    table.append(ids(4))
    with shop.coordinator.latch(("db", "orders"), statement="busy"), pytest.raises(CommitLockFailed):
        table.append(ids(5))
    impatient.close()
    landed, refused = [event for event in heard if isinstance(event, CommitEnded)]
    assert ("SUCCESS", "") == (landed.status, landed.reason)
    assert "FAILURE" == refused.status
    assert "this thread holds a lock" in refused.reason


def test_tables_are_listed_and_found(server: InProcess, shop: CoordinatedCatalog) -> None:
    """All tables by their namespaces; a part of a name finds its tables."""
    shop.create_namespace("a.b")
    shop.create_table("a.b.people", SCHEMA)
    assert "2 tables" in page(server, "/ui/shop/tables").text
    found = page(server, "/ui/shop/tables?find=PEOP")
    assert ["/ui/shop/table?namespace=a.b&name=people"] == found.links("/table?")


def test_a_request_that_landed_is_found(server: InProcess, shop: CoordinatedCatalog) -> None:
    """By its id or the beginning of it, with and without its table."""
    table = shop.load_table("db.orders")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    request_id = snapshot.summary.additional_properties["commit-coord.request-id"]
    for query in (f"id={request_id}", f"id={request_id[:8]}", f"id={request_id}&table=db.orders"):
        assert f"Landed in db.orders: snapshot {snapshot.snapshot_id}" in page(server, f"/ui/shop/request?{query}").text
    assert "Nothing is known of it." in page(server, "/ui/shop/request?id=ffffffff-0000").text
    assert "at least its first 8 letters" in page(server, "/ui/shop/request?id=abc").text


_AT_ONCE = {
    outcome: f"01980000-{number}{number}{number}{number}-7000-8000-0123456789ab"
    for number, outcome in enumerate(("landed", "landed elsewhere", "refused", "running", "never sent"))
}
"""Ids of requests that were made at nearly the same time: UUIDs of version 7 begin with it."""
_ALONE = "02980000-0000-7000-8000-0123456789ab"
"""The id of a request that was made at another time, and has landed."""


@pytest.mark.parametrize("searched", ["all", "none", "with failures"])
@pytest.mark.parametrize("table", ["", "db.orders", "db.others"])
def test_the_beginning_of_an_id_has_the_fate_of_no_other_request(
    server: InProcess, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch, table: str, searched: str
) -> None:
    """Only if all tables were searched, and one request begins so, the page says what became of it."""
    shop.create_table("db.others", SCHEMA)
    tables = {"landed": "db.orders", "landed elsewhere": "db.others"}
    for outcome, name in tables.items():
        with shop.transaction(request_id=_AT_ONCE[outcome]) as transaction:
            transaction.table(name).append(ids(5))
    with shop.transaction(request_id=_ALONE) as transaction:
        transaction.table("db.others").append(ids(6))
    refused = CommitNotApplied("it does not fit")
    server.catalog.coordinator.emit_ended([("db", "orders")], _AT_ONCE["refused"], refused)
    landed = {_AT_ONCE[outcome] for outcome in tables} | {_ALONE}
    known = {*_AT_ONCE.values(), _ALONE} - {_AT_ONCE["never sent"]}
    monkeypatch.setattr("commit_coord.ui.requests._SEARCH_S", -1.0 if searched == "none" else 120.0)
    if searched == "with failures":
        load = server.catalog.coordinator.load

        def fail(name: tuple[str, ...]) -> Any:
            if name == ("db", "others"):
                raise OSError("the storage does not answer")
            return load(name)

        monkeypatch.setattr(server.catalog.coordinator, "load", fail)
    of_table = f"&table={table}" if table else ""
    with shop.coordinator.latch(("db", "orders"), statement=f"commit {_AT_ONCE['running']}"):
        for text in sorted({one[:length] for one in (*_AT_ONCE.values(), _ALONE) for length in (8, 9, 10, 13, 32, 36)}):
            found = page(server, f"/ui/shop/request?id={text}{of_table}")
            begin = {one for one in known if one.startswith(text)}
            is_certain = len(text) == 36 or (searched == "all" and not table and len(begin) < 2)
            if "Landed in" in found.text:
                assert is_certain
                assert begin <= landed
            if "repeated" in found.text or "No commit of it" in found.text:
                assert is_certain
                assert not begin & landed
            linked = {one for one in known if found.links(f"/request?id={one}")}
            assert linked <= begin
            if len(text) < 36 and searched == "all" and not table:
                assert len(begin) < 2 or linked == begin
                assert len(begin) != 1 or begin - landed or "Landed in" in found.text
            elif len(text) == 36:
                assert (text in landed) == ("Landed in" in found.text)


@pytest.mark.parametrize("own", ["20241128", "20241128-03", "1732752000"])
@pytest.mark.parametrize("table", ["", "db.orders"])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_an_id_of_ones_own_that_looks_like_a_beginning_is_found(
    server: InProcess, shop: CoordinatedCatalog, own: str, table: str, others: int
) -> None:
    """Whether it landed or not, and however many UUIDs begin so."""
    for number in range(others):
        with shop.transaction(
            request_id=f"{own[:8]}-{own[8:].strip('-').ljust(4, '0')}-7000-8000-{number:012}"
        ) as other:
            other.table("db.orders").append(ids(7))
    asked = f"/ui/shop/request?id={own}" + (f"&table={table}" if table else "")

    def followed() -> str:
        (alone,) = page(server, asked).links(f"/request?id={request_uuid(own)}")
        return page(server, alone).text

    assert "Nothing is known of it." in followed()
    with shop.transaction(request_id=own) as transaction:
        transaction.table("db.orders").append(ids(5))
    assert "Landed in db.orders" in followed()


def latched(server: InProcess, shop: CoordinatedCatalog, request_id: str, statement: str = "") -> str:
    """Free the commit latch of the commit *request_id* on the page; return the latch's own request id."""
    with shop.coordinator.latch(("db", "orders"), statement=statement or f"commit {request_id}"):
        latch = shop.show_locks(ORDERS)[0].request_id
        if not statement:
            for path in ("/ui/shop/", f"/ui/shop/request?id={request_id}", f"/ui/shop/free?request={latch}"):
                assert f"/ui/shop/request?id={request_id}" in page(server, path).links("/request?id=")
        fields = page(server, f"/ui/shop/free?request={latch}").form() | {"confirm": latch[:8]}
        freed = Html(send(server, "/ui/shop/free", fields).body)
    assert bool(statement) != (f"/ui/shop/request?id={request_id}" in freed.links("/request?id="))
    return latch


def commit_id(shop: CoordinatedCatalog) -> str:
    """Return the request id of the newest commit."""
    snapshot = shop.load_table("db.orders").current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return str(snapshot.summary.additional_properties["commit-coord.request-id"])


def test_a_freed_latch_leads_to_its_commit(server: InProcess, shop: CoordinatedCatalog) -> None:
    """A latch has an id of its own: of that no commit ever lands, and the commit must not be repeated for that."""
    request_id = commit_id(shop)
    latch = latched(server, shop, request_id)
    for text in (latch, latch[:8]):
        shown = page(server, f"/ui/shop/request?id={text}")
        assert "Landed in db.orders" in shown.text
        assert "No commit of it" not in shown.text
        assert f"/ui/shop/request?id={request_id}" in shown.links("/request?id=")
    assert "unlock at" in page(server, f"/ui/shop/request?id={request_id}").text


def test_a_latch_whose_statement_is_cut_off_leads_to_its_commit(
    server: InProcess, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a metastore lists it: the beginning of the commit's id is enough to find it, and the latch by the whole id."""
    request_id = commit_id(shop)
    with shop.coordinator.latch(("db", "orders"), statement=f"commit {request_id[:12]}"):
        latch = shop.show_locks(ORDERS)[0].request_id
        shown = page(server, f"/ui/shop/request?id={latch}")
        assert "Landed" not in shown.text  # another commit may begin so
        beginning, *_ = shown.links(f"/request?id={request_id[:12]}")
        (whole,) = page(server, beginning).links(f"/request?id={request_id}")
        assert "Landed in db.orders" in page(server, whole).text
        assert latch in page(server, f"/ui/shop/request?id={request_id}").text


def test_the_latch_of_a_commit_that_has_not_landed_tells_of_the_commit(
    server: InProcess, shop: CoordinatedCatalog
) -> None:
    """What is said is said of the commit, whose id is shown."""
    request_id = "01234567-0123-4123-8123-0123456789ab"
    text = page(server, f"/ui/shop/request?id={latched(server, shop, request_id)}").text
    assert f"the commit {request_id}" in text
    assert "No commit of it is known to have landed." in text


def test_the_id_of_another_lock_tells_nothing_of_a_commit(server: InProcess, shop: CoordinatedCatalog) -> None:
    """No page says that a commit has not landed, or can be repeated."""
    text = page(server, f"/ui/shop/request?id={latched(server, shop, '', 'rename')}").text
    assert "It does not tell whether a commit has landed" in text
    assert "No commit of it" not in text
    assert "repeated" not in text


def test_a_table_that_cannot_be_searched_is_counted(
    server: InProcess, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be searched may have the commit: the page does not say that it can be repeated."""
    monkeypatch.setattr("commit_coord.ui.requests._SEARCH_S", 120.0)  # on a busy machine, too
    path = "/ui/shop/request?id=01234567-0123-4123-8123-0123456789ab"
    assert "can be repeated" in page(server, path).text

    def fail(*_: object) -> None:
        raise OSError("the storage does not answer")

    monkeypatch.setattr("commit_coord.coordinator.services.Services.find", fail)
    text = page(server, path).text
    assert "1 table could not be searched" in text
    assert "0 tables were searched" in text
    assert "repeated" not in text


def test_a_search_that_takes_too_long_says_so(
    server: InProcess, shop: CoordinatedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not list the rest of the tables, and does not say that the commit can be repeated."""
    monkeypatch.setattr("commit_coord.ui.requests._SEARCH_S", -1.0)
    text = page(server, "/ui/shop/request?id=01234567-0123-4123-8123-0123456789ab").text
    assert "Not every table was searched." in text
    assert "repeated" not in text


def test_a_freed_request_says_who_freed_it(server: InProcess, shop: CoordinatedCatalog, held: LockEntry) -> None:
    """What was done to a request by force is read from the audit log."""
    shop.unlock(request_id=held.request_id, why="its host is gone", by="ann")
    text = page(server, f"/ui/shop/request?id={held.request_id}").text
    assert "unlock at" in text
    assert "by ann@" in text
    assert "its host is gone" in text


# -- Hostile names -----------------------------------------------------------------------------------------


def test_no_name_and_no_statement_becomes_code(server: InProcess, shop: CoordinatedCatalog, tmp_path: Path) -> None:
    """Databases, tables, partitions, statements and what a visitor types are text on every page."""
    tables = [(name.replace(".", ""), name.replace(".", "")) for name in HOSTILE]
    with ExitStack() as leases:
        for number, (name, table) in enumerate(zip(HOSTILE, tables, strict=True)):
            shop.create_namespace(table[:1])
            shop.create_table(table, SCHEMA, location=f"file://{tmp_path}/hostile-{number}").append(ids(1))
            where = Resource((*table, f"k={name}"))
            leases.enter_context(shop.lock_operation({where: X}, statement=f"{number} {name}"))
        requests = {entry.request_id for entry in shop.show_locks()}
        assert len(HOSTILE) == len(requests)
        shown = [page(server, f"/ui/shop/free?request={request_id}") for request_id in requests]
        shown += [page(server, f"/ui/shop/request?id={request_id}") for request_id in requests]
        shown += [page(server, path) for path in ("/ui/shop/", "/ui/shop/tables", "/ui/shop/request")]
        for number, (namespace, name) in enumerate(tables):
            of_table = page(server, rendering.address("shop", "table", namespace=namespace, name=name))
            assert f"{number} " in of_table.text
            shown += [of_table]
    for name in HOSTILE:
        shown += [page(server, rendering.address("shop", "request", id=name + " " * 8, table=name), 404)]
        shown += [page(server, rendering.address("shop", "request", id=name + "12345678"))]
        shown += [page(server, rendering.address("shop", "", find=name))]
        shown += [page(server, rendering.address("shop", "tables", find=name))]
        shown += [page(server, rendering.address("shop", "table", namespace=name, name="nothing"), 404)]
    for one in shown:
        assert not {"img", "b"} & one.tags
        for element in one.elements:
            assert not [name for name in element.attributes if name.startswith("on")]
            assert "javascript:" not in (element.attributes.get("href") or "")[:11]
            assert element.tag != "script" or (element.attributes["src"] or "").startswith("/ui/assets/")
            assert "style" not in element.attributes
        assert "370370367" not in one.text
        assert "\u202e" not in one.text


def test_no_name_becomes_an_event() -> None:
    """Every line of what is sent is a line of data: a name can't begin an event of its own."""
    for name in HOSTILE:
        lines = rendering.event("now", f"<p>{name}</p>").decode().splitlines()
        assert "event: now" == lines[0]
        assert [] == [line for line in lines[1:] if line and not line.startswith("data: ")]


def test_pages_run_only_scripts_of_this_server(server: InProcess) -> None:
    """A header says so to the browser, for every page and also for errors."""
    for path in ("/ui/shop/", "/ui/shop/nothing", "/ui/shop/request?id=01234567"):
        policy = server.ask("GET", path).headers["content-security-policy"]
        for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'"):
            assert rule in policy


def test_assets_are_served_under_an_address_that_changes_with_them(server: InProcess) -> None:
    """Each script and style of a page is there, and may be kept for ever."""
    elements = page(server, "/ui/shop/").elements
    addresses = [one.attributes.get("src") or one.attributes.get("href") or "" for one in elements]
    assets = [address for address in addresses if address.startswith("/ui/assets/")]
    assert 5 == len(assets)
    for address in assets:
        answer = server.ask("GET", address)
        assert 200 == answer.status
        assert "immutable" in answer.headers["cache-control"]
    assert 404 == server.ask("GET", "/ui/assets/..%2Fpages.py").status


# -- Who may what ------------------------------------------------------------------------------------------


def test_a_stranger_is_asked_for_a_token(guarded: InProcess) -> None:
    """Without a token every page asks for one, and tells nothing."""
    for path in ("/ui/", "/ui/shop/", "/ui/other/", "/ui/shop/events", "/ui/shop/tables"):
        shown = page(guarded, path, 401)
        assert "Token" in shown.text
        assert "shop" not in shown.text
    assert 401 == send(guarded, "/ui/shop/free", {"request": "x"}).status
    assert 401 == guarded.ask("GET", "/ui/shop/", headers=cookie("wrong")).status


def test_a_token_opens_the_page_that_was_asked_for(guarded: InProcess) -> None:
    """The token is kept in a cookie that no script reads and no other page sends with a form."""
    fields = page(guarded, "/ui/shop/tables?find=o", 401).form()
    answer = send(guarded, "/ui/login", {**fields, "token": "ann"})
    assert (303, "/ui/shop/tables?find=o") == (answer.status, answer.headers["location"])
    assert "commit_coord_token=ann; Path=/ui; HttpOnly; SameSite=Lax" == answer.headers["set-cookie"]
    assert "This token is not known." in Html(send(guarded, "/ui/login", {**fields, "token": "x"}).body).text


def test_only_a_form_of_this_server_logs_out(guarded: InProcess) -> None:
    """A link on another page does not, and neither does a form without the proof."""
    fields = page(guarded, "/ui/shop/", headers=cookie("ann")).form()
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for answer in (
        guarded.ask("GET", "/ui/logout", headers=cookie("ann") | followed),
        send(guarded, "/ui/logout", {}, headers=cookie("ann")),
        send(guarded, "/ui/logout", fields, headers=cookie("bob")),
    ):
        assert "set-cookie" not in answer.headers
    ended = send(guarded, "/ui/logout", fields, headers=cookie("ann"))
    assert (303, True) == (ended.status, "Max-Age=0" in ended.headers["set-cookie"])


@pytest.mark.parametrize("foreign", ["x=a b", "flag", 'q="a;b', "a=b=c", "=", "commit_coord_token2=x"])
def test_cookies_of_other_pages_do_not_matter(guarded: InProcess, foreign: str) -> None:
    """Other programs of the same host set cookies of every form."""
    for cookies in (f"{foreign}; commit_coord_token=ann", f"commit_coord_token=ann;{foreign}"):
        page(guarded, "/ui/shop/", headers={"cookie": cookies})


@pytest.mark.parametrize("following", ["//evil.example/", "https://evil.example/ui/", "/ui/\r\nx: y", "/ui\\evil", ""])
def test_a_login_leads_to_no_other_server(guarded: InProcess, following: str) -> None:
    """Whatever the form says."""
    answer = send(guarded, "/ui/login", {"following": following, "token": "ann"})
    assert "/ui/" == answer.headers["location"]


def test_a_reader_sees_only_what_it_may_read(guarded: InProcess, shop: CoordinatedCatalog) -> None:
    """Locks, tables and requests of other namespaces are not there for the reader."""
    shop.create_namespace("secret")
    with shop.lock_operation({Resource(("secret", "t")): X, ORDERS: X}, statement="both"):
        request_id = shop.show_locks()[0].request_id
        shown = page(guarded, "/ui/shop/", headers=cookie("bob"))
        assert "db / orders" in shown.text
        assert "secret" not in shown.text
        assert [] == shown.links("/free")
        assert "secret" not in page(guarded, "/ui/shop/tables", headers=cookie("bob")).text
        assert "secret" not in page(guarded, f"/ui/shop/request?id={request_id}", headers=cookie("bob")).text
        page(guarded, f"/ui/shop/free?request={request_id}", 404, headers=cookie("bob"))
        page(guarded, "/ui/shop/table?namespace=secret&name=t", 404, headers=cookie("bob"))
        assert "secret / t" in page(guarded, "/ui/shop/", headers=cookie("ann")).text
    page(guarded, "/ui/shop/", 404, headers=cookie("eve"))


@pytest.mark.parametrize("hidden_is_first", [False, True])
def test_a_commit_to_several_tables_is_shown_to_who_may_read_all_of_them(
    guarded: InProcess, shop: CoordinatedCatalog, *, hidden_is_first: bool
) -> None:
    tables = sorted([("db", "orders"), ("secret", "t")], reverse=hidden_is_first)
    event = CommitEnded(
        table=table_names(tables),
        tables=tuple(tables),
        request_id="01234567-89ab-4def-8123-456789abcdef",
        status="FAILURE",
        waited_ms=0,
        held_ms=0,
        tries=1,
        rebased=False,
        reason="the head of secret.t moved",
    )
    guarded.catalog.events.emit(event)
    for path in (f"/ui/shop/request?id={event.request_id}", "/ui/shop/table?namespace=db&name=orders"):
        assert "the head of secret.t moved" in page(guarded, path, headers=cookie("ann")).text
        assert "secret.t" not in page(guarded, path, headers=cookie("bob")).text


def test_less_in_a_namespace_is_less_than_the_whole_catalog(guarded: InProcess, shop: CoordinatedCatalog) -> None:
    """Who administers all but one namespace frees nothing there, does not reap, and reads no audit line of it."""
    most = cookie("most")
    hidden, seen = Resource(("secret", "t")), ORDERS
    with shop.lock_operation({hidden: X}, statement="theirs"), shop.lock_operation({seen: X}, statement="ours"):
        theirs, ours = (shop.show_locks(where)[0].request_id for where in (hidden, seen))
        assert [] == page(guarded, "/ui/shop/", headers=most).links("/reap")
        page(guarded, "/ui/shop/reap", 403, headers=most)
        page(guarded, f"/ui/shop/free?request={theirs}", 404, headers=most)
        page(guarded, f"/ui/shop/free?request={ours}", headers=most)
        assert ["/ui/shop/reap"] == page(guarded, "/ui/shop/", headers=cookie("ann")).links("/reap")
        for request_id in (theirs, ours):
            shop.unlock(request_id=request_id, why="its host is gone")
    assert "its host is gone" not in page(guarded, f"/ui/shop/request?id={theirs}", headers=most).text
    for reader in ("most", "bob"):
        assert "its host is gone" in page(guarded, f"/ui/shop/request?id={ours}", headers=cookie(reader)).text


def test_only_an_administrator_frees_and_the_audit_log_names_it(
    guarded: InProcess, shop: CoordinatedCatalog, held: LockEntry, audit_log: Path
) -> None:
    """The reader is refused, which is recorded; the administrator's name is in the record of what it freed."""
    path = f"/ui/shop/free?request={held.request_id}"
    page(guarded, path, 403, headers=cookie("bob"))
    page(guarded, "/ui/shop/reap", 403, headers=cookie("bob"))
    fields = page(guarded, path, headers=cookie("ann")).form() | {"confirm": held.request_id[:8]}
    assert 403 == send(guarded, "/ui/shop/free", fields, headers=cookie("bob")).status
    assert 1 == len(shop.show_locks(ORDERS))

    assert 200 == send(guarded, "/ui/shop/free", fields, headers=cookie("ann")).status

    assert [] == list(shop.show_locks(ORDERS))
    assert {"access refused", "unlock"} == {line["how"] for line in audited(audit_log)}
    (freed,) = [line for line in audited(audit_log) if line["how"] == "unlock"]
    assert "ann" == freed["by"]["user"]


# -- What is served ----------------------------------------------------------------------------------------


def test_a_server_may_have_no_page(shop: CoordinatedCatalog) -> None:
    """Switched off, the page is not there."""
    with InProcess(Serving(catalogs=("shop",), threads=2, ui=Ui(enabled=False))) as server:
        assert 404 == server.ask("GET", "/ui/").status


def test_a_page_may_have_no_server(shop: CoordinatedCatalog) -> None:
    """`commit-coord ui` serves the page, and nothing of Iceberg's protocol."""
    with InProcess(Serving(catalogs=("shop",), threads=2, rest=False)) as server:
        assert 404 == server.ask("GET", "/v1/config").status
        assert "No commits run in this process." in page(server, "/ui/shop/table?namespace=db&name=orders").text


def test_metrics_have_few_routes() -> None:
    """Whatever is asked for, the label is one of a few."""
    assert ("/ui/{catalog}/free", "shop") == route_of("/ui/shop/free")
    assert ("/ui/assets/{name}", "") == route_of("/ui/assets/x.js")
    assert ("/ui", "") == route_of("/ui/shop/anything") == route_of("/ui/a/b/c")
