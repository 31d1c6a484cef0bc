"""Finds out whether a request was carried out whose server was killed before it kept the answer.

1. A server drops a table and is killed.   2. The client sends the request again, to another server. The answer "no such
table" would be wrong. To drop a table that was created under this name in between would be wrong, too.

So the server keeps the state of the store before it carries a request out. If the request is sent again, the server
compares that state with the present one. It distinguishes three states: that before the request, that after it, and any
other one. In the last case the outcome is unknown: neither a refusal nor a second try would be right. So is the outcome
of a creation whose object is not there: perhaps another client has renamed or dropped it since.

A commit is recognized in its table, whose history contains the request id. So only the table is kept: its UUID, and the
point of its history from which on the id may be there.

1. A commit lands in the table t, and the server is killed.   2. t is renamed, and perhaps another table gets its name.
3. The client sends the request again. No history contains the id, but the commit is not refused: its
outcome is unknown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson
from pyiceberg.catalog.sql import IcebergNamespaceProperties
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.typedef import Identifier

from commit_coord.errors import CommitConflict, CommitStateUnknown
from commit_coord.iceberg import metadata as fast_metadata
from commit_coord.rest import namespaces, tables, transactions, views
from commit_coord.rest.answered import StateBefore
from commit_coord.rest.commits import key_of
from commit_coord.rest.errors import executed
from commit_coord.rest.warehouses import Warehouse
from commit_coord.rest.wire import (
    NO_CONTENT,
    CreateNamespace,
    CreateTableRequest,
    HttpAnswer,
    Named,
    RegisterTable,
    RegisterView,
    RenameTable,
    Request,
    UnsupportedRequest,
    changed_tables,
    json_answer,
    read_commit,
    read_transaction,
)

Handler = Callable[[Warehouse, Request], HttpAnswer]


def _same(before: StateBefore, now: StateBefore) -> bool:
    return before == now


@dataclass(frozen=True, slots=True)
class Doubt:
    """How to find out whether a request of one route was carried out.

    Args:
        look: Returns the state of the object that the request names; ``there`` is None if there is none. The keys are
            always the same.
        settle: Returns the answer, given the state when the request began and the state now; None if the request was
            not carried out, or if the states do not show it.
        same: Tells whether the object is the one that was there when the request began.
        guesses: Whether the change of another client may look like that of the request. Then only a repeat is settled.
        makes: Whether the request makes the object.
    """

    look: Callable[[Warehouse, Request], StateBefore]
    settle: Callable[[Warehouse, Request, StateBefore, StateBefore], HttpAnswer | None]
    same: Callable[[StateBefore, StateBefore], bool] = _same
    guesses: bool = False
    makes: bool = False

    def settled(
        self, warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore
    ) -> HttpAnswer | None:
        """Return the answer if the states show that the request was carried out, else None.

        A server of another version may have kept a state with other keys. Such a state shows nothing.
        """
        return self.settle(warehouse, request, before, now) if before.keys() == now.keys() else None

    def refuse_unsettled(self, request: Request, before: StateBefore, now: StateBefore) -> None:
        """Return if a repeat that is not settled may be carried out: the table, view or namespace shows no other copy.

        Raises:
            CommitStateUnknown: The object is not the one that the first copy of the request found, the request makes it
                and it does not exist, or a server of another version has kept its state.
        """
        if not self._is_known(before, now) or (self.makes and now["there"] is None):
            raise CommitStateUnknown(
                "an earlier copy of the request was begun, and the table, view or namespace that it names has changed "
                "since, or does not exist, or a server of another version began the request; it is not known whether "
                "the request was executed: look for its effect, also under other names, before you send it with "
                "another Idempotency-Key",
                request=f"{request.method} {request.path}",
                request_id=request.idempotency_key,
            )

    def _is_known(self, before: StateBefore, now: StateBefore) -> bool:
        return before.keys() == now.keys() and self.same(before, now)

    def refuse_changed(self, request: Request, untouched: StateBefore, now: StateBefore) -> None:
        """Return if what a request found *untouched*, and left so, is still there, or nothing is.

        Raises:
            CommitConflict: Another client has changed it since, or has given its name to another one.
        """
        if not self._is_known(untouched, now) and now["there"] is not None:
            raise CommitConflict(
                "the request did nothing when it was sent first, and the table, view or namespace that it names has "
                "changed since: look at it, and send the request with another Idempotency-Key",
                request=f"{request.method} {request.path}",
                request_id=request.idempotency_key,
            )


# Namespaces.


def _new_namespace(warehouse: Warehouse, request: Request) -> StateBefore:
    return _namespace(warehouse, request.parsed(CreateNamespace).namespace)


def _changed_namespace(warehouse: Warehouse, request: Request) -> StateBefore:
    return _namespace(warehouse, request.namespace)


def _old_namespace(warehouse: Warehouse, request: Request) -> StateBefore:
    """Return what tells a namespace from one that was created under its name since: it has no UUID.

    The properties may contain secrets, which the journal must not show.
    """
    try:
        properties = warehouse.catalog.load_namespace_properties(request.namespace)
    except NoSuchNamespaceError:
        return {"there": None, "properties": None}
    kept = orjson.dumps(dict(properties), option=orjson.OPT_SORT_KEYS)
    return {"there": "yes", "properties": hashlib.sha256(kept).hexdigest()}


def _namespace(warehouse: Warehouse, namespace: Identifier) -> StateBefore:
    return {"there": "yes" if warehouse.catalog.namespace_exists(namespace) else None}


def _namespace_made(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    wanted = request.parsed(CreateNamespace)
    if before["there"] is not None or now["there"] is None:
        return None
    found = warehouse.catalog.load_namespace_properties(wanted.namespace)
    if not wanted.properties.items() <= {**found, **IcebergNamespaceProperties.NAMESPACE_MINIMAL_PROPERTIES}.items():
        return None  # another client created it, or has changed it
    return json_answer({"namespace": wanted.namespace, "properties": wanted.properties})


def _gone(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    return NO_CONTENT if before["there"] is not None and now["there"] is None else None


def _never_settled(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    return None


# Tables and views. The state is the UUID: another one may have the same name by now.

_UNREADABLE = ""
"""Instead of the UUID of a table or view whose metadata cannot be read. It can still be dropped and renamed."""


def _same_object(before: StateBefore, now: StateBefore) -> bool:
    """Tell whether it is the same object, also if its metadata could not be read once."""
    if before["location"] == now["location"]:
        return True
    return bool(before["there"] != _UNREADABLE and before["there"] == now["there"])


def _same_or_none(before: StateBefore, now: StateBefore) -> bool:
    """Tell whether it is the same object; or there was none, and each copy of a drop or a rename is refused."""
    return before["location"] is None or _same_object(before, now)


def _old_table(warehouse: Warehouse, request: Request) -> StateBefore:
    return _state(warehouse, request.table)


def _new_table(warehouse: Warehouse, request: Request) -> StateBefore:
    return {"there": _uuid(warehouse, (*request.namespace, request.parsed(CreateTableRequest).name))}


def _table_made(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    if now["there"] != request.idempotency_key:
        return None  # a table that a request with a key creates has the key as its UUID
    table = (*request.namespace, request.parsed(CreateTableRequest).name)
    with executed(table, has_key=True):
        return warehouse.answers.load(warehouse.catalog.metadata_location(table), request).of(table, now["there"])


def _old_one_gone(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    if before["there"] is None:
        return None
    if now["there"] is not None and _UNREADABLE in (before["there"], now["there"]):
        return None
    return NO_CONTENT if now["there"] != before["there"] else None


def _renamed_tables(warehouse: Warehouse, request: Request) -> StateBefore:
    wanted = request.parsed(RenameTable)
    source, destination = wanted.source.identifier, wanted.destination.identifier
    return {**_state(warehouse, source), "destination": _uuid(warehouse, destination)}


def _renamed(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    return NO_CONTENT if before["there"] and now["destination"] == before["there"] else None


def _registered_table(warehouse: Warehouse, request: Request) -> StateBefore:
    """Return where the table is, and which of its metadata files follows the one that is registered.

    A rollback registers a file that the table's history has already. Then the next commit gives it another follower.
    """
    wanted = request.parsed(RegisterTable)
    location = _location(warehouse, (*request.namespace, wanted.name))
    next_file = location and _follower(warehouse, location, wanted.metadata_location)
    return {"there": location, "location": location, "next": next_file}


def _follower(warehouse: Warehouse, location: str, file: str) -> str | None:
    """Return what follows *file* in the history of the table at *location*; None if nothing does, or nobody knows."""
    try:
        log = warehouse.catalog.coordinator.read(location).metadata_log
    except Exception:  # noqa: BLE001 - missing or damaged; the table can still be replaced
        return None
    files = [*(entry.metadata_file for entry in log), location]
    return files[files.index(file) + 1] if file in files[:-1] else None


def _registered(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    location, wanted = now["location"], request.parsed(RegisterTable).metadata_location
    if location in (None, before["location"]):
        return None
    if location != wanted and now["next"] in (None, before["next"]):
        return None
    table = (*request.namespace, request.parsed(RegisterTable).name)
    with executed(table, has_key=True):
        uuid = warehouse.catalog.coordinator.read(location).table_uuid
        return warehouse.answers.load(location, request).of(table, uuid)


def _location(warehouse: Warehouse, table: Identifier) -> str | None:
    try:
        return warehouse.catalog.metadata_location(table)
    except NoSuchTableError:
        return None


def _uuid(warehouse: Warehouse, table: Identifier) -> str | None:
    uuid: str | None = _state(warehouse, table)["there"]
    return uuid


def _state(warehouse: Warehouse, table: Identifier) -> StateBefore:
    location = _location(warehouse, table)
    if location is None:
        return {"there": None, "location": None, "sequence-number": 0}
    try:
        metadata = warehouse.catalog.coordinator.read(location)
    except Exception:  # noqa: BLE001 - missing or damaged; the handler reports it if it needs the metadata
        return {"there": _UNREADABLE, "location": location, "sequence-number": 0}
    number = fast_metadata.sequence_number(metadata)
    return {"there": str(metadata.table_uuid), "location": location, "sequence-number": number}


# Commits.

COMMITS: Mapping[Handler, Callable[[Request], Sequence[Identifier]]] = {
    tables.commit_table: lambda request: (request.table,),
    transactions.commit_transaction: lambda request: changed_tables(request.body),
}
"""The routes whose tables contain the key after the commit, and how to find the names of these tables."""


def commit_tables(handler: Handler, warehouse: Warehouse, request: Request) -> StateBefore:
    """Return the state of each table that a commit names: its UUID, its location and its last sequence number."""
    try:
        named = COMMITS[handler](request)
    except ValueError:
        return {}  # the handler refuses the request
    return {key_of(table): _state(warehouse, table) for table in named}


def creates_tables(handler: Handler, request: Request) -> bool:
    """Return whether a request creates a table, and does not only stage it; False if it cannot be parsed.

    1. A table is created, and its reply is lost.   2. It is renamed.   3. The repeat finds no table. If it created the
    table again, two tables would have the same UUID and the same files.
    """
    try:
        if handler is tables.create_table:
            return not request.parsed(CreateTableRequest).stage_create
        if handler not in COMMITS or b"assert-create" not in request.body:
            return False  # the look into the body saves that most commits are parsed twice
        if handler is tables.commit_table:
            return read_commit(request).creates
        return any(change.creates for change in read_transaction(request).table_changes)
    except (ValueError, UnsupportedRequest):
        return False


def refuse_other_tables(before: StateBefore, now: StateBefore, key: str, *, may_be_new: bool) -> None:
    """Return if the tables of a commit are still those that its first copy found.

    Args:
        before: What :func:`commit_tables` returned for the first copy.
        now: What it returns now.
        key: The key of the request.
        may_be_new: Whether a table that did not exist may exist now: this or another request has created it.

    Raises:
        CommitStateUnknown: A table is gone, cannot be read, or is another one.
    """
    for name, seen in before.items():
        uuid = seen["there"]
        if now[name]["there"] != uuid and not (uuid is None and may_be_new):
            raise CommitStateUnknown(
                "the table is not the one that the request found when it began, so it is not known whether the commit "
                "has landed; look for the request id in the table that was renamed or dropped",
                table=name,
                request_id=key,
            )


# Views.


def _old_view(warehouse: Warehouse, request: Request) -> StateBefore:
    return views.state(warehouse, request.view)


def _new_view(warehouse: Warehouse, request: Request) -> StateBefore:
    return views.state(warehouse, (*request.namespace, request.parsed(Named).name))


def _view_made(warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore) -> HttpAnswer | None:
    if now["there"] != request.idempotency_key:
        return None  # a view that a request with a key creates has the key as its UUID
    return _with_view(warehouse, request, now)


def _view_registered(
    warehouse: Warehouse, request: Request, before: StateBefore, now: StateBefore
) -> HttpAnswer | None:
    if before["location"] is not None or now["location"] != request.parsed(RegisterView).metadata_location:
        return None
    return _with_view(warehouse, request, now)


def _with_view(warehouse: Warehouse, request: Request, now: StateBefore) -> HttpAnswer:
    view = (*request.namespace, request.parsed(Named).name)
    with executed(view, has_key=True):
        return warehouse.answers.load(now["location"], request).of(view, now["there"], is_view=True)


def _renamed_views(warehouse: Warehouse, request: Request) -> StateBefore:
    wanted = request.parsed(RenameTable)
    source, destination = wanted.source.identifier, wanted.destination.identifier
    return {**views.state(warehouse, source), "destination": views.state(warehouse, destination)["there"]}


DOUBTS: Mapping[Handler, Doubt] = {
    namespaces.create_namespace: Doubt(_new_namespace, _namespace_made, guesses=True, makes=True),
    namespaces.update_namespace: Doubt(_changed_namespace, _never_settled),
    namespaces.drop_namespace: Doubt(_old_namespace, _gone),
    tables.create_table: Doubt(_new_table, _table_made, makes=True),
    tables.drop_table: Doubt(_old_table, _old_one_gone, _same_or_none),
    tables.rename_table: Doubt(_renamed_tables, _renamed, _same_or_none),
    tables.register_table: Doubt(_registered_table, _registered, makes=True),
    views.create_view: Doubt(_new_view, _view_made, _same_object, makes=True),
    views.commit_view: Doubt(_old_view, _never_settled, _same_object),
    views.register_view: Doubt(_new_view, _view_registered, guesses=True, makes=True),
    views.drop_view: Doubt(_old_view, _old_one_gone, _same_or_none),
    views.rename_view: Doubt(_renamed_views, _renamed, _same_or_none),
}
"""By the handler of the route.

A change of the properties of a namespace, or of the version of a view, is carried out again: the result is the same
unless another client made a change in between.
"""

UNSETTLED = Doubt(lambda *_: {}, _never_settled)
"""Of the requests that change nothing that the server could look for."""


def doubt_of(handler: Handler, request: Request) -> Doubt:
    """Return how to find out whether *request* was carried out."""
    if handler is tables.create_table and not creates_tables(handler, request):
        return UNSETTLED  # it only stages the table, or is refused
    return DOUBTS.get(handler, UNSETTLED)


def if_nothing_done(handler: Handler, request: Request, seen: StateBefore) -> StateBefore | None:
    """Return the state from which a repeat begins if the request, which found *seen*, did nothing.

    An empty one lets the repeat begin as if the request had never been sent: what does not exist yet is made. The
    repeat of any other request still changes only what the first copy found. None means that the repeat must settle
    what the first copy did: an overwrite would replace what others have committed since it was sent.
    """
    if handler is tables.register_table and request.parsed(RegisterTable).overwrite:
        return None
    return {} if doubt_of(handler, request).makes else seen
