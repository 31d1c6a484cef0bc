"""A change with a key that is no commit is sent again after its server was killed, and other clients have acted since.

The generator has each route, whether the change was carried out before the server was killed, and what another client
did then. The repeat is answered with 2xx, or its outcome is unknown; and it does nothing a second time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import SetPropertiesUpdate

import commit_coord
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.errors import LockLost, LockServiceUnavailable, LockTimeout
from commit_coord.rest import idempotency, namespaces, tables, views
from commit_coord.rest.answered import KeyedRequests
from commit_coord.rest.doubts import DOUBTS, Handler
from commit_coord.rest.errors import error_answer
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.routes import SERVED, TRANSACTIONS, VIEWS
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import HttpAnswer, Request
from tests.rest.kit import SCHEMA
from tests.rest.lost_replies import new_key
from tests.rest.test_views import SELECT, replacing

OLD, NEW, AWAY = ("db", "old"), ("db", "new"), ("db", "away")
SPACE = "space"
SCHEMA_JSON = SCHEMA.model_dump(mode="json")


class Killed(BaseException):
    """The server ended."""


@dataclass(slots=True)
class World:
    """A catalog and its servers."""

    warehouse: Warehouse
    patch: pytest.MonkeyPatch
    keys: Idempotency = field(default_factory=Idempotency)

    @property
    def catalog(self) -> Any:
        """The catalog."""
        return self.warehouse.catalog

    def sent(self, handler: Handler, request: Request) -> HttpAnswer:
        """Return what is answered."""
        try:
            return self.keys.answer(handler, self.warehouse, request)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    def killed(self, handler: Handler, request: Request, *, carried_out: bool) -> None:
        """Have the server be killed before it keeps the answer, or before it does anything."""

        def kill(*_: Any) -> HttpAnswer:
            raise Killed

        with self.patch.context() as patch, suppress(Killed):
            patch.setattr(KeyedRequests, "end", kill)
            if not carried_out:
                patch.setattr(idempotency, "_execute_begun", kill)
            self.keys.answer(handler, self.warehouse, request)

    def everything(self) -> dict[Any, Any]:
        """Return all namespaces with their properties, and all tables and views with their UUIDs and locations."""
        catalog, found = self.catalog, {}
        for (space,) in catalog.list_namespaces():
            found[space] = catalog.load_namespace_properties(space)
            for name in catalog.list_tables(space):
                table = catalog.load_table(name)
                found[name] = str(table.metadata.table_uuid), table.metadata_location
            for name in catalog.list_views(space):
                found[name] = str(catalog.load_view(name).metadata.view_uuid), catalog.view_location(name)
        return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A catalog and its servers."""
    catalog = commit_coord.load_catalog(
        "shop",
        uri=f"coord+sqlite:///{tmp_path}/catalog.db",
        warehouse=f"file://{tmp_path}",
        **{"lock-impl": "memory", "lock.acquire-timeout-ms": "60000"},
    )
    catalog.create_namespace("db")
    lines = Lines(SYSTEM_CLOCK, reserved_ms=0, most_waiting=0)
    yield World(Warehouse(catalog, TableAnswers(catalog.file_io), lines), monkeypatch)
    assert [] == list(catalog.locks.locks())
    catalog.close()


# -- the requests --------------------------------------------------------------------------------------------


def _asks(method: str, document: Any, query: Mapping[str, str] | None = None, **names: str) -> Request:
    return Request(
        method=method,
        path=f"/{'/'.join(names.values())}",
        names=names,
        query=query or {},
        headers={"idempotency-key": new_key()},
        body=json.dumps(document).encode(),
    )


def _space(world: World) -> None:
    world.catalog.create_namespace(SPACE, {"owner": "anna"})


def _table(world: World) -> None:
    world.catalog.create_table(OLD, SCHEMA)


def _view(world: World) -> None:
    world.catalog.create_view(OLD, SCHEMA, SELECT)


def _ends() -> dict[str, Any]:
    return {end: {"namespace": [name[0]], "name": name[1]} for end, name in (("source", OLD), ("destination", NEW))}


