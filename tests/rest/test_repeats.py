"""A commit with a key is sent again, whatever happened in between: after a 4xx it has not landed, and never will.

A client as Iceberg Java deletes the files of its commit after a 4xx. The generator has each route that commits, the
moment at which the first copy lands, the table to which something happens, and what that is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table, Transaction
from pyiceberg.transforms import IdentityTransform

import commit_coord
from commit_coord.clock import SYSTEM_CLOCK
from commit_coord.coordinator import outcome
from commit_coord.iceberg import blind, manifest_list
from commit_coord.rest import idempotency, tables, transactions
from commit_coord.rest.access import Forbidden
from commit_coord.rest.answered import KeyedRequests
from commit_coord.rest.doubts import Handler
from commit_coord.rest.errors import error_answer
from commit_coord.rest.idempotency import Idempotency
from commit_coord.rest.metadata import TableAnswers
from commit_coord.rest.turns import Lines
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import HttpAnswer, Request
from tests.rest.kit import SCHEMA, ids, row_ids
from tests.rest.lost_replies import new_key
from tests.rest.test_views import SELECT
from tests.sent import body_of

Name = tuple[str, str]

_SPEC = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))
_CLASS = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
"""A property that a client may set only because the catalog has the same value."""

_NAMES: tuple[Name, ...] = (("n0", "t"), ("n1", "t"))
_AWAY = "away"


class Killed(Exception):
    """The server ended."""


@dataclass(slots=True)
class World:
    """A catalog whose server is killed before it keeps an answer, and a commit that is sent to it twice."""

    warehouse: Warehouse
    patch: pytest.MonkeyPatch
    keys: Idempotency = field(default_factory=Idempotency)
    changes: dict[Name, dict[str, Any]] = field(default_factory=dict)
    creates: set[Name] = field(default_factory=set)
    said: dict[str, str] = field(default_factory=dict)
    may_commit: bool = True
    turned: set[Name] = field(default_factory=set)
    """The tables whose property ``turn`` another writer has set last."""
    mends: list[Callable[[], object]] = field(default_factory=list)
    """What ends a fault that passes: the rest of a file comes, or another server has the right settings."""

    @property
    def catalog(self) -> Any:
        """The catalog."""
        return self.warehouse.catalog

    def change(self, number: int) -> None:
        """Have the commit append a row to a table."""
        name = _NAMES[number]
        table = self.catalog.create_table(name, SCHEMA, partition_spec=_SPEC)
        table.append(ids(100 + number))
        self._take(name, Transaction(table), number)

    def append_blindly(self, number: int) -> None:
        """As :meth:`change`; the append is declared blind."""
        self.said = {blind.DECLARATION: blind.BLIND}
        self.change(number)

    def set_property(self, number: int) -> None:
        """Have the commit set a property, and add no snapshot."""
        name = _NAMES[number]
        table = self.catalog.create_table(name, SCHEMA)
        self.changes[name] = {
            "requirements": [],
            "updates": [{"action": "set-properties", "updates": {"turn": "ours"}}],
        }
        table.append(ids(100 + number))

    def create(self, number: int) -> None:
        """Have the commit create a table with a row."""
        name = _NAMES[number]
        self.creates.add(name)
        self._take(name, self.catalog.create_table_transaction(name, SCHEMA, partition_spec=_SPEC), number)

    def _take(self, name: Name, tx: Any, number: int) -> None:
        tx.append(ids(number), snapshot_properties=self.said)
        tx.set_properties(_CLASS)
        self.changes[name] = body_of(tx)
        if name in self.creates:
            self.changes[name]["requirements"] = [{"type": "assert-create"}]

    def turn(self, name: Name) -> Table:
        """Set the property ``turn`` as another writer; return the table."""
        table: Table = self.catalog.load_table(name)
        with table.transaction() as tx:
            tx.set_properties({"turn": "theirs", "write.metadata.previous-versions-max": "1"})
        self.turned.add(name)
        return table

    def stood(self) -> list[str]:
        """Return who set the property last, for each table in which another writer did so last of all."""
        found = [self.catalog.load_table(name) for name in self.turned if self.catalog.table_exists(name)]
        return sorted({table.properties["turn"] for table in found})

    def request(self) -> tuple[Handler, Request]:
        """Return the commit, ready to be sent: a transaction if there are several tables."""
        several = len(self.changes) > 1
        ((namespace, table), alone), *_ = self.changes.items()
        named = [
            {"identifier": {"namespace": [name[0]], "name": name[1]}, **change} for name, change in self.changes.items()
        ]
        handler = transactions.commit_transaction if several else tables.commit_table
        return handler, Request(
            method="POST",
            path="/",
            names={"namespace": namespace, "table": table},
            headers={"idempotency-key": new_key()},
            body=json.dumps({"table-changes": named} if several else alone).encode(),
        )

    def sent(self, handler: Handler, request: Request) -> HttpAnswer:
        """Return what is answered."""
        try:
            if not self.may_commit:
                raise self.keys.forbidden(Forbidden("not any more"), handler, self.warehouse, request)
            return self.keys.answer(handler, self.warehouse, request)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            return error_answer(error)

    def killed_before_it_commits(self, handler: Handler, request: Request) -> None:
        """Have the first copy begin, and nothing more."""

        def killed(*_: Any) -> HttpAnswer:
            raise Killed

        with self.patch.context() as patch:
            patch.setattr(idempotency, "_execute_begun", killed)
            with suppress(Killed):
                self.keys.answer(handler, self.warehouse, request)

    def rows(self) -> list[int]:
        """Return the rows of all tables together."""
        names = [name for (space,) in self.catalog.list_namespaces() for name in self.catalog.list_tables(space)]
        return sorted(row for name in names for row in row_ids(self.catalog.load_table(name)))


# -- what happens in between ---------------------------------------------------------------------------------


def _nothing(world: World, name: Name) -> None:
    pass


def _moved(world: World, name: Name) -> None:
    if world.catalog.table_exists(name):
        world.catalog.load_table(name).append(ids(200))


def _expired(world: World, name: Name) -> None:
    """All snapshots expire but the last one, as Spark's procedure does it."""
    if world.catalog.table_exists(name):
        table = world.catalog.load_table(name)
        table.append(ids(200))
        old = [each.snapshot_id for each in table.snapshots() if each != table.current_snapshot()]
        table.maintenance.expire_snapshots().by_ids(old).commit()


def _trimmed(world: World, name: Name) -> None:
    """The metadata log names only the last file before this one."""
    if world.catalog.table_exists(name):
        table = world.turn(name)
        for _ in range(3):
            table.append(ids(200))


def _forgotten(world: World, name: Name) -> None:
    """Neither the snapshots nor the metadata log of the table reach back to the commit."""
    _trimmed(world, name)
    _expired(world, name)


def _forgotten_and_renamed(world: World, name: Name) -> None:
    _forgotten(world, name)
    _renamed(world, name)


def _renamed(world: World, name: Name) -> None:
    if world.catalog.table_exists(name):
        world.catalog.rename_table(name, (_AWAY, name[0]))


def _dropped(world: World, name: Name) -> None:
    if world.catalog.table_exists(name):
        world.catalog.drop_table(name)


def _replaced(world: World, name: Name) -> None:
    _renamed(world, name)
    world.catalog.create_table(name, SCHEMA).append(ids(300))


def _without_namespace(world: World, name: Name) -> None:
    _renamed(world, name)
    world.catalog.drop_namespace(name[0])


def _viewed(world: World, name: Name) -> None:
    _renamed(world, name)
    world.catalog.create_view(name, SCHEMA, SELECT)


def _lists(world: World, name: Name) -> list[Path]:
    updates = world.changes[name]["updates"]
    return [_local(update["snapshot"]["manifest-list"]) for update in updates if "snapshot" in update]


def _manifests(world: World, name: Name) -> list[Path]:
    found = [manifest_list.read(world.catalog.file_io(str(path)), str(path)) for path in _lists(world, name)]
    return [_local(manifest.manifest_path) for listed in found for manifest in listed]


def _metadata(world: World, name: Name) -> list[Path]:
    if not world.catalog.table_exists(name):
        return []
    location = world.catalog.metadata_location(name)
    world.catalog.coordinator.cache.drop(location)
    return [_local(location)]