def _made(_: World, **properties: str) -> Request:
    return _asks("POST", {"namespace": [SPACE], "properties": properties})


def _registered(world: World, *, overwrite: bool = False) -> Request:
    table = world.catalog.create_table(OLD, SCHEMA)
    if overwrite:
        with table.transaction() as tx:
            tx.set_properties({"a": "1"})
        location = table.metadata.metadata_log[0].metadata_file
    else:
        location = table.metadata_location
        world.catalog.drop_table(OLD)
    return _asks("POST", {"name": OLD[1], "metadata-location": location, "overwrite": overwrite}, namespace="db")


def _registered_view(world: World) -> Request:
    _view(world)
    location = world.catalog.view_location(OLD)
    world.catalog.drop_view(OLD)
    return _asks("POST", {"name": OLD[1], "metadata-location": location}, namespace="db")


def _with(prepare: Callable[[World], None], request: Callable[[], Request]) -> Callable[[World], Request]:
    def prepared(world: World) -> Request:
        prepare(world)
        return request()

    return prepared


_VERSION = SELECT.model_dump(mode="json")
_CHANGES: dict[str, tuple[Handler, Callable[[World], Request]]] = {
    "a namespace is created": (namespaces.create_namespace, _made),
    "a namespace is created with properties": (namespaces.create_namespace, lambda w: _made(w, owner="anna")),
    "a namespace is created with the mark": (namespaces.create_namespace, lambda w: _made(w, exists="true")),
    "a namespace is changed": (
        namespaces.update_namespace,
        _with(_space, lambda: _asks("POST", {"removals": ["owner"], "updates": {"a": "1"}}, namespace=SPACE)),
    ),
    "a namespace is dropped": (
        namespaces.drop_namespace,
        _with(_space, lambda: _asks("DELETE", None, namespace=SPACE)),
    ),
    "a table is created": (
        tables.create_table,
        lambda _: _asks("POST", {"name": OLD[1], "schema": SCHEMA_JSON}, namespace="db"),
    ),
    "a table is dropped": (
        tables.drop_table,
        _with(_table, lambda: _asks("DELETE", None, namespace="db", table=OLD[1])),
    ),
    "a table is purged": (
        tables.drop_table,
        _with(_table, lambda: _asks("DELETE", None, {"purgeRequested": "true"}, namespace="db", table=OLD[1])),
    ),
    "a table is renamed": (tables.rename_table, _with(_table, lambda: _asks("POST", _ends()))),
    "a table is registered": (tables.register_table, _registered),
    "a table is rolled back": (tables.register_table, lambda w: _registered(w, overwrite=True)),
    "a view is created": (
        views.create_view,
        lambda _: _asks("POST", {"name": OLD[1], "schema": SCHEMA_JSON, "view-version": _VERSION}, namespace="db"),
    ),
    "a view is changed": (
        views.commit_view,
        _with(_view, lambda: _asks("POST", {"updates": replacing(("spark", "select 1"))}, namespace="db", view=OLD[1])),
    ),
    "a view is dropped": (views.drop_view, _with(_view, lambda: _asks("DELETE", None, namespace="db", view=OLD[1]))),
    "a view is renamed": (views.rename_view, _with(_view, lambda: _asks("POST", _ends()))),
    "a view is registered": (views.register_view, _registered_view),
}
_AGAIN: frozenset[Handler] = frozenset({namespaces.update_namespace, views.commit_view})
"""The routes whose repeats are carried out again, on the same namespace or view."""


# -- what another client does --------------------------------------------------------------------------------


class _Other:
    """Another client, which knows where the table or view of a request is now.

    Args:
        world: The catalog.
        kind: ``table`` or ``view``.
    """

    def __init__(self, world: World, kind: str) -> None:
        self.catalog, self.kind = world.catalog, kind
        self.at = next((name for name in (NEW, OLD) if self.exists(name)), None)

    def exists(self, name: tuple[str, str]) -> bool:
        """Return whether there is one of this name."""
        return bool(getattr(self.catalog, f"{self.kind}_exists")(name))

    def make(self, name: tuple[str, str]) -> None:
        """Make another one, if the name is free."""
        if self.exists(name):
            return
        if self.kind == "view":
            self.catalog.create_view(name, SCHEMA, SELECT)
        else:
            self.catalog.create_table(name, SCHEMA)

    def rename(self) -> None:
        """Rename it."""
        if self.at:
            getattr(self.catalog, f"rename_{self.kind}")(self.at, AWAY)

    def drop(self) -> None:
        """Drop it."""
        if self.at:
            getattr(self.catalog, f"drop_{self.kind}")(self.at)

    def change(self) -> None:
        """Commit to it."""
        if not self.at:
            return
        if self.kind == "view":
            self.catalog.commit_view(self.at, (), (SetPropertiesUpdate(updates={"by": "other"}),))
        else:
            with self.catalog.load_table(self.at).transaction() as tx:
                tx.set_properties({"by": "other"})


def _in_its_place(other: _Other, leave: Callable[[_Other], None]) -> None:
    leave(other)
    other.make(other.at or OLD)


def _under_both_names(other: _Other) -> None:
    other.rename()
    other.make(OLD)
    other.make(NEW)


_ACTS: dict[str, Callable[[_Other], object]] = {
    "does nothing": id,
    "changes it": _Other.change,
    "drops it": _Other.drop,
    "renames it": _Other.rename,
    "drops it and makes another one": lambda other: _in_its_place(other, _Other.drop),
    "renames it and makes another one": lambda other: _in_its_place(other, _Other.rename),
    "makes one under its old name": lambda other: other.make(OLD),
    "makes one under each of its names": _under_both_names,
}


def _drop_space(catalog: Any) -> None:
    if catalog.namespace_exists(SPACE):
        catalog.drop_namespace(SPACE)


def _create_space(catalog: Any) -> None:
    _drop_space(catalog)
    catalog.create_namespace(SPACE, {"owner": "other"})


def _change_space(catalog: Any) -> None:
    if catalog.namespace_exists(SPACE):
        catalog.update_namespace_properties(SPACE, updates={"owner": "other"})


def _use_space(catalog: Any) -> None:
    if not catalog.namespace_exists(SPACE):
        catalog.create_namespace(SPACE, {"owner": "other"})
    catalog.create_table((SPACE, "t"), SCHEMA)


_ACTS_ON_NAMESPACES: dict[str, Callable[[Any], object]] = {
    "does nothing": id,
    "changes it": _change_space,
    "drops it": _drop_space,
    "drops it and makes another one": _create_space,
    "makes a table in it": _use_space,
}


def _each() -> Iterator[tuple[str, str]]:
    for name in _CHANGES:
        for act in _ACTS_ON_NAMESPACES if "namespace" in name else _ACTS:
            yield name, act


def _act(world: World, change: str, act: str) -> None:
    if "namespace" in change:
        _ACTS_ON_NAMESPACES[act](world.catalog)
    else:
        _ACTS[act](_Other(world, "view" if "view" in change else "table"))


# -- the generator -------------------------------------------------------------------------------------------


def _is_success_or_unknown(answer: HttpAnswer) -> None:
    if answer.status not in (200, 204):
        assert (500, "CommitStateUnknownException") == (answer.status, json.loads(answer.body)["error"]["type"])


@pytest.mark.parametrize("change, act", list(_each()))
def test_a_change_that_was_carried_out_is_not_refused_and_not_carried_out_again(
    world: World, change: str, act: str
) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    world.killed(handler, request, carried_out=True)
    _act(world, change, act)
    before = world.everything()
    answer = world.sent(handler, request)
    _is_success_or_unknown(answer)
    if act == "does nothing":
        assert answer.status in (200, 204), answer.body
    if handler not in _AGAIN or answer.status == 500:
        assert before == world.everything()