def _local(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def _cut(kind: Callable[[World, Name], list[Path]], share: float, world: World, name: Name) -> None:
    """Have files be shorter for a while; with 0, not be there."""
    for path in kind(world, name):
        whole = path.read_bytes()
        world.mends.append(partial(path.write_bytes, whole))
        path.write_bytes(whole[: int(share * len(whole))])
        if not share:
            path.unlink()


def _forbidden(world: World, name: Name) -> None:
    world.may_commit = False
    world.mends.append(lambda: setattr(world, "may_commit", True))


def _with_other_settings(world: World, name: Name) -> None:
    del world.catalog.properties["py-io-impl"]
    world.mends.append(lambda: world.catalog.properties.update(_CLASS))


_HAPPENED: dict[str, Callable[[World, Name], None]] = {
    "nothing": _nothing,
    "moved": _moved,
    "expired": _expired,
    "trimmed": _trimmed,
    "forgotten": _forgotten,
    "forgotten and renamed": _forgotten_and_renamed,
    "renamed": _renamed,
    "dropped": _dropped,
    "replaced": _replaced,
    "its namespace dropped": _without_namespace,
    "a view in its place": _viewed,
    "its grants gone": _forbidden,
    "other settings": _with_other_settings,
    **{
        f"{kind.__name__[1:]} {what}": partial(_cut, kind, share)
        for kind in (_lists, _manifests, _metadata)
        for what, share in {"gone": 0.0, "cut early": 0.02, "cut late": 0.9}.items()
    },
}

_COMMITS: dict[str, tuple[Callable[[World, int], None], ...]] = {
    "a change": (World.change,),
    "a blind append": (World.append_blindly,),
    "a property": (World.set_property,),
    "a creation": (World.create,),
    "two changes": (World.change, World.change),
    "a change and a creation": (World.change, World.create),
    "two creations": (World.create, World.create),
}


# -- the generator -------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A catalog and its killed servers."""
    catalog = commit_coord.load_catalog(
        "shop",
        uri=f"coord+sqlite:///{tmp_path}/catalog.db",
        warehouse=f"file://{tmp_path}",
        **{"lock-impl": "memory", "lock.acquire-timeout-ms": "60000", **_CLASS},
    )
    for space in (_AWAY, *(namespace for namespace, _ in _NAMES)):
        catalog.create_namespace(space)
    monkeypatch.setattr(KeyedRequests, "end", lambda *_: None)
    lines = Lines(SYSTEM_CLOCK, reserved_ms=0, most_waiting=0)
    yield World(Warehouse(catalog, TableAnswers(catalog.file_io), lines), monkeypatch)
    assert [] == list(catalog.locks.locks())
    catalog.close()


def _prepared(world: World, commit: str) -> tuple[Handler, Request]:
    for number, part in enumerate(_COMMITS[commit]):
        part(world, number)
    return world.request()


_EACH = pytest.mark.parametrize(
    "commit, at", [(commit, at) for commit, parts in _COMMITS.items() for at in range(len(parts))]
)
"""Each commit, and the table to which something happens."""


def nothing_is_there_twice(world: World) -> None:
    """End the faults that pass; assert that each row is there once at most, and no property was set again."""
    for mend in world.mends:
        mend()
    assert 1 >= max(map(world.rows().count, range(len(_NAMES))))
    assert {"theirs"} >= set(world.stood())


@_EACH
@pytest.mark.parametrize("happened", _HAPPENED)
@pytest.mark.parametrize("when", ["before the repeat", "under the repeat"])
def test_a_commit_that_has_landed_is_not_refused(world: World, commit: str, at: int, happened: str, when: str) -> None:
    handler, request = _prepared(world, commit)

    def lands() -> None:
        with world.patch.context() as patch:
            patch.setattr(outcome, "_remember", lambda *_: None)  # the server is killed right after the swap
            handler(world.warehouse, request)
        _HAPPENED[happened](world, _NAMES[at])

    world.killed_before_it_commits(handler, request)
    if when == "before the repeat":
        lands()
        answer = world.sent(handler, request)
    else:  # between its look at the tables and its own try
        begun_on = KeyedRequests.begun_on

        def late(*arguments: Any) -> Any:
            world.patch.setattr(KeyedRequests, "begun_on", begun_on)
            lands()
            return begun_on(*arguments)

        world.patch.setattr(KeyedRequests, "begun_on", late)
        answer = world.sent(handler, request)
    if happened == "nothing":
        assert answer.status in (200, 204), answer.body
    if answer.status not in (200, 204):
        assert (500, "CommitStateUnknownException") == (answer.status, json.loads(answer.body)["error"]["type"])
    nothing_is_there_twice(world)


@_EACH
@pytest.mark.parametrize("happened", _HAPPENED)
def test_a_first_copy_that_stalls_does_not_land_again(world: World, commit: str, at: int, happened: str) -> None:
    """It goes on when its repeat has landed, and has been followed by other commits."""
    handler, request = _prepared(world, commit)
    world.killed_before_it_commits(handler, request)
    assert world.sent(handler, request).status in ((500,) if world.creates else (200, 204))
    _HAPPENED[happened](world, _NAMES[at])
    with suppress(Exception):
        handler(world.warehouse, request)
    nothing_is_there_twice(world)


@_EACH
@pytest.mark.parametrize("happened", _HAPPENED)
def test_what_is_refused_to_a_repeat_does_not_land_later(world: World, commit: str, at: int, happened: str) -> None:
    """The first copy is under way while the repeat is answered."""
    handler, request = _prepared(world, commit)
    world.killed_before_it_commits(handler, request)
    _HAPPENED[happened](world, _NAMES[at])
    answer = world.sent(handler, request)
    if happened == "nothing" and not world.creates:
        assert answer.status in (200, 204), answer.body
    for mend in world.mends:
        mend()
    with suppress(Exception):  # most often it does not land any more
        handler(world.warehouse, request)
    rows = world.rows()
    assert 1 >= max(map(rows.count, range(len(_NAMES))))
    if 400 <= answer.status < 500:
        assert not set(rows) & set(range(len(_NAMES))), answer.body