@pytest.mark.parametrize(
    "change", [f"a {kind} is {what}" for kind in ("table", "view") for what in ("renamed", "dropped")]
)
@pytest.mark.parametrize("act", ["does nothing", "drops it", "renames it", "makes one under its old name"])
def test_a_change_that_comes_under_its_repeat_is_not_refused(world: World, change: str, act: str) -> None:
    """1. The repeat looks.  2. The change of the first copy is carried out, and another client acts.  3. It goes on."""
    handler, prepare = _CHANGES[change]
    request, begun_on, seen = prepare(world), KeyedRequests.begun_on, []
    world.killed(handler, request, carried_out=False)

    def late(*arguments: Any) -> Any:
        world.patch.setattr(KeyedRequests, "begun_on", begun_on)
        handler(world.warehouse, request)
        _act(world, change, act)
        seen.append(world.everything())
        return begun_on(*arguments)

    world.patch.setattr(KeyedRequests, "begun_on", late)
    _is_success_or_unknown(world.sent(handler, request))
    assert seen == [world.everything()]


def _harmed_nothing_of_others(
    handler: Handler, own: Mapping[Any, Any], before: Mapping[Any, Any], after: Mapping[Any, Any]
) -> None:
    """Fail if a request changed what another client has made since *own*, or has two objects with one UUID now."""
    ours = {state[0] for name, state in own.items() if isinstance(name, tuple)}
    theirs: dict[object, object] = {
        name: state for name, state in before.items() if isinstance(name, tuple) and state[0] not in ours
    }
    if handler not in _AGAIN:
        theirs |= {name: state for name, state in before.items() if isinstance(name, str) and state != own.get(name)}
    assert theirs == {name: after.get(name) for name in theirs}
    uuids = [state[0] for name, state in after.items() if isinstance(name, tuple)]
    assert len(set(uuids)) == len(uuids)


@pytest.mark.parametrize("change, act", list(_each()))
def test_a_repeat_harms_nothing_that_another_client_made(world: World, change: str, act: str) -> None:
    """The server was killed before it did anything, and the repeat may be carried out."""
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    own = world.everything()
    world.killed(handler, request, carried_out=False)
    assert own == world.everything()
    _act(world, change, act)
    before = world.everything()
    answer, after = world.sent(handler, request), world.everything()
    if answer.status not in (200, 204):
        assert before == after
    _harmed_nothing_of_others(handler, own, before, after)
    if answer.status == 200 and DOUBTS[handler].makes and handler is not namespaces.create_namespace:
        assert before != after
    if act == "does nothing" and not DOUBTS[handler].makes:
        assert answer.status in (200, 204), answer.body


_OVERWRITE = "a table is rolled back"


def _busy(*_: Any, **__: Any) -> Any:
    raise LockTimeout("busy")


def _without_effect(world: World, handler: Handler, request: Request) -> None:
    before = world.everything()
    with world.patch.context() as patch:
        for change in ("operating", "stage_table", "commit_view", "update_namespace_properties"):
            patch.setattr(world.catalog, change, _busy)
        assert world.sent(handler, request).status in (409, 503)
    assert before == world.everything()


@pytest.mark.parametrize("change", list(_CHANGES))
def test_what_a_busy_server_did_not_do_is_done_by_the_repeat(world: World, change: str) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    _without_effect(world, handler, request)
    assert world.sent(handler, request).status in (200, 204)


@pytest.mark.parametrize("change, act", [each for each in _each() if each[0] != _OVERWRITE])
def test_the_outcome_of_a_request_is_known_after_an_answer_that_it_did_nothing(
    world: World, change: str, act: str
) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    own = world.everything()
    _without_effect(world, handler, request)
    _act(world, change, act)
    before = world.everything()
    answer, after = world.sent(handler, request), world.everything()
    assert answer.status in (200, 204, 400, 404, 409), answer.body
    assert (before == after) == (answer.status >= 400)
    _harmed_nothing_of_others(handler, own, before, after)


@pytest.mark.parametrize("change", list(_CHANGES))
def test_a_request_whose_start_was_kept_without_a_reply_is_carried_out_by_its_repeat(world: World, change: str) -> None:
    handler, prepare = _CHANGES[change]
    request, begin = prepare(world), KeyedRequests.begin

    def unconfirmed(*arguments: Any) -> None:
        begin(*arguments)
        raise LockServiceUnavailable("the reply was lost")

    with world.patch.context() as patch:
        patch.setattr(KeyedRequests, "begin", unconfirmed)
        assert world.sent(handler, request).status == 503
    assert world.sent(handler, request).status in (200, 204)


@pytest.mark.parametrize("change", [f"a {kind} is renamed" for kind in ("table", "view")])
@pytest.mark.parametrize("by", ["by this version", "by an older one"])
def test_a_copy_after_one_that_did_nothing_may_have_done_something(world: World, change: str, by: str) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    _without_effect(world, handler, request)
    with world.patch.context() as patch:
        if by == "by an older one":
            patch.setattr(KeyedRequests, "nothing_done_on", lambda *_: None)
        world.killed(handler, request, carried_out=True)
    _act(world, change, "renames it")
    assert world.sent(handler, request).status == 500


_GOING = [f"a {kind} is {what}" for kind in ("table", "view") for what in ("renamed", "dropped")]


class _Lock:
    """The lock on its key that a copy of a request holds.

    Args:
        ended: Whether the copy has stalled for longer than the lock lasts.
    """

    ended = False

    def ensure_active(self, max_age_ms: int | None = None) -> None:
        if self.ended:
            raise LockLost("it ended while its owner stalled")


@dataclass
class _Stall:
    """The first copy of a request stalls once, where *owner* has *name*, for longer than its lock on the key lasts.

    Args:
        world: The server of the first copy.
        owner: What the copy calls.
        name: Its function.
        meanwhile: What another server does.
        busy: Whether the copy gets no lock when it goes on.
    """

    world: World
    owner: Any
    name: str
    meanwhile: Callable[[World], object]
    busy: bool = False

    def __post_init__(self) -> None:
        """Prepare the stall."""
        patch, lock, go_on = self.world.patch, _Lock(), getattr(self.owner, self.name)

        def stalled(*arguments: Any, **options: Any) -> Any:
            patch.setattr(self.owner, self.name, go_on)
            patch.setattr(Idempotency, "_locked", lambda *_: nullcontext(_Lock()))
            self.meanwhile(World(self.world.warehouse, patch))
            lock.ended = True
            return (_busy if self.busy else go_on)(*arguments, **options)

        patch.setattr(self.owner, self.name, stalled)
        patch.setattr(Idempotency, "_locked", lambda *_: nullcontext(lock))


def _stalls() -> Iterator[tuple[str, str, str]]:
    for change, act in _each():
        yield change, act, "before its start is kept"
        if change in {*_GOING, "a table is rolled back", "a view is created"}:
            yield change, act, "in its change"


@pytest.mark.parametrize("change, act, place", list(_stalls()))
def test_a_stalled_copy_neither_repeats_nor_refuses_what_a_later_copy_did(
    world: World, change: str, act: str, place: str
) -> None:
    handler, prepare = _CHANGES[change]
    request, answers, left = prepare(world), list[HttpAnswer](), list[dict[Any, Any]]()

    def meanwhile(other: World) -> None:
        answers.append(other.sent(handler, request))
        _act(world, change, act)
        left.append(world.everything())

    owner, name = {
        "before its start is kept": (KeyedRequests, "begin"),
        "in its change": (world.catalog, "operating"),
    }[place]
    _Stall(world, owner, name, meanwhile)
    stalled = world.sent(handler, request)
    assert answers, "the copy did not stall"
    third = world.sent(handler, request)
    assert stalled.status in (200, 204, 500, 503)
    if answers[0].status in (200, 204):
        assert third.status in (answers[0].status, 500)  # a later commit may have deleted the metadata file
        assert left[0] == world.everything()


@pytest.mark.parametrize("change", _GOING)
def test_a_stalled_copy_after_one_that_did_nothing_is_not_refused(world: World, change: str) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    _without_effect(world, handler, request)
    _Stall(world, world.catalog, "operating", lambda other: other.sent(handler, request))
    assert (204, 204) == (world.sent(handler, request).status, world.sent(handler, request).status)


@pytest.mark.parametrize("change", _GOING)
def test_a_stalled_copy_does_not_forget_what_a_later_copy_did(world: World, change: str) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    _Stall(world, world.catalog, "operating", lambda w: w.killed(handler, request, carried_out=True), busy=True)
    assert world.sent(handler, request).status in (409, 503)
    assert world.sent(handler, request).status == 204


@pytest.mark.parametrize("change", ["a table is registered", "a view is registered"])
@pytest.mark.parametrize("error", [FileNotFoundError("none"), OSError("throttled")], ids=["missing", "unreadable"])
def test_a_file_that_could_not_be_read_is_registered_by_the_repeat(world: World, change: str, error: OSError) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)

    def unreadable(*_: Any, **__: Any) -> Any:
        raise error

    with world.patch.context() as patch:
        patch.setattr(type(world.catalog.coordinator), "read", unreadable)
        patch.setattr(world.catalog, "register_view", unreadable)
        assert world.sent(handler, request).status in (404, 500)
    assert world.sent(handler, request).status == 200


_OLD_STATES: dict[str, Callable[[World], Mapping[str, Any]]] = {
    "a namespace is dropped": lambda _: {"there": "yes"},
    "a table is rolled back": lambda w: {"location": w.catalog.metadata_location(OLD), "next": None},
    "a table is registered": lambda _: {"location": None, "next": None},
    "a view is created": lambda _: {"there": None},
    "a view is changed": lambda w: {"there": w.catalog.view_location(OLD)},
    "a view is dropped": lambda w: {"there": w.catalog.view_location(OLD)},
    "a view is renamed": lambda w: {"there": w.catalog.view_location(OLD), "destination": None},
    "a view is registered": lambda _: {"there": None},
}
"""What a server of an earlier version kept, where it was not what is kept now."""


@pytest.mark.parametrize("change", _OLD_STATES)
def test_what_a_server_of_another_version_began_is_unknown(world: World, change: str) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    world.killed(handler, request, carried_out=False)
    with world.patch.context() as patch:
        patch.setattr(KeyedRequests, "begun_on", lambda *_: _OLD_STATES[change](world))
        before = world.everything()
        answer = world.sent(handler, request)
    assert (500, "CommitStateUnknownException") == (answer.status, json.loads(answer.body)["error"]["type"])
    assert before == world.everything()


@pytest.mark.parametrize(
    "change", [f"a {kind} is {what}" for kind in ("table", "view") for what in ("renamed", "dropped")]
)
def test_a_read_that_fails_once_does_not_make_a_repeat_unknown(world: World, change: str) -> None:
    handler, prepare = _CHANGES[change]
    request = prepare(world)
    world.killed(handler, request, carried_out=False)
    reads = iter([True])
    owner, name = (type(world.catalog), "load_view") if "view" in change else (type(world.catalog.coordinator), "read")
    original = getattr(owner, name)

    def once(*arguments: Any, **named: Any) -> Any:
        if next(reads, False):
            raise OSError("throttled")
        return original(*arguments, **named)

    world.patch.setattr(owner, name, once)
    assert world.sent(handler, request).status == 204


def test_the_journal_shows_no_properties_of_a_namespace(world: World) -> None:
    world.catalog.create_namespace(SPACE, {"s3.secret-access-key": "top secret"})
    kept: list[str] = []
    remember = KeyedRequests.begin

    def noted(keyed: KeyedRequests, key: str, request: Request, seen: Mapping[str, Any]) -> None:
        kept.append(json.dumps(seen))
        remember(keyed, key, request, seen)

    world.patch.setattr(KeyedRequests, "begin", noted)
    assert world.sent(namespaces.drop_namespace, _asks("DELETE", None, namespace=SPACE)).status == 204
    assert kept
    assert "top secret" not in "".join(kept)


def test_each_change_that_is_no_commit_is_tried() -> None:
    changing = {
        route.handler
        for route in (*SERVED, *TRANSACTIONS, *VIEWS)
        if route.method in ("POST", "DELETE") and not route.commits
    }
    assert changing - {tables.report_metrics} == set(DOUBTS) == {handler for handler, _ in _CHANGES.values()}
